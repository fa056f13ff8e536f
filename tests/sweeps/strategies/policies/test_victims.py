"""Who is evicted when KV blocks run out, by what a request is worth."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import RequestView
from blis_jax.engine.mechanism import mechanism
from blis_jax.errors import ConfigError
from blis_jax.policies import NoState, VictimContext, victim_policy
from blis_jax.runs.options import Options
from sweeps.strategies.policies.memory import least_worth
from tests.support.scenes import Prompt, table_of, workload_of

CRITICAL, STANDARD, SHEDDABLE, BATCH = 1, 2, 3, 4

LEAST_WORTH = "sweeps/strategies/policies/memory.py:least_worth"


def worth(classes: list[int], tokens: list[int], own: list[int], **numbers: float) -> list[float]:
    """What these requests are worth."""
    with jax.enable_x64(True), runtime_infinity(np.float64(np.inf)):
        whole = [jnp.asarray(one, jnp.int32) for one in (classes, tokens, own)]
        none = jnp.zeros(len(classes), jnp.int32)
        context = VictimContext(
            request=RequestView(whole[0], none, none, none, none, none),
            is_running=none == 0,
            place=none,
            num_tokens=whole[1],
            now_us=jnp.int32(0),
            instance=jnp.int32(0),
            num_own_blocks=whole[2],
        )
        params = least_worth.with_numbers(**numbers).values()
        return np.asarray(least_worth.decide(params, NoState(), context)[0]).tolist()


def test_by_default_a_class_is_all_that_counts() -> None:
    classes = [CRITICAL, STANDARD, 0, SHEDDABLE, BATCH]
    assert worth(classes, [9, 9, 9, 900, 0], [1, 1, 1, 5, 50]) == [2, 1, 1, 0, 0]


def test_tokens_to_compute_again_add_worth_and_blocks_set_free_take_it() -> None:
    numbers = {"per_token": 0.25, "per_block": 0.5}
    assert worth([SHEDDABLE] * 3, [0, 8, 8], [0, 0, 6], **numbers) == [0.0, 2.0, -1.0]
    assert worth([CRITICAL], [8], [6], **numbers) == [1.0]


def test_two_rules_for_one_victim_are_refused() -> None:
    config = ClusterConfig(victim_policy=LEAST_WORTH, slo_preemption=True)
    with pytest.raises(ConfigError, match="slo_preemption both choose the request to evict"):
        mechanism(config)


def test_a_victim_policy_keeps_nothing_in_mind() -> None:
    def start(params: Any, shape: Any) -> Any:
        return NoState()

    with pytest.raises(ConfigError, match="a victim policy has no memory and no draws"):
        victim_policy(start=start)
    with pytest.raises(ConfigError, match="a victim policy has no memory and no draws"):
        victim_policy(is_random=True)


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"victim_policy 'tail'.* use one of none"):
        ClusterConfig(victim_policy="tail")


def test_the_revision_of_august_has_no_such_policy() -> None:
    with pytest.raises(
        ConfigError, match=r"victim_policy .*least_worth is not part of blis-2026-08"
    ):
        ClusterConfig(revision="blis-2026-08", victim_policy=LEAST_WORTH)


@pytest.mark.slow
def test_in_both_forms_of_the_program_the_least_worthy_are_evicted() -> None:
    """One instance of 30 blocks; every request grows to nine. With no worth at all the last of the batch goes."""
    prompts = [Prompt(20_000 * at, 80, 60, (1, 2, 3, 2)[at % 4]) for at in range(12)]
    table = table_of(workload_of(prompts))
    config = ClusterConfig(
        total_kv_blocks=30, corrected=True, victim_policy=LEAST_WORTH, beta_coeffs=(1e4, 0, 0)
    )
    alike = config.replace(**{"victim.critical": 0, "victim.standard": 0})

    def run(config: ClusterConfig, form: str = "rows") -> Any:
        options = Options(form=form, num_slots=16, kv_model="block-level")
        return simulate(config, table, options).requests

    by_class, plain = run(config), run(config.replace(victim_policy="none"))
    assert by_class.preemptions[by_class.slo_class == 1].sum() == 0
    assert plain.preemptions[plain.slo_class == 1].sum() > 0
    for ours, theirs in ((by_class, run(config, "lanes")), (plain, run(alike))):
        np.testing.assert_array_equal(ours.e2e_us, theirs.e2e_us)
        np.testing.assert_array_equal(ours.preemptions, theirs.preemptions)
