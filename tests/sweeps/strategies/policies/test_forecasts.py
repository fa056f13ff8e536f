"""A gate on what requests will come to hold."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from blis_jax.policies.contexts import Completion
from blis_jax.records.record import Status
from sweeps.strategies.policies.forecasts import forecast_gated
from tests.policies.contexts import asked, decided
from tests.support.scenes import Prompt, table_of, workload_of

CRITICAL, STANDARD, SHEDDABLE = 1, 2, 3
# 160 tokens, 10 blocks, are expected of an output until others have been seen
NUMBERS = {
    "sheddable_limit": 1.0, "standard_limit": 2.0, "ahead": 0.5,
    "first_tokens": 160.0, "first_weight": 1.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


def at(free, slo_class=SHEDDABLE, running=0, waiting=0, matched=0):
    """A prompt of 10 blocks that would go to an instance with so many free ones of 1,000."""
    context = asked(
        [running + waiting] * 2, [matched, 0], [1 - free / 1000, 0.0], slo_class=slo_class, picked=0
    )
    seen = dataclasses.replace(
        context.snapshots,
        batch_size=jnp.array([running, 0], jnp.int32),
        queue_depth=jnp.array([waiting, 0], jnp.int32),
        num_pending=jnp.zeros(2, jnp.int32),
        free_kv_blocks=jnp.array([free, 1000.0]),
    )
    return dataclasses.replace(context, snapshots=seen, block_size=jnp.int32(16))


def is_let_in(context, state=None):
    return bool(decided(forecast_gated, context, state, **NUMBERS)[0])


def test_a_request_needs_its_prompt_the_block_it_has_begun_and_its_output():
    """10 + 1 + 10 blocks; blocks that the router expects to be cached there are not needed."""
    assert is_let_in(at(21)) and not is_let_in(at(20))
    assert is_let_in(at(17, matched=4)) and not is_let_in(at(16, matched=4))
    assert is_let_in(at(11, STANDARD)) and not is_let_in(at(10, STANDARD))  # may be promised twice
    assert is_let_in(at(0, CRITICAL))


def test_those_that_run_and_wait_will_grow_too():
    """After two that were let in: a running one grows by half an output, a waiting one by prompt and output."""
    state = None
    for _ in range(2):
        _, state = decided(forecast_gated, at(1000), state, **NUMBERS)
    assert is_let_in(at(26, running=1), state) and not is_let_in(at(25, running=1), state)
    assert is_let_in(at(42, waiting=1), state) and not is_let_in(at(41, waiting=1), state)


def test_completions_teach_what_a_class_makes():
    _, state = decided(forecast_gated, at(1000), **NUMBERS)
    request = at(1000).request
    news = Completion(request, jnp.int32(0), jnp.int32(480), *[jnp.int64(0)] * 3)
    params = forecast_gated.with_numbers(**NUMBERS).values()
    state = forecast_gated.observe(params, state, news)
    # (160 + 480) ÷ 2 tokens are 20 blocks
    assert is_let_in(at(31), state) and not is_let_in(at(30), state)
    assert not is_let_in(at(10, STANDARD), state) and is_let_in(at(11, STANDARD), state)


def test_who_is_shed_is_not_counted():
    _, state = decided(forecast_gated, at(5), **NUMBERS)
    assert float(state.admitted.sum()) == 0
    _, state = decided(forecast_gated, at(50), state, **NUMBERS)
    assert float(state.admitted.sum()) == 1 and float(state.blocks.sum()) == 11


@pytest.mark.slow
def test_in_a_run_it_sheds_before_blocks_are_short():
    """One instance of 60 blocks; 30 requests of 5 prompt and 12 output blocks come while all blocks are free."""
    prompts = [Prompt(100 * at, 80, 192, 1 + at % 3) for at in range(30)]
    table = table_of(workload_of(prompts))
    config = ClusterConfig(total_kv_blocks=60, corrected=True)
    gate = "sweeps/strategies/policies/forecasts.py:forecast_gated"
    gated = config.replace(admission_policy=gate, **{"admission.first_tokens": 192})
    free, kept = simulate(config, table), simulate(gated, table)
    is_shed = kept.requests.status == Status.REJECTED
    slo_class = kept.requests.slo_class
    shed = [is_shed[slo_class == one].mean() for one in (CRITICAL, STANDARD, SHEDDABLE)]
    assert shed[0] == 0 < shed[1] < shed[2]
    few, many = (run.instances.preemption_count.sum() for run in (kept, free))
    assert few < many / 2
    assert np.all(kept.requests.status[~is_shed] == Status.COMPLETED)
