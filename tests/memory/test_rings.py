"""Free lists with holes: squeezed when it is time, and the same list afterwards."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.engine.loop import without_holes
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.runs.demand import demand_of_table
from blis_jax.runs.options import Options
from blis_jax.runs.sizes import at_block_level, first_sizes
from blis_jax.tables.blocks import NEVER_FREE, NO_BLOCK, Blocks, Do, Pool, Task
from blis_jax.tables.state import Inst
from tests.support.scenes import Prompt, first_state_of, flags, table_of, workload_of
from tests.tables.test_blocks import free_blocks

TOTAL = 40
FREE = (11, 3, 29)  # blocks that are still free, in this order


def hollow_state(holes: int, do: Do = Do.NOTHING):
    """A state whose first instance has three free blocks, with so many holes between them."""
    cluster = config.from_flags(flags(**{"total-kv-blocks": TOTAL}))
    table = table_of(workload_of([Prompt(arrival_us=0, input_len=32)]))
    options = Options(num_slots=16, log_capacity=64)
    demand = dataclasses.replace(demand_of_table(cluster, table, options), longest=4)
    shape = first_sizes(demand, options, mechanism(cluster)).shape
    shape = at_block_level(shape, demand, options)
    state, numbers = first_state_of(cluster, shape), params(cluster)
    blocks = state[Blocks]
    start = 5
    places = start + np.array([0, holes // 2, holes + 2])
    ring = np.full_like(np.asarray(blocks.ring[0]), NO_BLOCK)
    ring[places % shape.ring_size] = FREE
    hold = np.full_like(np.asarray(blocks.hold[0]), 1)
    hold[list(FREE)] = -1 - places
    hold[TOTAL:] = NEVER_FREE
    pool = np.asarray(blocks.pool).copy()
    pool[0, [Pool.HEAD, Pool.TAIL]] = start, start + holes + len(FREE)
    used = state.inst.numbers.at[Inst.USED_BLOCKS, 0].set(TOTAL - len(FREE))
    blocks = dataclasses.replace(
        blocks,
        ring=blocks.ring.at[0].set(ring),
        hold=blocks.hold.at[0].set(hold),
        pool=jnp.asarray(pool),
        task=blocks.task.at[Task.DO].set(int(do)),
    )
    return (
        shape,
        numbers,
        dataclasses.replace(state.having(blocks), inst=state.inst.with_numbers(used)),
    )


def length(state) -> int:
    return int(state[Blocks].pool[0, Pool.TAIL] - state[Blocks].pool[0, Pool.HEAD])


def test_a_list_of_mostly_holes_is_squeezed_and_keeps_its_order():
    shape, numbers, state = hollow_state(holes=2100)
    after = without_holes(shape, numbers, state)
    assert length(after) == len(FREE)
    assert free_blocks(after, shape.ring_size) == list(FREE)
    head = int(after[Blocks].pool[0, Pool.HEAD])
    assert [int(after[Blocks].hold[0, block]) for block in FREE] == [
        -1 - head - i for i in range(3)
    ]
    assert np.all(np.asarray(after[Blocks].hold[0, :TOTAL]) <= 1)


def test_a_few_holes_are_left():
    shape, numbers, state = hollow_state(holes=20)
    after = without_holes(shape, numbers, state)
    assert length(after) == length(state)
    assert free_blocks(after, shape.ring_size) == list(FREE)


@pytest.mark.parametrize("do", [Do.OFFLOAD, Do.RESTORE])
def test_an_operation_that_keeps_a_place_in_the_ring_is_not_disturbed(do):
    shape, numbers, state = hollow_state(holes=2100, do=do)
    assert length(without_holes(shape, numbers, state)) == length(state)
