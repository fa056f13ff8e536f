"""What every registered policy promises; a policy is picked up from the registry without being named here."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.policies import registry
from blis_jax.policies.registry import Entry
from blis_jax.types import (
    SLO_CLASSES,
    EngineShape,
    QueueView,
    RequestView,
    RoutedView,
    Snapshots,
)

INSTANCES, SLOTS, CASES = 5, 12, 40
INFINITY = np.float64(np.inf)
SHAPE = EngineShape(
    num_instances=INSTANCES,
    num_slots=SLOTS,
    num_requests=64,
    num_nodes=0,
    path_depth=1,
    num_keys=64,
)
TABLES = {
    "admission": registry.ADMISSION,
    "routing": registry.ROUTING,
    "scorer": registry.SCORERS,
    "priority": registry.PRIORITY,
    "scheduler": registry.SCHEDULERS,
}
GOES_BY_INDEX = {"round-robin"}


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


def entries(kind: str) -> list[Any]:
    return [pytest.param(entry, id=f"{kind}-{name}") for name, entry in TABLES[kind].items()]


def numbers(entry: Entry, factor: float = 1.0) -> Any:
    """The policy's params with its defaults, or others near them."""
    return entry.params(**{name: np.float64(value * factor) for name, value in entry.defaults})


def request_views(seed: int, shape: tuple[int, ...]) -> RequestView:
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    rank = rng.permutation(np.arange(size, dtype=np.int32)).reshape(shape)
    return RequestView(
        slo_class=rng.integers(0, len(SLO_CLASSES), shape).astype(np.int32),
        input_len=rng.integers(1, 5000, shape).astype(np.int32),
        arrival_us=rng.integers(0, 400_000, shape).astype(np.int32),
        tenant=rng.integers(0, 4, shape).astype(np.int32),
        tie_rank=rank,
        queue_rank=rank[::-1].copy(),
    )


def routed_views(seed: int) -> RoutedView:
    view = request_views(seed, (CASES,))
    rng = np.random.default_rng(seed + 1)
    keys = rng.integers(0, 64, CASES).astype(np.int32)
    random_keys = rng.integers(0, 2**32, (CASES, 2), dtype=np.uint32)
    return RoutedView(view, view.input_len // 16, keys, random_keys)


def all_snapshots(seed: int, num_active: int = INSTANCES) -> Snapshots:
    """Views `[case, instance]` in which no two instances have the same load or KV utilisation."""
    rng = np.random.default_rng(seed)
    shape = (CASES, INSTANCES)

    def distinct(low: int, high: int) -> np.ndarray:
        rows = [rng.choice(np.arange(low, high), INSTANCES, replace=False) for _ in range(CASES)]
        return np.stack(rows).astype(np.int32)

    depth, batch, pending = (rng.integers(0, 20, shape).astype(np.int32) for _ in range(3))
    load = distinct(0, 60)
    utilization = distinct(0, 1000) / 1000.0
    return Snapshots(
        effective_load=load,
        queue_depth=depth,
        batch_size=batch,
        num_pending=pending,
        kv_utilization=utilization,
        free_kv_blocks=1000.0 * (1.0 - utilization),
        cache_hit_rate=rng.uniform(0, 1, shape),
        transfer_latency_us=np.zeros(shape),
        thrashing_rate=np.zeros(shape),
        prefix_match_blocks=distinct(0, 8),
        num_rejected=rng.integers(0, 9, CASES).astype(np.int32),
        is_active=np.tile(np.arange(INSTANCES) < num_active, (CASES, 1)),
    )


def case(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), tree)


def call(kind: str, entry: Entry, params: Any, scene: Any, infinity: Any = INFINITY) -> Any:
    """The policy on one scene, with its signature's arguments in order."""
    if kind == "admission":
        view, seen, now = scene
        state = entry.initial_state(params, SHAPE)
        return entry.function(params, state, view, seen, now, infinity)
    if kind == "routing":
        view, seen, scores = scene
        state = entry.initial_state(params, SHAPE)
        return entry.function(params, state, view, seen, scores, infinity)
    if kind == "scorer":
        view, seen = scene
        return entry.function(params, view, seen, infinity)
    if kind == "priority":
        view, depth, now = scene
        return entry.function(params, view, depth, now, infinity)
    return entry.function(params, scene)


def scenes(kind: str, num_active: int = INSTANCES) -> Any:
    """Inputs of the policy's kind, `[case]` in front."""
    rng = np.random.default_rng(7)
    views, seen = routed_views(3), all_snapshots(4, num_active)
    now = np.full(CASES, 400_000, np.int32)
    if kind == "admission":
        return views, seen, now
    if kind == "routing":
        return views, seen, rng.permuted(rng.uniform(0, 1, (CASES, INSTANCES)), axis=1)
    if kind == "scorer":
        return views, seen
    waiting = request_views(5, (CASES, SLOTS))
    if kind == "priority":
        return waiting, rng.integers(0, 20, CASES).astype(np.int32), now
    priority = rng.integers(-3, 9, (CASES, SLOTS)).astype(np.float64)
    queued = rng.integers(0, 400_000, (CASES, SLOTS)).astype(np.int32)
    blocks = rng.integers(0, 9, (2, CASES, SLOTS)).astype(np.int32)
    return QueueView(waiting, priority, queued, blocks[0], blocks[1])


ALL = [
    pytest.param(kind, entry, id=f"{kind}-{name}")
    for kind, table in TABLES.items()
    for name, entry in table.items()
]


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_shapes_dtypes_and_ranges(kind: str, entry: Entry):
    params, inputs = numbers(entry), scenes(kind)
    for index in range(CASES):
        result = call(kind, entry, params, case(inputs, index))
        if kind == "admission":
            assert result[0].shape == () and result[0].dtype == bool
        elif kind == "routing":
            assert result[0].shape == () and result[0].dtype == np.int32
            assert 0 <= int(result[0]) < INSTANCES
        elif kind == "scorer":
            assert result.shape == (INSTANCES,) and result.dtype == np.float64
            assert np.all((np.asarray(result) >= 0) & (np.asarray(result) <= 1))
        elif kind == "priority":
            assert result.shape == (SLOTS,) and result.dtype == np.float64
            assert np.all(np.isfinite(result))
        else:
            value, rank = result
            assert value.shape == rank.shape == (SLOTS,)
            assert rank.dtype == np.int32
            assert np.all(np.isfinite(np.asarray(value, np.float64)))
            assert len(np.unique(rank)) == SLOTS


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_state_keeps_its_structure(kind: str, entry: Entry):
    """So that it can be carried through a loop."""
    if kind not in ("admission", "routing"):
        return
    params = numbers(entry)
    before = entry.initial_state(params, SHAPE)
    _, after = call(kind, entry, params, case(scenes(kind), 0))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert jnp.shape(old) == jnp.shape(new)
        assert jnp.asarray(old).dtype == jnp.asarray(new).dtype


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_jit_and_vmap_change_nothing(kind: str, entry: Entry):
    params, inputs = numbers(entry), scenes(kind)

    def one(params: Any, scene: Any, infinity: Any) -> Any:
        return call(kind, entry, params, scene, infinity)

    # infinity must be an argument: products are exact only if the compiler does not know it
    compiled, batched = jax.jit(one), jax.jit(jax.vmap(one, in_axes=(None, 0, None)))
    together = batched(params, inputs, INFINITY)
    for index in range(CASES):
        scene = case(inputs, index)
        plain = one(params, scene, INFINITY)
        jax.tree.map(np.testing.assert_array_equal, plain, compiled(params, scene, INFINITY))
        jax.tree.map(np.testing.assert_array_equal, plain, case(together, index))


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_other_numbers_do_not_trace_again(kind: str, entry: Entry):
    traces = []

    @jax.jit
    def one(params: Any, scene: Any) -> Any:
        traces.append(None)
        return call(kind, entry, params, scene)

    inputs = scenes(kind)
    for factor in (1.0, 1.5, 0.25):
        for index in range(3):
            one(numbers(entry, factor), case(inputs, index))
    assert len(traces) == 1


def relabelled(seen: Snapshots, order: np.ndarray) -> Snapshots:
    fields = {
        field.name: value[order] if jnp.ndim(value) else value
        for field in dataclasses.fields(Snapshots)
        for value in [getattr(seen, field.name)]
    }
    return Snapshots(**fields)


@pytest.mark.parametrize("entry", entries("scorer"))
def test_relabelling_instances_relabels_scores(entry: Entry):
    params, (views, seen) = numbers(entry), scenes("scorer")
    order = np.array([3, 0, 4, 1, 2])
    for index in range(CASES):
        view, snapshots = case(views, index), case(seen, index)
        plain = entry.function(params, view, snapshots, INFINITY)
        other = entry.function(params, view, relabelled(snapshots, order), INFINITY)
        np.testing.assert_array_equal(plain[order], other)


@pytest.mark.parametrize(
    "entry", [each for each in entries("routing") if each.id[8:] not in GOES_BY_INDEX]
)
def test_relabelling_instances_relabels_the_choice(entry: Entry):
    """The scenes have no equal loads or scores."""
    params, (views, seen, scores) = numbers(entry), scenes("routing")
    order = np.array([3, 0, 4, 1, 2])
    state = entry.initial_state(params, SHAPE)
    for index in range(CASES):
        view, snapshots = case(views, index), case(seen, index)
        plain, _ = entry.function(
            params, state, view, snapshots, jnp.asarray(scores[index]), INFINITY
        )
        other, _ = entry.function(
            params,
            state,
            view,
            relabelled(snapshots, order),
            jnp.asarray(scores[index][order]),
            INFINITY,
        )
        assert order[int(other)] == int(plain)


@pytest.mark.parametrize("entry", entries("admission"))
def test_relabelling_instances_leaves_admission_alone(entry: Entry):
    params, (views, seen, now) = numbers(entry), scenes("admission")
    order = np.array([3, 0, 4, 1, 2])
    for index in range(CASES):
        view, snapshots, clock = case(views, index), case(seen, index), jnp.asarray(now[index])
        other = relabelled(snapshots, order)
        assert bool(call("admission", entry, params, (view, snapshots, clock))[0]) == bool(
            call("admission", entry, params, (view, other, clock))[0]
        )


@pytest.mark.parametrize("entry", entries("routing"))
def test_inactive_instances_are_never_chosen(entry: Entry):
    params, inputs = numbers(entry), scenes("routing", num_active=2)
    for index in range(CASES):
        assert int(call("routing", entry, params, case(inputs, index))[0]) < 2


@pytest.mark.parametrize("kind", ["admission", "scorer"])
def test_inactive_instances_do_not_matter(kind: str):
    """What an inactive row holds changes neither a decision nor an active instance's score."""
    for entry in TABLES[kind].values():
        params, inputs = numbers(entry), scenes(kind, num_active=2)
        for index in range(CASES):
            scene = case(inputs, index)
            seen = scene[1]
            blank = jax.tree.map(
                lambda leaf, mask=seen.is_active: (
                    jnp.where(mask, leaf, jnp.zeros_like(leaf)) if jnp.ndim(leaf) else leaf
                ),
                seen,
            )
            plain = call(kind, entry, params, scene)
            other = call(kind, entry, params, (scene[0], blank, *scene[2:]))
            if kind == "scorer":
                np.testing.assert_array_equal(plain[:2], other[:2])
            else:
                assert bool(plain[0]) == bool(other[0])


@pytest.mark.parametrize("view", [RequestView, RoutedView, QueueView, Snapshots])
def test_no_policy_can_see_the_true_output_length(view: type):
    """The simulator knows it in advance; a real router or scheduler does not."""
    seen, names = [view], set()
    nested = {"RequestView": RequestView}
    while seen:
        for field in dataclasses.fields(seen.pop()):
            names.add(field.name)
            seen += [kind for name, kind in nested.items() if name in str(field.type)]
    assert not [name for name in names if "output" in name or "finish" in name]
    assert names & {"slo_class", "effective_load", "priority"}


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_defaults_cover_the_numbers(kind: str, entry: Entry):
    assert [name for name, _ in entry.defaults] == [
        field.name for field in dataclasses.fields(entry.params)
    ]
