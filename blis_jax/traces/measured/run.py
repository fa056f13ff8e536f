"""A measured run: its server's settings, as the files of the run state them, and the latencies of each request."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.cluster.machines import Machines
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.lazy import pandas
from blis_jax.traces.rows import TraceRows, make_rows

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Real

    from blis_jax.traces.formats import trace_v2, trace_v3

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
STATISTICS = ("mean", "p50", "p90", "p99")
UNKNOWN_KV_BLOCKS = 1_000_000  # never full
# how vLLM serves: without the defects of BLIS, and an evicted request keeps its output
AS_VLLM: dict[str, Any] = {"corrected": True, "preemption_mode": "recompute"}


def at(document: object, *names: str) -> Any:
    """Return the value at a path of names through nested mappings; None if a name is missing."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def text_at(document: object, *names: str) -> str | None:
    """Return the text at a path of names in a document; None if there is no value or it is not a text."""
    value = at(document, *names)
    return value if isinstance(value, str) else None


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a real engine; a field is None if its files do not state it."""

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
        model=text_at(meta, "model"),
        gpu=text_at(meta, "hardware", "device_name"),
        tp=at(meta, "engine_kwargs", "tensor_parallel_size"),
        num_instances=at(meta, "engine_kwargs", "data_parallel_size"),
        max_num_seqs=at(meta, "engine_kwargs", "max_num_seqs"),
        max_num_batched_tokens=at(meta, "engine_kwargs", "max_num_batched_tokens"),
        long_prefill_token_threshold=threshold,
        block_size=at(meta, "kv_cache", "block_size"),
        total_kv_blocks=at(meta, "kv_cache", "num_gpu_blocks"),
    )


def of_header(header: trace_v2.Header | trace_v3.RevisedHeader) -> ServerSettings:
    """Return the settings in the header of a TraceV2 trace, where 0 stands for a setting that is not stated."""
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
    """Return fields of a ClusterConfig: from the options, then the run's own settings, then vLLM's defaults.

    Step times are BLIS's until others are fitted, whatever the model.
    """
    stated = {
        field: value
        for name, field in _FIELDS.items()
        if (value := getattr(settings, name)) is not None
    }
    usual = {name: getattr(Machines, name) for name in ("alpha_coeffs", "beta_coeffs")}
    values: dict[str, Any] = {"total_kv_blocks": UNKNOWN_KV_BLOCKS, **usual, **stated, **server}
    if values.get("num_instances", 1) > 1:
        values.setdefault("routing_policy", "least-loaded")
    for name in ("num_instances", "max_num_running_reqs", "total_kv_blocks"):
        if name in values and (not isinstance(values[name], int) or values[name] < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {values[name]!r}")
    return values


def completed(settings: ServerSettings, cluster: Mapping[str, Any]) -> ServerSettings:
    """Return the settings, with fields that they leave None filled in from a fitted cluster."""
    settings_by_name = {
        name: cluster.get(field)
        for name, field in _FIELDS.items()
        if getattr(settings, name) is None
    }
    if settings_by_name.get("total_kv_blocks") == UNKNOWN_KV_BLOCKS:
        del settings_by_name["total_kv_blocks"]
    return dataclasses.replace(settings, **settings_by_name)


def routing_of(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the routing settings of a fitted cluster, if it has any."""
    return {name: cluster[name] for name in ("routing_policy",) if name in cluster}


def silent(
    settings: ServerSettings, server: Mapping[str, Any], notes: Sequence[str] = ()
) -> list[str]:
    """Return sentences on settings that neither the run's files nor the options state, unless `notes` have them."""
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
    output_len: Real[np.ndarray, "..."],
) -> Float[np.ndarray, "..."]:
    """Return (E2E − TTFT) ÷ (output tokens − 1), in the unit of the latencies; NaN for a single token."""
    return (e2e_us - ttft_us) / np.where(output_len > 1, output_len - 1.0, np.nan)


@dataclass(frozen=True)
class MeasuredRun:
    """Requests by arrival with the measured latencies of each; µs, NaN where not measured."""

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
        """Return the run's requests at the given places, in their order."""
        return dataclasses.replace(
            self,
            rows=self.rows.take(places),
            ttft_us=self.ttft_us[places],
            e2e_us=self.e2e_us[places],
        )

    def warmed_up(self, count: int) -> MeasuredRun:
        """Return the run with its first `count` requests by arrival as a warm-up: they arrive, but are not measured.

        Raises:
            ConfigError: no request would be left.
        """
        if not 0 <= count < len(self):
            raise ConfigError(f"--warm-up: got {count}, allowed is 0 to {len(self) - 1} requests")
        is_kept = np.arange(len(self)) >= count
        ttft, e2e = (np.where(is_kept, each, np.nan) for each in (self.ttft_us, self.e2e_us))
        return dataclasses.replace(self, ttft_us=ttft, e2e_us=e2e)


# ticks outside are rounded too coarsely, or requests may be evicted
LEAST_USE, MOST_USE = 0.05, 0.9
LEAST_TICKS = 3


class BlockEstimate(NamedTuple):
    """The KV blocks of one instance, or None, and the source of this number."""

    blocks: int | None
    words: str


def blocks_from_series(
    path: Path,
    columns: Mapping[str, np.ndarray],
    settings: ServerSettings,
    num_fitted: int | None = None,
) -> BlockEstimate:
    """Return an estimate of an instance's KV blocks: the median over ticks of held blocks ÷ logged utilization.

    The blocks that a request holds follow from its measured times: its prompt from the first token on, and outputs at
    even gaps until the last token. Prompts still in prefill are not counted, so ticks in which prompts wait are left
    out. Only the first `num_fitted` requests by arrival are used, and only the ticks before the next request arrives.
    """
    series = pandas.read_csv(path)
    if not {"t", "kv_cache_pct", "waiting"} <= set(series.columns):
        raise ConfigError(
            f"{path} lacks a column t, kv_cache_pct or waiting; correct it or move it away"
        )
    use = series["kv_cache_pct"].to_numpy(np.float64) / 100.0
    ticks = series["t"].to_numpy(np.float64) + columns["queued_ts"].min()
    fitted, until = _fitted_only(columns, num_fitted)
    is_clear = (use > LEAST_USE) & (use < MOST_USE) & (series["waiting"].to_numpy() == 0)
    is_clear &= ticks < until
    if is_clear.sum() < LEAST_TICKS:
        return BlockEstimate(
            None,
            f"KV blocks are unknown: meta.json states none and the use in {path.name} "
            f"{_why_unknown(use, until)}",
        )
    held = held_blocks(ticks[is_clear], fitted, settings.block_size or 16)
    held /= settings.num_instances or 1
    blocks = round(float(np.median(held / use[is_clear])))
    return BlockEstimate(
        blocks,
        f"KV blocks: {blocks} per instance, estimated from {is_clear.sum()} ticks of {path.name}",
    )


def _fitted_only(
    columns: Mapping[str, np.ndarray], num_fitted: int | None
) -> tuple[dict[str, np.ndarray], float]:
    """Return the columns of the fitted requests, and the arrival of the first held-out request."""
    order = np.argsort(columns["queued_ts"], kind="stable")
    fitted = {name: values[order[:num_fitted]] for name, values in columns.items()}
    held_out = columns["queued_ts"][order][len(fitted["queued_ts"]) :]
    return fitted, float(held_out[0]) if held_out.size else np.inf


def _why_unknown(use: np.ndarray, until: float) -> str:
    if not np.any(use > 0):
        return "is 0 throughout"
    words = "is between 5 % and 90 % without a queue at fewer than three ticks"
    return words if np.isinf(until) else f"{words} before the first request that is held out"


def held_blocks(
    times: np.ndarray, columns: Mapping[str, np.ndarray], block_size: int
) -> np.ndarray:
    """Return the number of blocks that all running requests hold at each time."""
    first, last = columns["first_token_ts"], columns["last_token_ts"]
    at = times[:, None]
    is_running = (at >= first) & (at <= last)
    share = np.clip((at - first) / np.maximum(last - first, 1e-9), 0.0, 1.0)
    tokens = columns["input_toks"] + share * columns["output_toks"]
    return np.sum(np.where(is_running, np.ceil(tokens / block_size), 0.0), axis=1)


COLUMNS = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")


def read_engine_log(path: Path, num_fitted: int | None) -> MeasuredRun:
    """Return a run from vLLM's engine log; a request arrives, and its TTFT begins, when the engine queues it."""
    columns = _json_lines(path)
    first = columns["queued_ts"].min()
    rows = make_rows(
        np.round(1e6 * (columns["queued_ts"] - first)),
        columns["input_toks"],
        columns["output_toks"],
    )
    settings, notes = _beside(path, columns, num_fitted)
    return MeasuredRun(
        rows,
        1e6 * (columns["first_token_ts"] - columns["queued_ts"]),
        1e6 * (columns["last_token_ts"] - columns["queued_ts"]),
        settings,
        notes,
    )


def _json_lines(path: Path) -> dict[str, np.ndarray]:
    rows: list[list[float]] = []
    for number, line in enumerate(input_files.read_text(path, "a measured run").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            rows.append([float(entry[name]) for name in COLUMNS])
        except (ValueError, TypeError, KeyError) as error:
            why = f"no {error.args[0]}" if isinstance(error, KeyError) else error
            raise ConfigError(
                f"{path}, line {number}: {why}; every line needs numbers named {', '.join(COLUMNS)}"
            ) from None
    if not rows:
        raise ConfigError(f"{path} holds no requests; give a file with one JSON object per line")
    return dict(zip(COLUMNS, np.asarray(rows).T, strict=True))


def _beside(
    path: Path, columns: Mapping[str, np.ndarray], num_fitted: int | None
) -> tuple[ServerSettings, tuple[str, ...]]:
    """Return settings from meta.json, with KV blocks estimated from timeseries.csv if meta.json has none."""
    meta = path.parent / "meta.json"
    if not meta.is_file():
        return ServerSettings(), (f"no meta.json beside {path.name}: give the server's settings",)
    document = input_files.read_json(meta, "the server's settings, or move it away")
    if not isinstance(document, dict):
        raise ConfigError(f"{meta} holds no settings by name; correct it or move it away")
    settings = of_meta(document)
    series = path.parent / "timeseries.csv"
    if settings.total_kv_blocks is not None or not series.is_file():
        return settings, ()
    estimate = blocks_from_series(series, columns, settings, num_fitted)
    return dataclasses.replace(settings, total_kv_blocks=estimate.blocks), (estimate.words,)
