"""Scores by formula: free KV blocks, load by speed, prefill saved against waiting, headroom in a class's budget."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, over_seeds
from blis_jax.engine.phases.router_view import prompt_times
from blis_jax.latency.blackbox import blackbox, blackbox_attention
from blis_jax.policies import NoParams, scorers
from blis_jax.policies.scorers import (
    approx_prefix_cache,
    capability_load,
    cost_benefit,
    kv_pressure,
    prefix_affinity,
    queue_depth,
    slo_headroom,
)
from blis_jax.workload.spec import load_builtin, override
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")


def test_free_blocks_are_compared_with_the_most_that_an_instance_has():
    context = asked([0, 0, 0], free_kv_blocks=[30.0, 100.0, 0.0])
    assert decision(kv_pressure, context).tolist() == [0.3, 1.0, 0.0]


def test_without_free_blocks_every_instance_scores_0():
    """As before the first refresh of an old view, which reads 0 everywhere."""
    assert decision(kv_pressure, asked([3, 1], free_kv_blocks=[0.0, 0.0])).tolist() == [0.0, 0.0]


def test_an_inactive_instance_does_not_count():
    seen = {"free_kv_blocks": [50.0, 100.0, 900.0], "is_active": [True, True, False]}
    assert decision(kv_pressure, asked([0, 0, 0], **seen))[:2].tolist() == [0.5, 1.0]


def test_pools_that_share_a_router_forget_each_others_last_use() -> None:
    """As BLIS does: who is no candidate is forgotten, unless there is but one candidate."""
    before = scorers.LastUse(jnp.asarray([1, 2, 0, 0], jnp.int32))
    for active, target, after in (
        ([False, False, True, True], 2, [0, 0, 3, 0]),
        ([False, False, False, True], 3, [1, 2, 0, 3]),
        ([True, True, True, True], 0, [3, 2, 0, 0]),
    ):
        context = asked([0, 0, 0, 0], is_active=active, cached_prompt_blocks=[0, 0, 0, 0])
        state = scorers.no_hit_lru.routed(NoParams(), before, context, jnp.int32(target))
        assert state.last.tolist() == after


def test_an_approximate_index_has_whole_blocks_of_64_tokens() -> None:
    """A prompt of ten blocks of 16 tokens has two of 64; 3 matched blocks are none of those, 4 to 7 are one."""
    context = asked([0, 0, 0, 0], blocks=10, prefix_match_blocks=[3, 4, 7, 8])
    assert context.block_size == 16
    assert decision(approx_prefix_cache, context).tolist() == [0.0, 0.5, 0.5, 1.0]
    coarse = dataclasses.replace(context, block_size=jnp.int32(128))
    shares = decision(approx_prefix_cache, coarse)
    assert shares.tolist() == decision(prefix_affinity, context).tolist() == [0.3, 0.4, 0.7, 0.8]


# --- load by speed: on equal instances it equals queue-depth --------------------------------------


def test_on_equal_instances_it_is_queue_depth_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        loads = rng.integers(0, 60, 7).tolist()
        active = [True, *(rng.random(6) < 0.8).tolist()]
        equal = asked(loads, is_active=active, prompt_us=[float(rng.uniform(1, 1e5))] * 7)
        mine = decision(capability_load, equal)[np.array(active)]
        assert mine.tolist() == decision(queue_depth, equal)[np.array(active)].tolist()


def test_a_request_on_a_slow_instance_counts_by_its_slowness() -> None:
    """Waits 4 × 1, 2 × 3 and 1 × 3; with the request left out 3, 3 and 0."""
    context = asked([3, 1, 0], prompt_us=[1000.0, 3000.0, 3000.0])
    assert decision(capability_load, context).tolist() == [2 / 3, 0.0, 1.0]
    alone = capability_load.with_numbers(own_requests=0.0)
    assert decision(alone, context).tolist() == [0.0, 0.0, 1.0]


def surroundings(model: Any, beta: list[list[float]], budget: list[int], chunk: list[int]) -> Any:
    cluster = SimpleNamespace(
        beta=jnp.asarray(beta),
        max_num_scheduled_tokens=jnp.asarray(budget, jnp.int32),
        prefill_threshold=jnp.asarray(chunk, jnp.int32)[:, None],
    )
    return SimpleNamespace(
        params=SimpleNamespace(cluster=cluster),
        shape=SimpleNamespace(num_instances=len(beta)),
        mechanism=SimpleNamespace(latency=model),
    )


def test_the_time_of_a_prompt_is_that_of_its_chunks() -> None:
    """5,000 tokens: three steps of at most 2,048; five of 1,000; one."""
    beta = [[100.0, 2.0, 1.0], [100.0, 3.0, 1.0], [50.0, 1.0, 1.0]]
    ctx = surroundings(blackbox, beta, [2048, 2048, 8192], [0, 1000, 0])
    request: Any = SimpleNamespace(slo_class=jnp.int32(0), input_len=jnp.int32(5000))
    assert prompt_times(ctx, request).tolist() == [3 * 100 + 2 * 5000, 5 * 100 + 3 * 5000, 5050]


def test_models_that_look_at_members_see_the_prompt() -> None:
    ctx = surroundings(blackbox_attention, [[100.0, 2.0, 1.0, 0.5]], [2048], [0])
    request: Any = SimpleNamespace(slo_class=jnp.int32(0), input_len=jnp.int32(40))
    assert prompt_times(ctx, request).tolist() == [100 + 80 + 0.5 * 40 * 40]


@pytest.mark.slow
def test_runs_on_equal_instances_are_those_of_queue_depth() -> None:
    spec = override(load_builtin("mixed"), num_requests=120)
    plain = ClusterConfig(num_instances=4, routing_policy="weighted")
    runs = [
        over_seeds(plain.replace(routing_scorers=scorers), spec, range(2))
        for scorers in ("prefix-affinity:1,queue-depth:2", "prefix-affinity:1,capability-load:2")
    ]
    for one, other in zip(*runs, strict=True):
        for field in ("instance", "ttft_us", "e2e_us"):
            mine, theirs = getattr(one.requests, field), getattr(other.requests, field)
            np.testing.assert_array_equal(mine, theirs)


# --- prefill saved against waiting ----------------------------------------------------------------


STEP = 6910.42 + 2.84


def test_saved_prefill_is_divided_by_saved_prefill_and_waiting():
    """70 tokens of which 48 are cached; two requests more than on the least loaded instance."""
    saved = 17.67 * 70 - 17.67 * (70 - 48)
    found = decision(cost_benefit, asked([5, 3], matched=[3, 0], input_len=70))
    assert found.tolist() == [saved / (saved + 2 * STEP), 0.5]


def test_a_cached_prompt_without_waiting_scores_1_and_waiting_for_nothing_0():
    found = decision(cost_benefit, asked([3, 4], matched=[4, 0]))
    assert found.tolist() == [1.0, 0.0]


def test_a_prompt_shorter_than_a_block_is_neutral_whatever_the_load():
    found = decision(cost_benefit, asked([0, 9], blocks=0, input_len=15))
    assert found.tolist() == [0.5, 0.5]


def test_no_less_than_no_token_is_left_to_compute():
    context = asked([1, 0], matched=[4, 0], input_len=60)  # 64 tokens would be cached
    saved = 17.67 * 60
    assert decision(cost_benefit, context)[0] == saved / (saved + STEP)


def test_the_least_load_is_that_of_active_instances():
    context = asked([5, 3, 0], matched=[4, 0, 0], is_active=[True, True, False])
    saved = 17.67 * 64
    assert decision(cost_benefit, context)[0] == saved / (saved + 2 * STEP)


# --- headroom -------------------------------------------------------------------------------------


BUDGETS = {0: 200_000.0, 1: 50_000.0, 2: 200_000.0, 3: 500_000.0, 4: 5_000_000.0}


@pytest.mark.parametrize("slo_class", BUDGETS)
def test_the_score_is_what_is_left_of_the_budget(slo_class: int):
    own, ahead = 6910.42 + 17.67 * 64, 6910.42 + 17.67 * 256
    expected = [1.0 - (load * ahead + own) / BUDGETS[slo_class] for load in (0, 2)]
    found = decision(slo_headroom, asked([0, 2, 1000], slo_class))
    assert found.tolist() == [*expected, 0.0]


def test_background_has_no_budget():
    assert decision(slo_headroom, asked([0, 10_000], 5)).tolist() == [1.0, 1.0]
