"""Blocks that members of a batch take while it only decodes, on hand-made rows."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from blis_jax.engine.phases.steps.step_start import begin
from blis_jax.memory.decode_takes import takes_after, takes_of, with_takes
from blis_jax.memory.memory import MAX_TAKES
from blis_jax.tables.blocks import Blocks, Pool
from blis_jax.tables.context import SlotRows
from tests.engine.phases.made import Made

ONE = jnp.int32(1)
DURATION = 1000  # µs


@pytest.fixture(autouse=True)
def in_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def decoding() -> Made:
    """After 4 steps of instance 1 requests 2, 0 and 1 have 48, 31 and 32 tokens, in this order of the batch."""
    made = Made(at_block_level=True)
    for slot, (request, held) in enumerate(((1, 32), (0, 31), (2, 48))):
        order, finish = 2 - slot, 100 + slot
        made.resident(1, slot, request=request, order=order, finish=finish, alloc_offset=held - 4)
    made.instance(1, load=3, num_decode=3, next_order=3, step_index=4, is_idle=0, chains=(500,))
    return made


def test_blocks_are_taken_step_by_step_and_in_batch_order() -> None:
    made = decoding()
    slots = SlotRows(made.state, ONE)
    takes = takes_of(made.ctx, slots, jnp.int32(4), jnp.int32(6))
    # steps 0: slots 2 and 0; step 1: slot 1; steps 16 and 17: the same again
    assert int(takes.count) == 6
    assert takes.slot[:6].tolist() == [2, 0, 1, 2, 0, 1]
    assert takes.position[:6].tolist() == [3, 2, 2, 4, 3, 3]
    assert takes.slot[6:].tolist() == [0] * (MAX_TAKES - 6)


def test_it_is_told_when_somebody_takes_the_next_block() -> None:
    made = decoding()
    slots = SlotRows(made.state, ONE)
    after, told = 0, []
    for _ in range(4):
        count, then = takes_after(made.ctx, slots, jnp.int32(4), jnp.int32(after))
        told.append((after, int(count)))
        after = int(then)
    assert told == [(0, 2), (1, 1), (16, 2), (17, 1)]
    assert [int(each) for each in takes_after(made.ctx, slots, jnp.int32(4), jnp.int32(5))] == [
        0,
        16,
    ]


def test_the_next_free_blocks_are_listed_and_holes_are_passed_over() -> None:
    made = decoding()
    blocks = made.state[Blocks]
    hole = blocks.ring.at[1, 1].set(-1)
    made.state = made.state.having(dataclasses.replace(blocks, ring=hole))
    takes = takes_of(made.ctx, SlotRows(made.state, ONE), jnp.int32(4), jnp.int32(3))
    after = with_takes(made.ctx, made.state, ONE, takes)
    assert [int(after.lists[1, slot, at]) for slot, at in ((2, 3), (0, 2), (1, 2))] == [0, 2, 3]
    assert after.hold[1, :5].tolist() == [1, -2, 1, 1, -5]
    assert int(after.pool[1, Pool.HEAD]) == 4


@pytest.mark.parametrize(
    ("until", "runs"),
    [(500, [1]), (501, [1]), (500 + 3 * DURATION, [1, 2]), (499, [1])],
    ids=["due now", "due in the step", "due later", "overdue"],
)
def test_one_step_is_made_whatever_else_is_due(until: int, runs: list[int]) -> None:
    """The others come behind it; equal steps end where somebody takes a block."""
    made = decoding()
    made.instance(
        1, load=3, num_decode=3, next_order=3, step_index=4, used_blocks=8, is_idle=0, chains=(500,)
    )
    made.lane(now=500)
    work, stretch = begin(made.ctx, made.state, made.work(1), ONE, jnp.int32(until))
    assert stretch is not None
    assert stretch.num_steps[: int(stretch.num_runs)].tolist() == runs
    assert set(stretch.durations[: int(stretch.num_runs)].tolist()) == {DURATION}
    assert stretch.taken[: int(stretch.num_runs)].tolist() == [2, 1][: len(runs)]
    assert int(work.lane.num_steps) == sum(runs)
