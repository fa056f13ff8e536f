"""Instances that go away and requests that are routed again, built from parts of the tests' own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, Options, over_seeds, simulate
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.policies import (
    ClusterChange,
    ClusterContext,
    GatewayContext,
    HandOver,
    HandOverContext,
    NoState,
    Policies,
    cluster_policy,
    hand_over_policy,
    number,
    pytree,
    routing_policy,
)
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import expand_steps
from blis_jax.workload.spec import load_builtin, override
from blis_jax.workload.table import RequestTable
from tests.support.scenes import Prompt, table_of, workload_of

STEP_US = 1000
SLOW = pytest.mark.slow
FORMS = [
    ("rows", "no-eviction"),
    pytest.param("rows", "block-level", marks=SLOW),
    pytest.param("lanes", "no-eviction", marks=SLOW),
    pytest.param("lanes", "block-level", marks=SLOW),
]


@pytree
class OutageParams:
    """When one instance is down."""

    instance: Any = number(0, "instance", "which one", low=0, high=100)
    from_us: Any = number(2500, "us", "when it goes down", low=0, high=1e12)
    until_us: Any = number(-1, "us", "when it comes up, -1: never", low=-1, high=1e13)
    delay_us: Any = number(300, "us", "until its queue is routed again", low=0, high=1e9)
    leaves: Any = number(1, "", "1: its queue leaves", low=0, high=1)


@pytree
class OutageState:
    """Changes made so far."""

    turn: Any


def first_state(params: OutageParams, shape: Any) -> OutageState:
    return OutageState(jnp.int32(0))


def next_change(params: OutageParams, state: OutageState) -> Any:
    is_last = (state.turn > 1) | (params.until_us < 0)
    return jnp.where(state.turn == 0, params.from_us, jnp.where(is_last, jnp.inf, params.until_us))


@cluster_policy(OutageParams, first_state, next_time=next_change)
def outage(params: OutageParams, state: OutageState, context: ClusterContext) -> Any:
    is_it = jnp.arange(context.is_up.shape[0], dtype=jnp.int32) == params.instance.astype(jnp.int32)
    goes = state.turn == 0
    change = ClusterChange(
        is_up=jnp.where(is_it, ~goes, context.is_up),
        queue_leaves=is_it & goes & (params.leaves == 1),
        delay_us=params.delay_us,
    )
    return change, OutageState(state.turn + 1)


def table(*prompts: Prompt) -> RequestTable:
    return table_of(workload_of(prompts))


def config(**changes: Any) -> ClusterConfig:
    """Steps of one millisecond, one request at a time on each instance."""
    settings = {
        "num_instances": 2,
        "alpha_coeffs": (0.0, 0.0, 0.0),
        "beta_coeffs": (float(STEP_US), 0.0, 0.0),
        "max_num_running_reqs": 1,
        "routing_policy": "round-robin",
    }
    return ClusterConfig(**(settings | changes))


def starts(record: RunRecord, instance: int) -> list[int]:
    steps = expand_steps(record, 16)
    mine: list[int] = steps.step_start_us[steps.step_instance == instance].tolist()
    return sorted(mine)


@pytest.mark.parametrize(("form", "kv_model"), FORMS)
def test_a_queue_leaves_and_is_routed_again_after_a_delay(form: str, kv_model: str) -> None:
    """Requests 0 and 2 go to instance 0. It goes down at 2,500 µs; request 0 is finished there, request 2 moves."""
    requests = table(*(Prompt(at, 32, 4) for at in (0, 10, 20, 30)))
    gone = outage.with_numbers(from_us=2500, delay_us=300)
    options = Options(form=form, kv_model=kv_model)
    record = simulate(config(), requests, options, policies=Policies(cluster=gone))
    assert record.outcome == Outcome.COMPLETED
    assert record.requests.instance.tolist() == [0, 1, 1, 1]
    assert (record.requests.status == Status.COMPLETED).all()
    # four tokens, the first with the prompt: four steps a request, one request after the other
    assert starts(record, 0) == [0, 1000, 2000, 3000]
    assert starts(record, 1) == [10 + STEP_US * step for step in range(12)]
    # request 3 has waited since 30 µs, request 2 came at 2,800
    assert record.requests.ttft_us.tolist() == [1000, 1000, 9010 - 20, 5010 - 30]
    stays = simulate(config(), requests, options)
    assert stays.requests.instance.tolist() == [0, 1, 0, 1]


def test_requests_wait_for_an_instance_that_comes_up() -> None:
    requests = table(Prompt(0, 16, 2), Prompt(100, 16, 2))
    gone = outage.with_numbers(from_us=50, until_us=7000)
    record = simulate(config(num_instances=1), requests, policies=Policies(cluster=gone))
    assert record.requests.ttft_us.tolist() == [1000, 7000 - 100 + 1000]


@SLOW
def test_a_change_beyond_the_32_bit_clock_widens_it() -> None:
    requests = table(Prompt(0, 16, 2), Prompt(100, 16, 2))
    gone = outage.with_numbers(from_us=50, until_us=1e12)
    record = simulate(config(num_instances=1), requests, policies=Policies(cluster=gone))
    assert record.requests.ttft_us.tolist() == [1000, 10**12 - 100 + 1000]


def test_an_instance_that_stays_down_leaves_its_requests_in_flight() -> None:
    requests = table(Prompt(0, 16, 2), Prompt(10, 16, 2))
    gone = outage.with_numbers(from_us=50)
    record = simulate(config(num_instances=1), requests, policies=Policies(cluster=gone))
    assert record.requests.status.tolist() == [Status.COMPLETED, Status.IN_FLIGHT]


@SLOW
def test_a_routing_policy_sees_where_a_request_came_from() -> None:
    @routing_policy()
    def first_then_last(params: Any, state: NoState, context: GatewayContext) -> Any:
        last = context.snapshots.is_active.shape[0] - 1
        return jnp.where(context.came_from < 0, jnp.int32(0), jnp.int32(last)), state

    requests = table(*(Prompt(at, 32, 4) for at in (0, 10, 20)))
    gone = outage.with_numbers(from_us=1500)
    parts = Policies(cluster=gone, routing=first_then_last)
    record = simulate(config(num_instances=3), requests, policies=parts)
    assert record.requests.instance.tolist() == [0, 2, 2]


@SLOW
@pytest.mark.parametrize(
    "numbers",
    [
        {"from_us": 1e12},  # never in the run
        {"instance": 50},  # no instance of the cluster
        {"instance": 3, "from_us": 0, "until_us": 0.5, "leaves": 0},
    ],
)
def test_an_outage_without_effect_changes_nothing(numbers: dict[str, float]) -> None:
    spec = override(load_builtin("mixed"), num_requests=120)
    cluster = ClusterConfig(num_instances=4, routing_policy="least-loaded")
    plain = over_seeds(cluster, spec, seeds=range(2))
    twin = over_seeds(
        cluster, spec, seeds=range(2), policies=Policies(cluster=outage.with_numbers(**numbers))
    )
    for one, other in zip(plain, twin, strict=True):
        for field in ("instance", "ttft_us", "e2e_us", "finished_step_idx"):
            np.testing.assert_array_equal(
                getattr(one.requests, field), getattr(other.requests, field)
            )
        np.testing.assert_array_equal(one.steps.start_us, other.steps.start_us)


@SLOW
@pytest.mark.parametrize("blocks", [132_139, 3000])
def test_requests_are_conserved_through_an_outage(blocks: int) -> None:
    """Each request is served once and completes; nothing starts on an instance that is down and empty."""
    spec = override(load_builtin("mixed"), num_requests=200)
    cluster = ClusterConfig(num_instances=3, routing_policy="least-loaded", total_kv_blocks=blocks)
    gone = outage.with_numbers(instance=1, from_us=30_000, until_us=90_000, delay_us=5000)
    for record in over_seeds(cluster, spec, seeds=range(4), policies=Policies(cluster=gone)):
        assert record.outcome == Outcome.COMPLETED
        assert not any(record.invariant_failures.values())
        assert (record.requests.status == Status.COMPLETED).all()
        assert (record.requests.num_scheduled == 1 + record.requests.preemptions).all()
        arrived = (record.requests.arrival_us > 30_000) & (record.requests.arrival_us < 90_000)
        assert arrived.any() and not (record.requests.instance[arrived] == 1).any()
        assert (record.requests.instance == 1).sum() > 0


@pytree
class TransferParams:
    """How long KV takes from one instance to another."""

    delay_us: Any = number(
        500, "us", "from the end of the prefill to the next queue", low=0, high=1e9
    )
    share: Any = number(1, "", "of requests that move, by a draw", low=0, high=1)


@hand_over_policy(TransferParams, is_random=True)
def from_prefill(params: TransferParams, state: NoState, context: HandOverContext) -> Any:
    """Requests leave the first instance once their prompt is computed."""
    is_drawn = jax.random.uniform(context.key, dtype=jnp.float64) < params.share
    return HandOver((context.instance == 0) & is_drawn, params.delay_us), state


@routing_policy()
def prefill_then_decode(params: Any, state: NoState, context: GatewayContext) -> Any:
    """New requests go to instance 0; those that come from there go to the least loaded of the others."""
    load = context.snapshots.effective_load.at[0].set(LAST)
    is_new = context.came_from < 0
    return jnp.where(is_new, jnp.int32(0), jnp.argmin(load).astype(jnp.int32)), state


@pytest.mark.parametrize(("form", "kv_model"), FORMS)
def test_a_request_moves_on_with_its_kv_after_a_delay(form: str, kv_model: str) -> None:
    """Prefill on instance 0, the other three tokens on instance 1, 500 µs after the first.

    Request 0: first token at 1,000, in the queue of instance 1 at 1,500, tokens at 2,500, 3,500 and 4,500. Request 1 is
    prefilled next, comes at 2,500 and decodes along.
    """
    requests = table(Prompt(0, 32, 4), Prompt(10, 40, 4))
    cluster = config(corrected=True, max_num_running_reqs=4)
    parts = Policies(hand_over=from_prefill, routing=prefill_then_decode)
    record = simulate(cluster, requests, Options(form=form, kv_model=kv_model), policies=parts)
    assert record.outcome == Outcome.COMPLETED
    assert not any(record.invariant_failures.values())
    assert record.requests.instance.tolist() == [1, 1]
    assert record.requests.ttft_us.tolist() == [1000, 1990]
    assert record.requests.e2e_us.tolist() == [4500, 5490]
    assert record.requests.num_itl.tolist() == [3, 3]
    assert starts(record, 0) == [0, 1000]
    assert starts(record, 1) == [1500, 2500, 3500, 4500]
    assert record.instances.total_output_tokens.tolist() == [0, 6]
    assert record.instances.used_blocks_at_end.tolist() == [0, 0]


def test_a_transfer_is_in_flight_when_the_run_ends() -> None:
    requests = table(Prompt(0, 32, 4))
    parts = Policies(hand_over=from_prefill, routing=prefill_then_decode)
    record = simulate(config(corrected=True, horizon=1400), requests, policies=parts)
    assert record.requests.status.tolist() == [Status.IN_FLIGHT]
    assert record.requests.ttft_us.tolist() == [1000] and record.requests.e2e_us.tolist() == [-1]


@SLOW
@pytest.mark.parametrize("blocks", [132_139, 3000])
def test_requests_are_conserved_through_hand_overs(blocks: int) -> None:
    spec = override(load_builtin("mixed"), num_requests=120)
    cluster = ClusterConfig(num_instances=3, total_kv_blocks=blocks)
    parts = Policies(hand_over=from_prefill.with_numbers(share=0.6), routing=prefill_then_decode)
    for record in over_seeds(cluster, spec, seeds=range(3), policies=parts):
        assert record.outcome == Outcome.COMPLETED
        assert not any(record.invariant_failures.values())
        requests = record.requests
        assert (requests.status == Status.COMPLETED).all()
        moved = requests.instance > 0
        assert 0.3 < moved.mean() < 0.9
        assert (requests.e2e_us > requests.ttft_us).all() and (requests.left_us > 0).all()
        assert record.instances.used_blocks_at_end.tolist() == [0, 0, 0]


@SLOW
def test_a_hand_over_policy_that_keeps_everybody_changes_nothing() -> None:
    spec = override(load_builtin("mixed"), num_requests=120)
    cluster = ClusterConfig(num_instances=4, routing_policy="least-loaded")
    plain = over_seeds(cluster, spec, seeds=range(2))
    stays = Policies(hand_over=from_prefill.with_numbers(share=0))
    for one, other in zip(
        plain, over_seeds(cluster, spec, seeds=range(2), policies=stays), strict=True
    ):
        for field in ("instance", "ttft_us", "e2e_us", "num_itl", "finished_step_idx"):
            np.testing.assert_array_equal(
                getattr(one.requests, field), getattr(other.requests, field)
            )


def test_a_wrong_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policies\.cluster is a policy of kind routing"):
        Policies(cluster=routing_policy()(lambda p, s, c: (0, s)))
