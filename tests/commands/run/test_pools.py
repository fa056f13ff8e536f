"""Pools of `blis-2026-08` beside other mechanisms: every request as BLIS (f90a1e3a) has it.

`tests/data/pools_of_blis.json` has its options, policy files and results of small runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_jax.cluster.config import AUGUST
from blis_jax.commands.run.command import main

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
