"""Write the deployment of an arm: engine flags, the order of requests as static keys by class, the scenario overlay."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import numbered
from blis_jax.cluster.revisions import SCRAPE_US, aligns_chunks
from blis_jax.policies.contract import Policy
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.promote.llmd.documents import TargetTypes
from sweeps.promote.llmd.roles import MOVES_KV
from sweeps.promote.maps import CLASS_PRIORITY, objective_name, policy_row
from sweeps.promote.promotion import USUAL_WORKLOAD, Promotion, not_mapped
from sweeps.promote.store import data_file, yaml_text
from sweeps.runs.requests import workload_from, workload_of
from sweeps.strategies.moved import known_as

CLASSES = ("critical", "standard", "batch", "sheddable", "background")
_LIKE_SHEDDABLE = ("batch", "sheddable", "background")  # in policies with three classes
STRICT_MS = 10_000_000  # that a unit of priority is worth where priority does not grow with age
BY_PRIORITY = ("priority-fcfs", "priority-cached")
_TIERED = ("slo-tiered", "load-adaptive")


@dataclass(frozen=True)
class StaticOrder:
    """Hold the lead of each class: a request's key is its arrival minus the lead, in ms; the least key goes first."""

    leads_ms: Mapping[str, int]
    is_exact: bool
    note: str

    @property
    def is_by_class(self) -> bool:
        """Return whether the order differs from first come, first served."""
        return len(set(self.leads_ms.values())) > 1


def numbers_of_policy(policy: Policy) -> dict[str, float]:
    """Return a policy's numbers as floats, by field."""
    return {name: float(value) for name, value in vars(policy.values()).items()}


def order_of(promotion: Promotion, config: ClusterConfig) -> StaticOrder | None:
    """Return the static order of a configuration; None for the engine's default, first come first served.

    Raises:
        NotMappedError: neither vLLM nor the router can order requests this way.
    """
    scheduler, name = known_as(config.scheduler), known_as(config.priority_policy)
    if scheduler == "fcfs":
        return None
    if scheduler not in BY_PRIORITY:
        row = policy_row("scheduler", scheduler)
        problem = row.rule if row else "vLLM has no plugins for the order of its queue"
        proposal = row.proposal if row else "use scheduler priority-fcfs with a priority by class"
        raise not_mapped(promotion, "scheduler", f"{scheduler}: {problem}", proposal)
    if name == "constant":
        return None
    offsets, is_exact, note = _offsets_ms(promotion, config)
    if scheduler == "priority-cached":
        is_exact, note = False, f"{note}; the worth of cached blocks is left out"
    return StaticOrder(offsets, is_exact, note)


def _offsets_ms(promotion: Promotion, config: ClusterConfig) -> tuple[dict[str, int], bool, str]:
    """Return each class's lead in ms, whether the order equals the simulated one, and how leads are set."""
    name = known_as(config.priority_policy)
    numbers = numbers_of_policy(numbered(config).priority)
    if name == "slo-based":
        return dict.fromkeys(CLASSES, 0), True, "the order of arrival"
    if name == "slo-class":
        bases = {slo_class: numbers[f"base_{slo_class}"] for slo_class in CLASSES}
        offsets = {key: _worth_ms(base, numbers["age_weight"]) for key, base in bases.items()}
        return offsets, True, "base ÷ age weight"
    if name in _TIERED:
        grace = {"critical": 0.0, "standard": numbers["grace_standard_us"]}
        grace |= dict.fromkeys(_LIKE_SHEDDABLE, numbers["grace_sheddable_us"])
        offsets = {
            slo_class: _worth_ms(base, numbers["age_weight"]) - round(grace[slo_class] / 1000)
            for slo_class, base in _three(numbers, "base_{}").items()
        }
        is_exact = name == "slo-tiered" and not any(grace.values())
        note = "base ÷ age weight" + (" - grace period" if any(grace.values()) else "")
        if name == "load-adaptive":
            note += "; the classes always fully apart"
        return offsets, is_exact, note
    if name == "slo-deadline":
        deadlines = _three(numbers, "deadline_{}_us")
        offsets = {slo_class: -round(value / 1000) for slo_class, value in deadlines.items()}
        return offsets, False, "earliest deadline first, without bases"
    row = policy_row("priority", name)
    problem = (
        row.rule if row else "a queue's key is static, and the priority is a function of a file"
    )
    proposal = row.proposal if row else "use slo-tiered, whose order is a static key"
    raise not_mapped(promotion, "priority_policy", f"{name}: {problem}", proposal)


def _three(numbers: Mapping[str, float], form: str) -> dict[str, float]:
    """Return a number for each class, from a policy that has numbers for three classes only."""
    by_class = {name: numbers[form.format(name)] for name in ("critical", "standard")}
    rest = numbers[form.format("sheddable")]
    return by_class | dict.fromkeys(_LIKE_SHEDDABLE, rest)


def _worth_ms(base: float, age_weight: float) -> int:
    """Return how many ms of age a base priority is worth; the age weight is priority per µs."""
    return round(base / age_weight / 1000) if age_weight > 0 else round(base * STRICT_MS)


GIB = 2**30


def flags_of_engine(promotion: Promotion, config: ClusterConfig) -> dict[str, Any]:
    """Return vLLM's flags by name, in a fixed order; False stands for `--no-…`.

    Raises:
        NotMappedError: vLLM does not support a setting.
    """
    tokens, sequences = config.max_num_scheduled_tokens, config.max_num_running_reqs
    if tokens < sequences:
        problem = (
            f"{tokens} tokens for {sequences} sequences, and vLLM wants at least as many tokens"
        )
        raise not_mapped(
            promotion, "max_num_scheduled_tokens", problem, f"set max_num_running_reqs to {tokens}"
        )
    if config.kv_offload_config.cpu_bytes_to_use:
        problem = "a file of tiers, and this command writes one CPU tier"
        raise not_mapped(promotion, "kv_offload_config", problem, "set kv_cpu_blocks in its place")
    if config.speculative_config.num_speculative_tokens:
        problem = "the drafter's model is not known here"
        raise not_mapped(promotion, "speculative_config", problem, "give it to vLLM by hand")
    flags: dict[str, Any] = {
        "block-size": config.block_size_in_tokens,
        **({"max-model-len": config.max_model_len} if config.max_model_len else {}),
        "tensor-parallel-size": config.tp,
        **({"data-parallel-size": config.dp} if config.dp > 1 else {}),
        **({"all2all-backend": config.moe_comm_backend} if config.moe_comm_backend else {}),
        "gpu-memory-utilization": config.gpu_memory_utilization,
        "max-num-seqs": sequences,
        "max-num-batched-tokens": tokens,
        "enable-chunked-prefill": True,
        "long-prefill-token-threshold": prefill_threshold(promotion, config)[0],
        "enable-prefix-caching": config.enable_prefix_caching,
        **({"mamba-cache-mode": config.mamba_cache_mode} if aligns_chunks(config) else {}),
        "scheduling-policy": "priority" if known_as(config.scheduler) in BY_PRIORITY else "fcfs",
    }
    if config.kv_cpu_blocks:
        flags["kv-offloading-size"] = offload_gib(promotion, config)
        flags["kv-offloading-backend"] = "native"
    return flags


def command_of(flags: Mapping[str, Any]) -> str:
    """Return the whole command line; the scenario's own command can only be replaced, not extended."""
    words = [
        "${accelerator.runtimePreamble}\nvllm serve /model-cache/$MODEL_PATH",
        "--host 0.0.0.0",
        "--served-model-name $MODEL_NAME",
        "--port $VLLM_METRICS_PORT",
        "${accelerator.dtypeArgs}",
        "${accelerator.executionArgs}",
        "--no-enable-log-requests",
        "--disable-uvicorn-access-log",
        "--disable-access-log-for-endpoints=/health,/metrics,/v1/models",
    ]
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words.append(f"--{name} {value}")
    return " \\\n".join(words) + "\n"


def offload_gib(promotion: Promotion, config: ClusterConfig) -> float:
    """Return the CPU memory, in GiB, that holds the CPU tier's blocks over all ranks of an engine."""
    shape = data_file("llmd/data/models.yaml").get(config.model)
    if shape is None:
        problem = f"the KV size of a token of {config.model} is not known"
        proposal = (
            "add the model to sweeps/promote/llmd/data/models.yaml, or set kv_cpu_blocks to 0"
        )
        raise not_mapped(promotion, "kv_cpu_blocks", problem, proposal)
    of_token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * shape["bytes"]
    return round(config.kv_cpu_blocks * config.block_size_in_tokens * of_token / GIB, 3)


def prefill_threshold(promotion: Promotion, config: ClusterConfig) -> tuple[int, bool]:
    """Return the engine's prefill threshold (that of the most frequent class), and whether all classes share it."""
    if not config.slo_prefill:
        return config.long_prefill_token_threshold, True
    by_class = {
        "critical": config.slo_prefill_critical,
        "sheddable": config.slo_prefill_sheddable,
        "standard": config.long_prefill_token_threshold,
    }
    shares = class_shares(workload_of_promotion(promotion))
    merged: dict[str, float] = {}
    for slo_class, share in shares.items():
        key = slo_class if slo_class in by_class else "standard"
        key = "sheddable" if slo_class in ("batch", "background") else key
        merged[key] = merged.get(key, 0.0) + share
    most = max(merged, key=lambda name: (merged[name], name))
    return by_class[most], len({by_class[name] for name in merged}) == 1


def workload_of_promotion(promotion: Promotion, num_requests: int | None = None) -> WorkloadSpec:
    """Return the workload of the strategy's file, with `num_requests` requests if given."""
    strategy = promotion.arm.strategy
    spec = (
        workload_from(USUAL_WORKLOAD) if strategy is None else workload_of(strategy, follows=False)
    )
    return override(spec, num_requests=num_requests) if num_requests else spec


def class_shares(spec: WorkloadSpec) -> dict[str, float]:
    """Return each class's share of the requests; requests without a class count as `standard`."""
    total = sum(client.rate_fraction for client in spec.clients) or 1.0
    shares: dict[str, float] = {}
    for client in spec.clients:
        name = client.slo_class or "standard"
        shares[name] = shares.get(name, 0.0) + client.rate_fraction / total
    return shares or {"standard": 1.0}


SCENARIO = "guides/optimized-baseline"  # of the pinned llm-d-benchmark
POD_MEMORY_GIB = 64  # of a decode pod in the scenario, without a CPU tier
FILE = "custom-plugins.yaml"  # name of the configuration inside the router's chart
# keys whose parts have dots, or are lists
_WHOLE = ("pluginsCustomConfig", "inferenceObjectives", "nodeSelector")
_NODES = {  # by the GPU's name in the simulator: the product label of its nodes
    "H100": "NVIDIA-H100-80GB-HBM3",
    "H200": "NVIDIA-H200",
    "A100-80": "NVIDIA-A100-SXM4-80GB",
    "A100-SXM": "NVIDIA-A100-SXM4-80GB",
    "L40S": "NVIDIA-L40S",
    "B200": "NVIDIA-B200",
}


def class_priorities(classes: Sequence[str], is_by_class: bool) -> dict[str, int]:
    """Return the priority of each class's objective; without `is_by_class` all are 0, so that classes share a band."""
    return {name: CLASS_PRIORITY[name] if is_by_class else 0 for name in classes}


def overlay_of(
    config: ClusterConfig,
    picker: Mapping[str, Any],
    flags: Mapping[str, Any],
    priorities: Mapping[str, int],
    target: TargetTypes,
    image: str,
) -> dict[str, Any]:
    """Return the complete overlay of an arm: every setting that the arm changes in the scenario.

    Args:
        config: the configuration of the arm.
        picker: the configuration of the endpoint picker.
        flags: the flags of the engine.
        priorities: the priorities of the classes' objectives.
        target: the plugin types that the version of the picker registers.
        image: the image of the picker with the promotion's plugins; empty for the scenario's own.
    """
    decode: dict[str, Any] = {
        "parallelism": {"tensor": config.tp, "data": config.dp},
        **_resources(flags),
        "vllm": {"customCommand": command_of(flags)},
    }
    counts = _replicas(config)
    pods = {"prefill": {"enabled": True, "replicas": counts["prefill"], **decode}}
    prefill = pods if counts["prefill"] else {}
    return {
        "model": _model(config),
        "affinity": {"enabled": True, "nodeSelector": _nodes(config.hardware)},
        "vllmCommon": {"flags": {"enforceEager": False}} | (MOVES_KV if prefill else {}),
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
    """Return the model section: the same name serves to load the model and to address it."""
    known = data_file("llmd/data/models.yaml").get(config.model)
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
    """Return the pod's resources: its memory plus that of the CPU tier; empty without a CPU tier."""
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
    if target.alpha_flag and "Alpha" in [kind.stability for kind in types if kind is not None]:
        flags[target.alpha_flag] = "true"
    interval = max(config.snapshot_refresh_interval, config.load_refresh_interval)
    if interval:
        flags["refresh-metrics-interval"] = f"{max(interval, SCRAPE_US) // 1000}ms"
    return flags


def changed(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an overlay that differ from the base; the benchmark merges mappings and replaces lists."""
    changes: dict[str, Any] = {}
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            part = changed(base[key], value)
            if part:
                changes[key] = part
        elif base.get(key) != value:
            changes[key] = value
    for key in base.keys() - other.keys():  # a merge takes nothing away
        if isinstance(base[key], Mapping) and base[key].get("enabled"):
            changes[key] = {"enabled": False}
    return changes


def dotted(overlay: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return an overlay's settings under dotted keys, as experiments need them."""
    keys: dict[str, Any] = {}
    for key, value in overlay.items():
        if isinstance(value, Mapping) and key not in _WHOLE:
            keys |= dotted(value, f"{above}{key}.")
        else:
            keys[f"{above}{key}"] = value
    return keys


def experiment_of(
    name: str,
    about: str,
    profile: tuple[str, str],
    constants: Mapping[str, Any],
    arms: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return an experiment with one setup per arm on top of common settings, and one profile of a harness."""
    harness, file = profile
    return {
        "experiment": {"name": name, "description": about, "harness": harness, "profile": file},
        "setup": {
            "constants": dict(constants),
            "treatments": [{"name": arm} | dict(keys) for arm, keys in arms.items()],
        },
    }
