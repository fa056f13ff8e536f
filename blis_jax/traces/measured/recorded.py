"""Read measured runs: a table of latencies, BLIS's TraceV2, and the files of clients and engines.

The table, CSV or JSON lines, has a time of arrival, the tokens of prompt and output, TTFT, and E2E or TPOT, under any
of the names in `traces.names`; units in names are used. In a TraceV2 with send and chunk times, as BLIS's `observe`
records it, streamed rows with status ok are measured: from send_time_us to the chunks, minus the network round trip in
the header, which BLIS's own calibration instead adds to simulated latencies. The header's warm-up requests arrive but
are not measured. Rows without an output are left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import pandas
from blis_jax.traces.columns import Column
from blis_jax.traces.delimited import read_table
from blis_jax.traces.formats import plain, trace_v2, trace_v3
from blis_jax.traces.measured.clients import CLIENTS
from blis_jax.traces.measured.run import (
    COLUMNS,
    MeasuredRun,
    ServerSettings,
    at,
    of_header,
    read_engine_log,
    tpot_of,
)
from blis_jax.traces.measured.sent import (
    TO_MS,
    Benchmark,
    Sent,
    Summary,
    few_gaps,
    no_requests,
    none_answered,
    parse,
    unlikely,
)
from blis_jax.traces.names import LATENCIES, foreign, lacks, with_unit
from blis_jax.traces.read import Sniff, sniff
from blis_jax.traces.rows import Reading, TraceRows


def read_latencies(path: Path) -> MeasuredRun:
    """Return the run in a table with latencies per row; rows with no latencies, or 0, arrive but are not measured.

    Raises:
        ConfigError: a column is missing, or no row has latencies.
    """
    units: dict[str, str | None] = {}

    def columns_of(names: Sequence[str]) -> dict[str, Column]:
        """Return the columns by meaning, and remember their units."""
        lacking = lacks(names)
        if lacking is not None:
            raise ConfigError(f"{path}: {lacking}")
        named = {key: with_unit(names, wanted) for key, wanted in LATENCIES.items()}
        if named["ttft"] is None or not (named["e2e"] or named["tpot"] or named["generation"]):
            raise ConfigError(
                f"{path} lacks a column of latencies; needed are ttft_ms, and e2e_ms or tpot_ms"
            )
        present = {key: each for key, each in named.items() if each is not None}
        units.update({key: unit for key, (_, unit) in present.items()})
        return {key: Column((name,), parse=_or_nothing) for key, (name, _) in present.items()}

    reading = Reading()
    rows = plain.read(path, reading, columns_of)
    latencies, notes = _in_s(path, rows, units)
    if reading.report.num_bad:
        notes.append(f"{reading.report.bad_in_words()} left out")
    sent = Sent()
    values = (rows.arrival_us / 1e6, rows.input_len, rows.output_len, *latencies)
    for start, inputs, outputs, ttft, e2e in zip(*(each.tolist() for each in values), strict=True):
        sent.add(start, (inputs, outputs), ttft, e2e)
    sent.num_later_turns = int(np.count_nonzero(rows.round_index))
    of_times = (note.partition("; --time-unit")[0] for note in reading.report.notes)
    return sent.run(str(path), ServerSettings(), [*of_times, *notes])


def _or_nothing(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return cells as numbers, NaN for empty cells and texts; every row counts as good."""
    numbers = pandas.to_numeric(values, errors="coerce").to_numpy(np.float64)
    return numbers, np.ones(len(numbers), bool)


USUAL_TPOT_MS = (0.5, 500.0)  # where columns do not say their unit


def _in_s(
    path: Path, rows: TraceRows, units: Mapping[str, str | None]
) -> tuple[list[np.ndarray], list[str]]:
    """Return TTFT and E2E in s, and notes on the unit assumed for columns without one."""

    def in_unit(usual: str) -> list[np.ndarray]:
        """Return TTFT and E2E in s, where columns without a unit are in the unit `usual`."""
        times = {key: rows.others[key] * TO_MS[unit or usual] / 1e3 for key, unit in units.items()}
        e2e = times.get("e2e")
        if e2e is None and "generation" in times:
            e2e = times["ttft"] + times["generation"]
        elif e2e is None:
            after = np.where(rows.output_len > 1, times["tpot"] * (rows.output_len - 1), 0.0)
            e2e = times["ttft"] + after
        return [times["ttft"], e2e]

    if None not in units.values():
        return in_unit("ms"), []
    for unit in ("ms", "s", "us", "ns"):
        ttft, e2e = in_unit(unit)
        tpot_ms = 1e3 * tpot_of(ttft, e2e, rows.output_len)
        mean_ms = float(np.nanmean(tpot_ms)) if np.isfinite(tpot_ms).any() else math.nan
        if USUAL_TPOT_MS[0] <= mean_ms <= USUAL_TPOT_MS[1]:
            words = f"latencies whose columns say no unit are read as {unit}: TPOT is then {mean_ms:.3g} ms on average"
            return [ttft, e2e], [words]
    raise ConfigError(
        f"{path}: the columns of latencies say no unit, and none makes sense; name them ttft_ms and e2e_ms, or "
        "likewise with _s or _us"
    )


def read_observed_trace(path: Path) -> MeasuredRun:
    """Return the measured requests of a TraceV2 in the order of the file.

    Raises:
        ConfigError: a row is malformed, or no row is measured.
    """
    if path.suffix in (".yaml", ".yml"):
        path = trace_v2.rows_beside(path)
    reading = Reading()
    form: ModuleType = trace_v3 if trace_v3.matches(sniff(path)) else trace_v2
    rows = form.read(path, reading)
    if reading.report.num_bad:
        reading.report.refuse_bad(path, "take such rows out")
    place = trace_v2.header_path(path)
    header = form.read_header(place) if place else trace_v2.Header()
    times = read_table(path)
    chunks = times["num_chunks"].to_numpy(np.float64)
    sent, first, last = (
        times[name].to_numpy(np.float64)
        for name in ("send_time_us", "first_chunk_time_us", "last_chunk_time_us")
    )
    is_streamed = times["streaming"].astype(str).str.lower().isin(["true", "t", "1"]).to_numpy()
    is_good = (times["status"] == "ok").to_numpy() & (first > 0) & (last >= first)
    is_good &= is_streamed | (last > first)
    is_good &= rows.request_id >= header.warm_up_requests
    if not np.any(is_good):
        raise ConfigError(
            f"{path} has no row that is ok and has the times of its chunks; record a run with streaming"
        )
    trip_us = 1e3 * (header.network.measured_rtt_ms if header.network else 0.0)
    is_long = is_good & (chunks > 0) & (rows.output_len > 1)
    gaps = list(zip(chunks[is_long] - 1, rows.output_len[is_long] - 1.0, strict=True))
    run = MeasuredRun(
        rows,
        np.where(is_good, first - sent - trip_us, np.nan),
        np.where(is_good, last - sent - trip_us, np.nan),
        of_header(header) if place else ServerSettings(),
        (*reading.report.notes, *few_gaps(gaps)),
    )
    return _answered(run, trip_us)


def _answered(run: MeasuredRun, trip_us: float) -> MeasuredRun:
    """Return the requests that have an output, with the changes described in the notes."""
    has_output = run.rows.output_len > 0
    notes = list(run.notes)
    if left := int(np.sum(~has_output)):
        notes.append(
            f"{left} of {len(run)} requests have no output: they are left out, though they may have cost "
            "the server time"
        )
    if trip_us:
        notes.append(f"the network's {trip_us / 1e3:g} ms are taken off TTFT and E2E")
    kept = run.take(np.flatnonzero(has_output))
    begin = kept.rows.arrival_us.min()
    rows = dataclasses.replace(kept.rows, arrival_us=kept.rows.arrival_us - begin)
    return dataclasses.replace(kept, rows=rows, notes=tuple(notes))


FORMATS = ("vllm-bench", "trace-v2", "latency-csv", *CLIENTS)
LEAST_REQUESTS = 20
_FILES_OF_RUNS = (  # in a folder; those with requests first
    *("requests.jsonl", "trace.csv", "profile_export.jsonl", "per_request_lifecycle_metrics.json"),
    *("benchmarks.json", "profile_export_aiperf.json", "summary_lifecycle_metrics.json"),
)


def read_measured(
    path: Path, wanted: str | None = None, num_fitted: int | None = None, stage: int | None = None
) -> MeasuredRun:
    """Return a measured run, with requests and latencies, from a file or folder; see `read_result`.

    Raises:
        ConfigError: the file has no requests.
    """
    run = read_result(path, wanted, num_fitted, stage)
    if isinstance(run, Summary):
        raise ConfigError(no_requests(path, run))
    return run


def read_result(
    path: Path, wanted: str | None = None, num_fitted: int | None = None, stage: int | None = None
) -> MeasuredRun | Summary:
    """Return a measured run or, for a file with figures alone, its summary; the format is detected if not given.

    Settings that are estimated from latencies use the first `num_fitted` requests by arrival, all if None; give the
    number of requests in the fit, so that held-out requests stay unseen. `stage` is the number of a run in a file with
    several runs.
    """
    run = read_requests(path, wanted, num_fitted, stage)
    if isinstance(run, MeasuredRun):
        _check(run, path)
    return run


def read_requests(
    path: Path,
    wanted: str | None = None,
    num_fitted: int | None = None,
    stage: int | None = None,
    option: str = "--stage",
) -> MeasuredRun | Summary:
    """Return the requests by arrival, even if few or none were measured; see `read_result`.

    `option` is the name in messages of the option that chooses a stage.
    """
    path = _rows_path(path)
    name, document = _recognised(path, wanted)
    if name in CLIENTS:
        run = _chosen(CLIENTS[name].read(document, str(path)), path, stage, option)
    elif stage is not None:
        raise ConfigError(f"{option}: {path} has one run; leave the option out")
    elif name == "vllm-bench":
        run = read_engine_log(path, num_fitted)
    else:
        run = read_observed_trace(path) if name == "trace-v2" else read_latencies(path)
    if isinstance(run, Summary) and run.load.num_requests == 0:
        raise ConfigError(none_answered(str(path), run.num_failed))
    if isinstance(run, MeasuredRun):
        tpot = run.tpot_us[np.isfinite(run.tpot_us)]
        odd = unlikely(float(np.mean(tpot)) / 1e3) if len(tpot) else []
        run = dataclasses.replace(run, notes=(*run.notes, *odd))
        run = run.take(np.argsort(run.rows.arrival_us, kind="stable"))
    return run


def is_recorded(path: Path) -> bool:
    """Return whether a file, or a file in the folder, is a measured run in a known format."""
    try:
        return bool(_recognised(_rows_path(path), None))
    except ConfigError:
        return False


def _rows_path(path: Path) -> Path:
    if not path.is_dir():
        return path
    paths = [path / name for name in _FILES_OF_RUNS if (path / name).is_file()]
    if not paths:
        raise ConfigError(
            f"{path} holds neither {', '.join(_FILES_OF_RUNS[:-1])} nor {_FILES_OF_RUNS[-1]}; give the "
            "file of the requests"
        )
    return paths[0]


def _recognised(path: Path, wanted: str | None) -> tuple[str, object]:
    """Return the name of a file's format, and its parsed document if a client wrote it."""
    if wanted is not None and wanted not in CLIENTS:
        return wanted, None
    document = parse(path)
    names = [name for name, reader in CLIENTS.items() if reader.matches(document)]
    if not names and isinstance(document, list):  # a list of objects usually written on lines
        document = tuple(document)
        names = [name for name, reader in CLIENTS.items() if reader.matches(document)]
    if wanted is not None and wanted not in names:
        raise ConfigError(f"--format: {path} is no file of {wanted}; leave the option out")
    if names:
        return wanted or names[0], document
    first = document[0] if isinstance(document, tuple) and document else document
    if any(at(first, name) is not None for name in COLUMNS):
        return "vllm-bench", None
    if at(first, "trace_version") is not None:
        return "trace-v2", None
    return _name_of_table(path), None


def _name_of_table(path: Path) -> str:
    first_lines = sniff(path)
    head = first_lines.lines[0] if first_lines.lines else ""
    if not head:
        raise ConfigError(f"{path} is empty; give the result file of a benchmark client")
    if "first_chunk_time_us" in head:
        return "trace-v2"
    columns = first_lines.names
    if head.startswith("{"):
        columns = tuple(plain.flat(first_lines.objects[0])) if first_lines.objects else ()
    if with_unit(columns, LATENCIES["ttft"]) is not None:
        return "latency-csv"
    if (what := foreign(head)) is not None:
        raise ConfigError(f"{path} is no measured run: {what}")
    raise ConfigError(
        f"{path} has no measured latencies that are known here: its first line is {head[:80]!r}; read are "
        "results of vllm bench serve, SGLang's bench_serving, GuideLLM, inference-perf, AIPerf and GenAI-Perf, llm-d's "
        "Benchmark Report, TraceV2 with chunk times, the engine's requests.jsonl, and a table with arrival_s, "
        "input_tokens, output_tokens, ttft_ms and e2e_ms (or usual names for the same)"
    )


def _chosen(
    benchmarks: list[Benchmark], path: Path, stage: int | None, option: str
) -> MeasuredRun | Summary:
    if stage is None and len(benchmarks) > 1:
        listed = "; ".join(
            f"{place}: {benchmark.label}" for place, benchmark in enumerate(benchmarks)
        )
        raise ConfigError(f"{path} has {len(benchmarks)} runs; choose one with {option} ({listed})")
    if not 0 <= (stage or 0) < len(benchmarks):
        raise ConfigError(f"{option}: got {stage}, allowed is 0 to {len(benchmarks) - 1}")
    return benchmarks[stage or 0].read()


def _check(run: MeasuredRun, path: Path) -> None:
    """Refuse a run that cannot be fitted: missing tokens, impossible times, or too few measured requests."""
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


# --- as traces: every file that is read here with its requests is one, without the latencies ------


def matches(sniff: Sniff) -> bool:
    """Return whether a benchmark client or an engine wrote the file, or a file in the folder."""
    return not sniff.is_parquet and is_recorded(sniff.path)


def read(path: Path, reading: Reading) -> TraceRows:
    """Return the requests in the order in which they were sent.

    Raises:
        ConfigError: the file has figures alone, or several runs and none is chosen.
    """
    run = read_requests(path, stage=reading.stage, option="--trace-stage")
    if isinstance(run, Summary):
        raise ConfigError(
            f"{path} has figures of {run.tool} but no requests to replay: {run.lacking}"
        )
    reading.report.notes += run.notes
    rows = run.rows
    return rows if reading.limit is None else rows.take(np.arange(min(len(rows), reading.limit)))
