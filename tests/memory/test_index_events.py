"""What the caches tell the router's index, against a list of blocks in order of use, on contents made by hand."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.columns import When, always, branch
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts
from blis_jax.engine.loop import _node_of, _shared_numbers
from blis_jax.memory import index_events
from blis_jax.memory.block_tables.contents import names
from blis_jax.prefix_index import router_index
from blis_jax.prefix_index.router_index import PromptBlocks, no_touch
from blis_jax.tables.blocks import Blocks, Do
from blis_jax.tables.context import Context
from blis_jax.tables.requests import BlockNodes, nodes_of
from blis_jax.tables.router import (
    Gaps,
    PrivateBlocks,
    RouterIndex,
    RouterWrite,
    Routings,
    no_index,
)
from tests.engine.phases.made import Made, config, values
from tests.prefix_index.test_router_index import BLOCKS, CAPACITY, INSTANCES, REQUESTS, context
from tests.support.scenes import Prompt

WINDOW, STEPS = 4, 400
PRECISE = SimpleNamespace(
    uses_prefix_index=True, is_precise=True, delays_index=False, num_indices=1, moves_requests=False
)
Content = tuple[str, int, int]


@pytest.fixture(autouse=True)
def in_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def at_block_level(when: When, rng: np.random.Generator) -> tuple[Context, list[tuple[int, ...]]]:
    """The contents of the router's own test, with every block numbered."""
    ctx, paths = context(when, rng)
    sizes = {
        "num_blocks": 16,
        "list_blocks": 12,
        "num_shared_blocks": int(BLOCKS.sum()),
        "num_routings": STEPS,
    }
    shape, requests = dataclasses.replace(ctx.shape, **sizes, window=WINDOW), ctx.requests
    blocks = requests.node_blocks[:-1]
    numbers = _shared_numbers(shape, requests.path[:-1], requests.node_start[:-1], blocks)
    starts, shifts, num_shared = (
        np.pad(np.asarray(each), [(0, 1)] + [(0, 0)] * (each.ndim - 1)) for each in numbers
    )
    requests = dataclasses.replace(
        requests,
        path_start=jnp.asarray(starts),
        path_shift=jnp.asarray(shifts),
        num_shared=jnp.asarray(num_shared),
        own=Parts(BlockNodes(_node_of(shape, blocks))),
    )
    hears_all: Any = SimpleNamespace(loses_index=False, num_indices=1, moves_requests=False)
    return dataclasses.replace(ctx, shape=shape, requests=requests, mechanism=hears_all), paths


def told(ctx: Context, lengths: jax.Array) -> Any:
    """One allocation, compiled: the index afterwards, and what every instance had of a prompt before."""

    def one(
        index: RouterIndex,
        request: jax.Array,
        instance: jax.Array,
        used: jax.Array,
        touches: jax.Array,
    ) -> tuple[RouterIndex, jax.Array]:
        prompt = PromptBlocks(request, nodes_of(ctx.requests, request), lengths[request])
        now = router_index.trimmed(ctx, index, jnp.array(True))
        matched = router_index.matched_blocks(ctx, now, prompt, jnp.int32(0))
        touched = router_index.touch(ctx, now, prompt, instance)
        nothing = no_touch(ctx, now)
        done = jax.tree.map(lambda a, b: jnp.where(touches, a, b), touched, nothing)
        after = router_index.write(ctx, now, done)
        turn: Any = SimpleNamespace(
            ctx=ctx,
            state=Parts(after),
            instance=instance,
            inst=SimpleNamespace(step_index=jnp.int32(0)),
            own=lambda values: values[0],
        )
        (gone,) = index_events.popped(turn, used, touches)
        assert isinstance(gone, index_events.Removal)
        return index_events.without(ctx, after, instance, gone), matched

    return jax.jit(one)


def names_of(ctx: Context, owner: int, count: int) -> list[int]:
    """The engine's names of the leading blocks of a request's prompt."""
    ends = jnp.arange(1, count + 1, dtype=jnp.int32)
    return [int(name) for name in np.asarray(names(ctx, jnp.int32(owner), ends, jnp.int32(0)))]


@pytest.mark.slow
@pytest.mark.parametrize("when", [pytest.param(branch, marks=pytest.mark.slow), always])
def test_the_index_equals_a_list_in_order_of_use(
    when: When, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pops come before the touch of the same allocation; an allocation of a generated token only pops."""
    monkeypatch.setattr(router_index, "ROUTER_INDEX_CAPACITY", CAPACITY)
    rng = np.random.default_rng(5)
    ctx, paths = at_block_level(when, rng)
    own = rng.integers(0, 3, size=REQUESTS)
    prompts: list[list[Content]] = []
    for request, path in enumerate(paths):
        shared = [("node", node, block) for node in path for block in range(BLOCKS[node])]
        prompts.append([(kind, at, place) for place, (kind, at, _) in enumerate(shared)])
        prompts[-1] += [("own", request, len(shared) + block) for block in range(own[request])]
    home = rng.integers(INSTANCES, size=REQUESTS)  # private blocks stay on one instance
    lengths = jnp.asarray([*map(len, prompts), 0], jnp.int32)
    monkeypatch.setattr(
        Context, "request", lambda _, request: SimpleNamespace(input_len=lengths[request])
    )
    table = ctx.requests.table
    table = jnp.zeros((REQUESTS + 1, table.shape[1]), jnp.int32).at[:, 0].set(lengths)
    ctx = dataclasses.replace(ctx, requests=dataclasses.replace(ctx.requests, table=table))
    index = no_index(ctx.shape, PRECISE)  # type: ignore[arg-type]
    named = [names_of(ctx, request, len(prompt)) for request, prompt in enumerate(prompts)]
    step, counts = told(ctx, lengths), dict.fromkeys(("evicted", "gaps", "again"), 0)
    lists: list[OrderedDict[Content, None]] = [OrderedDict() for _ in range(INSTANCES)]
    for _ in range(STEPS):
        request = int(rng.integers(REQUESTS))
        instance, touches = int(home[request]), bool(rng.integers(4))
        expected = []
        for blocks in lists:
            missing = (place for place, one in enumerate(prompts[request]) if one not in blocks)
            whole = next(missing, len(prompts[request]))
            expected.append(min(whole, len(prompts[request]) - int(own[request])))
        candidates = [one for one in range(REQUESTS) if home[one] == instance and prompts[one]]
        popped = [
            candidates[at] for at in rng.integers(len(candidates), size=rng.integers(WINDOW + 1))
        ]
        contents = [prompts[one][int(rng.integers(len(prompts[one])))] for one in popped]
        used = [named[one][at] for one, (_, _, at) in zip(popped, contents, strict=True)]
        used += [0] * (WINDOW - len(used))
        index, matched = step(
            index,
            jnp.int32(request),
            jnp.int32(instance),
            jnp.asarray(used, jnp.int64),
            jnp.array(touches),
        )
        assert matched.tolist() == expected
        blocks = lists[instance]
        for content in contents:
            counts["gaps"] += content in blocks
            blocks.pop(content, None)
        for content in prompts[request] if touches else ():
            counts["again"] += content in blocks
            blocks[content] = None
            blocks.move_to_end(content)
            if len(blocks) > CAPACITY:
                blocks.popitem(last=False)
                counts["evicted"] += 1
    assert min(counts.values()) > STEPS / 8, counts


SCORERS = {"routing_policy": "weighted", "routing_scorers": "prefix-affinity:1"}


@pytest.fixture
def fed() -> Made:
    """Two instances whose caches feed the index, and two prompts of three blocks."""
    return Made(
        config(precise_kv_routing=True, **SCORERS),
        (Prompt(0, 50, 2), Prompt(10, 48, 2)),
        at_block_level=True,
    )


def after_visit(made: Made, *, in_decode: bool = False, **visit: bool) -> Any:
    """The work of instance 1 once request 1 has been visited there."""
    ctx, state = made.ctx, made.state
    one: Any = SimpleNamespace(
        instance=jnp.int32(1),
        request=jnp.int32(1),
        fixed=ctx.request(jnp.int32(1)),
        in_decode=jnp.array(in_decode),
        past=SimpleNamespace(num_scheduled=jnp.int32(0), progress=jnp.int32(0)),
    )
    given: Any = SimpleNamespace(
        asks=jnp.array(visit.get("asks", True)), is_granted=jnp.array(visit.get("is_granted", True))
    )
    work = dataclasses.replace(made.work(1), own=Parts(no_touch(ctx, state[RouterIndex])))
    return index_events.touched_at_once(ctx, state, work, one, given)


def test_an_allocation_for_a_prompt_touches_all_its_full_blocks(fed: Made) -> None:
    done = after_visit(fed)[RouterWrite]
    assert int(done.num_blocks) == 3 and int(done.num_sent) == 1
    assert int(done.request) == 1 and int(done.instance) == 1


def test_a_lost_allocation_takes_a_number_and_touches_nothing() -> None:
    made = Made(
        config(precise_kv_routing=True, prefix_index_loss=1.0, **SCORERS),
        (Prompt(0, 50, 2), Prompt(10, 48, 2)),
        at_block_level=True,
    )
    done = after_visit(made)[RouterWrite]
    assert int(done.num_blocks) == 0 and int(done.num_sent) == 1
    assert int(done.request) == made.ctx.shape.num_requests and int(done.num_nodes) == 0


@pytest.mark.parametrize("visit", [{"in_decode": True}, {"asks": False}, {"is_granted": False}])
def test_what_gets_no_room_for_a_prompt_touches_nothing(fed: Made, visit: dict[str, bool]) -> None:
    done = after_visit(fed, **visit)[RouterWrite]
    assert int(done.num_blocks) == 0 and int(done.num_sent) == 0


def test_a_cache_with_a_cpu_tier_tells_nothing() -> None:
    made = Made(config(precise_kv_routing=True, kv_cpu_blocks=5, **SCORERS))
    assert int(after_visit(made)[RouterWrite].num_sent) == 0


def test_an_index_that_is_full_says_so(fed: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for capacity, outcome in ((3, Outcome.COMPLETED), (2, Outcome.ROUTER_INDEX_FULL)):
        monkeypatch.setattr(router_index, "ROUTER_INDEX_CAPACITY", capacity)
        assert values(after_visit(fed).lane, "outcome") == [outcome]


@pytest.mark.parametrize(("do", "num_blocks"), [(Do.TAKE, 5), (Do.PIN, 5), (Do.NOTHING, 3)])
def test_what_is_too_much_leaves_once_the_allocation_has_its_blocks(
    fed: Made, monkeypatch: pytest.MonkeyPatch, do: Do, num_blocks: int
) -> None:
    """Five blocks where two have room: the first prompt's go, and they go at once."""
    monkeypatch.setattr(router_index, "ROUTER_INDEX_CAPACITY", 4)
    shape = dataclasses.replace(fed.ctx.shape, has_router_eviction=True)
    ctx = dataclasses.replace(fed.ctx, shape=shape)
    index = no_index(shape, ctx.mechanism)
    sent, gaps = index[Routings].sent, index[Gaps]
    nobody = dataclasses.replace(
        index.having(
            Routings(sent.at[:, :2].set(jnp.array([[0, 1], [1, 1]], jnp.int32))),
            PrivateBlocks(jnp.array([2, 4, 0], jnp.int32)),
            Gaps(gaps.shared, gaps.private.at[0, 2].set(2)),
        ),
        num_blocks=jnp.array([0, 5], jnp.int32),
        num_sent=jnp.int32(2),
    )
    task = fed.state[Blocks].task.at[0].set(int(do))
    blocks = dataclasses.replace(fed.state[Blocks], task=task)
    after = index_events.settled(ctx, fed.state.having(blocks, nobody))[RouterIndex]
    assert after.num_blocks.tolist() == [0, num_blocks]
