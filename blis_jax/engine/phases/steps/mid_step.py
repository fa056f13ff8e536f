"""An instance in mid-step, and small pieces that its phases share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.columns import Columns, Vector, as_int, is_apart, tail, with_tail
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import pytree
from blis_jax.engine.context import Context, SlotRows
from blis_jax.engine.state import Instance, InstTime, Lane
from blis_jax.memory.block_tables.blocks import InstanceMemory, MemoryTask

if TYPE_CHECKING:
    from blis_jax.engine.phases.router_view.late_news import LateWrite
    from blis_jax.engine.phases.router_view.router_index import RouterWrite
    from blis_jax.engine.tables.writes import MovementWrite


@pytree
class Work:
    """An instance in mid-step: what the phases of one scan step hand on."""

    lane: Lane
    inst: Instance
    task: MemoryTask  # absent without block-level memory, likewise the next
    pool: InstanceMemory
    local: Any = ()  # states of the instance's policies
    gateway: Any = ()  # states of the gateway's policies, where requests are handed over; likewise:
    movement: MovementWrite | None = None
    router: RouterWrite | LateWrite | None = None  # where the caches feed the router's index


def failing(outcome: jax.Array, predicate: jax.Array, code: Outcome) -> jax.Array:
    """The code where the predicate holds, else the outcome so far."""
    return jnp.where(predicate, jnp.int32(code), outcome)


def count_of(mask: jax.Array) -> jax.Array:
    """Number of true entries."""
    return jnp.sum(mask, dtype=jnp.int32)


def steps_at(inst: Instance, now: jax.Array) -> jax.Array:
    """Steps that the instance has made at `now`."""
    has_stepped = inst.step_index > 0
    is_now = has_stepped & (inst.last_start == now)
    return jnp.where(is_now, inst.steps_at_now, 0)


def has_entered(slots: SlotRows, now: jax.Array, steps_at_now: jax.Array) -> jax.Array:
    """Slots whose queueing time has come by the next step at `now`.

    Queueing and a step in one microsecond: queued first, unless the host found that some steps of
    that microsecond came before.
    """
    queued = slots.queued
    is_before = slots.after_steps <= steps_at_now
    return (queued < now) | ((queued == now) & is_before)


def waiting_mask(slots: SlotRows, now: jax.Array, steps_at_now: jax.Array) -> jax.Array:
    """Slots whose request is in the wait queue at the next step at `now`."""
    in_time = has_entered(slots, now, steps_at_now)
    return in_time & (slots.oversized == 0)


def waking_time(ctx: Context, queued: jax.Array, busy_until: jax.Array) -> jax.Array:
    """When a request queued then starts a step on an instance without members.

    In the reference at once, even while the step that emptied the batch still lasts.
    """
    if ctx.mechanism.defects.overlapping_steps:
        return queued
    return jnp.where(queued == ctx.never, queued, jnp.maximum(queued, busy_until))


def take_chain(
    chains: Vector, now: jax.Array, num_new: jax.Array, never: jax.Array
) -> tuple[Vector, jax.Array]:
    """Step events left when one at `now` is taken after `num_new` were added; and whether they fit."""
    if is_apart(chains):
        num_at_now = functools.reduce(jnp.add, (as_int(one == now) for one in chains.entries))
        rest: Vector = Columns(tuple(jnp.where(one == now, never, one) for one in chains.entries))
    else:
        at_now = chains == now
        num_at_now, rest = count_of(at_now), jnp.where(at_now, never, chains)
    return add_chain(rest, now, num_at_now + num_new - 1, never)


def add_chain(
    chains: Vector, time: jax.Array, count: jax.Array, never: jax.Array
) -> tuple[Vector, jax.Array]:
    """Step events with `count` more at `time`; and whether they fit."""
    if is_apart(chains):
        place, entries = jnp.int32(0), []
        for one in chains.entries:
            place = place + as_int(one == never)
            entries.append(jnp.where((one == never) & (place <= count), time, one))
        return Columns(tuple(entries)), count <= place
    is_free = chains == never
    place = jnp.cumsum(is_free, dtype=jnp.int32)
    takes = is_free & (place <= count)
    return jnp.where(takes, time, chains), count <= place[-1]


def chains_of(inst: Instance) -> Vector:
    """The instance's step events, `never` where there is none."""
    return tail(inst.times, InstTime.CHAIN)


def has_chain(chains: Vector, time: jax.Array) -> jax.Array:
    """Whether a step event is at this time."""
    if is_apart(chains):
        return functools.reduce(jnp.logical_or, (one == time for one in chains.entries))
    return jnp.any(chains == time)


def first_chain(chains: Vector) -> jax.Array:
    """The next step event."""
    if is_apart(chains):
        return functools.reduce(jnp.minimum, chains.entries)
    return jnp.min(chains)


def with_chains(inst: Instance, chains: Vector) -> Instance:
    """The instance with its step events replaced."""
    return Instance(inst.numbers, with_tail(inst.times, InstTime.CHAIN, chains))
