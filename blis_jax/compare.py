"""Strategies compared on common seeds: means, paired differences, and what can be said of them.

All intervals are Student's t at 95 %. A difference is taken seed by seed, so what the workload does
to both strategies cancels; its percentage is of the first strategy's mean, with an interval of the
logarithm of the ratio of both means, so that no positive figure falls by more than 100 %. Every
interval stands for itself, not for all of them at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.scalar_metrics import LOWER, lookup
from blis_jax.summaries import LATENCIES

if TYPE_CHECKING:
    import xarray as xr
    from jaxtyping import Float

    Relative = Callable[[Float[np.ndarray, "seed"], Float[np.ndarray, "seed"]], "Estimate"]

CONFIDENCE = 0.95
METHOD = "Student's t over seeds, paired by seed, 95 %"
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
BETTER, WORSE, UNCLEAR, SAME = "better", "worse", "unclear", "same"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its interval; NaN where there are too few."""

    mean: float
    low: float
    high: float
    num_seeds: int


@dataclass(frozen=True)
class Difference:
    """Second minus first on the seeds that both have, in the metric's unit and in %."""

    absolute: Estimate
    percent: Estimate
    verdict: str  # BETTER, WORSE, UNCLEAR: the interval holds 0, SAME: equal on every seed


@dataclass(frozen=True)
class Figure:
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
    figures: Mapping[str, tuple[Figure, ...]]  # by SLO class

    def with_verdict(self, slo_class: str, verdict: str) -> list[Figure]:
        """The class's figures that are better, worse, …."""
        return [
            figure
            for figure in self.figures[slo_class]
            if figure.difference is not None and figure.difference.verdict == verdict
        ]


@functools.lru_cache(maxsize=256)
def t_quantile(num_seeds: int, confidence: float = CONFIDENCE) -> float:
    """Half-width of a two-sided t interval in standard errors; infinite for one seed.

    P(|T| < √ν·tan θ) is the integral of cos^(ν-1) up to θ over that up to π/2, ν = num_seeds - 1.
    """
    freedom = num_seeds - 1
    if freedom < 1:
        return math.inf
    widest = min(math.pi / 2, 40 / math.sqrt(freedom))  # beyond it the density is below e^-800
    angle = np.linspace(0.0, widest, 20_001)
    density = np.cos(angle) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(float(np.interp(confidence * below[-1], below, angle)))


def estimate(values: Float[np.ndarray, "seed"]) -> Estimate:
    """Mean and interval over the seeds that have a value."""
    values = values[np.isfinite(values)]
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan, 0)
    return _interval(float(values.mean()), values, len(values))


def _interval(
    centre: float,
    residuals: Float[np.ndarray, "seed"],
    num_seeds: int,
    scale: float = 1.0,
    confidence: float = CONFIDENCE,
) -> Estimate:
    if num_seeds < 2:
        return Estimate(centre, math.nan, math.nan, num_seeds)
    error = float(residuals.std(ddof=1)) / math.sqrt(num_seeds) * abs(scale)
    half = t_quantile(num_seeds, confidence) * error
    return Estimate(centre, centre - half, centre + half, num_seeds)


def linear_change(
    first: Float[np.ndarray, "seed"],
    second: Float[np.ndarray, "seed"],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """How far the second's mean is above the first's in %, with a symmetric interval by linearisation."""
    mean = float(first.mean()) if len(first) else 0.0
    if mean == 0:
        return Estimate(math.nan, math.nan, math.nan, len(first))
    change = second - first
    ratio = float(change.mean()) / mean
    return _interval(100 * ratio, change - ratio * first, len(change), 100 / mean, confidence)


def relative_change(
    first: Float[np.ndarray, "seed"],
    second: Float[np.ndarray, "seed"],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The same with an interval of the logarithm of the ratio; symmetric if a figure is below 0."""
    percent = linear_change(first, second, confidence)
    ratio = 1 + percent.mean / 100
    if not math.isfinite(percent.low) or ratio <= 0 or min(first.min(), second.min()) < 0:
        return percent
    half = (percent.high - percent.mean) / (100 * ratio)
    with np.errstate(over="ignore"):  # seeds that tell nothing leave the upper end infinite
        low, high = 100 * np.expm1(np.log(ratio) + np.array([-half, half]))
    return Estimate(percent.mean, float(low), float(high), percent.num_seeds)


def difference(
    first: Float[np.ndarray, "seed"],
    second: Float[np.ndarray, "seed"],
    direction: str = LOWER,
    relative: Relative = relative_change,
) -> Difference:
    """How the second differs from the first, seed by seed; `direction` says which way is better."""
    both = np.isfinite(first) & np.isfinite(second)
    first, second = first[both], second[both]
    change = second - first
    absolute = estimate(change)
    return Difference(absolute, relative(first, second), _verdict(change, absolute, direction))


def _verdict(change: Float[np.ndarray, "seed"], absolute: Estimate, direction: str) -> str:
    if not len(change):
        return UNCLEAR
    if not np.any(change):
        return SAME
    if not (absolute.low > 0 or absolute.high < 0):
        return UNCLEAR
    return BETTER if (absolute.mean < 0) == (direction == LOWER) else WORSE


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
    found = []
    for index in np.ndindex(*(len(values) for values in labels)):
        strategy, *place = (values[at] for values, at in zip(labels, index, strict=True))
        first = (0, *index[1:]) if len(labels[0]) > 1 else (0,) * len(index)
        figures = {
            slo_class: tuple(
                _figure(name, columns[name][index][row], columns[name][first][row], index == first)
                for name in metrics
            )
            for row, slo_class in enumerate(classes)
        }
        setting = dict(zip(axes, place, strict=True))
        reference = str(labels[0][0])
        if len(labels[0]) == 1:
            reference = ", ".join(f"{name}={dataset[name].values[0]}" for name in axes)
        is_reference = index == first
        found.append(
            Comparison(str(strategy), setting, None if is_reference else reference, figures)
        )
    return found


def _figure(
    name: str,
    values: Float[np.ndarray, "seed"],
    reference: Float[np.ndarray, "seed"],
    is_reference: bool,
) -> Figure:
    metric, _ = lookup(name)
    change = None if is_reference else difference(reference, values, metric.direction)
    return Figure(name, metric.unit, estimate(values), change)
