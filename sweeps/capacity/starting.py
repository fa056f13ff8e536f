"""Candidates for a model on a GPU, and how a cluster is started: the command of vLLM, the file of llm-d's router."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import gpu_description, shipped_gpus
from blis_jax.latency.model_description import is_shipped, usual_tp
from blis_jax.latency.registry import fitted
from blis_jax.policies.their_names import POLICIES
from sweeps.capacity.finding import Smallest
from sweeps.strategies.moved import known_as

API_VERSION = "llm-d.ai/v1alpha1"


def candidates(strategy: str, model: str, gpu: str, asked: Collection[int] = ()) -> tuple[str, ...]:
    """Return an arm for each tensor parallelism that is fitted there, or one with the model's usual one.

    Args:
        strategy: servers and router, with settings or without.
        model: its name.
        gpu: its name.
        asked: tensor parallelisms in place of those.

    Raises:
        ConfigError: the model is neither fitted nor described on the GPU.
    """
    tps = {one.tp for one in fitted(model) if one.gpu == gpu}
    given = f"{strategy}{';' if ':' in strategy else ':'}model={model};hardware={gpu}"
    if tps and tps >= set(asked):
        return tuple(f"tp{tp}={given};tensor_parallel_size={tp}" for tp in sorted(asked or tps))
    if not is_shipped(model):
        raise ConfigError(
            f"{model} is neither fitted on {gpu} nor described; blis-jax models lists what is"
        )
    if gpu not in shipped_gpus():
        gpu_description(gpu)  # refuses
    return tuple(
        f"tp{tp}={given};tensor_parallel_size={tp};latency_model=trained-physics"
        for tp in sorted(asked or (usual_tp(model),))
    )


def how_to_start(smallest: Smallest) -> tuple[list[str], dict[str, Any] | None]:
    """Return sentences on how the cluster is started, and the configuration of llm-d's router; None if it has none."""
    size = smallest.num_instances or 0
    layout = smallest.family.of(size)
    config, is_split = smallest.arm.config, len(layout.parts) > 1
    roles = (
        ", ".join(f"{part.count} {part.role}" for part in layout.parts) if is_split else str(size)
    )
    lines = [f"{roles} × {vllm_command(config)}"]
    router = picker_config(config)
    if router is None:
        lines.append(f"Router: {known_as(config.routing_policy)}, as a plain load balancer has it.")
    else:
        scorers = ", ".join(
            f"{plugin['pluginRef']} {plugin['weight']:g}"
            for plugin in router["schedulingProfiles"][0]["plugins"]
            if "weight" in plugin
        )
        lines.append(f"llm-d's router: {scorers} (the .yaml beside the result).")
    if is_split:
        lines.append("Pools need llm-d's disaggregation: blis-jax promote writes its profiles.")
    return lines, router


def vllm_command(config: ClusterConfig) -> str:
    """Return the command line that starts one instance."""
    flags = {
        "tensor-parallel-size": config.tp,
        "max-num-batched-tokens": config.max_num_scheduled_tokens,
        "max-num-seqs": config.max_num_running_reqs,
        "block-size": config.block_size_in_tokens,
    }
    words = [f"--{name} {value}" for name, value in flags.items()]
    caching = (
        "--enable-prefix-caching" if config.enable_prefix_caching else "--no-enable-prefix-caching"
    )
    return " ".join(["vllm serve", config.model, *words, caching])


def picker_config(config: ClusterConfig) -> dict[str, Any] | None:
    """Return llm-d's EndpointPickerConfig; None where the router has no scorers, or llm-d does not know one."""
    theirs = {ours: name for name, ours in POLICIES["scorer"].items()}
    scorers = [(theirs.get(known_as(name)), weight) for name, weight in config.scorers()]
    if not scorers or any(name is None for name, _ in scorers):
        return None
    plugins = [{"pluginRef": name, "weight": float(weight)} for name, weight in scorers]
    return {
        "apiVersion": API_VERSION,
        "kind": "EndpointPickerConfig",
        "plugins": [*({"type": name} for name, _ in scorers), {"type": "max-score-picker"}],
        "schedulingProfiles": [
            {"name": "default", "plugins": [*plugins, {"pluginRef": "max-score-picker"}]}
        ],
    }
