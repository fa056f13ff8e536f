"""Pools of `blis-2026-08` beside other mechanisms: every request as BLIS (f90a1e3a) has it.

`tests/data/pools_of_blis.json` has its options, policy files and results of small runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_jax.cluster.config import AUGUST
from blis_jax.run import main

DATA = Path(__file__).parents[2] / "data" / "pools_of_blis.json"
RUNS: dict[str, dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
MODEL = ["--profile", AUGUST, "--model", "meta-llama/llama-3.1-8b-instruct", "--hardware", "H100"]
COLUMNS = ("requestID", "handled_by", "ttft_ms", "e2e_ms", "scheduling_delay_ms")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_equals_blis(name: str, tmp_path: Path) -> None:
    run, results, policy = RUNS[name], tmp_path / "results.json", tmp_path / "policy.yaml"
    line = [*MODEL, *run["options"].split(), "--metrics-path", str(results)]
    if run["policy"]:
        policy.write_text(run["policy"], "utf-8")
        line += ["--policy-config", str(policy)]
    assert main(line) == 0
    found = json.loads(results.read_text("utf-8"))
    rows = [[row[column] for column in COLUMNS] for row in found.get("requests") or []]
    assert sorted(rows) == sorted(run["rows"])
    assert {key: found[key] for key in run["totals"]} == run["totals"]


# KV moves at 0.01 GB/s until the horizon cuts the last of it
CUT = "--num-instances 2 --prefill-instances 1 --decode-instances 1 --pd-decider always --pd-transfer-bandwidth 0.01"
CUT += " --pd-transfer-contention --num-requests 12 --rate 4 --prompt-tokens 120 --prompt-tokens-stdev 90"
CUT += " --output-tokens 20 --output-tokens-stdev 15 --scheduler priority-fcfs --horizon 5000000"
OF_PARTS = """\
=== Anomaly Counters ===
Priority Inversions: 5
HOL Blocking Events: 0
Rejected Requests (Admission): 0
Rejected Requests (Routing): 0
Dropped Unservable: 0
Timed Out Requests: 0
Length-Capped Requests: 0
=== PD Metrics ===
Disaggregated Requests: 5
Dropped at Decode KV: 0
Prefill Throughput: 2.4020 sub-req/s
Decode Throughput: 0.8007 sub-req/s
Load Imbalance Ratio: 3.0000
Parent TTFT (us): mean=1228358.2 p50=1280787.0 p95=2025277.5 p99=2100775.5
KV Transfer Duration (us): mean=1719715.0 p50=1468057.0 p95=3439379.6 p99=3707815.1
Peak Concurrent Transfers: 9
Mean Transfer Queue Depth: 5.0000
"""


@pytest.mark.slow
def test_parts_of_requests_count_as_in_blis(capsys: Any) -> None:
    """Each part is one of its instance's requests, and a transfer that the horizon cuts is none."""
    assert main([*MODEL, *CUT.split()]) == 0
    assert capsys.readouterr().out.endswith(OF_PARTS)
