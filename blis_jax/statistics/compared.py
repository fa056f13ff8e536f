"""The points of a sweep compared on common seeds: means, paired differences, and one verdict for all.

Intervals are Student's t at 95 % and stand for themselves. The verdicts are those of `paired`, with all
differences of the sweep as one family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.metrics.run_summary import Tails
from blis_jax.metrics.scalars import lookup, pooled_latency
from blis_jax.metrics.summaries import ALL, LATENCIES
from blis_jax.statistics.intervals import BY_STUDENT, Estimate, Inference, estimate, is_constant
from blis_jax.statistics.paired import OF_POOLED, Difference, Pair, differences
from blis_jax.statistics.pooled import contributions_ms, exchanged_ms, only, whole

if TYPE_CHECKING:
    import xarray as xr

COMPARED = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "pooled_ttft_p99_ms",
    "ttft_p99_ms",
    "e2e_mean_ms",
    "pooled_e2e_p99_ms",
    "e2e_p99_ms",
    "tpot_mean_ms",
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_rps",
    "attainment",
)


@dataclass(frozen=True)
class ComparedMetric:
    """One metric of one class under one strategy."""

    metric: str
    unit: str
    value: Estimate
    difference: Difference | None  # to the reference point; None for the reference itself


@dataclass(frozen=True)
class Comparison:
    """One point of a sweep against its reference, see `compare`."""

    strategy: str
    place: Mapping[str, Any]  # by axis of the grid
    reference: str | None  # None if this is the reference
    figures: Mapping[str, tuple[ComparedMetric, ...]]  # by SLO class


def values_of(dataset: xr.Dataset, metric: str) -> xr.DataArray:
    """Return a metric by name, such as `ttft_p99_ms`, from a sweep's Dataset; of a pooled metric, each
    seed's contribution.
    """
    if pooled_latency(metric) is not None:
        return _contributions(dataset, metric)
    if metric == "reject_rate":
        with np.errstate(invalid="ignore", divide="ignore"):
            return dataset["num_rejected"] / dataset["num_requests"]
    for latency in LATENCIES:
        name, _, rest = metric.partition("_p")
        if name == latency and rest.endswith("_ms") and rest[:-3].isdecimal():
            return dataset[f"{latency}_ms"].sel(quantile=int(rest[:-3]) / 100, method="nearest")
    return dataset[metric]


def _is_kept(dataset: xr.Dataset, metric: str) -> bool:
    """Return whether a Dataset has a metric: those of earlier versions have no pooled ones."""
    latency = pooled_latency(metric)
    return latency is None or f"{latency}_top_us" in dataset


def _contributions(dataset: xr.Dataset, metric: str) -> xr.DataArray:
    tails = _KeptTails(dataset, metric)
    contributions = np.full(tails.shape, np.nan)
    for at in np.ndindex(*tails.shape[:-1]):
        contributions[at] = contributions_ms(tails.of(at))
    return tails.labelled(contributions)


class _KeptTails:
    """The largest latencies that a Dataset keeps for a pooled metric, with the seeds as the last axis."""

    def __init__(self, dataset: xr.Dataset, metric: str) -> None:
        """Runs that did not end have no duration."""
        latency = pooled_latency(metric)
        self._top_us = dataset[f"{latency}_top_us"].transpose(..., "seed", "rank")
        order = self._top_us.dims[:-1]
        count = dataset[f"{latency}_count"].where(np.isfinite(dataset["duration_s"]), -1)
        self._count = count.transpose(*order).values
        self.shape = self._count.shape

    def of(self, at: tuple[int, ...]) -> Tails:
        """Return the tails of all seeds at one place of the other axes."""
        return Tails(self._count[at], self._top_us.values[at])

    def labelled(self, values: np.ndarray) -> xr.DataArray:
        """Label values of the same shape as a variable of the Dataset."""
        return self._top_us.isel(rank=0, drop=True).copy(data=values)


def pooled_pair(first: Tails, second: Tails, direction: str) -> Pair:
    """Return a pooled percentile of two arms by seed, ms, pooled over the seeds on which both ended."""
    is_common = whole(first) & whole(second)
    before, after = (contributions_ms(only(arm, is_common)) for arm in (first, second))
    return Pair(before, after, direction, exchanged_ms(first, second))


class Asked(NamedTuple):
    """One difference of a sweep: of which point and class, and in which metric."""

    point: str  # the strategy, with its place in the grid
    slo_class: str
    metric: str


class _Table:
    """A Dataset's metrics `[strategy, axes, slo_class, seed]`, and what each point is compared with."""

    def __init__(self, dataset: xr.Dataset, metrics: Sequence[str]) -> None:
        self.axes = [str(dim) for dim in dataset["outcome"].dims if dim not in ("strategy", "seed")]
        self.classes = [str(name) for name in dataset["slo_class"].values]
        order = ("strategy", *self.axes, "slo_class", "seed")
        self.columns = {name: values_of(dataset, name).transpose(*order).values for name in metrics}
        self.labels = [dataset[name].values.tolist() for name in ("strategy", *self.axes)]
        self.reference = str(self.labels[0][0])
        self.has_strategies = len(self.labels[0]) > 1
        if not self.has_strategies:
            firsts = (f"{name}={dataset[name].values[0]}" for name in self.axes)
            self.reference = ", ".join(firsts)
        self.points = list(np.ndindex(*(len(values) for values in self.labels)))
        self._tails = {
            name: _KeptTails(dataset.transpose(*order, ...), name)
            for name in metrics
            if pooled_latency(name) is not None
        }

    def first(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Return what a point is compared with; itself if it is a reference."""
        return (0, *at[1:]) if self.has_strategies else (0,) * len(at)

    def place(self, at: tuple[int, ...]) -> dict[str, Any]:
        """Return a point by axis of the grid."""
        labels = zip(self.axes, self.labels[1:], at[1:], strict=True)
        return {name: values[i] for name, values, i in labels}

    def pair(self, at: tuple[int, ...], row: int, name: str) -> Pair:
        """Return a metric of a class at a point, and at what it is compared with."""
        places, direction = ((*self.first(at), row), (*at, row)), lookup(name)[0].direction
        if name in self._tails:
            before, after = (self._tails[name].of(place) for place in places)
            pair = pooled_pair(before, after, direction)
        else:
            first, second = (self.columns[name][place] for place in places)
            pair = Pair(first, second, direction)
        return replace(pair, is_exact=self._are_alike(at) and self._are_alike(self.first(at)))

    def _are_alike(self, at: tuple[int, ...]) -> bool:
        """Return whether every seed made the same run at a point: no figure of any class has a spread."""
        figures = np.concatenate([column[at] for column in self.columns.values()])
        known = figures[np.isfinite(figures).all(axis=1)]
        is_many = known.shape[0] > 0 and known.shape[1] > 1
        return is_many and all(is_constant(of_class) for of_class in known)


def asked_pairs(dataset: xr.Dataset, names: Sequence[str]) -> dict[Asked, Pair]:
    """Return the differences in metrics that have `[class]` behind them, or are of all requests."""
    wanted = [lookup(name) for name in names]
    table = _Table(dataset, [metric.name for metric, _ in wanted])
    found = {}
    for at in table.points:
        if table.first(at) == at:
            continue
        place = ", ".join(f"{name}={value}" for name, value in table.place(at).items())
        point = f"{table.labels[0][at[0]]}{' at ' if place else ''}{place}"
        for metric, slo_class in wanted:
            row = table.classes.index(slo_class or ALL)
            asked = Asked(point, slo_class or ALL, metric.name)
            found[asked] = table.pair(at, row, metric.name)
    return found


def compare(
    dataset: xr.Dataset, metrics: Sequence[str] = COMPARED, inference: Inference = BY_STUDENT
) -> list[Comparison]:
    """Return every point of a sweep's Dataset, against the first strategy at the same place.

    With one strategy alone, the first place of the grid is the reference of the others. Runs that
    did not end (outcome) have no figures; a seed counts where both have one.
    """
    metrics = [name for name in metrics if _is_kept(dataset, name)]
    table = _Table(dataset, metrics)
    rows = range(len(table.classes))
    pairs = {
        (at, row, name): table.pair(at, row, name)
        for at in table.points
        for row in rows
        for name in metrics
        if table.first(at) != at
    }
    found = dict(zip(pairs, differences(list(pairs.values()), inference), strict=True))

    def figure(at: tuple[int, ...], row: int, name: str) -> ComparedMetric:
        value = estimate(table.columns[name][at][row], is_anytime=inference.is_anytime)
        return ComparedMetric(name, lookup(name)[0].unit, value, found.get((at, row, name)))

    return [
        Comparison(
            str(table.labels[0][at[0]]),
            table.place(at),
            None if table.first(at) == at else table.reference,
            {
                slo_class: tuple(figure(at, row, name) for name in metrics)
                for row, slo_class in enumerate(table.classes)
            },
        )
        for at in table.points
    ]


def family_words(asked: Asked) -> str:
    """Return one difference in words."""
    return f"{asked.point}, {asked.metric}[{asked.slo_class}]"


def family_sentence(comparisons: Sequence[Comparison], is_anytime: bool = False) -> str:
    """Return what the verdicts of a sweep hold for."""
    size = sum(len(of) for one in comparisons if one.reference for of in one.figures.values())
    test = f"{'anytime-valid ' * is_anytime}paired t-tests by seed ({OF_POOLED})"
    return f"{test}, adjusted by Holm's method: at 95 % for all {size} differences at once"
