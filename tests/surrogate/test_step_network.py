"""Networks on the step law: they rise, leave the data's ends and all beyond alone, and come back from a fit's file."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from blis_jax.calibrate.__main__ import main
from blis_jax.calibrate.posterior import load
from blis_jax.calibrate.step_fit import fit_deployment, held_out_ms
from blis_jax.calibrate.step_fits import StepFits
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.views import StepBatch
from blis_jax.errors import ConfigError
from blis_jax.latency.step_law import OF_CONTEXT, TERMS, StepSums, step_law, terms_of
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.traces.measured.steps import EngineSteps, read_steps
from surrogate.step_network import PARTS, PER_PART, ROWS, UNITS, Bend, bends_of, bent, network
from tests.calibrate.made_engine import made_steps
from tests.latency.test_step_law import batch
from tests.support.scenes import Prompt, table_of, workload_of

pytestmark = pytest.mark.lenient_promotion  # optax divides counts

NAME = "surrogate/step_network.py:network"


def bend_of(seed: int, low: float = 2000.0, width: float = 6000.0) -> Bend:
    """A made network with both ends where they are."""
    random = np.random.default_rng(seed)
    straight, heights = random.uniform(0.05, 1.0), random.exponential(size=UNITS)
    starts, slopes = random.random(UNITS), 1 / random.uniform(0.01, 0.6, UNITS)
    end = straight + heights @ np.clip((1 - starts) * slopes, 0, 1)
    return Bend(low, width, straight / end, heights / end * width, starts * width, slopes / width)


def coefficients(seed: int) -> np.ndarray:
    law = np.random.default_rng(seed).uniform(0.0, 0.5, len(TERMS))
    law[0] = 3000.0
    bends = [bend_of(seed + place) for place in range(len(PARTS))]
    return np.concatenate([law, *(np.hstack([*bend]) for bend in bends)])


def without_prompts(one: StepBatch) -> StepBatch:
    assert one.members is not None
    members = dataclasses.replace(one.members, in_prefill=one.members.in_prefill & False)
    return dataclasses.replace(one, members=members)


@pytest.mark.parametrize("seed", range(8))
def test_a_network_rises_and_is_the_law_itself_outside_its_data(seed):
    bend = bend_of(seed)
    us = np.sort(np.random.default_rng(seed).uniform(0, 12_000, 40_000))
    found = bent(bend, us, np, np.multiply)
    assert np.all(np.diff(found) >= 0)
    outside = (us <= 2000) | (us >= 8000)
    np.testing.assert_array_equal(found[outside], us[outside])
    assert np.abs(found - us)[~outside].max() > 100
    near = bent(bend, np.array([2000.001, 7999.999]), np, np.multiply)
    np.testing.assert_allclose(near, [2000, 8000], atol=0.1)


@pytest.mark.parametrize("has_prompts", [False, True])
def test_a_step_takes_what_its_terms_say_and_later_ones_the_same_to_the_last_bit(has_prompts):
    sums = StepSums(0.0, 0.0, 0.0, 3.0, 6000.0, float(np.std([1000, 2000, 3000])))
    if has_prompts:
        sums = sums._replace(prompts=2.0, prompt_tokens=150.0, cached_tokens=300.0)
    terms = np.array(terms_of(StepSums(*map(np.float64, sums)), np))[None]
    with jax.enable_x64(True):
        beta = jnp.array(coefficients(3))
        one = batch() if has_prompts else without_prompts(batch())
        assert network.decode_steps is not None
        found = float(jax.jit(network.step_time)(beta, one))
        assert found == pytest.approx(network.times(np.array(beta), terms)[0], rel=1e-12)
        if not has_prompts:
            after = network.decode_steps
            later = jax.jit(lambda beta: after(beta, one)(jnp.arange(4000)))(beta)
            assert float(later[0]) == found
            assert np.all(np.diff(later) >= 0)


def test_time_rises_with_tokens_and_requests_and_has_derivatives():
    beta = coefficients(5)
    for name, has_prompt in (
        ("context", 0),
        ("decodes", 0),
        ("prompt_tokens", 1),
        ("cached_tokens", 1),
    ):
        more = np.arange(1.0, 4000.0)
        usual = StepSums(
            1.0 * has_prompt, 700.0 * has_prompt, 300.0 * has_prompt, 8.0, 9000.0, 200.0
        )
        sums = StepSums(*(np.full(len(more), value) for value in usual))._replace(**{name: more})
        if name == "decodes":
            sums = sums._replace(context=1000 * more)
        found = network.times(beta, np.column_stack(terms_of(sums, np)))
        assert np.all(np.diff(found) >= -1e-6) and np.all(found > 0), name
    with jax.enable_x64(True):
        one = without_prompts(batch())
        slope = np.array(jax.grad(lambda beta: network.step_time(beta, one))(jnp.array(beta)))
    assert np.all(np.isfinite(slope)) and np.any(slope[len(TERMS) :] != 0)


def bent_engine(tmp_path: Path, num: int = 1200) -> EngineSteps:
    """An engine whose contexts take up to a third more from a place on where the law has no bend."""
    table = made_steps(num, noise=0.002)
    is_decode = table.sum_prefill_tokens == 0
    slower = 0.35 * np.clip(table.sum_decode_kv_tokens - 60_000, 0, 60_000) / 60_000
    path = tmp_path / "steps.csv"
    table.assign(latency_ms=table.latency_ms * np.where(is_decode, 1 + slower, 1)).to_csv(
        path, index=False
    )
    return read_steps(path).runs[0]


def test_what_the_law_cannot_bend_a_network_does(tmp_path):
    steps = bent_engine(tmp_path)
    fit = fit_deployment(steps, network)
    assert fit.alone is not None
    law, bent_law = (one.every_second["decode"].median for one in (fit.alone, fit))
    assert bent_law < 0.7 * law
    assert len(fit.beta) == len(network.coefficients) and fit.draws.shape[1] == len(fit.beta)
    assert np.all(fit.beta >= 0) and np.all(fit.draws >= 0)
    np.testing.assert_array_equal(fit.beta[: len(TERMS)], fit.alone.beta)
    first, second = (held_out_ms(steps, np.arange(len(steps)) % 2 == 1, network) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_of_a_law_that_fits_a_network_leaves_little_to_be_seen(tmp_path):
    path = tmp_path / "steps.csv"
    made_steps(1200, noise=0.002).to_csv(path, index=False)
    fit = fit_deployment(read_steps(path).runs[0], network)
    assert fit.alone is not None
    for phase, errors in fit.every_second.items():
        assert errors.median < fit.alone.every_second[phase].median + 0.003, phase


def test_too_few_samples_leave_a_part_alone():
    terms = np.ones((5, len(TERMS)))
    terms[:, OF_CONTEXT.stop :] = 0.0  # of prompts
    found = network.further(terms, np.full(5, 40.0), np.ones((1, 5)), np.ones((1, len(TERMS))))
    whole = np.concatenate([np.ones(len(TERMS)), found[0]])
    assert found.shape == (1, len(PARTS) * PER_PART)
    assert [bend.width for bend in bends_of(whole)] == [0.0] * len(PARTS)
    np.testing.assert_allclose(network.times(whole, terms), terms.sum(axis=1))


def test_a_fit_with_networks_is_a_file_and_the_engine_runs_with_it(tmp_path, capsys):
    pd.read_csv(bent_engine_file(tmp_path)).to_parquet(tmp_path / "steps.parquet")
    out = tmp_path / "fit.json"
    asked = [str(tmp_path / "steps.parquet"), "--residual", NAME, "--output", str(out)]
    assert main(asked) == 0
    assert "--residual" in capsys.readouterr().out
    fit = load(out)
    assert fit.latency_model == NAME and len(fit.values) == len(network.coefficients)
    draws = fit.draws(8, 0)
    first = len(TERMS) + ROWS * PER_PART
    assert len(np.unique(draws[:, first + 2])) > 3  # networks are drawn, too
    config = fit.configured(ClusterConfig(corrected=True))
    record = simulate(config, table_of(workload_of([Prompt(0, 900, 40)])), Options(num_slots=8))
    taken = np.repeat(record.steps.duration_us, record.steps.num_steps)
    assert len(taken) == 40 and np.all(np.diff(taken[1:]) >= 0)
    document = json.loads(out.read_text())
    fits = StepFits.of_document(document, "fit.json")
    assert fits.latency_model == NAME
    for change in (
        {"latency_model": "step-law"},
        {"deployments": [dict(document["deployments"][0], tp=2)]},
    ):
        with pytest.raises(ConfigError, match="damaged"):
            StepFits.of_document({**document, **change}, "fit.json")


def bent_engine_file(tmp_path: Path) -> Path:
    bent_engine(tmp_path, 400)
    return tmp_path / "steps.csv"


@pytest.mark.parametrize("name", ["step-law", "trained-physics"])
def test_another_latency_model_is_refused_as_a_residual(tmp_path, capsys, name):
    path = bent_engine_file(tmp_path)
    assert main([str(path), "--residual", name, "--output", str(tmp_path / "fit.json")]) == 2
    assert "bends step-law" in capsys.readouterr().err
    assert not (tmp_path / "fit.json").exists()


def test_the_law_alone_is_what_it_was():
    with jax.enable_x64(True):
        beta = jnp.array(coefficients(1))
        left_alone = beta.at[len(TERMS) :].set(0.0)
        assert float(network.step_time(left_alone, batch())) == pytest.approx(
            float(step_law.step_time(beta[: len(TERMS)], batch())), rel=1e-12
        )
