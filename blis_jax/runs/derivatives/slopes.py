"""Slopes of named metrics, from the slopes of a run's times.

A percentile moves with the one or two members of the sample that it lies between; a rate with the end of the run.
Metrics that count requests (attainment, goodput, completions) change through decisions only, so they have no slope.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.lazy import xarray
from blis_jax.metrics.figures import ended_us
from blis_jax.metrics.reference import is_of_class
from blis_jax.metrics.scalars import evaluate, lookup
from blis_jax.metrics.summaries import PERCENTS, latencies_us
from blis_jax.records.step_records import completed_itl_counts
from blis_jax.runs.derivatives.times import Derivatives, jacobian, unit_of_direction
from blis_jax.runs.options import Options
from blis_jax.workload.table import RequestTable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_LATENCY = re.compile(r"(ttft|e2e|tpot|scheduling_delay|itl)_(mean|p\d+)_ms")
_RATES = ("requests_per_s", "output_tokens_per_s")
_ENDS = ("duration_s",)
SMOOTH_METRICS: tuple[str, ...] = tuple(
    f"{latency}_{figure}_ms"
    for latency in ("ttft", "e2e", "tpot", "scheduling_delay", "itl")
    for figure in ("mean", *(f"p{percent}" for percent in PERCENTS))
)
SMOOTH_METRICS += (*_RATES, *_ENDS)


class Slope(NamedTuple):
    """A metric of one run, and its slope in each direction."""

    value: float
    slopes: Float[np.ndarray, "direction"]


class Slopes(dict[str, Slope]):
    """Metrics of one run with their slopes, by name; `wrt` names the directions."""

    def __init__(self, slopes: Mapping[str, Slope], wrt: Sequence[str]) -> None:
        super().__init__(slopes)
        self.wrt = tuple(wrt)

    def to_dataset(self) -> xarray.Dataset:
        """Return `value` `[metric]` and `slope` `[metric, direction]`, with the units of metrics and directions."""
        metrics = [lookup(name)[0] for name in self]
        slopes = [slope.slopes for slope in self.values()]
        dataset = xarray.Dataset(
            {
                "value": ("metric", [slope.value for slope in self.values()]),
                "slope": (("metric", "direction"), slopes),
            },
            {
                "metric": list(self),
                "direction": list(self.wrt),
                "unit": ("metric", [metric.unit for metric in metrics]),
                "direction_unit": ("direction", [unit_of_direction(name) for name in self.wrt]),
            },
        )
        dataset["value"].attrs = {"long_name": "metric of the run", "units": "see unit"}
        dataset["slope"].attrs = {
            "long_name": "slope of the metric",
            "units": "see unit, per direction_unit",
        }
        return dataset

    def __repr__(self) -> str:
        """Return a line for each metric, with units."""
        lines = []
        for name, slope in self.items():
            unit = lookup(name)[0].unit
            parts = (
                f"{value:+.4g} {unit} per {unit_of_direction(wrt)} of {wrt}"
                for wrt, value in zip(self.wrt, slope.slopes, strict=True)
            )
            lines.append(f"{name} = {slope.value:.4g} {unit}: {', '.join(parts)}")
        return "\n".join(lines)


class _Moving(NamedTuple):
    """A sample with the slopes of its members."""

    values: Float[np.ndarray, "value"]
    slopes: Float[np.ndarray, "direction value"]
    weights: Int[np.ndarray, "value"]  # how often a member occurs


def metric_slopes(derivatives: Derivatives, names: Iterable[str]) -> Slopes:
    """Differentiate metrics of one run.

    Args:
        derivatives: the result of `jacobian`.
        names: some of `SMOOTH_METRICS`, with `[class]` behind for one SLO class.

    Returns:
        Value and slopes `[direction]` by name, in the metric's unit per unit of the direction; `to_dataset()`
        labels them.

    Raises:
        ConfigError: a metric changes through decisions alone, or is unknown.
    """
    names = list(names)
    for name in names:
        _check(name)
    values = evaluate(derivatives.record, names)
    slopes = {
        name: Slope(values[name], _slopes_of(derivatives, name, values[name])) for name in names
    }
    return Slopes(slopes, derivatives.wrt)


def grad(
    config: ClusterConfig,
    table: RequestTable,
    metric: str,
    wrt: Sequence[str],
    options: Options | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Return the gradient of one metric of one run; see `jacobian` and `metric_slopes`.

    It is built from forward directions, which share one pass; reverse mode would have to keep the whole run.

    Returns:
        Slopes by name of the direction, in the metric's unit per unit of the direction.
    """
    slopes = metric_slopes(jacobian(config, table, wrt, options, seed), [metric])[metric].slopes
    return dict(zip(wrt, slopes.tolist(), strict=True))


def _check(name: str) -> None:
    metric, _ = lookup(name)
    if metric.name not in SMOOTH_METRICS:
        raise ConfigError(
            f"metric {name!r} has no pathwise derivative, it changes through decisions only; "
            f"there are {', '.join(SMOOTH_METRICS)}"
        )


def _slopes_of(derivatives: Derivatives, name: str, value: float) -> np.ndarray:
    metric, slo_class = lookup(name)
    requests = derivatives.record.requests
    is_chosen = is_of_class(requests.slo_class, slo_class)
    if metric.name in _ENDS:
        return derivatives.ended_us / 1e6
    if metric.name in _RATES:
        seconds = ended_us(derivatives.record) / 1e6
        return (
            -value / seconds * derivatives.ended_us / 1e6
            if seconds > 0
            else 0.0 * derivatives.ended_us
        )
    match = _LATENCY.fullmatch(metric.name)
    assert match is not None
    sample = _itl(derivatives) if match[1] == "itl" else _latency(derivatives, match[1], is_chosen)
    if not sample.values.size:
        return np.full(len(derivatives.wrt), np.nan)
    if match[2] == "mean":
        return np.average(sample.slopes, axis=1, weights=sample.weights) / 1000
    return percentile_slopes(sample, float(match[2][1:])) / 1000


def _latency(
    derivatives: Derivatives, name: str, is_chosen: Bool[np.ndarray, "request"]
) -> _Moving:
    requests = derivatives.record.requests
    if name == "tpot":
        values, exists = latencies_us(derivatives.record, name)
        slopes = (derivatives.e2e_us - derivatives.ttft_us) / np.maximum(requests.made_len - 1, 1)
        return _each_once(values[exists & is_chosen], slopes[:, exists & is_chosen])
    field = {"ttft": "ttft_us", "e2e": "e2e_us", "scheduling_delay": "sched_delay_us"}[name]
    values = getattr(requests, field)
    is_chosen = is_chosen & (values >= 0)
    return _each_once(values[is_chosen], getattr(derivatives, field)[:, is_chosen])


def _each_once(
    values: Float[np.ndarray, "value"], slopes: Float[np.ndarray, "direction value"]
) -> _Moving:
    return _Moving(values, slopes, np.ones(len(values), np.int64))


def _has_any(times_us: Int[np.ndarray, "record"] | None) -> bool:
    """Return whether a run has such times; -1 marks a missing time."""
    return times_us is not None and bool((times_us >= 0).any())


def _itl(derivatives: Derivatives) -> _Moving:
    steps = derivatives.record.steps
    gaps, handed = derivatives.record.preemptions.gap_us, derivatives.record.requests.handed_gap_us
    if _has_any(handed):
        raise ConfigError(
            "itl: the latency over a transfer spans steps, and is not differentiated; take tpot metrics"
        )
    if _has_any(gaps):
        raise ConfigError(
            "itl: a preempted request's latencies span steps, and are not differentiated; take tpot metrics, or "
            "preemption_mode restart"
        )
    weights = completed_itl_counts(derivatives.record)
    values = steps.duration_us + derivatives.record.instances.output_time_us[steps.instance]
    slopes = derivatives.step_duration_us + derivatives.output_time_us[:, steps.instance]
    is_held = weights > 0
    return _Moving(values[is_held], slopes[:, is_held], weights[is_held])


def percentile_slopes(sample: _Moving, percent: float) -> np.ndarray:
    """Return slopes of the percentile that interpolates between the members around rank percent/100·(n−1)."""
    order = np.argsort(sample.values, kind="stable")
    ends = np.cumsum(sample.weights[order])
    rank = percent / 100.0 * (ends[-1] - 1)
    below = np.floor(rank)
    at = np.searchsorted(ends, [below, min(below + 1, ends[-1] - 1)], side="right")
    low, high = sample.slopes[:, order[at]].T
    slopes: np.ndarray = low + (rank - below) * (high - low)
    return slopes
