"""The rule by which measurements confirm or refute a hypothesis.

Every claim is read as an interval of its mean over the seeds (Student's t, paired by seed), at 95 % for all claims:

- fewer than three seeds, or a run that did not end: inconclusive;
- deterministic: confirmed if every seed lies in the claimed region, else refuted;
- statistical: confirmed if the whole interval lies in the region, and every seed too; refuted if the
  interval lies wholly outside; inconclusive in between;
- an effect under dominance must also be one: a change below 10 % on any seed is inconclusive, and
  20 % or less on any seed is confirmed with nuance;
- thresholds (UQ) and Pareto claims, which are about means, ask the interval alone, not every seed;
- a claim about a pooled percentile asks the interval alone, since no seed has a value of its own;
- along a setting every step from one value to the next is such a claim.

A hypothesis is confirmed if all its claims are, refuted if any claim is, else inconclusive; refuted
although its first claim is confirmed means partially confirmed.

The rule has a number, which stands in every record that it judged. Under rule 1 intervals of changes
in % and of ratios were symmetric and could reach below -100 % or 0; since rule 2 they are those of the
logarithm of the ratio. Since rule 3 the verdicts of the comparison with the baseline hold for all its
metrics at once (Holm); before, each stood for itself. Since rule 4 the intervals of a hypothesis's claims
hold together (Bonferroni over its claims and, along a setting, their steps); before, each stood for
itself. Where seeds were added until the verdicts were safe, all intervals are anytime-valid. Records
keep the rule that they were judged by, and are checked by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.scalars import pooled_latency
from blis_jax.statistics.intervals import CONFIDENCE, linear_change, relative_change
from sweeps.tracks.claims import FALLS, FLAT, Claim, ClaimReading, Figures, read

if TYPE_CHECKING:
    from sweeps.tracks.claims import Relative

RULE = 4  # the version of all of this by which new records are judged
RELATIVE: Mapping[int, Relative] = {
    1: linear_change, 2: relative_change, 3: relative_change, 4: relative_change,
}  # fmt: skip
FIRST_OF_FAMILIES = 3  # the rule from which the verdicts of a comparison hold for all of it at once
FIRST_OF_CLAIMS_TOGETHER = (
    4  # the rule from which the intervals of a hypothesis's claims hold together
)
CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"
VERDICTS = (CONFIRMED, REFUTED, INCONCLUSIVE)
WITH_NUANCE, PARTLY = "confirmed with nuance", "partially confirmed"
FEWEST_SEEDS = 3
CLEAR_PERCENT, FAINT_PERCENT = 20.0, 10.0  # of an effect on every seed, and on any


@dataclass(frozen=True)
class JudgedClaim:
    """One claim, what was measured of it, and the verdict with its reason."""

    claim: Claim
    reading: ClaimReading | None
    verdict: str
    status: str
    reason: str
    is_clear: bool = False  # the interval is in the region or outside, whatever single seeds say


@dataclass(frozen=True)
class Rule:
    """What kind of hypothesis the claims belong to, and by which version they are judged."""

    is_exact: bool = False  # deterministic
    is_dominance: bool = False
    is_about_means: bool = False  # a threshold (UQ), or Pareto
    number: int = RULE
    num_intervals: int = 1  # of the hypothesis
    is_anytime: bool = False  # the number of seeds was chosen by looking at them

    @property
    def confidence(self) -> float:
        """Of each interval."""
        together = self.num_intervals if self.number >= FIRST_OF_CLAIMS_TOGETHER else 1
        return 1 - (1 - CONFIDENCE) / max(together, 1)


def judge_claim(claim: Claim, rule: Rule, figures: Figures, reference: Figures) -> JudgedClaim:
    """The verdict on a claim about one arm."""
    reading = _reading(claim, rule, figures, reference)
    return _judged(claim, rule, reading)


def _reading(claim: Claim, rule: Rule, figures: Figures, reference: Figures) -> ClaimReading:
    relative = RELATIVE[rule.number]
    return read(claim, figures, reference, relative, rule.confidence, rule.is_anytime)


def judge_along(claim: Claim, rule: Rule, levels: Sequence[Figures]) -> JudgedClaim:
    """The verdict on a claim about the steps from each value of a setting to the next.

    `flat` compares every value with the first one.
    """
    step, found = _step_claim(claim), []
    for place in range(1, len(levels)):
        before = levels[0] if claim.shape == FLAT else levels[place - 1]
        reading = _reading(step, rule, levels[place], before)
        found.append(_judged(step, rule, reading))
    verdict = overall([one.verdict for one in found])
    worst = next(one for one in found if one.verdict == verdict)
    reason = f"step {found.index(worst) + 1} of {len(found)}: {worst.reason}"
    is_clear = verdict == REFUTED or all(one.is_clear for one in found)
    return JudgedClaim(claim, worst.reading, verdict, verdict, reason, is_clear)


def _step_claim(claim: Claim) -> Claim:
    if claim.shape == FLAT:
        return replace(claim, is_change=True)
    smallest = math.ulp(0.0)
    low, high = (-math.inf, -smallest) if claim.shape == FALLS else (smallest, math.inf)
    return replace(claim, is_change=True, low=low, high=high)


def _judged(claim: Claim, rule: Rule, reading: ClaimReading) -> JudgedClaim:
    verdict, status, reason = _decided(claim, rule, reading)
    is_clear = claim.holds_all(reading.mean) or claim.excludes(reading.mean)
    return JudgedClaim(claim, reading, verdict, status, reason, is_clear)


def _decided(claim: Claim, rule: Rule, reading: ClaimReading) -> tuple[str, str, str]:
    values = np.array(reading.per_seed)
    missing = int(np.count_nonzero(~np.isfinite(values)))
    if missing:
        return INCONCLUSIVE, INCONCLUSIVE, f"{missing} of {len(values)} seeds have no figure"
    if len(values) < FEWEST_SEEDS:
        return INCONCLUSIVE, INCONCLUSIVE, f"{len(values)} seeds, but {FEWEST_SEEDS} are needed"
    inside = [claim.holds(value) for value in reading.per_seed]
    many = f"{sum(inside)} of {len(inside)} seeds in the region"
    if rule.is_exact:
        verdict = CONFIRMED if all(inside) else REFUTED
        return verdict, verdict, many
    if claim.excludes(reading.mean):
        return REFUTED, REFUTED, f"interval outside of the region, {many}"
    if not claim.holds_all(reading.mean):
        return INCONCLUSIVE, INCONCLUSIVE, f"interval across the edge of the region, {many}"
    is_pooled = pooled_latency(claim.metric) is not None
    if is_pooled:
        many, values = "pooled over the seeds", np.array([reading.mean.mean])
    elif not (rule.is_about_means or all(inside)):
        return INCONCLUSIVE, INCONCLUSIVE, f"interval in the region, but {many}"
    status, reason = CONFIRMED, f"interval in the region, {many}"
    if rule.is_dominance and claim.is_effect:
        least, where = float(np.abs(values).min()), "pooled" if is_pooled else "on one seed"
        if least < FAINT_PERCENT:
            return (
                INCONCLUSIVE,
                INCONCLUSIVE,
                f"{least:.1f} % {where}, below {FAINT_PERCENT:g} %",
            )
        if least <= CLEAR_PERCENT:
            status, reason = WITH_NUANCE, f"{reason}; {least:.1f} % {where}, not above 20 %"
    return CONFIRMED, status, reason


def overall(verdicts: Sequence[str]) -> str:
    """The verdict on several claims together."""
    if REFUTED in verdicts:
        return REFUTED
    return INCONCLUSIVE if INCONCLUSIVE in verdicts or not verdicts else CONFIRMED


def status_of(judged: Sequence[JudgedClaim]) -> str:
    """The verdict in the finer words of a findings document."""
    verdicts = [one.verdict for one in judged]
    verdict = overall(verdicts)
    if verdict == REFUTED and verdicts[0] == CONFIRMED:
        return PARTLY
    if verdict == CONFIRMED and any(one.status == WITH_NUANCE for one in judged):
        return WITH_NUANCE
    return verdict
