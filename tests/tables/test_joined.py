"""Tables side by side in the form for many lanes, and apart again."""

import dataclasses
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import from_flags
from blis_jax.core.columns import branch, masked
from blis_jax.core.types import EngineShape
from blis_jax.engine.loop import first_order, requests_of
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.tables.joined import (
    Instances,
    first_of,
    joined,
    last_event,
    parted,
    place_of,
    queued_times,
)
from blis_jax.tables.requests import nodes_of, with_paths
from blis_jax.tables.state import State
from blis_jax.workload.table import pad_to
from tests.support.scenes import Prompt, first_state_of, flags, table_of, workload_of

SHAPE = EngineShape(
    num_instances=3, num_slots=8, num_requests=64, num_nodes=16, path_depth=2, node_blocks=4
)
BLOCKS = dataclasses.replace(
    SHAPE, num_blocks=64, list_blocks=8, ring_size=256, num_shared_blocks=8
)
CLUSTER = from_flags(flags(num_instances=3))


def some_state(shape: EngineShape) -> State:
    """A state in which every entry of every table differs."""
    numbers = iter(range(10**6))

    def fill(leaf: Any) -> Any:
        filled = np.fromiter(numbers, np.int64, np.size(leaf)).reshape(np.shape(leaf))
        return jnp.asarray(filled % 2 if leaf.dtype == bool else filled).astype(leaf.dtype)

    return jax.tree.map(fill, first_state_of(CLUSTER, shape))


@pytest.mark.parametrize("clock", ["int32", "int64", "continuous"])
@pytest.mark.parametrize("shape", [SHAPE, BLOCKS], ids=["no-eviction", "block-level"])
def test_what_is_joined_comes_apart_as_it_was(shape: EngineShape, clock: str) -> None:
    with jax.enable_x64(True):
        state = some_state(dataclasses.replace(shape, clock=clock))
        together = joined(state)
        lanes = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + leaf.dtype.type(0)]), state)
        apart, of_lanes = parted(together), parted(joined(lanes))
    assert together.past.is_joined and (together.slot.is_joined) == (clock == "int32")
    for mine, of_lane, theirs in zip(*map(jax.tree.leaves, (apart, of_lanes, state)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(of_lane[1], theirs)


def test_readers_find_the_same_in_both() -> None:
    with jax.enable_x64(True):
        state = some_state(SHAPE)
        together, request = joined(state), jnp.int32(17)
        pairs = [
            (Instances(together, 3).event, Instances(state, 3).event),
            (queued_times(together, 3), queued_times(state, 3)),
            (place_of(together, request), place_of(state, request)),
        ]
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine, theirs)


def test_a_path_is_found_behind_the_columns_of_the_request_table() -> None:
    prompts = [Prompt(1000 * i, 70, 3, i % 3, 0, 32) for i in range(20)]
    table = pad_to(table_of(workload_of(prompts)), 64, 16, 2)
    with jax.enable_x64(True):
        requests = requests_of(SHAPE, mechanism(CLUSTER), params(CLUSTER), table, first_order(64))
        wide = with_paths(requests)
        for request in (0, 7, 19, 64):
            mine, theirs = (nodes_of(each, jnp.int32(request)) for each in (wide, requests))
            for one, other in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(one, other)
        assert int(nodes_of(wide, jnp.int32(7)).length[0]) > 0


def test_the_first_event_is_that_of_the_lowest_instance_in_both_forms() -> None:
    rng, never = np.random.default_rng(1), 2**31 - 1
    with jax.enable_x64(True):
        for _ in range(40):
            events = jnp.asarray(rng.choice([0, 4, 2**31 - 2, never], 5), jnp.int32)
            part = partial(lambda all_, start, stop: all_[start:stop], events)
            forms = [SimpleNamespace(when=when, clock=jnp.int32) for when in (masked, branch)]
            packed, plain = (first_of(form, part, len(events)) for form in forms)
            assert [int(x) for x in packed] == [int(x) for x in plain]
            assert packed[0].dtype == packed[1].dtype == jnp.int32


def test_the_latest_event_is_read_side_by_side_and_apart() -> None:
    state = some_state(SHAPE)
    together = joined(state)
    assert together.lane.is_joined and not state.lane.is_joined
    assert int(last_event(together)) == int(last_event(state)) == int(state.lane.row.last_event)
    with pytest.raises(ValueError, match="unpack"):
        _ = together.lane.row
