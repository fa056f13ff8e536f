"""Gates: on free KV blocks where the request would go, and on the rate of arrivals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from blis_jax.core.types import NO_INSTANCE
from blis_jax.records.record import Status
from sweeps.strategies.policies.gates import burst_throttled, kv_gated
from tests.policies.contexts import asked, choice, decided
from tests.support.scenes import Prompt, table_of, workload_of

GATE = "sweeps/strategies/policies/gates.py:kv_gated"
CRITICAL, STANDARD, SHEDDABLE, BATCH = 1, 2, 3, 4


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("picked", "instance", "cluster", "is_admitted"),
    [
        (0, 250, 0, True),  # 250 blocks are free there: not fewer
        (0, 251, 0, False),
        (1, 251, 0, True),  # 750 are free there
        (1, 0, 500, True),  # 500 in the mean of two
        (1, 0, 501, False),
        (0, 0, 0, True),
    ],
)
def test_the_gate_looks_at_the_instance_routed_to_and_at_the_mean(
    picked, instance, cluster, is_admitted
):
    context = asked([0, 0, 0], used=[0.75, 0.25, 0.0], picked=picked, is_active=[True, True, False])
    numbers = {"instance_blocks": instance, "cluster_blocks": cluster}
    assert choice(kv_gated, context, **numbers) == is_admitted


@pytest.mark.parametrize("routing", ["weighted", "power-of-two"])
def test_in_a_run_the_gate_turns_away_what_would_go_to_a_full_instance(routing):
    """Two instances of 200 blocks; every request takes 10 prompt blocks and stays long."""
    prompts = [Prompt(20_000 * at, 160, 60) for at in range(24)]
    table = table_of(workload_of(prompts))
    config = ClusterConfig(
        num_instances=2,
        total_kv_blocks=200,
        routing_policy=routing,
        admission_policy=GATE,
    )
    free, full = (
        simulate(config.replace(**{"admission.instance_blocks": blocks}), table, seed=5).requests
        for blocks in (0, 150)
    )
    assert not (free.status == Status.REJECTED).any()
    is_shed = full.status == Status.REJECTED
    assert is_shed.any() and not is_shed.all()
    assert (full.instance[is_shed] == NO_INSTANCE).all()
    # until the first is turned away, and for it too, the router is asked as in the run without a gate
    first = int(np.flatnonzero(is_shed)[0])
    np.testing.assert_array_equal(free.instance[:first], full.instance[:first])


@pytest.mark.slow
def test_asking_the_router_ahead_changes_no_choice_of_it():
    """A gate that turns nobody away: whose turn it is in round robin is as without a gate."""
    table = table_of(workload_of([Prompt(3_000 * at, 100, 9) for at in range(30)]))
    config = ClusterConfig(num_instances=3, routing_policy="round-robin")
    numbers = {"admission.instance_blocks": 0}
    gated = config.replace(admission_policy=f"{GATES}:kv_gated", **numbers)
    plain, asked_ahead = simulate(config, table), simulate(gated, table)
    np.testing.assert_array_equal(plain.requests.instance, asked_ahead.requests.instance)
    np.testing.assert_array_equal(plain.requests.e2e_us, asked_ahead.requests.e2e_us)


GATES = "sweeps/strategies/policies/gates.py"


def admitted(times, slo_class: int, **numbers: float) -> list[bool]:
    """What the throttle decides on arrivals at these times, µs."""
    state, found = None, []
    for time in times:
        context = asked([0], slo_class=slo_class, now_us=jnp.int64(time))
        decision, state = decided(burst_throttled, context, state, **numbers)
        found.append(bool(decision))
    return found


TEN_A_WINDOW = {"limit_per_s": 100.0, "window_us": 100_000.0, "standard_factor": 2.0}


def test_the_throttle_admits_up_to_the_limit_and_no_more():
    burst = range(30)
    assert admitted(burst, SHEDDABLE, **TEN_A_WINDOW) == [True] * 10 + [False] * 20
    assert admitted(burst, BATCH, **TEN_A_WINDOW) == [True] * 10 + [False] * 20
    assert admitted(burst, STANDARD, **TEN_A_WINDOW) == [True] * 20 + [False] * 10
    assert admitted(burst, 0, **TEN_A_WINDOW) == [True] * 20 + [False] * 10
    assert all(admitted(burst, CRITICAL, **TEN_A_WINDOW))


def test_the_throttle_forgets_a_burst_as_its_window_passes():
    """10 arrivals in the first window. Halfway through the second, 5 of them count: 5 more are let in."""
    burst = [0] * 10
    assert (
        admitted([*burst, *[150_000] * 7], SHEDDABLE, **TEN_A_WINDOW)[10:]
        == [True] * 5 + [False] * 2
    )
    assert admitted([*burst, 100_000], SHEDDABLE, **TEN_A_WINDOW)[10:] == [False]
    assert admitted([*burst, 110_000], SHEDDABLE, **TEN_A_WINDOW)[10:] == [True]
    assert all(admitted([*burst, *[200_000] * 10], SHEDDABLE, **TEN_A_WINDOW))


def test_in_a_run_a_burst_is_cut_and_a_calm_stretch_is_not():
    calm = [Prompt(20_000 * at, 20, 2, SHEDDABLE) for at in range(20)]
    burst = [Prompt(1_000_000 + 100 * at, 20, 2, 1 + at % 3) for at in range(90)]
    config = ClusterConfig(
        num_instances=4,
        admission_policy=f"{GATES}:burst_throttled",
        policy_numbers={"admission.limit_per_s": 200.0},
    )
    requests = simulate(config, table_of(workload_of([*calm, *burst]))).requests
    is_shed = requests.status == Status.REJECTED
    assert not is_shed[:20].any()
    shed = {name: is_shed[20:][requests.slo_class[20:] == name].mean() for name in (1, 2, 3)}
    assert shed[CRITICAL] == 0 < shed[STANDARD] < shed[SHEDDABLE]
