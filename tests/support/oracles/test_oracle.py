"""The oracle against recorded runs of the reference; it is trusted elsewhere because of this."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.oracles import precise_index
from tests.support.oracles.oracle import (
    FINISHED,
    Cluster,
    NotSupported,
    requests_of_workload,
    simulate,
)

SCENARIOS = {
    "plain": "scheduling/it00_baseline_s42",
    "all five scorers, three classes": "scheduling/cov_scorer_all5_s42",
    "two latencies and a horizon": "scheduling/cov_horizon_lat_s42",
    "token bucket": "scheduling/cov_adm_tokenbucket_s42",
    "old KV figures": "scheduling/cov_stale100ms_s42",
    "load-adaptive priority": "scheduling/cov_prio_loadadaptive_lowgap_s42",
    "preemption, roll-back, revisited victims": "scheduling/cov_kv1300_single_tier_s42",
    "CPU tier": "scheduling/cov_kv1300_tiered_s42",
    "slow CPU tier": "scheduling/cov_kv1400_tiered_slow_s42",
    "evicting the lowest priority": "scheduling/cov_kv1200_slopreempt_nopfx_s42",
    "overshooting progress": "scheduling/it09_kv1500_sloPre1_s44",
    "ties and two step chains": "scheduling/cov_ties_equal_rr1_s42",
    "some prompts larger than the cache": "scheduling/cov_kv120_some_dropped_s42",
    "all prompts larger than the cache": "scheduling/cov_kv33_all_dropped_s42",
    "full router index": "scheduling/cov_router_lru_s42",
    "sessions": "scheduling/cov_multiturn_s42",
    "whole prompts repeated": "scheduling/cov_traces_repeated_pa_kv400_s42",
    "no output tokens": "scheduling/cov_traces_zero_output_one_s42",
    "overlapping steps": "routing/it21_prefill_pool_r400_s42",
    "gate on the longest queue": "routing/it11_compound_pa3qd2_r2000_s42",
    "saved prefill against queue": "routing/it04_cost_benefit_s42",
    "budgets of classes": "routing/it04_slo_headroom_s123",
    "weights by class": "routing/it05_adaptive_weighted_slo_class_s42",
    "free KV blocks": "routing/it06_kv_pressure_scorer_kv1000_s42",
    "weights by KV use": "routing/it07_kv_adaptive_kv1000_s42",
    "predictive admission": "routing/it14_predictive_admission_s42",
    "weights by epoch": "routing/it15_epoch_adaptive_s42",
    "precise routing": "routing/it20_precise_kv2000_g10_s42",
}

# Runs that stopped the reference: the configuration of a recorded run, the requests of another.
REFERENCE_FAILURES = {
    "prefill slice": (
        "cov_kv1400_tiered_s42",
        "cov_kv1400_single_tier_s7",
        "crash: slice bounds out of range [448:256]",
    ),
    "output index": (
        "it09_kv1500_sloPre1_s43",
        "it07_kv2000_cpu0_baseline_s42",
        "crash: index out of range [116] with length 93",
    ),
    "no end": (
        "cov_kv1100_prefix_single_s42",
        "cov_kv1300_prefix_single_s7",
        "livelock: 10000 steps without completion or net progress",
    ),
}


def load_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        pytest.skip(f"the reference results here lack {path.name}")
    return json.loads(path.read_text())


def load_workload(track_dir: Path, name: str) -> dict[str, np.ndarray]:
    path = track_dir / "workloads" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"the reference results here lack {path.name}")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.golden
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_equals_recorded_run(golden_dir: Path, scenario: str):
    track, name = scenario.split("/")
    recorded = load_json(golden_dir / track / "scenarios" / f"{name}.json")
    workload = load_workload(golden_dir / track, recorded["workload"])

    result = simulate(workload, recorded["config"], profile=track)

    assert result.outcome == FINISHED
    arrays = result.requests | result.steps
    with np.load(golden_dir / track / "scenarios" / f"{name}.npz") as expected:
        for field in expected.files:
            assert arrays[field].dtype == expected[field].dtype, field
            np.testing.assert_array_equal(arrays[field], expected[field], err_msg=field)
    assert_totals_equal(result.aggregates, recorded["aggregates"])
    for totals, recorded_totals in zip(result.instances, recorded["instances"], strict=True):
        assert_totals_equal(totals, recorded_totals)


@pytest.mark.golden
def test_precise_routing_hears_as_often_as_recorded(golden_dir: Path):
    name = "it20_precise_kv2000_g10_s42"
    recorded = load_json(golden_dir / "routing" / "scenarios" / f"{name}.json")
    workload = load_workload(golden_dir / "routing", recorded["workload"])
    cluster = Cluster(requests_of_workload(workload), recorded["config"], "routing")
    precise_index.wire(cluster)
    cluster.run()
    heard = sum((each.kv.gpu.events.counts for each in cluster.instances), Counter())
    quirks = recorded["quirk_counters"]
    assert heard == {
        "allocations": quirks["precise_allocation_events"],
        "evictions": quirks["precise_eviction_events"],
        "removals": quirks["precise_index_removals"],
    }


def assert_totals_equal(totals: dict[str, Any], recorded: dict[str, Any]) -> None:
    for name, value in totals.items():
        if isinstance(value, float):
            assert value == pytest.approx(recorded[name], rel=1e-12, abs=0), name
        else:
            assert value == recorded[name], name


@pytest.mark.golden
@pytest.mark.parametrize(
    ("configured_as", "requests_of", "outcome"),
    REFERENCE_FAILURES.values(),
    ids=REFERENCE_FAILURES.keys(),
)
def test_failure_of_the_reference_is_an_outcome(
    golden_dir: Path, configured_as: str, requests_of: str, outcome: str
):
    scenarios = golden_dir / "scheduling" / "scenarios"
    config = load_json(scenarios / f"{configured_as}.json")["config"]
    workload_name = load_json(scenarios / f"{requests_of}.json")["workload"]
    workload = load_workload(golden_dir / "scheduling", workload_name)
    assert simulate(workload, config).outcome == outcome


@pytest.mark.golden
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("roofline", True),
        ("priority-policy", "slo-class"),
        ("admission-policy", "predictive-slo"),
        ("routing-policy", "kv-adaptive"),
        ("routing-scorers", "kv-pressure:1"),
        ("scheduler", "lifo"),
    ],
)
def test_unknown_behaviour_is_refused(golden_dir: Path, flag: str, value: object):
    recorded = load_json(golden_dir / "scheduling" / "scenarios" / "it00_baseline_s42.json")
    workload = load_workload(golden_dir / "scheduling", recorded["workload"])
    with pytest.raises(NotSupported, match=flag):
        simulate(workload, recorded["config"] | {flag: value})
