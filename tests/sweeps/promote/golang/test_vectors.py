"""Test vectors: what they cover, and that what is expected is what the policy decides."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.golang import target as targets
from sweeps.promote.golang.plugins import plugin_of
from sweeps.promote.golang.vectors import vectors_json
from tests.sweeps.promote.golang.rules import rule

pytestmark = pytest.mark.lenient_promotion


@pytest.fixture(scope="module")
def gate() -> dict[str, Any]:
    plugin = plugin_of(rule("admission", "slo-gated"), targets.load(DEFAULT_TARGET))
    text = vectors_json(plugin)
    assert text == vectors_json(plugin)
    document: dict[str, Any] = json.loads(text)
    return document


def test_vectors_are_many_and_degenerate_ones_are_among_them(gate: dict[str, Any]) -> None:
    vectors = gate["vectors"]
    assert len(vectors) >= 1000
    assert {one["size"] for one in vectors} == {0, 1, 4}
    loads = [one["inFlight"] for one in vectors if one["size"] == 4]
    assert any(not any(one) for one in loads)  # empty
    assert any(len(set(one)) == 1 and any(one) for one in loads)  # all equal
    assert any(1 < len(set(one)) <= 3 for one in loads)  # tied
    assert any(max(one) > 10_000 for one in loads)  # huge
    assert {one["set"] for one in vectors} == set(range(len(gate["parameters"])))
    assert {one["priority"] for one in vectors} == set(range(-4, 6))


def test_the_rule_by_hand(gate: dict[str, Any]) -> None:
    """Reject sheddable classes while the mean load is above the threshold."""
    both = set()
    for one in gate["vectors"]:
        threshold = gate["parameters"][one["set"]]["loadThreshold"]
        loads = one["inFlight"]
        is_kept = not loads or one["priority"] >= 0 or sum(loads) / len(loads) <= threshold
        assert one["expected"] == [float(is_kept)]
        both.add((one["priority"] >= 0, is_kept))
    assert both == {(True, True), (False, True), (False, False)}


def test_some_vectors_are_at_the_edge(gate: dict[str, Any]) -> None:
    """One request more or less in the mean of four endpoints changes the decision."""
    edges = 0
    for one in gate["vectors"]:
        threshold = gate["parameters"][one["set"]]["loadThreshold"]
        if one["size"] == 4 and one["priority"] < 0:
            edges += abs(sum(one["inFlight"]) / 4 - threshold) <= 1
    assert edges > 20
