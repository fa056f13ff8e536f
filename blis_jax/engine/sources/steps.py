"""Events on instances: steps, blocks that are allocated or freed between steps, and requests that wait for blocks."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import choose
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts
from blis_jax.core.types import LAST
from blis_jax.engine.calendar import Due, EventSource, InstanceSource, NextEvent, Outlook
from blis_jax.engine.phases.completions import tell_instance
from blis_jax.engine.phases.departures.giving_up import (
    after_leaving,
    by_standing,
    closed_early,
    idle,
    is_orphan,
    leaves_early,
)
from blis_jax.engine.phases.departures.oversized import drop, find_drop
from blis_jax.engine.phases.departures.reservation import released, store
from blis_jax.engine.phases.steps.batch_formation import has_candidate, serve
from blis_jax.engine.phases.steps.decode_steps import DecodeSteps, no_stretch
from blis_jax.engine.phases.steps.step_end import close, complete, finish_step
from blis_jax.engine.phases.steps.step_start import begin
from blis_jax.engine.writing import no_record, no_writes
from blis_jax.memory.memory import Left, Subject, Visit
from blis_jax.memory.models import move_blocks
from blis_jax.memory.offload.here import FOREVER, next_end
from blis_jax.memory.offload.waits import LONGEST_WAIT_US
from blis_jax.tables.blocks import Do
from blis_jax.tables.context import NO_KEY, Context, SlotRows, Work, failing, row, waiting_mask
from blis_jax.tables.gateways import BeforePools
from blis_jax.tables.joined import Instances, lane_of
from blis_jax.tables.journeys import Exits, Reservations, Transfers, no_exits
from blis_jax.tables.offload import (
    Count,
    Forgotten,
    OffloadParams,
    OffloadTable,
    WaitPhase,
    waits_of,
)
from blis_jax.tables.requests import RequestDeadlines
from blis_jax.tables.state import Instance, Mode, Past, State
from blis_jax.tables.writes import NewsWrite, RecordWrite, SlotWrite, Writes

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Shaped


def _finished(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    until: jax.Array,
    written: SlotWrite,
    stretch: DecodeSteps | None,
) -> tuple[Work, RecordWrite]:
    for repeating in [hook for hook in ctx.hooks if hook.repeats]:
        rests = [reason for hook in ctx.hooks for reason in hook.rests(work)]
        is_over = functools.reduce(jnp.logical_or, rests, jnp.array(False))
        work = repeating.repeated(ctx, state, work, instance, until, is_over)
    result = finish_step(ctx, state, work, instance, written, stretch)
    record = work.lane.num_records
    if result.earlier is not None:
        record = record + result.earlier.count
    if ctx.shape.stall_steps:
        record = record - work.lane.log_base
    record = jnp.minimum(record, jnp.int32(ctx.shape.log_capacity))
    return result.work, RecordWrite(record, result.record, result.earlier)


def _may_serve(ctx: Context, state: State, work: Work, instance: jax.Array) -> jax.Array:
    does = ctx.memory.does
    is_free = does(work, Do.NOTHING)
    return (is_free & has_candidate(ctx, state, work, instance)) | does(work, Do.ATTEMPT)


def _not_served(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    key: jax.Array,
    is_drop: jax.Array,
) -> tuple[Work, SlotWrite]:
    """Return the work after the drop of an oversized request, or after a failed allocation; else unchanged."""
    return ctx.when(
        is_drop,
        lambda: drop(ctx, state, work, instance, key),
        lambda: ctx.memory.after_failure(ctx, state, work, instance),
    )


def _begun(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    until: jax.Array,
    begins: jax.Array,
) -> tuple[Work, DecodeSteps | None]:
    """Return the instance after the begin of a step, if it `begins`, and the hooks that follow a begin."""
    started, stretch = ctx.when(
        begins,
        lambda: begin(ctx, state, work, instance, until),
        lambda: (work, no_stretch(ctx)),
    )
    for hook in ctx.hooks:
        started = hook.begun(ctx, state, started, instance, begins)
    return started, stretch


def advance(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    until: jax.Array,
) -> tuple[Work, SlotWrite, RecordWrite, Parts, tuple[NewsWrite, ...]]:
    """Return the instance after its next phases, as far as they touch one slot.

    Between steps it drops an oversized request or begins a step; while the batch forms it serves one request; when none
    is left the step ends, its members complete one by one, and the next step is scheduled. The last but one of the
    returned values holds the blocks that decode members take without a visit.
    """
    when, does = ctx.when, ctx.memory.does
    is_new = work.lane.mode == Mode.BETWEEN
    may_drop = is_new & (work.inst.num_oversized > 0)
    key = when(may_drop, lambda: find_drop(state, work, instance), lambda: jnp.int64(NO_KEY))
    is_drop = key != NO_KEY
    begins = is_new & ~is_drop
    for hook in ctx.hooks:
        work, begins = hook.before_step(ctx, state, work, instance, begins)
    started, stretch = _begun(ctx, state, work, instance, until, begins)
    is_forming = ~is_drop & (started.lane.mode == Mode.FORMING)
    serves = is_forming & _may_serve(ctx, state, started, instance)
    fails = does(started, Do.FAILED)
    formed, written = when(
        serves,
        lambda: serve(ctx, state, started, instance),
        lambda: _not_served(ctx, state, started, instance, key, is_drop),
    )
    is_sound = formed.lane.outcome == 0
    ends = is_forming & is_sound & does(formed, Do.NOTHING)
    ends = ends & ~has_candidate(ctx, state, formed, instance)
    timed, record = when(
        ends,
        lambda: _finished(ctx, state, formed, instance, until, written, stretch),
        lambda: (formed, no_record(ctx)),
    )
    is_completing = timed.lane.mode == Mode.COMPLETING
    has_left = (timed.lane.num_to_complete > 0) & does(timed, Do.NOTHING)
    completes = is_completing & (has_left | does(timed, Do.ATTEMPT)) & ~serves & ~fails
    left, written = when(
        completes,
        lambda: complete(ctx, state, timed, instance),
        lambda: (timed, written),
    )
    is_done = completes
    for hook in ctx.hooks:
        is_done = hook.completed(ctx, state, written, is_done)
    left, news = tell_instance(ctx, state, left, instance, written, is_done)
    is_over = left.lane.mode == Mode.COMPLETING
    is_over = is_over & (left.lane.num_to_complete == 0) & does(left, Do.NOTHING)
    closed = when(is_over, lambda: close(ctx, state, left, instance), lambda: left)
    for hook in ctx.hooks:
        closed = hook.closed(ctx, state, left, closed, is_over)
    return closed, written, record, Parts() if stretch is None else stretch.takes, news


class StepSource(InstanceSource):
    """The steps of instances, phase by phase."""

    def times(self, look: Outlook, start: int, stop: int) -> tuple[Shaped[Array, "_"], ...]:
        """Return when each of these instances acts next."""
        return (Instances(look.state, stop, start).event,)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return true: an event that no other source takes is a phase of a step."""
        return jnp.array(True)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return what the instance's next phase changes."""
        nothing = no_writes(ctx, state, due.instance)
        until = self._undisturbed_until(ctx, state, due)
        begun, carries = nothing.work, any(hook.carries_gateway for hook in ctx.hooks)
        gateway = nothing.gateway if carries else begun.gateway
        carried = nothing.own.only(*(kind for hook in ctx.hooks for kind in hook.carries))
        begun = dataclasses.replace(begun, gateway=gateway, own=carried)
        work, slot, record, takes, news = advance(ctx, state, begun, due.instance, until)
        further = (hook.rows(ctx, state, work, due.instance, nothing.inst) for hook in ctx.hooks)
        return dataclasses.replace(
            nothing.having(*news, *(part for parts in further for part in parts)),
            lane=work.lane,
            instance=due.instance,
            inst=work.inst,
            task=work.task,
            pool=work.pool,
            slot=slot,
            record=record,
            takes=takes,
            local=work.local,
            gateway=work.gateway if carries else nothing.gateway,
        )

    def _undisturbed_until(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return the time before which nothing from outside reaches the instance, for equal steps at once."""
        times = (time for hook in ctx.hooks for time in hook.until(ctx, state, due))
        return functools.reduce(jnp.minimum, times, due.cluster)


class HandOvers(EventSource):
    """Hand-overs at the end of a step: another instance's next step may hand a request over to this one."""

    carries_gateway = True

    def until(self, ctx: Context, state: State, due: Due) -> tuple[jax.Array, ...]:
        """Return when another instance acts next."""
        number = lax.iota(jnp.int32, due.events.shape[0])
        return (jnp.min(jnp.where(number == due.instance, ctx.never, due.events)),)


class EarlyExits(EventSource):
    """Members that leave the batch before their last token: evicted, or past their deadline."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the table with no request leaving."""
        return (no_exits(ctx.shape),)

    def before_step(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> tuple[Work, jax.Array]:
        """Return the work with the instance idle if the step that begins would find no request."""
        if by_standing(ctx) and RequestDeadlines not in ctx.requests:  # nobody ever gives up
            return work, begins
        orphan = is_orphan(state, work, instance)
        finds_nobody, begins = begins & orphan, begins & ~orphan
        left_out = ctx.when(finds_nobody, lambda: idle(ctx, state, work, instance), lambda: work)
        return left_out, begins

    def ends_early(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return whether the member that leaves now was given up."""
        return (leaves_early(ctx, state),)

    def leavers(
        self,
        state: State,
        slots: SlotRows,
        ends: jax.Array,
        may_leave: Bool[Array, "slot"],
    ) -> Bool[Array, "slot"]:
        """Return the member that is given up, if there is one; else all that may leave."""
        return jnp.where(ends, slots.request == state[Exits].leaving, may_leave)

    def torn_off(
        self, ctx: Context, state: State, subject: Subject, left: Left, past: Past, ends: jax.Array
    ) -> tuple[Left, Past]:
        """Return the request's history as it was, without a last record."""
        return left, choose(ends, subject.past, past)

    def completed(
        self, ctx: Context, state: State, written: SlotWrite, leaves: jax.Array
    ) -> jax.Array:
        """Return whether a request that leaves its slot has completed instead of being given up."""
        return leaves & ~leaves_early(ctx, state)

    def closed(
        self, ctx: Context, state: State, left: Work, closed: Work, is_over: jax.Array
    ) -> Work:
        """Return the instance as it was before the departure: it goes on with its step."""
        return closed_early(ctx, state, left, closed, is_over)

    def rows(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, before: Instance
    ) -> tuple[object, ...]:
        """Return which request is leaving, and which has left."""
        return (after_leaving(ctx, state, work, instance, before),)


class Storing(InstanceSource):
    """KV whose transfer begins gets its blocks between the steps of its instance."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables with nothing reserved."""
        nothing = BeforePools(jnp.asarray(-1, ctx.clock), jnp.int32(0))
        behind = (nothing,) if ctx.mechanism.has_queue else ()
        return Reservations.first(ctx.shape), Transfers(jnp.int32(0)), *behind

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the lane is storing KV, or about to."""
        return lane_of(ctx, state).mode >= Mode.STORING

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes of the next part of storing."""
        return store(ctx, state, due.instance)


class Freeing(InstanceSource):
    """The blocks of a request that has left a queue are freed between the steps of an instance."""

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the lane is freeing blocks."""
        return lane_of(ctx, state).mode >= Mode.STORING

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes when the blocks are freed."""
        return released(ctx, state, due.instance)


class BlockMoves(EventSource):
    """Blocks that memory takes, frees or copies after a phase."""

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state in which the next windows of blocks have been moved."""
        return move_blocks(ctx, state)


class OffloadTiers(EventSource):
    """Off-load tiers: requests that wait for blocks of their prompt are passed over, empty steps are made at once.

    The tiers' contents and their part in a step are memory's, see `memory/offload`. Source: BLIS as of August 2026,
    `sim/kv` and `sim/simulator.go`.
    """

    carries = (Forgotten,)
    withholds = True
    repeats = True

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables of tiers without contents."""
        numbers: OffloadParams = ctx.params.cluster[OffloadParams]
        return (OffloadTable.first(ctx.shape, numbers.base_us.shape[-1]),)

    def may_be_served(
        self, state: State, work: Work, instance: jax.Array, is_waiting: Bool[Array, "slot"]
    ) -> Bool[Array, "slot"]:
        """Return the waiting requests that do not wait for blocks from the tiers."""
        phase = waits_of(state[OffloadTable], instance, SlotRows(state, instance).request)
        return is_waiting & (phase != WaitPhase.LOOK_UP) & (phase != WaitPhase.WAIT)

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work that clears the wait of a request which held nothing and has got its blocks."""
        is_it = visit.asks & visit.is_granted & (subject.held == 0)
        return work.having(Forgotten(subject.instance, subject.slot, is_it))

    def repeated(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        until: jax.Array,
        rests: jax.Array,
    ) -> Work:
        """Return one step for all empty steps until a transfer ends, where all waiting requests wait for storage.

        A run that has used up its random draws for transfer jitter ends.
        """
        table, slots, now = state[OffloadTable], SlotRows(state, instance), work.lane.now
        phase = waits_of(table, instance, slots.request)
        is_waiting = waiting_mask(slots, now, work.inst.steps_at_now)
        members = work.inst.num_prefill + work.inst.num_decode
        all_wait = jnp.all(~is_waiting | (phase == WaitPhase.WAIT)) & jnp.any(is_waiting)
        is_still = table.counts[instance, Count.CHANGES] == 0
        repeats = (members == 0) & all_wait & is_still & ~rests
        jobs = jax.tree.map(lambda part: row(part, instance), table.jobs)
        since = jnp.where(phase == WaitPhase.WAIT, table.waits.since[instance], FOREVER)
        given_up = jnp.min(jnp.minimum(since, FOREVER - LONGEST_WAIT_US)) + LONGEST_WAIT_US
        comes = jnp.min(jnp.where(is_waiting, ctx.never, slots.queued)).astype(jnp.int64)
        last = ctx.params.cluster.horizon_us.astype(jnp.int64) + 1
        end = jnp.minimum(jnp.minimum(until.astype(jnp.int64), comes), jnp.minimum(last, given_up))
        end = jnp.minimum(end, next_end(jobs))
        most = lax.div(jnp.int32(LAST), ctx.params.cluster.total_kv_blocks[instance] + 1)
        count = jnp.clip(end - now.astype(jnp.int64), 1, most.astype(jnp.int64)).astype(jnp.int32)
        count = jnp.where(repeats, count, 1)
        numbers: OffloadParams = ctx.params.cluster[OffloadParams]
        drawn = table.counts[instance, Count.DRAWS]
        exhausted = (drawn > numbers.normals.shape[-1]) & jnp.any(numbers.jitter > 0)
        lane = work.lane.replace(
            outcome=failing(work.lane.outcome, exhausted, Outcome.DRAWS_EXHAUSTED),
            num_steps=jnp.where(repeats, count, work.lane.num_steps),
            sum_used=jnp.where(repeats, work.inst.used_blocks * count, work.lane.sum_used),
        )
        return dataclasses.replace(work, lane=lane)
