"""Latency models with a fourth coefficient: ours, a cost of context, and the reference's quadratic attention."""

import dataclasses
import itertools

import numpy as np
import pytest

from blis_jax.cluster.config import FIELDS, ClusterConfig, from_flags
from blis_jax.cluster.step_times import name_of
from blis_jax.commands.run.requests import draw_requests
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.runs.many_runs import run_grid, simulate
from blis_jax.runs.options import Options
from blis_jax.workload.spec import parse_spec
from sweeps.strategies import moved
from sweeps.strategies.moved import values_for_hash
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.rotation import rotating
from tests.support.scenes import Prompt, burst, differences, flags, run_both, table_of, workload_of

OPTIONS = Options(num_slots=64, log_capacity=4096)
BETA = [1000.0, 3.0, 7.0, 0.25]
CONTEXT, ATTENTION = "blackbox-context", "blackbox-attention"


def test_a_single_request_by_hand():
    """Prompt of 40 in chunks of 16, then three decode steps on 40, 41 and 42 tokens."""
    settings = flags(beta_coeffs=BETA, long_prefill_token_threshold=16)
    record, expected = run_both(workload_of([Prompt(0, 40, 4)]), settings, OPTIONS)
    contexts = [0, 16, 32, 40, 41, 42]
    prefill, decode = [16, 16, 8, 0, 0, 0], [0, 0, 0, 1, 1, 1]
    by_hand = [
        int(1000 + 3.0 * p + 7.0 * d + 0.25 * c)
        for p, d, c in zip(prefill, decode, contexts, strict=True)
    ]
    steps = record.steps
    assert np.repeat(steps.duration_us, steps.num_steps).tolist() == by_hand
    assert not differences(record, expected)


def _by_hand(steps):
    """Durations of steps given as (new prompt tokens, decode tokens, product)."""
    return [int(1000 + 3.0 * p + 7.0 * d + 0.25 * product) for p, d, product in steps]


@pytest.mark.slow
def test_attention_of_a_single_request_by_hand():
    """New tokens times what is computed with them; decode has no part in it, so its steps are one record."""
    settings = flags(beta_coeffs=BETA, long_prefill_token_threshold=16)
    record, expected = run_both(workload_of([Prompt(0, 40, 4)]), settings, OPTIONS, "routing")
    steps = [(16, 0, 16 * 16), (16, 0, 16 * 32), (8, 0, 8 * 40), (0, 1, 0)]
    assert record.steps.duration_us.tolist() == _by_hand(steps)
    assert record.steps.num_steps.tolist() == [1, 1, 1, 3]
    assert not differences(record, expected)


def test_a_cached_prefix_counts_from_the_second_chunk_on():
    """The reference's progress is 0 in the step that schedules a request, whatever was found cached."""
    prompts = [Prompt(0, 40, 1, group=0, prefix_len=32)]
    prompts.append(Prompt(50_000, 40, 1, group=0, prefix_len=32))
    settings = flags(beta_coeffs=BETA, long_prefill_token_threshold=4)
    record, expected = run_both(workload_of(prompts), settings, OPTIONS, "routing")
    whole = [(4, 0, 4 * end) for end in range(4, 41, 4)]
    found = [(4, 0, 4 * 4), (4, 0, 4 * 40)]
    assert record.steps.duration_us.tolist() == _by_hand([*whole, *found])
    assert not differences(record, expected)


def test_several_prompts_add_up_one_by_one():
    """Not the product of the sums: 16 + 8 tokens cost 16² + 8², not 24²."""
    settings = flags(beta_coeffs=BETA)
    record, expected = run_both(
        workload_of([Prompt(0, 24, 3), Prompt(1, 16, 1), Prompt(2, 8, 1)]),
        settings | {"alpha-coeffs": [50.0, 0.0, 0.0]},
        OPTIONS,
        "routing",
    )
    steps = [(24, 0, 24 * 24), (16 + 8, 1, 16 * 16 + 8 * 8), (0, 1, 0)]
    assert record.steps.duration_us.tolist() == _by_hand(steps)
    assert not differences(record, expected)


@pytest.mark.parametrize(
    ("model", "blocks"),
    rotating(
        itertools.product([CONTEXT, ATTENTION], [100_000, 60]),
        always=[(CONTEXT, 100_000)],
    ),
)
def test_runs_are_the_oracles(model, blocks):
    """With shared prefixes and chunks, memory in plenty and under pressure."""
    settings = flags(
        beta_coeffs=BETA,
        latency_model=model,
        alpha_coeffs=[20.0, 0.5, 30.0],
        num_instances=2,
        total_kv_blocks=blocks,
        max_num_scheduled_tokens=64,
        long_prefill_token_threshold=24,
    )
    for seed in range(3):
        record, expected = run_both(workload_of(burst(seed)), settings, OPTIONS)
        assert record.outcome == Outcome.COMPLETED
        assert not differences(record, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "blocks", "budget"), rotating([(5, 80, 64), (2, 50, 30)], always=[(5, 80, 64)])
)
def test_prompts_that_a_step_passes_over_count_with_what_they_got_before(seed, blocks, budget):
    """An eviction from the middle of the batch ends the step's visits; 14 and 10 prompts are passed over."""
    settings = flags(
        beta_coeffs=BETA,
        total_kv_blocks=blocks,
        max_num_scheduled_tokens=budget,
        long_prefill_token_threshold=5,
        slo_preemption=True,
        priority_policy="slo-based",
        scheduler="priority-fcfs",
        latency_model=ATTENTION,
    )
    record, expected = run_both(workload_of(burst(seed)), settings, OPTIONS)
    assert record.outcome == Outcome.COMPLETED
    assert not differences(record, expected)


@pytest.mark.slow
@pytest.mark.parametrize("model", [CONTEXT, ATTENTION])
def test_the_vectorised_loop_counts_the_same(model):
    table = table_of(workload_of(burst(2)))
    config = ClusterConfig(
        num_instances=2,
        beta_coeffs=tuple(BETA),
        latency_model=model,
        max_num_scheduled_tokens=64,
    )
    rows = simulate(config, table, OPTIONS)
    lanes = simulate(config, table, dataclasses.replace(OPTIONS, form="lanes"))
    # equal steps of one batch are one record, written when the last of them is known
    by_start = [np.lexsort((one.steps.instance, one.steps.start_us)) for one in (rows, lanes)]
    for name in ("instance", "start_us", "duration_us", "num_steps"):
        written, other = (getattr(one.steps, name) for one in (rows, lanes))
        np.testing.assert_array_equal(written[by_start[0]], other[by_start[1]])
    np.testing.assert_array_equal(rows.requests.e2e_us, lanes.requests.e2e_us)


@pytest.mark.slow
def test_no_cost_changes_nothing():
    table = table_of(workload_of(burst(1)))
    plain = ClusterConfig(num_instances=2, beta_coeffs=(1000.0, 3.0, 7.0))
    free = plain.replace(beta_coeffs=(1000.0, 3.0, 7.0, 0.0), latency_model=CONTEXT)
    settings = (plain, free, free.replace(latency_model=ATTENTION))
    one, other, third = (simulate(config, table, OPTIONS) for config in settings)
    np.testing.assert_array_equal(one.requests.e2e_us, other.requests.e2e_us)
    np.testing.assert_array_equal(one.requests.e2e_us, third.requests.e2e_us)
    # steps of one batch that take the same time stay together
    assert len(other.steps.num_steps) == len(one.steps.num_steps) == len(third.steps.num_steps)


@pytest.mark.slow
def test_sweeps_take_the_fourth_coefficient_too():
    law = "{type: constant, params: {value: 32}}"
    spec = parse_spec(
        "version: '2'\nseed: 1\naggregate_rate: 50.0\nnum_requests: 12\nclients:\n"
        "- id: one\n  rate_fraction: 1.0\n  arrival: {process: poisson}\n"
        f"  input_distribution: {law}\n  output_distribution: {law}\n",
        "test",
    )
    config = ClusterConfig(beta_coeffs=tuple(BETA))
    table = draw_requests(spec, 3, config.block_size_in_tokens)[0]
    ((record,),) = run_grid([config], spec, [3], lambda record: record).rows
    alone = simulate(config, table, Options(resolve_ties=False))
    np.testing.assert_array_equal(record.requests.e2e_us, alone.requests.e2e_us)
    without = simulate(config.replace(beta_coeffs=tuple(BETA[:3])), table, Options())
    assert np.all(record.requests.e2e_us > without.requests.e2e_us)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beta_coeffs": (1.0,) * 5}, "must be three or four finite numbers"),
        (
            {"latency_model": CONTEXT},
            "must be four .* blackbox-context has: µs per step; .* µs per token of context",
        ),
        (
            {"latency_model": "blackbox", "beta_coeffs": (1.0,) * 4},
            "must be three .* latency_model blackbox has: µs per step",
        ),
        ({"latency_model": "blackbox-contxt"}, "did you mean 'blackbox-context'"),
    ],
)
def test_coefficients_that_do_not_fit_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ClusterConfig(**settings)


def test_four_coefficients_mean_what_the_reference_means_in_its_variant():
    four = ClusterConfig(beta_coeffs=tuple(BETA))
    routing = four.replace(variant="routing")
    assert (name_of(four), four.profile) == (CONTEXT, "blis-2026-02/scheduling/context")
    assert (name_of(routing), routing.profile) == (ATTENTION, "blis-2026-02/routing")
    ours = routing.replace(latency_model=CONTEXT)
    assert (name_of(ours), ours.profile) == (CONTEXT, "blis-2026-02/routing/context")
    recorded = from_flags(flags(beta_coeffs=BETA) | {"precise-kv-routing": False})
    assert name_of(recorded) == ATTENTION and name_of(ClusterConfig()) == "blackbox"


def test_hashes_of_configurations_from_before_the_setting_hold():
    """52 settings were there when the first hashes were made; what came later counts only where it is given."""
    values = values_for_hash(ClusterConfig())
    assert len(values) == 52
    now = {name: getattr(ClusterConfig(), name) for name in values if name in FIELDS}
    assert values == moved.OF_FIRST_RECORDS | now  # eight are numbers of policies from files by now
    assert not {"latency_model", "routing_picker", "instances", "cluster_policy"} & set(values)
    named = ClusterConfig(latency_model="blackbox")
    assert values_for_hash(named)["latency_model"] == "blackbox"


# --- models of a user -----------------------------------------------------------------------------

INTERFERENCE = f"{REPO_ROOT / 'examples' / 'policies' / 'step_times.py'}:interference"


@pytest.mark.lenient_promotion
def test_a_model_from_a_file_by_hand():
    """A prompt alone, then a second prompt beside the first one's decoding: only that step is mixed."""
    prompts = workload_of([Prompt(0, 16, 3), Prompt(500, 8, 1)])
    settings = {"latency_model": INTERFERENCE, "beta_coeffs": (1000.0, 3.0, 7.0, 100.0)}
    cluster = dataclasses.replace(from_flags(flags(alpha_coeffs=[0.0, 0.0, 0.0])), **settings)
    record = simulate(cluster, table_of(prompts), OPTIONS)
    assert np.repeat(record.steps.duration_us, record.steps.num_steps).tolist() == [
        1000 + 3 * 16,
        1000 + 3 * 8 + 7 + 100,
        1000 + 7,
    ]
    plain = dataclasses.replace(cluster, latency_model="auto", beta_coeffs=(1000.0, 3.0, 7.0))
    twin = dataclasses.replace(cluster, beta_coeffs=(1000.0, 3.0, 7.0, 0.0))
    np.testing.assert_array_equal(
        simulate(twin, table_of(prompts), OPTIONS).requests.e2e_us,
        simulate(plain, table_of(prompts), OPTIONS).requests.e2e_us,
    )


def test_what_a_model_of_a_user_must_be():
    with pytest.raises(
        ConfigError, match=r"four finite numbers .* has: µs per step; .* mixed step"
    ):
        ClusterConfig(latency_model=INTERFERENCE)
    with pytest.raises(ConfigError, match=r"did you mean 'interference'"):
        ClusterConfig(latency_model=INTERFERENCE + "s")
    with pytest.raises(ConfigError, match=r"did you mean 'blackbox'"):
        ClusterConfig(latency_model="black-box")
