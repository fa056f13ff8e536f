"""What instances do: their steps, and blocks that are stored or freed between these."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import choose
from blis_jax.engine.calendar import Due, EventSource, InstanceSource, NextEvent, Outlook
from blis_jax.engine.phases.departures.giving_up import (
    after_leaving,
    by_standing,
    closed_early,
    idle,
    is_orphan,
    leaves_early,
)
from blis_jax.engine.phases.departures.reservation import released, store
from blis_jax.engine.phases.steps.one_phase import advance
from blis_jax.engine.writing import no_writes
from blis_jax.memory.memory import Left, Subject
from blis_jax.memory.models import move_blocks
from blis_jax.tables.context import Context, SlotRows, Work
from blis_jax.tables.gateways import LatestTick
from blis_jax.tables.joined import event_times, lane_of
from blis_jax.tables.journeys import Exits, Reservations, Transfers, no_exits
from blis_jax.tables.requests import RequestDeadlines
from blis_jax.tables.state import Instance, Mode, Past, State
from blis_jax.tables.writes import SlotWrite, Writes

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Shaped


class StepSource(InstanceSource):
    """The steps of instances, phase by phase."""

    def __init__(self, others: Sequence[EventSource]) -> None:
        """Take the other sources, which may disturb an instance."""
        self.others = others

    def times(self, look: Outlook) -> tuple[Shaped[Array, "instance"], ...]:
        """Return when each instance acts next."""
        return (event_times(look.state, look.ctx.shape.num_instances),)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return true: what no other source takes is a phase of a step."""
        return jnp.array(True)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return what the instance's next phase changes."""
        nothing = no_writes(ctx, state, due.instance)
        until = self._undisturbed_until(ctx, state, due)
        gateway = nothing.gateway if any(hook.carries_gateway for hook in self.others) else ()
        carried = nothing.own.only(*(kind for hook in self.others for kind in hook.carries))
        begun = dataclasses.replace(nothing.work, gateway=gateway, own=carried)
        work, slot, record, news = advance(ctx, state, begun, due.instance, until, self.others)
        further = (hook.rows(ctx, state, work, due.instance, nothing.inst) for hook in self.others)
        return dataclasses.replace(
            nothing.having(*news, *(part for parts in further for part in parts)),
            lane=work.lane,
            instance=due.instance,
            inst=work.inst,
            task=work.task,
            pool=work.pool,
            slot=slot,
            record=record,
            local=work.local,
            gateway=work.gateway or nothing.gateway,
        )

    def _undisturbed_until(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Before this time nothing from outside reaches the instance: its equal steps may be made at once."""
        until = due.cluster
        for source in self.others:
            for time in source.until(ctx, state, due):
                until = jnp.minimum(until, time)
        return until


class HandOvers(EventSource):
    """Requests that go on elsewhere when a step ends: another instance's next step may hand one over to this one."""

    carries_gateway = True

    def until(self, ctx: Context, state: State, due: Due) -> tuple[jax.Array, ...]:
        """Return when another instance acts next."""
        number = lax.iota(jnp.int32, due.events.shape[0])
        return (jnp.min(jnp.where(number == due.instance, ctx.never, due.events)),)


class EarlyExits(EventSource):
    """Members that leave the batch before their end: evicted for a request at the gateway, or their time is up."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return that nobody has left."""
        return (no_exits(ctx.shape),)

    def before_step(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> tuple[Work, jax.Array]:
        """Return the idle instance where the step that begins would find nobody."""
        if by_standing(ctx) and RequestDeadlines not in ctx.requests:  # nobody ever gives up
            return work, begins
        orphan = is_orphan(state, work, instance)
        finds_nobody, begins = begins & orphan, begins & ~orphan
        left_out = ctx.when(finds_nobody, lambda: idle(ctx, state, work, instance), lambda: work)
        return left_out, begins

    def ends_early(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return whether the member that leaves now gives up."""
        return (leaves_early(ctx, state),)

    def leavers(
        self,
        state: State,
        slots: SlotRows,
        ends: jax.Array,
        may_leave: Bool[Array, "slot"],
    ) -> Bool[Array, "slot"]:
        """Return that member alone where it does."""
        return jnp.where(ends, slots.request == state[Exits].leaving, may_leave)

    def torn_off(
        self, ctx: Context, state: State, one: Subject, left: Left, past: Past, ends: jax.Array
    ) -> tuple[Left, Past]:
        """Return the request's row as it was: no record is its last one."""
        return left, choose(ends, one.past, past)

    def completed(
        self, ctx: Context, state: State, written: SlotWrite, leaves: jax.Array
    ) -> jax.Array:
        """Return whether a request that leaves its place has completed instead."""
        return leaves & ~leaves_early(ctx, state)

    def closed(
        self, ctx: Context, state: State, left: Work, closed: Work, is_over: jax.Array
    ) -> Work:
        """Return the instance as it was: it goes on with its step."""
        return closed_early(ctx, state, left, closed, is_over)

    def rows(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, before: Instance
    ) -> tuple[object, ...]:
        """Return which requests are leaving, and which have left."""
        return (after_leaving(ctx, state, work, instance, before),)


class Storing(InstanceSource):
    """KV whose transfer begins gets its blocks between the steps of an instance."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return that nothing is reserved."""
        latest = LatestTick(jnp.asarray(-1, ctx.clock))
        ticks = (latest,) if ctx.mechanism.has_queue else ()
        return Reservations.first(ctx.shape), Transfers(jnp.int32(0)), *ticks

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the lane is about to store something, or at it."""
        return lane_of(ctx, state).mode >= Mode.STORING

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return what the next piece of that changes."""
        return store(ctx, state, due.instance)


class Freeing(InstanceSource):
    """The blocks of a request that has left a queue are freed between the steps of an instance."""

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the lane is at it."""
        return lane_of(ctx, state).mode >= Mode.STORING

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return what its end changes."""
        return released(ctx, state, due.instance)


class BlockMoves(EventSource):
    """Blocks that memory takes, frees or copies after a phase."""

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state in which the next windows of blocks have been moved."""
        return move_blocks(ctx, state)
