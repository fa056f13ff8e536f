"""The metrics of `scalar_metrics` by name, as JAX functions of one lane.

A metric that is registered there and not here can be had from whole records only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.engine.mechanism import has_priorities
from blis_jax.errors import ConfigError
from blis_jax.metrics.on_device.inversions import priority_inversions
from blis_jax.metrics.on_device.lane import RATES, LaneSelection, ratio
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import LATENCIES, PERCENTS
from blis_jax.results.records import COUNTED, Status

LaneFigure = Callable[[LaneSelection, int | None], jax.Array]  # of an SLO class, None for all

_FIGURES: dict[str, LaneFigure] = {}


def register_figure(name: str, compute: LaneFigure) -> None:
    """Adds the compiled form of a registered metric; each metric has one."""
    lookup(name)
    if name in _FIGURES:
        raise ConfigError(f"metric {name!r} has a compiled form already")
    _FIGURES[name] = compute


def has_figure(name: str) -> bool:
    """Whether a metric, `[class]` included, has a compiled form."""
    return lookup(name)[0].name in _FIGURES


def group_of(name: str) -> int | None:
    """The code of the SLO class that a metric's name has in brackets, None without one."""
    slo_class = lookup(name)[1]
    return None if slo_class is None else class_code(slo_class)


def figure(selection: LaneSelection, name: str) -> jax.Array:
    """One metric of one lane, as `scalar_metrics.evaluate` gives it; the selection has its group and latency."""
    compute = _FIGURES[lookup(name)[0].name]
    return jnp.asarray(compute(selection, group_of(name)), jnp.float64)


def _percentile(latency: str, place: int, selection: LaneSelection, code: int | None) -> Any:
    row = selection.latencies.index(latency)
    return selection.percentiles_ms[row, selection.place(code), place]


def _mean(latency: str, selection: LaneSelection, code: int | None) -> Any:
    return selection.means_ms[selection.latencies.index(latency), selection.place(code)]


def _mean_time(column: str, selection: LaneSelection, code: int | None) -> Any:
    requests = selection.run.requests
    times = jnp.asarray(getattr(requests, column))
    has_one = selection.is_of[selection.place(code)] & (times >= 0)
    total = jnp.sum(jnp.where(has_one, times, 0).astype(jnp.float64))
    return ratio(total, jnp.sum(has_one), jnp.nan) / 1000


def _itl_percentile(place: int, selection: LaneSelection, _: int | None) -> Any:
    return selection.itl_ms[0][place]


def _count(name: str, selection: LaneSelection, code: int | None) -> Any:
    return selection.counts[name][selection.place(code)]


def _rate(name: str, selection: LaneSelection, code: int | None) -> Any:
    return selection.rates[name][selection.place(code)]


def _attainment(selection: LaneSelection, code: int | None) -> Any:
    return selection.attainment[selection.place(code)]


def jain_fairness(selection: LaneSelection, code: int | None = None) -> jax.Array:
    """As `metrics.jain_fairness`: the tenants lie together after a sort, so that any number of them will do."""
    is_measured = selection.is_of[selection.place(code)]
    requests = selection.run.requests
    size = len(is_measured)
    bits = max(size - 1, 1).bit_length()
    tenant = jnp.where(is_measured, requests.tenant + 1, 0)
    keys = jnp.sort((tenant << bits) | lax.iota(jnp.int64, size))
    order, tenant = keys & (2**bits - 1), keys >> bits
    is_completed = is_measured & (requests.status == int(Status.COMPLETED))
    tokens = jnp.cumsum(jnp.where(is_completed, requests.output_len, 0)[order])
    is_last = (tenant != jnp.append(tenant[1:], -1)) & (tenant > 0)
    before = lax.cummax(jnp.where(is_last, tokens, 0))
    own = jnp.where(is_last, tokens - jnp.append(jnp.int64(0), before[:-1]), 0)
    squares = jnp.sum(is_last) * jnp.sum(jnp.square(own.astype(jnp.float64)))
    index = ratio(tokens[-1].astype(jnp.float64) ** 2, squares, 1.0)
    return jnp.where(jnp.any(is_measured), index, 0.0)


def _of_completed(selection: LaneSelection, amount: jax.Array) -> jax.Array:
    """A rate over the whole run; 0 if nothing completed."""
    run = selection.run
    completed = jnp.sum(run.instances.completed_requests)
    return jnp.where(completed > 0, ratio(amount, run.ended_us / 1e6), 0.0)


def _responses_per_sec(selection: LaneSelection, _: int | None) -> Any:
    return _of_completed(selection, jnp.sum(selection.run.instances.completed_requests))


def _tokens_per_sec(selection: LaneSelection, _: int | None) -> Any:
    return _of_completed(selection, jnp.sum(selection.run.instances.total_output_tokens))


def _cache_hit_rate(selection: LaneSelection, _: int | None) -> Any:
    table = selection.run.instances
    reloads = 0 if selection.run.seen.rules.has_order else table.cpu_reloads
    hits = jnp.sum(table.gpu_hits + reloads)
    return ratio(hits, hits + jnp.sum(table.gpu_misses + table.cpu_misses))


def _thrashing_rate(selection: LaneSelection, _: int | None) -> Any:
    table = selection.run.instances
    return ratio(jnp.sum(table.cpu_thrashing), jnp.sum(table.cpu_offloads))


def _preemption_rate(selection: LaneSelection, _: int | None) -> Any:
    table = selection.run.instances
    return ratio(jnp.sum(table.preemption_count), jnp.sum(table.completed_requests))


def _blocks(selection: LaneSelection) -> jax.Array:
    run = selection.run
    return jnp.where(run.is_active, run.instances.total_kv_blocks, 0)


def _peak_utilization(selection: LaneSelection, _: int | None) -> Any:
    return jnp.max(ratio(selection.run.instances.peak_kv_blocks_used, _blocks(selection)))


def _mean_utilization(selection: LaneSelection, _: int | None) -> Any:
    run = selection.run
    available = run.ended_us.astype(jnp.float64) * jnp.sum(_blocks(selection))
    return ratio(jnp.sum(run.instances.kv_blocks_used_integral), available)


def _phantom_hit_rate(selection: LaneSelection, _: int | None) -> Any:
    requests = selection.run.requests
    is_scheduled = requests.first_sched_delay_us >= 0
    predicted = jnp.where(is_scheduled, jnp.maximum(requests.expected_cached_tokens, 0), 0)
    actual = jnp.where(is_scheduled, jnp.maximum(requests.cached_tokens_first_sched, 0), 0)
    phantom = jnp.sum(jnp.maximum(predicted - actual, 0))
    return ratio(phantom, jnp.sum(predicted), jnp.nan)


def _instance_seconds(selection: LaneSelection, _: int | None) -> Any:
    return jnp.sum(selection.run.instances.paid_us).astype(jnp.float64) / 1e6


def _idle_share(selection: LaneSelection, code: int | None) -> Any:
    steps = selection.run.steps
    busy_s = jnp.sum(steps.num_steps * steps.duration_us).astype(jnp.float64) / 1e6
    return 1 - ratio(busy_s, _instance_seconds(selection, code), jnp.nan)


def _priority_inversions(selection: LaneSelection, _: int | None) -> Any:
    run = selection.run
    return priority_inversions(run.requests) if has_priorities(run.mechanism) else 0


def _hol_blocking_events(selection: LaneSelection, _: int | None) -> Any:
    run = selection.run
    means = ratio(run.instances.waiting_sum, run.instances.step_count)
    mean = jnp.sum(jnp.where(run.is_active, means, 0.0)) / jnp.sum(run.is_active)
    is_blocked = run.is_active & (means > 2.0 * mean)
    is_defined = (jnp.sum(run.is_active) >= 2) & (mean > 0)
    return jnp.where(is_defined, jnp.sum(is_blocked), 0)


def _register_all() -> None:
    for latency in LATENCIES:
        register_figure(f"{latency}_mean_ms", partial(_mean, latency))
        for place, percent in enumerate(PERCENTS):
            register_figure(f"{latency}_p{percent}_ms", partial(_percentile, latency, place))
    register_figure("itl_mean_ms", lambda selection, _: selection.itl_ms[1])
    for place, percent in enumerate(PERCENTS):
        register_figure(f"itl_p{percent}_ms", partial(_itl_percentile, place))
    for name in RATES:
        register_figure(name, partial(_rate, name))
    for name in COUNTED:
        register_figure(name, partial(_count, name))
    for name in ("transfer", "handed_wait"):
        register_figure(f"{name}_mean_ms", partial(_mean_time, f"{name}_us"))
    for name, compute in (
        ("attainment", _attainment),
        ("jain_fairness", jain_fairness),
        ("responses_per_sec", _responses_per_sec),
        ("tokens_per_sec", _tokens_per_sec),
        ("duration_s", lambda s, _: s.run.ended_us / 1e6),
        ("cache_hit_rate", _cache_hit_rate),
        ("preemption_rate", _preemption_rate),
        ("thrashing_rate", _thrashing_rate),
        ("kv_peak_utilization", _peak_utilization),
        ("kv_mean_utilization", _mean_utilization),
        ("phantom_hit_rate", _phantom_hit_rate),
        ("instance_seconds", _instance_seconds),
        ("idle_share", _idle_share),
        ("priority_inversions", _priority_inversions),
        ("hol_blocking_events", _hol_blocking_events),
    ):
        register_figure(name, compute)


_register_all()
