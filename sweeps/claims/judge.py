"""The judge of claims, and the rules by which it reaches a verdict from measurements.

The rule by which measurements confirm or refute a hypothesis:

Every claim is judged by the interval of the mean over the seeds (Student's t, paired by seed), at 95 % for all claims:

- fewer than six seeds, unless the claim is deterministic, or a run that did not end: inconclusive;
- deterministic: confirmed if every seed lies in the claimed region, else refuted;
- statistical: confirmed if the whole interval lies in the region, and every seed too; refuted if the
  interval lies wholly outside; inconclusive in between;
- an effect of type "dominance" must also be large: a change below 10 % on any seed is inconclusive, and
  20 % or less on any seed is confirmed with nuance;
- thresholds (UQ) and Pareto claims, which are about means, ask the interval alone, not every seed;
- a claim about a pooled percentile asks the interval alone, since no seed has a value of its own;
- along a setting every step from one value to the next is judged as a claim of its own.

A hypothesis is confirmed if all its claims are, refuted if any claim is, else inconclusive; refuted
although its first claim is confirmed means partially confirmed.

Every record holds the number of the rule that judged it. Under rule 1 intervals of changes
in % and of ratios were symmetric and could reach below -100 % or 0; since rule 2 they are those of the
logarithm of the ratio. Since rule 3 the verdicts of the comparison with the baseline hold for all its
metrics at once (Holm); before, each stood for itself. Since rule 4 the intervals of a hypothesis's claims
hold together (Bonferroni over its claims and, along a setting, their steps); before, each stood for
itself. Since rule 5 the comparison has no verdict on fewer than six seeds. Since rule 6 claims have none either
(before, three were enough), and small p-values of the comparison allow for a further seed
(`blis_jax.statistics.skewed`). Where seeds were added until
the verdicts were safe, all intervals are anytime-valid. Records keep the rule that they were judged by,
and are checked by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from blis_jax.metrics.scalars import pooled_latency
from blis_jax.statistics.intervals import (
    CONFIDENCE,
    Estimate,
    estimate,
    linear_change,
    relative_change,
)
from blis_jax.statistics.paired import Pair, fewest_for_verdict
from sweeps.claims.grammar import CHANGE, FALLS, FLAT, GAP, GAP_OF, Claim, beyond
from sweeps.claims.words import (
    CONFIRMED,
    INCONCLUSIVE,
    MET,
    MISSED,
    NOT_MEASURED,
    NOT_MET,
    PARTLY,
    REFUTED,
    UNCLEAR,
    WITH_NUANCE,
)

if TYPE_CHECKING:
    from jaxtyping import Float

    # of two values by seed, the confidence, and whether it is anytime
    Relative = Callable[..., Estimate]

# of one arm, by metric; NaN where there is none
Figures = Mapping[str, "Float[np.ndarray, 'seed']"]
RULE = 6  # the version of all of this by which new records are judged
RELATIVE: Mapping[int, Relative] = {
    1: linear_change, 2: relative_change, 3: relative_change, 4: relative_change,
    5: relative_change, 6: relative_change,
}  # fmt: skip
FIRST_OF_FAMILIES = 3  # the rule from which the verdicts of a comparison hold for all of it at once
FIRST_OF_CLAIMS_TOGETHER = 4  # and from which the intervals of a hypothesis's claims hold together
FIRST_OF_ENOUGH_SEEDS = 5  # and from which few seeds give no verdict of a comparison
FIRST_OF_FURTHER_SEED = (
    6  # and from which claims take as many seeds, and a comparison's tests a further one
)
FEWEST_FOR_OLDER_CLAIMS = 3
CLEAR_PERCENT, FAINT_PERCENT = 20.0, 10.0  # of an effect on every seed, and on any


@dataclass(frozen=True)
class ClaimReading:
    """What was measured for a claim: its metric's value, or the change in %.

    Attributes:
        per_seed: one value per seed, or per run.
        mean: the mean of `per_seed`, with its interval.
        parts: the values from which the metric is computed, by name.
        failure: why there is no value.
    """

    per_seed: tuple[float, ...]
    mean: Estimate
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def num_missing(self) -> int:
        """Return the number of seeds without a value."""
        return sum(not math.isfinite(value) for value in self.per_seed)


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim, and the reason.

    Attributes:
        claim: the claim; None where facts or people decide.
        finer: the verdict in the finer terms of a findings document.
        is_clear: whether the interval lies wholly in the claimed region or wholly outside, whatever single seeds say.
    """

    claim: Claim | None
    word: str
    reason: str
    reading: ClaimReading | None = None
    finer: str = ""
    is_clear: bool = False

    @property
    def num_holding(self) -> int:
        """Return the number of seeds on which the claim holds."""
        if self.claim is None or self.reading is None:
            return 0
        return sum(map(self.claim.holds, self.reading.per_seed))


class DecidingRule(Protocol):
    """A rule that decides the verdict on a reading."""

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return the verdict, the verdict in finer terms, and the reason."""


class JudgingRule(DecidingRule, Protocol):
    """A rule that also says how intervals are computed."""

    @property
    def confidence(self) -> float:
        """Return the confidence of each interval."""

    @property
    def relative(self) -> Relative:
        """Return the function that computes intervals of changes in %."""

    @property
    def is_anytime(self) -> bool:
        """Return whether the number of seeds was chosen by looking at their results."""


def judge(claim: Claim, rule: JudgingRule, figures: Figures, reference: Figures) -> ClaimVerdict:
    """Return the verdict on a claim about one arm against a reference arm."""
    reading = read(claim, figures, reference, rule.relative, rule.confidence, rule.is_anytime)
    return judge_reading(claim, rule, reading)


def judge_reading(claim: Claim, rule: DecidingRule, reading: ClaimReading) -> ClaimVerdict:
    """Return the verdict on a claim from a reading of its metric."""
    word, finer, reason = rule.decide(claim, reading)
    is_clear = claim.truth(reading.mean) is not None
    return ClaimVerdict(claim, word, reason, reading, finer, is_clear)


def judge_along(claim: Claim, rule: JudgingRule, levels: Sequence[Figures]) -> ClaimVerdict:
    """Return the verdict on a claim about the steps from each value of a setting to the next.

    `flat` compares every value with the first one.
    """
    step, steps = _step_claim(claim), []
    for place in range(1, len(levels)):
        before = levels[0] if claim.shape == FLAT else levels[place - 1]
        steps.append(judge(step, rule, levels[place], before))
    word = overall([step.word for step in steps])
    worst = next(step for step in steps if step.word == word)
    reason = f"step {steps.index(worst) + 1} of {len(steps)}: {worst.reason}"
    is_clear = word == REFUTED or all(step.is_clear for step in steps)
    return ClaimVerdict(claim, word, reason, worst.reading, word, is_clear)


def _step_claim(claim: Claim) -> Claim:
    if claim.shape == FLAT:
        return replace(claim, of=CHANGE)
    step = beyond(claim.metric, claim.shape != FALLS)
    return replace(claim, of=CHANGE, low=step.low, high=step.high)


def read(
    claim: Claim,
    figures: Figures,
    reference: Figures,
    relative: Relative = relative_change,
    confidence: float = CONFIDENCE,
    is_anytime: bool = False,
) -> ClaimReading:
    """Return the reading of the claim's metric: its values, and their mean over the seeds that both arms have."""
    if claim.metric == GAP:
        critical, sheddable = (_of(figures, name) for name in GAP_OF)
        change = relative(*Pair(critical, sheddable).common(), confidence, is_anytime)
        per_seed = (sheddable / critical).tolist()
        return ClaimReading(tuple(per_seed), change.through(lambda percent: 1 + percent / 100))
    values = _of(figures, claim.metric)
    if not claim.is_change:
        return ClaimReading(tuple(values.tolist()), estimate(values, confidence, is_anytime))
    before = _of(reference, claim.metric)
    change = relative(*Pair(before, values).common(), confidence, is_anytime)
    base = np.where(before == 0, np.nan, before)
    return ClaimReading(tuple((100 * (values / base - 1)).tolist()), change)


def _of(figures: Figures, name: str) -> Float[np.ndarray, "seed"]:
    if name in figures:
        return figures[name]
    count = len(next(iter(figures.values()))) if figures else 0
    return np.full(count, np.nan)


# --- rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Alone:
    """Intervals at the usual confidence, each for one claim alone."""

    confidence: float = CONFIDENCE
    relative: Relative = relative_change
    is_anytime: bool = False


@dataclass(frozen=True)
class ByMean(_Alone):
    """Call a claim met if the mean over the seeds lies in the claimed region."""

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return met or not met."""
        word = MET if claim.holds(reading.mean.mean) else NOT_MET
        return word, word, f"{reading.mean.mean:.4g}"


@dataclass(frozen=True)
class ByInterval(_Alone):
    """Call a claim met where the whole interval lies in the claimed region, missed where it lies wholly outside."""

    where: str = ""  # it was measured, behind the figure

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return met, missed, unclear, or not measured."""
        mean, count = reading.mean, len(reading.per_seed)
        unit = " %" if claim.is_change else ""
        figure = f"{mean.mean:.4g}{unit} [{mean.low:.4g}, {mean.high:.4g}]{self.where}"
        if reading.num_missing or not count:
            figure = f"{reading.num_missing} of {count} seeds have no figure{self.where}"
            return NOT_MEASURED, NOT_MEASURED, figure
        if count < fewest_for_verdict(CONFIDENCE):
            return UNCLEAR, UNCLEAR, f"{figure}, from {count} seeds"
        word = {True: MET, False: MISSED, None: UNCLEAR}[claim.truth(mean)]
        return word, word, figure


@dataclass(frozen=True)
class HypothesisRule:
    """Confirm or refute the claims of a kind of hypothesis, by a version of the rule above."""

    is_exact: bool = False  # deterministic
    is_dominance: bool = False
    is_about_means: bool = False  # a threshold (UQ), or Pareto
    number: int = RULE
    num_intervals: int = 1  # of the hypothesis
    is_anytime: bool = False  # the number of seeds was chosen by looking at them

    @property
    def confidence(self) -> float:
        """Return the confidence of each interval."""
        together = self.num_intervals if self.number >= FIRST_OF_CLAIMS_TOGETHER else 1
        return 1 - (1 - CONFIDENCE) / max(together, 1)

    @property
    def fewest(self) -> int:
        """Return the fewest seeds of a verdict: a deterministic claim holds on each seed by itself."""
        if self.is_exact or self.number < FIRST_OF_FURTHER_SEED:
            return FEWEST_FOR_OLDER_CLAIMS
        return fewest_for_verdict(CONFIDENCE)

    @property
    def relative(self) -> Relative:
        """Return the function that computes intervals of changes in %."""
        return RELATIVE[self.number]

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return confirmed, refuted or inconclusive; the verdict in finer terms; and the reason."""
        count, missing = len(reading.per_seed), reading.num_missing
        if missing:
            return INCONCLUSIVE, INCONCLUSIVE, f"{missing} of {count} seeds have no figure"
        if count < self.fewest:
            return INCONCLUSIVE, INCONCLUSIVE, f"{count} seeds, but {self.fewest} are needed"
        inside = [claim.holds(value) for value in reading.per_seed]
        many = f"{sum(inside)} of {count} seeds in the region"
        if self.is_exact:
            verdict = CONFIRMED if all(inside) else REFUTED
            return verdict, verdict, many
        truth = claim.truth(reading.mean)
        if truth is False:
            return REFUTED, REFUTED, f"interval outside of the region, {many}"
        if truth is None:
            return INCONCLUSIVE, INCONCLUSIVE, f"interval across the edge of the region, {many}"
        is_pooled = pooled_latency(claim.metric) is not None
        if is_pooled:
            many = "pooled over the seeds"
        elif not (self.is_about_means or all(inside)):
            return INCONCLUSIVE, INCONCLUSIVE, f"interval in the region, but {many}"
        reason = f"interval in the region, {many}"
        if not (self.is_dominance and claim.is_effect):
            return CONFIRMED, CONFIRMED, reason
        return _of_size(reading, is_pooled, reason)


def _of_size(reading: ClaimReading, is_pooled: bool, reason: str) -> tuple[str, str, str]:
    """Return the verdict on an effect that exists, by its size on the seed where it is smallest."""
    values = (reading.mean.mean,) if is_pooled else reading.per_seed
    least, where = min(map(abs, values)), "pooled" if is_pooled else "on one seed"
    if least < FAINT_PERCENT:
        return INCONCLUSIVE, INCONCLUSIVE, f"{least:.1f} % {where}, below {FAINT_PERCENT:g} %"
    if least <= CLEAR_PERCENT:
        return CONFIRMED, WITH_NUANCE, f"{reason}; {least:.1f} % {where}, not above 20 %"
    return CONFIRMED, CONFIRMED, reason


def overall(words: Sequence[str]) -> str:
    """Return the verdict on several claims together: confirmed if all are, refuted if any is, else inconclusive."""
    if REFUTED in words:
        return REFUTED
    return INCONCLUSIVE if INCONCLUSIVE in words or not words else CONFIRMED


def status_of(verdicts: Sequence[ClaimVerdict]) -> str:
    """Return the verdict in the finer words of a findings document."""
    words = [verdict.word for verdict in verdicts]
    word = overall(words)
    if word == REFUTED and words[0] == CONFIRMED:
        return PARTLY
    if word == CONFIRMED and any(verdict.finer == WITH_NUANCE for verdict in verdicts):
        return WITH_NUANCE
    return word
