"""The verdict in each cell of a robustness map: which strategy is best within the constraints, and how surely.

A strategy fails in a cell if one of its runs there does not come to its end, drops requests that no instance can serve,
or has no value of the objective; it is then not recommended there. Among the other strategies, the one with the best
mean objective within the constraints leads. The leader is recommended if it is best in enough of the bootstrap
resamples of the seeds, drawn alike for all strategies, and if it is better than every other strategy within the
constraints. All pairs of strategies in a cell are one family (Holm). Where a rule adds seeds until there is a
recommendation, bootstrap shares at every look would err too often. There the family also has every strategy's distance
from every constraint; the leader must surely keep all constraints, and each other strategy must surely be behind the
leader or surely break a constraint.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import LOWER
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.statistics.intervals import BY_STUDENT, Inference
from blis_jax.statistics.paired import BETTER, SAME, WORSE, Pair, differences
from sweeps.claims.grammar import Claim, our_name, parse_constraint
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.plan import CONSTRAINTS, OBJECTIVE, Question
from sweeps.robustness.store import Unrun, is_done

NONE = "none"
BEST = "best within the constraints"
ONLY_WITHIN = "only one within the constraints"
ONLY_RUNNING = "only one that runs"
OVERLAP = "intervals overlap"
ALL_FAIL = "every strategy fails"
ALL_BREAK = "no strategy keeps the constraints"
REASONS = (BEST, ONLY_WITHIN, ONLY_RUNNING, OVERLAP, ALL_FAIL, ALL_BREAK)
DROPPED, NO_FIGURE = "dropped", "no_figure"  # ways to fail besides the outcomes
NUM_RESAMPLES = 2000
CELLS_AT_ONCE = 128
CHANGE = ("change_percent", "change_percent_low", "change_percent_high")


def values_of(dataset: xr.Dataset, name: str) -> np.ndarray:
    """Return a metric, named with or without `[class]`, as `[cell, strategy, seed]`.

    Raises:
        ConfigError: the map lacks the metric or the class.
    """
    metric, slo_class = lookup(name)
    if metric.name not in dataset:
        raise ConfigError(
            f"the map has no metric {metric.name!r}; it has {', '.join(map(str, dataset.data_vars))}"
        )
    values = dataset[metric.name]
    if metric.has_classes:
        classes = dataset["slo_class"].values.tolist()
        if (slo_class or ALL) not in classes:
            raise ConfigError(f"the map has no requests of class {slo_class!r}; it has {classes}")
        values = values.sel(slo_class=slo_class or ALL)
    array: np.ndarray = values.transpose("cell", "strategy", "seed").values
    return array


def recommend(
    dataset: xr.Dataset,
    objective: str = OBJECTIVE,
    constraints: Sequence[str] = CONSTRAINTS,
    confidence: float = 0.95,
    random_state: int = 0,
) -> xr.Dataset:
    """Return the verdict on every cell that has been run, with the axes as coordinates."""
    limits = tuple(map(parse_constraint, constraints))
    return answer(dataset, Question(our_name(objective), limits, confidence, random_state))


def answer(dataset: xr.Dataset, question: Question) -> xr.Dataset:
    """Return the verdicts as `recommend` does, for a question that is already checked."""
    dataset = dataset.isel(cell=np.flatnonzero(is_done(dataset)))
    if dataset.sizes["seed"] < 2 or dataset.sizes["strategy"] < 2:
        raise ConfigError("a verdict needs two strategies and two seeds at least")
    counts = num_seeds_of(dataset)
    if (counts == dataset.sizes["seed"]).all():
        return _answer(dataset, question)
    cells = [np.flatnonzero(counts == count) for count in np.unique(counts)]
    parts = [
        _answer(dataset.isel(cell=some, seed=slice(0, counts[some[0]])), question).drop_vars("seed")
        for some in cells
    ]
    joined = xr.concat(
        parts, "cell", data_vars="minimal", coords="minimal", compat="override", join="outer",
        fill_value=0, combine_attrs="override",
    )  # fmt: skip
    verdicts = joined.isel(cell=np.argsort(np.concatenate(cells)))
    return verdicts.assign_coords(seed=dataset["seed"])


def num_seeds_of(dataset: xr.Dataset) -> np.ndarray:
    """Return the number of seeds that each cell was run on, `[cell]`; a stopping rule may have spared some seeds."""
    counts: np.ndarray = (dataset["outcome"].values != Unrun.SPARED).all(axis=1).sum(axis=1)
    return counts


def inference_of(dataset: xr.Dataset) -> Inference:
    """Return the inference for differences; its intervals hold at every look if a rule looked for verdicts."""
    stopping = json.loads(dataset.attrs.get("stopping", "{}"))
    return replace(BY_STUDENT, is_anytime=bool(stopping.get("decides")))


def _answer(dataset: xr.Dataset, question: Question) -> xr.Dataset:
    """Return the verdicts on cells that were run on the same seeds."""
    objective = values_of(dataset, question.objective)
    bounded = [values_of(dataset, constraint.metric) for constraint in question.constraints]
    kept_coords = {name: dataset[name] for name in dataset.coords if name != "slo_class"}
    verdicts = xr.Dataset(coords=kept_coords, attrs=_attributes(dataset, question))
    verdicts.coords["constraint"] = [str(constraint) for constraint in question.constraints]
    _add_endings(verdicts, dataset, objective)
    has_failed = verdicts["has_failed"].values
    sign = 1.0 if question.metric.direction == LOWER else -1.0
    judged = _Judged(sign * objective, bounded, has_failed, question)
    kept, score = judged.at(np.full((1, dataset.sizes["seed"]), 1 / dataset.sizes["seed"]))
    verdicts["num_seeds"] = ("cell", num_seeds_of(dataset))
    verdicts["objective"] = (("cell", "strategy"), objective.mean(axis=2))
    verdicts["objective"].attrs["units"] = question.metric.unit
    bound_dims = ("cell", "strategy", "constraint")
    means = (
        np.stack([values.mean(axis=2) for values in bounded], -1)
        if bounded
        else kept[0].astype(float)
    )
    verdicts["constraint_value"] = (bound_dims, means)
    verdicts["is_kept"] = (bound_dims, kept[0])
    verdicts["probability_best"] = (("cell", "strategy"), judged.probability_best())
    _add_changes(verdicts, dataset, question)
    _add_choice(verdicts, score[0], sign * objective, question.confidence)
    return verdicts


def _add_endings(verdicts: xr.Dataset, dataset: xr.Dataset, objective: np.ndarray) -> None:
    """Add to the verdicts how the runs ended, and which strategies fail in which cells."""
    outcome = dataset["outcome"].values
    is_whole = np.isin(outcome, [int(code) for code in WHOLE])
    endings = {
        ending.name.lower(): outcome == ending for ending in Outcome if (outcome == ending).any()
    }
    if (outcome == Unrun.SKIPPED).any():
        endings["skipped"] = outcome == Unrun.SKIPPED
    if "num_dropped" in dataset:
        endings[DROPPED] = is_whole & (values_of(dataset, "num_dropped") > 0)
    has_dropped = endings.get(DROPPED, np.zeros_like(is_whole))
    endings[NO_FIGURE] = is_whole & ~has_dropped & np.isnan(objective)
    fails = ~is_whole | has_dropped | endings[NO_FIGURE]
    verdicts.coords["ending"] = list(endings)
    counts = np.stack([ended.sum(axis=2) for ended in endings.values()], axis=-1)
    verdicts["num_runs"] = (("cell", "strategy", "ending"), counts)
    verdicts["has_failed"] = (("cell", "strategy"), fails.any(axis=2))


@dataclass(frozen=True)
class _Judged:
    """The figures of all cells, to be judged under several weightings of the seeds."""

    objective: np.ndarray  # [cell, strategy, seed], to be made small
    bounded: Sequence[np.ndarray]  # one a constraint
    has_failed: np.ndarray  # [cell, strategy]
    question: Question

    def at(self, weights: np.ndarray, cells: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return whether constraints hold `[weighting, cell, strategy, constraint]`, and the objective `[weighting,
        cell, strategy]`: infinite where a strategy fails or breaks a constraint."""
        failed = self.has_failed[cells]
        kept = np.ones((len(weights), *failed.shape, len(self.bounded)), bool)
        for place, constraint in enumerate(self.question.constraints):
            means = _weighted(self.bounded[place][cells], weights)
            kept[..., place] = _keeps(constraint, np.where(failed, np.nan, means))
        within = kept.all(axis=-1) & ~failed
        means = _weighted(self.objective[cells], weights)
        return kept, np.where(within, means, np.inf)

    def probability_best(self) -> np.ndarray:
        """Return the share of resamples in which a strategy is best, `[cell, strategy]`; ties are shared."""
        num_cells, _, num_seeds = self.objective.shape
        rng = np.random.default_rng(self.question.random_state)
        even = np.full(num_seeds, 1 / num_seeds)
        weights = rng.multinomial(num_seeds, even, NUM_RESAMPLES) / num_seeds
        shares = []
        for first in range(0, num_cells, CELLS_AT_ONCE):
            _, score = self.at(weights, slice(first, first + CELLS_AT_ONCE))
            is_best = np.isfinite(score) & (score == score.min(axis=-1, keepdims=True))
            count = np.maximum(is_best.sum(axis=-1, keepdims=True), 1)
            shares.append((is_best / count).mean(axis=0))
        return np.concatenate(shares) if shares else np.zeros(self.has_failed.shape)


def _keeps(constraint: Claim, means: np.ndarray) -> np.ndarray:
    """Return which strategies keep a constraint, `[…, strategy]`; all do where means or limits are NaN."""
    limits = constraint.limits(means, means[..., :1])
    return ~(means > limits if constraint.is_upper else means < limits)


def _weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return weighted means over the seeds, `[weighting, cell, strategy]`; NaN stays NaN."""
    means = np.tensordot(weights, np.nan_to_num(values), axes=(1, 2))
    return np.where(np.isnan(values).any(axis=2), np.nan, means)


def _add_changes(verdicts: xr.Dataset, dataset: xr.Dataset, question: Question) -> None:
    """Add the change of the objective against the first strategy's in %, and the order of each pair of strategies.

    Where differences are judged at many looks, also add whether constraints are surely kept or surely broken.
    """
    values = values_of(dataset, question.objective)
    num_cells, num_arms, _ = values.shape
    failed, inference = verdicts["has_failed"].values, inference_of(dataset)
    percent = np.full((num_cells, num_arms, 3), np.nan)
    order = np.zeros((num_cells, num_arms, num_arms), np.int8)
    bounds = _Bounds.of(dataset, question) if inference.is_anytime else None
    surely = np.zeros((num_cells, num_arms, len(question.constraints)), np.int8)
    for cell in range(num_cells):
        running = np.flatnonzero(~failed[cell]).tolist()
        pairs_of_arms = list(itertools.combinations(running, 2))
        pairs = [
            Pair(values[cell, first], values[cell, second], question.metric.direction)
            for first, second in pairs_of_arms
        ]
        limits = [bounds.pair(cell, *places) for places in bounds.asked(running)] if bounds else []
        judged = differences([*pairs, *limits], inference)
        if bounds:
            for at, difference in zip(bounds.asked(running), judged[len(pairs) :], strict=True):
                surely[cell, *at] = _KEPT.get(difference.verdict, difference.num_pairs == 0)
        for (first, second), difference in zip(pairs_of_arms, judged[: len(pairs)], strict=True):
            order[cell, first, second] = _ORDER.get(difference.verdict, 0)
            order[cell, second, first] = -order[cell, first, second]
            if first == 0:
                change = difference.percent
                percent[cell, second] = change.mean, change.low, change.high
    for place, name in enumerate(CHANGE):
        verdicts[name] = (("cell", "strategy"), percent[..., place], {"units": "%"})
    verdicts["is_ahead"] = (("cell", "strategy", "rival"), order)
    verdicts["is_ahead"].attrs["flag_meanings"] = "-1 behind, 0 not separated, 1 ahead of the rival"
    if bounds:
        verdicts["is_surely_kept"] = (("cell", "strategy", "constraint"), surely)
        verdicts["is_surely_kept"].attrs["flag_meanings"] = "-1 surely broken, 0 unclear, 1 kept"


_ORDER = {BETTER: -1, WORSE: 1}  # of the first, where the second is better or worse
_KEPT = {BETTER: 1, SAME: 1, WORSE: -1}  # a constraint, where a value is so against its bound


@dataclass(frozen=True)
class _Bounds:
    """The constraints as differences by seed between a strategy's value and the bound."""

    values: Sequence[np.ndarray]  # [cell, strategy, seed], one a constraint
    constraints: Sequence[Claim]

    @classmethod
    def of(cls, dataset: xr.Dataset, question: Question) -> _Bounds:
        """Return the constraints of a map's question as differences."""
        values = [values_of(dataset, constraint.metric) for constraint in question.constraints]
        return cls(values, question.constraints)

    def asked(self, running: Sequence[int]) -> list[tuple[int, int]]:
        """Return every pair of a running strategy and a constraint, as indices."""
        return [(arm, place) for arm in running for place in range(len(self.constraints))]

    def pair(self, cell: int, arm: int, place: int) -> Pair:
        """Return bound and strategy's values, `[seed]`; a relative bound is NaN where the first strategy fails."""
        constraint, values = self.constraints[place], self.values[place][cell]
        limits = constraint.limits(values[arm], values[0])
        return Pair(limits, values[arm], constraint.better)


def _add_choice(
    verdicts: xr.Dataset, score: np.ndarray, objective: np.ndarray, confidence: float
) -> None:
    """Add the recommendation in each cell, and its reason."""
    names = verdicts["strategy"].values.tolist()
    order = verdicts["is_ahead"].values
    failed = verdicts["has_failed"].values
    probability = verdicts["probability_best"].values
    surely = verdicts["is_surely_kept"].values if "is_surely_kept" in verdicts else None
    recommended, reasons = [], []
    for cell in range(len(score)):
        within = np.flatnonzero(np.isfinite(score[cell]))
        if not len(within):
            recommended.append(NONE)
            reasons.append(ALL_FAIL if failed[cell].all() else ALL_BREAK)
            continue
        leader = int(within[np.argmin(score[cell, within])])
        rivals = [rival for rival in within if rival != leader]
        is_sure = probability[cell, leader] >= confidence
        if surely is None:
            is_sure &= all(order[cell, leader, rival] == 1 for rival in rivals)
        else:
            beaten = (order[cell, leader] == 1) | (surely[cell] == -1).any(axis=1) | failed[cell]
            is_sure &= bool((surely[cell, leader] == 1).all() and np.delete(beaten, leader).all())
        recommended.append(names[leader] if is_sure else UNDECIDED)
        is_alone = np.count_nonzero(~failed[cell]) == 1
        alone = ONLY_RUNNING if is_alone else ONLY_WITHIN
        reasons.append((BEST if rivals else alone) if is_sure else OVERLAP)
    verdicts["recommended"] = ("cell", np.array(recommended, object))
    verdicts["reason"] = ("cell", np.array(reasons, object))


def reversals(verdicts: xr.Dataset) -> np.ndarray:
    """Count per cell the pairs of strategies whose order is sure here and in the reference cell, but reversed."""
    order = verdicts["is_ahead"].values
    reference = reference_index(verdicts)
    if reference is None:
        return np.zeros(len(order), int)
    is_reversed = order * order[reference] == -1
    pairs: np.ndarray = is_reversed.sum(axis=(1, 2)) // 2
    return pairs


def reference_index(verdicts: xr.Dataset) -> int | None:
    """Return the index of the reference cell; None if it has not been run."""
    place = json.loads(verdicts.attrs["reference_cell"])
    is_it = np.ones(verdicts.sizes["cell"], bool)
    for name, value in place.items():
        is_it &= verdicts[name].values == value
    return int(np.argmax(is_it)) if is_it.any() else None


def _attributes(dataset: xr.Dataset, question: Question) -> dict[str, object]:
    return {
        **dataset.attrs,
        "objective": question.objective,
        "direction": question.metric.direction,
        "confidence": question.confidence,
        "random_state": question.random_state,
        "resamples": NUM_RESAMPLES,
    }
