"""The router's prefix index against a list of blocks in order of use, on contents and routings made by hand."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.columns import When, always, branch
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape
from blis_jax.prefix_index import router_index
from blis_jax.prefix_index.router_index import PromptBlocks
from blis_jax.tables.context import Context
from blis_jax.tables.requests import nodes_of
from blis_jax.tables.router import RouterIndex, no_index
from tests.engine.phases.made import Made

CAPACITY, INSTANCES, DEPTH, REQUESTS = 12, 2, 3, 60
# node: its blocks, and the node whose content comes before it; the last one is the spare node
BLOCKS = np.array([2, 3, 1, 4, 2, 1, 0], np.int32)
BEFORE = (-1, 0, 1, 0, -1, 4)
PATHS = [(0,), (0, 1), (0, 1, 2), (0, 3), (4,), (4, 5), ()]


def context(when: When, rng: np.random.Generator) -> tuple[Context, list[tuple[int, ...]]]:
    """Requests along random paths; each prompt has up to two blocks that are its own."""
    ctx = Made().ctx
    shape = EngineShape(
        num_instances=INSTANCES,
        num_slots=4,
        num_requests=REQUESTS,
        num_nodes=len(BLOCKS) - 1,
        path_depth=DEPTH,
        block_size=1,
        has_router_eviction=True,
    )
    chosen = [PATHS[at] for at in rng.integers(len(PATHS), size=REQUESTS)]
    path = np.full((REQUESTS + 1, DEPTH), len(BLOCKS) - 1, np.int32)
    for row, nodes in enumerate(chosen):
        path[row, : len(nodes)] = nodes
    start = [sum(BLOCKS[above(node)]) if above(node) else 0 for node in range(len(BEFORE))]
    requests = dataclasses.replace(
        ctx.requests,
        table=jnp.zeros((REQUESTS + 1, ctx.requests.table.shape[1]), jnp.int32),
        path=jnp.asarray(path),
        path_start=jnp.zeros(path.shape, jnp.int32),
        path_shift=jnp.zeros(path.shape, jnp.int32),
        num_shared=jnp.zeros(REQUESTS + 1, jnp.int32),
        node_start=jnp.asarray([*start, 0], jnp.int32),
        node_blocks=jnp.asarray(BLOCKS),
    )
    return dataclasses.replace(ctx, shape=shape, requests=requests, when=when), chosen


def above(node: int) -> list[int]:
    """The nodes before a node on every path through it."""
    return [] if BEFORE[node] < 0 else [*above(BEFORE[node]), BEFORE[node]]


ASKS = {
    "delays_index": False,
    "is_precise": False,
    "num_indices": 1,
    "moves_requests": False,
}
NOW = jnp.int32(0)  # an index without a delay does not look at it


def empty(ctx: Context) -> RouterIndex:
    return no_index(ctx.shape, SimpleNamespace(**ASKS))  # type: ignore[arg-type]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_index, "ROUTER_INDEX_CAPACITY", CAPACITY)


def routed(ctx: Context, lengths: jax.Array) -> Callable[..., tuple[RouterIndex, jax.Array]]:
    """One routing, compiled: the index afterwards, and what every instance had of the prompt before."""

    def one(
        index: RouterIndex, request: jax.Array, chosen: jax.Array
    ) -> tuple[RouterIndex, jax.Array]:
        prompt = PromptBlocks(request, nodes_of(ctx.requests, request), lengths[request])
        now = router_index.trimmed(ctx, index)
        matched = router_index.matched_blocks(ctx, now, prompt, NOW)
        done = router_index.touch(ctx, now, prompt, chosen)
        return router_index.write(ctx, index, done), matched

    return jax.jit(one)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("when", [branch, always])
def test_the_index_equals_a_list_in_order_of_use(
    when: When, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    ctx, paths = context(when, rng)
    own = rng.integers(0, 3, size=REQUESTS)
    lengths = np.array([BLOCKS[list(path)].sum() for path in paths]) + own
    lengths = jnp.asarray([*lengths, 0], jnp.int32)
    monkeypatch.setattr(
        Context, "request", lambda _, request: SimpleNamespace(input_len=lengths[request])
    )
    lists: list[OrderedDict[tuple[str, int, int], None]] = [OrderedDict() for _ in range(INSTANCES)]
    step, index, evicted = routed(ctx, lengths), empty(ctx), 0
    for request, path in enumerate(paths):
        chosen = int(rng.integers(INSTANCES))
        names = [("node", node, block) for node in path for block in range(BLOCKS[node])]
        expected = []
        for blocks in lists:
            whole = 0
            for node in path:
                if not all(("node", node, block) in blocks for block in range(BLOCKS[node])):
                    break
                whole += int(BLOCKS[node])
            expected.append(whole)
        index, matched = step(index, jnp.int32(request), jnp.int32(chosen))
        assert matched.tolist() == expected, request
        for name in [*names, *(("own", request, block) for block in range(own[request]))]:
            lists[chosen][name] = None
            lists[chosen].move_to_end(name)
            if len(lists[chosen]) > CAPACITY:
                lists[chosen].popitem(last=False)
                evicted += 1
    assert evicted > REQUESTS / 2


def test_an_index_without_eviction_says_that_it_is_full() -> None:
    ctx, _ = context(branch, np.random.default_rng(0))
    shape = dataclasses.replace(ctx.shape, has_router_eviction=False)
    ctx, outcome = dataclasses.replace(ctx, shape=shape), jnp.int32(Outcome.COMPLETED)
    index = empty(ctx)
    for blocks, expected in (
        (router_index.ROUTER_INDEX_CAPACITY, Outcome.COMPLETED),
        (router_index.ROUTER_INDEX_CAPACITY + 1, Outcome.ROUTER_INDEX_FULL),
    ):
        nodes = nodes_of(ctx.requests, jnp.int32(REQUESTS))
        prompt = PromptBlocks(jnp.int32(0), nodes, jnp.int32(blocks))
        done = router_index.touch(ctx, index, prompt, jnp.int32(1))
        assert int(router_index.outcome_of_touch(ctx, outcome, done)) == expected
