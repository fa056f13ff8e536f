"""A measured run: what its server was set to, and the requests with the latencies that each of them had."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.traces.rows import TraceRows

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from blis_jax.traces.formats import trace_v2, trace_v3


LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
STATISTICS = ("mean", "p50", "p90", "p99")
UNKNOWN_KV_BLOCKS = 1_000_000  # never full
# how vLLM serves: without the defects of BLIS, and an evicted request keeps its output
AS_VLLM: dict[str, Any] = {"corrected": True, "preemption_mode": "recompute"}


def at(document: object, *names: str) -> Any:
    """Return the value at the end of a way through mappings; None where the way ends before."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


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
    """Return the settings that vLLM reports as `engine_kwargs` and `kv_cache`."""
    threshold = at(meta, "resolved_config", "scheduler_config", "long_prefill_token_threshold")
    return ServerSettings(
        model=meta.get("model"),
        gpu=at(meta, "hardware", "device_name"),
        tp=at(meta, "engine_kwargs", "tensor_parallel_size"),
        num_instances=at(meta, "engine_kwargs", "data_parallel_size"),
        max_num_seqs=at(meta, "engine_kwargs", "max_num_seqs"),
        max_num_batched_tokens=at(meta, "engine_kwargs", "max_num_batched_tokens"),
        long_prefill_token_threshold=threshold,
        block_size=at(meta, "kv_cache", "block_size"),
        total_kv_blocks=at(meta, "kv_cache", "num_gpu_blocks"),
    )


def of_header(header: trace_v2.Header | trace_v3.RevisedHeader) -> ServerSettings:
    """Return the settings in the header of a TraceV2 trace; 0 stands for silence there."""
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


def cluster_values(settings: ServerSettings, server: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a ClusterConfig: options first, then the run's own settings, then vLLM's defaults."""
    stated = {
        field: value
        for name, field in _FIELDS.items()
        if (value := getattr(settings, name)) is not None
    }
    values: dict[str, Any] = {"total_kv_blocks": UNKNOWN_KV_BLOCKS, **stated, **server}
    if values.get("num_instances", 1) > 1:
        values.setdefault("routing_policy", "least-loaded")
    for name in ("num_instances", "max_num_running_reqs", "total_kv_blocks"):
        if name in values and (not isinstance(values[name], int) or values[name] < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {values[name]!r}")
    return values


def completed(settings: ServerSettings, cluster: Mapping[str, Any]) -> ServerSettings:
    """Return the settings, with fields of a fitted cluster where they are silent."""
    settings_by_name = {
        name: cluster.get(field)
        for name, field in _FIELDS.items()
        if getattr(settings, name) is None
    }
    if settings_by_name.get("total_kv_blocks") == UNKNOWN_KV_BLOCKS:
        del settings_by_name["total_kv_blocks"]
    return dataclasses.replace(settings, **settings_by_name)


def routing_of(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the router of a fitted cluster, if it says one."""
    return {name: cluster[name] for name in ("routing_policy",) if name in cluster}


def silent(
    settings: ServerSettings, server: Mapping[str, Any], notes: Sequence[str] = ()
) -> list[str]:
    """Return what neither the run's files nor the options say, in words; not what the run's notes say already."""
    told = {
        "max_num_seqs": "most requests in the running batch are unknown: the fit takes the default, 256",
        "max_num_batched_tokens": "token budget of a step is unknown: the fit takes the default, 2048",
        "total_kv_blocks": "KV blocks are unknown: the fit assumes that memory never fills up",
    }
    return [
        words
        for name, words in told.items()
        if getattr(settings, name) is None
        and _FIELDS[name] not in server
        and not any(note.startswith(words.partition(" are unknown")[0]) for note in notes)
    ]


def described(settings: ServerSettings) -> dict[str, Any]:
    """Return the stated settings as plain values."""
    return {key: value for key, value in dataclasses.asdict(settings).items() if value is not None}


def tpot_of(
    ttft_us: Float[np.ndarray, "..."],
    e2e_us: Float[np.ndarray, "..."],
    output_len: Int[np.ndarray, "..."],
) -> Float[np.ndarray, "..."]:
    """Return (E2E − TTFT) ÷ (output tokens − 1), in the unit of the latencies; NaN for a single token."""
    return (e2e_us - ttft_us) / np.where(output_len > 1, output_len - 1.0, np.nan)


@dataclass(frozen=True)
class MeasuredRun:
    """Requests by arrival and what was measured of each; µs, NaN where nothing was."""

    rows: TraceRows
    ttft_us: Float[np.ndarray, " request"]  # first token - queued
    e2e_us: Float[np.ndarray, " request"]  # last token - queued
    settings: ServerSettings = field(default_factory=ServerSettings)
    notes: tuple[str, ...] = ()

    @property
    def tpot_us(self) -> Float[np.ndarray, " request"]:
        """Return (E2E − TTFT) ÷ (output tokens − 1) in µs; NaN for a single token."""
        return tpot_of(self.ttft_us, self.e2e_us, self.rows.output_len)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Int[np.ndarray, " taken"]) -> MeasuredRun:
        """Return some requests, in the order of `places`."""
        return dataclasses.replace(
            self,
            rows=self.rows.take(places),
            ttft_us=self.ttft_us[places],
            e2e_us=self.e2e_us[places],
        )

    def warmed_up(self, count: int) -> MeasuredRun:
        """Return the run with its first requests, by arrival, as a warm-up: they arrive, but are not measured.

        Raises:
            ConfigError: no request would be left.
        """
        if not 0 <= count < len(self):
            raise ConfigError(f"--warm-up: got {count}, allowed is 0 to {len(self) - 1} requests")
        is_kept = np.arange(len(self)) >= count
        ttft, e2e = (np.where(is_kept, each, np.nan) for each in (self.ttft_us, self.e2e_us))
        return dataclasses.replace(self, ttft_us=ttft, e2e_us=e2e)
