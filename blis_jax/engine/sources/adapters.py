"""LoRA adapters: each instance loads one at a time, for the request at the head of its queue.

At the begin of a step, once the queue is sorted, the head's adapter begins to load if it is not loaded and no other
load is in progress. If all adapter slots are taken, the least recently used adapter is evicted that no running or
preempted request needs. A request without its adapter ends the step's admissions. If the batch is empty, the instance
waits until the load ends, another request arrives in its queue, or a request there gives up, and then makes a step.

Source: BLIS as of August 2026, `sim/lora/` and `sim/simulator.go`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import Vector, as_int, choose
from blis_jax.core.exact import exact_product
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.engine.calendar import Due, EventKind, InstanceSource, NextEvent, Outlook
from blis_jax.engine.phases.steps.batch_formation import queue_order
from blis_jax.engine.phases.steps.step_end import next_event
from blis_jax.engine.phases.steps.step_times import members_of
from blis_jax.engine.writing import no_writes
from blis_jax.memory.memory import Subject, Visit
from blis_jax.tables.adapters import (
    NO_ADAPTER,
    AdapterParams,
    AdapterRow,
    AdapterTable,
    RequestAdapters,
)
from blis_jax.tables.context import (
    NO_KEY,
    Context,
    SlotRows,
    Work,
    failing,
    packed,
    slot_of,
    steps_at,
    waiting_mask,
)
from blis_jax.tables.joined import add_chain, chains_of, lane_of, queued_times, with_chains
from blis_jax.tables.journeys import Reservation, Reservations
from blis_jax.tables.requests import RequestDeadlines
from blis_jax.tables.state import Dyn, Mode, Slot, State
from blis_jax.tables.writes import SlotWrite, Writes, no_slot

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int, Shaped


def adapters_of(ctx: Context, state: State, request: Int[Array, "..."]) -> Int[Array, "..."]:
    """Return the adapter of each request, NO_ADAPTER for none; the parts of split requests have none."""
    request = ctx.row_of(request)
    adapter = ctx.requests[RequestAdapters].of[request]
    if Reservations not in state:
        return adapter
    target = state[Reservations].numbers[request, Reservation.columns.TARGET]
    return jnp.where(target < 0, adapter, NO_ADAPTER)


class AdapterLoads(InstanceSource):
    """The loads of adapters, and the queues that wait for them."""

    carries = (AdapterRow,)
    withholds = True

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables with no adapter loaded."""
        return (AdapterTable.first(ctx.shape, ctx.mechanism.num_adapters),)

    def times(self, look: Outlook, start: int, stop: int) -> tuple[Shaped[Array, "_"], ...]:
        """Return when loads of these instances end, or a request arrives in a queue that waits for a load."""
        return (look.once(_next_times)[start:stop],)

    def until(self, ctx: Context, state: State, due: Due) -> tuple[jax.Array, ...]:
        """Return when the load of the acting instance ends."""
        return (state[AdapterTable].loaded_at[due.instance],)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the event is the end of a load, or of a wait for one."""
        lane = lane_of(ctx, state)
        at = Outlook(ctx, state, lane).once(_next_times)
        at = jnp.append(at, ctx.never)[due.instance]
        return (lane.mode == Mode.BETWEEN) & (at <= due.event)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes: a loaded adapter becomes the most recently used, and a waiting queue gets a step now."""
        nothing, row = no_writes(ctx, state, due.instance), state[AdapterTable].row(due.instance)
        now, inst, slots = due.event, nothing.inst, SlotRows(state, due.instance)
        comes = row.loaded_at <= now
        here = comes & (lax.iota(jnp.int32, row.used.shape[0]) == row.loading)
        row = row.touched(row.loading, comes).replace(
            num_loads=row.num_loads + as_int(here),
            loading=jnp.where(comes, NO_ADAPTER, row.loading),
            loaded_at=jnp.where(comes, ctx.never, row.loaded_at),
        )
        waits = jnp.any(waiting_mask(slots, now, steps_at(inst, now)))
        is_held = row.held_at < ctx.never
        starts, rests = is_held & waits, is_held & ~waits
        chains, fits = add_chain(chains_of(inst), now, as_int(starts), ctx.never)
        event = jnp.where(starts, now, inst.event)
        resting = next_event(ctx, slots, jnp.array(True), chains, jnp.int32(-1), inst.busy_until)
        inst = with_chains(inst, chains).replace(
            is_idle=jnp.where(rests, 1, inst.is_idle), event=jnp.where(rests, resting, event)
        )
        outcome = failing(nothing.lane.outcome, ~fits, Outcome.CHAINS_FULL)
        return dataclasses.replace(
            nothing.having(row.replace(held_at=ctx.never, left_at=ctx.never)),
            lane=nothing.lane.replace(outcome=outcome),
            instance=due.instance,
            inst=inst,
        )

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state in which a waiting queue is checked again after a request in it has timed out."""
        if RequestDeadlines not in ctx.requests:
            return state
        row, is_late = state[AdapterTable].row(done.instance), event.due.kind == EventKind.DEADLINE
        is_it = event.is_cluster & is_late & (row.held_at < ctx.never)
        left = row.replace(left_at=jnp.where(is_it, event.due.cluster, row.left_at))
        return state.having(state[AdapterTable].put(left))

    # --- hooks of steps -----------------------------------------------------------------------

    def before_step(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> tuple[Work, jax.Array]:
        """Return the work with the instance's row of adapters."""
        return work.having(state[AdapterTable].row(instance)), begins

    def begun(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> Work:
        """Return the work with the head's load begun, and with the requests marked that may be admitted."""
        asks = begins & (work.lane.num_waiting > 0)
        return ctx.when(asks, lambda: _looked_at(ctx, state, work, instance), lambda: work)

    def may_be_served(
        self, state: State, work: Work, instance: jax.Array, is_waiting: Bool[Array, "slot"]
    ) -> Bool[Array, "slot"]:
        """Return the waiting requests ahead of the first one whose adapter is not loaded."""
        return is_waiting & work[AdapterRow].is_open

    def rests(self, work: Work) -> tuple[jax.Array, ...]:
        """Return whether a load is in progress."""
        return (work[AdapterRow].loading != NO_ADAPTER,)

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work with the joining request's adapter as the most recently used."""
        row, joins = work[AdapterRow], subject.is_queued & visit.is_granted
        adapter = adapters_of(ctx, state, subject.request)
        return work.having(row.touched(adapter, joins & (adapter != NO_ADAPTER)))

    def factors(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite | None
    ) -> tuple[jax.Array, ...]:
        """Return the factor 1 + (number of adapters in the batch) · (overhead of the adapter with the largest rank)."""
        served = no_slot(ctx) if written is None else written
        members = members_of(ctx, state, work, instance, served)
        request = SlotRows(state, instance).request
        adapter = jnp.where(members.in_step, adapters_of(ctx, state, request), NO_ADAPTER)
        numbers = ctx.params.cluster[AdapterParams]
        is_there = jnp.any(adapter[:, None] == _all(numbers)[None, :], axis=0)
        largest = jnp.argmax(jnp.where(is_there, numbers.rank, -1))
        count = jnp.sum(is_there, dtype=jnp.int32).astype(jnp.float64)
        return (1.0 + exact_product(numbers.overhead[largest], count),)

    def closing(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        goes_on: jax.Array,
        chains: Vector,
    ) -> tuple[Work, jax.Array, Vector]:
        """Return that no step follows where the batch is empty and the queue's head waits for its adapter."""
        row, members = work[AdapterRow], work.inst.num_prefill + work.inst.num_decode
        (is_held,) = self.rests(work)
        is_held = goes_on & (members == 0) & is_held
        held_at = jnp.where(is_held, work.lane.now, ctx.never)
        return work.having(row.replace(held_at=held_at)), goes_on & ~is_held, chains

    def closed(
        self, ctx: Context, state: State, left: Work, closed: Work, is_over: jax.Array
    ) -> Work:
        """Return the instance so that arrivals do not wake it while it waits for a load: this source does that."""
        inst, row = closed.inst, closed[AdapterRow]
        slots, chains = SlotRows(state, row.instance), chains_of(inst)
        nobody = jnp.array(False)
        event = next_event(ctx, slots, nobody, chains, jnp.int32(-1), inst.busy_until)
        held = inst.replace(is_idle=jnp.int32(0), event=event)
        is_it = is_over & (row.held_at < ctx.never)
        return dataclasses.replace(closed, inst=choose(is_it, held, inst))


def _all(numbers: AdapterParams) -> Int[Array, "adapter"]:
    return lax.iota(jnp.int32, numbers.rank.shape[0])


def _next_times(look: Outlook) -> Shaped[Array, "instance"]:
    """Return when loads end, or requests arrive in queues that wait for a load, `[instance]`."""
    rows, never = look.ctx.shape.num_instances, look.ctx.never
    table, queued = look.state[AdapterTable], queued_times(look.state, rows)
    held_at = table.held_at[:rows]
    is_oversized = look.state.slot.numbers[Slot.OVERSIZED, :rows] == 1
    is_next = (queued > held_at[:, None]) & ~is_oversized
    comes = jnp.min(jnp.where(is_next, queued, never), axis=1)
    return jnp.minimum(jnp.minimum(table.loaded_at[:rows], comes), table.left_at[:rows])


def _looked_at(ctx: Context, state: State, work: Work, instance: jax.Array) -> Work:
    """Return the work after a check of the queue: the head's load may begin, later requests may have to wait."""
    slots, now, row = SlotRows(state, instance), work.lane.now, work[AdapterRow]
    adapter = adapters_of(ctx, state, slots.request)
    is_waiting = waiting_mask(slots, now, work.inst.steps_at_now)
    is_cold = is_waiting & (adapter != NO_ADAPTER) & (row.used[adapter] == 0)
    value, rank = queue_order(ctx, slots, work)
    least = jnp.min(jnp.where(is_cold, value, jnp.max(value)))
    key = packed(rank)
    first = jnp.min(jnp.where(is_cold & (value == least), key, jnp.int64(NO_KEY)))
    is_ahead = is_waiting & ((value < least) | ((value == least) & (key < first)))
    is_open = is_ahead | ~jnp.any(is_cold)
    slot = ctx.existing_slot(slot_of(first))
    row = row.replace(is_open=is_open)
    asks = ~jnp.any(is_open) & (row.loading == NO_ADAPTER)
    row, is_beyond = _begun(ctx, row, adapter[slot], _needed(ctx, state, slots, adapter), now, asks)
    outcome = failing(work.lane.outcome, is_beyond, Outcome.CLOCK_OVERFLOW)
    return dataclasses.replace(work.having(row), lane=work.lane.replace(outcome=outcome))


def _needed(
    ctx: Context, state: State, slots: SlotRows, adapter: Int[Array, "slot"]
) -> Bool[Array, "adapter"]:
    """Return which adapters are needed by requests that run, or were preempted."""
    request = jnp.where(slots.request < 0, ctx.spare_request, slots.request)
    has_run = (slots.order != LAST) | (state.past.rows[request, Dyn.NUM_SCHEDULED] > 0)
    adapter = jnp.where(has_run, adapter, NO_ADAPTER)
    return jnp.any(adapter[:, None] == _all(ctx.params.cluster[AdapterParams])[None, :], axis=0)


def _begun(
    ctx: Context,
    row: AdapterRow,
    wanted: jax.Array,
    is_needed: Bool[Array, "adapter"],
    now: jax.Array,
    asks: jax.Array,
) -> tuple[AdapterRow, jax.Array]:
    """Return the row with a load begun if there is a slot for it, and whether its end lies beyond the clock."""
    numbers, is_loaded = ctx.params.cluster[AdapterParams], row.used > 0
    is_full = jnp.sum(is_loaded, dtype=jnp.int32) >= numbers.capacity
    may_go = is_loaded & ~is_needed
    oldest = jnp.min(jnp.where(may_go, row.used, LAST))
    begins = asks & (~is_full | jnp.any(may_go))
    goes = begins & is_full & may_go & (row.used == oldest)
    load_us = numbers.load_us[wanted]
    return row.replace(
        used=jnp.where(goes, 0, row.used),
        num_evictions=row.num_evictions + as_int(goes),
        loading=jnp.where(begins, wanted, row.loading),
        loaded_at=jnp.where(begins, now + ctx.time(load_us), row.loaded_at),
    ), begins & ctx.is_beyond(now, load_us.astype(jnp.float64))
