"""Whether an instance's barren steps repeat: its state after a round of them equals the state before, moved on in time.

Times move by the period, step numbers by the round's steps, counters grow, and KV blocks may change places with each
other, since without a CPU tier a block's number means nothing. Everything else must be the same. Then
the state after k more rounds is the state now plus k times the change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import LAST, NO_REQUEST, EngineShape
from blis_jax.engine.state import RUNAWAY, Dyn, Inst, InstTime, Slot, SlotTime, State
from blis_jax.memory.block_tables.blocks import Blocks, Life, Pool
from blis_jax.memory.second_tier.cpu_tier import THRASHING_WINDOW_US

if TYPE_CHECKING:
    from jaxtyping import Int

_RECORDS = (  # columns that name a step record, and how much is added to its number; 0 then means none
    ("dyn", Dyn.FIRST_RECORD, 0),
    ("dyn", Dyn.SCHEDULED_RECORD, 0),
    ("dyn", Dyn.TOKEN_RECORD, 0),
    ("life", Life.FIRST_TOKEN, 1),
    ("life", Life.OLD_FIRST_TOKEN, 1),
    ("life", Life.OLD_TOKEN_RECORD, 0),
)
_GROWING = (
    Pool.NUM_PREEMPTED,
    Pool.NUM_FAILURES,
    Pool.OFFLOADS,
    Pool.RELOADS,
    Pool.CPU_MISSES,
    Pool.THRASHING,
)


class Differs(Exception):
    """The two states are not one round of a cycle apart; the message names the table."""


@dataclass(frozen=True)
class Change:
    """Entries of a table and by how much a round changes each."""

    table: str
    at: Any
    by: Int[np.ndarray, "..."]
    plus: int = 0  # of a record's number, in the table


@dataclass
class Round:
    """What one round of barren steps changes on an instance."""

    instance: int
    num_steps: int
    period_us: int
    total_us: int  # of the durations of its steps
    num_evictions: int
    changes: list[Change] = field(default_factory=list)
    records: list[Change] = field(default_factory=list)  # numbers of step records; `by` is 1 or 0
    kept_tokens: dict[int, int] = field(default_factory=dict)  # request -> record + 1, not renewed


def table_of(state: State, name: str) -> np.ndarray:
    """A table of the state or of its block-level memory."""
    blocks = state.blocks
    table: np.ndarray = getattr(state if name in State.__dataclass_fields__ else blocks, name)
    return table


class _Comparison:
    """Two states of one instance, between steps, a round apart."""

    def __init__(self, before: State, after: State, instance: int, shape: EngineShape) -> None:
        self.before, self.after, self.instance, self.shape = before, after, instance, shape
        self.changes: list[Change] = []
        requests = after.slot[Slot.REQUEST, instance]
        self.same("slot", (Slot.REQUEST, instance))
        self.slots = np.flatnonzero(requests != NO_REQUEST)
        self.requests = requests[self.slots]
        finish = after.slot[Slot.FINISH, instance, self.slots]
        self.has_finish, self.is_endless = finish != LAST, finish == RUNAWAY
        self.is_member = after.slot[Slot.ORDER, instance, self.slots] != LAST

    def pair(self, table: str, at: Any) -> tuple[np.ndarray, np.ndarray]:
        """The entries before and after, in 64 bits."""
        first, second = (table_of(one, table)[at] for one in (self.before, self.after))
        return np.asarray(first, np.int64), np.asarray(second, np.int64)

    def same(self, table: str, at: Any) -> None:
        """Entries that must not change."""
        self.moves(table, at, 0)

    def moves(self, table: str, at: Any, *allowed: Any) -> np.ndarray:
        """Entries that change by one of some amounts (of one for all, or one for each)."""
        first, second = self.pair(table, at)
        by = second - first
        fits = np.zeros(np.shape(by), bool)
        for amount in allowed:
            fits |= by == amount
        if not fits.all():
            raise Differs(table)
        self.changes.append(Change(table, at, by))
        return by

    def grows(self, table: str, at: Any) -> int:
        """A counter."""
        first, second = self.pair(table, at)
        if second < first:
            raise Differs(table)
        self.changes.append(Change(table, at, second - first))
        return int(second - first)

    def same_order(self, table: str, at: Any) -> None:
        """Entries whose ranks stay the same."""
        first, second = self.pair(table, at)
        if not np.array_equal(
            np.argsort(first, kind="stable"), np.argsort(second, kind="stable")
        ) or len(np.unique(first)) != len(np.unique(second)):
            raise Differs(table)


def one_round(
    before: State,
    after: State,
    instance: int,
    shape: EngineShape,
    own_records: Int[np.ndarray, "record"],
    num_new: int,
    is_alone: bool,
) -> Round:
    """The round between two states, or `Differs`; `own_records` are the instance's, of which `num_new` since.

    `is_alone` says that no step had more than one request in its batch, so that who is evicted needs no priority.
    """
    if before.router is not None and before.router.late is not None:
        raise Differs("router")  # what the router hears after the round was told within it
    both = _Comparison(before, after, instance, shape)
    if not is_alone:
        _stored_priorities(both)
    first, second = both.pair("inst_time", (instance, InstTime.EVENT))
    index = both.pair("inst", (instance, Inst.STEP_INDEX))
    period, steps = int(second - first), int(index[1] - index[0])
    if period <= 0 or steps <= 0:
        raise Differs("inst_time")
    evictions = _counters(both, period, steps)
    _slots(both, steps, evictions)
    _lives(both, steps)
    _same_blocks(both)
    _cpu_tier(both, period)
    total = both.grows("inst_time", (instance, InstTime.TOTAL_DURATION))
    found = Round(instance, steps, period, total, evictions, both.changes)
    _records(both, found, own_records, num_new)
    return found


def _counters(both: _Comparison, period: int, steps: int) -> int:
    """The instance's own rows; the number of requests that the round evicts."""
    i = both.instance
    for inst in Inst:
        if inst in (Inst.MISSES, Inst.HITS, Inst.NEXT_ORDER):
            both.grows("inst", (i, inst))
        else:
            both.moves("inst", (i, inst), steps if inst == Inst.STEP_INDEX else 0)
    for time in (InstTime.EVENT, InstTime.LAST_START, InstTime.BUSY_UNTIL):
        both.moves("inst_time", (i, time), period)
    chains = (i, slice(int(InstTime.CHAIN), None))
    never = both.pair("inst_time", chains)[0] >= never_us(both.before)
    both.moves("inst_time", chains, np.where(never, 0, period))
    for pool in (*_GROWING, Pool.CPU_USED, Pool.PENDING_RELOADS, Pool.BEST_PROGRESS):
        both.grows("pool", (i, pool)) if pool in _GROWING else both.same("pool", (i, pool))
    evicted = both.pair("pool", (i, Pool.NUM_PREEMPTED))
    return int(evicted[1] - evicted[0])


def never_us(state: State) -> int:
    """The clock's last time as a whole number."""
    dtype = state.slot_time.dtype
    return int(2**61 if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).max)


def pending_from(state: State, instance: int) -> int:
    """When the next request enters the instance's queue."""
    queued = np.asarray(state.slot_time[SlotTime.QUEUED, instance], np.int64)
    is_pending = queued > int(state.inst_time[instance, InstTime.LAST_START])
    return int(queued[is_pending].min(initial=never_us(state)))


def _stored_priorities(both: _Comparison) -> None:
    """What members of the batch are evicted by: without eviction by priority there is none."""
    if table_of(both.after, "priority").shape != both.after.slot.shape[1:]:
        return
    at = both.instance, both.slots[both.is_member]
    first, second = (table_of(one, "priority")[at] for one in (both.before, both.after))
    if not np.array_equal(first, second):
        raise Differs("priority")


def _slots(both: _Comparison, steps: int, evictions: int) -> None:
    """The slots: who is where in the batch and in the queue."""
    i, slots = both.instance, both.slots
    for column in Slot:
        if column not in (Slot.ORDER, Slot.FINISH, Slot.ALLOC_OFFSET):
            both.same("slot", (column, i, slots))
    first, second = both.pair("inst", (i, Inst.NEXT_ORDER))
    both.moves("slot", (Slot.ORDER, i, slots), 0, second - first)
    both.same_order("slot", (Slot.ORDER, i, slots))
    ends = both.has_finish & ~both.is_endless
    both.moves("slot", (Slot.FINISH, i, slots), np.where(ends, steps, 0))
    both.moves("slot", (Slot.ALLOC_OFFSET, i, slots), np.where(both.has_finish, -steps, 0))
    both.moves(
        "computed", (i, slots), np.where(ends, -steps, 0), np.where(both.has_finish, -steps, 0)
    )
    queue = (SlotTime.QUEUED, i, slots)
    both.moves("slot_time", queue, 0, -evictions)
    both.same_order("slot_time", queue)
    queued = both.pair("slot_time", queue)[0]
    start = int(both.before.inst_time[i, InstTime.LAST_START])
    end = int(both.after.inst_time[i, InstTime.EVENT])
    if np.any((queued >= start) & (queued <= end)):  # it enters the queue on the way
        raise Differs("slot_time")


def _lives(both: _Comparison, steps: int) -> None:
    """What the resident requests have been through."""
    rows = both.requests
    same = (Dyn.PROGRESS, Dyn.NUM_NEW, Dyn.NUM_PREFILL_STEPS, Dyn.CACHED_FIRST, Dyn.STEP_PROGRESS)
    for dyn in same:
        both.same("dyn", (rows, dyn))
    both.same("dyn", (rows, Dyn.FINISH_RECORD))
    lag = both.moves("dyn", (rows, Dyn.LAG), 0, steps)
    both.moves("dyn", (rows, Dyn.SCHEDULED_INDEX), 0, steps)
    token = both.moves("dyn", (rows, Dyn.TOKEN_INDEX), 0, steps)
    # whether a member counts as one token when the budget passes it over must not change later on
    served = (
        both.before.inst[both.instance, Inst.STEP_INDEX] - both.before.dyn[rows, Dyn.TOKEN_INDEX]
    )
    served = served - both.before.dyn[rows, Dyn.LAG]
    gain = steps - token - lag
    if np.any(both.has_finish & ((gain < 0) | ((gain > 0) & (served <= 0)))):
        raise Differs("dyn")
    scheduled = both.pair("dyn", (rows, Dyn.NUM_SCHEDULED))
    if np.any((scheduled[0] > 0) != (scheduled[1] > 0)) or np.any(scheduled[1] < scheduled[0]):
        raise Differs("dyn")
    both.changes.append(Change("dyn", (rows, Dyn.NUM_SCHEDULED), scheduled[1] - scheduled[0]))
    both.same("life", (rows, Life.JUMPS))
    both.same("life", (rows, Life.OFFSET))
    for life in (Life.VISITED_AT, Life.OLD_TOKEN_INDEX):
        both.moves("life", (rows, life), 0, steps)
    both.same("slot_of", rows)


def _same_blocks(both: _Comparison) -> None:
    """The memory: the same lists of free and of held contents, whatever the blocks' numbers."""
    one, other = (_reachable(both, state) for state in (both.before, both.after))
    if len(one) != len(other):
        raise Differs("ring")
    pairs = np.unique(np.stack([one, other], axis=1), axis=0)
    is_renaming = all(len(np.unique(pairs[:, side])) == len(pairs) for side in (0, 1))
    if not is_renaming or np.any((pairs < 0).any(axis=1) & (pairs[:, 0] != pairs[:, 1])):
        raise Differs("lists")
    first, second = pairs[(pairs >= 0).all(axis=1)].T
    i = both.instance
    held, key = (
        [table_of(both.before, name)[i, first], table_of(both.after, name)[i, second]]
        for name in ("hold", "key")
    )
    is_held_alike = np.array_equal(np.maximum(held[0], 0), np.maximum(held[1], 0))
    if not is_held_alike or not np.array_equal(key[0], key[1]):
        raise Differs("key")
    if both.before.blocks is not None and both.before.blocks.taken is not None:
        raise Differs("taken")  # counts go on, and an offload policy may look at them
    if both.shape.has_cpu_tier and not np.array_equal(first, second):
        raise Differs("cpu_key")


def _free(blocks: Blocks, instance: int, end: int) -> Int[np.ndarray, "block"]:
    """Free blocks in order, up to a ring position."""
    ring = np.asarray(blocks.ring[instance])
    places = np.arange(int(blocks.pool[instance, Pool.HEAD]), end) & (len(ring) - 2)
    found: np.ndarray = ring[places]
    return found[found >= 0]


def _reachable(both: _Comparison, state: State) -> Int[np.ndarray, "entry"]:
    """Blocks that may matter, place by place: free ones, those in lists, and those that the table names."""
    i, blocks, size = both.instance, state.blocks, both.shape.block_size
    assert blocks is not None
    free = _free(blocks, i, int(blocks.pool[i, Pool.TAIL]))
    parts: list[np.ndarray] = [free, np.array([-1 - len(free)])]
    index = np.where(both.has_finish, state.inst[i, Inst.STEP_INDEX], 0)
    held = state.slot[Slot.ALLOC_OFFSET, i, both.slots] + index
    for slot, tokens in zip(both.slots, held, strict=True):
        count = -(-max(int(tokens), 0) // size)
        parts += [np.asarray(blocks.lists[i, slot, :count]), np.array([-1 - count])]
    return np.concatenate([*parts, np.asarray(blocks.named[i])]).astype(np.int64)


def _cpu_tier(both: _Comparison, period: int) -> None:
    """Copies on the CPU: the same, and each either renewed in the round or too old for thrashing."""
    if not both.shape.has_cpu_tier:
        return
    i, before, after = both.instance, both.before.blocks, both.after.blocks
    assert before is not None and after is not None
    for table in ("cpu_key", "is_named"):
        if not np.array_equal(table_of(both.before, table)[i], table_of(both.after, table)[i]):
            raise Differs(table)
    reached = [
        len(_free(one, i, min(int(one.pool[i, Pool.HASHLESS_UP_TO]), int(one.pool[i, Pool.TAIL]))))
        for one in (before, after)
    ]
    if reached[0] != reached[1]:
        raise Differs("pool")
    kept = np.flatnonzero(after.cpu_key[i])
    by = both.moves("cpu_time", (i, kept), 0, period)
    age = int(both.before.inst_time[i, InstTime.EVENT]) - before.cpu_time[i, kept]
    if np.any((by == 0) & (age < THRASHING_WINDOW_US)):
        raise Differs("cpu_time")


def _records(both: _Comparison, found: Round, own: Int[np.ndarray, "record"], num_new: int) -> None:
    """Numbers of step records: kept, or moved on by the round's records."""
    rows = both.requests
    for table, column, plus in _RECORDS:
        at = (rows, column)
        first, second = (values - plus for values in both.pair(table, at))
        is_moved = first != second
        places = [np.searchsorted(own, values[is_moved]) for values in (first, second)]
        if np.any(places[1] - places[0] != num_new) or np.any(places[1] >= len(own)):
            raise Differs(table)
        for place, values in zip(places, (first, second), strict=True):
            if np.any(own[place] != values[is_moved]):
                raise Differs(table)
        found.records.append(Change(table, at, is_moved.astype(np.int64), plus))
        if column is Life.FIRST_TOKEN:
            kept = rows[~is_moved]
            values = second[~is_moved] + plus
            found.kept_tokens = dict(zip(kept.tolist(), values.tolist(), strict=True))
