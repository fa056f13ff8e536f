"""Requests that wait for blocks of their prompts, and blocks that come back.

Before a step the tiers learn which transfers have ended, and waiting requests are checked again. Before an allocation,
a request that holds nothing waits if storage has the next block of its prompt; else blocks come back from the CPU, and
storage is asked for the first block that the CPU lacks.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import full_blocks
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.contents import places
from blis_jax.memory.offload.here import (
    Here,
    Prompt,
    advanced,
    begun,
    ended,
    fetched,
    is_on_gpu,
    num_tiers,
    numbers_of,
    prompt_of,
    tiers_of,
)
from blis_jax.tables.blocks import Asker, Blocks, Do, MemoryTask
from blis_jax.tables.context import Context, SlotRows
from blis_jax.tables.journeys import Reservation, Reservations
from blis_jax.tables.offload import Count, JobState, OffloadTable, WaitPhase, Waits, waits_of
from blis_jax.tables.requests import TextRanks
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


LONGEST_WAIT_US = 10**9


# --- before a step --------------------------------------------------------------------------------


def poll(ctx: Context, state: State, is_on: jax.Array) -> State:
    """Return the state after the tiers have learned which transfers ended, and each waiting request was checked."""
    here, task, now = begun(ctx, state, is_on)
    if num_tiers(ctx):
        here = _heard(ctx, state, here, now, is_on)
        here = _looked_at(ctx, state, here, now, is_on)
    return ended(state, here, task, is_on, do=jnp.int32(Do.NOTHING))


def _heard(ctx: Context, state: State, here: Here, now: jax.Array, is_on: jax.Array) -> Here:
    jobs, counts = advanced(numbers_of(ctx), here.jobs, here.counts, now, is_on)
    here = dataclasses.replace(here, jobs=jobs, counts=counts)
    count = jnp.where(is_on, counts[Count.DONE], 0)

    def hear(at: jax.Array, here: Here) -> Here:
        return _heard_of(ctx, state[Blocks], here, at)

    here = lax.fori_loop(0, count, hear, here)
    counts = here.counts.at[Count.DONE].set(here.counts[Count.DONE] - count)
    return dataclasses.replace(here, counts=counts.at[Count.CHANGES].set(count))


def _heard_of(ctx: Context, blocks: Blocks, here: Here, at: jax.Array) -> Here:
    """Return the tiers after one ended transfer: its blocks can be read, or its tier has one more."""
    jobs, size = here.jobs, here.key.shape[0]
    is_it = (jobs.status == JobState.DONE) & (jobs.done_at == at)
    job = jnp.argmax(is_it).astype(jnp.int32)
    tier, reads = lax.div(job, jnp.int32(size)), job >= jnp.int32(num_tiers(ctx) * size)
    entry = job - tier * jnp.int32(size)
    number = lax.iota(jnp.int32, size)
    name = here.key[entry]
    place = places(ctx, blocks, name[None], here.instance)[0]
    slot = (here.instance, jnp.minimum(tier, jnp.int32(num_tiers(ctx) - 1)), place)
    held = here.contents.held
    held = held.at[slot].set(jnp.where(reads, held[slot], name))
    written = ~reads & (number == entry)
    num_writes = here.num_writes - as_int(written)
    comes = reads & here.is_pending & (here.run == entry)
    is_idle = comes | (written & (num_writes == 0))
    now = here.time[here.spare]
    turn = jnp.where(is_idle, now + jnp.where(comes, here.place, 0).astype(jnp.int64), here.time)
    after = now + jnp.sum(is_idle, dtype=jnp.int64)
    return dataclasses.replace(
        here,
        num_writes=num_writes,
        is_pending=here.is_pending & ~comes,
        time=jnp.where(number == here.spare, after, turn),
        jobs=dataclasses.replace(
            jobs, status=jnp.where(is_it, jnp.int32(JobState.NONE), jobs.status)
        ),
        contents=dataclasses.replace(here.contents, held=held),
    )


def _looked_at(ctx: Context, state: State, here: Here, now: jax.Array, is_on: jax.Array) -> Here:
    """Return the tiers after each waiting request has been checked, in the order of the requests' names."""
    slots = SlotRows(state, here.instance)
    request = slots.request
    rank = _text_ranks(ctx, state, request)

    def next_rank(here: Here, last: jax.Array) -> jax.Array:
        is_it = (here.waits.request == request) & (rank > last)
        is_it = (
            is_it & (here.waits.phase != WaitPhase.NONE) & (here.waits.phase != WaitPhase.SETTLED)
        )
        return jnp.min(jnp.where(is_it, rank, jnp.int32(LAST)))

    def goes_on(carry: tuple[jax.Array, Here]) -> jax.Array:
        return is_on & (carry[0] != LAST)

    def look(carry: tuple[jax.Array, Here]) -> tuple[jax.Array, Here]:
        at, here = carry
        is_it = (rank == at) & (here.waits.request == request)
        here = _one_looked_at(ctx, here, jnp.argmax(is_it).astype(jnp.int32), request, now)
        return next_rank(here, at), here

    return lax.while_loop(goes_on, look, (next_rank(here, jnp.int32(-1)), here))[1]


def _text_ranks(ctx: Context, state: State, request: Int[Array, "slot"]) -> Int[Array, "slot"]:
    """Return each request's rank by name as a text; for a split request that of its prefill part, which alone waits."""
    request = ctx.row_of(request)
    whole, prefill = ctx.requests[TextRanks].of[request].T
    if Reservations not in state:
        return whole
    target = state[Reservations].numbers[request, Reservation.columns.TARGET]
    return jnp.where(target < 0, whole, prefill)


def _one_looked_at(
    ctx: Context, here: Here, slot: jax.Array, request: Int[Array, "slot"], now: jax.Array
) -> Here:
    waits = here.waits
    prompt = prompt_of(ctx, here, slot, request[slot])
    is_run = _run(prompt, waits.first[slot], waits.count[slot])
    is_absent = jnp.any(is_run & prompt.is_absent)
    is_there = jnp.all(~is_run | prompt.is_readable)
    asks = waits.phase[slot] == WaitPhase.LOOK_UP
    here = _with_known(ctx, here, prompt, is_run & asks)
    here, comes = fetched(ctx, here, prompt, is_run, waits.tier[slot], now, asks & is_absent)
    is_late = now - waits.since[slot] > LONGEST_WAIT_US
    is_settled = is_there | jnp.where(asks, is_absent & ~comes, is_absent) | is_late
    phase = jnp.where(is_settled, jnp.int32(WaitPhase.SETTLED), jnp.int32(WaitPhase.WAIT))
    here = here.counted(Count.CHANGES, as_int(phase != waits.phase[slot]))
    return dataclasses.replace(here, waits=_with(waits, slot, jnp.array(True), phase=phase))


def _run(prompt: Prompt, first: jax.Array, count: jax.Array) -> Bool[Array, "position"]:
    position = lax.iota(jnp.int32, prompt.name.shape[0])
    return (position >= first) & (position < first + count)


def _with(waits: Waits, slot: jax.Array, is_it: jax.Array, **values: jax.Array) -> Waits:
    here = is_it & (lax.iota(jnp.int32, waits.phase.shape[0]) == slot)
    rows = {name: jnp.where(here, value, getattr(waits, name)) for name, value in values.items()}
    return dataclasses.replace(waits, **rows)


def _with_known(ctx: Context, here: Here, prompt: Prompt, is_it: jax.Array) -> Here:
    """Return the tiers with a note that storage has been asked for these contents."""
    known, last = here.contents.known, jnp.int32(here.contents.known.shape[1] - 1)
    place = jnp.where(is_it, prompt.place, last)
    known = known.at[here.instance, place].set(jnp.where(is_it, prompt.name, 0))
    return dataclasses.replace(here, contents=dataclasses.replace(here.contents, known=known))


# --- before an allocation -------------------------------------------------------------------------


def seek(ctx: Context, state: State, is_on: jax.Array) -> State:
    """Return the state in which the task's request waits for blocks of its prompt, or its blocks begin to come back."""
    here, task, now = begun(ctx, state, is_on)
    slot, request = task.slot, task.request
    slots = SlotRows(state, here.instance)
    is_new = is_on & (task.held == 0)
    if Reservations in state:
        is_new = is_new & (state[Reservations].of(request).target != here.instance)
    phase = waits_of(state[OffloadTable], here.instance, slots.request)[slot]
    may_wait = is_new & (phase == WaitPhase.NONE)
    here = _deferred(ctx, state, here, task, now, may_wait)
    phase = jnp.where(here.waits.request[slot] == request, here.waits.phase[slot], 0)
    waits = is_new & ((phase == WaitPhase.LOOK_UP) | (phase == WaitPhase.WAIT))
    # one that cannot wait, for want of room on the CPU, is refused, too, and gets its blocks in the next step
    fails = waits | (may_wait & (phase != WaitPhase.NONE))
    is_passed = waits & (task.asker == Asker.QUEUE)
    then = jnp.where(is_passed, jnp.int32(Do.NOTHING), jnp.int32(Do.FAILED))
    return ended(
        state,
        here,
        task,
        is_on,
        do=jnp.where(fails, then, jnp.int32(Do.BRING_BACK)),
        has_reloaded=as_int(fails),  # not for want of blocks on the CPU
    )


def _deferred(
    ctx: Context, state: State, here: Here, task: MemoryTask, now: jax.Array, is_it: jax.Array
) -> Here:
    """Return the tiers in which the task's request waits, if its next prompt block is not at hand but will come."""
    prompt = prompt_of(ctx, here, task.slot, task.request)
    position = lax.iota(jnp.int32, prompt.name.shape[0])
    end = full_blocks(ctx.request(task.request).input_len, ctx.shape.block_size)
    at_hand = is_on_gpu(state[Blocks], here.instance, prompt)
    first = prompt.first((position >= task.cursor) & ~(at_hand | prompt.is_readable))
    at = jnp.minimum(first, jnp.int32(position.shape[0] - 1))
    is_short, is_absent = is_it & (first < end), prompt.is_absent[at]
    run, tier = _storage_run(ctx, here, prompt, at_hand, first, end)
    of_storage = is_short & is_absent & (tier < num_tiers(ctx))
    waits = of_storage | (is_short & ~is_absent)
    is_known = here.contents.known[here.instance, prompt.place] == prompt.name
    asks = of_storage & jnp.all(~run | is_known)
    here, comes = fetched(ctx, here, prompt, run, tier, now, asks)
    phase = jnp.where(of_storage & ~asks, jnp.int32(WaitPhase.LOOK_UP), jnp.int32(WaitPhase.WAIT))
    phase = jnp.where(asks & ~comes, jnp.int32(WaitPhase.SETTLED), phase)
    here = here.counted(Count.DEFERRALS, waits).counted(Count.CHANGES, waits)
    made = _with(
        here.waits,
        task.slot,
        waits,
        request=task.request,
        phase=phase,
        first=first,
        count=jnp.where(of_storage, jnp.sum(run, dtype=jnp.int32), 1),
        tier=tier,
        since=now,
    )
    return dataclasses.replace(here, waits=made)


def _storage_run(
    ctx: Context, here: Here, prompt: Prompt, at_hand: jax.Array, first: jax.Array, end: jax.Array
) -> tuple[Bool[Array, "position"], jax.Array]:
    """Return the run of blocks from `first` on that only one tier holds, and that tier."""
    position = lax.iota(jnp.int32, prompt.name.shape[0])
    tiers = tiers_of(ctx, here, prompt)
    tier = tiers[jnp.minimum(first, jnp.int32(position.shape[0] - 1))]
    is_alike = ~at_hand & prompt.is_absent & (tiers == tier) & (position < end)
    after = prompt.first((position >= first) & ~is_alike)
    return (position >= first) & (position < after), tier


def fetch(ctx: Context, state: State, is_on: jax.Array) -> State:
    """Return the state in which storage is asked for the block that ended a reload, if storage has it."""
    here, task, now = begun(ctx, state, is_on)
    prompt = prompt_of(ctx, here, task.slot, task.request)
    end = full_blocks(ctx.request(task.request).input_len, ctx.shape.block_size)
    at_hand = is_on_gpu(state[Blocks], here.instance, prompt)
    run, tier = _storage_run(ctx, here, prompt, at_hand, task.cursor, end)
    is_there = (task.cursor < end) & (task.jumps == 0) & (tier < num_tiers(ctx))
    here, _ = fetched(ctx, here, prompt, run, tier, now, is_on & is_there & jnp.any(run))
    return ended(state, here, task, is_on, do=jnp.int32(Do.ATTEMPT))
