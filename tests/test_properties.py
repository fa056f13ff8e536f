"""Random small clusters and workloads: the engine equals the oracle in every array."""

from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax.config import NO_HORIZON
from blis_jax.simulate import Options
from blis_jax.types import Outcome
from tests.scenes import WHOLE, Prompt, differences, flags, run_both, workload_of

pytestmark = pytest.mark.lenient_promotion  # the engine adds bools to int32 counts

OPTIONS = Options(num_slots=64, log_capacity=4096)
# Sizes of the shared-content table: few enough to compile, more than the workloads below need.
NODES = {"num_nodes": 24, "depth": 6, "node_blocks": 6}
GROUPS, GROUP_BLOCKS = 3, 6
PLENTY_BLOCKS = 100_000


class Static(NamedTuple):
    """What a compilation depends on; the cases below cover every policy at least twice."""

    num_instances: int
    routing: str
    scorers: str
    admission: str
    scheduler: str
    priority: str
    block_size: int = 16
    variant: str = "scheduling"


ALL_SCORERS = "slo-priority:1,load-balance:2.5,prefix-affinity:3,kv-utilization:0.7,queue-depth:2"
STATICS = (
    Static(1, "round-robin", "", "always-admit", "fcfs", "constant"),
    Static(1, "least-loaded", "", "always-admit", "priority-fcfs", "slo-tiered", 4),
    Static(2, "weighted", "prefix-affinity:3,queue-depth:2", "token-bucket", "sjf", "constant"),
    Static(2, "always-busiest", "", "slo-gated", "reverse-priority", "slo-based", 4),
    Static(3, "weighted", "", "slo-gated", "priority-fcfs", "inverted-slo"),
    Static(3, "least-loaded", "", "token-bucket", "fcfs", "constant", 4),
    Static(4, "weighted", ALL_SCORERS, "always-admit", "priority-fcfs", "load-adaptive"),
    Static(4, "prefix-affinity", "", "slo-gated", "sjf", "slo-based", 4, "routing"),
    Static(5, "round-robin", "", "slo-gated", "fcfs", "constant", 16, "routing"),
    Static(5, "weighted", "load-balance:1,slo-priority:3", "reject-all", "fcfs", "slo-based"),
    Static(2, "prefix-affinity", "", "always-admit", "reverse-priority", "load-adaptive"),
    Static(5, "weighted", "kv-utilization:1", "always-admit", "priority-fcfs", "inverted-slo", 4),
)


@st.composite
def prompts(draw: Any, block_size: int) -> list[Prompt]:
    """Bursts and gaps; prompts that share prefixes, or are nothing but a shared prefix."""
    gaps = draw(st.sampled_from([(0,), (0, 0, 0, 1), (0, 1000), (500, 1000), (0, 1, 777, 20_000)]))
    longest = draw(st.sampled_from([1, 20, 100]))
    most_output = draw(st.sampled_from([1, 3, 40]))
    sharing = draw(st.sampled_from([0, 1, 1]))
    length = st.integers(1, longest)
    one = st.tuples(
        st.sampled_from(gaps),
        length,
        st.integers(0, most_output),
        st.integers(0, 5),
        st.integers(-1, GROUPS - 1),
        st.integers(0, GROUP_BLOCKS),
        st.sampled_from([0, 0, 1]),
    )
    found, now = [], 0
    size = draw(st.sampled_from([1, 2, 5, 12, 30, 60]))  # lists without a size stay short
    rows = draw(st.lists(one, min_size=size, max_size=size))
    for gap, own, output, slo_class, group, blocks, is_whole in rows:
        now += gap
        prefix = sharing * blocks * block_size if group >= 0 else 0
        # A prompt that is all prefix is found entirely in the cache the second time.
        input_len = prefix if is_whole and prefix else prefix + own
        found.append(Prompt(now, input_len, output, slo_class, group, prefix))
    return found


@st.composite
def settings(draw: Any, static: Static) -> dict[str, Any]:
    """Numbers of one cluster, with small budgets, thresholds and limits as likely as large ones."""

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    alpha = pick((0.0, 0.0, 0.0), (1000.0, 0.0, 500.0), (250.0, 250.0, 0.0), (1601.35, 3.51, 1805.54))
    beta = pick((1000.0, 0.0, 0.0), (1.0, 0.0, 0.0), (500.0, 31.25, 0.0), (6910.42, 17.67, 2.83))
    return flags(
        num_instances=static.num_instances,
        routing_policy=static.routing,
        routing_scorers=static.scorers,
        admission_policy=static.admission,
        scheduler=static.scheduler,
        priority_policy=static.priority,
        block_size_in_tokens=static.block_size,
        alpha_coeffs=list(alpha),
        beta_coeffs=list(beta),
        admission_latency=pick(0, 0, 1, 1000),
        routing_latency=pick(0, 0, 1, 1000),
        snapshot_refresh_interval=pick(0, 0, 1000, 5000),
        horizon=pick(NO_HORIZON, NO_HORIZON, NO_HORIZON, 3000, 9999, 50_000),
        total_kv_blocks=pick(PLENTY_BLOCKS, PLENTY_BLOCKS, 400, 60, 7),
        kv_cpu_blocks=pick(0, 0, 10),
        kv_offload_threshold=pick(0.9, 0.1),
        long_prefill_token_threshold=pick(0, 0, 1, 7, 16, 40),
        max_num_running_reqs=pick(256, 256, 1, 2, 7),
        max_num_scheduled_tokens=pick(2048, 2048, 1, 3, 16, 50),
        slo_prefill=pick(False, False, True),
        slo_prefill_critical=pick(5, 32, 0),
        slo_prefill_sheddable=pick(0, 9),
        slo_gated_threshold=pick(0.0, 1.5, 8.0),
        token_bucket_capacity=pick(10000.0, 150.0),
        token_bucket_refill_rate=pick(1000.0, 12345.6),
        slo_base_critical=pick(10.0, 1.0, -2.5),
        slo_base_standard=pick(5.0, 1.0),
        slo_age_weight=pick(1e-5, 0.0, 0.37),
        slo_threshold_standard=pick(100_000, 0, 1500),
        slo_threshold_sheddable=pick(200_000, 0, 3000),
        slo_scorer_bias_critical=pick(0.9, 1.0, 0.5),
        slo_scorer_bias_sheddable=pick(0.2, 0.0),
        load_adaptive_low=pick(2, 0, 5),
        load_adaptive_high=pick(15, 3),
    )


class Scene(NamedTuple):
    """One run to make."""

    workload: dict[str, np.ndarray]
    flags: dict[str, Any]
    static: Static

    def __repr__(self) -> str:
        changed = {k: v for k, v in self.flags.items() if flags()[k] != v}
        columns = ("arrival_us", "input_len", "output_len", "slo_class", "block_ids_delta")
        rows = {name: self.workload[name].tolist() for name in columns}
        return f"Scene({self.static}, {changed}, {rows})"


@st.composite
def scenes(draw: Any) -> Scene:
    """A workload and a cluster."""
    static = draw(st.sampled_from(STATICS))
    workload = workload_of(draw(prompts(static.block_size)), static.block_size)
    return Scene(workload, draw(settings(static)), static)


def check(scene: Scene) -> None:
    record, expected = run_both(
        scene.workload, scene.flags, OPTIONS, scene.static.variant, **NODES
    )
    if record.outcome in WHOLE:
        assert expected.outcome == "finished"
        assert not differences(record, expected, scene.static.block_size)
        return
    assert record.outcome == Outcome.KV_CHECK_TRIPPED
    assert scene.flags["total-kv-blocks"] < PLENTY_BLOCKS


@hypothesis.settings(max_examples=100)
@hypothesis.given(scenes())
def test_equals_oracle(scene: Scene):
    check(scene)


@pytest.mark.slow
@hypothesis.settings(max_examples=2000)
@hypothesis.given(scenes())
def test_equals_oracle_often(scene: Scene):
    check(scene)
