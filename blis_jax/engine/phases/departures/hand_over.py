"""Hand-overs: a request whose prompt is computed moves with its KV, and continues elsewhere after a transfer.

The hand-over policy is called in the step that makes a request's first token. If the request moves, that step is its
last one on the instance, and its blocks are free again when the step has ended. A transfer takes longer the more
transfers use the instance's link at its start. When the transfer has ended, the gateway routes the request again. The
step in which it joins the new batch costs one decode token, stores its whole prompt, and makes its next token.

How a step treats such requests is an object, chosen when a program is built: `Staying` without hand-overs,
`HandingOver` as in February, or `Splitting` as in August.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import NO_ENTRIES, as_int, choose
from blis_jax.core.views import AnswerCuts
from blis_jax.engine.phases.policy_calls import request_view
from blis_jax.engine.phases.snapshot import active_instances
from blis_jax.memory.block_tables.contents import nothing_found
from blis_jax.memory.memory import Demand, Subject, Visit
from blis_jax.policies.contexts import HandOver, HandOverContext
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.context import Context, SlotRows, Work, count_of, decision_key
from blis_jax.tables.joined import places_of
from blis_jax.tables.journeys import Journey, Journeys, Reservations
from blis_jax.tables.requests import Request
from blis_jax.tables.state import Lane, Past, State
from blis_jax.tables.writes import JourneyWrite, ReservationWrite

if TYPE_CHECKING:
    from blis_jax.core.groups import Rows


class Staying:
    """The rules of a step without hand-overs: requests stay on their instance."""

    def comes_with_kv(self, ctx: Context, state: State, subject: Subject) -> jax.Array:
        """Return whether the request is at the head of the queue and its KV has been transferred here."""
        return jnp.array(False)

    def demanded(
        self, ctx: Context, state: State, subject: Subject, demand: Demand, comes: jax.Array
    ) -> Demand:
        """Return the request's demand for tokens and blocks."""
        return demand

    def ask(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> tuple[jax.Array, Work]:
        """Return whether the visited request moves away after this step, and the work that records it."""
        return jnp.array(False), work

    def steps_left(self, left: jax.Array, moves: jax.Array, comes: jax.Array) -> jax.Array:
        """Return the number of steps after this one on this instance; `left` is the number that the output needs."""
        return jnp.where(moves, 0, left - as_int(comes))

    def first_token(self, made: Past, subject: Subject, visit: Visit, is_new: jax.Array) -> Past:
        """Return the row `made` by a visit, adjusted if the request has joined the batch with its KV."""
        return made

    def num_moving(
        self, ctx: Context, work: Work, slots: SlotRows, visited: jax.Array, done: jax.Array
    ) -> jax.Array:
        """Return how many members finish here and continue elsewhere; `visited` marks the one just served."""
        return jnp.int32(0)

    def is_moving(self, ctx: Context, state: State, subject: Subject) -> jax.Array:
        """Return whether the request that gives up its slot moves on instead of having completed."""
        return jnp.array(False)

    def needs_none(
        self, ctx: Context, state: State, subject: Subject, is_short: jax.Array
    ) -> jax.Array:
        """Return whether a member needs no room for a last token; `is_short`: because it leaves early."""
        return is_short

    def moved_on(
        self, ctx: Context, state: State, work: Work, subject: Subject, moves: jax.Array
    ) -> tuple[Work, Past]:
        """Return the work and the request's row after its departure, with the last record if it has completed."""
        finish_record = jnp.where(moves, 0, work.lane.num_records)
        return work, subject.past.replace(finish_record=finish_record)


STAYING = Staying()


class HandingOver(Staying):
    """February's rules: the policy decides on each request whose prompt is computed, which waits for its transfer."""

    def comes_with_kv(self, ctx: Context, state: State, subject: Subject) -> jax.Array:
        """Return whether the request is at the head of the queue and its KV has been transferred here."""
        return subject.is_queued & (state[Journeys].of(subject.request).computed > 0)

    def ask(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> tuple[jax.Array, Work]:
        """Return whether the policy moves the visited request after this step, and the work that records it."""
        policy, place = ctx.mechanism.at_gateway("hand_over")
        journey = state[Journeys].of(subject.request)
        view, kept = request_view(ctx, subject.request), ctx.memory.preempted
        context = HandOverContext(
            request=kept.with_kept(state, subject.request, view),
            instance=subject.instance,
            is_up=active_instances(ctx, state),
            role=ctx.params.cluster.roles,
            now_us=work.lane.now,
            key=decision_key(ctx, RandomSource.HAND_OVER, subject.request),
        )
        decision: HandOver
        decision, after = policy.ask(ctx.params.policy.hand_over, work.gateway[place], context)
        is_asked = visit.gains & ~subject.has_token & ~visit.comes & (journey.first_record < 0)
        is_asked = is_asked & (subject.fixed.output_len > 1)
        moves = is_asked & decision.moves
        states = choose(is_asked, after, work.gateway[place])
        delay, link = (
            jnp.asarray(time).astype(ctx.clock) for time in (decision.delay_us, decision.link_us)
        )
        joins = visit.comes & visit.is_granted
        # one that was evicted in the step that would have moved it may be asked for again where it stays
        stays = jnp.where(is_asked, ctx.never, journey.delay)
        journey = journey.replace(
            delay=jnp.where(moves, delay, stays),
            link=jnp.where(moves, link, journey.link),
            **_joined(journey, work.lane, joins),
        )
        work = dataclasses.replace(work, gateway=work.gateway.having(place, states))
        return moves, self._with_journey(state, work, subject.request, journey)

    def num_moving(
        self, ctx: Context, work: Work, slots: SlotRows, visited: jax.Array, done: jax.Array
    ) -> jax.Array:
        """Return how many members finish their last step here and continue elsewhere."""
        request = jnp.where(slots.request < 0, ctx.spare_request, slots.request)
        delay = Journey(NO_ENTRIES, slots.state[Journeys].times[request]).delay
        delay = jnp.where(visited, work[JourneyWrite].journey.delay, delay)
        return jnp.sum(done & (delay < ctx.never), dtype=jnp.int32)

    def is_moving(self, ctx: Context, state: State, subject: Subject) -> jax.Array:
        """Return whether the request that gives up its slot moves on instead of having completed."""
        return state[Journeys].of(subject.request).delay < ctx.never

    def moved_on(
        self, ctx: Context, state: State, work: Work, subject: Subject, moves: jax.Array
    ) -> tuple[Work, Past]:
        """Return the work and the member's row after it has moved on, with the request's journey."""
        work, past = super().moved_on(ctx, state, work, subject, moves)
        journey = state[Journeys].of(subject.request)
        start, transfer = self._transfer(ctx, state, work.lane, subject, journey, moves)
        is_first = journey.came_from < 0
        journey = journey.replace(
            came_from=jnp.where(moves & is_first, subject.instance, journey.came_from),
            computed=jnp.where(moves, subject.fixed.input_len, journey.computed),
            first_record=jnp.where(moves, past.token_record, journey.first_record),
            scheduled_record=jnp.where(moves, past.scheduled_record, journey.scheduled_record),
            due=jnp.where(moves, start + transfer, journey.due),
            transfer=jnp.where(moves, transfer, journey.transfer),
            delay=jnp.where(moves, ctx.never, journey.delay),
            ended=journey.ended + as_int(moves),
        )
        return self._with_journey(state, work, subject.request, journey), past

    def _transfer(
        self,
        ctx: Context,
        state: State,
        lane: Lane,
        subject: Subject,
        journey: Journey,
        moves: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Return when the transfer begins, and how long it takes."""
        start = lane.now + lane.duration
        others = _num_on_link(ctx, state, subject.instance, start).astype(ctx.clock)
        wait = journey.delay + others * jnp.where(moves, journey.link, 0)
        return start, jnp.where(moves, wait, 0)

    def _with_journey(self, state: State, work: Work, request: jax.Array, journey: Journey) -> Work:
        return work.having(JourneyWrite(request, journey))


class Splitting(HandingOver):
    """August's rules: a prefill part leaves once its prompt is computed, for the instance chosen at the routing."""

    def demanded(
        self, ctx: Context, state: State, subject: Subject, demand: Demand, comes: jax.Array
    ) -> Demand:
        """Return the demand of a decode part: one token, without a prefix look-up.

        The KV of a decode part has its blocks already. A decode part that its instance has preempted heads the queue
        again, restarts at the first token of its prompt, and gets the blocks that come back from the CPU.
        """
        journey = state[Journeys].of(subject.request)
        target = state[Reservations].of(subject.request).target
        has_come = (target >= 0) & (journey.came_from >= 0)
        again = subject.is_queued & has_come & (journey.computed == 0)
        is_part, nothing = comes | again, nothing_found()
        start = jnp.where(comes, subject.fixed.input_len, 0)
        hides = is_part & ~subject.is_forced
        return dataclasses.replace(
            demand,
            start=jnp.where(is_part, start, demand.start),
            tokens=jnp.where(is_part, 1, demand.tokens),
            hits=jnp.where(is_part, 0, demand.hits),
            found=choose(hides, nothing, demand.found),
        )

    def ask(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> tuple[jax.Array, Work]:
        """Return whether the visited request is a prefill part that is computed, and the work that records it."""
        journey = state[Journeys].of(subject.request)
        target = state[Reservations].of(subject.request).target
        is_prefill = (target >= 0) & (journey.came_from < 0)
        moves = is_prefill & visit.gains
        joins = visit.comes & visit.is_granted
        journey = journey.replace(
            delay=jnp.where(moves, jnp.zeros_like(journey.delay), journey.delay),
            **_joined(journey, work.lane, joins),
        )
        return moves, self._with_journey(state, work, subject.request, journey)

    def steps_left(self, left: jax.Array, moves: jax.Array, comes: jax.Array) -> jax.Array:
        """Return the number of steps after this one here; an answer of one token came with the KV and needs no step."""
        return jnp.where(moves, 0, jnp.where(comes, jnp.maximum(left, 0), left))

    def first_token(self, made: Past, subject: Subject, visit: Visit, is_new: jax.Array) -> Past:
        """Return the row of a request that arrives with its KV, whose first token counts as made one step earlier."""
        comes = visit.comes & is_new
        return made.replace(
            progress=jnp.where(comes, subject.fixed.input_len, made.progress),
            token_index=jnp.where(comes, subject.step - 1, made.token_index),
        )

    def needs_none(
        self, ctx: Context, state: State, subject: Subject, is_short: jax.Array
    ) -> jax.Array:
        """Return whether the request needs no room for a last token, as if its one token came with the KV."""
        journey = state[Journeys].of(subject.request)
        has_joined = (journey.joins > 0) & (journey.joined_record == subject.past.scheduled_record)
        makes_one = has_joined & (subject.fixed.output_len <= 1)
        if AnswerCuts in ctx.params.cluster:
            answer = answer_len(ctx, subject.fixed, subject.instance)
            makes_one = makes_one | (answer < subject.fixed.output_len)
        return is_short | makes_one

    def _transfer(
        self,
        ctx: Context,
        state: State,
        lane: Lane,
        subject: Subject,
        journey: Journey,
        moves: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the current time and a duration of 0: the transfer is still to begin, see `begin_transfer`."""
        return lane.now, jnp.zeros_like(lane.now)

    def _with_journey(self, state: State, work: Work, request: jax.Array, journey: Journey) -> Work:
        work = super()._with_journey(state, work, request, journey)
        return work.having(ReservationWrite(state[Reservations].of(request)))


def answer_len(ctx: Context, fixed: Request, instance: jax.Array) -> jax.Array:
    """Return the output tokens that the request makes on the instance, fewer than requested where answers are cut.

    The token of the step in which a request joins with its KV is never cut.
    """
    if AnswerCuts not in ctx.params.cluster:
        return fixed.output_len
    cuts_at = ctx.params.cluster[AnswerCuts].at
    return jnp.minimum(fixed.output_len, jnp.maximum(cuts_at[instance] - fixed.input_len + 1, 2))


def _joined(journey: Journey, lane: Lane, joins: jax.Array) -> dict[str, jax.Array]:
    """Return the fields of a journey that change where the request joins the batch with its KV."""
    return {
        "joined_record": jnp.where(joins, lane.num_records, journey.joined_record),
        "joins": journey.joins + as_int(joins),
        "computed": jnp.where(joins, 0, journey.computed),
    }


def _num_on_link(ctx: Context, state: State, instance: jax.Array, start: jax.Array) -> jax.Array:
    """Return the number of transfers from the instance that are in progress at `start`."""
    journeys, places = state[Journeys], places_of(state)

    def count(so_far: jax.Array, rows: Rows) -> jax.Array:
        due = rows.take(journeys.times)[:, Journey.time_columns.DUE]
        has_kv = rows.take(journeys.numbers)[:, Journey.columns.COMPUTED] > 0
        is_on = (due > start) & (due < ctx.never) & has_kv & (rows.take(places) == instance)
        return so_far + count_of(is_on & rows.is_in)

    return ctx.over(journeys.first_due < ctx.never, count, jnp.int32(0))
