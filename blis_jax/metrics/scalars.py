"""Metrics by name: one number per run, such as `ttft_p99_ms` or `ttft_p99_ms[critical]`."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import methodcaller

import numpy as np

from blis_jax.core.arrays import namespace, ratio
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError, choices, closest
from blis_jax.metrics import figures
from blis_jax.metrics.metric import (
    ALL,
    HIGHER,
    LOWER,
    METRICS,
    MeasuredRequests,
    Metric,
    Number,
    of_requests,
    register,
    split_name,
)
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.summaries import (
    LATENCIES,
    PERCENTS,
    RATES,
    Selection,
    SloTargets,
    Window,
    select,
)
from blis_jax.policies.numbers import DECLARED
from blis_jax.records.record import COUNTED, RunRecord, Status

PERCENTILES_EXPLAINED = (
    "P99 pooled is the 99th percentile of the requests of all runs together; P99 by run is the mean over runs of "
    "each run's P99, which depends on how many requests a run has."
)
TOKEN_RATES_EXPLAINED = (
    "output tokens/s counts all output tokens of the requests that completed; decode tokens/s is BLIS's "
    "tokens_per_sec, which leaves out each request's first token, whatever the window."
)

# Figures of the requests of many runs together, which no single run has; see `statistics.pooled`.
POOLED_LATENCIES = ("ttft", "e2e")
POOLED_PERCENT = 99
_POOLED: dict[str, Metric] = {}


def metric_names() -> tuple[str, ...]:
    """Return the names of all registered metrics, in order of registration."""
    return tuple(METRICS)


def pooled_names() -> tuple[str, ...]:
    """Return the names of the metrics of many runs together, which `sweep`, `compare` and the ledger compute."""
    return tuple(_POOLED)


def pooled_latency(name: str) -> str | None:
    """Return the latency of a pooled percentile, given its name with or without `[class]`; None for other metrics."""
    base, _ = split_name(name)
    return base.removeprefix("pooled_").partition("_p")[0] if base in _POOLED else None


def title_of(name: str) -> str:
    """Return the title of a metric, or an empty text if its name needs none."""
    return METRICS[name].title if name in METRICS else ""


def lookup(name: str, more: Mapping[str, Metric] = {}) -> tuple[Metric, str | None]:
    """Return the metric of a name, looked up in `more` too, and the SLO class in its brackets, else None."""
    base, slo_class = split_name(name)
    if name.startswith(OF_ADAPTER):
        return _of_adapter(name), None
    known = ChainMap(dict(more), _of_sources(), _POOLED, METRICS)
    if base not in known:
        raise ConfigError(
            f"metric {name!r} is unknown; {choices(base, known)}; most take [class] behind their name"
        )
    metric = known[base]
    if slo_class is not None:
        if not metric.has_classes:
            raise ConfigError(f"metric {base!r} covers the whole cluster; leave [{slo_class}] out")
        class_code(slo_class)
    return metric, slo_class


def _of_sources() -> dict[str, Metric]:
    """Return the metrics of the event sources loaded so far, by name; NaN in a run without the source."""
    return {
        name: Metric(
            name,
            partial(_own_figure, name),
            own.unit,
            own.direction,
            own.meaning,
            has_classes=False,
        )
        for name, own in DECLARED.items()
    }


OF_ADAPTER = "adapter."


def _of_adapter(name: str) -> Metric:
    """Return a metric of one LoRA adapter's requests, `adapter.ID.METRIC`; NaN in a run without the adapter."""
    adapter, dot, base = name.removeprefix(OF_ADAPTER).rpartition(".")
    with_groups = [base_name for base_name, metric in METRICS.items() if metric.has_classes]
    if not (dot and adapter and base in with_groups):
        raise ConfigError(
            f"metric {name!r} is not {OF_ADAPTER}ID.METRIC with the id of a LoRA adapter and a metric of requests; "
            f"write for instance {OF_ADAPTER}{adapter or 'ID'}.ttft_p99_ms{closest(base, with_groups)}"
        )
    metric = METRICS[base]
    what = f"{metric.estimand}, of requests that name the adapter {adapter}"
    compute, title = partial(_adapter_figure, adapter, metric), f"{metric.axis}, {adapter}"
    return Metric(name, compute, metric.unit, metric.direction, what, title, has_classes=False)


def _adapter_figure(adapter: str, metric: Metric, measured: MeasuredRequests) -> Number:
    if not isinstance(measured, Selection):
        raise ConfigError(
            f"{OF_ADAPTER}{adapter}.{metric.name} is computed of whole records, and so many runs keep none; take "
            "compare, fewer runs at a time, or worst_adapter_ttft_p99_ms"
        )
    record = measured.record
    ids = () if record.adapters is None else record.adapters.ids
    if adapter not in ids or record.requests.adapter is None:
        return math.nan
    return metric.compute(measured.where(record.requests.adapter == ids.index(adapter)))


def _own_figure(name: str, measured: MeasuredRequests) -> Number:
    return measured.record.figures.get(name, math.nan)


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
        window: the part of the simulated time that is measured; metrics of the whole run ignore it.

    Returns:
        Values by name, in the unit in the name or in `lookup`'s metric; NaN where nothing was measured.

    Raises:
        ConfigError: a name is no metric, or its class does not exist.
    """
    return metrics_of(select(record, targets, window), names)


def metrics_of(everything: Selection, names: Iterable[str]) -> dict[str, float]:
    """Return the metrics of `evaluate`, for a selection of requests."""
    values = {}
    for name, metric, slo_class in [(name, *lookup(name)) for name in names]:
        chosen = everything if slo_class is None else everything.of_class(class_code(slo_class))
        values[name] = float(metric.compute(chosen))
    return values


def class_summary(
    record: RunRecord, targets: SloTargets | None = None, window: Window | None = None
) -> dict[str, dict[str, float]]:
    """Return counts, latencies, rates and attainment of `all` measured requests, and of every SLO class among them."""
    return summary_of(select(record, targets, window))


def summary_of(everything: Selection) -> dict[str, dict[str, float]]:
    """Return the summary of `class_summary`, for a selection of requests."""
    record = everything.record
    is_measured = everything.is_chosen | everything.is_output
    codes = np.unique(record.requests.slo_class[is_measured]).tolist()
    groups = {CLASS_NAMES[code]: everything.of_class(code) for code in codes if code >= 0}
    return {
        name: {"num_requests": group.num_requests}
        | {figure: METRICS[figure].compute(group) for figure in SUMMED}
        for name, group in ({ALL: everything} | groups).items()
    }


_DONE = "that completed in the window"
_RATES = (  # what is divided by the window's length, and the title
    ("requests_per_s", f"requests {_DONE}", "throughput, requests/s"),
    ("output_tokens_per_s", f"output tokens of the requests {_DONE}", "output tokens/s"),
    ("goodput_rps", f"requests {_DONE} within all targets of their class", "goodput, requests/s"),
)
for _name, _what, _title in _RATES:
    register(
        Metric(_name, methodcaller("rate", _name), "1/s", HIGHER, f"{_what} ÷ its length", _title)
    )


@of_requests("1", HIGHER, "share within targets")
def attainment(measured: MeasuredRequests) -> Number:
    """Return measured requests that completed within all targets of their class ÷ measured requests."""
    return measured.attainment


@of_requests("1", HIGHER)
def num_arrived(measured: MeasuredRequests) -> Number:
    """Count measured requests, whatever became of them; latencies are of those that came far enough to have one."""
    return measured.num_requests


@of_requests("1", HIGHER)
def jain_fairness(measured: MeasuredRequests) -> Number:
    """Return Jain's index of the output tokens of each tenant's measured requests that completed."""
    return figures.jain_fairness(measured.record, measured.is_chosen)


def _mean_time(column: str, measured: MeasuredRequests) -> Number:
    times = getattr(measured.record.requests, column)
    has_one = measured.is_chosen & (times >= 0)
    total = namespace(has_one).where(has_one, times, 0).sum(dtype=float)
    return ratio(total, has_one.sum(), math.nan) / 1000


def _refuse_pooled(name: str, _: MeasuredRequests) -> Number:
    """Refuse a pooled metric where runs are taken one by one."""
    raise ConfigError(
        f"{name} is a figure of many runs together, which sweep, compare and the ledger have; of each run "
        f"take {name.removeprefix('pooled_')}"
    )


KINDS = ("mean", *(f"p{percent}" for percent in PERCENTS))  # of a latency's figures
_LATENCIES = {  # over what
    "ttft": "measured requests with a first token, completed or not",
    "e2e": "measured requests that completed",
    "tpot": "measured requests that completed with two or more output tokens",
    "scheduling_delay": "measured requests that were scheduled, completed or not",
    "itl": "gaps between output tokens of the completed requests of the whole run",
}
_TIMES = {
    "transfer": "measured requests handed over, of the time that their KV takes to the other instance",
    "handed_wait": "measured requests handed over, of the wait from there to the other batch",
}
_ENDED = {  # requests that …
    Status.COMPLETED: "completed",
    Status.REJECTED: "admission rejected",
    Status.DROPPED: "no instance can hold",
    Status.LOST: "were on an instance that stopped, and that nobody computed again",
    Status.QUEUE_FULL: "the gateway's queue turned away",
    Status.SHED: "the gateway's queue gave up for a more urgent one",
    Status.EXPIRED: "the gateway's queue let go after their time there",
    Status.EVICTED: "an instance gave up for a more urgent one at the gateway",
    Status.TIMED_OUT: "had a deadline before their last step",
    Status.UNROUTED: "found no instance that was up",
}


def _families() -> Iterator[Metric]:
    """Yield the families of metrics, which differ in a latency, a percentage, a status or a column."""
    for latency, over in _LATENCIES.items():
        has_classes = latency in LATENCIES
        mean = methodcaller("mean_ms", latency)
        yield Metric(
            f"{latency}_mean_ms", mean, "ms", LOWER, f"mean over {over}", has_classes=has_classes
        )
        for percent in PERCENTS:
            name, what = f"{latency}_p{percent}_ms", f"{percent}th percentile over {over}"
            compute = methodcaller("percentile_ms", latency, percent)
            yield Metric(name, compute, "ms", LOWER, what, has_classes=has_classes)
    for name, status in COUNTED.items():
        direction = HIGHER if status == Status.COMPLETED else LOWER
        what = f"measured requests that {_ENDED[status]}"
        yield Metric(name, methodcaller("count", status), "1", direction, what)
    for name, over in _TIMES.items():
        in_column = partial(_mean_time, f"{name}_us")
        yield Metric(f"{name}_mean_ms", in_column, "ms", LOWER, f"mean over {over}")


for _metric in _families():
    register(_metric)
for _latency in POOLED_LATENCIES:
    _name = f"pooled_{_latency}_p{POOLED_PERCENT}_ms"
    _what = f"{POOLED_PERCENT}th percentile over the {_LATENCIES[_latency]} of all runs together"
    _POOLED[_name] = Metric(_name, partial(_refuse_pooled, _name), "ms", LOWER, _what)

SUMMED = (
    *COUNTED,
    *(f"{latency}_{kind}_ms" for latency in LATENCIES for kind in KINDS),
    *RATES,
    "attainment",
)
OWN_METRICS = tuple(METRICS)  # without those that other packages register
# the two throughputs in tokens: of requests that completed, and the reference's, of decode steps
TOKEN_RATES = {name: METRICS[name].axis for name in ("output_tokens_per_s", "tokens_per_sec")}
