"""What is compiled, and how often: numbers never trace again, and the batched loop has no branches."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from blis_jax import backend
from blis_jax.cluster import config
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape
from blis_jax.engine.loop import CHUNK, Order, beginning_of
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.runs.demand import demand_of_table
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.programs import Program, compiled, rows_of
from blis_jax.runs.sizes import first_sizes
from blis_jax.tables.state import SharedBlocks
from blis_jax.workload.table import pad_to
from tests.support.scenes import Prompt, flags, table_of, workload_of

OPTIONS = Options(num_slots=64, log_capacity=1024)


def small_table(num_prompts: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    prompts = [
        Prompt(
            2000 * i + int(rng.integers(1000)),
            int(rng.integers(20, 90)),
            int(rng.integers(1, 9)),
            int(rng.integers(6)),
            0,
            16,
        )
        for i in range(num_prompts)
    ]
    return table_of(workload_of(prompts))


VARIED: dict[str, tuple[Any, Any]] = {
    "alpha_coeffs": ([1.0, 2.0, 3.0], [1601.35, 3.51, 1805.54]),
    "beta_coeffs": ([1000.0, 1.0, 1.0], [6910.42, 17.67, 2.83]),
    "total_kv_blocks": (100_000, 50_000),
    "max_num_running_reqs": (256, 3),
    "max_num_scheduled_tokens": (2048, 33),
    "long_prefill_token_threshold": (0, 17),
    "admission_latency": (0, 40),
    "routing_latency": (0, 50),
    "snapshot_refresh_interval": (0, 5000),
    "horizon": (config.NO_HORIZON, 30_000),
    "slo_gated_threshold": (8.0, 1.0),
    "slo_base_critical": (10.0, 3.0),
    "slo_base_standard": (5.0, 2.5),
    "slo_base_sheddable": (1.0, 0.5),
    "slo_age_weight": (1e-5, 1e-3),
    "slo_threshold_standard": (100_000, 7),
    "slo_threshold_sheddable": (200_000, 9),
    "slo_scorer_bias_critical": (0.9, 0.8),
    "slo_scorer_bias_sheddable": (0.2, 0.1),
    "load_adaptive_low": (2, 1),
    "load_adaptive_high": (15, 4),
    "slo_prefill": (False, True),
    "slo_prefill_critical": (128, 16),
    "kv_cpu_blocks": (0, 10),
    "routing_scorers": (
        "slo-priority:3,queue-depth:2,prefix-affinity:1",
        "slo-priority:1,queue-depth:9,prefix-affinity:0.3",
    ),
}


def varied_flags(changed: set[str]) -> dict[str, Any]:
    return flags(
        num_instances=2,
        routing_policy="weighted",
        admission_policy="slo-gated",
        scheduler="priority-fcfs",
        priority_policy="load-adaptive",
        **{name: pair[name in changed] for name, pair in VARIED.items()},
    )


def test_other_numbers_and_requests_reuse_one_compilation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "keeps_programs", False)  # a command of another test may keep them

    def run(changed: set[str], num_prompts: int = 30, seed: int = 0) -> Any:
        cluster = config.from_flags(varied_flags(changed))
        return simulate(cluster, small_table(num_prompts, seed), OPTIONS)

    compiled.cache_clear()
    first = run(set())
    for name in VARIED:
        run({name})
    run(set(VARIED))
    run(set(), num_prompts=37)
    for seed in range(1, 4):
        run(set(), seed=seed)
    again = run(set())

    assert compiled.cache_info().misses == 1
    # the one compiled function has seen one kind of arguments; asking for it again is no miss
    cluster = config.from_flags(varied_flags(set()))
    demand, functions = demand_of_table(cluster, small_table(30), OPTIONS), mechanism(cluster)
    shape = first_sizes(demand, OPTIONS, functions).shape
    function = compiled(rows_of, shape, functions, "rows")
    assert compiled.cache_info().misses == 1
    assert function.jitted._cache_size() == 1
    for field in dataclasses.fields(first.requests):
        mine, theirs = (getattr(record.requests, field.name) for record in (first, again))
        np.testing.assert_array_equal(mine, theirs, err_msg=field.name)


@pytest.mark.slow
def test_more_slots_and_a_larger_log_change_nothing():
    cluster = config.from_flags(varied_flags(set()))
    small = simulate(cluster, small_table(40), OPTIONS)
    large = simulate(cluster, small_table(40), Options(num_slots=192, log_capacity=4096))
    assert small.outcome == large.outcome == Outcome.COMPLETED
    for part in ("requests", "steps", "instances"):
        for field in dataclasses.fields(getattr(small, part)):
            mine, theirs = (getattr(getattr(each, part), field.name) for each in (small, large))
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)


@pytest.mark.slow
def test_too_few_slots_are_repaired():
    """Everything waits at once on one instance; the twin has room from the start."""
    cluster = config.from_flags(flags(max_num_running_reqs=1))
    table = table_of(workload_of([Prompt(i, 5, 3) for i in range(40)]))
    tight, roomy = (simulate(cluster, table, Options(num_slots=n)) for n in (8, 64))
    assert tight.outcome == roomy.outcome == Outcome.COMPLETED
    np.testing.assert_array_equal(tight.requests.e2e_us, roomy.requests.e2e_us)
    assert tight.num_repairs > roomy.num_repairs == 0


def test_running_out_of_scan_steps_is_an_outcome():
    cluster = config.from_flags(flags())
    record = simulate(cluster, small_table(40), dataclasses.replace(OPTIONS, max_scan_steps=CHUNK))
    assert record.outcome == Outcome.ITERATIONS_EXHAUSTED


LANES = 2
BATCHED_SHAPE = EngineShape(
    num_instances=2,
    num_slots=64,
    num_requests=64,
    num_nodes=16,
    path_depth=2,
    node_blocks=4,
    log_capacity=1024,
)


def subjaxprs(value: Any) -> Iterator[Any]:
    for each in value if isinstance(value, (tuple, list)) else (value,):
        inner = getattr(each, "jaxpr", each)
        if hasattr(inner, "eqns"):
            yield inner


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in subjaxprs(value):
                yield from equations(inner)


def batched_program() -> tuple[Any, Any]:
    """The jaxpr of the `lanes` form, and the parameters it was made with."""
    cluster = config.from_flags(varied_flags(set()))
    table = small_table(40)
    table = pad_to(
        table, BATCHED_SHAPE.num_requests, BATCHED_SHAPE.num_nodes, BATCHED_SHAPE.path_depth
    )
    numbers = params(cluster)
    size = BATCHED_SHAPE.num_requests
    order = Order(np.arange(size, dtype=np.int32), np.full(size, -1, np.int32))
    lanes = [
        jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * LANES), tree)
        for tree in (numbers, table, order)
    ]
    functions = mechanism(cluster)
    with jax.enable_x64(True):
        function = Program(rows_of, (BATCHED_SHAPE, functions, "lanes"))
        program = jax.make_jaxpr(function)(lanes[0], tuple(lanes[1:]), np.int32(2**20))
        start = beginning_of(BATCHED_SHAPE, functions)
        _, state = jax.eval_shape(start, numbers, table, order)
    return program.jaxpr, state


def batched_body(program: Any) -> list[Any]:
    """The equations of one scan step of the `lanes` form."""
    scans = [each for each in equations(program) if each.primitive.name == "scan"]
    scans = [each for each in scans if each.params["length"] == CHUNK]
    assert len(scans) == 1
    return list(equations(scans[0].params["jaxpr"].jaxpr))


def test_batched_loop_writes_slots_instances_requests_log_and_memory_once():
    """Seven tables: those four, copies of shared blocks, who holds them, and the router's index."""
    program, _ = batched_program()
    writes = [each for each in batched_body(program) if each.primitive.name == "scatter"]
    shapes = {each.outvars[0].aval.shape for each in writes}
    assert len(writes) == len(shapes) == 7


def test_batched_loop_has_no_branches_and_copies_no_table():
    program, state = batched_program()
    body = batched_body(program)
    assert len(body) > 100

    names = {each.primitive.name for each in body}
    assert not names & {"while", "cond", "scan"}

    tables = jax.tree.leaves(
        (state.slot, state.past.parts[0], state.log.parts[0], state[SharedBlocks])
    )
    smallest = min(table.size for table in tables)
    assert smallest > BATCHED_SHAPE.num_slots, "a row of slots must not look like a table"
    sizes = [
        (variable.aval.size, variable.aval.shape)
        for each in body
        if each.primitive.name == "select_n"
        for variable in each.invars
    ]
    assert sizes
    assert max(sizes)[0] < LANES * smallest, max(sizes)


def test_a_row_branches():
    """The twin: the form for CPUs enters a phase only when it applies."""
    cluster = config.from_flags(varied_flags(set()))
    table = pad_to(small_table(40), 64, 16, 2)
    order = Order(np.arange(64, dtype=np.int32), np.full(64, -1, np.int32))
    one = [
        jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)
        for tree in (params(cluster), table, order)
    ]
    with jax.enable_x64(True):
        function = Program(rows_of, (BATCHED_SHAPE, mechanism(cluster), "rows"))
        program = jax.make_jaxpr(function)(one[0], tuple(one[1:]), np.int32(2**20))
    assert any(each.primitive.name == "cond" for each in equations(program.jaxpr))
