"""Flags of one vLLM engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.files.strict_yaml import read_mapping
from blis_jax.workload.spec import WorkloadSpec
from sweeps.promote.configs.ordering import BY_PRIORITY
from sweeps.promote.configs.places import not_mapped
from sweeps.promote.promotion import Promotion

MAX_MODEL_LEN = 16000  # tokens; of the pinned scenario guides/optimized-baseline
GPU_MEMORY_SHARE = 0.95  # of the same scenario
GIB = 2**30


def flags_of_engine(promotion: Promotion, config: ClusterConfig) -> dict[str, Any]:
    """The flags by name, in a fixed order; false stands for `--no-…`.

    Raises:
        NotMappedError: vLLM cannot run so.
    """
    tokens, sequences = config.max_num_scheduled_tokens, config.max_num_running_reqs
    if tokens < sequences:
        problem = (
            f"{tokens} tokens for {sequences} sequences, and vLLM wants at least as many tokens"
        )
        raise not_mapped(
            promotion, "max_num_scheduled_tokens", problem, f"set max_num_running_reqs to {tokens}"
        )
    flags: dict[str, Any] = {
        "block-size": config.block_size_in_tokens,
        "max-model-len": MAX_MODEL_LEN,
        "tensor-parallel-size": config.tp,
        "gpu-memory-utilization": GPU_MEMORY_SHARE,
        "max-num-seqs": sequences,
        "max-num-batched-tokens": tokens,
        "enable-chunked-prefill": True,
        "long-prefill-token-threshold": prefill_threshold(promotion, config)[0],
        "enable-prefix-caching": True,
        "scheduling-policy": "priority" if config.scheduler in BY_PRIORITY else "fcfs",
    }
    if config.kv_cpu_blocks:
        flags["kv-offloading-size"] = offload_gib(promotion, config)
        flags["kv-offloading-backend"] = "native"
    return flags


def command_of(flags: Mapping[str, Any]) -> str:
    """The command line; the scenario's own cannot be emptied, only replaced."""
    words = [
        "vllm serve /model-cache/$MODEL_PATH",
        "--host 0.0.0.0",
        "--served-model-name $MODEL_NAME",
        "--port $VLLM_METRICS_PORT",
    ]
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words.append(f"--{name} {value}")
    return " \\\n".join(words) + "\n"


def offload_gib(promotion: Promotion, config: ClusterConfig) -> float:
    """GiB of CPU memory that hold the CPU tier's blocks, over all ranks of an engine."""
    shape = _models().get(config.model)
    if shape is None:
        problem = f"the KV size of a token of {config.model} is not known"
        proposal = (
            "add the model to sweeps/promote/configs/data/models.yaml, or set kv_cpu_blocks to 0"
        )
        raise not_mapped(promotion, "kv_cpu_blocks", problem, proposal)
    of_token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * shape["bytes"]
    return round(config.kv_cpu_blocks * config.block_size_in_tokens * of_token / GIB, 3)


@functools.cache
def _models() -> Mapping[str, Mapping[str, int]]:
    file = resources.files("sweeps.promote.configs") / "data" / "models.yaml"
    return read_mapping(file.read_text(encoding="utf-8"), "models.yaml")


def prefill_threshold(promotion: Promotion, config: ClusterConfig) -> tuple[int, bool]:
    """The one threshold of an engine, and whether it is that of every class; else the most frequent class's."""
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


def workload_of_promotion(promotion: Promotion) -> WorkloadSpec:
    """The workload of the strategy's file; `mixed` without one."""
    from sweeps.runs.bench import workload_from, workload_of

    strategy = promotion.arm.strategy
    return workload_from("mixed") if strategy is None else workload_of(strategy)


def class_shares(spec: WorkloadSpec) -> dict[str, float]:
    """Share of the requests of each class, `standard` for none."""
    total = sum(client.rate_fraction for client in spec.clients) or 1.0
    found: dict[str, float] = {}
    for client in spec.clients:
        name = client.slo_class or "standard"
        found[name] = found.get(name, 0.0) + client.rate_fraction / total
    return found or {"standard": 1.0}
