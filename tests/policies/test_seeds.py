"""Random policies: another draw for every seed of the workload, common to all that is compared."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import blis_jax
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import draws
from blis_jax.commands.run.flags import RunOptions
from blis_jax.commands.run.requests import draw_requests
from blis_jax.commands.run.workload import RECORDED, Source, warn_of_idle_options
from blis_jax.policies import registry
from blis_jax.policies.seeds import (
    ALL_ALIKE,
    FIXED,
    RandomSource,
    policy_seed,
    policy_seed_under,
)
from blis_jax.run import main
from blis_jax.runs.derivatives.times import jacobian
from blis_jax.runs.many_runs import over_params, over_seeds, simulate
from blis_jax.runs.options import Options
from blis_jax.workload.spec import parse_spec
from sweeps.runs.drawn import table_of
from sweeps.runs.experiment import Experiment
from sweeps.strategies.moved import PATHS

PACKAGE = Path(blis_jax.__file__).parent
# so slow that everything is there before the first step ends: after the first request the gate is
# always open for a draw, and who is shed is the draws and nothing else
SLOW = ClusterConfig(
    admission_policy="sweeps/strategies/policies/gates.py:class_gated",
    policy_numbers={"admission.standard_load": 0.0, "admission.probability": 0.5},
    num_instances=2,
    alpha_coeffs=(0.0, 0.0, 0.0),
    beta_coeffs=(1e7, 0.0, 0.0),
)
OPTIONS = Options(num_slots=64, log_capacity=1024, resolve_ties=False)
SEEDS = (3, 4, 5, 2**32 - 1)
NUM_REQUESTS = 40
LAW = "{type: constant, params: {value: 8}}"
WORKLOAD = (
    f"version: '2'\nseed: 1\naggregate_rate: 2000.0\nnum_requests: {NUM_REQUESTS}\nclients:\n"
    "- id: one\n  rate_fraction: 1.0\n  slo_class: standard\n  arrival: {process: poisson}\n"
    f"  input_distribution: {LAW}\n  output_distribution: {LAW}\n"
)
SPEC = parse_spec(WORKLOAD, "test")


def shed(record):
    """Which requests were turned away."""
    return tuple((record.requests.admitted == 0).tolist())


@pytest.fixture(scope="module")
def alone():
    """Of single runs on the jax stream, by seed."""
    tables = {seed: draw_requests(SPEC, seed, 16)[0] for seed in SEEDS}
    return {seed: shed(simulate(SLOW, tables[seed], OPTIONS, seed)) for seed in SEEDS}


def test_every_seed_draws_anew(alone):
    assert len(set(alone.values())) == len(SEEDS)
    shares = np.array([sum(pattern) for pattern in alone.values()]) / NUM_REQUESTS
    assert np.all((shares > 0.2) & (shares < 0.8))
    # what all seeds shed together is what independent draws would leave, not the half of one draw
    common = np.logical_and.reduce([np.array(pattern) for pattern in alone.values()])
    assert common.mean() < 0.3


def test_the_same_requests_meet_other_draws_under_another_seed():
    table = draw_requests(SPEC, 3, 16)[0]
    patterns = {shed(simulate(SLOW, table, OPTIONS, seed)) for seed in SEEDS}
    assert len(patterns) == len(SEEDS)


@pytest.mark.slow
def test_sweeps_draw_what_single_runs_draw(alone):
    assert over_seeds(SLOW, SPEC, SEEDS, shed, OPTIONS) == tuple(alone.values())


def test_all_arms_share_the_draws_of_a_seed(alone):
    arms = [SLOW, SLOW.replace(max_num_scheduled_tokens=64), SLOW.replace(scheduler="sjf")]
    assert set(over_params(arms, SPEC, 4, shed, OPTIONS)) == {alone[4]}


@pytest.mark.slow
def test_given_tables_draw_by_the_seed_of_each(alone):
    experiment = Experiment.on(SPEC, SEEDS, "jax", configs_per_batch=2)
    found = experiment.summaries([SLOW, SLOW.replace(scheduler="sjf")], shed)
    assert found == [tuple(alone.values())] * 2


def test_requests_as_blis_draws_them_do_not_change_the_draws(alone):
    experiment = Experiment.on(SPEC, SEEDS[:2], "reference")
    (found,) = experiment.summaries([SLOW], shed)
    assert found == tuple(alone[seed] for seed in SEEDS[:2])


@pytest.mark.slow
def test_derivatives_are_of_the_run_with_the_same_draws(alone):
    table = draw_requests(SPEC, 5, 16)[0]
    found = jacobian(SLOW, table, ["beta0"], Options(num_slots=64, log_capacity=1024), seed=5)
    assert shed(found.record) == alone[5]


def test_runs_made_with_one_seed_for_all_can_be_repeated():
    experiment = Experiment.on(SPEC, SEEDS, "jax", policy_seeds=ALL_ALIKE)
    (found,) = experiment.summaries([SLOW], shed)
    assert len(set(found)) == 1
    assert {policy_seed_under(ALL_ALIKE, seed) for seed in SEEDS} == {FIXED}


def test_policies_and_requests_have_no_key_in_common():
    """Requests are drawn with keys of the seed itself, whose first word is 0."""
    with jax.enable_x64(True):
        roots = {
            tuple(np.asarray(jax.random.key_data(jax.random.key(np.uint64(value)))).tolist())
            for seed in (0, 1, 42, 2**32 - 1, 2**63 - 1)
            for value in (policy_seed(seed),)
        }
    assert len(roots) == 5
    assert all(first >= 2**31 for first, _ in roots)


def test_who_draws():
    assert draws(SLOW) and not draws(SLOW.replace(admission_policy="slo-gated"))


def test_lost_news_is_drawn():
    indexed = ClusterConfig(routing_policy="weighted", variant="routing")
    assert not draws(indexed)
    lossy = indexed.replace(prefix_index_loss=0.5)
    assert draws(lossy)
    used = {source for source in RandomSource if source.is_used and source.is_used(lossy)}
    assert used == {RandomSource.LOSS, RandomSource.REMOVAL_LOSS}


@pytest.mark.parametrize("spread", ["scrape_delay_stddev_s", "loading_delay_stddev_s"])
def test_delays_of_an_autoscaler_are_drawn_where_they_have_a_spread(spread):
    scaler = registry.find("cluster", "saturation-autoscaler")
    assert not scaler.may_draw
    assert scaler.with_numbers(**{spread: 2.0}).may_draw


def test_nothing_draws_from_the_seed_but_through_a_source():
    """`draws` asks every source, so it knows what draws as long as there is no other way to a random number."""
    ways = re.compile(
        r"policy\.seed\b|\bRandomSource\.\w+\.origin|subsystem_seed\(policy|random\.default_rng"
    )
    found = {
        f"{file.relative_to(PACKAGE)}"
        for folder in ("engine", "tables", "policies", "cluster", "memory", "latency")
        for file in (PACKAGE / folder).rglob("*.py")
        if ways.search(file.read_text())
    }
    gates = {"tables/context.py", "engine/cluster_params.py", "policies/seeds.py"}
    assert found == gates


def test_every_source_has_a_number_or_a_stream_of_its_own():
    origins = [source.origin for source in RandomSource]
    assert len(set(origins)) == len(origins)


@pytest.mark.parametrize("declared", [True, False])
def test_a_policy_of_a_file_draws_if_it_says_so(tmp_path, declared):
    file = tmp_path / "mine.py"
    file.write_text(
        "from blis_jax.policies import routing_policy\n"
        f"@routing_policy(is_random={declared})\n"
        "def first(params, state, context):\n    return 0, state\n"
    )
    assert draws(ClusterConfig(routing_policy=f"{file}:first")) == declared


# --- the command ----------------------------------------------------------------------------------


def _arguments(folder, *more):
    (folder / "w.yaml").write_text(WORKLOAD)
    return [
        *("--model", "m", "--num-instances", "2", "--beta-coeffs", "1e7,0,0"),
        *("--alpha-coeffs", "0,0,0", "--admission-policy", PATHS["admission"]["class-gated"]),
        *("--policy-numbers", "admission.standard_load=0,admission.probability=0.5"),
        *("--results-path", str(folder / "out.json"), "--overwrite", *more),
    ]


def _completed(folder):
    document = json.loads((folder / "out.json").read_text())
    return {request["requestID"] for request in document["requests"]}, document["provenance"]


def test_the_seed_of_a_single_run_draws_for_its_policies(tmp_path, capsys):
    found = {}
    for seed in (3, 4):
        spec = str(tmp_path / "w.yaml")
        assert main(_arguments(tmp_path, "--workload-spec", spec, "--seed", str(seed))) == 0
        found[seed], provenance = _completed(tmp_path)
        assert provenance["policy_seed"] == seed
        table = table_of(SPEC, seed, 16, "reference")
        expected = simulate(SLOW, table, OPTIONS, seed).requests.admitted
        assert len(found[seed]) == int(expected.sum())
    assert found[3] != found[4]


def test_recorded_requests_take_a_seed_for_the_policies(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(
        "arrival_us,input_tokens,output_tokens\n" + "".join(f"{k},8,8\n" for k in range(40))
    )
    found = []
    for seed in ("3", "4"):
        trace = ("--trace", str(tmp_path / "t.csv"), "--seed", seed)
        assert main(_arguments(tmp_path, *trace)) == 0
        found.append(_completed(tmp_path)[0])
    assert found[0] != found[1]


def test_a_seed_without_effect_is_told_only_where_no_policy_draws():
    source = Source("r.npz", RECORDED, 3, path=Path("r.npz"))
    said: list[str] = []
    notes = SimpleNamespace(warn=said.append)
    warn_of_idle_options(RunOptions.of({"seed": 3}), SLOW, source, notes)
    assert not said
    warn_of_idle_options(RunOptions.of({"seed": 3}), ClusterConfig(), source, notes)
    assert said == ["--seed has no effect on recorded requests"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),  # nobody asks the picker, which draws where scores are equal
        ({"routing_policy": "least-loaded"}, True),
        ({"routing_policy": "weighted"}, True),
        ({"revision": "blis-2026-02", "routing_picker": "weighted-random"}, False),
        (
            {
                "revision": "blis-2026-02",
                "routing_policy": "weighted",
                "routing_picker": "weighted-random",
            },
            True,
        ),
    ],
)
def test_a_picker_that_nobody_asks_draws_nothing(settings, expected):
    config = ClusterConfig(**({"revision": "blis-2026-08", "num_instances": 2} | settings))
    assert draws(config) is expected
