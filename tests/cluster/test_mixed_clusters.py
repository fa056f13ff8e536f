"""Runs of groups of instances: equal ones are the plain cluster, mixed ones are the oracle's."""

import dataclasses
import itertools
from typing import Any

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax import ClusterConfig, Policies, over_params
from blis_jax.cluster import config
from blis_jax.cluster.instance_groups import NUMBERS
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import ROLES
from blis_jax.engine.mechanism import params
from blis_jax.latency.trained_physics import BETA
from blis_jax.policies import routing_policy
from blis_jax.records.record import RunRecord
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.workload.spec import parse_spec
from tests.engine.test_properties import NODES, OPTIONS, PHASES, Scene, Static, check, scenes
from tests.support.scenes import Prompt, differences, flags, run_both, table_of, workload_of

FOUR = Static(
    4,
    "weighted",
    "prefix-affinity:3,queue-depth:2,kv-utilization:1",
    "slo-gated",
    "priority-fcfs",
    "slo-tiered",
    has_cpu_tier=True,
    slo_preemption=True,
)
CUTS = [
    [end - start for start, end in itertools.pairwise((0, *inner, 4))]
    for count in range(4)
    for inner in itertools.combinations((1, 2, 3), count)
]


def arrays(record: RunRecord) -> dict[str, Any]:
    """Everything that a record has of requests, steps and instances."""
    return {
        f"{part}.{field.name}": getattr(getattr(record, part), field.name)
        for part in ("requests", "steps", "instances")
        for field in dataclasses.fields(getattr(record, part))
    }


def assert_same(one: RunRecord, other: RunRecord) -> None:
    assert one.outcome == other.outcome
    for name, values in arrays(one).items():
        np.testing.assert_array_equal(values, arrays(other)[name], err_msg=name)


# --- groups of equal instances --------------------------------------------------------------------


def test_every_way_to_cut_four_instances_is_here():
    assert len(CUTS) == 8 and all(sum(cut) == 4 for cut in CUTS)


@st.composite
def cut_scenes(draw: Any) -> tuple[Scene, ClusterConfig, list[ClusterConfig]]:
    """A scene, its cluster, and all the ways to write it as groups.

    Each group states some of the cluster's numbers. A number that all groups state is another one in the cluster.
    """
    scene = draw(scenes((FOUR,)))
    plain = config.from_flags(scene.flags)
    found = []
    for cut in CUTS:
        stated = [draw(st.sets(st.sampled_from(NUMBERS))) for _ in cut]
        groups = [
            {"count": count} | {name: getattr(plain, name) for name in names}
            for count, names in zip(cut, stated, strict=True)
        ]
        by_all = set.intersection(*stated)
        other = {name: value for name, value in OTHER.items() if name in by_all}
        found.append(dataclasses.replace(plain, num_instances=4, instances=groups, **other))
    return scene, plain, found


OTHER: dict[str, Any] = {
    "alpha_coeffs": (7.0, 7.0, 7.0),
    "beta_coeffs": (7.0, 7.0, 7.0),
    "total_kv_blocks": 11,
    "max_num_running_reqs": 3,
    "max_num_scheduled_tokens": 5,
    "long_prefill_token_threshold": 2,
    "kv_cpu_blocks": 1,
    "kv_offload_threshold": 0.33,
    "kv_transfer_bandwidth": 0.5,
    "kv_transfer_base_latency": 77,
}


@pytest.mark.parametrize("form", ["rows", pytest.param("lanes", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kv_model", ["no-eviction", pytest.param("block-level", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings(
    "ignore::hypothesis.errors.HypothesisWarning"
)  # eight configurations have a long repr
@hypothesis.settings(max_examples=3, phases=PHASES, deadline=None)
@hypothesis.given(cut_scenes())
def test_groups_of_equal_instances_are_the_plain_cluster(
    kv_model: str, form: str, drawn: tuple[Scene, ClusterConfig, list[ClusterConfig]]
):
    scene, plain, written = drawn
    options = dataclasses.replace(OPTIONS, kv_model=kv_model, form=form)
    table = table_of(scene.workload, **NODES)
    usual = simulate(plain, table, options)
    for groups in written:
        assert_same(usual, simulate(groups, table, options))


# --- mixed clusters -------------------------------------------------------------------------------

MIXED = (
    Static(2, "least-loaded", "", "slo-gated", "sjf", "slo-based", has_cpu_tier=True),
    Static(3, "weighted", "", "always-admit", "priority-fcfs", "load-adaptive", 4),
)


@st.composite
def mixed_scenes(
    draw: Any, statics: tuple[Static, ...] = (FOUR,), blocks: tuple[int, ...] = (700, 300, 120)
) -> Scene:
    """A scene of which the instances differ in some numbers; those of the last are the cluster's.

    With fewer blocks many scenes never end, which takes long to find out.
    """
    scene = draw(scenes(statics))

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    def own() -> dict[str, Any]:
        numbers = {
            "beta_coeffs": pick([400.0, 3.0, 1.0], [3000.0, 0.0, 55.5], [6910.42, 17.67, 2.83]),
            "alpha_coeffs": pick([0.0, 1.0, 20.0], [700.0, 0.0, 0.0]),
            "total_kv_blocks": pick(*blocks),
            "max_num_scheduled_tokens": pick(2048, 3, 16, 50),
            "max_num_running_reqs": pick(256, 1, 2, 7),
            "long_prefill_token_threshold": pick(0, 7, 16),
            "slo_prefill": pick(True, False),
            "slo_prefill_critical": pick(0, 5, 32),
            "slo_prefill_sheddable": pick(0, 9),
            "kv_cpu_blocks": pick(0, 3, 500),
            "kv_offload_threshold": pick(0.9, 0.5, 0.0),
            "kv_transfer_bandwidth": pick(100.0, 3.0),
            "kv_transfer_base_latency": pick(0, 10, 1500),
        }
        return {name: numbers[name] for name in draw(st.sets(st.sampled_from(sorted(numbers))))}

    groups = [own() for _ in range(scene.static.num_instances - 1)] + [{"count": 1}]
    numbers = scene.flags | {"instances": groups, "total-kv-blocks": pick(*blocks)}
    return scene._replace(flags=numbers)


@pytest.mark.slow
@hypothesis.settings(max_examples=15, phases=PHASES, deadline=None)
@hypothesis.given(mixed_scenes())
def test_mixed_clusters_equal_the_oracle(scene: Scene):
    check(scene)


@pytest.mark.slow
@pytest.mark.timeout(6000)
@hypothesis.settings(max_examples=600, phases=PHASES, deadline=None)
@hypothesis.given(mixed_scenes((*MIXED, FOUR), (700, 120, 60, 25, 7)))
def test_mixed_clusters_equal_the_oracle_often(scene: Scene):
    check(scene)


def busy() -> dict[str, np.ndarray]:
    """Prompts of all classes under which memory runs short, and that the reference serves without a crash."""
    rng = np.random.default_rng(554)
    return workload_of(
        [
            Prompt(
                800 * place + int(rng.integers(300)),
                int(rng.integers(20, 150)),
                int(rng.integers(1, 8)),
                int(rng.integers(6)),
                int(rng.integers(-1, 2)),
                48,
            )
            for place in range(60)
        ]
    )


TWO: dict[str, Any] = {
    "num_instances": 2,
    "alpha_coeffs": [100.0, 1.0, 30.0],
    "beta_coeffs": [900.0, 5.0, 10.0],
    "total_kv_blocks": 40,
    "max_num_scheduled_tokens": 96,
    "max_num_running_reqs": 12,
    "long_prefill_token_threshold": 64,
    "slo_prefill": True,
    "slo_prefill_critical": 32,
    "slo_prefill_sheddable": 80,
    "kv_cpu_blocks": 20,
    "kv_offload_threshold": 0.3,
    "kv_transfer_bandwidth": 4.0,
    "kv_transfer_base_latency": 50,
}
CHANGED: dict[str, Any] = {
    "alpha_coeffs": [300.0, 2.0, 5.0],
    "beta_coeffs": [1500.0, 1.0, 40.0],
    "total_kv_blocks": 34,
    "max_num_scheduled_tokens": 40,
    "max_num_running_reqs": 3,
    "long_prefill_token_threshold": 32,
    "slo_prefill": False,
    "slo_prefill_critical": 16,
    "slo_prefill_sheddable": 24,
    "kv_cpu_blocks": 3,
    "kv_offload_threshold": 0.8,
    "kv_transfer_bandwidth": 0.1,
    "kv_transfer_base_latency": 900,
}


@pytest.mark.slow
def test_two_sets_of_numbers_equal_the_oracle():
    groups = [{"count": 1}, {"count": 1, **CHANGED}]
    record, expected = run_both(busy(), flags(**TWO, instances=groups), OPTIONS, **NODES)
    assert record.outcome == Outcome.COMPLETED
    assert len(set(record.instances.total_kv_blocks)) == 2
    assert not differences(record, expected)


def of_instance(record: RunRecord, instance: int) -> dict[str, np.ndarray]:
    """What a record has of one instance: its requests, its steps, its totals."""
    at = {
        "requests": record.requests.instance == instance,
        "steps": record.steps.instance == instance,
        "instances": np.arange(2) == instance,
    }
    return {
        name: values[at[name.partition(".")[0]]]
        for name, values in arrays(record).items()
        # an instance is paid for until the last event of any
        if values is not None and name != "instances.paid_us"
    }


NETWORK = {"network_delay": 700}  # not known to the oracle
SERVED = {"hardware": "L40S", "tp": 2, "dp": 2}  # acts where step times come from sizes
SIZED = {"latency_model": "trained-physics", "beta_coeffs": list(BETA), "tp": 1}
SIZED["model"] = "mistralai/mixtral-8x7b-v0.1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [pytest.param(name, marks=pytest.mark.slow if name == "hardware" else []) for name in NUMBERS],
)
def test_a_number_acts_on_its_own_instance_alone(setting: str):
    """Routed in turn, the mixed cluster's instances are one of each plain cluster, in every array."""
    table = table_of(busy(), **NODES)
    two, change = TWO, {setting: (CHANGED | SERVED | NETWORK)[setting]}
    if setting in SERVED:
        two = TWO | SIZED
    usual, other = (config.from_flags(flags(**(two | more))) for more in ({}, change))
    groups = [{"count": 1}, {"count": 1, **change}]
    mixed = config.from_flags(flags(**two, instances=groups))
    all_usual, all_other, both = (simulate(one, table, OPTIONS) for one in (usual, other, mixed))
    assert {one.outcome for one in (all_usual, all_other, both)} == {Outcome.COMPLETED}
    is_changed = []
    for name, values in of_instance(both, 0).items():
        np.testing.assert_array_equal(values, of_instance(all_usual, 0)[name], err_msg=name)
    for name, values in of_instance(both, 1).items():
        np.testing.assert_array_equal(values, of_instance(all_other, 1)[name], err_msg=name)
        is_changed.append(not np.array_equal(values, of_instance(all_usual, 1)[name]))
    assert any(is_changed)


@pytest.mark.slow
def test_lanes_equal_rows_on_a_mixed_cluster():
    table = table_of(busy(), **NODES)
    mixed = config.from_flags(flags(**TWO, instances=[{"count": 1}, {"count": 1, **CHANGED}]))
    small = Options(num_slots=32, log_capacity=1024)  # in lanes every scan step reads whole tables
    rows, lanes = (
        simulate(mixed, table, dataclasses.replace(small, form=form)) for form in ("rows", "lanes")
    )
    assert_same(rows, lanes)


SPEC = parse_spec(
    "version: '2'\nseed: 1\naggregate_rate: 200.0\nnum_requests: 24\nclients:\n"
    "- id: one\n  rate_fraction: 1.0\n  arrival: {process: poisson}\n"
    "  input_distribution: {type: constant, params: {value: 64}}\n"
    "  output_distribution: {type: exponential, params: {mean: 20}}\n",
    "test",
)


@pytest.mark.slow
def test_clusters_of_other_groups_and_sizes_share_a_call():
    """Rows of the table beyond a cluster's instances change nothing."""
    from blis_jax.commands.run.requests import draw_requests

    small = ClusterConfig(instances=[{"beta": [2000.0, 3.0, 7.0], "total_kv_blocks": 60}, {}])
    large = ClusterConfig(instances=[{"count": 2, "max_num_running_reqs": 2}, {"alpha": [9, 1, 1]}])
    found = over_params([small, large], SPEC, 3, lambda record: record)
    table = draw_requests(SPEC, 3, 16)[0]
    for cluster, record in zip((small, large), found, strict=True):
        alone = simulate(cluster, table, Options(resolve_ties=False))
        np.testing.assert_array_equal(record.requests.e2e_us, alone.requests.e2e_us)
        np.testing.assert_array_equal(
            record.instances.total_kv_blocks, alone.instances.total_kv_blocks
        )


# --- roles ----------------------------------------------------------------------------------------


@routing_policy()
def to_decode(params: Any, state: Any, context: Any) -> Any:
    """The first instance of the role decode."""
    return jnp.argmax(context.snapshots.role == ROLES.index("decode")), state


def test_a_policy_sees_roles():
    cluster = ClusterConfig(instances=[{"count": 2, "role": "prefill"}, {"role": "decode"}])
    np.testing.assert_array_equal(params(cluster).cluster.roles, [1, 1, 2])
    np.testing.assert_array_equal(params(ClusterConfig(num_instances=2)).cluster.roles, [0, 0])
    table = table_of(workload_of([Prompt(1000 * place, 20) for place in range(5)]))
    record = simulate(cluster, table, OPTIONS, policies=Policies(routing=to_decode))
    assert set(record.requests.instance) == {2}
