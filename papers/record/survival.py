"""Claims against many seeds: which survive, with intervals, and what three seeds can say at all.

A record's P99 is one of each run, and many seeds give the mean of them. That mean depends on how many requests a
run has. The pooled P99 does not, see `blis_jax.statistics.pooled`; both stand in the tables of many seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blis_jax.core.outcome import WHOLE_NAMES
from blis_jax.metrics.run_summary import NUM_RANKS, Tails
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import Pair, difference
from blis_jax.statistics.pooled import contributions_ms, only
from papers.record.claims import (
    GAP,
    AnyClaim,
    PublishedClaim,
    Statement,
    StatementCondition,
    metric_label,
)
from papers.record.measures import POOLED_METRICS
from papers.record.quantities import (
    Samples,
    changes,
    column,
    interval,
    not_computed,
    runs_of,
    three_seed_range,
)
from papers.record.runs import SettingSample
from sweeps.claims.grammar import Claim
from sweeps.claims.judge import ClaimReading, ClaimVerdict, judge_reading
from sweeps.claims.words import (
    DIRECTION,
    LOST,
    MISSING,
    NO_FIGURES,
    SURVIVES,
    SURVIVES_NOT,
    UNDECIDED,
    UNPUBLISHED,
)

LEAST_SHARE = 0.5  # of the seeds; those few on which crash-prone runs end are no fair sample
_NOTHING = Estimate(math.nan, math.nan, math.nan, 0)
VERDICTS = (
    SURVIVES, DIRECTION, SURVIVES_NOT, UNDECIDED, NO_FIGURES, UNPUBLISHED, LOST, MISSING,
)  # fmt: skip


@dataclass(frozen=True)
class SurvivalFinding:
    """Hold the verdict on one claim at many seeds; its figures have the unit of the claim.

    Attributes:
        claim: what is published.
        verdict: one of VERDICTS; that on a statement counts seeds and has no figure.
        num_seeds: seeds on which every run completed.
        spread: the range that holds 95 in 100 experiments with three seeds.
    """

    claim: AnyClaim
    verdict: ClaimVerdict
    num_seeds: int = 0
    spread: tuple[float, float] = (math.nan, math.nan)

    @property
    def estimate(self) -> Estimate:
        """Return the figure with its interval; NaN where there is none."""
        reading = self.verdict.reading
        return _NOTHING if reading is None else reading.mean


def judged(
    claims: Sequence[AnyClaim], samples: Samples, missing: Mapping[str, str]
) -> list[SurvivalFinding]:
    """Judge every claim; `missing` says by setting which mechanism is lacking."""
    return [_finding(claim, samples, missing) for claim in claims]


def _finding(claim: AnyClaim, samples: Samples, missing: Mapping[str, str]) -> SurvivalFinding:
    if why := not_computed(claim, missing):
        return SurvivalFinding(claim, ClaimVerdict(None, *why))
    if isinstance(claim, PublishedClaim):
        return _figure(claim, samples)
    return _statement(claim, samples)


def _figure(claim: PublishedClaim, samples: Samples) -> SurvivalFinding:
    runs = runs_of(claim, samples)
    estimated, spread = interval(runs), three_seed_range(runs)
    lost = _lost(runs.samples)
    if estimated.num_seeds < LEAST_SHARE * len(runs.at.seeds):
        return SurvivalFinding(claim, ClaimVerdict(None, NO_FIGURES, lost), estimated.num_seeds)
    verdict = judge_reading(claim.claim, AsPublished(claim), ClaimReading((), estimated))
    further = ""
    if math.isfinite(spread[0]) and not math.isnan(claim.published.value):
        is_usual = spread[0] <= claim.published.value <= spread[1]
        further = "; three seeds " + ("often give it" if is_usual else "rarely give it")
    further += f"; but {claim.unlike}" if claim.unlike else ""
    further += f"; {lost}" if lost else ""
    verdict = replace(verdict, reason=verdict.reason + further)
    return SurvivalFinding(claim, verdict, estimated.num_seeds, spread)


@dataclass(frozen=True)
class AsPublished:
    """Call a figure surviving where it is the published one, within the tolerance or the interval."""

    published: PublishedClaim

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return the word, the finer word, which is the same, and the reason."""
        word, reason = self._weighed(claim, reading.mean)
        return word, word, reason

    def _weighed(self, claim: Claim, estimated: Estimate) -> tuple[str, str]:
        published, is_change = self.published.published, self.published.is_change
        if math.isnan(published.value):
            return UNPUBLISHED, "the record has no number"
        unit = "points" if published.unit == "%" else published.unit
        off = estimated.mean - published.value
        tolerance = self.published.tolerance
        words = f"{off:+.{published.decimals + 1 if published.decimals < 2 else 2}f} {unit}"
        far = f"{words}, more than the tolerance of {tolerance:g}"
        is_on_side = _same_side(estimated, published.value)
        if published.is_range:
            if claim.truth(estimated):
                return SURVIVES, f"the interval is within ±{tolerance:g}"
            if is_change and is_on_side:
                return DIRECTION, far
            return SURVIVES_NOT, f"the interval is not within ±{tolerance:g}"
        is_close = claim.holds(estimated.mean) or estimated.low <= published.value <= estimated.high
        has_direction = not is_change or is_on_side
        if is_close and has_direction:
            return SURVIVES, f"{words} from the published number"
        return (DIRECTION if is_change and has_direction else SURVIVES_NOT), far


def _same_side(estimated: Estimate, published: float) -> bool:
    return estimated.high < 0 if published < 0 else published > 0 and estimated.low > 0


def _statement(claim: Statement, samples: Samples) -> SurvivalFinding:
    conditions = [_condition(condition, samples) for condition in claim.conditions]
    num_seeds = min(num for _, _, num in conditions)
    lost = _lost([samples[name] for name in claim.settings])
    truths = {is_true for is_true, _, _ in conditions}
    truth = False if False in truths else None if None in truths else True
    words = [text for is_true, text, _ in conditions if is_true is truth and num_seeds]
    reason = "; ".join([*words, *([lost] if lost else [])])
    word = {True: SURVIVES, False: SURVIVES_NOT, None: UNDECIDED}[truth]
    verdict = ClaimVerdict(None, word if num_seeds else NO_FIGURES, reason)
    return SurvivalFinding(claim, verdict, num_seeds)


def _condition(condition: StatementCondition, samples: Samples) -> tuple[bool | None, str, int]:
    """Return whether a condition holds beyond chance (None: that is open), the numbers, and how many seeds."""
    if condition.against is not None:
        return _changes_condition(condition, samples)
    values = column(samples[condition.at], condition.of)
    what = metric_label(condition.of)
    if not isinstance(condition.to, str):
        values = values[np.isfinite(values)]
        num_above = int((values > condition.to).sum())
        is_true = (num_above > 0) == (condition.relation == "ever above")
        mean = estimate(values).mean
        text = (
            f"{what} above {condition.to:g} in {num_above} of {len(values)} runs, mean {mean:.3g}"
        )
        return is_true, text, len(values)
    others = column(samples[condition.to], condition.of)
    change = difference(others, values)
    percent, num_seeds = change.percent, change.percent.num_seeds
    text = f"{what} {percent.mean:+.2f} % [{percent.low:+.2f}, {percent.high:+.2f}] against {condition.to}"
    is_direction = condition.relation in ("below", "above")
    truth = condition.claim.truth(change.absolute if is_direction else percent)
    if condition.relation == "near":
        first, second = Pair(others, values).common()
        truth = bool((first == second).all()) or (truth if condition.within else False)
    return truth, text, num_seeds


def _changes_condition(
    condition: StatementCondition, samples: Samples
) -> tuple[bool | None, str, int]:
    """Return whether a condition about two changes holds, the numbers, and how many seeds: the difference, paired by
    seed.
    """
    first, second = changes(condition, samples)
    gap = difference(second.by_seed, first.by_seed).absolute
    text = (
        f"{metric_label(condition.of)}: change by {estimate(first.by_seed).mean:+.1f} % against "
        f"{estimate(second.by_seed).mean:+.1f} % of {condition.to}, "
        f"{gap.mean:+.1f} points [{gap.low:+.1f}, {gap.high:+.1f}]"
    )
    return condition.claim.truth(gap), text, gap.num_seeds


def _lost(samples: Sequence[SettingSample]) -> str:
    """Return the runs that did not come to their end, in words."""
    parts = []
    for sample in samples:
        for name, count in sample.outcome_counts.items():
            if name not in WHOLE_NAMES:
                parts.append(
                    f"{count} of {len(sample.seeds)} runs of {sample.setting.name}: {name}"
                )
    return "; ".join(dict.fromkeys(parts))


# --- with the P99 of the requests of all runs together --------------------------------------------


def judged_pooled(
    claims: Sequence[AnyClaim],
    samples: Samples,
    missing: Mapping[str, str],
    of_cluster: Mapping[str, str],
) -> list[SurvivalFinding | None]:
    """Judge every claim when its P99s are pooled; None for a claim without a metric that can be pooled.

    `of_cluster` names the cluster's metric for each of the record's own, whose requests are then pooled.
    """
    verdicts: list[SurvivalFinding | None] = []
    for claim in claims:
        pooled = {} if not_computed(claim, missing) else _pooled(claim, samples, of_cluster)
        verdicts.append(judged([claim], pooled, missing)[0] if pooled else None)
    return verdicts


def _metrics(claim: AnyClaim) -> tuple[str, ...]:
    """Return the metrics that a claim compares; none if it is about single runs."""
    if isinstance(claim, PublishedClaim):
        metrics = (
            ("ttft_p99_ms[sheddable]", "ttft_p99_ms[critical]") if claim.of == GAP else (claim.of,)
        )
        return (*metrics, claim.plus.of) if claim.plus is not None else metrics
    if not all(isinstance(condition.to, str) for condition in claim.conditions):
        return ()
    return tuple(condition.of for condition in claim.conditions)


def _pooled(
    claim: AnyClaim, samples: Samples, of_cluster: Mapping[str, str]
) -> dict[str, SettingSample]:
    """Return the claim's samples with pooled metrics; none if it has no metric that can be pooled."""
    sources = {name: of_cluster.get(name, name) for name in _metrics(claim)}
    sources = {name: source for name, source in sources.items() if source in POOLED_METRICS}
    if not sources:
        return {}
    chosen = {name: samples[name] for name in claim.settings}
    is_common = np.all(
        [sample.column(f"{POOLED_METRICS[0]}/count") >= 0 for sample in chosen.values()], axis=0
    )
    return {name: _replaced(sample, sources, is_common) for name, sample in chosen.items()}


def _replaced(
    sample: SettingSample, sources: Mapping[str, str], is_common: np.ndarray
) -> SettingSample:
    """Return a sample with what each seed contributes; NaN for seeds on which not all of a claim's runs ended."""
    values = sample.values[:, : sample.names.index(f"{POOLED_METRICS[0]}/count")].copy()
    for name, source in sources.items():
        tails = only(_tails(sample, source), is_common)
        values[:, sample.names.index(name)] = contributions_ms(tails)
    return replace(sample, values=values, names=sample.names[: values.shape[1]])


def _tails(sample: SettingSample, metric: str) -> Tails:
    first = sample.names.index(f"{metric}/count")
    count = np.nan_to_num(sample.values[:, first], nan=-1).astype(np.int64)
    return Tails(count, sample.values[:, first + 1 : first + 1 + NUM_RANKS])
