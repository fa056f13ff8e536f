"""Measured runs: the requests of a real server with the latencies that each of them had.

Three formats are read. `vllm-bench`: JSON lines with input_toks, output_toks and monotonic
queued_ts, first_token_ts, last_token_ts in seconds, with meta.json and timeseries.csv beside them.
`trace-v2`: BLIS's TraceV2 with send and chunk times. `latency-csv`: arrival_us (or arrival_s),
input_tokens, output_tokens, ttft_ms and e2e_ms.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.calibrate.settings import ServerSettings, of_header, of_meta
from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.traces.rows import TraceRows, make_rows

if TYPE_CHECKING:
    import pandas
    from jaxtyping import Float, Int

FORMATS = ("vllm-bench", "trace-v2", "latency-csv")
LEAST_REQUESTS = 20
_BENCH_SERVE = ("request_throughput", "mean_ttft_ms")  # names in any result of vllm bench serve
_BENCH_COLUMNS = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")


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
        """(E2E − TTFT) ÷ (output tokens − 1); NaN for a single token."""
        gaps = np.where(self.rows.output_len > 1, self.rows.output_len - 1.0, np.nan)
        return (self.e2e_us - self.ttft_us) / gaps

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Int[np.ndarray, " taken"]) -> MeasuredRun:
        """Some requests, in the order of `places`."""
        return dataclasses.replace(
            self,
            rows=self.rows.take(places),
            ttft_us=self.ttft_us[places],
            e2e_us=self.e2e_us[places],
        )


def read_measured(
    path: Path, wanted: str | None = None, num_fitted: int | None = None
) -> MeasuredRun:
    """A measured run from a file or folder; the format is found out if not given.

    Settings that are worked out from latencies see those of the first `num_fitted` requests by
    arrival, all if None; give what the fit gets, so that requests held out stay unseen.
    """
    path = _rows_path(path)
    name = wanted or _format_of(path)
    if name == "vllm-bench":
        run = _vllm_bench(path, num_fitted)
    else:
        run = {"trace-v2": _trace_v2, "latency-csv": _latency_csv}[name](path)
    run = _by_arrival(run)
    _check(run, path)
    return run


def _rows_path(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / name for name in ("requests.jsonl", "trace.csv") if (path / name).is_file()]
    if not found:
        raise ConfigError(
            f"{path} holds neither requests.jsonl nor trace.csv; give the file of the requests"
        )
    return found[0]


def _format_of(path: Path) -> str:
    text = cli.read_text(path, "a measured run").lstrip()
    first = text[:2000].splitlines()
    head = first[0] if first else ""
    if text.startswith("{") and all(f'"{name}"' in text for name in _BENCH_SERVE):
        raise ConfigError(
            f"{path} is a result of vllm bench serve, which is not read; give the engine's "
            f"requests.jsonl with {', '.join(_BENCH_COLUMNS)}, or a CSV with arrival_us, "
            "input_tokens, output_tokens, ttft_ms and e2e_ms"
        )
    if head.startswith("{"):
        return "vllm-bench"
    if "first_chunk_time_us" in head:
        return "trace-v2"
    if "ttft_ms" in head:
        return "latency-csv"
    raise ConfigError(
        f"{path} has no measured latencies: its first line is {head[:80]!r}; allowed are "
        "JSON lines with queued_ts, first_token_ts and last_token_ts, TraceV2 with chunk times, or a "
        "CSV with ttft_ms and e2e_ms"
    )


def _vllm_bench(path: Path, num_fitted: int | None) -> MeasuredRun:
    """Arrivals are the times at which the engine queued a request, TTFT counts from there."""
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
    found: list[list[float]] = []
    for number, line in enumerate(cli.read_text(path, "a measured run").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            found.append([float(entry[name]) for name in _BENCH_COLUMNS])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path}, line {number}: {_reason(error)}; every line needs numbers named "
                f"{', '.join(_BENCH_COLUMNS)}"
            ) from None
    if not found:
        raise ConfigError(f"{path} holds no requests; give a file with one JSON object per line")
    return dict(zip(_BENCH_COLUMNS, np.asarray(found).T, strict=True))


def _reason(error: Exception) -> str:
    return f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)


def _beside(
    path: Path, columns: Mapping[str, np.ndarray], num_fitted: int | None
) -> tuple[ServerSettings, tuple[str, ...]]:
    """Settings from meta.json, KV blocks from timeseries.csv if meta.json has none."""
    meta = path.parent / "meta.json"
    if not meta.is_file():
        return ServerSettings(), (f"no meta.json beside {path.name}: give the server's settings",)
    document = cli.read_json(meta, "the server's settings, or move it away")
    if not isinstance(document, dict):
        raise ConfigError(f"{meta} holds no settings by name; correct it or move it away")
    settings = of_meta(document)
    series = path.parent / "timeseries.csv"
    if settings.total_kv_blocks is not None or not series.is_file():
        return settings, ()
    from blis_jax.calibrate.kv_series import blocks_from_series

    estimate = blocks_from_series(series, columns, settings, num_fitted)
    return dataclasses.replace(settings, total_kv_blocks=estimate.blocks), (estimate.words,)


def _trace_v2(path: Path) -> MeasuredRun:
    """Rows with status ok and both chunk times are measured; the others only arrive."""
    from blis_jax.traces.formats import trace_v2, trace_v3
    from blis_jax.traces.rows import Reading
    from blis_jax.traces.sniff import sniff

    if path.suffix in (".yaml", ".yml"):
        path = path.with_suffix(".csv")
    reading = Reading()
    form: Any = trace_v3 if trace_v3.matches(sniff(path)) else trace_v2
    rows = form.read(path, reading)
    if reading.report.num_bad:
        reading.report.refuse_bad(path)
    times = _csv(path)
    sent, first, last = (
        times[name].to_numpy(np.float64)
        for name in ("send_time_us", "first_chunk_time_us", "last_chunk_time_us")
    )
    is_good = (times["status"] == "ok").to_numpy() & (first > 0) & (last >= first)
    header = trace_v2.header_path(path)
    settings = of_header(form.read_header(header)) if header else ServerSettings()
    return MeasuredRun(
        rows,
        np.where(is_good, first - sent, np.nan),
        np.where(is_good, last - sent, np.nan),
        settings,
        tuple(reading.report.notes),
    )


def _latency_csv(path: Path) -> MeasuredRun:
    table = _csv(path)
    unit = next((unit for unit in ("us", "s") if f"arrival_{unit}" in table), None)
    wanted = ["input_tokens", "output_tokens", "ttft_ms", "e2e_ms"]
    lacking = [name for name in wanted if name not in table]
    if unit is None or lacking:
        raise ConfigError(
            f"{path} has no column {lacking[0] if lacking else 'arrival_us'}; needed are arrival_us or "
            f"arrival_s, {', '.join(wanted)}"
        )
    numbers = {name: _numbers(path, table, name) for name in [f"arrival_{unit}", *wanted]}
    arrival = numbers[f"arrival_{unit}"] * (1e6 if unit == "s" else 1.0)
    rows = make_rows(
        np.round(arrival - arrival.min()), numbers["input_tokens"], numbers["output_tokens"]
    )
    return MeasuredRun(rows, 1e3 * numbers["ttft_ms"], 1e3 * numbers["e2e_ms"])


def _csv(path: Path) -> pandas.DataFrame:
    import pandas

    cli.read_text(path, "a measured run")
    try:
        return pandas.read_csv(path, keep_default_na=False, skipinitialspace=True)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read as CSV ({error}); correct the file") from None


def _numbers(path: Path, table: pandas.DataFrame, name: str) -> np.ndarray:
    import pandas

    values = pandas.to_numeric(table[name].replace("", np.nan), errors="coerce").to_numpy(
        np.float64
    )
    may_lack = name in ("ttft_ms", "e2e_ms")
    bad = np.flatnonzero((np.isnan(values) & ~may_lack) | (values < 0))
    if bad.size:
        raise ConfigError(
            f"{path}, line {bad[0] + 2}: {name} is {table[name].iloc[bad[0]]!r}; give a number of at "
            "least 0"
        )
    return values


def _by_arrival(run: MeasuredRun) -> MeasuredRun:
    return run.take(np.argsort(run.rows.arrival_us, kind="stable"))


def _check(run: MeasuredRun, path: Path) -> None:
    """Refuse what no fit can use."""
    if np.any(run.rows.input_len < 1) or np.any(run.rows.output_len < 1):
        raise ConfigError(f"{path} has requests without prompt or output tokens; remove them")
    is_odd = (run.ttft_us < 0) | (run.e2e_us < run.ttft_us)
    if np.any(is_odd):
        raise ConfigError(
            f"{path}: request {int(np.flatnonzero(is_odd)[0])} has its last token before its first, or "
            "its first before its arrival; correct the times"
        )
    usable = int(np.sum(np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)))
    if usable < LEAST_REQUESTS:
        raise ConfigError(
            f"{path} has {usable} requests with measured latencies; at least {LEAST_REQUESTS} are needed"
        )
