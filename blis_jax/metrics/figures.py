"""Figures of a run: rates, what the instances cost, blocking, inversions, fairness.

A record is a `RunRecord`, or a lane of a compiled call with the same tables in JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.arrays import (
    choose,
    in_order,
    namespace,
    ratio,
    running_maxima,
    stable_order,
)
from blis_jax.core.types import SLO_CLASSES
from blis_jax.lazy import jnp, lax
from blis_jax.metrics.distributions import counted, rows_of, served_parts
from blis_jax.metrics.metric import HIGHER, LOWER, Number, of_run
from blis_jax.records.record import RunRecord, Status

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from blis_jax.core.arrays import Values

_NOWHERE = 2**31  # the group of what is on no instance


class Rates(NamedTuple):
    """Completed requests, and tokens of decode steps, per second up to the last event."""

    responses_per_sec: float
    tokens_per_sec: float


def latest_us(record: RunRecord, instance: int | None = None) -> Values:
    """Return the time of the last event, µs, on one instance or on any."""
    return record.instances.sim_ended_time_us[rows_of(instance)].max(initial=0)


def ended_us(record: RunRecord, instance: int | None = None) -> float:
    """Return `latest_us` as a Python number, which is whole except on the continuous clock."""
    ended: float = latest_us(record, instance).item()
    return ended


def rates(record: RunRecord, instance: int | None = None) -> Rates:
    """Return BLIS's two rates, of one instance or of all; 0 if nothing completed."""
    completed = counted(record, "completed_requests", instance)
    tokens = counted(record, "total_output_tokens", instance)
    seconds = latest_us(record, instance) / 1e6
    return Rates(*(ratio(count * (completed > 0), seconds) for count in (completed, tokens)))


@of_run("1/s", HIGHER)
def responses_per_sec(record: RunRecord) -> float:
    """Return completed requests ÷ time up to the last event; BLIS's figure."""
    return rates(record).responses_per_sec


@of_run("1/s", HIGHER, "decode tokens/s")
def tokens_per_sec(record: RunRecord) -> float:
    """Return tokens of decode steps ÷ time up to the last event; BLIS's figure."""
    return rates(record).tokens_per_sec


@of_run("s", LOWER)
def duration_s(record: RunRecord) -> Number:
    """Return the time of the last event."""
    return latest_us(record) / 1e6


@of_run("s", LOWER)
def instance_seconds(record: RunRecord) -> Number:
    """Return the time for which instances are paid, from the order to the end of the last step.

    Without a cluster policy all of them are paid for the whole run.
    """
    return record.instances.paid_us.sum() / 1e6


@of_run("1", LOWER)
def idle_share(record: RunRecord) -> Number:
    """Return 1 - time in steps ÷ paid time; time in overlapping steps counts twice. NaN if nothing is paid."""
    steps = record.steps
    busy_us = (steps.num_steps * steps.duration_us).sum()
    return 1 - ratio(busy_us, record.instances.paid_us.sum(), np.nan)


@of_run("1", LOWER, "scale-downs")
def num_scale_downs(record: RunRecord) -> Number:
    """Count how often the cluster policy let go an instance that was up; an autoscaler that flaps has many."""
    return record.instances.scale_downs.sum()


@of_run("1", LOWER)
def hol_blocking_events(record: RunRecord) -> Number:
    """Count instances whose mean wait queue is more than twice the mean over instances."""
    means = ratio(record.instances.waiting_sum, record.instances.step_count)
    mean = ratio(in_order(means), record.num_instances)
    return (means > 2.0 * mean).sum() * ((record.num_instances >= 2) & (mean > 0))


@of_run("1", LOWER)
def priority_inversions(record: RunRecord) -> Number:
    """Count pairs of one class on one instance whose earlier arrival has more than twice the E2E.

    0 where nothing goes by priority, as in the reference: under the constant priority, and in August under any
    scheduler but priority-fcfs. Requests that pools have split count by their parts. Arrivals of one microsecond count
    in order of their index; the reference leaves their order open.
    """
    if not record.has_priorities:
        return 0
    e2e, instance, slo_class = served_parts(record)
    xp = namespace(e2e)
    is_served = (e2e >= 0) & (instance >= 0)
    group = instance.astype(np.int64) * len(SLO_CLASSES) + slo_class
    group = xp.where(is_served, group, _NOWHERE)
    order = stable_order(group)
    e2e = e2e[order].astype(np.int64)
    return count_pairs_above(e2e, 2 * e2e, group[order])


def count_pairs_above(
    earlier: Int[np.ndarray, "member"],
    later: Int[np.ndarray, "member"],
    group: Int[np.ndarray, "member"],
) -> int:
    """Count pairs i < j in one group with earlier[i] > later[j]; the members of a group must be adjacent.

    In numpy all groups are counted at once as in a merge sort: every pair is split by exactly one pair of sibling
    blocks of 1, 2, 4, … members, where a binary search counts it.
    """
    if namespace(group) is not np:
        return _count_by_distance(earlier, later, group)
    size = int(np.searchsorted(group, _NOWHERE))
    if size < 2:
        return 0
    group = group[:size]
    starts = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    lengths = np.diff(starts, append=size)
    position = np.arange(size) - np.repeat(starts, lengths)
    group_number = np.repeat(np.arange(len(starts)), lengths)
    both = np.concatenate([earlier[:size], later[:size]])
    ranks = np.unique(both, return_inverse=True)[1].astype(np.int64)
    rank_earlier, rank_later = ranks[:size], ranks[size:]
    num_ranks = int(ranks.max()) + 1
    count = 0
    for level in range(int(lengths.max() - 1).bit_length()):
        half = position >> level
        is_left = half & 1 == 0
        family = (group_number * size + (half >> 1)) * num_ranks
        left = np.sort((family + rank_earlier)[is_left])
        later_family = family[~is_left]
        above = np.searchsorted(left, later_family + rank_later[~is_left], side="right")
        count += int((np.searchsorted(left, later_family + num_ranks) - above).sum())
    return count


def _count_by_distance(earlier: Values, later: Values, group: Values) -> Any:
    """Count the pairs in a compiled call: compare each member with the one d places later, for every d."""
    size = len(group)
    later_group = jnp.concatenate([group, jnp.full(size, -1, group.dtype)])
    later = jnp.concatenate([later, jnp.zeros(size, later.dtype)])

    def of_distance(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        distance, count, _ = carry
        is_pair = lax.dynamic_slice(later_group, (distance,), (size,)) == group
        is_pair &= group < _NOWHERE
        is_above = earlier > lax.dynamic_slice(later, (distance,), (size,))
        return distance + 1, count + jnp.sum(is_pair & is_above), jnp.any(is_pair)

    start = jnp.int64(1), jnp.int64(0), jnp.asarray(True)
    return lax.while_loop(lambda carry: carry[2], of_distance, start)[1]


def jain_fairness(
    record: RunRecord, is_measured: Bool[np.ndarray, "request"] | bool = True
) -> float:
    """Return Jain's index of the tenants' completed output tokens; 1 is even, 1/n all to one of n tenants.

    Jain's index does not depend on scale, so this is also the index of the throughputs. Every tenant that sent a
    request counts; 0 without tenants, as in BLIS.
    """
    requests = record.requests
    xp = namespace(requests.status)
    # the tenants lie together, so that any number of them will do; -1 is one, too
    tenant = xp.where(is_measured, requests.tenant + 2, 0)
    order = stable_order(tenant)
    is_completed = is_measured & (requests.status == int(Status.COMPLETED))
    tokens = xp.cumsum(xp.where(is_completed, requests.output_len, 0)[order])
    tenant = tenant[order]
    is_last = (tenant != xp.append(tenant[1:], -1)) & (tenant > 0)
    up_to = running_maxima(xp.where(is_last, tokens, 0))
    tokens_of_tenant = xp.where(
        is_last, tokens - xp.append(xp.zeros(1, up_to.dtype), up_to[:-1]), 0
    )
    return jain_index(tokens_of_tenant, is_last)


def jain_index(
    values: Values | list[float], is_there: Values | bool = True, of_nobody: float = 0.0
) -> Number:
    """Return Jain's index of the values marked in `is_there`; 1 if all are 0, `of_nobody` if none is marked."""
    array = np.asarray(values, np.float64) if isinstance(values, list) else values
    xp = namespace(array)
    counts = xp.ones(len(array), bool) & is_there
    array = xp.where(counts, array, 0).astype(np.float64)
    index = ratio(xp.square(array.sum()), counts.sum() * xp.square(array).sum(), 1.0)
    return choose(counts.any(), index, of_nobody)


def worst_p99_ms(
    record: RunRecord,
    times_us: Int[np.ndarray, "request"],
    is_chosen: Bool[np.ndarray, "request"] | bool = True,
) -> float:
    """Return the largest of the P99s of the instances and of the cluster, ms; NaN if there is no time.

    The metric is that of the routing track, over the blocks that BLIS prints: an instance on which nothing completed
    has no P99. Times are in µs; negative ones are missing.
    """
    xp, completed = namespace(times_us), record.instances.completed_requests
    is_timed = is_chosen & (times_us >= 0)
    instances = xp.arange(len(completed), dtype=record.requests.instance.dtype)
    is_there = record.requests.instance[None, :] == instances[:, None]
    is_there = is_there & (completed > 0)[:, None]
    groups = xp.concatenate([is_timed[None, :], is_there & is_timed[None, :]])
    return _largest(p99s_ms(times_us, groups))


def p99s_ms(
    times_us: Int[np.ndarray, "request"], groups: Bool[np.ndarray, "group request"]
) -> Float[np.ndarray, "group"]:
    """Return the P99, ms, of times in µs in each group of requests; NaN for an empty group."""
    xp = namespace(times_us)
    is_empty = ~groups.any(axis=1)
    beyond = xp.where(is_empty, 0.0, np.inf)[:, None]
    ranked = xp.sort(xp.where(groups, times_us[None, :].astype(np.float64), beyond), axis=1)
    last = xp.maximum(groups.sum(axis=1) - 1, 0)
    rank = 0.99 * last
    below = xp.floor(rank).astype(np.int64)
    places = xp.stack([below, xp.minimum(below + 1, last)], axis=1)
    low, high = xp.take_along_axis(ranked, places, axis=1).T
    gap, part = high - low, rank - below
    p99 = xp.where(part >= 0.5, high - gap * (1 - part), low + gap * part)  # as numpy has it
    return xp.where(is_empty, np.nan, p99 / 1000)


def adapter_p99_ms(
    record: RunRecord, is_chosen: Bool[np.ndarray, "request"]
) -> tuple[float, float]:
    """Return the largest TTFT P99 of a LoRA adapter's requests, and the mean over adapters, in ms; NaN for none."""
    requests = record.requests
    if record.adapters is None or requests.adapter is None:
        return np.nan, np.nan
    xp = namespace(requests.adapter)
    places = xp.arange(record.adapters.num_loads.shape[1])
    is_timed = is_chosen & (requests.ttft_us >= 0)
    groups = (requests.adapter[None, :] == places[:, None]) & is_timed[None, :]
    each = p99s_ms(requests.ttft_us, groups)
    mean = ratio(xp.nan_to_num(each).sum(), (~xp.isnan(each)).sum(), np.nan)
    return _largest(each), mean


def _largest(values_ms: Float[np.ndarray, "group"]) -> Number:
    xp = namespace(values_ms)
    largest = xp.where(xp.isnan(values_ms), -np.inf, values_ms).max()
    return choose(xp.isfinite(largest), largest, np.nan)


def draft_figures(record: RunRecord) -> dict[str, Number]:
    """Return counts of drafted tokens and rates of acceptance, under vLLM's names; empty if nothing is drafted."""
    if record.drafts is None:
        return {}
    totals = {name: values.sum() for name, values in vars(record.drafts).items()}
    drafts, tokens, accepted = totals.values()
    return totals | {
        "draft_acceptance_rate": ratio(accepted, tokens, np.nan),
        "mean_acceptance_length": 1 + ratio(accepted, drafts, np.nan),
    }
