"""Measured runs from files: what people have, recognised by its content.

`blis_jax.calibrate.formats` has one file for each format. Files of benchmark clients may lack the requests;
then there is a `Summary` in place of a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.calibrate.formats import (
    aiperf,
    engine_log,
    guidellm,
    inference_perf,
    latency_csv,
    observed_trace,
    vllm_serve,
)
from blis_jax.calibrate.formats.contract import Benchmark, Summary, at
from blis_jax.calibrate.formats.documents import parse
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.errors import ConfigError
from blis_jax.files import input_files

CLIENTS = {reader.NAME: reader for reader in (vllm_serve, guidellm, inference_perf, aiperf)}
FORMATS = ("vllm-bench", "trace-v2", "latency-csv", *CLIENTS)
LEAST_REQUESTS = 20
_FILES_OF_RUNS = (  # in a folder; those with requests first
    *("requests.jsonl", "trace.csv", "profile_export.jsonl", "per_request_lifecycle_metrics.json"),
    *("benchmarks.json", "profile_export_aiperf.json", "summary_lifecycle_metrics.json"),
)


def read_measured(
    path: Path, wanted: str | None = None, num_fitted: int | None = None, stage: int | None = None
) -> MeasuredRun:
    """A measured run from a file or folder; see `read_result`.

    Raises:
        ConfigError: the file has no requests.
    """
    found = read_result(path, wanted, num_fitted, stage)
    if isinstance(found, Summary):
        raise ConfigError(no_requests(path, found))
    return found


def no_requests(path: Path | str, found: Summary) -> str:
    """Why nothing can be fitted to a summary, in words."""
    return f"{path} has figures of {found.tool} but no requests to fit coefficients to: {found.lacking}"


def read_result(
    path: Path, wanted: str | None = None, num_fitted: int | None = None, stage: int | None = None
) -> MeasuredRun | Summary:
    """A measured run, or its figures where the file has no more; the format is found out if not given.

    Settings that are worked out from latencies see those of the first `num_fitted` requests by
    arrival, all if None; give what the fit gets, so that requests held out stay unseen. `stage` is the
    number of a run in a file with several.
    """
    path = _rows_path(path)
    name, document = _recognised(path, wanted)
    if name in CLIENTS:
        found = _chosen(CLIENTS[name].read(document, str(path)), path, stage)
    elif stage is not None:
        raise ConfigError(f"--stage: {path} has one run; leave the option out")
    elif name == "vllm-bench":
        found = engine_log.read(path, num_fitted)
    else:
        found = {"trace-v2": observed_trace.read, "latency-csv": latency_csv.read}[name](path)
    if isinstance(found, MeasuredRun):
        found = _by_arrival(found)
        _check(found, path)
    return found


def _rows_path(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / name for name in _FILES_OF_RUNS if (path / name).is_file()]
    if not found:
        raise ConfigError(
            f"{path} holds neither {', '.join(_FILES_OF_RUNS[:-1])} nor {_FILES_OF_RUNS[-1]}; give the "
            "file of the requests"
        )
    return found[0]


def _recognised(path: Path, wanted: str | None) -> tuple[str, Any]:
    """The name of a file's format, and its document where a client wrote it."""
    if wanted is not None and wanted not in CLIENTS:
        return wanted, None
    document = parse(path)
    names = [name for name, reader in CLIENTS.items() if reader.matches(document)]
    if wanted is not None and wanted not in names:
        raise ConfigError(f"--format: {path} is no file of {wanted}; leave the option out")
    if names:
        return wanted or names[0], document
    first = document[0] if isinstance(document, tuple) and document else document
    if any(at(first, name) is not None for name in engine_log.COLUMNS):
        return "vllm-bench", None
    if at(first, "trace_version") is not None:
        return "trace-v2", None
    return _name_of_table(path), None


def _name_of_table(path: Path) -> str:
    lines = input_files.read_text(path, "a measured run").lstrip()[:2000].splitlines()
    head = lines[0] if lines else ""
    if "first_chunk_time_us" in head:
        return "trace-v2"
    if "ttft_ms" in head and "," in head and not head.startswith("{"):
        return "latency-csv"
    raise ConfigError(
        f"{path} has no measured latencies that are known here: its first line is {head[:80]!r}; read are "
        "results of vllm bench serve, GuideLLM, inference-perf and AIPerf, TraceV2 with chunk times, the "
        "engine's requests.jsonl, and a CSV with arrival_us, input_tokens, output_tokens, ttft_ms and e2e_ms"
    )


def _chosen(benchmarks: list[Benchmark], path: Path, stage: int | None) -> MeasuredRun | Summary:
    if stage is None and len(benchmarks) > 1:
        listed = "; ".join(f"{place}: {one.label}" for place, one in enumerate(benchmarks))
        raise ConfigError(f"{path} has {len(benchmarks)} runs; choose one with --stage ({listed})")
    if not 0 <= (stage or 0) < len(benchmarks):
        raise ConfigError(f"--stage: got {stage}, allowed is 0 to {len(benchmarks) - 1}")
    return benchmarks[stage or 0].read()


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
