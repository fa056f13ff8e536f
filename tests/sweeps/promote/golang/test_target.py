"""Manifests of targets: that they hold together, and how formulas become Go and numbers."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from blis_jax.core.types import RequestView, Snapshots
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.contract import GatewayContext, QueueContext
from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.golang import target as targets
from sweeps.promote.texts import target_names


@pytest.mark.parametrize("name", target_names())
def test_a_manifest_holds_together(name: str) -> None:
    target = targets.load(name)
    manifest = target.manifest
    assert re.fullmatch(r"[0-9a-f]{40}", manifest["commit"])
    for path in manifest["signals"]:
        signal = target.signal(path)
        assert signal is not None and signal.readings
        assert set(signal.readings) <= set(target.readings)
        assert all(signal.declared[key] for key in ("metric", "refresh", "simulator"))
    for reading in target.readings.values():
        assert reading.of in ("metrics", "request", "item", "clock", *manifest["attributes"])
    for kind, names in manifest["built_in"].items():
        assert set(names) <= set(registry.NAMES.get(kind, registry.NAMES["scheduler"]))


def test_every_signal_of_a_context_has_a_row() -> None:
    """What a policy may read is mapped, or there is a proposal; fields that carry others or that move are none."""
    inner = {"request": RequestView, "snapshots": Snapshots}
    paths = set()
    for context in (GatewayContext, QueueContext):
        for field in dataclasses.fields(context):
            below = inner.get(field.name)
            names = [one.name for one in dataclasses.fields(below)] if below else []
            paths |= {f"{field.name}.{one}" for one in names} or {field.name}
    manifest = targets.load(DEFAULT_TARGET).manifest
    known = set(manifest["signals"]) | set(manifest["missing"])
    not_signals = {
        "contents",
        "outstanding",
        "came_from",
        "computed_tokens",
        "priority",
        "snapshots.is_active",
    }
    assert paths - known == not_signals


def test_a_formula_is_the_same_in_go_and_in_python() -> None:
    target = targets.load(DEFAULT_TARGET)
    types = {name: one.type for name, one in target.readings.items()}
    pending = target.signal("snapshots.num_pending")
    free = target.signal("snapshots.free_kv_blocks")
    assert pending is not None and free is not None
    assert (
        pending.go("int32", types, str.upper)
        == "int32(max(0, IN_FLIGHT-int64(WAITING)-int64(RUNNING)))"
    )
    given = {
        "in_flight": np.array([7, 2]),
        "waiting": np.array([2, 2]),
        "running": np.array([4, 4]),
    }
    assert pending.values(given).tolist() == [1, 0]
    assert free.go("float64", types, str.upper) == "float64(KV_BLOCKS) * (1 - KV_USAGE)"
    assert free.values({"kv_blocks": np.array([100]), "kv_usage": np.array([0.25])}).tolist() == [
        75.0
    ]


def test_classes_follow_the_priority() -> None:
    signal = targets.load(DEFAULT_TARGET).signal("request.slo_class")
    assert signal is not None
    priorities = np.array([100, 4, 3, 1, 0, -1, -2, -3, -9])
    classes = signal.values({"priority": priorities}).tolist()
    assert classes == [1, 1, 2, 2, 0, 4, 3, 5, 3]


def test_an_unknown_target_is_a_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"target 'llm-d-router@0.9' is not known; use one of .*did you mean"
    ):
        targets.load("llm-d-router@0.9")
