"""The tiers of an instance: which blocks of a prompt they hold, how blocks come to the CPU, and transfer threads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.memory.block_tables.contents import NO_JUMPS, is_same, names, shared_or_own
from blis_jax.tables.blocks import Blocks, InstanceMemory, MemoryTask, num_contents
from blis_jax.tables.context import Context, row
from blis_jax.tables.joined import instance_of
from blis_jax.tables.journeys import Reservations
from blis_jax.tables.offload import (
    Count,
    Jobs,
    JobState,
    KnownContents,
    OffloadParams,
    OffloadTable,
    Waits,
)
from blis_jax.tables.state import Mode, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

LAST_TURN = jnp.iinfo(jnp.int64).max


@pytree
class Here:
    """The tiers of one instance, or of the spare one if it is not its turn; `contents` are those of all instances."""

    instance: Int[Array, ""]
    key: Int[Array, "entry"]
    time: Int[Array, "entry"]  # turn of the last use; the spare entry says how many there were
    used: Int[Array, ""]  # entries that have a content, which are the first ones
    copies: Int[Array, ""]  # of blocks that came from the GPU
    num_writes: Int[Array, "entry"]
    is_pending: Bool[Array, "entry"]
    run: Int[Array, "entry"]
    place: Int[Array, "entry"]
    jobs: Jobs
    waits: Waits
    counts: Int[Array, "count"]
    contents: KnownContents

    @property
    def spare(self) -> jax.Array:
        """Return the entry that never holds a content."""
        return jnp.int32(self.key.shape[0] - 1)

    @property
    def idle(self) -> Bool[Array, "entry"]:
        """Return which entries may be evicted: filled, and held by no transfer."""
        return (self.key != 0) & ~self.is_pending & (self.num_writes == 0)

    def counted(self, what: Count, more: jax.Array) -> Here:
        """Return the tiers with a count increased by `more`."""
        counts = self.counts.at[what].add(more.astype(jnp.int32))
        return dataclasses.replace(self, counts=counts)


_ROWS = ("num_writes", "is_pending", "run", "place", "jobs", "waits", "counts")


def here_of(state: State, instance: jax.Array) -> Here:
    """Return the tiers of an instance."""
    blocks, table = state[Blocks], state[OffloadTable]
    rows = {
        name: jax.tree.map(lambda part: row(part, instance), getattr(table, name)) for name in _ROWS
    }
    pool = InstanceMemory(row(blocks.pool, instance))
    key, time = row(blocks.cpu_key, instance), row(blocks.cpu_time, instance)
    return Here(instance, key, time, pool.cpu_used, pool.offloads, **rows, contents=table.contents)


def with_here(state: State, here: Here) -> State:
    """Return the state with the tiers of an instance written."""
    blocks, table, at = state[Blocks], state[OffloadTable], (here.instance, jnp.int32(0))

    def put(rows: jax.Array, new: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(rows, new[None], at)

    rows = {name: jax.tree.map(put, getattr(table, name), getattr(here, name)) for name in _ROWS}
    pool = InstanceMemory(row(blocks.pool, here.instance)).replace(
        cpu_used=here.used, offloads=here.copies
    )
    blocks = dataclasses.replace(
        blocks,
        cpu_key=put(blocks.cpu_key, here.key),
        cpu_time=put(blocks.cpu_time, here.time),
        pool=put(blocks.pool, pool.numbers),
    )
    return state.having(blocks, OffloadTable(**rows, contents=here.contents))


def begun(ctx: Context, state: State, is_on: jax.Array) -> tuple[Here, MemoryTask, jax.Array]:
    """Return the tiers of the active instance, the task, and the time in µs.

    Where KV is stored between steps, the tiers' clock stands at the start of the instance's last step, as in BLIS.
    """
    lane = state.lane.row
    instance = jnp.where(is_on, lane.active, ctx.spare_instance)
    task, now = MemoryTask(state[Blocks].task), lane.now
    if Reservations in state:
        inst = instance_of(ctx, state, instance)
        last = jnp.where(inst.step_index > 0, inst.last_start, jnp.zeros_like(now))
        now = jnp.where(lane.mode >= Mode.STORING, last, now)
    return here_of(state, instance), task, now.astype(jnp.int64)


def ended(state: State, here: Here, task: MemoryTask, is_on: jax.Array, **changes: Any) -> State:
    """Return the state with the tiers written, and the task with these changes if `is_on`."""
    state = with_here(state, here)
    blocks = state[Blocks]
    numbers = jnp.where(is_on, task.replace(**changes).numbers, blocks.task)
    return state.having(dataclasses.replace(blocks, task=numbers))


def numbers_of(ctx: Context) -> OffloadParams:
    """Return the numbers of the tiers."""
    numbers: OffloadParams = ctx.params.cluster[OffloadParams]
    return numbers


def num_tiers(ctx: Context) -> int:
    """Return the number of storage tiers behind the CPU."""
    return numbers_of(ctx).base_us.shape[0]


def entries_of(
    ctx: Context, here: Here, name: Int[Array, "n"], place: Int[Array, "n"]
) -> Int[Array, "n"]:
    """Return the entry that holds each content; the spare entry if none does."""
    noted = here.contents.entry[here.instance, place]
    is_noted = (here.key[noted] == name) & (name != 0)
    is_lost = (name != 0) & ~is_noted
    if not ctx.mechanism.moves_requests:  # else a content may have come back to another place
        is_lost = is_lost & (place == jnp.int32(num_contents(ctx.shape)))

    def search() -> jax.Array:
        is_it = here.key[None, :] == name[:, None]
        first = jnp.argmax(is_it, axis=1).astype(jnp.int32)
        return jnp.where(jnp.any(is_it, axis=1), first, here.spare)

    searched = ctx.when(
        jnp.any(is_lost),
        search,
        lambda: jnp.full(name.shape, here.spare),
    )
    return jnp.where(is_noted, noted, jnp.where(is_lost, searched, here.spare))


class Prompt(NamedTuple):
    """The blocks of a request's prompt, each field `[position]`."""

    name: jax.Array
    place: jax.Array
    entry: jax.Array  # the spare one if it is not on the CPU
    is_readable: jax.Array  # on the CPU
    is_absent: jax.Array  # from the CPU

    def first(self, is_it: jax.Array) -> jax.Array:
        """Return the first position where `is_it` holds, the number of positions if there is none."""
        position = lax.iota(jnp.int32, is_it.shape[0])
        return jnp.min(jnp.where(is_it, position, jnp.int32(is_it.shape[0])))


def prompt_of(ctx: Context, here: Here, slot: jax.Array, request: jax.Array) -> Prompt:
    """Return the prompt blocks of the request in a slot; positions beyond the prompt's end hold junk."""
    position = lax.iota(jnp.int32, ctx.shape.list_blocks)
    end = (position + 1) * jnp.int32(ctx.shape.block_size)
    name = names(ctx, request, end, jnp.int32(NO_JUMPS))
    place = shared_or_own(ctx, slot, request, position)
    entry = entries_of(ctx, here, name, place)
    is_absent = entry == here.spare
    return Prompt(name, place, entry, ~is_absent & ~here.is_pending[entry], is_absent)


def is_on_gpu(blocks: Blocks, instance: jax.Array, prompt: Prompt) -> Bool[Array, "position"]:
    """Return which blocks of a prompt are in the GPU's prefix table."""
    named = blocks.named[instance, prompt.place]
    return (named >= 0) & is_same(blocks.key[instance, jnp.maximum(named, 0)], prompt.name)


def tiers_of(ctx: Context, here: Here, prompt: Prompt) -> Int[Array, "position"]:
    """Return the first tier that holds each block of a prompt; the number of tiers if none does."""
    tier = jnp.full(prompt.name.shape, jnp.int32(num_tiers(ctx)))
    for at in reversed(range(num_tiers(ctx))):
        is_held = here.contents.held[here.instance, at, prompt.place] == prompt.name
        tier = jnp.where(is_held, jnp.int32(at), tier)
    return tier


def fetched(
    ctx: Context,
    here: Here,
    prompt: Prompt,
    is_run: jax.Array,
    tier: jax.Array,
    now: jax.Array,
    is_it: jax.Array,
) -> tuple[Here, jax.Array]:
    """Return the tiers with a run's absent blocks on their way to the CPU, if there is room; and whether there is."""
    if not num_tiers(ctx):
        return here, jnp.array(False)
    absent = is_run & prompt.is_absent & is_it
    count, number = jnp.sum(absent, dtype=jnp.int32), lax.iota(jnp.int32, here.key.shape[0])
    capacity = ctx.params.cluster.kv_cpu_blocks[
        jnp.minimum(here.instance, ctx.shape.num_instances - 1)
    ]
    free = capacity - here.used
    fits = (count > 0) & (count <= free + jnp.sum(here.idle, dtype=jnp.int32))
    is_empty = (number >= here.used) & (number < capacity)
    turn = jnp.where(here.idle, here.time, LAST_TURN)
    order = jnp.argsort(jnp.where(is_empty, number.astype(jnp.int64) - LAST_TURN, turn))
    order = order.astype(jnp.int32)
    rank = jnp.cumsum(absent, dtype=jnp.int32) - 1
    is_fetched = absent & fits
    entry = jnp.where(is_fetched, order[jnp.maximum(rank, 0)], here.spare)
    head, spare = order[0], number == here.spare
    nowhere = jnp.int32(num_contents(ctx.shape))
    place = jnp.where(is_fetched, prompt.place, nowhere)
    noted = here.contents.entry.at[here.instance, place].set(entry)
    is_new = jnp.zeros_like(here.is_pending).at[entry].set(True) & ~spare
    here = dataclasses.replace(
        here,
        key=jnp.where(is_new, here.key.at[entry].set(prompt.name), here.key),
        used=jnp.where(fits, jnp.minimum(here.used + count, capacity), here.used),
        is_pending=here.is_pending | is_new,
        run=jnp.where(is_new, head, here.run),
        place=jnp.where(is_new, here.place.at[entry].set(rank), here.place),
        contents=dataclasses.replace(here.contents, entry=noted),
    )
    at = jnp.int32(num_tiers(ctx)) * jnp.int32(here.key.shape[0]) + head
    jobs, counts = submitted(numbers_of(ctx), here.jobs, here.counts, at, tier, count, now, fits)
    here = dataclasses.replace(here, jobs=jobs, counts=counts)
    here = here.counted(Count.EVICTIONS, jnp.where(fits, jnp.maximum(count - free, 0), 0))
    here = here.counted(Count.FETCHES, fits).counted(Count.REFUSALS, is_it & ~fits)
    return here.counted(Count.CHANGES, as_int(is_it)), fits


FOREVER = jnp.iinfo(jnp.int64).max
LEAST_FACTOR = 0.05


def is_read(jobs: Jobs, numbers: OffloadParams) -> Bool[Array, "job"]:
    """Return which jobs are reads from storage: the last ones of the table."""
    count, tiers = jobs.status.shape[0], numbers.base_us.shape[0]
    return lax.iota(jnp.int32, count) >= count // (tiers + 1) * tiers


def next_end(jobs: Jobs) -> jax.Array:
    """Return when the next transfer ends, FOREVER if none is in progress."""
    return jnp.min(jnp.where(jobs.status == JobState.SERVED, jobs.ends, FOREVER))


def advanced(
    numbers: OffloadParams,
    jobs: Jobs,
    counts: Int[Array, "count"],
    now: jax.Array,
    is_on: jax.Array,
) -> tuple[Jobs, Int[Array, "count"]]:
    """Return the transfers advanced to the time `now`, if `is_on`."""

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
    """Return the transfers with one more, which a free thread serves at once."""
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
    """Return the transfers in which this one is served from `now` on."""
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
    """Return how long a transfer takes, whole µs, if `count` of its kind are served at a time."""
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
    """Return the transfers after the next one has ended and its thread has begun another."""
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
    of_side = queued & (reads == (by_writer == 0))
    queued = jnp.where(jnp.any(of_side), of_side, queued)
    first = jnp.min(jnp.where(queued, jobs.number, jnp.iinfo(jnp.int32).max))
    here = queued & (jobs.number == first)
    after = jnp.argmax(here).astype(jnp.int32)
    return _begun(numbers, jobs, here, after, now, by_writer, jnp.any(here)), counts
