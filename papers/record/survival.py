"""Claims against many seeds: which survive, with intervals, and what three seeds can say at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from papers.record.claims import (
    AnyClaim,
    PublishedClaim,
    Statement,
    StatementCondition,
    metric_label,
)
from papers.record.published import LOST, MISSING
from papers.record.quantities import (
    Samples,
    changes,
    column,
    interval,
    runs_of,
    three_seed_range,
)
from papers.record.runs import SettingSample

SURVIVES = "survives"
DIRECTION = "direction only"
SURVIVES_NOT = "does not survive"
UNDECIDED = "undecided"
NO_FIGURE = "no figures"
UNPUBLISHED = "nothing published"
LEAST_SHARE = 0.5  # of the seeds; those few on which crash-prone runs end are no fair sample
_NOTHING = Estimate(math.nan, math.nan, math.nan, 0)
VERDICTS = (
    SURVIVES,
    DIRECTION,
    SURVIVES_NOT,
    UNDECIDED,
    NO_FIGURE,
    UNPUBLISHED,
    LOST,
    MISSING,
)


@dataclass(frozen=True)
class SurvivalVerdict:
    """One claim at many seeds; the estimate is in the claim's unit, NaN for statements."""

    claim: AnyClaim
    estimate: Estimate
    spread: tuple[float, float]  # of 95 in 100 experiments with three seeds
    num_seeds: int
    verdict: str  # one of VERDICTS
    reason: str


def judged(
    claims: Sequence[AnyClaim], samples: Samples, missing: Mapping[str, str]
) -> list[SurvivalVerdict]:
    """Every claim with its verdict; `missing` says by setting which mechanism is lacking."""
    return [_verdict(claim, samples, missing) for claim in claims]


def _verdict(claim: AnyClaim, samples: Samples, missing: Mapping[str, str]) -> SurvivalVerdict:
    lacking = [missing[name] for name in claim.settings if name in missing]
    if claim.lost or lacking:
        kind = LOST if claim.lost else MISSING
        reason = claim.lost or "; ".join(dict.fromkeys(lacking))
        return SurvivalVerdict(claim, _NOTHING, (math.nan, math.nan), 0, kind, reason)
    if isinstance(claim, PublishedClaim):
        return _figure(claim, samples)
    return _statement(claim, samples)


def _figure(claim: PublishedClaim, samples: Samples) -> SurvivalVerdict:
    runs = runs_of(claim, samples)
    found, spread = interval(runs), three_seed_range(runs)
    lost = _lost(runs.samples)
    if found.num_seeds < LEAST_SHARE * len(runs.at.seeds):
        return SurvivalVerdict(
            claim, _NOTHING, (math.nan, math.nan), found.num_seeds, NO_FIGURE, lost
        )
    verdict, reason = _weighed(claim, found)
    if math.isfinite(spread[0]) and not math.isnan(claim.published.value):
        is_usual = spread[0] <= claim.published.value <= spread[1]
        reason += "; three seeds " + ("often give it" if is_usual else "rarely give it")
    if claim.unlike:
        reason += f"; but {claim.unlike}"
    if lost:
        reason = f"{reason}; {lost}"
    return SurvivalVerdict(claim, found, spread, found.num_seeds, verdict, reason)


def _weighed(claim: PublishedClaim, found: Estimate) -> tuple[str, str]:
    """The verdict on a figure, and why."""
    published = claim.published
    if math.isnan(published.value):
        return UNPUBLISHED, "the record has no number"
    unit = "points" if published.unit == "%" else published.unit
    off = found.mean - published.value
    words = f"{off:+.{published.decimals + 1 if published.decimals < 2 else 2}f} {unit}"
    is_inside = found.low <= published.value <= found.high
    is_close = abs(off) <= claim.tolerance or is_inside
    if published.is_range:
        is_close = max(found.high - published.value, published.value - found.low) <= claim.tolerance
        where = "within" if is_close else "not within"
        if not is_close and claim.is_change and _same_side(found, published.value):
            return DIRECTION, f"{words}, more than the tolerance of {claim.tolerance:g}"
        return (
            SURVIVES if is_close else SURVIVES_NOT,
            f"the interval is {where} ±{claim.tolerance:g}",
        )
    has_direction = not claim.is_change or _same_side(found, published.value)
    if is_close and has_direction:
        return SURVIVES, f"{words} from the published number"
    if claim.is_change and has_direction:
        return DIRECTION, f"{words}, more than the tolerance of {claim.tolerance:g}"
    return SURVIVES_NOT, f"{words}, more than the tolerance of {claim.tolerance:g}"


def _same_side(found: Estimate, published: float) -> bool:
    return found.high < 0 if published < 0 else published > 0 and found.low > 0


def _statement(claim: Statement, samples: Samples) -> SurvivalVerdict:
    found = [_condition(condition, samples) for condition in claim.conditions]
    num_seeds = min(num for _, _, num in found)
    lost = _lost([samples[name] for name in claim.settings])
    verdicts = [is_true for is_true, _, _ in found]
    if num_seeds == 0:
        verdict, words = NO_FIGURE, []
    elif all(verdicts):
        verdict, words = SURVIVES, [text for _, text, _ in found]
    elif any(is_true is False for is_true in verdicts):
        verdict, words = SURVIVES_NOT, [text for is_true, text, _ in found if is_true is False]
    else:
        verdict, words = UNDECIDED, [text for is_true, text, _ in found if is_true is None]
    reason = "; ".join([*words, *([lost] if lost else [])])
    return SurvivalVerdict(claim, _NOTHING, (math.nan, math.nan), num_seeds, verdict, reason)


def _condition(condition: StatementCondition, samples: Samples) -> tuple[bool | None, str, int]:
    """Whether it holds beyond chance (None: the interval leaves it open), the numbers, how many seeds."""
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
    change = difference(column(samples[condition.to], condition.of), values)
    percent, num_seeds = change.percent, change.percent.num_seeds
    text = f"{what} {percent.mean:+.2f} % [{percent.low:+.2f}, {percent.high:+.2f}] against {condition.to}"
    if condition.relation == "near":
        return (
            _is_near(condition, values, column(samples[condition.to], condition.of), percent),
            text,
            num_seeds,
        )
    if condition.relation == "not above":
        is_not_above = percent.high <= condition.within or None
        return (False if percent.low > condition.within else is_not_above), text, num_seeds
    return _is_beyond(condition, change.absolute), text, num_seeds


def _is_beyond(condition: StatementCondition, change: Estimate) -> bool | None:
    """Whether a difference is below or above 0, as the condition wants, beyond chance."""
    low, high = change.low, change.high
    if condition.relation == "above":
        low, high = -high, -low
    return True if high < 0 else False if low >= 0 else None


def _changes_condition(
    condition: StatementCondition, samples: Samples
) -> tuple[bool | None, str, int]:
    """The same for a condition about two changes: their difference, paired by seed."""
    one, other = changes(condition, samples)
    found = difference(other.by_seed, one.by_seed).absolute
    text = (
        f"{metric_label(condition.of)}: change by {estimate(one.by_seed).mean:+.1f} % against "
        f"{estimate(other.by_seed).mean:+.1f} % of {condition.to}, "
        f"{found.mean:+.1f} points [{found.low:+.1f}, {found.high:+.1f}]"
    )
    return _is_beyond(condition, found), text, found.num_seeds


def _is_near(
    condition: StatementCondition, values: np.ndarray, others: np.ndarray, percent: Estimate
) -> bool | None:
    both = np.isfinite(values) & np.isfinite(others)
    if (values[both] == others[both]).all():
        return True
    if condition.within == 0:
        return False
    if max(abs(percent.low), abs(percent.high)) <= condition.within:
        return True
    return False if min(abs(percent.low), abs(percent.high)) > condition.within else None


def _lost(samples: Sequence[SettingSample]) -> str:
    """The runs that did not come to their end, in words."""
    parts = []
    for sample in samples:
        for name, count in sample.outcome_counts.items():
            if name not in ("COMPLETED", "HORIZON"):
                parts.append(
                    f"{count} of {len(sample.seeds)} runs of {sample.setting.name}: {name}"
                )
    return "; ".join(dict.fromkeys(parts))
