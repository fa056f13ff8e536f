"""Hypotheses that were edited are checked again."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import yaml

from sweeps.promote.checks.findings import findings_of
from sweeps.promote.hypotheses.stage import hypothesis_files
from sweeps.promote.maps.stage import DICTIONARY
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.promote.promotions import TARGET, maps_of, promotion, read_yaml

pytestmark = pytest.mark.usefixtures("known_saturation")


@functools.cache
def made() -> tuple[str, str]:
    """The dictionary and the hypotheses."""
    given = promotion("iter00_baseline")
    maps = maps_of("iter00_baseline")
    return maps[DICTIONARY], hypothesis_files(given, maps, REPO_ROOT)["hypotheses.yaml"]


def rules(change: Any) -> list[tuple[str, str]]:
    dictionary, text = made()
    document = read_yaml(text)
    change(document["hypotheses"])
    files = {DICTIONARY: dictionary, "hypotheses.yaml": yaml.safe_dump(document)}
    return [(one.rule, one.message) for one in findings_of(files, TARGET)]


def without(name: str) -> Any:
    def change(found: list[dict[str, Any]]) -> None:
        found[:] = [one for one in found if one["id"] != name]

    return change


def test_what_the_stage_makes_is_covered() -> None:
    assert rules(lambda _: None) == []


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("B-lora-affinity", "Map C: lora-affinity"),
        ("B-fresh-snapshots.kv-utilization", "Map B: snapshots.kv_utilization"),
        ("C-guides-flow-control", "guides/flow-control.yaml"),
    ],
)
def test_a_hypothesis_that_was_taken_out_is_missed(name: str, origin: str) -> None:
    ((rule, message),) = rules(without(name))
    assert rule == "not-covered" and origin in message


def test_a_pair_that_is_not_legal_is_found() -> None:
    ((rule, message),) = rules(lambda found: found[0].update(type="Monotonicity"))
    assert rule == "hypothesis-not-allowed" and "does not go with type" in message
