"""Result files of benchmark clients: vllm bench serve, GuideLLM, inference-perf and AIPerf.

A client's file may list the requests, or hold figures alone. Files without requests become a `Summary`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from blis_jax.calibrate.measured_run import (
    LATENCIES,
    STATISTICS,
    TO_MS,
    Benchmark,
    Load,
    MeasuredRun,
    Sent,
    ServerSettings,
    Summary,
    at,
    closed_loop,
    number,
)
from blis_jax.errors import ConfigError

Figures = dict[tuple[str, str], float]  # by latency and statistic, ms


class BenchmarkClient(NamedTuple):
    """How the files of one client are known and read."""

    matches: Callable[[object], bool]  # whether a document is the client's
    read: Callable[[object, str], list[Benchmark]]  # of a document and the words for its source


def _figures(
    names: Sequence[str], statistics: Sequence[str], of: Callable[[str, str], float]
) -> Figures:
    """Return the figures that a file states; `of` gives that of the client's name and statistic, NaN for none."""
    pairs = product(zip(LATENCIES, names, strict=True), zip(STATISTICS, statistics, strict=True))
    values = {(ours, mine): of(name, theirs) for (ours, name), (mine, theirs) in pairs}
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _run(
    source: str,
    requests: Sequence[object],
    places: Sequence[str],
    add: Callable[[Sent, object, str], None],
) -> MeasuredRun:
    """Return the requests of a file that says nothing of its server; `places` say where each stands."""
    sent = Sent()
    for place, request in zip(places, requests, strict=True):
        add(sent, request, f"{source}{place}:")
    return sent.run(source, ServerSettings())


def _first(document: object) -> object:
    """Return the document, or the first of several in a file."""
    return document[0] if isinstance(document, tuple) and document else document


# --- vllm bench serve: JSON with figures, with --save-detailed lists by request too ---------------

# Times of requests are seconds, figures are ms. `start_times`, without which arrivals are unknown, are written since
# January 2026 (vLLM's pull request 32667). E2E is `latencies` where a later version writes it, else TTFT plus all gaps.
# A file to which --append-result added holds one result a line.
_LISTS = ("start_times", "input_lens", "output_lens", "ttfts", "itls")


def _is_vllm(document: object) -> bool:
    first = _first(document)
    return at(first, "request_throughput") is not None and (
        at(first, "mean_ttft_ms") is not None or at(first, "ttfts") is not None
    )


def _read_vllm(document: object, source: str) -> list[Benchmark]:
    results = document if isinstance(document, tuple) else (document,)
    return [_vllm_benchmark(result, source) for result in results]


def _vllm_benchmark(result: Mapping[str, Any], source: str) -> Benchmark:
    rate = result.get("request_rate")
    rate_per_s = math.nan if rate in (None, "inf") else number(rate, f"{source}: request_rate")
    limit = number(result.get("max_concurrency"), f"{source}: max_concurrency")
    pace = "all at once" if math.isnan(rate_per_s) else f"{rate_per_s:g}/s"
    if math.isfinite(limit):
        pace = f"{pace}, at most {limit:.0f} open"
    settings = ServerSettings(model=result.get("model_id"))
    lacking = [name for name in _LISTS if not isinstance(result.get(name), list)]
    if lacking:
        summary = partial(_vllm_summary, result, source, lacking, rate_per_s, settings)
        return Benchmark(pace, summary)
    notes = [closed_loop(limit)] if math.isfinite(limit) else []
    return Benchmark(pace, lambda: _vllm_requests(result, source).run(source, settings, notes))


def _vllm_requests(result: Mapping[str, Any], source: str) -> Sent:
    columns = {name: result[name] for name in _LISTS}
    errors = result.get("errors") or [""] * len(columns["ttfts"])
    totals = result.get("latencies") or [None] * len(columns["ttfts"])
    lists = {**columns, "errors": errors, "latencies": totals}
    if len({len(values) for values in lists.values()}) > 1:
        raise ConfigError(
            f"{source}: {', '.join(lists)} have different numbers of requests; measure again"
        )
    sent = Sent()
    for place in range(len(errors)):
        if errors[place]:
            sent.num_failed += 1
            continue
        request = {name: values[place] for name, values in lists.items()}
        of = _numbers(request, f"{source}: request {place}:")
        ttft, total = of("ttfts"), of("latencies")
        if math.isnan(total):
            itls = request["itls"] or ()
            total = ttft + sum(number(gap, f"{source}: request {place}: itls") for gap in itls)
        sent.add(of("start_times"), (of("input_lens"), of("output_lens")), ttft, total)
    return sent


def _numbers(document: object, where: str) -> Callable[..., float]:
    """Return what gives the number at the end of a way through a document, NaN for none; `where` begins errors."""
    return lambda *names: number(at(document, *names), f"{where} {'.'.join(names)}")


def _vllm_summary(
    result: Mapping[str, Any],
    source: str,
    lacking: list[str],
    rate_per_s: float,
    settings: ServerSettings,
) -> Summary:
    of = _numbers(result, f"{source}:")
    figures = _figures(
        ("ttft", "tpot", "e2el"),
        ("mean", "median", "p90", "p99"),
        lambda name, statistic: of(f"{statistic}_{name}_ms"),
    )
    count = of("completed") or math.nan
    tokens = [of(f"total_{kind}_tokens") / count for kind in ("input", "output")]
    words = "it has no lists by request; measure again with --save-detailed"
    if lacking == ["start_times"]:
        words = "it has no start_times, so arrivals are unknown; measure again with a vLLM of 2026"
    load = Load(count, rate_per_s, *tokens)
    return Summary("vllm bench serve", figures, words, load, settings)


# --- GuideLLM: benchmarks.json or .yaml, one benchmark for each pace, each with its requests ------

# Report schema 1 (GuideLLM 0.4 to 0.6) and 2 (0.7). Every request has request_start_time (s), prompt_tokens,
# output_tokens, time_to_first_token_ms, and inter_token_latency_ms from its first to its last token. The report's own
# figures of the inter-token latency weigh requests by tokens, so figures are computed from the requests here.
_CLOSED = ("synchronous", "concurrent", "throughput")


def _is_guidellm(document: object) -> bool:
    benchmarks = at(document, "benchmarks")
    is_list = isinstance(benchmarks, list) and bool(benchmarks)
    return is_list and at(benchmarks[0], "requests", "successful") is not None


def _read_guidellm(document: object, source: str) -> list[Benchmark]:
    return [
        _guidellm_benchmark(benchmark, f"{source}: benchmark {place}")
        for place, benchmark in enumerate(at(document, "benchmarks"))
    ]


def _guidellm_benchmark(benchmark: object, source: str) -> Benchmark:
    if not isinstance(at(benchmark, "requests", "successful"), list):
        raise ConfigError(f"{source} has no requests.successful; give GuideLLM's own report")
    strategy = at(benchmark, "config", "strategy")
    kind = str(at(strategy, "type_") or "unknown pace")
    rate = at(strategy, "rate")
    label = kind if rate is None else f"{kind} at {number(rate, source):g}/s"
    return Benchmark(label, lambda: _guidellm_run(benchmark, source, is_closed=kind in _CLOSED))


def _guidellm_run(benchmark: object, source: str, *, is_closed: bool) -> MeasuredRun:
    sent = Sent()
    for failed in ("errored", "incomplete"):
        sent.num_failed += len(at(benchmark, "requests", failed) or ())
    for place, request in enumerate(at(benchmark, "requests", "successful")):
        where = f"{source}: request {place}:"
        of = _numbers(request, where)
        output, ttft = of("output_tokens"), of("time_to_first_token_ms")
        gaps = of("inter_token_latency_ms") * (output - 1) if output > 1 else 0.0
        tokens = of("prompt_tokens"), output
        sent.add(of("request_start_time"), tokens, ttft / 1e3, (ttft + gaps) / 1e3)
        cached = number(at(request, "input_metrics", "cached_tokens"), f"{where} cached_tokens")
        sent.cached_tokens += 0.0 if math.isnan(cached) else cached
    model = at(benchmark, "config", "backend", "model")
    settings = ServerSettings(model=model if isinstance(model, str) else None)
    return sent.run(source, settings, [closed_loop(None)] if is_closed else [])


# --- inference-perf: per_request_lifecycle_metrics.json, and the figures of a stage or of all -----

# Per request start_time (s), and in `info` lengths and output_token_times on the same clock: flat up to version 0.4, in
# `response_info` in 0.5, in `request_metrics` and `response_metrics` since 0.6. The last token counts as the end, since
# end_time includes the client's own work. A token count by the server goes before the client's. Figures are in
# `successes.latency`, in seconds.


def _is_inference_perf(document: object) -> bool:
    first = document[0] if isinstance(document, list) and document else None
    if at(first, "start_time") is not None and isinstance(at(first, "info"), Mapping):
        return True
    has_load = isinstance(document, Mapping) and "load_summary" in document
    return has_load and at(document, "successes") is not None


def _read_inference_perf(document: object, source: str) -> list[Benchmark]:
    if not isinstance(document, list):
        return [Benchmark("figures", lambda: _inference_perf_figures(document, source))]
    places = [f": request {place}" for place in range(len(document))]
    run = partial(_run, source, document, places, _add_inference_perf)
    return [Benchmark("requests of all stages", run)]


def _add_inference_perf(sent: Sent, request: object, where: str) -> None:
    if at(request, "error") is not None:
        sent.num_failed += 1
        return
    info = at(request, "info")
    answer = at(info, "response_metrics") or at(info, "response_info") or info
    times = at(answer, "output_token_times") or [math.nan]
    if not isinstance(times, list):
        raise ConfigError(f"{where} output_token_times is no list; give inference-perf's own file")
    start = number(at(request, "start_time"), f"{where} start_time")
    first, last = (number(times[end], f"{where} output_token_times") for end in (0, -1))
    output = at(answer, "server_usage", "completion_tokens") or at(answer, "output_tokens")
    prompt = at(info, "request_metrics", "text", "input_tokens")
    prompt = at(info, "input_tokens") if prompt is None else prompt
    tokens = number(prompt, f"{where} input_tokens"), number(output, f"{where} output_tokens")
    sent.add(start, tokens, first - start, last - start)
    cached = at(answer, "server_usage", "prompt_tokens_details", "cached_tokens")
    sent.cached_tokens += number(cached or 0, f"{where} cached_tokens")


def _inference_perf_figures(document: object, source: str) -> Summary:
    of = _numbers(document, f"{source}:")
    figures = _figures(
        ("time_to_first_token", "time_per_output_token", "request_latency"),
        ("mean", "median", "p90", "p99"),
        lambda name, statistic: 1e3 * of("successes", "latency", name, statistic),
    )
    is_old = at(document, "successes", "prompt_tokens") is not None
    load = Load(
        of("successes", "count"),
        of("load_summary", "requested_rate"),
        of("successes", "prompt_tokens" if is_old else "prompt_len", "mean"),
        of("successes", "output_len", "mean"),
    )
    words = (
        "it has no requests; give per_request_lifecycle_metrics.json, which report.request_lifecycle."
        "per_request: true writes"
    )
    return Summary("inference-perf", figures, words, load)


# --- AIPerf: profile_export.jsonl, one record a request, and profile_export_aiperf.json, figures --

# AIPerf 0.1.1 to 0.10 (export schemas 1.0 to 1.3). A record has metadata.request_start_ns and benchmark_phase, and in
# `metrics` values with units. E2E is request_latency, from sending to the last answer with content. Requests of another
# phase than profiling (warm-up) arrive, but count as not measured.
_LENGTHS = ("input_sequence_length", "output_sequence_length")


def _is_aiperf(document: object) -> bool:
    first = _first(document)
    is_record = at(first, "metadata", "request_start_ns") is not None
    return is_record or at(first, "request_latency", "unit") is not None


def _read_aiperf(document: object, source: str) -> list[Benchmark]:
    records = document if isinstance(document, tuple) else (document,)
    if at(records[0], "metadata", "request_start_ns") is None:
        return [Benchmark("figures", lambda: _aiperf_figures(records[0], source))]
    places = [f", line {place}" for place in range(1, len(records) + 1)]
    return [Benchmark("requests", partial(_run, source, records, places, _add_aiperf))]


def _add_aiperf(sent: Sent, record: object, where: str) -> None:
    if at(record, "error") is not None or at(record, "metadata", "was_cancelled"):
        sent.num_failed += 1
        return
    start = number(at(record, "metadata", "request_start_ns"), f"{where} request_start_ns")
    inputs, outputs = (
        number(at(record, "metrics", name, "value"), f"{where} {name}") for name in _LENGTHS
    )
    ttft, total = (
        _ms(at(record, "metrics", name), "value", f"{where} {name}")
        for name in ("time_to_first_token", "request_latency")
    )
    if at(record, "metadata", "benchmark_phase") not in ("profiling", None):
        ttft = math.nan
    sent.add(start / 1e9, (inputs, outputs), ttft / 1e3, total / 1e3)


def _ms(metric: object, name: str, where: str) -> float:
    """Return a value with a unit, in ms; NaN if there is none."""
    value, unit = number(at(metric, name), where), at(metric, "unit")
    if not math.isnan(value) and unit not in TO_MS:
        raise ConfigError(f"{where} has the unit {unit!r}; allowed are {', '.join(TO_MS)}")
    return value * TO_MS.get(unit, math.nan)


def _aiperf_figures(document: object, source: str) -> Summary:
    figures = _figures(
        ("time_to_first_token", "inter_token_latency", "request_latency"),
        ("avg", "p50", "p90", "p99"),
        lambda name, statistic: _ms(at(document, name), statistic, f"{source}: {name}.{statistic}"),
    )
    of = _numbers(document, f"{source}:")
    count, inputs, outputs = (of(name, "avg") for name in ("request_count", *_LENGTHS))
    load = Load(count, of("input_config", "loadgen", "request_rate"), inputs, outputs)
    words = "it has no requests; give profile_export.jsonl, which AIPerf writes beside it"
    return Summary("aiperf", figures, words, load)


CLIENTS = {
    "vllm-bench-serve": BenchmarkClient(_is_vllm, _read_vllm),
    "guidellm": BenchmarkClient(_is_guidellm, _read_guidellm),
    "inference-perf": BenchmarkClient(_is_inference_perf, _read_inference_perf),
    "aiperf": BenchmarkClient(_is_aiperf, _read_aiperf),
}
