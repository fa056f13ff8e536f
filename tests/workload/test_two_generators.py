"""The device generator and the reference's streams draw from the same laws.

Two samples of a law are compared by the Kolmogorov-Smirnov distance: with NUM_DRAWS draws each it exceeds TOLERANCE
with a probability below 1e-6 (Smirnov's limit; for whole numbers even less). Whole workloads and runs are
compared by Welch's intervals, Bonferroni-corrected to a false-alarm rate of 1 % for the test. Seeds are
fixed, so a test that passes once passes always.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from blis_jax.core.types import SLO_CLASSES
from blis_jax.metrics.scalars import evaluate
from blis_jax.runs.many_runs import over_seeds, simulate
from blis_jax.runs.options import Options
from blis_jax.workload import reference
from blis_jax.workload.drawing import samplers
from blis_jax.workload.drawing.draw import compile_plan, draw
from blis_jax.workload.drawing.plan_params import gap_shape
from blis_jax.workload.go_random import Stream
from blis_jax.workload.reference.laws import gap_law, length_law
from blis_jax.workload.spec import ArrivalSpec, load_builtin, parse_spec
from blis_jax.workload.table import NEVER_US
from sweeps.strategies.arms import arm_of
from tests.support.rotation import rotating

NUM_DRAWS = 100_000
TOLERANCE = math.sqrt(-math.log(1e-6 / 2) / NUM_DRAWS)  # both samples have the same size
MEAN_US = 5000.0
FALSE_ALARM = 0.01


@pytest.fixture(autouse=True)
def wide_numbers():
    with jax.enable_x64(True):
        yield


def distance(first, second) -> float:
    return scipy.stats.ks_2samp(first, second, method="asymp").statistic


GAPS = [("poisson", None), ("gamma", 0.4), ("gamma", 1.0), ("gamma", 2.0), ("gamma", 4.5)]
GAPS += [("weibull", 0.5), ("weibull", 1.7), ("constant", None)]


def device_gaps(arrival: ArrivalSpec, seed: int = 7) -> np.ndarray:
    law = jax.jit(samplers.GAP_LAWS[arrival.process], static_argnums=1)
    num = math.ceil(NUM_DRAWS / samplers.GAMMA_ACCEPTANCE) + 2000
    shape = jnp.float64(gap_shape(arrival))
    gaps, is_accepted = law(jax.random.key(seed), num, jnp.float64(MEAN_US), shape)
    return np.asarray(gaps)[np.asarray(is_accepted)][:NUM_DRAWS]


def reference_gaps(arrival: ArrivalSpec, seed: int = 7) -> np.ndarray:
    stream, gap = Stream(seed), gap_law(arrival, 1.0 / MEAN_US)
    return np.array([gap(stream) for _ in range(NUM_DRAWS)])


@pytest.mark.statistical
@pytest.mark.parametrize(("process", "cv"), GAPS)
def test_gaps_agree_in_law(process, cv):
    arrival = ArrivalSpec(process=process, cv=cv)
    ours = np.maximum(np.trunc(device_gaps(arrival)), 1.0)
    assert len(ours) == NUM_DRAWS
    assert distance(ours, reference_gaps(arrival)) < TOLERANCE


@pytest.mark.statistical
def test_gaps_of_another_law_do_not_agree():
    """The twin: a cv of 2.2 in place of 2 is told apart."""
    ours = np.trunc(device_gaps(ArrivalSpec(process="gamma", cv=2.0)))
    assert distance(ours, reference_gaps(ArrivalSpec(process="gamma", cv=2.2))) > TOLERANCE


LENGTHS = {
    "gaussian": "{mean: 250, std_dev: 100, min: 100, max: 400}",
    "exponential": "{mean: 90}",
    "pareto_lognormal": "{alpha: 1.6, xm: 40, mu: 4.5, sigma: 0.9, mix_weight: 0.25}",
    "empirical": "{'3': 0.1, '40': 0.5, '700': 0.4}",
    "constant": "{value: 77}",
}


def spec_of(kind: str, params: str):
    law = f"{{type: {kind}, params: {params}}}"
    return parse_spec(
        f"version: '2'\nseed: 1\naggregate_rate: 100\nnum_requests: 100\nclients:\n"
        f"- id: one\n  rate_fraction: 1.0\n  arrival: {{process: poisson}}\n"
        f"  input_distribution: {law}\n  output_distribution: {law}\n",
        "test",
    )


@pytest.mark.statistical
@pytest.mark.parametrize("kind", LENGTHS)
def test_lengths_agree_in_law(kind):
    spec = spec_of(kind, LENGTHS[kind])
    plan = compile_plan(spec)
    law = jax.jit(lambda numbers, key: numbers.draw(key, NUM_DRAWS))
    numbers = plan.params.clients[0].input_law
    ours = samplers.whole_tokens(law(numbers, jax.random.key(11)))
    stream, length = Stream(11), length_law(spec.clients[0].input_distribution)
    theirs = np.array([length(stream) for _ in range(NUM_DRAWS)])
    assert distance(np.asarray(ours), theirs) < TOLERANCE


def intervals_overlap(ours: np.ndarray, theirs: np.ndarray, comparisons: int) -> bool:
    """Whether the two means differ by no more than Welch's corrected interval; `[seed]` each."""
    level = 1.0 - FALSE_ALARM / comparisons
    found = scipy.stats.ttest_ind(ours, theirs, equal_var=False)
    low, high = found.confidence_interval(level)
    return bool(low <= 0.0 <= high)


def facts(arrays) -> dict[str, float]:
    """What a workload is like: classes, lengths, burstiness, and how much of it is shared."""
    is_real = np.asarray(arrays.arrival_us) != NEVER_US
    arrival = np.asarray(arrays.arrival_us)[is_real]
    gaps = np.diff(arrival)
    slo_class = np.asarray(arrays.slo_class)[is_real]
    is_shared = np.any(np.asarray(arrays.path_nodes)[is_real] >= 0, axis=1)
    found = {
        "gap cv": float(np.std(gaps) / np.mean(gaps)),
        "mean gap": float(np.mean(gaps)),
        "mean input": float(np.mean(np.asarray(arrays.input_len)[is_real])),
        "mean output": float(np.mean(np.asarray(arrays.output_len)[is_real])),
        "shared": float(np.mean(is_shared)),
    }
    for code, name in enumerate(SLO_CLASSES):
        found[f"share of {name or 'no class'}"] = float(np.mean(slo_class == code))
    return found


def device_facts(spec, seeds: int) -> dict[str, np.ndarray]:
    plan = compile_plan(spec)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds, dtype=jnp.uint32))
    drawn = jax.jit(jax.vmap(lambda key: draw(plan.shape, plan.params, key)[0]))(keys)
    tables = jax.device_get(drawn)
    rows = [facts(jax.tree.map(lambda leaf, i=i: leaf[i], tables)) for i in range(seeds)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.statistical
@pytest.mark.parametrize("name", rotating(["mixed", "multiturn"], always=["mixed"]))
def test_whole_workloads_agree(name):
    spec = load_builtin(name)
    ours = device_facts(spec, 128)
    rows = [facts(reference.draw(spec, seed)[0]) for seed in range(64)]
    compared = [fact for fact in ours if np.std(ours[fact]) > 0]
    assert len(compared) >= 5
    for fact in ours:
        theirs = np.array([row[fact] for row in rows])
        if fact in compared:
            assert intervals_overlap(ours[fact], theirs, 2 * len(compared)), fact
        else:
            assert set(ours[fact]) == set(theirs), fact


METRICS = [
    *(f"ttft_p99_ms[{name}]" for name in ("critical", "standard", "sheddable")),
    "output_tokens_per_s",
    "e2e_p99_ms",
]
STRATEGIES = ["baseline", "it08_opt"]


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("name", STRATEGIES)
def test_means_of_runs_agree(name):
    """256 seeds of the device generator against 64 of the reference's streams."""
    spec = load_builtin("mixed")
    config = arm_of(name).config
    options = Options(resolve_ties=False)

    def figures(record):
        return evaluate(record, METRICS)

    ours = over_seeds(config, spec, range(256), figures, options)
    theirs = [
        figures(simulate(config, reference.draw(spec, seed)[0], options)) for seed in range(64)
    ]
    for metric in METRICS:
        first, second = (np.array([row[metric] for row in rows]) for rows in (ours, theirs))
        assert np.std(first) > 0
        assert intervals_overlap(first, second, len(METRICS) * len(STRATEGIES)), metric
