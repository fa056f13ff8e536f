"""Names of KV contents."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp

from blis_jax.memory.block_tables.contents import NO_JUMPS, after_jump

SIZE = 16
ALONE: Any = SimpleNamespace(
    shape=SimpleNamespace(block_size=SIZE, num_nodes=0, num_shared_blocks=0),
    requests=None,
)


def jumps(held: int, old: int, offset: int) -> int:
    """Of a list of request 3 that was whole before."""
    numbers = (jnp.int32(one) for one in (held, old, offset))
    return int(after_jump(ALONE, jnp.int32(NO_JUMPS), jnp.int32(3), *numbers))


def test_a_list_that_has_blocks_twice_goes_on_with_the_same_contents():
    """As in BLIS, where a block is named by the one before and its tokens; the CPU tier may have it already."""
    once = jumps(held=6 * SIZE, old=0, offset=50 - 6 * SIZE)
    twice = jumps(held=8 * SIZE, old=-2 * SIZE, offset=50 - 8 * SIZE)
    assert once == twice


def test_jumps_from_and_to_other_positions_are_told_apart():
    found = {
        jumps(held=6 * SIZE, old=0, offset=50 - 6 * SIZE),
        jumps(held=6 * SIZE, old=0, offset=66 - 6 * SIZE),
        jumps(held=7 * SIZE, old=0, offset=50 - 7 * SIZE),
        jumps(held=6 * SIZE + 3, old=-3, offset=47 - 6 * SIZE),
    }
    assert len(found) == 4
