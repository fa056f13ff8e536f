"""Configurations whose step times come from sizes: what they leave open, and what each instance serves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.instance_groups import InstanceGroup, per_instance
from blis_jax.latency.contract import FromSizes
from blis_jax.latency.deployment import Deployment, gpu_description
from blis_jax.latency.kv_capacity import kv_blocks
from blis_jax.latency.model_description import ModelDescription
from blis_jax.latency.model_files import model_description, usual_tp

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

UNKNOWN_KV_BLOCKS = 1_000_000  # the reference's, of a model whose experts are not counted
SERVED = ("hardware", "tp", "dp")  # settings that decide what an instance is, beside the model


def deployment(config: ClusterConfig, hardware: str, tp: int, dp: int) -> Deployment:
    """The configuration's model on such GPUs.

    Raises:
        ConfigError: a name is not known, a file cannot be used, or a number of GPUs is not allowed.
    """
    model = _described(config.model, config.model_config, _stamp(config.model_config))
    return Deployment(model, gpu_description(hardware), tp, dp, config.moe_comm_backend)


def deployments(config: ClusterConfig) -> list[Deployment]:
    """What every instance serves.

    Raises:
        ConfigError: as in `deployment`.
    """
    columns = zip(*(per_instance(config, name) for name in SERVED), strict=True)
    made = {served: deployment(config, *served) for served in dict.fromkeys(columns)}
    return [made[served] for served in zip(*(per_instance(config, n) for n in SERVED), strict=True)]


def defaults(config: ClusterConfig, sizes: FromSizes, given: Collection[str]) -> dict[str, Any]:
    """Settings that were not given and follow from the model: coefficients, GPUs, KV blocks also of groups.

    Raises:
        ConfigError: as in `deployment`, or the model does not fit into the GPUs' memory.
    """
    found: dict[str, Any] = {"alpha_coeffs": sizes.alpha, "beta_coeffs": sizes.beta}
    found["tp"] = usual_tp(config.model)
    found = {name: value for name, value in found.items() if name not in given}
    if "total_kv_blocks" in given:
        return found
    usual = {name: found.get(name, getattr(config, name)) for name in SERVED}
    groups = tuple(_with_blocks(config, group, usual) for group in config.instances)
    if groups:
        found["instances"] = groups
    own = [group.total_kv_blocks for group in groups if group.total_kv_blocks is not None]
    is_needed = len(own) < len(groups) or not groups
    found["total_kv_blocks"] = blocks_of(config, **usual) if is_needed else own[0]
    return found


def _with_blocks(
    config: ClusterConfig, group: InstanceGroup, usual: Mapping[str, Any]
) -> InstanceGroup:
    """The group with KV blocks of its own if it has GPUs of its own."""
    own = {name: getattr(group, name) for name in SERVED}
    own = {name: value for name, value in own.items() if value is not None}
    memory = group.gpu_memory_gib
    if group.total_kv_blocks is not None or not (own or memory):
        return group
    served = {**usual, **own}
    return dataclasses.replace(group, total_kv_blocks=blocks_of(config, **served, memory=memory))


def blocks_of(
    config: ClusterConfig, hardware: str, tp: int, dp: int, memory: float | None = None
) -> int:
    """KV blocks of an instance on such GPUs, or on some with so many GiB of memory.

    Raises:
        ConfigError: as in `deployment`, or the model does not fit into the GPUs' memory.
    """
    served = deployment(config, hardware, tp, dp)
    if memory is None and not served.gpu.memory_gib:  # a file need not say it
        return UNKNOWN_KV_BLOCKS
    if memory is not None:
        gpu = dataclasses.replace(served.gpu, memory_gib=memory)
        served = dataclasses.replace(served, gpu=gpu)
    blocks = kv_blocks(served, config.block_size_in_tokens, config.gpu_memory_utilization)
    return UNKNOWN_KV_BLOCKS if blocks is None else blocks


def _stamp(path: str) -> int:
    """When the file was changed; 0 where that cannot be told, so that reading it says why."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        return file.stat().st_mtime_ns if path else 0
    except OSError:
        return 0


@functools.lru_cache(maxsize=256)
def _described(name: str, config_file: str, stamp: int) -> ModelDescription:
    """The description; a file is read again when it has changed."""
    return model_description(name, config_file)
