"""Policy files of BLIS: budgets by the names of tenants, classes that no request has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.commands.august_files import options_of
from blis_jax.commands.cluster_settings import cluster_config, with_shares
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.run import main

MODEL = "meta-llama/llama-3.1-8b-instruct"


def file_of(folder: Path, text: str) -> str:
    (folder / "policy.yaml").write_text(text)
    return str(folder / "policy.yaml")


def test_budgets_have_the_names_of_tenants(tmp_path: Path) -> None:
    found = options_of(file_of(tmp_path, "tenant_budgets: {t1: 0.02, zz: 1, '': 0.5}"))
    assert found == {"tenant_shares": {"t1": 0.02, "zz": 1, "": 0.5}}
    config = with_shares(ClusterConfig(), found["tenant_shares"], ("", "t0", "t1"))
    assert config.tenant_budgets == "2=0.02"  # those without a name have none, as in BLIS
    assert with_shares(config, {}, ()) is config
    with pytest.raises(ConfigError, match="--tenant-budgets: the file of --policy-config has"):
        with_shares(config, {"t1": 0.1}, ("t1",))


@pytest.mark.parametrize("share", ["1.5", "-0.1", "x", "true"])
def test_a_budget_is_a_share(share: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tenant_budgets\.t1"):
        options_of(file_of(tmp_path, f"tenant_budgets: {{t1: {share}}}"))


EMPTY = """
admission: {policy: ~, token_bucket_capacity: ~, slo_priorities: ~}
routing: {policy: ~, scorers: ~}
preemption: ~
node_pools: []
autoscaler: {interval_us: ~}
instance_lifecycle: ~
"""
POWERS = """
admission: {policy: token-bucket, token_bucket_capacity: 1e3, token_bucket_refill_rate: .5E-1}
routing: {policy: weighted, scorers: [{name: queue-depth, weight: 1e0}]}
"""


def test_values_are_those_of_the_fields_of_blis(tmp_path: Path) -> None:
    """Nothing is as if not given, and 1e3 is a number, which is a text for PyYAML."""
    assert options_of(file_of(tmp_path, EMPTY)) == {}
    assert options_of(file_of(tmp_path, POWERS)) == {
        "admission_policy": "token-bucket",
        "token_bucket_capacity": 1000.0,
        "token_bucket_refill_rate": 0.05,
        "routing_policy": "weighted",
        "routing_scorers": "queue-depth:1.0",
    }
    with pytest.raises(ConfigError, match="foo"):
        options_of(file_of(tmp_path, "foo: ~"))
    weighed = "routing: {scorers: [{name: queue-depth, weight: 0.123456789}]}"
    assert options_of(file_of(tmp_path, weighed)) == {"routing_scorers": "queue-depth:0.123456789"}


@pytest.mark.parametrize(
    "text",
    [
        "scheduler: {}",
        "preemption: []",
        "preemption: {policy: lru}",
        "routing: {scorers: 2.5}",
        "routing: 0",
        "admission: {slo_priorities: false}",
        "tenant_budgets: []",
    ],
)
def test_what_blis_s_fields_cannot_hold_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be|got"):
        options_of(file_of(tmp_path, text))


def test_priorities_of_classes_are_those_of_the_admission_that_is_used(tmp_path: Path) -> None:
    """A policy on the command line takes the place of the file's, and the file's priorities are its own, as in BLIS."""
    of_class = "slo_priorities: {batch: 5, critical: -3}"
    usual = {"model": MODEL, "revision": AUGUST}
    folders = [tmp_path / name for name in ("shed", "without", "legacy")]
    parts = ("policy: tier-shed, tier_shed_min_priority: 0, ", "", "policy: gaie-legacy, ")
    for folder in folders:
        folder.mkdir()
    shed, without, legacy = (
        {**usual, "policy_config": file_of(folder, f"admission: {{{part}{of_class}}}")}
        for folder, part in zip(folders, parts, strict=True)
    )
    expected = cluster_config(shed)
    assert cluster_config({**without, "admission_policy": "tier-shed"}) == expected
    assert ("admission.batch", 5) in expected.policy_numbers
    assert cluster_config({**legacy, "admission_policy": "reject-all"}) == cluster_config(
        {**without, "admission_policy": "reject-all"}
    )


def test_where_no_node_has_room_no_instance_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = "{name: p, gpu_type: H100, gpus_per_node: 2, gpu_memory_gib: 80, initial_nodes: 2, max_nodes: 2}"
    policy = file_of(tmp_path, f"node_pools: [{pool}]")
    words = ["--model", MODEL, "--profile", AUGUST, "--tp", "4", "--num-instances", "3"]
    assert main([*words, "--num-requests", "3", "--policy-config", policy]) == 0
    printed = capsys.readouterr().out
    assert "Rejected Requests (Routing): 3" in printed
    assert printed.count("instance_id") == 1


def test_a_file_of_february_has_a_priority_and_no_machines(tmp_path: Path) -> None:
    text = """
admission: {policy: token-bucket, token_bucket_capacity: 900}
routing: {policy: weighted, scorers: [{name: slo-priority, weight: 2}]}
priority: {policy: slo-tiered}
scheduler: priority-fcfs
"""
    given = {"policy_config": file_of(tmp_path, text), "model": MODEL, "token_bucket_capacity": 5.0}
    config = cluster_config(given)
    assert (config.admission_policy, config.priority_policy) == ("token-bucket", "slo-tiered")
    assert (config.scheduler, config.token_bucket_capacity) == ("priority-fcfs", 5.0)
    assert list(config.scorers()) == [("slo-priority", 2.0)]
    for key in (
        "node_pools: []",
        "admission: {gaie_qd_threshold: 1}",
        "preemption: {policy: fcfs}",
    ):
        with pytest.raises(ConfigError, match="is unknown"):
            options_of(file_of(tmp_path, key), is_august=False)


CLIENT = (
    "  - {{id: {}, slo_class: {}, tenant_id: {}, rate_fraction: {}, arrival: {{process: poisson}}, input_distribution: "
    "{{type: exponential, params: {{mean: 300}}}}, output_distribution: {{type: exponential, params: {{mean: 40}}}}}}\n"
)
CLIENTS = (
    ("a", "sheddable", "t2", 0.4),
    ("b", "sheddable", "t1", 0.4),
    ("c", "standard", "t1", 0.2),
)


def test_a_run_rejects_what_blis_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    head = 'version: "2"\ncategory: language\nseed: 11\naggregate_rate: 60\nnum_requests: 60\nclients:\n'
    Path("w.yaml").write_text(head + "".join(CLIENT.format(*client) for client in CLIENTS))
    policy = file_of(tmp_path, "tenant_budgets: {t1: 0.02}")
    words = ["--model", MODEL, "--profile", AUGUST, "--max-num-seqs", "128"]
    assert main([*words, "--workload-spec", "w.yaml", "--policy-config", policy]) == 0
    printed = capsys.readouterr().out
    assert '"completed_requests": 39' in printed  # 21 of 60 are rejected there
    assert '"e2e_mean_ms": 315.62653' in printed


def test_elsewhere_nobody_knows_the_tenants(tmp_path: Path) -> None:
    given = {"policy_config": file_of(tmp_path, "tenant_budgets: {t1: 0.02}"), "variant": AUGUST}
    with pytest.raises(ConfigError, match="which only run knows; give --tenant-budgets"):
        cluster_config({**given, "model": MODEL})


def test_a_class_that_no_request_has_changes_nothing(tmp_path: Path) -> None:
    text = "admission: {policy: tier-shed, slo_priorities: {standart: 2, batch: 1}}"
    with pytest.warns(ConfigWarning, match="'standart' is no SLO class .* did you mean 'standard'"):
        found = options_of(file_of(tmp_path, text))
    assert found["policy_numbers"] == (("priority.batch", 1), ("admission.batch", 1))


def test_a_scorer_for_adapters_counts() -> None:
    given: dict[str, Any] = {"model": MODEL, "routing_policy": "weighted"}
    config = cluster_config({**given, "routing_scorers": "queue-depth:1,lora-affinity:2"})
    assert config.scorers()[-1] == ("lora-affinity", 2.0)
