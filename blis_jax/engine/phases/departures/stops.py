"""Instances that stop: what they run leaves when the step in progress has ended, and they come back cold.

The members of the batch leave one after the other, in batch order, as if they completed without a token. Each is lost,
or routed again and computed from its start. A mechanism without a cluster policy has nothing of this in its program.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import Vector, as_int
from blis_jax.core.types import LAST
from blis_jax.engine.context import Context, SlotRows
from blis_jax.engine.phases.router_view.forgetting import cleared, forget
from blis_jax.engine.phases.steps.mid_step import Work
from blis_jax.engine.state import Inst, Instance, Lane, Mode, Past, State
from blis_jax.engine.tables.joined import chain_times
from blis_jax.engine.tables.journeys import Journey, Movement
from blis_jax.memory.memory import Subject

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

    from blis_jax.engine.tables.writes import Writes
    from blis_jax.policies.contract import ClusterChange


def _movement(state: State) -> Movement:
    assert state.movement is not None  # there is one where instances stop
    return state.movement


def stop_times(ctx: Context, state: State, change: ClusterChange, now: jax.Array) -> jax.Array:
    """When every instance loses what it runs, a spare row included: at the end of the step in progress, if it stops."""
    movement, rows = _movement(state), ctx.shape.num_instances
    if change.stops is None:
        return movement.stop_at
    inst = Instance(state.inst[:rows])
    next_step = jnp.min(chain_times(state, rows), axis=1)
    runs = (inst.num_prefill + inst.num_decode > 0) | (next_step < ctx.never)
    at = jnp.where(next_step < ctx.never, jnp.maximum(next_step, now), now)
    stops = jnp.append(change.stops & runs, jnp.array(False))
    return jnp.where(stops, jnp.append(at, ctx.never), movement.stop_at)


def returning(ctx: Context, state: State, is_up: Bool[Array, "instance"]) -> jax.Array:
    """Instances that come up empty, and so with nothing in their caches."""
    load = Instance(state.inst[: ctx.shape.num_instances]).load
    return is_up & (_movement(state).is_up == 0) & (load == 0)


def is_due(ctx: Context, state: State, instance: jax.Array, now: jax.Array) -> jax.Array:
    """Whether what the instance runs leaves now, before its next step."""
    return _movement(state).stop_at[instance] <= now


def begun(lane: Lane, instance: jax.Array, inst: Instance, now: jax.Array) -> Lane:
    """The lane in which the members of the instance leave: the end of a step that takes no time."""
    return lane.replace(
        active=instance,
        mode=jnp.int32(Mode.COMPLETING),
        num_to_complete=inst.num_prefill + inst.num_decode,
        now=now,
        duration=jnp.zeros((), now.dtype),
    )


def is_stopping(ctx: Context, state: State, work: Work, instance: jax.Array) -> jax.Array | None:
    """Whether the members that leave now do so because their instance stops; None where instances never do."""
    if ctx.mechanism.cluster is None:
        return None
    return is_due(ctx, state, instance, work.lane.now)


def leaves_early(ctx: Context, state: State) -> jax.Array | None:
    """Whether the member that leaves now gives up before its end; None where nobody does."""
    return None if state.exits is None else state.exits.leaving < ctx.shape.num_requests


def either(one: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
    """Whether one of the two holds; None if neither can."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def leavers(slots: SlotRows, index: jax.Array, stops: jax.Array | None) -> Bool[Array, "slot"]:
    """The members that leave when the step with this number has ended: those that are done, or all."""
    is_done = slots.finish == index
    return is_done if stops is None else jnp.where(stops, slots.order != LAST, is_done)


def without(
    inst: Instance, one: Subject, leaves: jax.Array, stops: jax.Array | None
) -> dict[str, jax.Array]:
    """The instance's counters once the member has left, which is in decode unless the instance stops."""
    counts = {"load": inst.load - leaves, "num_decode": inst.num_decode - leaves}
    if stops is None:
        return counts
    in_prefill = leaves * as_int(stops & ~one.in_decode)
    return counts | {
        "num_prefill": inst.num_prefill - in_prefill,
        "num_decode": counts["num_decode"] + in_prefill,
    }


def restarted(journey: Journey) -> Journey:
    """The journey of a request whose KV and tokens are gone."""
    return journey.replace(
        computed=jnp.int32(0),
        first_record=jnp.int32(-1),
        joined_record=jnp.int32(-1),
        restarts=journey.restarts + 1,
        transfer=jnp.zeros_like(journey.due),
    )


def forgotten(past: Past) -> Past:
    """What a request has been through, without the progress of an attempt that has ended."""
    names = ("progress", "lag", "token_record", "token_index", "step_progress", "finish_record")
    return past.replace(**dict.fromkeys(names, jnp.int32(0)))


def torn_off(
    ctx: Context, state: State, work: Work, one: Subject, past: Past, stops: jax.Array
) -> tuple[Work, Past]:
    """The journey and the row of a member that leaves an instance which stops; as they were, if it does not."""
    assert work.movement is not None  # there is one where instances stop
    movement = _movement(state)
    before = work.movement.journey if ctx.mechanism.hand_over is not None else None
    journey = movement.of(one.request) if before is None else before
    is_lost = stops & (movement.stop_loses[one.instance] == 1)
    made = one.step - 1 - one.past.token_index
    # the step in which it joined with its KV made a token, also if it was preempted since
    has_joined = journey.joined_record >= 0
    after = restarted(journey).replace(
        came_from=jnp.where(journey.came_from < 0, one.instance, journey.came_from),
        ended=journey.ended + 1,
        past_itl=journey.past_itl + jnp.where(one.in_decode, made, 0) + as_int(has_joined),
        is_lost=as_int(is_lost),
        due=jnp.where(is_lost, ctx.never, work.lane.now + movement.leave_delay[one.instance]),
    )
    kept = jax.tree.map(lambda new, old: jnp.where(stops, new, old), after, journey)
    row = jax.tree.map(lambda new, old: jnp.where(stops, new, old), forgotten(past), past)
    change = dataclasses.replace(
        work.movement,
        request=jnp.where(stops, one.request, work.movement.request),
        journey=kept,
    )
    return dataclasses.replace(work, movement=change), row


def without_steps(chains: Vector, stops: jax.Array | None, never: jax.Array) -> Vector:
    """The instance's step events, none if it stops."""
    if stops is None:
        return chains
    return jax.tree.map(lambda one: jnp.where(stops, never, one), chains)


def has_queue(slots: SlotRows, now: jax.Array) -> jax.Array:
    """Whether requests were queued before now."""
    return jnp.any((slots.queued < now) & (slots.oversized == 0))


def stopped(work: Work, instance: jax.Array, stops: jax.Array | None, never: jax.Array) -> Work:
    """Everybody has left an instance that stops: its next return is cold."""
    movement = work.movement
    if stops is None or movement is None:
        return work
    at = jnp.arange(movement.stop_at.shape[0], dtype=jnp.int32) == instance
    return dataclasses.replace(
        work,
        movement=dataclasses.replace(
            movement,
            stop_at=jnp.where(at & stops, never, movement.stop_at),
            cold=movement.cold | (at[:-1] & stops),
        ),
    )


def cooled(ctx: Context, state: State, cold: Bool[Array, "instance"]) -> State:
    """The state in which these instances, and the router's index of them, hold no content."""

    def change(state: State, is_on: jax.Array) -> State:
        """Their blocks free, if it is the turn."""
        is_it = cold & is_on
        used = state.inst[:-1, Inst.USED_BLOCKS]
        inst = state.inst.at[:-1, Inst.USED_BLOCKS].set(jnp.where(is_it, 0, used))
        router = state.router
        if router is not None:
            router = cleared(ctx, router, is_it)
        changed = dataclasses.replace(state, inst=inst, router=router)
        rows = jnp.append(is_it, jnp.array(False))
        return dataclasses.replace(changed, **ctx.memory.emptied(ctx, changed, rows))

    return ctx.in_place(jnp.any(cold), change, state)


def strange(ctx: Context, state: State, done: Writes) -> State:
    """The state in which a request finds nothing of its own where it has come back to."""
    assert done.movement is not None

    def change(state: State, is_on: jax.Array) -> State:
        instance = jnp.where(is_on, done.instance, jnp.int32(ctx.shape.num_instances))
        of_leaver, router = (done.routed, instance, done.slot.slot), state.router
        if router is not None:
            at = done.routed, jnp.where(is_on, done.instance, 0), is_on, done.lane.last_event
            router = forget(ctx, router, *at)
        changed = dataclasses.replace(state, router=router)
        return dataclasses.replace(changed, **ctx.memory.without_own(ctx, changed, *of_leaver))

    return ctx.in_place(done.movement.is_back, change, state)
