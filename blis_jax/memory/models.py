"""The choice of a program's memory model, and the operations on blocks that follow a phase."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax

from blis_jax.core.types import EngineShape, Mechanism
from blis_jax.memory.allocation import refused_later, refused_whole
from blis_jax.memory.attempts import (
    GOES_ON,
    IS_PASSED_OVER,
    AlignedChunks,
    Chunks,
    DraftRoom,
    Lookahead,
)
from blis_jax.memory.block_level import BlockLevel
from blis_jax.memory.block_tables.operations import pin, release, restore, roll_back, take
from blis_jax.memory.block_tables.takes import JudgedUses, Uses
from blis_jax.memory.block_tables.turn import take_turn
from blis_jax.memory.cpu_tier import is_in_order, offload, reload, use_in_order
from blis_jax.memory.memory import Memory
from blis_jax.memory.mirror import bring_back, mirror
from blis_jax.memory.no_eviction import NoEviction
from blis_jax.memory.offload.copies import OffloadUses, SavingUses
from blis_jax.memory.offload.copies import mirror as use_tiers
from blis_jax.memory.offload.waits import fetch, poll, seek
from blis_jax.memory.preempted import (
    Preempted,
    Restarted,
    Resumed,
    ResumedElsewhere,
    ResumedWithJoins,
)
from blis_jax.memory.victims import (
    LeastUrgent,
    LeastWorth,
    Victims,
    first_joined,
    latest_arrival,
)
from blis_jax.tables.blocks import Blocks, Do, MemoryTask
from blis_jax.tables.context import Context
from blis_jax.tables.state import State

Kind = TypeVar("Kind")


def memory_of(shape: EngineShape, mechanism: Mechanism) -> Memory[Any, Any]:
    """Return the memory model of a program: block level where the shape has room for blocks, else without eviction."""
    rules = mechanism.rules
    unreached = _last((GOES_ON, True), (IS_PASSED_OVER, rules.passes_over))
    lookahead = _last((Lookahead, True), (DraftRoom, mechanism.num_drafts > 0))()
    dropped = mechanism.num_dropped_blocks
    chunks = Chunks() if dropped is None else AlignedChunks(dropped)
    if not shape.num_blocks:
        return NoEviction(Preempted(), unreached, Uses(), lookahead, chunks)
    refusal = _last((refused_later, True), (refused_whole, rules.refuses_whole))
    behind = unreached, _uses(mechanism), lookahead, chunks, refusal
    return BlockLevel(_preempted(mechanism), *behind, _victims(mechanism))


def _last(*kinds: tuple[Kind, bool]) -> Kind:
    """Return the last kind whose condition holds."""
    return [kind for kind, is_so in kinds if is_so][-1]


def _uses(mechanism: Mechanism) -> Uses:
    """Return the rules for uses of the CPU tier."""
    has_tiers = mechanism.has_offload_tiers
    kinds: tuple[tuple[Callable[[], Uses], bool], ...] = (
        (Uses, True),
        (OffloadUses, has_tiers),
        (SavingUses, has_tiers and mechanism.offload_saves_prefill),
        (partial(JudgedUses, mechanism.offload), mechanism.offload is not None),
    )
    return _last(*kinds)()


def _preempted(mechanism: Mechanism) -> Preempted:
    """Return the rule for the tokens that preempted requests keep."""
    keeps = mechanism.rules.keeps_output
    kinds: tuple[tuple[Callable[[], Preempted], bool], ...] = (
        (Preempted, True),
        (Resumed, keeps),
        (ResumedElsewhere, keeps and mechanism.moves_requests),
        (ResumedWithJoins, keeps and mechanism.hand_over is not None),
        (Restarted, mechanism.rules.restarts_preempted),
    )
    return _last(*kinds)()


def _victims(mechanism: Mechanism) -> Victims:
    """Return the rule that selects the request to evict."""
    of_equals = _last((first_joined, True), (latest_arrival, mechanism.rules.restarts_preempted))
    kinds: tuple[tuple[Callable[[], Victims], bool], ...] = (
        (Victims, True),
        (partial(LeastUrgent, of_equals), mechanism.evicts_lowest_priority),
        (partial(LeastWorth, mechanism.victim), mechanism.victim is not None),
    )
    return _last(*kinds)()


OPERATIONS: dict[Do, Any] = {
    Do.RELOAD: reload,
    Do.PIN: pin,
    Do.TAKE: take,
    Do.ROLL_BACK: roll_back,
    Do.RESTORE: restore,
    Do.RELEASE: release,
    Do.OFFLOAD: offload,
}
_OF_ONE_TIER: dict[Do, Any] = {
    do: OPERATIONS[do] for do in OPERATIONS if do not in (Do.RELOAD, Do.OFFLOAD)
}
_OF_MIRROR: dict[Do, Any] = {
    Do.RELOAD: bring_back,
    Do.PIN: pin,
    Do.TAKE: take,
    Do.RELEASE: release,
    Do.MIRROR: mirror,
}
_OF_OFFLOAD: dict[Do, Any] = {
    Do.POLL: poll,
    Do.PIN: pin,
    Do.RELOAD: seek,
    Do.BRING_BACK: bring_back,
    Do.FETCH: fetch,
    Do.TAKE: take,
    Do.RELEASE: release,
    Do.MIRROR: use_tiers,
}
_AT_ONCE = (poll, seek, fetch, use_tiers)  # these change the state by themselves


def _operations(ctx: Context) -> dict[Do, Any]:
    """Return the operations of a program's memory, in the order in which they may follow each other in a scan step."""
    return _last(
        (_OF_ONE_TIER, True),
        (OPERATIONS, ctx.shape.has_cpu_tier),
        (_OF_MIRROR, ctx.shape.has_mirror),
        (_OF_OFFLOAD, ctx.mechanism.has_offload_tiers),
    )


def move_blocks(ctx: Context, state: State) -> State:
    """Return the state after memory has moved a few windows of blocks; one operation may follow another.

    No other event happens on the instance until the operation is over, so its windows may follow each other at once.
    """
    for do, operation in _operations(ctx).items():

        def is_on(state: State, do: Do = do) -> jax.Array:
            is_next = MemoryTask(state[Blocks].task).do == do
            return is_next & (state.lane.row.outcome == 0)

        def change(state: State, is_on: jax.Array, operation: Any = operation) -> State:
            if operation in _AT_ONCE:
                changed: State = operation(ctx, state, is_on)
                return changed
            if operation is mirror and is_in_order(ctx, state[Blocks]):
                return use_in_order(ctx, state, is_on)
            return take_turn(ctx, state, is_on, operation)

        state = ctx.turns(is_on, change, state, ctx.shape.windows_a_step)
    return state
