"""Figures of KV memory, per instance and of the cluster: use, hits, evictions, the CPU tier, phantom hits.

A phantom hit is a prompt token that the router assumed to be cached when it chose the instance, but that was not in the
cache when the request was first scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.arrays import in_order, namespace, ratio
from blis_jax.files.atomic_write import finite
from blis_jax.lazy import xarray as xr
from blis_jax.metrics.figures import latest_us
from blis_jax.metrics.metric import HIGHER, LOWER, F, of_run
from blis_jax.records.record import RunRecord
from blis_jax.records.step_records import expand_steps, order_of_execution

if TYPE_CHECKING:
    from jaxtyping import Float, Int

NO_TIER, INERT, ACTIVE = "none", "inert", "active"
CPU_TIERS = (NO_TIER, INERT, ACTIVE)


# What each counts, in blocks, tokens or events but for `reload_us`; NaN where it cannot be told, see `instance_figures`
# and `cluster_figures`.
FIGURES = {
    "cache_hit_rate": "hits ÷ (hits + misses) of KV blocks, the CPU tier included; blocks of outputs are misses, so "
    "vLLM's rate over prompt tokens is higher, and BLIS counts no hit of a prompt that is cached whole",
    "preemption_rate": "preemptions per completed request",
    "thrashing_rate": "reloads within 1 ms of their offload ÷ offloads; blis-2026-08: evicted ÷ copied, "
    "of off-load tiers refused ÷ fetched",
    "peak_used_blocks": "most KV blocks used in a step",
    "kv_peak_utilization": "most KV blocks used in a step ÷ all KV blocks",
    "kv_mean_utilization": "used ÷ all KV blocks, averaged over the run's duration",
    "orphaned_blocks": "KV blocks in use at the end though no request is left",
    "preemption_count": "evictions from the running batch",
    "kv_allocation_failures": "completions without a KV block for their last token",
    "cpu_offloads": "KV blocks copied to the CPU tier",
    "cpu_reloads": "KV blocks brought back from the CPU tier",
    "cpu_misses": "failed allocations for which the CPU tier had nothing",
    "cpu_thrashing": "reloads within 1 ms of their offload; blis-2026-08: blocks evicted there",
    "reload_us": "time that steps waited for reloads",
    "predicted_cached_tokens": "prompt tokens that the router took for cached",
    "actual_cached_tokens": "prompt tokens found in the cache at first scheduling",
    "phantom_hit_tokens": "predicted cached tokens that were not found",
    "unexpected_hit_tokens": "cached tokens found that were not predicted",
    "phantom_hit_rate": "predicted cached tokens not found ÷ predicted ones",
}
_COUNTERS = (
    "preemption_count",
    "kv_allocation_failures",
    "cpu_offloads",
    "cpu_reloads",
    "cpu_misses",
    "cpu_thrashing",
    "reload_us",
)


RATIOS_OF_SUMS = "2026-11-28T04:32:54+00:00"  # before, two rates were means over instances


def _metric(name: str, direction: str, redefined: str = "") -> Callable[[F], F]:
    return of_run("1", direction, name=name, estimand=FIGURES[name], redefined=redefined)


class CachedTokens(NamedTuple):
    """Counts of prompt tokens for each request; 0 for a request that was never scheduled."""

    predicted: Int[np.ndarray, "request"]  # by the router's prefix index; 0 without one
    actual: Int[np.ndarray, "request"]  # found when it was scheduled first
    phantom: Int[np.ndarray, "request"]  # max(predicted - actual, 0)
    unexpected: Int[np.ndarray, "request"]  # max(actual - predicted, 0)


def cached_tokens(record: RunRecord) -> CachedTokens:
    """Return, for each request, the cached tokens that the router predicted and those found at first scheduling."""
    requests = record.requests
    xp, is_scheduled = namespace(requests.status), requests.first_sched_delay_us >= 0
    predicted = xp.where(is_scheduled, xp.maximum(requests.expected_cached_tokens, 0), 0)
    actual = xp.where(is_scheduled, xp.maximum(requests.cached_tokens_first_sched, 0), 0)
    return CachedTokens(
        predicted, actual, xp.maximum(predicted - actual, 0), xp.maximum(actual - predicted, 0)
    )


def cache_hit_rates(record: RunRecord) -> Float[np.ndarray, "instance"]:
    """Return hits ÷ (hits + misses) of every instance, as in BLIS; 0 where nothing was looked up.

    Hits are the blocks found in the cache and those reloaded from the CPU tier; misses the blocks newly taken
    and the failed allocations for which that tier had nothing. In August 2026 blocks are reloaded before they are
    found, so they count as found alone.
    """
    return ratio(*_hits(record))


def _hits(record: RunRecord) -> tuple[Int[np.ndarray, "instance"], Int[np.ndarray, "instance"]]:
    """Return the hits, and the hits plus misses, of every instance."""
    table = record.instances
    hits = table.gpu_hits + (0 if record.is_august else table.cpu_reloads)
    return hits, hits + (table.gpu_misses + table.cpu_misses)


@_metric("cache_hit_rate", HIGHER, RATIOS_OF_SUMS)
def cache_hit_rate(record: RunRecord) -> float:
    """Return hits ÷ (hits + misses) of all instances together; 0 where nothing was looked up."""
    return ratio(*(values.sum() for values in _hits(record)))


def printed_hit_rate(record: RunRecord) -> float:
    """Return the hit rate that BLIS prints: the unweighted mean of the instances' rates."""
    return _mean(cache_hit_rates(record))


def thrashing_rates(record: RunRecord) -> Float[np.ndarray, "instance"]:
    """Return reloads within 1,000 µs of their offload ÷ offloads of every instance; 0 without offloads.

    In August 2026: blocks evicted from the CPU ÷ blocks copied to it; with off-load tiers, requests to storage that
    failed since the CPU had no room ÷ all requests to storage.
    """
    return ratio(*_thrashing(record))


def _thrashing(
    record: RunRecord,
) -> tuple[Int[np.ndarray, "instance"], Int[np.ndarray, "instance"]]:
    """Return numerator and denominator of every instance's thrashing rate."""
    if record.offload is None:
        return record.instances.cpu_thrashing, record.instances.cpu_offloads
    refusals = record.offload.num_refusals
    return refusals, refusals + record.offload.num_fetches


@_metric("thrashing_rate", LOWER, RATIOS_OF_SUMS)
def thrashing_rate(record: RunRecord) -> float:
    """Return the same of all instances together."""
    return ratio(*(values.sum() for values in _thrashing(record)))


def printed_thrashing_rate(record: RunRecord) -> float:
    """Return the thrashing rate that BLIS prints: the unweighted mean of the instances' rates."""
    return _mean(thrashing_rates(record))


@_metric("preemption_rate", LOWER)
def preemption_rate(record: RunRecord) -> float:
    """Return preemptions per completed request; 0 if nothing completed."""
    table = record.instances
    return ratio(table.preemption_count.sum(), table.completed_requests.sum())


@_metric("kv_peak_utilization", LOWER)
def peak_utilization(record: RunRecord) -> float:
    """Return the fullest that an instance's memory was in any step."""
    return _peaks(record).max(initial=0.0)


@_metric("kv_mean_utilization", LOWER)
def mean_utilization(record: RunRecord) -> float:
    """Return used ÷ all KV blocks of the cluster, weighted by time; 0 if no time passed."""
    table = record.instances
    all_blocks = table.total_kv_blocks.sum().astype(np.float64)
    return ratio(table.kv_blocks_used_integral.sum(), latest_us(record) * all_blocks)


@_metric("phantom_hit_rate", LOWER)
def phantom_hit_rate(record: RunRecord) -> float:
    """Return predicted cached tokens that were not found ÷ predicted ones; NaN if none was predicted."""
    tokens = cached_tokens(record)
    return ratio(tokens.phantom.sum(), tokens.predicted.sum(), math.nan)


def instance_figures(record: RunRecord) -> dict[str, Float[np.ndarray, "instance"]]:
    """Return each of `FIGURES` for every instance.

    The mean utilisation is over the whole run's duration, so that instances compare; it counts 0 between steps, and
    time in overlapping steps twice. Orphaned blocks are NaN if a request may still hold blocks at the end.
    """
    table = record.instances
    num_instances = len(table.step_count)
    available = latest_us(record) * table.total_kv_blocks.astype(np.float64)
    is_empty = (table.still_running == 0) & (table.still_queued == 0)
    tokens = {
        name: np.bincount(np.maximum(record.requests.instance, 0), values, minlength=num_instances)[
            :num_instances
        ]
        for name, values in cached_tokens(record)._asdict().items()
    }
    predicted = tokens["predicted"]
    figures = {
        "cache_hit_rate": cache_hit_rates(record),
        "preemption_rate": ratio(table.preemption_count, table.completed_requests),
        "thrashing_rate": thrashing_rates(record),
        "peak_used_blocks": table.peak_kv_blocks_used,
        "kv_peak_utilization": _peaks(record),
        "kv_mean_utilization": ratio(table.kv_blocks_used_integral, available),
        "orphaned_blocks": np.where(is_empty, table.used_blocks_at_end, np.nan),
        **{name: getattr(table, name) for name in _COUNTERS},
        "predicted_cached_tokens": predicted,
        "actual_cached_tokens": tokens["actual"],
        "phantom_hit_tokens": tokens["phantom"],
        "unexpected_hit_tokens": tokens["unexpected"],
        "phantom_hit_rate": ratio(tokens["phantom"], predicted, np.nan),
    }
    return {name: figures[name].astype(np.float64) for name in FIGURES}


def cluster_figures(record: RunRecord) -> dict[str, float]:
    """Return each of `FIGURES` for the cluster.

    Peaks are those of the fullest instance, rates are ratios of sums, and the rest are sums.
    """
    table = instance_figures(record)
    figures = {name: float(values.sum()) for name, values in table.items()}
    return figures | {
        "cache_hit_rate": cache_hit_rate(record),
        "preemption_rate": preemption_rate(record),
        "thrashing_rate": thrashing_rate(record),
        "peak_used_blocks": float(table["peak_used_blocks"].max(initial=0.0)),
        "kv_peak_utilization": peak_utilization(record),
        "kv_mean_utilization": mean_utilization(record),
        "phantom_hit_rate": phantom_hit_rate(record),
    }


def cpu_tier(record: RunRecord, has_cpu_tier: bool) -> str:
    """Return whether a CPU tier was configured, and was used: one of `CPU_TIERS`.

    An inert tier is configured, but nothing was ever offloaded to it or reloaded.
    """
    table = record.instances
    if (table.cpu_offloads > 0).any() or (table.cpu_reloads > 0).any():
        return ACTIVE
    return INERT if has_cpu_tier else NO_TIER


INERT_SENTENCE = "the CPU tier was inert: nothing was offloaded to it or reloaded from it"


MOST_UNUSED = 0.1  # of the hit rate beyond the share of prompt tokens that are not computed


def hits_without_use(record: RunRecord) -> str:
    """Return a sentence if the hit rate is far above the share of prompt tokens not computed; else an empty text.

    In August's revision blocks of a prompt are reloaded from the CPU after its step has been planned: they count as
    hits and replace other blocks, but the prompt is computed all the same.
    """
    requests, figures = record.requests, cluster_figures(record)
    prompts = int(requests.input_len[requests.num_scheduled > 0].sum())
    spared = figures["actual_cached_tokens"] / max(prompts, 1)
    if not figures["cache_hit_rate"] > spared + MOST_UNUSED:
        return ""
    return (
        f"the hit rate of {figures['cache_hit_rate']:.0%} counts blocks that came back from the CPU for prompts that "
        f"are computed all the same: {spared:.0%} of the prompt tokens were not computed"
    )


def kv_document(record: RunRecord, has_cpu_tier: bool) -> dict[str, Any]:
    """Return all figures for a JSON file; null for an unknown one."""
    table = instance_figures(record)
    rows = range(len(record.instances.step_count))
    return {
        "kv_model": record.kv_model,
        "cpu_tier": cpu_tier(record, has_cpu_tier),
        "cluster": _plain(cluster_figures(record)),
        "instances": [
            _plain({name: float(values[row]) for name, values in table.items()}) for row in rows
        ],
    }


def _plain(figures: dict[str, float]) -> dict[str, float | None]:
    return {name: finite(value) for name, value in figures.items()}


def timelines(record: RunRecord, block_size: int) -> xr.Dataset:
    """Return memory and queue in every step, as a Dataset `[step]`, by instance, then in order of execution.

    `preemptions` counts the requests that the step evicted; `block_size` is in tokens.
    """
    steps = expand_steps(record, block_size)
    total = record.instances.total_kv_blocks[steps.step_instance].astype(np.float64)
    evicted = np.bincount(_first_steps(record)[record.preemptions.step_record])
    columns = {
        "instance": (steps.step_instance, "1", "index of the instance"),
        "start_us": (steps.step_start_us, "us", "start of the step"),
        "duration_us": (steps.step_duration_us, "us", "duration of the step"),
        "used_blocks": (steps.step_used_blocks, "1", "KV blocks in use during the step"),
        "kv_utilization": (ratio(steps.step_used_blocks, total), "1", "used ÷ all KV blocks"),
        "running": (steps.step_running, "1", "requests in the running batch"),
        "waiting": (steps.step_waiting, "1", "requests in the wait queue"),
        "preemptions": (
            np.pad(evicted, (0, len(total) - len(evicted))),
            "1",
            "requests that the step evicted",
        ),
    }
    variables = {
        name: ("step", values, {"units": unit, "long_name": long_name})
        for name, (values, unit, long_name) in columns.items()
    }
    attributes = {"kv_model": record.kv_model, "block_size": block_size}
    return xr.Dataset(variables, attrs=attributes).set_coords(["instance", "start_us"])


def _first_steps(record: RunRecord) -> Int[np.ndarray, "record"]:
    """Return the index in `expand_steps` of each record's first step."""
    order = order_of_execution(record)
    num_steps = record.steps.num_steps[order]
    first = np.empty(len(order), np.int64)
    first[order] = np.cumsum(num_steps) - num_steps
    return first


def _peaks(record: RunRecord) -> Float[np.ndarray, "instance"]:
    return ratio(record.instances.peak_kv_blocks_used, record.instances.total_kv_blocks)


def _mean(values: np.ndarray) -> float:
    return ratio(in_order(values), len(values))
