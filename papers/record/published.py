"""Claims against the simulator on the record's own seeds: what is equal, on which basis, what is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from blis_jax.engine.types import Outcome
from papers.record.claims import (
    GAP,
    AnyClaim,
    PublishedClaim,
    Statement,
    StatementCondition,
    metric_label,
)
from papers.record.quantities import Samples, column, mean_value
from papers.record.runs import SettingSample

SEEDS = (42, 43, 44)
FIRST = (42,)
EXACT = "exact on its seeds"
ONE_SEED = "seed 42 only"
OTHER_BASIS = "other basis"
CONTRADICTED = "contradicted"
HOLDS = "qualitative, holds"
HOLDS_NOT = "qualitative, does not hold"
CRASHED = "reference crash"
UNPUBLISHED = "nothing published"
NO_FIGURE = "no figures"
CLASSES = (
    EXACT,
    ONE_SEED,
    OTHER_BASIS,
    CONTRADICTED,
    HOLDS,
    HOLDS_NOT,
    CRASHED,
    UNPUBLISHED,
    NO_FIGURE,
)


@dataclass(frozen=True)
class PublishedRow:
    """One claim with what the simulator gives on the published seeds."""

    claim: AnyClaim
    published: str
    ours: str
    difference: str
    kind: str  # one of CLASSES
    reason: str


@dataclass(frozen=True)
class _Basis:
    """A way in which the published number could have been computed."""

    words: str
    value: float
    is_one_seed: bool = False
    is_cut: bool = False  # decimals cut off instead of rounded


def classified(claims: Sequence[AnyClaim], samples: Samples) -> list[PublishedRow]:
    """Every claim with its class and the reason for it."""
    return [
        _figure(claim, samples) if isinstance(claim, PublishedClaim) else _statement(claim, samples)
        for claim in claims
    ]


# --- figures --------------------------------------------------------------------------------------


def _figure(claim: PublishedClaim, samples: Samples) -> PublishedRow:
    published = claim.published
    sample = samples[claim.at]
    base = samples[claim.against] if claim.against is not None else None
    ours = mean_value(claim, sample, base)
    if not math.isfinite(ours):
        return _crash(claim, published.text, [sample, *([base] if base is not None else [])])
    shown = claim.shown(ours)
    if math.isnan(published.value):
        return PublishedRow(claim, "none", shown, "", UNPUBLISHED, "the record has no number")
    difference = _difference(claim, ours)
    for basis in _bases(claim, sample, base):
        if _reads(claim, basis):
            kind = _kind_of(claim, basis, ours)
            reason = _found_reason(claim, basis, ours)
            return PublishedRow(claim, published.text, shown, difference, kind, reason)
    kind = HOLDS_NOT if published.is_range else CONTRADICTED
    return PublishedRow(
        claim, published.text, shown, difference, kind, _lost_reason(claim, sample, base)
    )


def _reads(claim: PublishedClaim, basis: _Basis) -> bool:
    if basis.is_cut:
        return claim.published.is_cut(basis.value)
    return claim.published.says(basis.value, claim.within)


def _bases(
    claim: PublishedClaim, sample: SettingSample, base: SettingSample | None
) -> Iterator[_Basis]:
    """The ways to compute a claim's figure, the plainest first."""
    one, one_base = sample.at(FIRST), None if base is None else base.at(FIRST)
    three = mean_value(claim, sample, base)
    first = mean_value(claim, one, one_base)
    yield _Basis("the mean of the three seeds", three)
    yield _Basis("seed 42 alone", first, is_one_seed=True)
    if base is not None:
        words = "seed 42 alone against the baseline's mean of three seeds"
        yield _Basis(words, mean_value(claim, one, base))
        whole, bracket, _ = claim.of.partition("[")
        if bracket:
            words = "the mean of the three seeds against the baseline's figure of all classes"
            yield _Basis(words, mean_value(claim, sample, base, whole))
            words = "seed 42 alone against the baseline's figure of all classes"
            yield _Basis(words, mean_value(claim, one, one_base, whole))
    elif claim.of != GAP:
        rounded = np.round(sample.column(claim.of), claim.published.decimals)
        yield _Basis("the mean of the seeds' values after each is rounded", float(rounded.mean()))
    yield _Basis("the mean of the three seeds, decimals cut off", three, is_cut=True)
    yield _Basis("seed 42 alone, decimals cut off", first, is_cut=True)


def _kind_of(claim: PublishedClaim, basis: _Basis, ours: float) -> str:
    if basis.is_one_seed:
        return ONE_SEED
    if not claim.published.says(ours, claim.within):
        return OTHER_BASIS
    return HOLDS if claim.published.is_range else EXACT


def _found_reason(claim: PublishedClaim, basis: _Basis, ours: float) -> str:
    published = claim.published
    if published.says(ours, claim.within):
        if published.is_range:
            return f"the mean of the three seeds is {_within(claim)}"
        return "the mean of the three seeds after the published rounding"
    how = f"{basis.words}: {claim.shown(basis.value)}"
    if basis.value == ours:
        return how
    return f"{how}; the mean of the three seeds is {claim.shown(ours)}"


def _within(claim: PublishedClaim) -> str:
    published = claim.published
    if published.is_near:
        unit = "points" if published.unit == "%" else published.unit
        return f"within ±{claim.within:g} {unit} of it"
    return "in that range"


def _lost_reason(claim: PublishedClaim, sample: SettingSample, base: SettingSample | None) -> str:
    """Why no basis gives the number; a number with the wrong sign is named."""
    shown = claim.shown
    bases = list(_bases(claim, sample, base))
    if claim.is_change and not claim.published.is_near:
        for basis in bases:
            if not basis.is_cut and claim.published.says(-basis.value, 0):
                return f"the sign is reversed: {basis.words} gives {shown(basis.value)}"
    nearest = min(bases, key=lambda basis: abs(basis.value - claim.published.value))
    words = f"nearest is {nearest.words} with {shown(nearest.value)}"
    if claim.published.is_range:
        return f"the mean of the three seeds is not {_within(claim)}; {words}"
    return f"no basis tried gives it; {words}"


def _difference(claim: PublishedClaim, ours: float) -> str:
    published = claim.published
    if published.low <= ours <= published.high:
        return "0"
    nearest = min(published.low, published.high, key=lambda end: abs(ours - end))
    unit = "points" if published.unit == "%" else published.unit
    difference = round(ours - nearest, published.shown_decimals) + 0.0  # no negative zero
    return f"{difference:+.{published.shown_decimals}f} {unit}"


def _crash(claim: AnyClaim, published: str, samples: Sequence[SettingSample]) -> PublishedRow:
    """A claim about runs that do not come to their end, as in the reference."""
    whole = (Outcome.COMPLETED.name, Outcome.HORIZON.name)
    parts, outcomes = [], []
    for sample in samples:
        ended = [name for name in sample.outcome_counts if name not in whole]
        if ended:
            outcomes += ended
            num_lost = sum(sample.outcome_counts[name] for name in ended)
            parts.append(f"{num_lost} of {len(sample.seeds)} runs of {sample.setting.name}")
    if not outcomes:
        return PublishedRow(
            claim, published, "", "", NO_FIGURE, "a class has no request on one of the seeds"
        )
    names = ", ".join(dict.fromkeys(outcomes))
    meanings = "; ".join(Outcome[name].sentence for name in dict.fromkeys(outcomes))
    reason = f"{' and '.join(parts)} end so: {meanings}"
    return PublishedRow(claim, published, names, "", CRASHED, reason)


# --- statements -----------------------------------------------------------------------------------


def _statement(claim: Statement, samples: Samples) -> PublishedRow:
    runs = [samples[name] for name in claim.settings]
    needs_figures = any(isinstance(condition.to, str) for condition in claim.conditions)
    if needs_figures and any(np.isnan(run.values).any() for run in runs):
        return _crash(claim, "statement", runs)
    found = [_judged(condition, samples, SEEDS) for condition in claim.conditions]
    words = "; ".join(dict.fromkeys(text for _, text in found))
    if all(is_true for is_true, _ in found):
        return PublishedRow(claim, "statement", "true", "", HOLDS, words)
    alone = [_judged(condition, samples, FIRST) for condition in claim.conditions]
    if all(is_true for is_true, _ in alone):
        words = "; ".join(text for _, text in alone)
        return PublishedRow(claim, "statement", "true", "", ONE_SEED, f"seed 42 alone: {words}")
    words = "; ".join(text for is_true, text in found if not is_true)
    return PublishedRow(claim, "statement", "false", "", HOLDS_NOT, words)


_RELATIONS: dict[str, Callable[[np.ndarray, float], bool]] = {
    "ever above": lambda values, limit: bool((values > limit).any()),
    "never above": lambda values, limit: bool((values <= limit).all()),
}


def _judged(
    condition: StatementCondition, samples: Samples, seeds: Sequence[int]
) -> tuple[bool, str]:
    """Whether a condition is true of the means, and with which numbers."""
    values = column(samples[condition.at].at(seeds), condition.of)
    what = metric_label(condition.of)
    if not isinstance(condition.to, str):
        is_true = _RELATIONS[condition.relation](values, condition.to)
        return is_true, f"{what} up to {values.max():g} a run"
    others = column(samples[condition.to].at(seeds), condition.of)
    mean, other = float(values.mean()), float(others.mean())
    words = f"{what} {mean:.1f} against {other:.1f} of {condition.to}"
    if condition.relation == "below":
        return mean < other, words
    if condition.relation == "above":
        return mean > other, words
    if condition.relation == "not above":
        return mean <= other * (1 + condition.within / 100), words
    if condition.within == 0:
        return bool((values == others).all()), f"{what} {mean:.1f} and {other:.1f}"
    return abs(
        mean / other - 1
    ) * 100 <= condition.within, f"{words} ({100 * (mean / other - 1):+.1f} %)"
