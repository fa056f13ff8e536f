"""trained-physics and roofline inside the engine: configurations, runs against plain event loops, refusals."""

import dataclasses
import itertools

import numpy as np
import pytest

from blis_jax.cluster import step_times
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import SIZED
from blis_jax.latency.trained_physics import ALPHA, BETA
from blis_jax.runs.derivatives.times import Differentiator
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from sweeps.strategies.moved import values_for_hash
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.rotation import rotating
from tests.support.scenes import Prompt, burst, differences, flags, run_both, table_of, workload_of

OPTIONS = Options(num_slots=64, log_capacity=4096)
MIXTRAL, SCOUT = (
    "mistralai/mixtral-8x7b-v0.1",
    "redhatai/llama-4-scout-17b-16e-instruct-fp8-dynamic",
)
LLAMA = "meta-llama/llama-3.1-8b-instruct"
COEFFICIENTS = {
    "trained-physics": {"alpha_coeffs": [20.0, 0.5, 30.0], "beta_coeffs": list(BETA)},
    "roofline": {"alpha_coeffs": [20.0, 0.5, 30.0], "beta_coeffs": []},
}


# --- what is not given follows from the model -----------------------------------------------------


def test_what_is_not_given_follows_from_the_model():
    config = ClusterConfig(latency_model="trained-physics")
    assert (config.alpha_coeffs, config.beta_coeffs) == (ALPHA, BETA)
    assert (config.tp, config.total_kv_blocks) == (1, 26312)
    assert config.profile == "blis-2026-02/scheduling/trained-physics"
    assert step_times.alphas(config) == [(ALPHA[0], 0.0, ALPHA[2])]
    assert step_times.times_after_decode(config) == [777]
    roofline = config.replace(latency_model="roofline")
    assert (roofline.alpha_coeffs, roofline.beta_coeffs) == ((0.0, 0.0, 0.0), ())
    assert step_times.times_after_decode(roofline) == [0]


def test_a_copy_follows_its_own_model_and_keeps_what_was_given():
    config = ClusterConfig(latency_model="trained-physics")
    assert config.replace(tp=2).total_kv_blocks == 125278
    assert config.replace(hardware="L40S").total_kv_blocks == 11567
    given = ClusterConfig(latency_model="trained-physics", total_kv_blocks=500)
    assert given.replace(tp=2).total_kv_blocks == 500
    assert config.replace(latency_model="auto") == ClusterConfig()
    moe = config.replace(model=MIXTRAL, tp=2, dp=2)
    assert moe.total_kv_blocks == 97912
    assert values_for_hash(moe)["dp"] == 2 and "dp" not in values_for_hash(ClusterConfig())


def test_groups_with_gpus_of_their_own_have_their_blocks_and_numbers():
    groups = [{"count": 2, "hardware": "L40S"}, {"tp": 2}, {"total_kv_blocks": 77}]
    config = ClusterConfig(latency_model="trained-physics", instances=groups)
    assert [group.total_kv_blocks for group in config.instances] == [11567, 125278, 77]
    small = config.replace(block_size_in_tokens=32)
    assert [group.total_kv_blocks for group in small.instances] == [5783, 62639, 77]
    slow, also_slow, wide, usual = step_times.vectors(config)
    alone = ClusterConfig(latency_model="trained-physics", hardware="L40S")
    assert slow == also_slow == step_times.vectors(alone)[0]
    assert wide != usual == step_times.vectors(ClusterConfig(latency_model="trained-physics"))[0]


def test_the_examples_are_served():
    folder = REPO_ROOT / "examples"
    config = ClusterConfig(
        latency_model="trained-physics",
        model="made/up",
        model_config=str(folder / "model" / "config.json"),
        instances=str(folder / "gpus.yaml"),
    )
    assert [group.total_kv_blocks for group in config.instances] == [169945, 16876]
    assert len(step_times.vectors(config)) == 3


def test_a_model_that_only_fits_as_its_groups_have_it():
    large = "meta-llama/llama-3.1-70b-instruct"
    config = ClusterConfig(latency_model="roofline", model=large, instances=[{"tp": 4}])
    assert config.total_kv_blocks == config.instances[0].total_kv_blocks == 121801


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tp": 3}, r"^tp 3 does not divide the 8 KV heads .*; use another tp, or give total_kv"),
        ({"tp": 3, "total_kv_blocks": 9}, "tp 3 does not divide the 32 attention heads .*1, 2, 4"),
        ({"tp": 0}, "^tp must be at least 1, got 0"),
        ({"dp": 2}, "^dp is 2, but model .* has no experts"),
        ({"model": "llama"}, r"^model 'llama' has no shipped description .*give its config.json"),
        ({"model_config": "missing"}, "^missing does not exist; give the path of a model's config"),
        ({"hardware": "H10"}, "^hardware 'H10' has no shipped description; .*did you mean 'H100'"),
        ({"model": "01-ai/yi-34b", "gpu_memory_utilization": 0.5}, "needs 69.70 GiB .*at least 2"),
        ({"gpu_memory_utilization": 0.0}, "^gpu_memory_utilization must be above 0"),
        ({"beta_coeffs": (1.0,) * 6}, "must be 7 to 11 finite numbers at least 0, got .*; .*β1 "),
        ({"beta_coeffs": (1.0,) * 6 + (-1.0,)}, "must be 7 to 11 finite numbers at least 0"),
        ({"alpha_coeffs": (1.0,)}, "^alpha_coeffs must be three"),
        ({"moe_comm_backend": "ppl"}, "^moe_comm_backend 'ppl' is not known.* mean 'pplx'"),
        ({"latency_model": "roofline", "beta_coeffs": (1.0, 2.0, 3.0)}, "must be left out"),
        ({"latency_model": "roofline", "model": MIXTRAL, "tp": 2, "dp": 2}, "no data parallelism"),
        ({"latency_model": "auto", "dp": 2}, "^dp is 2, but step times of latency_model blackbox"),
        ({"latency_model": "auto", "instances": [{"tp": 4}]}, "a group has its own tp, but"),
        ({"instances": [{"hardware": "H"}]}, "hardware 'H' has no shipped"),
    ],
)
def test_what_cannot_be_served_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ClusterConfig(**{"latency_model": "trained-physics", **settings})


def test_step_times_from_sizes_have_no_derivatives():
    config = ClusterConfig(latency_model="trained-physics")
    table = table_of(workload_of([Prompt(0, 8, 2)]))
    with pytest.raises(ConfigError, match=r"^beta0: step times of latency_model trained-physics"):
        Differentiator(["beta0"]).run(config, table)


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "blocks"),
    rotating(
        itertools.product(SIZED, [LLAMA, MIXTRAL, SCOUT], [100_000, 60]),
        always=[("trained-physics", LLAMA, 100_000), ("roofline", MIXTRAL, 100_000)],
    ),
)
def test_runs_are_the_oracles(name, model, blocks):
    """With shared prefixes and chunks, memory in plenty and under pressure; every step time is computed by request."""
    settings = flags(
        latency_model=name,
        model=model,
        tp=2,
        num_instances=2,
        total_kv_blocks=blocks,
        max_num_scheduled_tokens=64,
        long_prefill_token_threshold=24,
        **COEFFICIENTS[name],
    )
    for seed in range(3):
        prompts = workload_of(burst(seed, every_us=20))
        record, expected = run_both(prompts, settings, OPTIONS)
        assert record.outcome == Outcome.COMPLETED
        assert not differences(record, expected)


@pytest.mark.parametrize("name", rotating(SIZED, always=SIZED[:1]))
def test_decode_steps_of_equal_whole_microseconds_are_made_at_once(name):
    """As many as keep the truncated time, up to the arrival in between; every time is that of its own context."""
    settings = flags(latency_model=name, tp=1, **COEFFICIENTS[name])
    prompts = workload_of([Prompt(0, 40, 150), Prompt(400_000, 10, 2)])
    record, expected = run_both(prompts, settings, OPTIONS)
    assert not differences(record, expected)
    assert len(record.steps.num_steps) < 0.4 * record.steps.num_steps.sum()
    assert len(set(record.steps.duration_us)) > 5


@pytest.mark.slow
def test_every_instance_has_the_step_times_of_its_gpus():
    """One request each on an H100 and an L40S: the engine's second instance is a cluster of L40S alone."""
    prompts = workload_of([Prompt(0, 40, 3), Prompt(0, 40, 3)])
    config = ClusterConfig(latency_model="roofline", instances=[{}, {"hardware": "L40S"}])
    steps = simulate(config, table_of(prompts), OPTIONS).steps
    alone = ClusterConfig(latency_model="roofline", hardware="L40S", num_instances=2)
    expected = simulate(alone, table_of(prompts), OPTIONS).steps
    slow, fast = steps.instance == 1, steps.instance == 0
    np.testing.assert_array_equal(steps.duration_us[slow], expected.duration_us[slow])
    assert np.all(steps.duration_us[slow] > 3 * steps.duration_us[fast])


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZED)
def test_the_vectorised_loop_counts_the_same(name):
    table = table_of(workload_of(burst(2)))
    config = ClusterConfig(num_instances=2, latency_model=name, max_num_scheduled_tokens=64)
    rows = simulate(config, table, OPTIONS)
    lanes = simulate(config, table, dataclasses.replace(OPTIONS, form="lanes"))
    # a stretch of one instance is recorded together, whatever the other does meanwhile
    for instance, name in itertools.product(range(2), ("start_us", "duration_us")):
        of_rows, of_lanes = (
            getattr(steps, name)[steps.instance == instance] for steps in (rows.steps, lanes.steps)
        )
        np.testing.assert_array_equal(of_rows, of_lanes)
    np.testing.assert_array_equal(rows.requests.e2e_us, lanes.requests.e2e_us)
