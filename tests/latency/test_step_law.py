"""step-law: terms by hand, monotone in tokens, the same from members, and a run of the engine."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.types import LAST
from blis_jax.core.views import Members, StepBatch
from blis_jax.latency.step_law import TERMS, StepSums, graph_rows, step_law, sums_of, terms_of
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from tests.support.scenes import Prompt, table_of, workload_of


def values(**given: float) -> dict[str, float]:
    sums = StepSums(**{name: np.array(given.get(name, 0.0)) for name in StepSums._fields})
    found = zip(TERMS, terms_of(sums, np), strict=True)
    return {name: float(value) for name, value in found if value}


def law(**coefficients: float) -> tuple[float, ...]:
    unknown = set(coefficients) - set(TERMS)
    assert not unknown
    return tuple(coefficients.get(name, 0.0) for name in TERMS)


def test_rows_of_captured_graphs_are_those_of_vllm():
    found = graph_rows(np.array([0.0, 1, 2, 3, 4, 5, 8, 9, 24, 25]), np)
    np.testing.assert_array_equal(found, [0, 1, 2, 4, 4, 8, 8, 16, 24, 32])


def test_a_decode_step_by_hand():
    found = values(decodes=3.0, context=9000.0, spread=500.0)
    longest = 3000 + np.sqrt(2) * 500
    assert found == pytest.approx(
        {
            "µs per step": 1.0,
            "µs per row of a captured decode graph, 0 to 1": 1.0,
            "µs per row of a captured decode graph, 1 to 2": 1.0,
            "µs per row of a captured decode graph, 2 to 4": 2.0,
            "µs per request in decode": 3.0,
            "µs per token of context": 9000.0,
            "µs per token of context up to 2000 a request": 6000.0,
            "µs per token of context up to 8000 a request": 9000.0,
            "µs per token of the longest context": longest,
            "µs per token of the longest context and row up to 16": 4 * longest,
            "µs per token of the longest context and row": 4 * longest,
        }
    )


def test_prompts_run_in_a_captured_graph_up_to_512_tokens():
    short = values(prompts=2.0, prompt_tokens=500.0, decodes=12.0)
    assert "µs per step outside captured graphs" not in short
    assert short["µs per token of a step with a prompt, 384 to 512"] == 128
    long = values(prompts=2.0, prompt_tokens=1000.0, cached_tokens=300.0, decodes=24.0)
    assert long["µs per step outside captured graphs"] == 1
    assert long["µs per token outside captured graphs beyond 512, 0 to 512"] == 512
    assert long["µs per product of new tokens and context of a prompt"] == 1000 * 800 / 2
    assert not any("decode graph" in name for name in long)


@pytest.mark.parametrize("name", ["prompt_tokens", "cached_tokens", "decodes", "context", "spread"])
@pytest.mark.parametrize("prompts", [0.0, 2.0])
def test_no_term_falls_when_a_batch_gets_more_and_all_are_finite(name, prompts):
    """Of one phase, since a prompt takes a step out of the decode graphs; more requests have as long contexts."""
    if not prompts and name in ("prompt_tokens", "cached_tokens"):
        return
    more = np.arange(1.0, 3000.0) ** 2
    usual = StepSums(prompts, 700 * (prompts > 0), 300 * (prompts > 0), 8.0, 9000.0, 200.0)
    sums = StepSums(*(np.full(len(more), value) for value in usual))._replace(**{name: more})
    if name == "decodes":
        sums = sums._replace(context=1000 * more)
    found = np.array(terms_of(sums, np))
    assert np.all(np.isfinite(found)) and np.all(found >= 0)
    assert np.all(np.diff(found, axis=1) >= -1e-6)


def batch() -> StepBatch:
    """Two prompts, three decodes, one slot of neither."""
    new, context = np.array([100, 50, 1, 1, 1, 0]), np.array([400, 50, 1001, 2001, 3001, 0])
    is_prompt, is_decode = np.arange(6) < 2, (np.arange(6) >= 2) & (np.arange(6) < 5)
    members = Members(
        in_prefill=jnp.array(is_prompt),
        new_tokens=jnp.array(new),
        progress=jnp.array(context - new),
        context=jnp.array(context),
        in_step=jnp.array(is_prompt | is_decode),
        in_decode=jnp.array(is_decode),
        input_len=jnp.array(np.where(is_prompt, context, 10)),
        order=jnp.array(np.where(np.arange(6) < 5, np.arange(6), LAST)),
    )
    return StepBatch(jnp.int32(150), jnp.int32(3), members)


def test_members_have_the_sums_that_tables_have():
    with jax.enable_x64(True):
        found = [float(one) for one in sums_of(batch())]
        assert found == pytest.approx([2, 150, 300, 3, 6000, np.std([1000, 2000, 3000])])
        beta = np.linspace(1.0, 5.0, len(TERMS))
        time = float(step_law.step_time(jnp.array(beta), batch()))
        wanted = np.array(terms_of(StepSums(*(np.array(one) for one in found)), np)) @ beta
        assert time == pytest.approx(wanted, rel=1e-12)


def test_the_law_has_derivatives_in_its_coefficients_and_its_contexts():
    with jax.enable_x64(True):
        beta = jnp.ones(len(TERMS))
        by_beta = jax.grad(lambda one: step_law.step_time(one, batch()))(beta)
        assert float(by_beta[TERMS.index("µs per token of context")]) == 6000

        def by_context(more: jax.Array) -> jax.Array:
            sums = StepSums(*(jnp.float64(one) for one in (0.0, 0.0, 0.0, 8.0, 16_000.0, 0.0)))
            return jnp.stack(terms_of(sums._replace(context=sums.context + more), jnp)) @ beta

        assert np.isfinite(jax.grad(by_context)(jnp.float64(1.0)))

        def by_members(more: jax.Array) -> jax.Array:
            """All contexts are equal at 0, where the root of their variance has no slope."""
            one = batch()
            assert one.members is not None
            same = jnp.where(one.members.in_decode, 1000.0 + more, 0.0)
            members = dataclasses.replace(one.members, progress=same)
            return step_law.step_time(beta, dataclasses.replace(one, members=members))

        assert np.isfinite(jax.grad(by_members)(jnp.float64(0.0)))


def test_the_engine_makes_steps_of_these_times():
    beta = law(
        **{
            "µs per step": 1000.0,
            "µs per prompt": 200.0,
            "µs per token of context": 2.0,
            "µs per row of a captured decode graph, 0 to 1": 30.0,
        }
    )
    config = ClusterConfig(
        corrected=True, latency_model="step-law", beta_coeffs=beta, alpha_coeffs=(0.0, 0.0, 0.0)
    )
    record = simulate(config, table_of(workload_of([Prompt(0, 100, 3)])), Options(num_slots=8))
    steps = record.steps
    found = np.repeat(steps.duration_us, steps.num_steps)
    np.testing.assert_array_equal(found, [1200, 1030 + 2 * 100, 1030 + 2 * 101])
    assert config.profile.endswith("corrected/step-law")
