"""A measured run: what its server was set to, and the requests with the latencies that each of them had.

Also what the result file of a benchmark client is read into, and the checks that all clients share.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError, shortened
from blis_jax.files import input_files
from blis_jax.files.strict_yaml import read_yaml
from blis_jax.traces.rows import TraceRows, make_rows

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from blis_jax.traces.formats import trace_v2, trace_v3


LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
STATISTICS = ("mean", "p50", "p90", "p99")
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


def no_requests(path: Path | str, found: Summary) -> str:
    """Return why nothing can be fitted to a summary."""
    return f"{path} has figures of {found.tool} but no requests to fit coefficients to: {found.lacking}"


def parse(path: Path) -> Any:
    """Return a document; a tuple of documents for JSON lines; None for a text that is none of these.

    Raises:
        ConfigError: it begins as JSON but is damaged.
    """
    text = input_files.read_text(path, "a measured run")
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(text, str(path))
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _lines(text, path)


def _lines(text: str, path: Path) -> tuple[Any, ...]:
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{path}, line {number}: {error}; give JSON, or JSON with one object a line"
                ) from None
    return tuple(lines)


TO_MS = {"s": 1e3, "sec": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


class Load(NamedTuple):
    """The load that a client reports to have sent; NaN where its file is silent."""

    num_requests: float = math.nan
    rate_per_s: float = math.nan  # stated; NaN where the answers set the pace
    input_tokens: float = math.nan  # mean
    output_tokens: float = math.nan  # mean
    input_stdev: float = math.nan
    output_stdev: float = math.nan
    max_open: float = math.nan  # requests that it kept open at most; NaN for no limit


@dataclass(frozen=True)
class Summary:
    """Figures of a run whose requests the file does not have."""

    tool: str
    figures: Mapping[tuple[str, str], float]  # by latency (ttft_ms) and statistic (p99), ms
    lacking: str  # what is not in the file, and where it can be had
    load: Load
    settings: ServerSettings = field(default_factory=ServerSettings)
    num_failed: float = 0.0


class Benchmark(NamedTuple):
    """One run in a file, with the words that tell it from the others there."""

    label: str
    read: Callable[[], MeasuredRun | Summary]


@dataclass
class Sent:
    """Requests as a client saw them, one entry a request; NaN where it does not know."""

    start_s: list[float] = field(default_factory=list)  # sent, on any clock
    input_tokens: list[float] = field(default_factory=list)
    output_tokens: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)  # from sent to the last token
    num_failed: int = 0
    num_contradictory: int = 0  # whose first token comes after the last
    num_warm_up: int = 0
    cached_tokens: float = 0.0  # of the prompts, found in the server's prefix cache
    gaps: list[tuple[float, float]] = field(default_factory=list)  # seen, and between its tokens

    def add(self, start_s: float, tokens: tuple[float, float], ttft_s: float, e2e_s: float) -> None:
        """Add a request that was answered; `tokens` of its prompt and its output."""
        if not (math.isfinite(start_s) and all(count >= 1 for count in tokens)):
            self.num_failed += 1
            return
        self.start_s.append(start_s)
        self.input_tokens.append(tokens[0])
        self.output_tokens.append(tokens[1])
        self.num_contradictory += ttft_s > e2e_s
        is_streamed = 0 < ttft_s <= e2e_s and (tokens[1] == 1 or e2e_s > ttft_s)
        self.ttft_s.append(ttft_s if is_streamed else math.nan)
        self.e2e_s.append(e2e_s if is_streamed else math.nan)

    def run(self, source: str, settings: ServerSettings, notes: Sequence[str] = ()) -> MeasuredRun:
        """Return the requests as a measured run.

        Raises:
            ConfigError: no request was answered, or none was streamed.
        """
        if not self.start_s:
            raise ConfigError(none_answered(source, self.num_failed))
        if np.all(np.isnan(self.ttft_s)):
            raise ConfigError(
                f"{source} has no time of a first token: the client did not stream; measure again "
                "with streaming"
            )
        start = np.asarray(self.start_s)
        rows = make_rows(
            np.round(1e6 * (start - start.min())),
            np.asarray(self.input_tokens),
            np.asarray(self.output_tokens),
        )
        return MeasuredRun(
            rows,
            1e6 * np.asarray(self.ttft_s),
            1e6 * np.asarray(self.e2e_s),
            settings,
            (*notes, *self._remarks()),
        )

    def _remarks(self) -> list[str]:
        remarks = []
        if self.num_failed:
            remarks.append(
                f"{self.num_failed} of {self.num_failed + len(self.start_s)} requests have failed or "
                "lack their lengths: they are left out, though they may have cost the server time"
            )
        if self.num_contradictory:
            remarks.append(
                f"{self.num_contradictory} requests have their first token after their last: they arrive, but are "
                "not measured"
            )
        if self.num_warm_up:
            remarks.append(
                f"{self.num_warm_up} requests of the warm-up arrive, but are not measured"
            )
        num_silent = int(np.sum(np.isnan(self.ttft_s)))
        num_silent -= self.num_contradictory + self.num_warm_up
        if num_silent > 0:
            remarks.append(
                f"{num_silent} requests have no time of a first token: they arrive, but are not measured"
            )
        remarks += few_gaps(self.gaps)
        share = self.cached_tokens / sum(self.input_tokens)
        if share > 0.01:
            remarks.append(
                f"the server had {100 * share:.0f} % of the prompt tokens in its prefix cache, but the "
                "file does not say which prompts begin alike: the fit computes all of them, so a "
                "prefill token will seem too cheap"
            )
        return remarks


FEW_GAPS = 0.8  # of the gaps between tokens


def few_gaps(gaps: Sequence[tuple[float, float]]) -> list[str]:
    """Return a remark where requests have far fewer gaps than their tokens; pairs of those seen and those due."""
    seen, due = (sum(column) for column in zip(*gaps, strict=True)) if gaps else (0.0, 0.0)
    if not seen < FEW_GAPS * due:
        return []
    return [
        f"the file has {seen:,.0f} gaps for the {due:,.0f} between its output tokens: chunks hold several tokens, or "
        "tokens (of reasoning) come before the first content, so TTFT is not that of the first token; trust E2E"
    ]


def none_answered(source: str, num_failed: float) -> str:
    """Return the sentence on a run of which no request was answered."""
    what = f"all {num_failed:.0f} requests have failed" if num_failed else "no request was answered"
    return f"{source}: {what}, so there is nothing to fit or compare; see the server's log"


def closed_loop(limit: float | None) -> str:
    """Return the remark on a client that waits for answers before it sends on."""
    most = "" if limit is None or not math.isfinite(limit) else f" (at most {limit:.0f} open)"
    return (
        f"the client waited for answers before it sent on{most}: requests are replayed at the times at "
        "which they were sent, as if these did not depend on the server"
    )


def at(document: object, *names: str) -> Any:
    """Return the value at the end of a way through mappings; None where the way ends before."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def number(value: object, what: str) -> float:
    """Return a number, NaN for none; `what` it is, and where, is said if it is something else."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what} is {shortened(value)}; give a number or leave it out")
    return float(value)
