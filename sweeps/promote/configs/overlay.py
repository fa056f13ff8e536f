"""Write scenario overlays of llm-d-benchmark, their Kubernetes objects, and the experiment that runs all arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from sweeps.promote.checks.documents import TargetTypes
from sweeps.promote.configs.engine import MAX_MODEL_LEN, command_of
from sweeps.promote.configs.picker import FILE
from sweeps.promote.maps.rows import CLASS_LABEL, CLASS_PRIORITY
from sweeps.promote.texts import yaml_text

POOL, PICKER, APP_LABEL = "simulated-pool", "simulated-pool-epp", "llm-d.ai/guide"
GUIDE = "optimized-baseline"
MODEL_PORT, PICKER_PORT = 8000, 9002


def objective_name(slo_class: str) -> str:
    """Return the objective that the header x-llm-d-inference-objective names for a class."""
    return f"slo-{slo_class}"


def class_priorities(classes: Sequence[str], is_by_class: bool) -> dict[str, int]:
    """Return priorities of the classes' objectives: their own, or one for all, so that they share a band."""
    return {name: CLASS_PRIORITY[name] if is_by_class else 0 for name in classes}


def objectives(target: TargetTypes, priorities: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return one InferenceObjective for each class."""
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
    """Return the InferencePool of the objectives."""
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


SCENARIO = "guides/optimized-baseline"  # of the pinned llm-d-benchmark
LEAST_SCRAPE_US = 50_000
_WHOLE = (
    "pluginsCustomConfig",
    "flags",
    "inferenceObjectives",
)  # keys below have dots, or are lists


def overlay_of(
    config: ClusterConfig,
    picker: Mapping[str, Any],
    flags: Mapping[str, Any],
    priorities: Mapping[str, int],
    target: TargetTypes,
) -> dict[str, Any]:
    """Return what an arm sets in the scenario, in full."""
    counts = _replicas(config)
    prefill = (
        {"prefill": {"enabled": True, "replicas": counts["prefill"]}} if counts["prefill"] else {}
    )
    return {
        "model": {
            "name": config.model,
            "blockSize": config.block_size_in_tokens,
            "maxModelLen": MAX_MODEL_LEN,
        },
        "vllmCommon": {"flags": {"enforceEager": False}},
        "decode": {
            "replicas": counts["decode"],
            "parallelism": {"tensor": config.tp},
            "vllm": {"customCommand": command_of(flags)},
        },
        **prefill,
        "router": {
            "epp": {
                "replicas": 1,
                "flags": _router_flags(config, picker, target),
                "pluginsConfigFile": FILE,
                "pluginsCustomConfig": {FILE: yaml_text(dict(picker))},
            },
            "inferenceObjectives": [
                {"name": objective_name(name), "priority": priority}
                for name, priority in priorities.items()
            ],
        },
    }


def _replicas(config: ClusterConfig) -> dict[str, int]:
    if not config.instances:
        return {"decode": config.num_instances, "prefill": 0}
    prefill = sum(group.count for group in config.instances if group.role == "prefill")
    return {"decode": config.num_instances - prefill, "prefill": prefill}


def _router_flags(
    config: ClusterConfig, picker: Mapping[str, Any], target: TargetTypes
) -> dict[str, str]:
    flags = {"v": "2"}
    types = [target.plugins.get(one["type"]) for one in picker["plugins"]]
    if target.alpha_flag and any(one is not None and one.stability == "Alpha" for one in types):
        flags[target.alpha_flag] = "true"
    interval = max(config.snapshot_refresh_interval, config.load_refresh_interval)
    if interval:
        flags["refresh-metrics-interval"] = f"{max(interval, LEAST_SCRAPE_US) // 1000}ms"
    return flags


def changed(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an overlay that are not the base's; mappings are merged by the benchmark, lists replaced."""
    found: dict[str, Any] = {}
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            part = changed(base[key], value)
            if part:
                found[key] = part
        elif base.get(key) != value:
            found[key] = value
    return found


def dotted(overlay: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return an overlay as the dotted keys of an experiment."""
    found: dict[str, Any] = {}
    for key, value in overlay.items():
        if isinstance(value, Mapping) and key not in _WHOLE:
            found |= dotted(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def experiment_of(
    name: str, overlays: Mapping[str, Mapping[str, Any]], baseline: str
) -> dict[str, Any]:
    """Return one setup for each arm; the baseline's keys are constants, so an arm lists what it changes."""
    arms: Sequence[str] = list(overlays)
    return {
        "experiment": {
            "name": name,
            "description": f"Arms {', '.join(arms)} on the scenario {SCENARIO}.",
            "harness": "inference-perf",
            "profile": "shared_prefix_synthetic.yaml",
        },
        "setup": {
            "constants": dotted(overlays[baseline]),
            "treatments": [
                {"name": arm} | ({} if arm == baseline else dotted(overlays[arm])) for arm in arms
            ],
        },
    }
