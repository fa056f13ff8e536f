"""What a measured server was set to: from its own files, completed by options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.errors import ConfigError

UNKNOWN_KV_BLOCKS = 1_000_000  # never full
# how vLLM serves: without the defects of BLIS, and an evicted request keeps its output
AS_VLLM: dict[str, Any] = {"corrected": True, "preemption_mode": "recompute"}


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a real engine; None where its files are silent."""

    model: str | None = None
    gpu: str | None = None
    tp: int | None = None
    num_instances: int | None = None  # data-parallel ranks, each an engine
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    block_size: int | None = None
    total_kv_blocks: int | None = None


def of_meta(meta: Mapping[str, Any]) -> ServerSettings:
    """The settings that vLLM reports as `engine_kwargs` and `kv_cache`."""
    asked = _mapping(meta.get("engine_kwargs"))
    memory = _mapping(meta.get("kv_cache"))
    resolved = _mapping(_mapping(meta.get("resolved_config")).get("scheduler_config"))
    return ServerSettings(
        model=meta.get("model"),
        gpu=_mapping(meta.get("hardware")).get("device_name"),
        tp=asked.get("tensor_parallel_size"),
        num_instances=asked.get("data_parallel_size"),
        max_num_seqs=asked.get("max_num_seqs"),
        max_num_batched_tokens=asked.get("max_num_batched_tokens"),
        long_prefill_token_threshold=resolved.get("long_prefill_token_threshold"),
        block_size=memory.get("block_size"),
        total_kv_blocks=memory.get("num_gpu_blocks"),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def of_header(header: Any) -> ServerSettings:
    """The settings in the header of a TraceV2 trace; 0 stands for silence there."""
    server = header.server
    if server is None:
        return ServerSettings()
    return ServerSettings(
        model=server.model or None,
        tp=server.tensor_parallel or None,
        max_num_seqs=server.max_num_seqs or None,
        block_size=server.block_size or None,
    )


_FIELDS = {
    "model": "model",
    "gpu": "hardware",
    "tp": "tp",
    "num_instances": "num_instances",
    "max_num_seqs": "max_num_running_reqs",
    "max_num_batched_tokens": "max_num_scheduled_tokens",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "block_size": "block_size_in_tokens",
    "total_kv_blocks": "total_kv_blocks",
}


def cluster_values(settings: ServerSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a ClusterConfig: options first, then the run's own settings, then vLLM's defaults."""
    stated = {
        field: value
        for name, field in _FIELDS.items()
        if (value := getattr(settings, name)) is not None
    }
    values: dict[str, Any] = {"total_kv_blocks": UNKNOWN_KV_BLOCKS, **stated, **given}
    if values.get("num_instances", 1) > 1:
        values.setdefault("routing_policy", "least-loaded")
    for name in ("num_instances", "max_num_running_reqs", "total_kv_blocks"):
        if name in values and (not isinstance(values[name], int) or values[name] < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {values[name]!r}")
    return values


def completed(settings: ServerSettings, cluster: Mapping[str, Any]) -> ServerSettings:
    """The settings, with fields of a fitted cluster where they are silent."""
    found = {
        name: cluster.get(field)
        for name, field in _FIELDS.items()
        if getattr(settings, name) is None
    }
    if found.get("total_kv_blocks") == UNKNOWN_KV_BLOCKS:
        del found["total_kv_blocks"]
    return dataclasses.replace(settings, **found)


def routing_of(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The router of a fitted cluster, if it says one."""
    return {name: cluster[name] for name in ("routing_policy",) if name in cluster}


def silent(
    settings: ServerSettings, given: Mapping[str, Any], notes: Sequence[str] = ()
) -> list[str]:
    """What neither the run's files nor the options say, in words; not what the run's notes say already."""
    told = {
        "max_num_seqs": "most requests in the running batch are unknown: the fit takes the default, 256",
        "max_num_batched_tokens": "token budget of a step is unknown: the fit takes the default, 2048",
        "total_kv_blocks": "KV blocks are unknown: the fit assumes that memory never fills up",
    }
    return [
        words
        for name, words in told.items()
        if getattr(settings, name) is None
        and _FIELDS[name] not in given
        and not any(note.startswith(words.partition(" are unknown")[0]) for note in notes)
    ]


def described(settings: ServerSettings) -> dict[str, Any]:
    """The stated settings as plain values."""
    return {key: value for key, value in dataclasses.asdict(settings).items() if value is not None}
