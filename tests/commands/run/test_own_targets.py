"""Bounds of single clients (`slo_target_us`) in the gateway's queue, against BLIS's figures (f90a1e3a)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.run import main
from blis_jax.workload.table import FURTHER

RUN = ["--model", "meta-llama/llama-3.1-8b-instruct", "--profile", AUGUST, "--flow-control"]
RUN += ["--saturation-detector", "concurrency", "--results-path", "r.json", "--overwrite"]


POISSON, GAMMA = "arrival: {process: poisson}", "arrival: {process: gamma, cv: 2}"


def lengths(prompt: int) -> str:
    return (
        f"input_distribution: {{type: exponential, params: {{mean: {prompt}}}}}, "
        "output_distribution: {type: exponential, params: {mean: 40}}}"
    )


OPEN = f"""
version: "2"
category: language
seed: 11
aggregate_rate: 60
num_requests: 24
clients:
  - {{id: a, slo_class: standard, slo_target_us: 400000, tenant_id: t0, rate_fraction: 0.4, {POISSON}, {lengths(300)}
  - {{id: b, slo_class: standard, slo_target_us: 50000, tenant_id: t0, rate_fraction: 0.3, {GAMMA}, {lengths(600)}
  - {{id: c, tenant_id: t0, slo_class: standard, rate_fraction: 0.3, {GAMMA}, {lengths(600)}
cohorts:
  - {{id: d, population: 2, slo_class: critical, slo_target_us: 10000, rate_fraction: 0.2, {POISSON}, {lengths(200)}
"""
CLOSED = f"""
version: "2"
category: language
seed: 12
aggregate_rate: 60
num_requests: 16
clients:
  - {{id: a, slo_class: standard, slo_target_us: 400000, concurrency: 3, {lengths(300)}
  - {{id: b, slo_class: standard, slo_target_us: 50000, concurrency: 2, {lengths(600)}
"""
CASES = {  # options, and BLIS's mean E2E in ms; without the bounds it is 1650.9 and 1076.8
    "open": (OPEN, "--max-concurrency 2", 1543.892125),
    "beside those of classes": (
        OPEN,
        "--max-concurrency 2 --slo-targets standard=100000",
        1822.858875,
    ),
    "closed": (CLOSED, "--max-concurrency 1", 998.206625),
}


@pytest.mark.parametrize("case", CASES)
def test_the_queue_goes_by_the_clients_bounds(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, options, e2e_ms = CASES[case]
    Path("w.yaml").write_text(text)
    words = ["--dispatch-order", "slo-deadline", "--workload-spec", "w.yaml", *options.split()]
    assert main([*RUN, *words]) == 0
    assert json.loads(Path("r.json").read_text())["e2e_mean_ms"] == pytest.approx(e2e_ms, rel=1e-12)


def test_bounds_are_in_no_program_that_does_not_go_by_them() -> None:
    assert "slo_target_us" in FURTHER
    assert not ClusterConfig(dispatch_order="slo-deadline").goes_by_targets
    assert not ClusterConfig(flow_control=True).goes_by_targets
    assert ClusterConfig(flow_control=True, dispatch_order="slo-deadline").goes_by_targets
