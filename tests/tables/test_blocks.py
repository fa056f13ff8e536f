"""Block-level memory between any two operations: every block is free once, or held as often as lists say."""

import dataclasses
import functools
from collections import Counter
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.core.types import LAST
from blis_jax.engine.loop import context_of, first_order, first_state, requests_of
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.engine.scan_step import scan_step
from blis_jax.runs.demand import demand_of_table
from blis_jax.runs.options import Options
from blis_jax.runs.sizes import at_block_level, first_sizes
from blis_jax.tables.blocks import Blocks, Do, Pool, Task, compact
from blis_jax.tables.state import Inst, Reg, Slot, State
from blis_jax.workload.table import pad_to
from tests.engine.test_properties import NODES, OPTIONS, PHASES, STATICS, Scene, scenes
from tests.support.scenes import table_of

STATIC = STATICS[11]
MOST_SCAN_STEPS = 1500


@functools.cache
def stepper(shape: Any, mechanism: Any) -> Any:
    def one(params: Any, requests: Any, state: State) -> State:
        return scan_step(context_of(shape, mechanism, params, requests), state)

    return jax.jit(one)


def states(scene: Scene) -> Any:
    """The state after every scan step, as numpy, with the number of blocks of each instance."""
    cluster = config.from_flags(scene.flags)
    table = table_of(scene.workload, **NODES)
    options = Options(num_slots=64, log_capacity=4096, num_blocks=768, list_blocks=96)
    demand = demand_of_table(cluster, table, OPTIONS)
    demand = dataclasses.replace(demand, longest=1, shared_blocks=96)
    shape = first_sizes(demand, OPTIONS, mechanism(cluster)).shape
    shape = at_block_level(shape, demand, options)
    if shape.num_nodes == 0:
        hypothesis.assume(False)
    table = pad_to(table, shape.num_requests, shape.num_nodes, shape.path_depth)
    functions, numbers = mechanism(cluster), params(cluster)
    with jax.enable_x64(True):
        requests = requests_of(shape, functions, numbers, table, first_order(shape.num_requests))
        state = first_state(shape, functions, numbers, requests)
        step = stepper(shape, functions)
        for _ in range(MOST_SCAN_STEPS):
            state = step(numbers, requests, state)
            if state.lane.numbers[Reg.IS_DONE] or state.lane.numbers[Reg.OUTCOME]:
                break
            yield shape, cluster.total_kv_blocks, state


def free_blocks(state: State, ring_size: int) -> list[int]:
    """Instance 0's free list, in order."""
    pool = np.asarray(state[Blocks].pool)[0]
    places = np.arange(pool[Pool.HEAD], pool[Pool.TAIL]) % ring_size
    ring = np.asarray(state[Blocks].ring)[0][places]
    return [int(block) for block in ring if block >= 0]


def held_blocks(state: State, block_size: int) -> Counter[int]:
    """How often each block is in the list of a request that is in a slot of instance 0."""
    slot = np.asarray(state.slot.numbers)[:, 0]
    steps = int(np.asarray(state.inst.numbers)[Inst.STEP_INDEX, 0])
    found: Counter[int] = Counter()
    for index in np.flatnonzero(slot[Slot.REQUEST] >= 0):
        in_decode = slot[Slot.FINISH, index] != LAST
        tokens = int(slot[Slot.ALLOC_OFFSET, index]) + (steps if in_decode else 0)
        count = -(-tokens // block_size)
        found.update(np.asarray(state[Blocks].lists)[0, index, :count].tolist())
    return found


@pytest.mark.slow
@hypothesis.settings(max_examples=40, phases=PHASES)
@hypothesis.given(scenes((STATIC,)))
def test_blocks_are_conserved(scene: Scene):
    for shape, total, state in states(scene):
        free = free_blocks(state, shape.ring_size)
        assert len(free) == len(set(free))
        hold = np.asarray(state[Blocks].hold)[0][:total]
        assert set(np.flatnonzero(hold < 0)) == set(free)
        is_quiet = int(state[Blocks].task[Task.DO]) == Do.NOTHING
        # between steps all counts are settled
        if is_quiet and int(state.lane.numbers[Reg.MODE]) == 0:
            used = int(np.asarray(state.inst.numbers)[Inst.USED_BLOCKS, 0])
            assert used + len(free) == total
            held = held_blocks(state, scene.static.block_size)
            for block, count in held.items():
                assert hold[block] >= count
            has_failures = int(state[Blocks].num_evictions) or any_failure(state)
            if not has_failures:
                # no block has another owner, and none is orphaned
                assert {block: int(hold[block]) for block in np.flatnonzero(hold > 0)} == held


def any_failure(state: State) -> int:
    """Whether a roll-back may have orphaned blocks."""
    pool = np.asarray(state[Blocks].pool)[0]
    return int(pool[Pool.NUM_FAILURES] + pool[Pool.RELOADS])


@pytest.mark.slow
def test_holes_are_squeezed_out_in_order():
    scene = hypothesis.find(
        scenes((STATIC,)), lambda scene: scene.flags["total-kv-blocks"] == 60 and has_nodes(scene)
    )
    last = None
    for shape, _, state in states(scene):
        last = shape, state
    assert last is not None
    shape, state = last
    with jax.enable_x64(True):
        dense = compact(shape, state[Blocks])
    after = state.having(dense)
    assert free_blocks(after, shape.ring_size) == free_blocks(state, shape.ring_size)
    pool = np.asarray(dense.pool)[0]
    assert pool[Pool.HEAD] == 0
    assert pool[Pool.TAIL] == len(free_blocks(state, shape.ring_size))


def has_nodes(scene: Scene) -> bool:
    return bool(np.any(table_of(scene.workload).path_nodes >= 0))
