"""The points of a sweep compared on common seeds: means, paired differences, and one verdict for all.

Intervals are Student's t at 95 % and stand for themselves. The verdicts are those of `paired`, with all
differences of the sweep as one family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.results.metrics.scalars import lookup
from blis_jax.results.metrics.summaries import LATENCIES
from blis_jax.statistics.intervals import BY_STUDENT, Estimate, estimate
from blis_jax.statistics.paired import Difference, Pair, differences

if TYPE_CHECKING:
    import xarray as xr

COMPARED = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "ttft_p99_ms",
    "e2e_mean_ms",
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

    def with_verdict(self, slo_class: str, verdict: str) -> list[ComparedMetric]:
        """The class's figures that are better, worse, …."""
        return [
            figure
            for figure in self.figures[slo_class]
            if figure.difference is not None and figure.difference.verdict == verdict
        ]


def values_of(dataset: xr.Dataset, metric: str) -> xr.DataArray:
    """A metric by name, such as `ttft_p99_ms`, from a sweep's Dataset."""
    for latency in LATENCIES:
        name, _, rest = metric.partition("_p")
        if name == latency and rest.endswith("_ms") and rest[:-3].isdecimal():
            return dataset[f"{latency}_ms"].sel(quantile=int(rest[:-3]) / 100, method="nearest")
    return dataset[metric]


def compare(dataset: xr.Dataset, metrics: Sequence[str] = COMPARED) -> list[Comparison]:
    """Every point of a sweep's Dataset, against the first strategy at the same place.

    With one strategy alone, the first place of the grid is the reference of the others. Runs that
    did not end (outcome) have no figures; a seed counts where both have one.
    """
    axes = [str(dim) for dim in dataset["outcome"].dims if dim not in ("strategy", "seed")]
    classes = [str(name) for name in dataset["slo_class"].values]
    order = ("strategy", *axes, "slo_class", "seed")
    columns = {name: values_of(dataset, name).transpose(*order).values for name in metrics}
    labels = [dataset[name].values.tolist() for name in ("strategy", *axes)]
    reference = str(labels[0][0])
    if len(labels[0]) == 1:
        reference = ", ".join(f"{name}={dataset[name].values[0]}" for name in axes)
    points = list(np.ndindex(*(len(values) for values in labels)))
    firsts = {at: (0, *at[1:]) if len(labels[0]) > 1 else (0,) * len(at) for at in points}
    asked = [(at, row, name) for at in points for row in range(len(classes)) for name in metrics]
    pairs = {
        (at, row, name): Pair(
            columns[name][firsts[at]][row], columns[name][at][row], lookup(name)[0].direction
        )
        for at, row, name in asked
        if firsts[at] != at
    }
    found = dict(zip(pairs, differences(list(pairs.values()), BY_STUDENT), strict=True))
    return [
        Comparison(
            str(labels[0][at[0]]),
            {name: values[i] for name, values, i in zip(axes, labels[1:], at[1:], strict=True)},
            None if firsts[at] == at else reference,
            {
                slo_class: tuple(
                    ComparedMetric(
                        name,
                        lookup(name)[0].unit,
                        estimate(columns[name][at][row]),
                        found.get((at, row, name)),
                    )
                    for name in metrics
                )
                for row, slo_class in enumerate(classes)
            },
        )
        for at in points
    ]


def family_sentence(comparisons: Sequence[Comparison]) -> str:
    """What the verdicts of a sweep hold for."""
    size = sum(len(of) for one in comparisons if one.reference for of in one.figures.values())
    return f"paired t-tests by seed, adjusted by Holm's method: at 95 % for all {size} differences at once"
