"""Measured runs: the requests of a real server with the latencies that each of them had.

Three formats are read, `blis_jax.calibrate.formats` has one file for each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blis_jax.calibrate.formats import engine_log, latency_csv, observed_trace
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.commands import cli
from blis_jax.errors import ConfigError

FORMATS = ("vllm-bench", "trace-v2", "latency-csv")
LEAST_REQUESTS = 20
_BENCH_SERVE = ("request_throughput", "mean_ttft_ms")  # names in any result of vllm bench serve


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
        run = engine_log.read(path, num_fitted)
    else:
        run = {"trace-v2": observed_trace.read, "latency-csv": latency_csv.read}[name](path)
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
            f"requests.jsonl with {', '.join(engine_log.COLUMNS)}, or a CSV with arrival_us, "
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
