"""The CPU tier of August's revision, against instances in plain Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.core.types import EngineShape, Params
from blis_jax.engine.loop import context_of, first_order, first_state, requests_of
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.memory.block_tables.turn import Operation, Turn
from blis_jax.memory.mirror import bring_back, mirror
from blis_jax.metrics.kv import cache_hit_rates, thrashing_rates
from blis_jax.records import invariants
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import expand_steps
from blis_jax.runs.demand import demand_of_table
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.sizes import first_sizes
from blis_jax.tables.blocks import (
    Blocks,
    InstanceMemory,
    MemoryTask,
    Pool,
    TierEntries,
    emptied,
    initial_blocks,
)
from blis_jax.tables.state import Instance, State
from blis_jax.workload.table import pad_to, with_timeouts
from sweeps.strategies.moved import PATHS, changed
from tests.support.oracles import judged_tier, mirrored_oracle
from tests.support.oracles.oracle import requests_of_workload
from tests.support.recorded.golden_2026_08 import AugustScenario
from tests.support.recorded.reference_data import find_golden_dir
from tests.support.scenes import Prompt, flags, table_of, workload_of

SIZES = Options(
    num_slots=64, num_blocks=64, list_blocks=24, num_shared_blocks=64, log_capacity=4096
)
URGENCY = {0: 1.0, 1: 0.0, 2: 1.0, 3: 6.0, 4: 5.0, 5: 7.0}  # of a class's code
MODEL = "meta-llama/llama-3.1-8b-instruct"
STEPS = ("step_start_us", "step_duration_us", "step_running", "step_waiting", "step_used_blocks")
SETTINGS = (
    "num_instances",
    "total_kv_blocks",
    "kv_cpu_blocks",
    "kv_transfer_bandwidth",
    "kv_transfer_base_latency",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "long_prefill_token_threshold",
    "slo_preemption",
    "horizon",
    "block_size_in_tokens",
)


@dataclasses.dataclass(frozen=True)
class Scene:
    """A workload and a cluster."""

    workload: dict[str, np.ndarray]
    settings: dict[str, Any]
    timeout_us: np.ndarray | None


def scene(seed: int, size: int = 16, is_urgent: bool = False, has_timeouts: bool = False) -> Scene:
    """Prompts that share prefixes, of which some are whole blocks; hardly any room on the GPU."""
    rng = np.random.default_rng(seed)
    count = 40
    prompts = []
    for index in range(count):
        prefix = size * int(rng.integers(2, 8))
        own = (
            int(rng.integers(0, 4 * size)) if rng.random() < 0.7 else size * int(rng.integers(0, 3))
        )
        later = int(rng.integers(index)) if index and rng.random() < 0.15 else -1
        prompts.append(
            Prompt(
                int(rng.integers(400_000)),
                max(prefix + own, 1),
                int(rng.integers(0, 3 * size)),
                int(rng.integers(6)),
                int(rng.integers(3)) if rng.random() < 0.85 else -1,
                prefix,
                later,
            )
        )
    workload = workload_of(prompts, size)
    longest = int(np.max(-(-(workload["input_len"] + workload["output_len"]) // size)))
    settings = {
        "num_instances": 2,
        "total_kv_blocks": int(rng.integers(longest, 64)),
        "kv_cpu_blocks": int(rng.choice([3, 12, 30, 60, 128])),
        "kv_transfer_bandwidth": float(rng.choice([0.3, 5.0, 100.0])),
        "kv_transfer_base_latency": int(rng.choice([0, 7, 900])),
        "max_num_running_reqs": int(rng.choice([3, 8, 256])),
        "max_num_scheduled_tokens": int(rng.choice([40, 75, 300, 2048])),
        "long_prefill_token_threshold": int(rng.choice([0, 0, size, 2 * size, 37])),
        "slo_preemption": is_urgent,
        "horizon": int(rng.choice([500_000, 3_000_000])),
    }
    timeout = rng.integers(50_000, 600_000, count) if has_timeouts else None
    return Scene(workload, settings | {"block_size_in_tokens": size}, timeout)


def both(
    one: Scene, options: Options = SIZES, numbers: Mapping[str, float] | None = None
) -> tuple[RunRecord, list[Any], list[Any]]:
    """The engine's run, the plain instances, and their requests; with numbers of the offload policy, under that."""
    config, table = cluster(one), table_of(one.workload, num_nodes=64, depth=8)
    if numbers is not None:
        given = {f"content_worth_{name}": value for name, value in numbers.items()}
        config = changed(config, {"offload_policy": "content-worth", **given})
    if one.timeout_us is not None:
        table = with_timeouts(table, one.timeout_us)
    record = simulate(config, table, options)
    return record, *plain(one.workload, one.settings, config, one.timeout_us, table, numbers)


def plain(
    workload: dict[str, np.ndarray],
    settings: dict[str, Any],
    config: ClusterConfig,
    timeout_us: np.ndarray | None = None,
    table: Any = None,
    numbers: Mapping[str, float] | None = None,
) -> tuple[list[Any], list[Any]]:
    """The plain instances after the run, and the requests."""
    given = flags(
        **settings,
        latency_model="trained-physics",
        model=MODEL,
        hardware="H100",
        tp=1,
        alpha_coeffs=list(config.alpha_coeffs),
        beta_coeffs=list(config.beta_coeffs),
    ) | {"max-model-len": config.max_model_len}
    tokens = [request.tokens for request in requests_of_workload(workload)]
    askers = mirrored_oracle.askers_of(workload, tokens, URGENCY)
    for asker in askers if timeout_us is not None else ():
        asker.deadline = asker.arrival + int(timeout_us[asker.index])
    shared = [] if table is None else judged_tier.num_shared_of(table)
    for asker, count in zip(askers, shared, strict=False):
        asker.num_shared = count
    worth_of = None if numbers is None else judged_tier.worth_by(numbers)
    return mirrored_oracle.run(askers, given, worth_of), askers


def cluster(one: Scene) -> ClusterConfig:
    """The scene's cluster."""
    return ClusterConfig(
        revision=AUGUST,
        latency_model="trained-physics",
        model=MODEL,
        hardware="H100",
        tp=1,
        **one.settings,
    )


def differences(record: RunRecord, instances: list[Any], askers: list[Any]) -> list[str]:
    """What the two have otherwise."""
    requests, table, found = record.requests, record.instances, []
    steps = expand_steps(record, 16)
    theirs = [(row, *step) for row, one in enumerate(instances) for step in one.steps]
    columns = np.array(theirs, np.int64).reshape(-1, 6).T
    pairs = [
        (name, getattr(steps, name), column)
        for name, column in zip(steps._fields, columns, strict=False)
    ]

    def of(field: str) -> np.ndarray:
        return np.array([getattr(one, field) for one in askers])

    done = of("status") == Status.COMPLETED
    names = {"status": "status", "num_scheduled": "scheduled", "preemptions": "preemptions"}
    names |= {"cached_tokens_first_sched": "cached", "sched_delay_us": "delay", "ttft_us": "ttft"}
    kept = of("status") != Status.DROPPED
    pairs += [(ours, getattr(requests, ours)[kept], of(name)[kept]) for ours, name in names.items()]
    pairs += [("e2e_us", requests.e2e_us[done], of("e2e")[done])]
    kv = [one.kv for one in instances]
    counters = {
        "gpu_hits": "hits",
        "gpu_misses": "misses",
        "cpu_offloads": "copies",
        "cpu_reloads": "reloads",
        "cpu_misses": "cpu_misses",
        "cpu_thrashing": "evictions",
        "used_blocks_at_end": "used",
    }
    pairs += [
        (ours, getattr(table, ours), [getattr(one, name) for one in kv])
        for ours, name in counters.items()
    ]
    pairs += [("failures", table.kv_allocation_failures, [one.failures for one in instances])]
    for name, ours, other in pairs:
        if np.shape(ours) != np.shape(other):
            found.append(f"{name}: {len(ours)} entries, should be {len(other)}")
        elif (wrong := np.flatnonzero(np.asarray(ours) != np.asarray(other))).size:
            at = int(wrong[0])
            found.append(
                f"{name}: {wrong.size} differ, first [{at}] {ours[at]}, should be {other[at]}"
            )
    return found


def assert_equal(
    one: Scene, options: Options = SIZES, numbers: Mapping[str, float] | None = None
) -> list[Any]:
    record, instances, askers = both(one, options, numbers)
    assert record.outcome in WHOLE
    assert differences(record, instances, askers) == []
    broken = {name for name, count in invariants.violations(record).items() if count}
    # latencies of a request that is cut off are not counted right where a step has passed it over
    assert broken <= {"latencies_of_completed_requests"}
    for row, instance in enumerate(instances):
        kv = instance.kv
        looked = kv.hits + kv.misses + kv.cpu_misses
        assert cache_hit_rates(record)[row] == pytest.approx(kv.hits / looked if looked else 0.0)
        assert thrashing_rates(record)[row] == pytest.approx(
            kv.evictions / kv.copies if kv.copies else 0.0
        )
    return instances


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "is_urgent", "has_timeouts"),
    [(16, True, True), (4, False, True)],
    ids=["by priority", "small blocks"],
)
def test_equals_plain_instances(size: int, is_urgent: bool, has_timeouts: bool):
    """Ten scenes of one compilation; together they evict, bring back, and leave blocks to requests that wait."""
    found = [assert_equal(scene(seed, size, is_urgent, has_timeouts)) for seed in range(100, 110)]
    kv = [instance.kv for instances in found for instance in instances]
    assert sum(one.reloads for one in kv) > 100
    assert sum(one.evictions for one in kv) > 100


WORTHS = {
    "as it was": {},
    "a second request": {"least_takers": 2},
    "by class": {"critical": 2.0, "standard": 1.0, "sheddable": 0.0},
    "by class and requests": {"critical": 3.0, "sheddable": 0.5, "per_taker": 0.75},
    "a third request": {"per_taker": 1.0, "least_takers": 3},
}


@pytest.mark.slow
def test_room_for_a_second_request_equals_plain_instances():
    """In seed 122 blocks were not taken behind found ones that the list had."""
    for seed in (106, 122, 126):
        one = scene(seed, 16, seed % 2 == 0, has_timeouts=True)
        assert_equal(one, numbers=WORTHS["a second request"])


@pytest.mark.slow
@pytest.mark.parametrize("numbers", WORTHS.values(), ids=WORTHS)
def test_an_offload_policy_equals_plain_instances(numbers: dict[str, float]):
    """Twelve scenes of one compilation, in which blocks come back."""
    seeds = (106, 109, 112, 114, 122, 126, 128, 130, 135, 138, 142, 156)
    found = [
        assert_equal(scene(seed, 16, seed % 2 == 0, has_timeouts=True), numbers=numbers)
        for seed in seeds
    ]
    assert sum(instance.kv.reloads for instances in found for instance in instances) > 20


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rows", "lanes"])
def test_equal_worths_leave_the_tier_as_it_is(form: str):
    """Bit for bit, with a tier that has to give contents up at nearly every step."""
    one = scene(108, has_timeouts=True)
    config, table = cluster(one).replace(horizon=100_000), table_of(one.workload, 64, 8)
    options = dataclasses.replace(SIZES, form=form)
    plain = simulate(config, table, options)
    judged = simulate(
        config.replace(offload_policy=PATHS["offload"]["content-worth"]), table, options
    )
    assert plain.instances.cpu_thrashing.sum() > 50
    for part in ("requests", "instances", "steps"):
        ours, theirs = getattr(judged, part), getattr(plain, part)
        for name in (one.name for one in dataclasses.fields(theirs)):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)


def test_an_instance_that_has_lost_its_memory_has_nothing_on_the_cpu_either():
    """As at the start; what another instance has stays."""
    config = ClusterConfig(revision=AUGUST, num_instances=2, total_kv_blocks=6, kv_cpu_blocks=5)
    sizes = {"num_blocks": 6, "list_blocks": 3, "num_shared_blocks": 4, "ring_size": 8}
    shape = EngineShape(2, 2, 4, 1, 1, mirror_size=5, **sizes)
    with jax.enable_x64(True):
        first = initial_blocks(shape, mechanism(config), params(config))
        used = jax.tree.map(lambda table: (~table.astype(jnp.int64)).astype(table.dtype), first)
        lost = emptied(shape, params(config), used, jnp.array([True, False, False]))
    for name in ("hold", "key", "ring", "named", "is_named", "cpu_key", "cpu_time"):
        assert np.array_equal(getattr(lost, name)[0], getattr(first, name)[0]), name
        assert np.array_equal(getattr(lost, name)[1], getattr(used, name)[1]), name
    entries, before, at_first = (blocks[TierEntries].entry for blocks in (lost, used, first))
    assert np.array_equal(entries, [at_first[0], *before[1:]])
    columns = [Pool.HEAD, Pool.TAIL, Pool.CPU_USED, Pool.IS_MIRRORED]
    assert lost.pool[0, columns].tolist() == first.pool[0, columns].tolist()


@pytest.mark.parametrize("operation", [mirror, bring_back])
def test_a_turn_changes_a_window_of_a_large_tier(operation: Operation):
    """Tables that go through a branch as a whole are copied: 4 ms a step with 36,000 blocks on the CPU."""
    one = scene(104)
    config, table = cluster(one).replace(kv_cpu_blocks=36_000), table_of(one.workload, 64, 8)
    functions, numbers = mechanism(config), params(config)
    shape = first_sizes(demand_of_table(config, table, SIZES), SIZES, functions).shape
    table = pad_to(table, shape.num_requests, shape.num_nodes, shape.path_depth)

    def changes(numbers: Params, requests: Any, state: State) -> Any:
        ctx = context_of(shape, functions, numbers, requests)
        blocks, lane = state[Blocks], state.lane.row
        pool, inst = InstanceMemory(blocks.pool[0]), Instance(state.inst.numbers[:, 0])
        is_on, task = jnp.array(True), MemoryTask(blocks.task)
        return operation(Turn(ctx, state, is_on, blocks, lane.active, task, pool, inst, lane))

    with jax.enable_x64(True):
        requests = requests_of(shape, functions, numbers, table, first_order(shape.num_requests))
        state = first_state(shape, functions, numbers, requests)
        moves = jax.eval_shape(changes, numbers, requests, state)
    assert max(leaf.size for leaf in jax.tree.leaves(moves)) <= 128


@pytest.mark.slow
def test_lanes_do_the_same():
    """Many lanes in one loop, for a while."""
    one = scene(104)
    short = dataclasses.replace(one, settings=one.settings | {"horizon": 150_000})
    assert_equal(short, dataclasses.replace(SIZES, form="lanes"))


@pytest.mark.golden
@pytest.mark.parametrize("name", ["kv_cpu_s42", "kv_cpu_preempt_s42"])
def test_plain_instances_equal_the_recorded(name: str):
    """So that what the engine is compared with is the reference itself."""
    folder = find_golden_dir()
    if folder is None or not (folder / "blis_2026_08" / "index.json").exists():
        pytest.skip("no reference results of August: ../shared/golden/blis_2026_08 is not here")
    scenario = AugustScenario(folder / "blis_2026_08", name)
    config, recorded = scenario.cluster, scenario.arrays()
    settings = {field: getattr(config, field) for field in SETTINGS}
    with np.load(scenario.folder / "workloads" / f"{scenario.recorded['workload']}.npz") as file:
        workload = dict(file) | {"short_input_id": np.zeros(len(file["arrival_us"]), np.int64)}
    instances, askers = plain(workload, settings, config)
    for ours, theirs in {
        "e2e": "e2e_us",
        "ttft": "ttft_us",
        "cached": "cached_tokens_first_sched",
    }.items():
        assert [getattr(one, ours) for one in askers] == recorded[theirs].tolist()
    steps = np.array([step for one in instances for step in one.steps]).T
    for name, column in zip(STEPS, steps, strict=True):
        assert column.tolist() == recorded[name].tolist()
    for instance, one in zip(instances, scenario.recorded["instances"], strict=True):
        kv = instance.kv
        assert kv.copies == one["kv"]["mirrored"]
        assert kv.reloads == one["kv"]["cpu_hits"]
        assert kv.cpu_misses == one["kv"]["cpu_misses"]
        assert kv.hits == one["kv"]["gpu_hits"]
