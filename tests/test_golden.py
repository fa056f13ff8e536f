"""Recorded runs of the reference: every array of every request and step, and every total."""

import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.metrics import reference as metrics
from blis_jax.records import invariants
from blis_jax.records.record import RunRecord
from blis_jax.records.step_records import expand_steps
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.workload.table import from_golden
from tests.support.metric_laws import assert_metrics_agree
from tests.support.oracles.test_oracle import REFERENCE_FAILURES
from tests.support.recorded.reference_data import assert_totals_equal, find_golden_dir
from tests.support.rotation import rotating
from tests.support.scenes import REQUEST_ARRAYS, STEP_ARRAYS

pytestmark = pytest.mark.golden

GOLDEN = find_golden_dir()

FAST_FAMILIES = (
    "it00_baseline",
    "it01_opt",
    "cov_ties_equal_rr1",
    "cov_kv120_some_dropped",
    "cov_traces_zero_output_one",
    "cov_horizon_lat",
    "cov_adm_tokenbucket",
    "cov_adm_rejectall",
    "cov_prio_loadadaptive_lowgap",
    "cov_stale100ms",
    "cov_scorer_all5",
    "it11_compound_pa3qd2_r2000",
)
EXEMPT_FROM_INVERSIONS = (
    "cov_ties_equal_rr1"  # see the golden README: an unstable sort over equal arrivals
)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A recorded run: what went in and what came out."""

    track: str
    name: str

    @property
    def path(self) -> Path:
        assert GOLDEN is not None
        return GOLDEN / self.track / "scenarios" / f"{self.name}.json"

    @functools.cached_property
    def recorded(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())

    @property
    def family(self) -> str:
        return self.name.rpartition("_s")[0]

    @property
    def cluster(self) -> config.ClusterConfig:
        return config.from_flags(self.recorded["config"])

    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.path.with_suffix(".npz")) as file:
            return dict(file)

    def workload(self) -> dict[str, np.ndarray]:
        name = f"{self.recorded['workload']}.npz"
        with np.load(self.path.parents[1] / "workloads" / name) as file:
            return dict(file)

    @property
    def grouping(self) -> tuple[Any, ...]:
        """Scenarios of one compilation lie together, so that it is made once."""
        cluster = self.cluster
        return (
            cluster.num_instances,
            self.recorded["num_requests"],
            cluster.routing_policy,
            cluster.routing_scorers,
            cluster.scheduler,
            cluster.priority_policy,
            cluster.admission_policy,
            cluster.kv_cpu_blocks > 0,
            cluster.slo_preemption,
            cluster.total_kv_blocks > 2048,
        )


def scenarios() -> list[Any]:
    """All recorded runs whose mechanism the engine has; most are slow only because they are many."""
    if GOLDEN is None:
        return []
    found = [
        Scenario(track, row["name"])
        for track in ("scheduling", "routing")
        for row in json.loads((GOLDEN / track / "index.json").read_text())["scenarios"]
    ]
    found = [each for each in found if config.unsupported(each.recorded["config"]) is None]
    first: dict[str, Scenario] = {}
    for each in sorted(found, key=lambda each: each.name):
        first.setdefault(each.family, each)
    fast = {first[family] for family in FAST_FAMILIES if family in first}
    return [
        pytest.param(each, id=each.name, marks=[] if each in fast else pytest.mark.slow)
        for each in sorted(found, key=lambda each: each.grouping)
    ]


# Sizes that serve most runs under pressure, so that they share compilations.
SIZES = Options(num_chains=8, num_blocks=2048, list_blocks=128, num_shared_blocks=64)


def run(scenario: Scenario, options: Options = SIZES) -> RunRecord:
    cluster = scenario.cluster
    table = from_golden(scenario.workload(), cluster.block_size_in_tokens)
    return simulate(cluster, table, options)


def assert_arrays_equal(record: RunRecord, scenario: Scenario) -> None:
    expected = scenario.arrays()
    steps = expand_steps(record, scenario.cluster.block_size_in_tokens)
    for name in REQUEST_ARRAYS:
        np.testing.assert_array_equal(getattr(record.requests, name), expected[name], err_msg=name)
    for name in STEP_ARRAYS:
        np.testing.assert_array_equal(getattr(steps, name), expected[name], err_msg=name)


def assert_metrics_equal(record: RunRecord, scenario: Scenario) -> None:
    recorded, cluster = scenario.recorded, scenario.cluster
    totals = metrics.aggregates(record)
    if scenario.family == EXEMPT_FROM_INVERSIONS:
        del totals["priority_inversions"]
    assert_totals_equal(totals, recorded["aggregates"], "aggregates")
    assert_totals_equal(metrics.cluster_json(record), recorded["cluster_json"], "cluster_json")
    assert_totals_equal(metrics.per_slo(record), recorded["per_slo"], "per_slo")
    tables = metrics.instances(record, cluster.kv_cpu_blocks > 0)
    assert_totals_equal(tables, recorded["instances"], "instances")


@pytest.mark.parametrize("scenario", scenarios())
def test_equals_reference(scenario: Scenario):
    record = run(scenario)
    assert record.outcome in WHOLE
    assert record.num_open_ties == 0
    assert not any(invariants.violations(record).values())
    assert_arrays_equal(record, scenario)
    assert_metrics_equal(record, scenario)
    assert_metrics_agree(record)


def test_the_set_here_is_large_enough():
    """So that an empty folder does not look like success; most runs must be equal, not only refused."""
    if GOLDEN is None:
        pytest.skip("no reference results: neither ../shared/golden nor tests/data/golden is here")
    found = [param.values[0] for param in scenarios()]
    assert len(found) >= 230
    under_pressure = [each for each in found if "kv_rollbacks" in each.recorded["quirk_counters"]]
    assert len(under_pressure) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE_FAILURES)
def test_ends_where_the_reference_fails(golden_dir: Path, case: str):
    name, workload, ending = REFERENCE_FAILURES[case]
    scenario = Scenario("scheduling", name)
    if not (scenario.path.exists() and Scenario("scheduling", workload).path.exists()):
        pytest.skip(f"the reference results here lack {name} or {workload}")
    cluster = scenario.cluster
    requests = Scenario("scheduling", workload).workload()
    record = simulate(cluster, from_golden(requests, cluster.block_size_in_tokens))
    expected = Outcome.LIVELOCK if ending.startswith("livelock") else Outcome.REFERENCE_CRASH
    assert record.outcome == expected


CLOCK_SAMPLE = (
    "cov_horizon_lat_s42",
    "cov_ties_equal_rr1_s42",
    "it00_baseline_s42",
    "cov_kv1500_tiered_s7",
)
ONE_OF_EACH_CLOCK = (("cov_horizon_lat_s42", "int64"), ("cov_ties_equal_rr1_s42", "float64"))


@pytest.mark.parametrize(
    ("name", "clock"),
    rotating(itertools.product(CLOCK_SAMPLE, ("int64", "float64")), always=ONE_OF_EACH_CLOCK),
)
def test_every_clock_gives_the_same(golden_dir: Path, name: str, clock: str):
    scenario = Scenario("scheduling", name)
    assert_arrays_equal(run(scenario, dataclasses.replace(SIZES, clock=clock)), scenario)


LANES_SAMPLE = (
    "scheduling/cov_horizon_lat_s42",
    "scheduling/cov_adm_tokenbucket_s42",
    "scheduling/cov_kv1500_tiered_s7",
    "routing/it05_adaptive_weighted_slo_class_s42",
    "routing/it07_kv_adaptive_kv1000_s42",
    "routing/it15_epoch_adaptive_s42",
)


@pytest.mark.slow
@pytest.mark.parametrize("path", LANES_SAMPLE)
def test_lanes_form_gives_the_same(golden_dir: Path, path: str):
    """All phases masked in one vectorised loop, as on GPUs; slow on CPUs."""
    scenario = Scenario(*path.split("/"))
    assert_arrays_equal(run(scenario, dataclasses.replace(SIZES, form="lanes")), scenario)
