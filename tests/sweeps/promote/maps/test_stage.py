"""The dictionary of one promotion."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.promote.maps.stage import DICTIONARY, PAGE, maps_files
from sweeps.strategies.file import list_library
from tests.sweeps.promote.promotions import MINE, maps_of, promotion, read_yaml


@pytest.mark.parametrize("name", list_library())
def test_every_strategy_has_its_dictionary(name: str) -> None:
    files = maps_of(name)
    document = read_yaml(files[DICTIONARY])
    used = [row["name"] for row in document["map_b"] if row["used"]]
    assert used and all(f"`{signal}`" in files[PAGE] for signal in used)
    policies = [row["policy"] for row in document["map_a"]["policies"] if row["used"]]
    assert any(policy.startswith("scheduler/") for policy in policies)


def test_two_runs_give_the_same_bytes() -> None:
    assert maps_files(promotion("iter13_class_lead@found")) == maps_files(
        promotion("iter13_class_lead@found")
    )


def test_a_signal_that_is_not_read_is_not_marked() -> None:
    document = read_yaml(maps_of("iter13_class_lead")[DICTIONARY])
    used = {row["name"]: row["used"] for row in document["map_b"]}
    assert used["snapshots.effective_load"] and not used["snapshots.kv_utilization"]
    assert {row["id"]: row["used"] for row in document["map_c"]}["prefix-block-64"]


def test_a_policy_from_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    given = f"iter00_baseline:routing_scorers={tmp_path}/mine.py:calm~1"
    document = read_yaml(maps_files(promotion(given))[DICTIONARY])
    assert document["policies_from_files"] == [["scorer", "mine.py:calm"]]
    used = {row["name"] for row in document["map_b"] if row["used"]}
    assert "snapshots.batch_size" in used
