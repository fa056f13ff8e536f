"""Mechanisms that did nothing: by settings, by records, by a run without them; and twins that did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.runs.alternatives import in_one_program
from sweeps.compare.ablation.inert import (
    FEATURES,
    MechanismFinding,
    features_of,
    findings,
    gives_the_same,
    without_each,
)
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import KeptRuns, Recorder, same_lives
from sweeps.runs.requests import workload_of
from sweeps.strategies.arms import arm_of
from sweeps.strategies.file import Strategy, load_strategy
from tests.sweeps.busy import SEEDS, write_strategies

CLASSES = ("critical", "sheddable")


@pytest.fixture(scope="module")
def strategies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Strategy, Strategy]:
    paths = write_strategies(tmp_path_factory.mktemp("busy"))
    return load_strategy(paths[0]), load_strategy(paths[1])


@pytest.fixture(scope="module")
def configs(strategies: tuple[Strategy, Strategy]) -> tuple[ClusterConfig, ClusterConfig]:
    first, second = (
        arm_of(str(one.folder / one.source)).config for one in strategies if one.folder
    )
    return first, second


@pytest.fixture(scope="module")
def kept(strategies: tuple[Strategy, Strategy]) -> KeptRuns:
    experiment = Experiment.on(workload_of(strategies[0]), SEEDS, "reference", ["ttft_p99_ms"])
    return KeptRuns(experiment, Recorder(experiment.names, experiment.measure, CLASSES))


def found(config: ClusterConfig, kept: KeptRuns, *without: Any) -> dict[str, MechanismFinding]:
    entries = findings(config, kept.of(config, "it"), kept, *without)
    return {entry.feature: entry for entry in entries}


def test_every_feature_can_be_left_out() -> None:
    everything = ClusterConfig(
        kv_cpu_blocks=1, admission_policy="slo-gated", slo_priority_bridge=True, slo_prefill=True,
        scheduler="priority-fcfs", priority_policy="load-adaptive", slo_preemption=True,
        max_num_scheduled_tokens=512, snapshot_refresh_interval=5, routing_policy="weighted",
        precise_kv_routing=True,
    )  # fmt: skip
    features = list(features_of(everything, has_scorers=True))
    assert len(features) == len(FEATURES) + 3  # the default scorers
    assert len(list(features_of(everything))) == len(FEATURES)
    for feature in features:
        without = feature.without(everything)
        assert feature.name.startswith("scorer") or not feature.is_present(without)
    assert list(features_of(ClusterConfig())) == []


def test_what_a_priority_strategy_does(
    configs: tuple[ClusterConfig, ClusterConfig],
    strategies: tuple[Strategy, Strategy],
    kept: KeptRuns,
) -> None:
    entries = found(configs[1], kept, strategies[1])
    status = {name: entry.status for name, entry in entries.items()}
    assert status == {
        "CPU KV tier": "inert",
        "priority bridge": "inert",
        "scheduler and priorities": "active",
        "priority policy": "active",
        "growth of priority with age": "inert",
        "chunks": "active",
    }
    tier, bridge = entries["CPU KV tier"], entries["priority bridge"]
    assert tier.is_required and tier.evidence == "records"
    assert not bridge.is_required and bridge.evidence == "settings"
    assert entries["growth of priority with age"].evidence == "a run without it"


@pytest.mark.slow
def test_the_same_mechanism_with_and_without_work(
    configs: tuple[ClusterConfig, ClusterConfig], kept: KeptRuns
) -> None:
    plain, priority = configs
    long_chunks = found(plain.replace(long_prefill_token_threshold=600), kept)["chunks"]
    assert (long_chunks.status, long_chunks.evidence) == ("inert", "a run without it")
    quick = found(priority.replace(slo_age_weight=1e-3, slo_threshold_sheddable=0), kept)
    assert quick["growth of priority with age"].status == "active"
    gate = plain.replace(admission_policy="slo-gated", slo_gated_threshold=1e6)
    assert found(gate, kept)["admission gate"].status == "inert"
    narrow = found(gate.replace(slo_gated_threshold=1.0), kept)["admission gate"]
    assert narrow.status == "active" and "seeds" in narrow.reason
    by_class = plain.replace(slo_prefill=True, slo_prefill_critical=256, slo_prefill_sheddable=256)
    same = found(by_class, kept)["chunks by class"]
    assert (same.status, same.evidence) == ("inert", "settings")
    alone = found(plain.replace(priority_policy="slo-tiered"), kept)["priority policy"]
    assert alone.status == "inert"  # fcfs does not look at it


def test_without_runs_the_records_decide_or_nothing_does(
    configs: tuple[ClusterConfig, ClusterConfig], kept: KeptRuns
) -> None:
    config = configs[1]
    entries = findings(config, kept.of(config, "it"), None)
    status = {entry.feature: entry.status for entry in entries}
    assert status["CPU KV tier"] == status["priority bridge"] == "inert"
    assert status["chunks"] == status["priority policy"] == "unknown"


def test_runs_are_the_same_only_if_all_are_whole(
    configs: tuple[ClusterConfig, ClusterConfig], kept: KeptRuns
) -> None:
    first, second = (kept.of(config, "") for config in configs)
    assert same_lives(first, first) and not same_lives(first, second)
    assert not same_lives([RunSummary(Outcome.LIVELOCK)], [RunSummary(Outcome.LIVELOCK)])
    failed = [RunSummary(Outcome.LIVELOCK)] * len(SEEDS)
    entries = findings(configs[1], failed, kept)
    assert {entry.status for entry in entries} == {"unknown", "inert"}


@pytest.mark.filterwarnings("ignore:step times stay")
def test_settings_that_amount_to_the_same() -> None:
    config = ClusterConfig()
    assert gives_the_same(config, config.replace(slo_priority_bridge=True, model="another"))
    assert not gives_the_same(config, config.replace(num_instances=2))
    assert not gives_the_same(config, config.replace(scheduler="sjf"))
    assert not gives_the_same(config, config.replace(max_num_scheduled_tokens=512))
    assert not gives_the_same(config, config.replace(block_size_in_tokens=32))


def test_arms_without_a_mechanism_share_the_program_of_the_arms() -> None:
    arms = [
        ClusterConfig(routing_policy=router, long_prefill_token_threshold=256)
        for router in ("round-robin", "least-loaded")
    ]
    without = [one for arm in arms for one in without_each(arm)]
    assert [one.long_prefill_token_threshold for one in without] == [0, 0]
    shared = in_one_program([*arms, *without])
    routers = [shared[config].routing for config in (*arms, *without)]
    assert [one.which for one in routers] == [0, 1, 0, 1]
    assert len({one.function() for one in routers}) == 1


def test_paths_of_the_scene(tmp_path: Path) -> None:
    assert [load_strategy(path).name for path in write_strategies(tmp_path)] == [
        "plain",
        "first-class",
    ]
