"""Block-level KV memory: its tables, and the operation in progress.

Each instance has physical blocks on a free list (a ring of block numbers: pops at the head, releases at the tail,
holes where a block was taken from the middle), block lists of its resident requests, and a table from content
to block. An operation moves at most `window` blocks at a time; what is left to do is kept in the task.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import Row, Whole
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.types import EngineShape, Mechanism, Params

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

NO_BLOCK = -1
NO_KEY = 0
LOOK_UP_BLOCKS = 32  # of a prompt, looked at at once
NEVER_FREE = 1  # holders of the numbers beyond an instance's pool


class Do(enum.IntEnum):
    """The next operation of block-level memory."""

    NOTHING = 0
    PIN = 1  # list the blocks found in the cache, and take references to them
    TAKE = 2  # fill the last block, pop new ones
    ROLL_BACK = 3  # undo an allocation that ran out of blocks
    RELOAD = 4  # bring content back from the CPU tier
    ATTEMPT = 5  # allocate again for the request in SLOT
    FAILED = 6  # give up: evict a request, or stop admitting
    RELEASE = 7  # give up a request's references, last block first
    OFFLOAD = 8  # copy content of free blocks to the CPU tier
    RESTORE = 9  # second half of a roll-back
    MIRROR = 10  # copy what the batch holds to the CPU tier of August's revision
    POLL = 11  # hear which transfers of off-load tiers have ended, before a step
    BRING_BACK = 12  # their second half of RELOAD: content comes back from the CPU
    FETCH = 13  # ask storage for the block that ended it


class Asker(enum.IntEnum):
    """The request for which blocks are allocated: a member, the head of the queue, a ghost, or a completing request."""

    MEMBER = 0
    QUEUE = 1  # head of the wait queue
    GHOST = 2  # visited at a place of the batch that it has left
    COMPLETION = 3  # last token of a request that completes


class Pinning(enum.IntEnum):
    """What becomes of the cached blocks that a look-up found."""

    KEPT = 0  # the allocation goes on
    DOOMED = 1  # it will run out of blocks
    NOTED = 2  # it is attempted again; they are listed for that, and nobody holds them
    LEFT = 3  # it has failed, and they are held all the same: August's CPU tier


class MemoryTask(Row):
    """The operation in progress on the active instance."""

    do: Whole
    asker: Whole
    slot: Whole
    request: Whole
    is_retry: Whole  # after a reload
    start: Whole  # position of the first token to store
    tokens: Whole
    hits: Whole  # blocks found; their numbers lead the slot's list
    held: Whole  # tokens in the list before
    stored: Whole  # tokens that go to the partly filled last block
    takes: Whole  # blocks to pop
    done: Whole  # blocks dealt with so far
    in_prefill: Whole
    jumps: Whole  # of the list as it will be, see `contents.after_jump`
    freed_slot: Whole
    freed_blocks: Whole
    after_release: Whole  # Do: what follows the release
    after_offload: Whole
    pinning: Whole  # Pinning: what for
    is_old: Whole  # the blocks found head the slot's list already
    asked_start: Whole  # what the visit asked for at first; a retry may ask for less
    asked_tokens: Whole
    asked_hits: Whole
    cursor: Whole  # of a reload: least block number not looked at; of an offload: end of its scan
    has_reloaded: Whole
    num_ghosts: Whole
    has_preempted: Whole  # in this step: nobody is admitted any more


class InstanceMemory(Row):
    """The registers of an instance's memory."""

    head: Whole  # ring positions, counted on for ever
    tail: Whole
    hashless_up_to: Whole  # free blocks before this ring position carry no content
    num_preempted: Whole
    num_failures: Whole  # allocations for a last token that failed
    cpu_used: Whole
    offloads: Whole
    reloads: Whole
    cpu_misses: Whole
    thrashing: Whole
    pending_reloads: Whole  # blocks whose transfer the next step waits for
    stalled_steps: Whole
    best_progress: Whole
    is_mirrored: Whole  # August's CPU tier has the batch's contents in the order of its last use


class BlockLife(Row):
    """A request's history at block level."""

    visited_at: Whole  # number of the step in which it was visited last
    jumps: Whole  # of its list: 0 while that holds the request's own prefix
    offset: Whole  # position of the token to store next, less the tokens in the list
    first_token: Whole  # record of its last first token, plus 1; 0 if none was recorded
    old_first_token: Whole  # the same before this step, likewise the next two
    old_token_record: Whole
    old_token_index: Whole


# EvictionRecord.scheduled_record of rows that are no preemptions:
PASSED_OVER = -1  # a step in which a member only got nothing
# a life that a hand-over or a stop ended, of a request that keeps its output and was preempted before
CUT_OFF = -2


class EvictionRecord(Row):
    """The record of a preemption."""

    request: Whole
    record: Whole  # of the step that evicted it
    index: Whole  # number of that step
    # record in which this life's decode began, plus 1; 0 if it did not; negative if its latencies are forgotten
    decode_record: Whole
    decode_index: Whole
    first_token: Whole
    scheduled_record: Whole


# places of the fields, for code that reads whole tables
Task, Pool = MemoryTask.columns, InstanceMemory.columns
Life, Eviction = BlockLife.columns, EvictionRecord.columns


@pytree
class Regained:
    """Output tokens that count as prompt since a request's last preemption, where any are kept."""

    tokens: Int[Array, "request"]


@pytree
class TierEntries:
    """The entry of August's CPU tier that last had the content of each block."""

    entry: Int[Array, "instance block"]


@pytree
class TierOrder:
    """The entries of August's CPU tier by their last use, as a linked ring; only without an offload policy.

    The index after the last entry marks the place between the most and the least recently used; the one after it is a
    spare.
    """

    before: Int[Array, "instance link"]
    behind: Int[Array, "instance link"]
    # entry in which each content that can be looked up was put last; it may have another one by now
    entry_of: Int[Array, "instance content"]


@pytree
class Takes:
    """How many of an instance's requests took each shared content, and the last one, for an offload policy."""

    count: Int[Array, "instance shared"]
    taker: Int[Array, "instance shared"]


@pytree
class TierWorths:
    """The worth of each entry of August's CPU tier at its last use, as the offload policy gave it."""

    worth: Float[Array, "instance entry"]


@pytree
class Blocks(HasParts):
    """Block-level memory of all instances; every axis that is written has a spare entry."""

    hold: Int[Array, "instance block"]  # references, or -1 - ring position of a free block
    key: jax.Array  # int64[instance, block]: content carried, see contents.py
    ring: Int[Array, "instance place"]
    lists: Int[Array, "instance slot position"]
    named: Int[Array, "instance content"]  # table from content to block, where it can be looked up
    is_named: jax.Array  # bool[instance, block]: the table names it; kept for the CPU tier
    slot_of: Int[Array, "request"]  # where requests move: slot + num_slots · instance
    computed: Int[Array, "instance slot"]  # prompt tokens; in decode, progress - steps made
    # [instance, slot]: of running requests, as last computed; [1, 1] where it does not count
    priority: Float[Array, "_ _"]
    ghosts: Int[Array, "slot+1"]  # slots still to be visited where they no longer are
    life: Int[Array, "request life_column"]
    pool: Int[Array, "instance pool_column"]
    task: Int[Array, "task_column"]
    evictions: Int[Array, "record eviction_column"]
    num_evictions: Int[Array, ""]
    # int64[instance, block]; with August's CPU tier [instance, entry], see mirror.py
    cpu_key: jax.Array
    cpu_time: jax.Array  # clock[instance, block]; there int64[instance, entry]: turns of use
    own: Parts  # Regained, TierEntries, TierOrder, Takes, TierWorths


def initial_blocks(shape: EngineShape, mechanism: Mechanism, params: Params) -> Blocks:
    """Return the tables of block-level memory with all blocks free, in order of their numbers."""
    rows, slots, size = shape.num_instances + 1, shape.num_slots, shape.num_blocks + 1
    i32 = jnp.int32
    total = jnp.pad(params.cluster.total_kv_blocks, (0, 1))
    number = lax.broadcasted_iota(i32, (rows, size), 1)
    is_free = number < total[:, None]
    place = lax.broadcasted_iota(i32, (rows, shape.ring_size + 1), 1)
    pool = jnp.zeros((rows, len(Pool)), i32).at[:, Pool.TAIL].set(total)
    bits = (rows, size) if shape.names_blocks else (1, 1)
    tier = (rows, shape.mirror_size + 1) if shape.has_mirror else bits
    widest = max(shape.window, LOOK_UP_BLOCKS, mirror_window(shape))
    ranked = (rows, slots) if mechanism.evicts_lowest_priority else (1, 1)
    return Blocks(
        hold=jnp.where(is_free, -1 - number, NEVER_FREE),
        key=jnp.zeros((rows, size), jnp.int64),
        ring=jnp.where(place < total[:, None], place, NO_BLOCK),
        lists=jnp.zeros((rows, slots, shape.list_blocks + widest), i32),
        named=jnp.full((rows, num_contents(shape) + 1), NO_BLOCK, i32),
        is_named=jnp.zeros(bits, bool),
        slot_of=jnp.full((shape.num_requests + 1,), -1, i32),
        computed=jnp.zeros((rows, slots), i32),
        priority=jnp.zeros(ranked, jnp.float64),
        ghosts=jnp.zeros((slots + 1,), i32),
        life=jnp.zeros((shape.num_requests + 1, len(Life)), i32),
        pool=pool,
        task=jnp.zeros((len(Task),), i32),
        evictions=jnp.zeros((shape.eviction_capacity + 1, len(Eviction)), i32),
        num_evictions=jnp.zeros((), i32),
        cpu_key=jnp.zeros(tier, jnp.int64),
        cpu_time=jnp.zeros(tier, jnp.int64 if shape.has_mirror else shape.clock_dtype),
        own=_parts(shape, mechanism),
    )


def _parts(shape: EngineShape, mechanism: Mechanism) -> Parts:
    rows, i32, mirror = shape.num_instances + 1, jnp.int32, shape.has_mirror

    def no_takes() -> Takes:
        count = jnp.zeros((rows, shape.num_shared_blocks + 1), i32)
        return Takes(count, count)

    judges = mechanism.offload is not None
    return Parts.used(
        (lambda: Regained(jnp.zeros((shape.num_requests + 1,), i32)), mechanism.rules.keeps_output),
        (lambda: TierEntries(jnp.zeros((rows, shape.num_blocks + 1), i32)), mirror),
        (lambda: _no_order(shape), mirror and mechanism.links_uses),
        (no_takes, judges),
        (lambda: TierWorths(jnp.full((rows, shape.mirror_size + 1), -jnp.inf)), mirror and judges),
    )


def _no_order(shape: EngineShape) -> TierOrder:
    rows, last = shape.num_instances + 1, jnp.int32(shape.mirror_size)
    links = jnp.full((rows, shape.mirror_size + 2), last)
    entries = jnp.full((rows, num_contents(shape) + 1), last)
    return TierOrder(links, links, entries)


def emptied(
    shape: EngineShape, params: Params, blocks: Blocks, is_it: Bool[Array, "instance"]
) -> Blocks:
    """Return the memory after some instances (a spare row included) have lost all contents; counters continue."""
    total = jnp.pad(params.cluster.total_kv_blocks, (0, 1))[:, None]
    row = is_it[:, None]
    number = lax.broadcasted_iota(jnp.int32, blocks.hold.shape, 1)
    place = lax.broadcasted_iota(jnp.int32, blocks.ring.shape, 1)
    pool = blocks.pool
    for column, value in (
        (Pool.HEAD, 0),
        (Pool.TAIL, total[:, 0]),
        (Pool.HASHLESS_UP_TO, 0),
        (Pool.CPU_USED, 0),
        (Pool.PENDING_RELOADS, 0),
    ):
        pool = pool.at[:, column].set(jnp.where(is_it, value, pool[:, column]))
    tier = row & jnp.ones(blocks.is_named.shape, bool) if shape.has_cpu_tier else jnp.array(False)
    if shape.has_mirror:
        pool = pool.at[:, Pool.IS_MIRRORED].set(jnp.where(is_it, 0, pool[:, Pool.IS_MIRRORED]))
        tier = row
        blocks = blocks.having(TierEntries(jnp.where(row, 0, blocks[TierEntries].entry)))
        blocks = dataclasses.replace(blocks, cpu_time=jnp.where(row, 0, blocks.cpu_time))
    if TierOrder in blocks:
        keep = blocks[TierOrder], _no_order(shape)
        blocks = blocks.having(jax.tree.map(lambda old, new: jnp.where(row, new, old), *keep))
    if TierWorths in blocks:
        blocks = blocks.having(TierWorths(jnp.where(row, -jnp.inf, blocks[TierWorths].worth)))
    if Takes in blocks:
        takes = blocks[Takes]
        blocks = blocks.having(Takes(jnp.where(row, 0, takes.count), takes.taker))
    return dataclasses.replace(
        blocks,
        hold=jnp.where(row, jnp.where(number < total, -1 - number, NEVER_FREE), blocks.hold),
        key=jnp.where(row, jnp.int64(NO_KEY), blocks.key),
        ring=jnp.where(row, jnp.where(place < total, place, NO_BLOCK), blocks.ring),
        named=jnp.where(row, NO_BLOCK, blocks.named),
        is_named=jnp.where(tier, False, blocks.is_named),
        pool=pool,
        cpu_key=jnp.where(tier, jnp.int64(NO_KEY), blocks.cpu_key),
    )


def mirror_window(shape: EngineShape) -> int:
    """Return how many blocks of a list August's CPU tier uses at a time; 0 if there is no such tier."""
    return min(shape.list_blocks, 128) if shape.has_mirror else 0


def num_contents(shape: EngineShape) -> int:
    """Count the contents that can be looked up on one instance: shared contents, and those of resident requests."""
    return shape.num_shared_blocks + shape.num_slots * shape.list_blocks


def compact(shape: EngineShape, blocks: Blocks) -> Blocks:
    """Move the free blocks to the start of their rings, in the same order, so that holes do not fill the rings."""
    places = shape.ring_size
    offset = lax.broadcasted_iota(jnp.int32, (blocks.ring.shape[0], places), 1)
    head, tail = blocks.pool[:, Pool.HEAD], blocks.pool[:, Pool.TAIL]
    at = (head[:, None] + offset) & (places - 1)
    in_order = jnp.take_along_axis(blocks.ring[:, :places], at, axis=1)
    is_live = (offset < (tail - head)[:, None]) & (in_order >= 0)
    rank = jnp.cumsum(is_live, axis=1, dtype=jnp.int32) - 1
    rows = lax.broadcasted_iota(jnp.int32, offset.shape, 0)
    ring = jnp.full_like(blocks.ring, NO_BLOCK)
    ring = ring.at[rows, jnp.where(is_live, rank, places)].set(in_order)
    ring = ring.at[:, places].set(NO_BLOCK)
    number = jnp.where(is_live, in_order, shape.num_blocks)
    hold = blocks.hold.at[rows, number].set(-1 - rank)
    hold = hold.at[:, shape.num_blocks].set(NEVER_FREE)
    count = jnp.sum(is_live, axis=1, dtype=jnp.int32)
    before = offset < (blocks.pool[:, Pool.HASHLESS_UP_TO] - head)[:, None]
    hashless = jnp.sum(is_live & before, axis=1, dtype=jnp.int32)
    pool = blocks.pool.at[:, Pool.HEAD].set(0).at[:, Pool.TAIL].set(count)
    pool = pool.at[:, Pool.HASHLESS_UP_TO].set(hashless)
    return dataclasses.replace(blocks, ring=ring, hold=hold, pool=pool)


def is_crowded(
    shape: EngineShape, blocks: Blocks, num_free: Int[Array, "instance"], slack: int
) -> jax.Array:
    """Return whether a ring could overflow within `slack` more places, or consists mostly of holes, which cost time."""
    length = blocks.pool[:-1, Pool.TAIL] - blocks.pool[:-1, Pool.HEAD]
    holes = length - num_free
    is_full = length + slack > shape.ring_size
    is_hollow = holes > num_free + shape.ring_size // 8
    do = MemoryTask(blocks.task).do  # these keep a ring position between scan steps
    is_scanning = (do == Do.OFFLOAD) | (do == Do.RESTORE)
    return jnp.any(is_full | is_hollow) & ~is_scanning
