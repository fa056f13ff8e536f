"""The candidates of batch formation: who is visited next, and in which order requests wait.

Running prefills come first in batch order, then waiting requests in the scheduler's order. Decode members take one
token each and are counted, not visited, unless the memory model says that one is due, or the budget might not reach
all of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.types import LAST
from blis_jax.engine.context import Context, SlotRows, least_key, slot_of
from blis_jax.engine.phases.policy_calls import keeps_states, queue_context
from blis_jax.engine.phases.router_view.asked import asked_of_queue
from blis_jax.engine.phases.steps.mid_step import Work, waiting_mask
from blis_jax.engine.state import State, StepInProgress
from blis_jax.memory.block_tables.blocks import Asker
from blis_jax.memory.memory import Choice
from blis_jax.policies.seeds import RandomSource

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def has_candidate(ctx: Context, work: Work, instance: jax.Array) -> jax.Array:
    """Whether batch formation goes on: members to visit, or waiting requests with room and budget left."""
    lane, memory = work.lane, ctx.memory
    members = work.inst.num_prefill + work.inst.num_decode
    has_room = members < ctx.params.cluster.max_num_running_reqs[instance]
    has_queue = (lane.num_waiting > 0) & (lane.budget > 0) & memory.admits(work)
    is_left = (lane.num_to_visit > 0) | memory.is_redirected(work)
    return is_left | (has_queue & has_room)


def member_key(slots: SlotRows, step: StepInProgress, is_due: Bool[Array, "slot"]) -> jax.Array:
    """Packed key of the next member to visit: one in prefill, one that is due, or any of them."""
    order, finish = slots.order, slots.finish
    is_ahead = (order > step.cursor) & (order <= step.order_limit)
    is_visited = (finish == LAST) | (step.visit_all > 0) | is_due
    return least_key(is_ahead & is_visited, order)


def queue_priority(ctx: Context, slots: SlotRows, work: Work) -> jax.Array:
    """Priority of the request in every slot `[slot]` now."""
    return _ask_priority(ctx, slots, work, work.local[0][0])[0]


def _ask_priority(ctx: Context, slots: SlotRows, work: Work, state: Any) -> tuple[jax.Array, Any]:
    policy, numbers = ctx.mechanism.priority, ctx.params.policy.priority
    seen = asked_of_queue(ctx, slots, policy)
    context = queue_context(ctx, slots, work, RandomSource.PRIORITY, **seen)
    priority, after = policy.ask(numbers, state, context)
    return priority, after


def _ask_scheduler(
    ctx: Context, slots: SlotRows, work: Work, state: Any, priority: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    policy, numbers = ctx.mechanism.scheduler, ctx.params.policy.scheduler
    seen = {"priority": priority} | asked_of_queue(ctx, slots, policy)
    context = queue_context(ctx, slots, work, RandomSource.SCHEDULER, **seen)
    order, after = policy.ask(numbers, state, context)
    return order, after


def with_next_states(ctx: Context, slots: SlotRows, work: Work) -> Work:
    """A step has begun: if requests wait, the instance's policies move on to the state that the last such step left.

    What they remember of this step is kept beside it, for several questions are asked with one state.
    """
    if not keeps_states(ctx.mechanism.of_instance, work.local):
        return work
    is_asked = work.lane.queue_depth > 0
    (_, priority), (_, scheduler) = work.local
    ranks, next_priority = _ask_priority(ctx, slots, work, priority)
    _, next_scheduler = _ask_scheduler(ctx, slots, work, scheduler, ranks)
    moved = ((priority, next_priority), (scheduler, next_scheduler))
    local = jax.tree.map(lambda new, old: jnp.where(is_asked, new, old), moved, work.local)
    return dataclasses.replace(work, local=local)


def queue_key(ctx: Context, slots: SlotRows, work: Work, priority: jax.Array) -> jax.Array:
    """Packed key of the waiting request that the scheduler puts first."""
    now = work.lane.now
    (value, rank), _ = _ask_scheduler(ctx, slots, work, work.local[1][0], priority)
    is_waiting = waiting_mask(slots, now, work.inst.steps_at_now)
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    top = jnp.inf if is_float else jnp.iinfo(value.dtype).max
    least = jnp.min(jnp.where(is_waiting, value, jnp.asarray(top, value.dtype)))
    return least_key(is_waiting & (value == least), rank)


def next_candidate(ctx: Context, state: State, work: Work, instance: jax.Array) -> Choice:
    """Who is visited next: a member in batch order, whom memory sends, or the head of the wait queue."""
    slots, lane, memory = SlotRows(state, instance), work.lane, ctx.memory
    keeps_priority = memory.keeps_priority(ctx)
    is_member = lane.num_to_visit > 0

    def from_batch() -> tuple[jax.Array, Any]:
        due = memory.is_due(ctx, slots, work.inst.step_index)
        none = jnp.float64(0.0) if keeps_priority else None
        return slot_of(member_key(slots, lane, due)), none

    def from_queue() -> tuple[jax.Array, Any]:
        priority = queue_priority(ctx, slots, work)
        slot = _existing(ctx, slot_of(queue_key(ctx, slots, work, priority)))
        return slot, priority[slot].astype(jnp.float64) if keeps_priority else None

    slot, priority = ctx.when(is_member | memory.is_redirected(work), from_batch, from_queue)
    asker = jnp.where(is_member, jnp.int32(Asker.MEMBER), jnp.int32(Asker.QUEUE))
    choice = Choice(instance, _existing(ctx, slot), asker, priority)
    return memory.redirected(state, work, choice)


def _existing(ctx: Context, slot: jax.Array) -> jax.Array:
    """The slot, or some slot where a key stood for none."""
    return jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
