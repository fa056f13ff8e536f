"""Write scenario overlays of llm-d-benchmark, and the experiment that runs all arms on one workload."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from sweeps.promote.checks.documents import TargetTypes
from sweeps.promote.configs.engine import command_of
from sweeps.promote.configs.picker import FILE
from sweeps.promote.maps.rows import CLASS_PRIORITY, objective_name
from sweeps.promote.store import data_file, yaml_text

SCENARIO = "guides/optimized-baseline"  # of the pinned llm-d-benchmark
POD_MEMORY_GIB = 64  # of a decode pod in the scenario, without a CPU tier
LEAST_SCRAPE_US = 50_000
_WHOLE = (
    "pluginsCustomConfig",
    "flags",
    "inferenceObjectives",
    "nodeSelector",
)  # keys below have dots, or are lists
_NODES = {  # by the GPU's name in the simulator: the product label of its nodes
    "H100": "NVIDIA-H100-80GB-HBM3",
    "H200": "NVIDIA-H200",
    "A100-80": "NVIDIA-A100-SXM4-80GB",
    "A100-SXM": "NVIDIA-A100-SXM4-80GB",
    "L40S": "NVIDIA-L40S",
    "B200": "NVIDIA-B200",
}


def class_priorities(classes: Sequence[str], is_by_class: bool) -> dict[str, int]:
    """Return priorities of the classes' objectives: their own, or one for all, so that they share a band."""
    return {name: CLASS_PRIORITY[name] if is_by_class else 0 for name in classes}


def overlay_of(
    config: ClusterConfig,
    picker: Mapping[str, Any],
    flags: Mapping[str, Any],
    priorities: Mapping[str, int],
    target: TargetTypes,
    image: str,
) -> dict[str, Any]:
    """Return what an arm sets in the scenario, in full.

    Args:
        config: of the arm.
        picker: configuration of the endpoint picker.
        flags: of the engine.
        priorities: of the classes' objectives.
        target: what the version of the picker registers.
        image: of the picker with the promotion's plugins; empty for the scenario's own.
    """
    decode: dict[str, Any] = {
        "parallelism": {"tensor": config.tp, "data": config.dp},
        **_resources(flags),
        "vllm": {"customCommand": command_of(flags)},
    }
    counts = _replicas(config)
    prefill = (
        {"prefill": {"enabled": True, "replicas": counts["prefill"], **decode}}
        if counts["prefill"]
        else {}
    )
    return {
        "model": _model(config),
        "affinity": {"enabled": True, "nodeSelector": _nodes(config.hardware)},
        "vllmCommon": {"flags": {"enforceEager": False}},
        "decode": {"replicas": counts["decode"], **decode},
        **prefill,
        "router": {
            "epp": {
                "replicas": config.num_gateways,
                **({"image": _image(image)} if image else {}),
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


def _model(config: ClusterConfig) -> dict[str, Any]:
    """Return the model that is loaded and the name that it is served under, which are one."""
    known = data_file("configs/data/models.yaml").get(config.model)
    name = known["id"] if known else config.model
    length = {"maxModelLen": config.max_model_len} if config.max_model_len else {}
    return {
        "name": name,
        "shortName": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63],
        "path": f"models/{name}",
        "huggingfaceId": name,
        "blockSize": config.block_size_in_tokens,
        "gpuMemoryUtilization": config.gpu_memory_utilization,
        **length,
    }


def _nodes(hardware: str) -> dict[str, str]:
    return {"nvidia.com/gpu.product": _NODES.get(hardware, hardware)}


def _image(image: str) -> dict[str, str]:
    path, _, tag = image.rpartition(":")
    registry, _, repository = path.rpartition("/")
    return {"registry": registry, "repository": repository, "tag": tag}


def _resources(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memory of a pod that holds the CPU tier beside what the scenario gives it."""
    tier = flags.get("kv-offloading-size")
    if not tier:
        return {}
    memory = f"{POD_MEMORY_GIB + math.ceil(tier)}Gi"
    return {"resources": {kind: {"memory": memory, "cpu": "16"} for kind in ("limits", "requests")}}


def _replicas(config: ClusterConfig) -> dict[str, int]:
    if not config.instances:
        return {"decode": config.num_instances, "prefill": 0}
    prefill = sum(group.count for group in config.instances if group.role == "prefill")
    return {"decode": config.num_instances - prefill, "prefill": prefill}


def _router_flags(
    config: ClusterConfig, picker: Mapping[str, Any], target: TargetTypes
) -> dict[str, str]:
    flags = {"v": "2"}
    types = [target.plugins.get(plugin["type"]) for plugin in picker["plugins"]]
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
    name: str,
    about: str,
    profile: tuple[str, str],
    constants: Mapping[str, Any],
    arms: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return an experiment: one setup for each arm, on top of what all have, under one profile of a harness."""
    harness, file = profile
    return {
        "experiment": {"name": name, "description": about, "harness": harness, "profile": file},
        "setup": {
            "constants": dict(constants),
            "treatments": [{"name": arm} | dict(keys) for arm, keys in arms.items()],
        },
    }
