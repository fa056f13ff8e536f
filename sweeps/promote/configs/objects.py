"""Kubernetes objects of a promotion: the objectives of an arm, and the pool that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeps.promote.checks.kubernetes_rules import CLASS_LABEL
from sweeps.promote.checks.target_types import TargetTypes
from sweeps.promote.maps.classes import CLASS_PRIORITY

POOL, PICKER, APP_LABEL = "simulated-pool", "simulated-pool-epp", "llm-d.ai/guide"
GUIDE = "optimized-baseline"
MODEL_PORT, PICKER_PORT = 8000, 9002


def objective_name(slo_class: str) -> str:
    """The objective that the header x-llm-d-inference-objective names for a class."""
    return f"slo-{slo_class}"


def class_priorities(classes: Sequence[str], is_by_class: bool) -> dict[str, int]:
    """Priorities of the classes' objectives: their own, or one for all, so that they share a band."""
    return {name: CLASS_PRIORITY[name] if is_by_class else 0 for name in classes}


def objectives(target: TargetTypes, priorities: Mapping[str, int]) -> list[dict[str, Any]]:
    """One InferenceObjective for each class."""
    return [
        {
            "apiVersion": target.objective_api_version,
            "kind": "InferenceObjective",
            "metadata": {"name": objective_name(name), "labels": {CLASS_LABEL: name}},
            "spec": {"priority": priority, "poolRef": {"name": POOL}},
        }
        for name, priority in priorities.items()
    ]


def pool(target: TargetTypes) -> dict[str, Any]:
    """The InferencePool of the objectives."""
    return {
        "apiVersion": target.pool_api_version,
        "kind": "InferencePool",
        "metadata": {"name": POOL},
        "spec": {
            "selector": {"matchLabels": {APP_LABEL: GUIDE}},
            "targetPorts": [{"number": MODEL_PORT}],
            "appProtocol": "http",
            "endpointPickerRef": {
                "name": PICKER,
                "port": {"number": PICKER_PORT},
                "failureMode": "FailClose",
            },
        },
    }
