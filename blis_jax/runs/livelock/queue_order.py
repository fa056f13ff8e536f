"""Whether waiting requests keep their order as they grow older, over rounds of barren steps that are not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.types import NO_REQUEST, Mechanism, Params, RequestView
from blis_jax.engine.queue_values import asked
from blis_jax.engine.state import InstTime, Log, LogTime, Slot, SlotTime, State
from blis_jax.policies.contract import QueueContext
from blis_jax.policies.queue_order.priority import constant
from blis_jax.policies.queue_order.schedulers import fcfs, priority_fcfs, reverse_priority, sjf

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.runs.livelock.cycles import Round
    from blis_jax.runs.livelock.skipped import SkippedLog

_BY_PRIORITY = (priority_fcfs, reverse_priority, sjf)
_ENTRIES = 1 << 20  # of steps by requests, ordered in one call


def rounds_in_order(
    params: Params,
    mechanism: Mechanism,
    host: State,
    found: Round,
    log: SkippedLog,
    rows: Int[np.ndarray, "record"],
    count: int,
) -> int:
    """How many of `count` further rounds order the instance's requests as the one made last did.

    Every step of every round is looked at, as the scheduler would.
    """
    slots = _residents(host, found.instance)
    is_timeless = mechanism.priority == constant and mechanism.scheduler in _BY_PRIORITY
    if mechanism.scheduler == fcfs or is_timeless or len(slots) < 2:
        return count
    if mechanism.looks_beyond_queue or not _looks_at_times_alone(mechanism, host):
        return 0
    records, times, evictions = log.tables()
    evicted = np.bincount(evictions[:, 1], minlength=len(records))[rows]
    depth = records[rows, Log.WAITING] + records[rows, Log.NUM_SCHEDULED] - evicted
    has_queue = depth > 0
    start, depth = times[rows[has_queue], LogTime.START], depth[has_queue]
    if not len(start):
        return count
    order = _ordering(params, mechanism, host, found, slots)
    expected = order(start, depth, np.zeros_like(depth))
    size = max(_ENTRIES // (len(start) * len(slots)), 1)
    for first in range(1, count + 1, size):
        turn = np.repeat(np.arange(first, first + size), len(start))
        at, waiting = np.tile(start, size) + turn * found.period_us, np.tile(depth, size)
        ordered = order(at, waiting, turn).reshape(size, *expected.shape)
        is_kept = (ordered == expected).all(axis=(1, 2))
        if not is_kept.all():
            return min(first + int(np.argmin(is_kept)) - 1, count)
    return count


def _looks_at_times_alone(mechanism: Mechanism, host: State) -> bool:
    """Whether the instances' policies neither remember nor draw, so that an order follows from the queue."""
    is_random = any(policy.is_random for policy in mechanism.of_instance)
    return not is_random and not jax.tree.leaves(host.local)


def _residents(host: State, instance: int) -> Int[np.ndarray, "request"]:
    """Slots of requests that wait or run."""
    queued = np.asarray(host.slot_time[SlotTime.QUEUED, instance])
    start = host.inst_time[instance, InstTime.LAST_START]
    is_member = host.slot[Slot.ORDER, instance] != np.iinfo(np.int32).max
    is_there = host.slot[Slot.REQUEST, instance] != NO_REQUEST
    return np.flatnonzero(is_there & (is_member | (queued <= start)))


def _ordering(
    params: Params, mechanism: Mechanism, host: State, found: Round, slots: np.ndarray
) -> Any:
    """`(time[n], queue depth[n], round[n]) -> order[n, request]`."""
    columns = host.slot[:, found.instance, slots]
    times = host.slot_time[:, found.instance, slots]
    clock = times.dtype
    view = RequestView(
        slo_class=jnp.asarray(columns[Slot.SLO_CLASS]),
        input_len=jnp.asarray(columns[Slot.INPUT_LEN]),
        arrival_us=jnp.asarray(times[SlotTime.ARRIVAL]),
        tenant=jnp.asarray(columns[Slot.TENANT]),
        tie_rank=jnp.asarray(columns[Slot.TIE_RANK]),
        queue_rank=jnp.asarray(columns[Slot.QUEUE_RANK]),
    )
    queued = jnp.asarray(times[SlotTime.QUEUED])
    moves = jnp.asarray(np.where(times[SlotTime.QUEUED] < 0, -found.num_evictions, 0).astype(clock))

    def one(now: jax.Array, depth: jax.Array, turn: jax.Array) -> jax.Array:
        """The order in one step."""
        at = queued + turn.astype(clock) * moves
        context = QueueContext(
            request=view,
            is_waiting=jnp.ones(len(slots), bool),
            queued_us=at,
            num_expected_blocks=jnp.asarray(columns[Slot.EXPECTED_BLOCKS]),
            queue_depth=depth,
            now_us=now,
            instance=jnp.int32(found.instance),
            key=None,
        )
        value, rank = asked(mechanism, params, context)
        return jnp.lexsort((rank, value))

    many = jax.jit(jax.vmap(one))

    def order(at: np.ndarray, depth: np.ndarray, turn: np.ndarray) -> np.ndarray:
        return np.asarray(many(at.astype(clock), depth.astype(np.int32), turn.astype(np.int32)))

    return order
