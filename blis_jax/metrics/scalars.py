"""Metrics by name: one number per run, such as `ttft_p99_ms` or `ttft_p99_ms[critical]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from blis_jax.errors import ConfigError, choices
from blis_jax.metrics import kv as kv_metrics
from blis_jax.metrics.distributions import Sample, mean_ms, percentile_ms
from blis_jax.metrics.reference import (
    class_code,
    ended_us,
    hol_blocking_events,
    jain_fairness,
    priority_inversions,
    rates,
)
from blis_jax.metrics.summaries import (
    LATENCIES,
    PERCENTS,
    Selection,
    SloTargets,
    Window,
    select,
)
from blis_jax.results.records import COUNTED, RunRecord, Status

MetricFn = Callable[[Selection], float]
LOWER, HIGHER = "lower", "higher"  # which direction is better


class Title(NamedTuple):
    """What pages, tables and the terminal call a metric that is no latency."""

    axis: str  # in a table or beside an axis, with its unit
    prose: str  # in a sentence


TITLES = {
    "output_tokens_per_s": Title("output tokens/s", "number of output tokens per second"),
    "tokens_per_sec": Title("decode tokens/s", "number of decode tokens per second"),
    "requests_per_s": Title("throughput, requests/s", "number of completed requests per second"),
    "goodput_rps": Title(
        "goodput, requests/s", "number of requests per second that meet their targets"
    ),
    "attainment": Title("share within targets", "share of requests that meet their targets"),
    "reject_rate": Title("share rejected", "share of requests rejected"),
    "slo_miss_rate": Title("share missing targets", "share of requests that miss their targets"),
}
# the two throughputs in tokens: of requests that completed, and the reference's, of decode steps
TOKEN_RATES = {name: TITLES[name].axis for name in ("output_tokens_per_s", "tokens_per_sec")}
PERCENTILES_EXPLAINED = (
    "P99 pooled is the 99th percentile of the requests of all runs together; P99 by run is the mean over runs of "
    "each run's P99, which depends on how many requests a run has."
)
TOKEN_RATES_EXPLAINED = (
    "output tokens/s counts all output tokens of the requests that completed; decode tokens/s is BLIS's "
    "tokens_per_sec, which leaves out each request's first token, whatever the window."
)


@dataclass(frozen=True)
class Metric:
    """A named scalar of a run; NaN where nothing was measured."""

    name: str
    compute: MetricFn
    unit: str
    direction: str
    has_classes: bool = True  # else it covers the whole run, whatever is selected


_METRICS: dict[str, Metric] = {}
# Figures of the requests of many runs together, which no single run has; see `statistics.pooled`.
POOLED_LATENCIES = ("ttft", "e2e")
POOLED_PERCENT = 99
_POOLED: dict[str, Metric] = {}


def register(
    name: str, compute: MetricFn, unit: str, direction: str, has_classes: bool = True
) -> Metric:
    """Adds a metric; its name must be new."""
    if name in _METRICS:
        raise ConfigError(f"metric {name!r} is registered already; choose another name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"metric name {name!r} must be of lower-case letters, digits and _")
    if direction not in (LOWER, HIGHER):
        raise ConfigError(f"direction {direction!r} of metric {name!r} must be lower or higher")
    metric = Metric(name, compute, unit, direction, has_classes)
    _METRICS[name] = metric
    return metric


def metric_names() -> tuple[str, ...]:
    """Every registered metric, in order of registration."""
    return tuple(_METRICS)


def pooled_names() -> tuple[str, ...]:
    """The figures of many runs together: `sweep`, `compare` and the ledger have them, a single run does not."""
    return tuple(_POOLED)


def pooled_latency(name: str) -> str | None:
    """The latency of which a name, `[class]` included, means the pooled percentile; None for other metrics."""
    base = name.partition("[")[0]
    return base.removeprefix("pooled_").partition("_p")[0] if base in _POOLED else None


def lookup(name: str) -> tuple[Metric, str | None]:
    """The metric that a name means and the SLO class in its brackets, None for the whole run."""
    base, bracket, rest = name.partition("[")
    known = _METRICS | _POOLED
    if base not in known or (bracket and not rest.endswith("]")):
        raise ConfigError(
            f"metric {name!r} is unknown; {choices(base, known)}; most take [class] behind their name"
        )
    metric = known[base]
    if not bracket:
        return metric, None
    if not metric.has_classes:
        raise ConfigError(f"metric {base!r} covers the whole cluster; leave {bracket}{rest} out")
    slo_class = rest[:-1]
    class_code(slo_class)
    return metric, slo_class


def evaluate(
    record: RunRecord,
    names: Iterable[str],
    targets: SloTargets | None = None,
    window: Window | None = None,
) -> dict[str, float]:
    """Compute named metrics of one run.

    Args:
        record: the run.
        names: metrics, with `[class]` behind for one SLO class.
        targets: limits in ms by class, for goodput and attainment; none if None.
        window: which part of the simulated time is measured; metrics of the whole run do not look at it.

    Returns:
        Values by name, in the unit that the name or `lookup` says; NaN where nothing was measured.

    Raises:
        ConfigError: a name is no metric, or its class does not exist.
    """
    wanted = [(name, *lookup(name)) for name in names]
    everything = select(record, targets, window)
    selections: dict[str | None, Selection] = {None: everything}
    values = {}
    for name, metric, slo_class in wanted:
        if slo_class not in selections:
            is_class = record.requests.slo_class == class_code(slo_class or "")
            selections[slo_class] = everything.where(is_class)
        values[name] = float(metric.compute(selections[slo_class]))
    return values


def _latency_mean(latency: str, selection: Selection) -> float:
    sample: Sample = getattr(selection, latency)
    return mean_ms(sample) if sample.count else float("nan")


def _latency_percentile(latency: str, percent: int, selection: Selection) -> float:
    sample: Sample = getattr(selection, latency)
    return percentile_ms(sample, percent) if sample.count else float("nan")


def _mean_time(column: str, selection: Selection) -> float:
    """Mean of a column of times over the measured requests that have one, ms."""
    times = getattr(selection.record.requests, column)
    times = times[selection.is_chosen & (times >= 0)]
    return float(times.mean()) / 1000 if len(times) else float("nan")


def _number_with(status: Status, selection: Selection) -> float:
    return selection.count(status)


def _responses_per_sec(selection: Selection) -> float:
    return rates(selection.record).responses_per_sec


def _tokens_per_sec(selection: Selection) -> float:
    return rates(selection.record).tokens_per_sec


def _duration_s(selection: Selection) -> float:
    return ended_us(selection.record) / 1e6


def _of_run(figure: Callable[[RunRecord], float], selection: Selection) -> float:
    return figure(selection.record)


def _jain_fairness(selection: Selection) -> float:
    return jain_fairness(selection.record, selection.is_chosen)


def instance_seconds(record: RunRecord) -> float:
    """The time for which instances are paid, summed; without a cluster policy all of them for the whole run."""
    return float(record.instances.paid_us.sum()) / 1e6


def idle_share(record: RunRecord) -> float:
    """1 - time in steps ÷ paid time; time in overlapping steps counts twice. NaN if nothing is paid."""
    paid_us, steps = float(record.instances.paid_us.sum()), record.steps
    busy_us = float((steps.num_steps * steps.duration_us).sum())
    return 1 - busy_us / paid_us if paid_us else float("nan")


def _priority_inversions(selection: Selection) -> float:
    return priority_inversions(selection.record)


def _refuse_pooled(name: str, _: Selection) -> float:
    """Of a single run, or of anything that takes runs one by one."""
    raise ConfigError(
        f"{name} is a figure of many runs together, which sweep, compare and the ledger have; of each run "
        f"take {name.removeprefix('pooled_')}"
    )


def _hol_blocking_events(selection: Selection) -> float:
    return hol_blocking_events(selection.record)


def _register_all() -> None:
    for latency in (*LATENCIES, "itl"):
        has_classes = latency in LATENCIES
        register(f"{latency}_mean_ms", partial(_latency_mean, latency), "ms", LOWER, has_classes)
        for percent in PERCENTS:
            compute = partial(_latency_percentile, latency, percent)
            register(f"{latency}_p{percent}_ms", compute, "ms", LOWER, has_classes)
    for latency in POOLED_LATENCIES:
        name = f"pooled_{latency}_p{POOLED_PERCENT}_ms"
        _POOLED[name] = Metric(name, partial(_refuse_pooled, name), "ms", LOWER)
    for name in ("requests_per_s", "output_tokens_per_s", "goodput_rps"):
        register(name, attrgetter(name), "1/s", HIGHER)
    register("attainment", attrgetter("attainment"), "1", HIGHER)
    for name, status in COUNTED.items():
        is_good = status == Status.COMPLETED
        register(name, partial(_number_with, status), "1", HIGHER if is_good else LOWER)
    for name in ("transfer", "handed_wait"):
        register(f"{name}_mean_ms", partial(_mean_time, f"{name}_us"), "ms", LOWER)
    register("jain_fairness", _jain_fairness, "1", HIGHER)
    register("responses_per_sec", _responses_per_sec, "1/s", HIGHER, has_classes=False)
    register("tokens_per_sec", _tokens_per_sec, "1/s", HIGHER, has_classes=False)
    register("duration_s", _duration_s, "s", LOWER, has_classes=False)
    for name, figure, direction in (
        ("cache_hit_rate", kv_metrics.cache_hit_rate, HIGHER),
        ("preemption_rate", kv_metrics.preemption_rate, LOWER),
        ("thrashing_rate", kv_metrics.thrashing_rate, LOWER),
        ("kv_peak_utilization", kv_metrics.peak_utilization, LOWER),
        ("kv_mean_utilization", kv_metrics.mean_utilization, LOWER),
        ("phantom_hit_rate", kv_metrics.phantom_hit_rate, LOWER),
    ):
        register(name, partial(_of_run, figure), "1", direction, has_classes=False)
    register("instance_seconds", partial(_of_run, instance_seconds), "s", LOWER, has_classes=False)
    register("idle_share", partial(_of_run, idle_share), "1", LOWER, has_classes=False)
    register("priority_inversions", _priority_inversions, "1", LOWER, has_classes=False)
    register("hol_blocking_events", _hol_blocking_events, "1", LOWER, has_classes=False)


_register_all()

OWN_METRICS = tuple(_METRICS)  # without those that other packages register
