"""What every registered policy promises; a policy is picked up from the registry without being named here."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import (
    ROLES,
    SLO_CLASSES,
    EngineShape,
    RequestView,
    Snapshots,
)
from blis_jax.core.views import FleetView
from blis_jax.engine.cluster_params import fleet_params
from blis_jax.policies import registry
from blis_jax.policies.contexts import (
    ClusterContext,
    Completion,
    GatewayContext,
    HandOverContext,
    LeadingContents,
    OffloadContext,
    Outstanding,
    PickerContext,
    QueueContext,
    VictimContext,
)
from blis_jax.policies.contract import Policy
from blis_jax.policies.numbers import numbers_of
from blis_jax.policies.reading import DEMAND
from sweeps.strategies.moved import PATHS

INSTANCES, SLOTS, CASES = 5, 12, 40
INFINITY = np.float64(np.inf)
SHAPE = EngineShape(
    num_instances=INSTANCES,
    num_slots=SLOTS,
    num_requests=64,
    num_nodes=0,
    path_depth=1,
    num_keys=64,
    num_changes=4,
)
TABLES = {
    kind: {name: registry.find(kind, name) for name in names}
    | {name: registry.find(kind, path) for name, path in PATHS.get(kind, {}).items()}
    for kind, names in registry.NAMES.items()
}
# in turn, or by draws for each place
GOES_BY_INDEX = {"round-robin", "power-of-two", "cached-of-two", "session-hashed"}


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


def entries(kind: str) -> list[Any]:
    return [pytest.param(entry, id=f"{kind}-{name}") for name, entry in TABLES[kind].items()]


def numbers(entry: Policy, factor: float = 1.0) -> Any:
    """The policy's params with its defaults, or others near them."""
    declared = numbers_of(entry.params)
    return entry.params(
        **{name: np.float64(one.default * factor) for name, one in declared.items()}
    )


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
        prefix_match_blocks=distinct(0, 8),
        num_rejected=rng.integers(0, 9, CASES).astype(np.int32),
        is_active=np.tile(np.arange(INSTANCES) < num_active, (CASES, 1)),
        role=np.zeros(shape, np.int32),
        cached_prompt_blocks=distinct(0, 8),
        has_adapter=distinct(0, 8) > 3,
        prompt_us=distinct(1000, 9000).astype(np.float64),
    )


def case(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), tree)


def call(entry: Policy, params: Any, scene: Any, infinity: Any = INFINITY) -> Any:
    """The policy's first decision on one scene, and its state then."""
    with runtime_infinity(infinity):
        return entry.decide(params, entry.start(params, SHAPE), scene)


def contents_of_slots() -> LeadingContents:
    """The same contents for every slot, in another order, `[case, slot, path]`."""
    rng, one = np.random.default_rng(13), contents()
    rows = rng.integers(0, CASES, (CASES, SLOTS))
    return jax.tree.map(lambda column: column[rows], one)


def contents() -> LeadingContents:
    """Up to two shared contents of 20 and 30 blocks, `[case, path]`."""
    rng = np.random.default_rng(8)
    count, content = rng.integers(0, 3, (CASES, 1)), rng.integers(0, 6, (CASES, 2))
    is_there = np.arange(2) < count
    start, length = np.array([0, 20]), np.where(is_there, [20, 30], 0)
    columns = np.where(is_there, content, 6), np.tile(start, (CASES, 1)), length
    return LeadingContents(*(column.astype(np.int32) for column in columns))


def outstanding() -> Outstanding:
    """Some prompts in a few slots of every instance, `[case, instance, slot]`."""
    rng, shape = np.random.default_rng(12), (CASES, INSTANCES, 5)
    return Outstanding(
        is_there=rng.integers(0, 2, shape).astype(bool),
        slo_class=rng.integers(0, 6, shape).astype(np.int32),
        input_len=rng.integers(1, 900, shape).astype(np.int32),
        expected_blocks=rng.integers(0, 40, shape).astype(np.int32),
        arrival_us=rng.integers(0, 400_000, shape).astype(np.int32),
    )


def gateway_scenes(entry: Policy, num_active: int) -> GatewayContext:
    kind = entry.kind
    rng = np.random.default_rng(7)
    request, seen = request_views(3, (CASES,)), all_snapshots(4, num_active)
    scores = rng.permuted(rng.uniform(0, 1, (CASES, INSTANCES)), axis=1)
    best = np.where(seen.is_active, scores, -1.0).argmax(axis=1).astype(np.int32)
    rng = np.random.default_rng(4)
    return GatewayContext(
        request=request,
        num_prompt_blocks=request.input_len // 16,
        prompt_key=rng.integers(0, 64, CASES).astype(np.int32),
        snapshots=seen,
        now_us=np.full(CASES, 400_000, np.int32),
        key=rng.integers(0, 2**32, (CASES, 2), dtype=np.uint32),
        block_size=np.full(CASES, 16, np.int32),
        scores=scores if kind == "routing" else None,
        picked=best if kind == "routing" or entry.reads("picked") else None,
        run_key=np.tile(np.array([[3, 14]], np.uint32), (CASES, 1)),
        contents=contents() if entry.reads("contents") else None,
        draws=rng.integers(0, 2**31 - 1, (CASES, 8), dtype=np.int32),
        outstanding=outstanding() if entry.reads("outstanding") else None,
    )


def queue_scenes(entry: Policy) -> QueueContext:
    rng = np.random.default_rng(7)
    waiting, shape = request_views(5, (CASES, SLOTS)), (CASES, SLOTS)
    depth = rng.integers(0, 20, CASES).astype(np.int32)
    priority = rng.integers(-3, 9, shape).astype(np.float64)
    queued = rng.integers(0, 400_000, shape).astype(np.int32)
    blocks = rng.integers(0, 9, (2, *shape)).astype(np.int32)
    return QueueContext(
        request=waiting,
        is_waiting=rng.integers(0, 2, shape).astype(bool),
        queued_us=queued,
        num_expected_blocks=blocks[1],
        queue_depth=depth,
        now_us=np.full(CASES, 400_000, np.int32),
        instance=rng.integers(0, INSTANCES, CASES).astype(np.int32),
        key=rng.integers(0, 2**32, (CASES, 2), dtype=np.uint32),
        num_cached_blocks=blocks[0] if entry.reads("num_cached_blocks") else None,
        priority=priority if entry.kind == "scheduler" else None,
        contents=contents_of_slots() if entry.reads("contents") else None,
        handed=rng.uniform(0, 1e5, shape) if entry.reads("handed") else None,
    )


def victim_scenes(entry: Policy) -> VictimContext:
    rng = np.random.default_rng(13)
    shape = (CASES, SLOTS)
    tokens, blocks = rng.integers(0, 900, shape), rng.integers(0, 40, shape)
    return VictimContext(
        request=request_views(5, shape),
        is_running=rng.integers(0, 2, shape).astype(bool),
        place=rng.permuted(np.tile(np.arange(SLOTS, dtype=np.int32), (CASES, 1)), axis=1),
        num_tokens=tokens.astype(np.int32),
        now_us=np.full(CASES, 400_000, np.int32),
        instance=rng.integers(0, INSTANCES, CASES).astype(np.int32),
        num_own_blocks=blocks.astype(np.int32) if entry.reads("num_own_blocks") else None,
    )


def offload_scenes(entry: Policy) -> OffloadContext:
    rng = np.random.default_rng(19)
    shape = (CASES, SLOTS)
    counts = {
        name: rng.integers(0, 900, CASES).astype(np.int32)
        for name in ("now_us", "num_blocks", "num_used_blocks", "num_waiting_blocks", "num_running")
    }
    return OffloadContext(
        request=request_views(6, shape),
        num_takers=rng.integers(1, 6, shape).astype(np.int32),
        instance=rng.integers(0, INSTANCES, CASES).astype(np.int32),
        **(counts if entry.reads(*DEMAND) else {}),
    )


def fleet_scenes() -> FleetView:
    rng = np.random.default_rng(17)
    params = fleet_params(ClusterConfig(num_instances=3), INSTANCES, SHAPE.num_changes, 0)
    shape = (CASES, INSTANCES)
    never = np.full(shape, np.iinfo(np.int32).max, np.int32)
    return FleetView(
        params=jax.tree.map(lambda leaf: np.broadcast_to(leaf, (CASES, *np.shape(leaf))), params),
        total_kv_blocks=np.full(shape, 500, np.int32),
        block_size=np.full(CASES, 16, np.int32),
        has_more=rng.random(CASES) < 0.5,
        has_work=rng.random(shape) < 0.5,
        emptied_us=rng.integers(-1, 400_000, shape).astype(np.int32),
        is_sent=rng.random(shape) < 0.2,
        queued_us=never,
        idle_event_us=rng.integers(400_000, 500_000, shape).astype(np.int32),
    )


def movement_scenes(entry: Policy, num_active: int) -> ClusterContext | HandOverContext:
    rng = np.random.default_rng(11)
    seen = all_snapshots(4, num_active)
    now_us, key = np.full(CASES, 400_000, np.int32), rng.integers(0, 2**32, (CASES, 2), np.uint32)
    if entry.kind == "cluster":
        num_arrived, is_paid = np.arange(CASES, dtype=np.int32), seen.is_active
        fleet = fleet_scenes() if entry.reads("fleet") else None
        return ClusterContext(seen, seen.is_active, now_us, key, num_arrived, is_paid, fleet)
    role = rng.integers(0, len(ROLES), seen.role.shape).astype(np.int32)
    instance = rng.integers(0, INSTANCES, CASES).astype(np.int32)
    return HandOverContext(request_views(3, (CASES,)), instance, seen.is_active, role, now_us, key)


def scenes(entry: Policy, num_active: int = INSTANCES) -> Any:
    """Contexts of the policy's kind, `[case]` in front."""
    if entry.kind in ("priority", "scheduler"):
        return queue_scenes(entry)
    if entry.kind == "victim":
        return victim_scenes(entry)
    if entry.kind == "offload":
        return offload_scenes(entry)
    if entry.kind in ("cluster", "hand_over"):
        return movement_scenes(entry, num_active)
    context = gateway_scenes(entry, num_active)
    if entry.kind != "picker":
        return context
    rng = np.random.default_rng(9)
    scores = rng.permuted(rng.uniform(0, 1, (CASES, INSTANCES)), axis=1)
    active = context.snapshots.is_active
    return PickerContext(scores, active, context.request, context.key, context.draws)


ALL = [
    pytest.param(kind, entry, id=f"{kind}-{name}")
    for kind, table in TABLES.items()
    for name, entry in table.items()
]
LONG = ("cluster-saturation-autoscaler",)  # operation by operation, without a compiler
CALLED = [
    pytest.param(*each.values, id=each.id, marks=[pytest.mark.slow] if each.id in LONG else [])
    for each in ALL
]


@pytest.mark.parametrize(("kind", "entry"), CALLED)
def test_shapes_dtypes_and_ranges(kind: str, entry: Policy):
    params, inputs = numbers(entry), scenes(entry)
    for index in range(CASES):
        result, _ = call(entry, params, case(inputs, index))
        if kind == "admission":
            assert result.shape == () and result.dtype == bool
        elif kind in ("routing", "picker"):
            assert result.shape == () and result.dtype == np.int32
            assert 0 <= int(result) < INSTANCES
        elif kind == "scorer":
            assert result.shape == (INSTANCES,) and result.dtype == np.float64
            assert np.all((np.asarray(result) >= 0) & (np.asarray(result) <= 1))
        elif kind in ("priority", "victim", "offload"):
            assert result.shape == (SLOTS,) and result.dtype == np.float64
            assert np.all(np.isfinite(result))
        elif kind == "cluster":
            assert result.is_up.shape == result.queue_leaves.shape == (INSTANCES,)
            assert result.is_up.dtype == result.queue_leaves.dtype == bool
            assert float(result.delay_us) >= 0
        elif kind == "hand_over":
            assert result.moves.shape == () and result.moves.dtype == bool
            assert np.isfinite(result.delay_us) and float(result.delay_us) >= 0
        else:
            value, rank = result
            assert value.shape == rank.shape == (SLOTS,)
            assert rank.dtype == np.int32
            assert np.all(np.isfinite(np.asarray(value, np.float64)))
            assert len(np.unique(rank)) == SLOTS


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_state_keeps_its_structure(kind: str, entry: Policy):
    """So that it can be carried through a loop."""
    params = numbers(entry)
    before = entry.start(params, SHAPE)
    _, after = call(entry, params, case(scenes(entry), 0))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert jnp.shape(old) == jnp.shape(new)
        assert jnp.asarray(old).dtype == jnp.asarray(new).dtype


@pytest.mark.parametrize(("kind", "entry"), CALLED)
def test_jit_and_vmap_change_nothing(kind: str, entry: Policy):
    params, inputs = numbers(entry), scenes(entry)

    def one(params: Any, scene: Any, infinity: Any) -> Any:
        return call(entry, params, scene, infinity)

    # infinity must be an argument: products are exact only if the compiler does not know it
    compiled, batched = jax.jit(one), jax.jit(jax.vmap(one, in_axes=(None, 0, None)))
    together = batched(params, inputs, INFINITY)
    for index in range(CASES):
        scene = case(inputs, index)
        plain = one(params, scene, INFINITY)
        jax.tree.map(np.testing.assert_array_equal, plain, compiled(params, scene, INFINITY))
        jax.tree.map(np.testing.assert_array_equal, plain, case(together, index))


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_other_numbers_do_not_trace_again(kind: str, entry: Policy):
    traces = []

    @jax.jit
    def one(params: Any, scene: Any) -> Any:
        traces.append(None)
        return call(entry, params, scene)

    inputs = scenes(entry)
    for factor in (1.0, 1.5, 0.25):
        for index in range(3):
            one(numbers(entry, factor), case(inputs, index))
    assert len(traces) == 1


ORDER = np.array([3, 0, 4, 1, 2])


def relabelled(scene: Any) -> Any:
    """The same scene with its instances in another order."""
    if isinstance(scene, PickerContext):
        return dataclasses.replace(
            scene, scores=scene.scores[ORDER], is_eligible=scene.is_eligible[ORDER]
        )
    seen = jax.tree.map(lambda leaf: leaf[ORDER] if jnp.ndim(leaf) else leaf, scene.snapshots)
    sent = jax.tree.map(lambda leaf: leaf[ORDER], scene.outstanding)
    scene = dataclasses.replace(scene, snapshots=seen, outstanding=sent)
    if scene.picked is None:
        return scene
    picked = jnp.int32(np.flatnonzero(int(scene.picked) == ORDER)[0])
    scores = None if scene.scores is None else scene.scores[ORDER]
    return dataclasses.replace(scene, scores=scores, picked=picked)


def decisions_of_relabelled(entry: Policy) -> Iterator[tuple[Any, Any]]:
    """Of every scene, what is decided and what is decided once the instances are relabelled."""
    params, inputs = numbers(entry), scenes(entry)
    for index in range(CASES):
        scene = case(inputs, index)
        yield call(entry, params, scene)[0], call(entry, params, relabelled(scene))[0]


@pytest.mark.parametrize("entry", entries("scorer"))
def test_relabelling_instances_relabels_scores(entry: Policy):
    for plain, other in decisions_of_relabelled(entry):
        np.testing.assert_array_equal(plain[ORDER], other)


@pytest.mark.parametrize(
    "entry",
    [
        *(each for each in entries("routing") if each.id[8:] not in GOES_BY_INDEX),
        *(each for each in entries("picker") if each.id == "picker-first-best"),
    ],
)
def test_relabelling_instances_relabels_the_choice(entry: Policy):
    """The scenes have no equal loads or scores."""
    for plain, other in decisions_of_relabelled(entry):
        assert ORDER[int(other)] == int(plain)


@pytest.mark.parametrize("entry", entries("admission"))
def test_relabelling_instances_leaves_admission_alone(entry: Policy):
    for plain, other in decisions_of_relabelled(entry):
        assert bool(plain) == bool(other)


@pytest.mark.parametrize("entry", [*entries("routing"), *entries("picker")])
def test_inactive_instances_are_never_chosen(entry: Policy):
    params, inputs = numbers(entry), scenes(entry, num_active=2)
    for index in range(CASES):
        assert int(call(entry, params, case(inputs, index))[0]) < 2


@pytest.mark.parametrize("kind", ["admission", "scorer"])
def test_inactive_instances_do_not_matter(kind: str):
    """What an inactive row holds changes neither a decision nor an active instance's score."""
    for entry in TABLES[kind].values():
        params, inputs = numbers(entry), scenes(entry, num_active=2)
        for index in range(CASES):
            scene = case(inputs, index)
            blank = jax.tree.map(
                lambda leaf, mask=scene.snapshots.is_active: (
                    jnp.where(mask, leaf, jnp.zeros_like(leaf)) if jnp.ndim(leaf) else leaf
                ),
                scene.snapshots,
            )
            plain, _ = call(entry, params, scene)
            other, _ = call(entry, params, dataclasses.replace(scene, snapshots=blank))
            if kind == "scorer":
                np.testing.assert_array_equal(plain[:2], other[:2])
            else:
                assert bool(plain) == bool(other)


@pytest.mark.parametrize("view", [GatewayContext, PickerContext, QueueContext])
def test_no_policy_can_see_the_true_output_length(view: type):
    """The simulator knows it in advance; a real router or scheduler does not."""
    seen, names = [view], set()
    nested = {"RequestView": RequestView, "Snapshots": Snapshots}
    while seen:
        for field in dataclasses.fields(seen.pop()):
            names.add(field.name)
            seen += [kind for name, kind in nested.items() if name in str(field.type)]
    assert not [name for name in names if "output" in name or "finish" in name]
    assert "slo_class" in names


def test_only_a_completion_tells_the_output_length():
    assert "num_output_tokens" in {field.name for field in dataclasses.fields(Completion)}


@pytest.mark.parametrize("name", registry.PICKERS)
def test_pickers_draw_as_they_say(name: str):
    """3,000 draws of known shares: within 5 standard deviations (false alarms 1 in 10^6)."""
    entry, size = TABLES["picker"][name], 3000
    scores = np.array([0.5, 1.0, 0.25, 1.0, 0.0])
    shares = {
        "first-best": [0, 1, 0, 0, 0],
        "random-best": [0, 0.5, 0, 0.5, 0],
        "weighted-random": scores / scores.sum(),
        "drawn-best": [0, 0.5, 0, 0.5, 0],
    }[name]
    keys = jax.random.split(jax.random.key(3), size)

    @jax.jit
    @jax.vmap
    def pick(key: Any) -> Any:
        request = case(request_views(1, (1,)), 0)
        draws = jax.random.randint(key, (2,), 0, 2**31 - 1, jnp.int32)
        among = PickerContext(jnp.asarray(scores), jnp.ones(5, bool), request, key, draws)
        return entry.decide(numbers(entry), entry.start(numbers(entry), SHAPE), among)[0]

    found = np.bincount(np.asarray(pick(keys)), minlength=5) / size
    tolerance = 5 * np.sqrt(np.multiply(shares, np.subtract(1, shares)) / size)
    assert np.all(np.abs(found - shares) <= tolerance)


@pytest.mark.parametrize("name", ["first-best", "random-best", "weighted-random"])
def test_pickers_take_an_eligible_instance_when_all_scores_are_zero(name: str):
    entry, request = TABLES["picker"][name], case(request_views(1, (1,)), 0)
    eligible = jnp.asarray([False, False, True, False, True])
    draws = jnp.array([5, 8], jnp.int32)
    among = PickerContext(jnp.zeros(5), eligible, request, jax.random.key(1), draws)
    assert int(call(entry, numbers(entry), among)[0]) in (2, 4)


@pytest.mark.parametrize(("kind", "entry"), ALL)
def test_every_number_says_what_it_is(kind: str, entry: Policy):
    for name, one in numbers_of(entry.params).items():
        assert one.meaning and one.permits(one.default), name
