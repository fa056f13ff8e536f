"""Claims against the simulator on the record's own seeds: what is equal, on which basis, what is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.metrics.metric import split_name
from papers.record.claims import (
    AnyClaim,
    PublishedClaim,
    Statement,
    StatementCondition,
    metric_label,
)
from papers.record.quantities import (
    ClaimRuns,
    Samples,
    changes,
    column,
    mean_value,
    not_computed,
    runs_of,
)
from papers.record.runs import SettingSample
from sweeps.claims.words import (
    CONTRADICTED,
    CRASHED,
    EXACT,
    LOST,
    MISSING,
    NO_FIGURES,
    ONE_SEED,
    OTHER_BASIS,
    SAYS_OTHERWISE,
    SAYS_SO,
    UNLIKE,
    UNPUBLISHED,
)

CLASSES = (
    EXACT, UNLIKE, ONE_SEED, OTHER_BASIS, CONTRADICTED, SAYS_SO, SAYS_OTHERWISE, CRASHED, UNPUBLISHED,
    NO_FIGURES, LOST, MISSING,
)  # fmt: skip
_NUMBERS = {2: "two", 3: "three"}


@dataclass(frozen=True)
class ReproducedClaim:
    """A claim with the published number, the simulated number on the same seeds, and how they differ."""

    claim: AnyClaim
    published: str
    ours: str
    difference: str
    kind: str  # one of CLASSES
    reason: str
    beside: str = ""  # the same on the record's second metric


@dataclass(frozen=True)
class _Basis:
    """A way in which the published number could have been computed."""

    words: str
    value: float
    is_one_seed: bool = False
    is_cut: bool = False  # decimals cut off instead of rounded
    is_reprinted: bool = False  # rounded once more, from a number that was rounded already


@dataclass(frozen=True)
class Classifier:
    """Classifies claims by runs on the published seeds, of which the paper may have used the first alone.

    `beside` has a second metric for some metrics; `missing` says by setting which mechanism is lacking.
    """

    samples: Samples
    seeds: tuple[int, ...]
    beside: Mapping[str, str]
    missing: Mapping[str, str]

    def classified(self, claims: Sequence[AnyClaim]) -> list[ReproducedClaim]:
        """Return every claim with its class and the reason for it."""
        return [self._row(claim) for claim in claims]

    def _row(self, claim: AnyClaim) -> ReproducedClaim:
        text = claim.published.text if isinstance(claim, PublishedClaim) else "statement"
        if why := not_computed(claim, self.missing):
            return ReproducedClaim(claim, text, "", "", *why)
        if isinstance(claim, Statement):
            return _statement(claim, self.samples, self.seeds)
        runs = runs_of(claim, self.samples).on(claim.seeds or self.seeds)
        return replace(_figure(runs), beside=self._beside(runs))

    def _beside(self, runs: ClaimRuns) -> str:
        other = self.beside.get(runs.claim.of)
        if other is None or runs.claim.plus is not None:
            return ""
        value = mean_value(runs, other)
        return runs.claim.shown(value) if math.isfinite(value) else ""


# --- figures --------------------------------------------------------------------------------------


def _figure(runs: ClaimRuns) -> ReproducedClaim:
    claim, published = runs.claim, runs.claim.published
    ours = mean_value(runs)
    if not math.isfinite(ours):
        return _crash(claim, published.text, runs.samples)
    shown = claim.shown(ours)
    if math.isnan(published.value):
        return ReproducedClaim(claim, "none", shown, "", UNPUBLISHED, "the record has no number")
    difference = _difference(claim, ours)
    for basis in _bases(runs):
        if _reads(claim, basis):
            kind = _kind_of(claim, basis, ours)
            reason = _found_reason(runs, basis, ours)
            return ReproducedClaim(claim, published.text, shown, difference, kind, reason)
    kind = SAYS_OTHERWISE if published.is_range else CONTRADICTED
    return ReproducedClaim(claim, published.text, shown, difference, kind, _lost_reason(runs))


def _reads(claim: PublishedClaim, basis: _Basis) -> bool:
    if basis.is_cut:
        return claim.published.is_cut(basis.value)
    return claim.published.says(basis.value, claim.within)


def _mean_words(runs: ClaimRuns) -> str:
    seeds = runs.at.seeds.tolist()
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"the mean of the {_NUMBERS.get(len(seeds), str(len(seeds)))} seeds"


def _bases(runs: ClaimRuns) -> Iterator[_Basis]:
    """Yield the ways to compute a claim's figure, the plainest first."""
    claim, (first, *others) = runs.claim, runs.at.seeds.tolist()
    on_first, all_words, alone = runs.on([first]), _mean_words(runs), f"seed {first} alone"
    whole_value, value = mean_value(runs), mean_value(on_first)
    yield _Basis(all_words, whole_value)
    if others:
        yield _Basis(alone, value, is_one_seed=True)
    if runs.against is not None and claim.is_change:
        mixed = ClaimRuns(claim, on_first.at, runs.against, on_first.plus)
        baseline = all_words.replace("the mean", "the baseline's mean").replace(
            "the three", "three"
        )
        yield _Basis(f"{alone} against {baseline}", mean_value(mixed))
        whole, slo_class = split_name(claim.of)
        if slo_class is not None:
            against = "against the baseline's figure of all classes"
            yield _Basis(f"{all_words} {against}", mean_value(runs, base_of=whole))
            yield _Basis(f"{alone} {against}", mean_value(on_first, base_of=whole))
    elif runs.base() is None:
        values = runs.values() * (100 if claim.is_share else 1)
        rounded = np.round(values, claim.published.decimals)
        yield _Basis("the mean of the seeds' values after each is rounded", float(rounded.mean()))
    yield _Basis(f"{all_words}, decimals cut off", whole_value, is_cut=True)
    if others:
        yield _Basis(f"{alone}, decimals cut off", value, is_cut=True)
    twice = _rounded_twice(whole_value, claim)
    yield _Basis(f"{all_words}, rounded twice", twice, is_reprinted=True)


def _rounded_twice(value: float, claim: PublishedClaim) -> float:
    """Round as from a table with one decimal more, halves away from zero: 64.546 by 64.55 to 64.6."""
    for places in (claim.published.decimals + 1, claim.published.decimals):
        scale = 10**places
        value = math.copysign(math.floor(abs(value) * scale + 0.5 + 1e-9) / scale, value)
    return value


def _kind_of(claim: PublishedClaim, basis: _Basis, ours: float) -> str:
    if basis.is_one_seed:
        return ONE_SEED
    if not claim.published.says(ours, claim.within):
        return OTHER_BASIS
    if claim.unlike:
        return UNLIKE
    return SAYS_SO if claim.published.is_range else EXACT


def _found_reason(runs: ClaimRuns, basis: _Basis, ours: float) -> str:
    claim, published, mean = runs.claim, runs.claim.published, _mean_words(runs)
    if published.says(ours, claim.within):
        if published.is_range:
            return f"{mean} is {_within(claim)}"
        return f"{mean} after the published rounding" + (claim.unlike and f"; but {claim.unlike}")
    how = f"{basis.words}: {claim.shown(basis.value)}"
    if basis.value == ours:
        return how
    return f"{how}; {mean} is {claim.shown(ours)}"


def _within(claim: PublishedClaim) -> str:
    published = claim.published
    if published.is_near:
        unit = "points" if published.unit == "%" else published.unit
        return f"within ±{claim.within:g} {unit} of it"
    return "in that range"


def _lost_reason(runs: ClaimRuns) -> str:
    """Why no basis gives the number; a number with the wrong sign is named."""
    claim, shown = runs.claim, runs.claim.shown
    bases = [basis for basis in _bases(runs) if not basis.is_reprinted]
    if claim.is_change and not claim.published.is_near:
        for basis in bases:
            if not basis.is_cut and claim.published.says(-basis.value, 0):
                return f"the sign is reversed: {basis.words} gives {shown(basis.value)}"
    nearest = min(bases, key=lambda basis: abs(basis.value - claim.published.value))
    words = f"nearest is {nearest.words} with {shown(nearest.value)}"
    if claim.published.is_range:
        return f"{_mean_words(runs)} is not {_within(claim)}; {words}"
    return f"no basis tried gives it; {words}"


def _difference(claim: PublishedClaim, ours: float) -> str:
    published = claim.published
    if published.low <= ours <= published.high:
        return "0"
    nearest = min(published.low, published.high, key=lambda end: abs(ours - end))
    unit = "points" if published.unit == "%" else published.unit
    difference = round(ours - nearest, published.shown_decimals) + 0.0  # no negative zero
    return f"{difference:+.{published.shown_decimals}f} {unit}"


def _crash(claim: AnyClaim, published: str, samples: Sequence[SettingSample]) -> ReproducedClaim:
    """Return a claim about runs that do not come to their end, as in the reference."""
    whole = (Outcome.COMPLETED.name, Outcome.HORIZON.name)
    parts, outcomes = [], []
    for sample in samples:
        ended = [name for name in sample.outcome_counts if name not in whole]
        if ended:
            outcomes += ended
            num_lost = sum(sample.outcome_counts[name] for name in ended)
            parts.append(f"{num_lost} of {len(sample.seeds)} runs of {sample.setting.name}")
    if not outcomes:
        return ReproducedClaim(
            claim, published, "", "", NO_FIGURES, "a class has no request on one of the seeds"
        )
    names = ", ".join(dict.fromkeys(outcomes))
    meanings = "; ".join(Outcome[name].sentence for name in dict.fromkeys(outcomes))
    reason = f"{' and '.join(parts)} end so: {meanings}"
    return ReproducedClaim(claim, published, names, "", CRASHED, reason)


# --- statements -----------------------------------------------------------------------------------


def _statement(claim: Statement, samples: Samples, seeds: tuple[int, ...]) -> ReproducedClaim:
    lost = [samples[name] for name in claim.settings if not _has_figures(claim, samples, name)]
    if lost:
        return _crash(claim, "statement", lost)
    judgements = [_judged(condition, samples, seeds) for condition in claim.conditions]
    words = "; ".join(dict.fromkeys(text for _, text in judgements))
    if all(is_true for is_true, _ in judgements):
        return ReproducedClaim(claim, "statement", "true", "", SAYS_SO, words)
    alone = [_judged(condition, samples, seeds[:1]) for condition in claim.conditions]
    if all(is_true for is_true, _ in alone):
        words = f"seed {seeds[0]} alone: " + "; ".join(text for _, text in alone)
        return ReproducedClaim(claim, "statement", "true", "", ONE_SEED, words)
    words = "; ".join(text for is_true, text in judgements if not is_true)
    return ReproducedClaim(claim, "statement", "false", "", SAYS_OTHERWISE, words)


def _has_figures(claim: Statement, samples: Samples, name: str) -> bool:
    """Return whether a setting's runs have all that the statement's comparisons need of them."""
    return all(
        np.isfinite(column(samples[name], condition.of)).all()
        for condition in claim.conditions
        if name in condition.settings and isinstance(condition.to, str)
    )


_RELATIONS: dict[str, Callable[[np.ndarray, float], bool]] = {
    "ever above": lambda values, limit: bool((values > limit).any()),
    "never above": lambda values, limit: bool((values <= limit).all()),
}


def _judged(
    condition: StatementCondition, samples: Samples, seeds: Sequence[int]
) -> tuple[bool, str]:
    """Return whether a condition is true of the means, and with which numbers."""
    if condition.against is not None:
        return _judged_changes(condition, samples, seeds)
    values = column(samples[condition.at].at(seeds), condition.of)
    what = metric_label(condition.of)
    if not isinstance(condition.to, str):
        is_true = _RELATIONS[condition.relation](values, condition.to)
        return is_true, f"{what} up to {values.max():g} a run"
    others = column(samples[condition.to].at(seeds), condition.of)
    mean, other = float(values.mean()), float(others.mean())
    words = f"{what} {mean:.1f} against {other:.1f} of {condition.to}"
    if condition.relation in ("below", "above"):
        return condition.claim.holds(mean - other), words
    if condition.relation == "near" and condition.within == 0:
        return bool((values == others).all()), f"{what} {mean:.1f} and {other:.1f}"
    percent = 100 * (mean / other - 1) if other else math.copysign(math.inf, mean) if mean else 0.0
    words += f" ({percent:+.1f} %)" if condition.relation == "near" else ""
    return condition.claim.holds(percent), words


def _judged_changes(
    condition: StatementCondition, samples: Samples, seeds: Sequence[int]
) -> tuple[bool, str]:
    first, second = (change.of_means for change in changes(condition, samples, seeds))
    words = (
        f"{metric_label(condition.of)} {first:+.1f} % against {second:+.1f} % of {condition.to}, "
        f"each to its {condition.against} and {condition.to_against}"
    )
    return condition.claim.holds(first - second), words
