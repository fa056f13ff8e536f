"""A tree built from one map and checked on another, both made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_jax.errors import ConfigError
from papers.two_tracks import tables
from papers.two_tracks.tables import NONE, RobustnessMap

OBJECTIVE = "ttft_p99_ms"
ARMS = ("calm", "gated")
LIMIT = "reject_rate<=0.3"
AXES = {
    "arrival_cv": 1.0,
    "kv_blocks": 2000,
    "kv_cpu_blocks": 0,
    "instances": 8,
    "shape": "orth",
    "step_constant": 6910.42,
}
RATES = (200, 300, 400, 500, 600, 700, 1000, 1200, 1400, 1600, 1800, 2000)


def cell(rate: float, calm: float, gated: float, gated_breaks: str = "") -> dict[str, Any]:
    values = {"calm": calm, "gated": gated}
    found: dict[str, Any] = {"rate": rate, **AXES}
    for arm in ARMS:
        found |= {f"{arm}: {OBJECTIVE}": values[arm], f"{arm}: breaks": "", f"{arm}: failures": ""}
    return found | {"gated: breaks": gated_breaks}


def map_of(folder: Path, name: str, cells: list[dict[str, Any]], seeds: list[int]) -> RobustnessMap:
    document = {"strategies": ARMS, "objective": OBJECTIVE, "seeds": seeds, "cells": cells}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return RobustnessMap(path)


@pytest.fixture
def built(tmp_path: Path) -> RobustnessMap:
    """Calm below 1,000 requests/s, gated from there on."""
    cells = [cell(rate, 50, 60) if rate < 1000 else cell(rate, 400, 100) for rate in RATES]
    return map_of(tmp_path, "built", cells, [1, 2])


def test_the_first_arm_near_the_best_is_taken(built: RobustnessMap) -> None:
    assert built.label(cell(1, 50, 60)) == "calm"
    assert built.label(cell(1, 104, 100)) == "calm"  # within 5 %
    assert built.label(cell(1, 106, 100)) == "gated"
    assert built.label(cell(1, 106, 100, LIMIT)) == "calm"  # the better one breaks a constraint
    failed = cell(1, 106, 100, LIMIT) | {"calm: failures": "LIVELOCK"}
    assert built.label(failed) == NONE


def test_the_tree_is_judged_on_the_other_cells(built: RobustnessMap, tmp_path: Path) -> None:
    assert sorted(rule.label for rule in built.rules.leaves) == ["calm", "gated"]
    cells = [cell(650, 50, 60), cell(1900, 300, 100), cell(2500, 300, 100, LIMIT)]
    other = map_of(tmp_path, "other", cells, [3, 4])
    tables.check_disjoint(built, other)
    tree, calm, gated = tables.check_rows(built, other)
    # the tree takes `gated` where it breaks the constraint, so one of three cells is not feasible
    assert (tree["cells"], tree["feasible"], tree["best or within 5 %"]) == ("3", "2", "2")
    assert (calm["feasible"], calm["best or within 5 %"]) == ("3", "2")
    assert calm["worst excess %"] == "200.0"
    assert (gated["feasible"], gated["mean excess %"]) == ("2", "10.0")
    found = {row["recommended"]: row for row in tables.rule_rows(built, other)}
    assert (found["calm"]["check cells"], found["gated"]["check cells"]) == ("1", "2")
    assert (found["calm"]["cells"], found["calm"]["with that label"]) == ("6", "6")


def test_a_check_on_what_the_tree_was_built_from_is_refused(
    built: RobustnessMap, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="share seeds"):
        tables.check_disjoint(built, map_of(tmp_path, "a", [cell(750, 1, 2)], [2, 3]))
    with pytest.raises(ConfigError, match="share cells"):
        tables.check_disjoint(built, map_of(tmp_path, "b", [cell(500, 1, 2)], [5]))
