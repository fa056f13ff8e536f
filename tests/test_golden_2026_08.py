"""Recorded runs of BLIS's revision of August 2026: every array of every request and step."""

import dataclasses
from typing import Any

import pytest

from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.run.flags import make_parser
from blis_jax.core.outcome import WHOLE
from blis_jax.metrics.reference import cluster_json, instance_block
from blis_jax.records import invariants
from blis_jax.runs.many_runs import simulate
from tests.support.metric_laws import assert_metrics_agree
from tests.support.recorded.golden_2026_08 import (
    SIZES,
    AugustScenario,
    differences,
    printed_sections,
    scenarios_of,
)
from tests.support.recorded.reference_data import assert_totals_equal, find_golden_dir

pytestmark = pytest.mark.golden

FOLDER = find_golden_dir()
FOLDER = FOLDER / "blis_2026_08" if FOLDER else None
if FOLDER and not (FOLDER / "index.json").exists():
    FOLDER = None

FAST = ("lat_l8_h100_tp1_tp_s42", "horizon_cut_s42", "kv_prio_s42", "weighted_prefix4_s42")


def scenarios() -> list[Any]:
    """All recorded runs; most are slow only because they are many."""
    if FOLDER is None:
        return []
    return scenarios_of(FOLDER)


def simulated() -> list[Any]:
    return [
        pytest.param(one, id=one.name, marks=[] if one.name in FAST else pytest.mark.slow)
        for one in scenarios()
    ]


@pytest.mark.parametrize("scenario", simulated())
def test_equals_reference(scenario: AugustScenario):
    record, labels = scenario.labelled_run()
    assert record.outcome in WHOLE
    assert record.num_open_ties == 0
    assert differences(record, scenario) == []
    assert not any(invariants.violations(record).values())
    assert_metrics_agree(record)
    assert_totals_equal(cluster_json(record), scenario.recorded["cluster_json"], "cluster_json")
    each = scenario.recorded["instance_json"]
    for row, block in enumerate(each):
        assert_totals_equal(instance_block(record, row), block, f"instance {row}")
    printed = printed_sections(record, labels, scenario)
    assert printed == scenario.recorded["stdout_tail"].strip()


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"kv_model": "block-level"}, {"form": "lanes"}], ids=str)
def test_pools_are_the_same_in_every_form(change: dict[str, str]):
    """Both memory models, and many lanes in one loop."""
    if FOLDER is None:
        pytest.skip("no reference results of August: ../shared/golden/blis_2026_08 is not here")
    scenario = AugustScenario(FOLDER, "pd_threshold_s42")
    record = scenario.run(dataclasses.replace(SIZES, **change))
    assert differences(record, scenario) == []


@pytest.mark.slow
def test_pools_that_are_cut_off_under_pressure():
    """Steps that pass members over, and first tokens of lives that an eviction ended; BLIS printed these."""
    if FOLDER is None:
        pytest.skip("no reference results of August: ../shared/golden/blis_2026_08 is not here")
    line = (
        "--num-instances 2 --total-kv-blocks 400 --max-model-len 1300 --preemption-policy priority"
    )
    line += " --model meta-llama/llama-3.1-8b-instruct --profile blis-2026-08 --horizon 3000000"
    line += " --prefill-instances 1 --decode-instances 1 --pd-decider always"
    table = AugustScenario(FOLDER, "kv_prio_s42").table()
    record = simulate(cluster_config(make_parser().given(line.split())), table, SIZES, 42)
    assert not any(invariants.violations(record).values())
    printed = instance_block(record, 1)
    assert printed["itl_mean_ms"] == 7.459535959415099
    assert printed["ttft_mean_ms"] == 1915.6498000000001


def test_the_set_here_is_large_enough():
    """So that an empty folder does not look like success."""
    if FOLDER is None:
        pytest.skip("no reference results of August: ../shared/golden/blis_2026_08 is not here")
    assert len(scenarios()) >= 146
