"""Helpers for reading benchmark clients' files, and the readers for AIPerf and GenAI-Perf."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from blis_jax.errors import ConfigError, shortened
from blis_jax.traces.measured.run import LATENCIES, STATISTICS, MeasuredRun, ServerSettings, at
from blis_jax.traces.measured.sent import (
    TO_MS,
    Benchmark,
    Load,
    Sent,
    Summary,
    none_answered,
    number,
)

Figures = dict[tuple[str, str], float]  # by latency and statistic, ms


class BenchmarkClient(NamedTuple):
    """A benchmark client's file format: a function that recognises its files, and a reader."""

    matches: Callable[[object], bool]  # whether a document is the client's
    read: Callable[[object, str], list[Benchmark]]  # of a document and the words for its source


def stated_figures(
    names: Sequence[str], statistics: Sequence[str], of: Callable[[str, str], float]
) -> Figures:
    """Return the figures above 0 that a file states; `of` returns one by the client's name and statistic, or NaN."""
    pairs = product(zip(LATENCIES, names, strict=True), zip(STATISTICS, statistics, strict=True))
    values = {(ours, statistic): of(name, theirs) for (ours, name), (statistic, theirs) in pairs}
    return {key: value for key, value in values.items() if math.isfinite(value) and value > 0}


def run_of(
    source: str,
    requests: Sequence[object],
    places: Sequence[str],
    add: Callable[[Sent, object, str], None],
) -> MeasuredRun:
    """Return the requests of a file without server settings; `places` name each request's position in errors."""
    sent = Sent()
    for place, request in zip(places, requests, strict=True):
        add(sent, request, f"{source}{place}:")
    return sent.run(source, ServerSettings())


def first_of(document: object) -> object:
    """Return the document, or the first document if the file has several."""
    return document[0] if isinstance(document, tuple) and document else document


def numbers_of(document: object, where: str) -> Callable[..., float]:
    """Return a function that reads the number at a path of names in a document, NaN for none; `where` begins errors."""
    return lambda *names: number(at(document, *names), f"{where} {'.'.join(names)}")


# --- AIPerf: profile_export.jsonl, one record a request, and profile_export_aiperf.json, figures --

# AIPerf 0.1.1 to 0.10 (export schemas 1.0 to 1.3). A record has metadata.request_start_ns and benchmark_phase, and in
# `metrics` values with units. E2E is request_latency, from sending to the last answer with content. Requests of another
# phase than profiling (warm-up) arrive, but count as not measured.
_LENGTHS = ("input_sequence_length", "output_sequence_length")


def is_aiperf(document: object) -> bool:
    """Return whether a document is a request record of AIPerf or its summary."""
    first = first_of(document)
    is_record = at(first, "metadata", "request_start_ns") is not None
    return is_record or at(first, "request_latency", "unit") is not None


def read_aiperf(document: object, source: str) -> list[Benchmark]:
    """Return the only run of the file, as requests or as a summary."""
    records = document if isinstance(document, tuple) else (document,)
    if at(records[0], "metadata", "request_start_ns") is None:
        return [Benchmark("figures", lambda: _aiperf_figures(records[0], source))]
    places = [f", line {place}" for place in range(1, len(records) + 1)]
    return [Benchmark("requests", partial(run_of, source, records, places, _add_aiperf))]


def _add_aiperf(sent: Sent, record: object, where: str) -> None:
    if at(record, "error") is not None or at(record, "metadata", "was_cancelled"):
        sent.num_failed += 1
        return
    start = number(at(record, "metadata", "request_start_ns"), f"{where} request_start_ns")
    inputs, outputs = (
        number(at(record, "metrics", name, "value"), f"{where} {name}") for name in _LENGTHS
    )
    if math.isnan(outputs):  # answer and reasoning, counted apart
        parts = [
            number(at(record, "metrics", name, "value"), f"{where} {name}")
            for name in ("output_token_count", "reasoning_token_count")
        ]
        outputs = parts[0] + (0.0 if math.isnan(parts[1]) else parts[1])
    ttft, total = (
        in_ms(at(record, "metrics", name), "value", f"{where} {name}")
        for name in ("time_to_first_token", "request_latency")
    )
    if at(record, "metadata", "benchmark_phase") not in ("profiling", None):
        ttft = math.nan
        sent.num_warm_up += 1
    turn = number(at(record, "metadata", "turn_index"), f"{where} turn_index")
    sent.num_later_turns += turn > 0
    sent.add(start / 1e9, (inputs, outputs), ttft / 1e3, total / 1e3)


def in_ms(metric: object, name: str, where: str) -> float:
    """Return a metric's value in ms, converted from its unit; NaN if there is none."""
    value, unit = number(at(metric, name), where), at(metric, "unit") or at(metric, "units")
    unit = unit.partition("/")[0] if isinstance(unit, str) else unit  # ms/token
    if math.isnan(value):
        return math.nan
    if not isinstance(unit, str) or unit not in TO_MS:
        raise ConfigError(f"{where} has the unit {shortened(unit)}; allowed are {', '.join(TO_MS)}")
    return value * TO_MS[unit]


def _aiperf_figures(document: object, source: str) -> Summary:
    figures = stated_figures(
        ("time_to_first_token", "inter_token_latency", "request_latency"),
        ("avg", "p50", "p90", "p99"),
        lambda name, statistic: in_ms(
            at(document, name), statistic, f"{source}: {name}.{statistic}"
        ),
    )
    of = numbers_of(document, f"{source}:")
    count, inputs, outputs = (of(name, "avg") for name in ("request_count", *_LENGTHS))
    pace = ("input_config", "loadgen")
    load = Load(
        count,
        of(*pace, "request_rate"),
        inputs,
        outputs,
        of(_LENGTHS[0], "std"),
        of(_LENGTHS[1], "std"),
        of(*pace, "concurrency"),
    )
    words = "it has no requests; give profile_export.jsonl, which AIPerf writes beside it"
    num_failed = of("error_request_count", "avg")
    num_failed = 0.0 if math.isnan(num_failed) else num_failed
    return Summary("aiperf", figures, words, load, num_failed=num_failed)


# --- GenAI-Perf: profile_export.json, the times of every answer, but no lengths -------------------

# Times are ns. An experiment says concurrency or request_rate. Prompts and answers are texts, so that lengths are known
# to its tokenizer alone; its figures are AIPerf's in form.


def is_genai_perf(document: object) -> bool:
    """Return whether a document is GenAI-Perf's raw export."""
    experiments = at(document, "experiments")
    is_list = isinstance(experiments, list) and bool(experiments)
    return is_list and isinstance(at(experiments[0], "requests"), list)


def read_genai_perf(document: object, source: str) -> list[Benchmark]:
    """Return the runs in the file's experiments, each with the latencies of its requests."""
    runs = []
    for place, experiment in enumerate(at(document, "experiments")):
        mode, value = (at(experiment, "experiment", name) for name in ("mode", "value"))
        read = partial(_genai_perf_figures, experiment, f"{source}: experiment {place}")
        runs.append(Benchmark(f"{mode} {value}", read))
    return runs


def _genai_perf_figures(experiment: object, source: str) -> Summary:
    times, num_failed, requests = [], 0, at(experiment, "requests")
    for place, request in enumerate(requests):
        where = f"{source}: request {place}: response_timestamps"
        sent, answers = number(at(request, "timestamp"), where), at(request, "response_timestamps")
        has_failed = at(request, "success") is False or at(request, "error") is not None
        if has_failed or not isinstance(answers, list) or not answers:
            num_failed += 1
            continue
        first, last = ((number(answers[end], where) - sent) / 1e6 for end in (0, -1))
        times.append((math.nan if len(answers) == 1 else first, last))
    if not times:
        raise ConfigError(none_answered(source, len(requests)))
    columns = np.asarray(times).T
    is_streamed = bool(np.any(np.isfinite(columns[0])))  # one answer: the client did not stream
    by_latency = {
        name: values[np.isfinite(values)]
        for name, values in zip(("ttft_ms", "e2e_ms"), columns, strict=True)
        if is_streamed or name == "e2e_ms"
    }
    figures = {
        (name, statistic): float(
            np.mean(values) if statistic == "mean" else np.percentile(values, int(statistic[1:]))
        )
        for name, values in by_latency.items()
        for statistic in STATISTICS
    }
    mode, value = at(experiment, "experiment", "mode"), at(experiment, "experiment", "value")
    pace = number(value, f"{source}: value") if isinstance(value, int | float) else math.nan
    load = Load(
        len(times),
        rate_per_s=pace if mode == "request_rate" else math.nan,
        max_open=pace if mode == "concurrency" else math.nan,
    )
    words = (
        "it has prompts and answers as texts, but no lengths in tokens; give profile_export.jsonl of AIPerf, which "
        "took GenAI-Perf's place"
    )
    return Summary("GenAI-Perf", figures, words, load, num_failed=num_failed)
