"""Copies on the CPU of what batches hold: where they lie, and how they go on to storage.

After a step what the batch holds is used in batch order. What the CPU lacks takes the place of the entry that was used
longest ago and that no transfer holds, and goes on to every tier.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div, exact_product, exact_quotient, full_blocks
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.contents import places
from blis_jax.memory.block_tables.takes import Uses
from blis_jax.memory.offload.here import (
    LAST_TURN,
    Here,
    begun,
    ended,
    entries_of,
    num_tiers,
    numbers_of,
)
from blis_jax.tables.blocks import Blocks, Do, MemoryTask
from blis_jax.tables.context import Context, SlotRows
from blis_jax.tables.offload import (
    Count,
    Jobs,
    JobState,
    OffloadParams,
    OffloadTable,
    WaitPhase,
    waits_of,
)
from blis_jax.tables.state import Instance, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.memory.block_tables.block_rows import Tenant
    from blis_jax.memory.block_tables.turn import Turn


# --- transfers between the CPU and storage -------------------------------------------------------


FOREVER = jnp.iinfo(jnp.int64).max
LEAST_FACTOR = 0.05


def is_read(jobs: Jobs, numbers: OffloadParams) -> Bool[Array, "job"]:
    """Return which transfers come from storage: the last ones."""
    count, tiers = jobs.status.shape[0], numbers.base_us.shape[0]
    return lax.iota(jnp.int32, count) >= count // (tiers + 1) * tiers


def next_end(jobs: Jobs) -> jax.Array:
    """Return when the next transfer ends, FOREVER if none is on its way."""
    return jnp.min(jnp.where(jobs.status == JobState.SERVED, jobs.ends, FOREVER))


def advanced(
    numbers: OffloadParams,
    jobs: Jobs,
    counts: Int[Array, "count"],
    now: jax.Array,
    is_on: jax.Array,
) -> tuple[Jobs, Int[Array, "count"]]:
    """Return the transfers once the clock has come to `now`, if it `is_on`."""

    def goes_on(carry: tuple[Jobs, jax.Array]) -> jax.Array:
        return is_on & (next_end(carry[0]) <= now)

    def end(carry: tuple[Jobs, jax.Array]) -> tuple[Jobs, jax.Array]:
        jobs, counts = carry
        return _ended(numbers, jobs, counts)

    return lax.while_loop(goes_on, end, (jobs, counts))


def submitted(
    numbers: OffloadParams,
    jobs: Jobs,
    counts: Int[Array, "count"],
    at: jax.Array,
    tier: jax.Array,
    num_blocks: jax.Array,
    now: jax.Array,
    is_it: jax.Array,
) -> tuple[Jobs, Int[Array, "count"]]:
    """Return the transfers with another one, which a free thread takes at once."""
    jobs, counts = advanced(numbers, jobs, counts, now, is_it)
    here = is_it & (lax.iota(jnp.int32, jobs.status.shape[0]) == at)
    draws = is_it & (numbers.jitter[tier] > 0)
    draw = numbers.normals[jnp.minimum(counts[Count.DRAWS], numbers.normals.shape[0] - 1)]
    factor = jnp.maximum(LEAST_FACTOR, 1.0 + exact_product(draw, numbers.jitter[tier]))
    jobs = dataclasses.replace(
        jobs,
        status=jnp.where(here, jnp.int32(JobState.QUEUED), jobs.status),
        number=jnp.where(here, counts[Count.JOBS], jobs.number),
        tier=jnp.where(here, tier, jobs.tier),
        num_blocks=jnp.where(here, num_blocks, jobs.num_blocks),
        submitted=jnp.where(here, now, jobs.submitted),
        factor=jnp.where(here & draws, factor, jnp.where(here, 1.0, jobs.factor)),
    )
    counts = counts.at[Count.JOBS].add(is_it.astype(jnp.int32))
    counts = counts.at[Count.DRAWS].add(draws.astype(jnp.int32))
    busy = (jobs.status == JobState.SERVED) & (jobs.tier == tier)
    readers = jnp.sum(busy & (jobs.by_writer == 0), dtype=jnp.int32)
    writers = jnp.sum(busy & (jobs.by_writer == 1), dtype=jnp.int32)
    has_reader = readers < numbers.num_readers[tier]
    is_free = has_reader | (writers < numbers.num_writers[tier])
    by_writer = (~has_reader).astype(jnp.int32)
    return _begun(numbers, jobs, here, at, now, by_writer, is_free), counts


def _begun(
    numbers: OffloadParams,
    jobs: Jobs,
    here: Bool[Array, "job"],
    at: jax.Array,
    now: jax.Array,
    by_writer: jax.Array,
    is_it: jax.Array,
) -> Jobs:
    """The transfers in which this one is served from `now` on."""
    reads, tier = is_read(jobs, numbers), jobs.tier[at]
    is_alike = (jobs.status == JobState.SERVED) & (jobs.tier == tier) & (reads == reads[at])
    count = jnp.sum(is_alike & ~here, dtype=jnp.int32) + 1
    ends = now + _service_us(numbers, jobs, at, reads[at], count)
    here = here & is_it
    return dataclasses.replace(
        jobs,
        status=jnp.where(here, jnp.int32(JobState.SERVED), jobs.status),
        ends=jnp.where(here, ends, jobs.ends),
        by_writer=jnp.where(here, by_writer, jobs.by_writer),
    )


def _service_us(
    numbers: OffloadParams, jobs: Jobs, at: jax.Array, reads: jax.Array, count: jax.Array
) -> jax.Array:
    """How long a transfer takes, whole µs, when so many of its kind are served."""
    tier = jobs.tier[at]
    bandwidth = jnp.where(reads, numbers.read_bandwidth[tier], numbers.write_bandwidth[tier])
    depth, fraction = numbers.depth[tier], numbers.fraction[tier]
    others = (count - 1).astype(jnp.float64)
    share = exact_quotient(exact_product(1.0 - fraction, others), jnp.maximum(depth - 1.0, 1.0))
    is_whole = (depth < 2) | (fraction >= 1) | (fraction <= 0) | (others + 1.0 >= depth)
    bandwidth = jnp.where(is_whole, bandwidth, exact_product(bandwidth, fraction + share))
    size = exact_product(jobs.num_blocks[at].astype(jnp.float64), numbers.block_bytes)
    usual = numbers.base_us[tier] + jnp.trunc(exact_quotient(size, bandwidth))
    jittered = exact_product(usual, jobs.factor[at])
    cut = jnp.trunc(jittered)
    rounded = cut + (jittered - cut >= 0.5).astype(jnp.float64)  # halves away from zero
    return jnp.where(numbers.jitter[tier] > 0, rounded, usual).astype(jnp.int64)


def _ended(
    numbers: OffloadParams, jobs: Jobs, counts: Int[Array, "count"]
) -> tuple[Jobs, Int[Array, "count"]]:
    """The transfers once the next one has ended, and its thread has taken another."""
    now, reads = next_end(jobs), is_read(jobs, numbers)
    ending = (jobs.status == JobState.SERVED) & (jobs.ends == now)
    for column in (jobs.submitted, jobs.tier, (~reads).astype(jnp.int32), jobs.number):
        top = jnp.iinfo(column.dtype).max
        ending = ending & (column == jnp.min(jnp.where(ending, column, top)))
    at = jnp.argmax(ending)
    jobs = dataclasses.replace(
        jobs,
        status=jnp.where(ending, jnp.int32(JobState.DONE), jobs.status),
        done_at=jnp.where(ending, counts[Count.DONE], jobs.done_at),
    )
    counts = counts.at[Count.DONE].add(1)
    by_writer = jobs.by_writer[at]
    queued = (jobs.status == JobState.QUEUED) & (jobs.tier == jobs.tier[at])
    own = queued & (reads == (by_writer == 0))
    queued = jnp.where(jnp.any(own), own, queued)
    first = jnp.min(jnp.where(queued, jobs.number, jnp.iinfo(jnp.int32).max))
    here = queued & (jobs.number == first)
    after = jnp.argmax(here).astype(jnp.int32)
    return _begun(numbers, jobs, here, after, now, by_writer, jnp.any(here)), counts


# --- copies on the CPU of what batches hold ------------------------------------------------------


class OffloadUses(Uses):
    """The uses of a CPU tier with storage behind it: transfers hold entries, and a reload takes no time."""

    after_reload = Do.FETCH
    again = Do.BRING_BACK

    def readable(self, turn: Turn, entry: jax.Array) -> jax.Array:
        """Return the entry if its content is there and not on its way, else the spare one."""
        table, spare = turn.state[OffloadTable], jnp.int32(turn.blocks.cpu_key.shape[1] - 1)
        return jnp.where(table.is_pending[turn.instance, entry], spare, entry)

    def moved(self, turn: Turn, entry: jax.Array) -> jax.Array:
        """Return the entry if its use makes it the latest one, else the spare one."""
        table, spare = turn.state[OffloadTable], jnp.int32(turn.blocks.cpu_key.shape[1] - 1)
        return jnp.where(table.num_writes[turn.instance, entry] > 0, spare, entry)

    def before_step(self, task: MemoryTask) -> MemoryTask:
        """Return the task that hears of transfers."""
        return task.replace(do=jnp.int32(Do.POLL))

    def repeats(self, is_pure: jax.Array) -> jax.Array:
        """Return false: each step uses what the batch holds."""
        return jnp.array(False)

    def waits(self, state: State, instance: jax.Array) -> tuple[jax.Array, ...]:
        """Return whether some request of the instance waits for storage."""
        slots = SlotRows(state, instance)
        phase = waits_of(state[OffloadTable], instance, slots.request)
        return (jnp.any((phase == WaitPhase.LOOK_UP) | (phase == WaitPhase.WAIT)),)


class SavingUses(OffloadUses):
    """Likewise, but what comes back is not computed again: a second attempt asks for what is missing then."""

    def keeps_to(self, one: Tenant, is_again: jax.Array) -> jax.Array:
        """Return whether it is of no waiting request, which alone can find blocks."""
        return is_again & ~one.is_queued


def mirror(ctx: Context, state: State, is_on: jax.Array) -> State:
    """Return the state in which what the batch holds has been used."""
    here, task, now = begun(ctx, state, is_on)
    slots, size = SlotRows(state, here.instance), ctx.shape.block_size
    inst = Instance(state.inst.numbers[here.instance])
    order = slots.order
    held = slots.alloc_offset + jnp.where(slots.finish != LAST, inst.step_index, 0)
    count = jnp.where(order != LAST, ceil_div(held, size), 0)
    in_prompt = jnp.minimum(count, full_blocks(slots.input_len, size))
    count = jnp.where(numbers_of(ctx).is_prompt_only, in_prompt, count)

    def next_member(place: jax.Array) -> jax.Array:
        return jnp.min(jnp.where((order > place) & (count > 0), order, jnp.int32(LAST)))

    def goes_on(carry: tuple[jax.Array, jax.Array, Here]) -> jax.Array:
        return is_on & (carry[0] != LAST)

    def use(carry: tuple[jax.Array, jax.Array, Here]) -> tuple[jax.Array, jax.Array, Here]:
        place, start, here = carry
        slot = jnp.argmax(order == place).astype(jnp.int32)
        here, reached = _used(ctx, state, here, slot, start, count[slot], now)
        is_over = reached >= count[slot]
        after = jnp.where(is_over, next_member(place), place)
        return after, jnp.where(is_over, 0, reached), here

    first = next_member(jnp.int32(-1)), jnp.int32(0), here
    here = lax.while_loop(goes_on, use, first)[2]
    return ended(state, here, task, is_on, do=jnp.int32(Do.NOTHING))


def _used(
    ctx: Context,
    state: State,
    here: Here,
    slot: jax.Array,
    start: jax.Array,
    count: jax.Array,
    now: jax.Array,
) -> tuple[Here, jax.Array]:
    """The tiers after the uses of a member's list up to the first block that gets an entry; and how far that is."""
    blocks, shape = state[Blocks], ctx.shape
    position = lax.iota(jnp.int32, shape.list_blocks)
    is_listed = (position >= start) & (position < count)
    listed = lax.dynamic_slice(
        blocks.lists, (here.instance, slot, jnp.int32(0)), (1, 1, shape.list_blocks)
    )[0, 0]
    name = blocks.key[here.instance, jnp.where(is_listed, listed, jnp.int32(shape.num_blocks))]
    name = jnp.where(is_listed, name, jnp.int64(0))
    place = places(ctx, blocks, name, here.instance)
    entry, idle = entries_of(ctx, here, name, place), here.idle
    missing = (name != 0) & (entry == here.spare)
    capacity = ctx.params.cluster.kv_cpu_blocks[jnp.minimum(here.instance, shape.num_instances - 1)]
    has_empty = here.used < capacity
    has_room = has_empty | jnp.any(idle)
    first = jnp.min(jnp.where(missing & has_room, position, count))
    is_touched = (name != 0) & ~missing & (position < first) & idle[entry]
    before = here.time[here.spare]
    touched = here.time.at[jnp.where(is_touched, entry, here.spare)].max(
        before + position.astype(jnp.int64)
    )
    stores = first < count
    oldest = jnp.argmin(jnp.where(idle, touched, LAST_TURN)).astype(jnp.int32)
    taken = jnp.where(has_empty, here.used, oldest)
    number, at = lax.iota(jnp.int32, here.key.shape[0]), jnp.minimum(first, position[-1])
    is_new = stores & (number == taken)
    turn = jnp.where(is_new, before + first.astype(jnp.int64), touched)
    spare = number == here.spare
    noted = here.contents.entry
    where = (here.instance, jnp.where(stores, place[at], noted.shape[1] - 1))
    here = dataclasses.replace(
        here,
        key=jnp.where(is_new, name[at], here.key),
        time=jnp.where(spare, before + position.shape[0], turn),
        used=here.used + as_int(stores & has_empty),
        copies=here.copies + as_int(stores),
        num_writes=jnp.where(is_new, jnp.int32(num_tiers(ctx)), here.num_writes),
        contents=dataclasses.replace(here.contents, entry=noted.at[where].set(taken)),
    )
    here = here.counted(Count.EVICTIONS, stores & ~has_empty)
    skipped = jnp.sum(missing & ~has_room, dtype=jnp.int32)
    here = _written(ctx, here.counted(Count.SKIPS, skipped), taken, now, stores)
    return here, jnp.where(stores, first + 1, count)


def _written(ctx: Context, here: Here, entry: jax.Array, now: jax.Array, stores: jax.Array) -> Here:
    """The tiers in which a new entry is on its way to each of them."""
    jobs, counts, one = here.jobs, here.counts, jnp.int32(1)
    for at in range(num_tiers(ctx)):
        job, tier = jnp.int32(at * here.key.shape[0]) + entry, jnp.int32(at)
        jobs, counts = submitted(numbers_of(ctx), jobs, counts, job, tier, one, now, stores)
    return dataclasses.replace(here, jobs=jobs, counts=counts)
