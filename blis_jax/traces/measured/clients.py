"""Result files of vllm bench serve, SGLang's bench_serving, GuideLLM and inference-perf, and a table of all clients.

A client's file may list the requests, or hold only aggregate figures, which are read into a `Summary`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError, shortened
from blis_jax.traces.measured.benchmark_files import (
    BenchmarkClient,
    first_of,
    is_aiperf,
    is_genai_perf,
    numbers_of,
    read_aiperf,
    read_genai_perf,
    run_of,
    stated_figures,
)
from blis_jax.traces.measured.llmd_report import is_llmd_report, read_llmd_report
from blis_jax.traces.measured.run import MeasuredRun, ServerSettings, at, text_at
from blis_jax.traces.measured.sent import (
    Benchmark,
    Load,
    Sent,
    Summary,
    closed_loop,
    number,
    numbers_in,
)

# --- vllm bench serve and SGLang's bench_serving: figures, and lists by request if asked for ------

# Times of requests are seconds, figures are ms. vLLM writes `start_times`, without which arrivals are unknown, since
# January 2026 (its pull request 32667), SGLang never; where all requests are sent at once they are not needed. E2E is
# `latencies` where a later vLLM writes it, else TTFT plus all gaps. A file may hold one result a line.
_LISTS = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
VLLM, SGLANG = "vllm bench serve", "SGLang's bench_serving"
_DETAILS = {VLLM: "--save-detailed", SGLANG: "--output-details"}
_WITH_TIMES = {
    VLLM: "with a vLLM of 2026",
    SGLANG: "with vllm bench serve --backend openai, which SGLang's server understands, or with --request-rate inf and "
    "no --max-concurrency, where all requests are sent at once",
}


def _is_vllm(document: object) -> bool:
    first = first_of(document)
    has_figures = at(first, "mean_ttft_ms") is not None or at(first, "ttfts") is not None
    is_sglang = at(first, "mean_e2e_latency_ms") is not None
    return at(first, "request_throughput") is not None and has_figures and not is_sglang


def _is_sglang(document: object) -> bool:
    first = first_of(document)
    names = ("request_throughput", "mean_e2e_latency_ms")
    return all(at(first, name) is not None for name in names)


def _read_lists(document: object, source: str, tool: str) -> list[Benchmark]:
    results = document if isinstance(document, tuple) else (document,)
    return [_lists_benchmark(result, source, tool) for result in results]


def _lists_benchmark(result: Mapping[str, Any], source: str, tool: str) -> Benchmark:
    of = numbers_of(result, f"{source}:")
    rate = result.get("request_rate")
    is_at_once = rate is None or str(rate).lower() in ("inf", "infinity")
    rate_per_s = math.inf if is_at_once else of("request_rate")
    limit = of("max_concurrency")
    is_limited = math.isfinite(limit)
    is_ramp = bool(result.get("ramp_up_strategy"))
    rate_per_s = math.nan if is_ramp else rate_per_s
    pace = "all at once" if math.isinf(rate_per_s) else "ramped" if is_ramp else f"{rate_per_s:g}/s"
    if is_limited:
        pace = f"{pace}, at most {limit:.0f} open"
    settings = ServerSettings(model=text_at(result, "model_id"))
    notes = [closed_loop(limit)] if is_limited else []
    if math.isinf(rate_per_s) and not is_limited and isinstance(result.get("ttfts"), list):
        result = {"start_times": [0.0] * len(result["ttfts"]), **result}
    lacking = [name for name in _LISTS if not isinstance(result.get(name), list)]
    ttfts, errors = result.get("ttfts"), result.get("errors")
    has_failed = isinstance(errors, list) and bool(errors) and all(errors)
    is_streamed = not isinstance(ttfts, list) or any(ttfts) or has_failed
    if lacking or not is_streamed:
        load = _load(result, of, rate_per_s, limit)
        words = _what_lacks(tool, lacking, is_streamed=is_streamed)
        summary = partial(_lists_summary, of, tool, words, load, settings)
        return Benchmark(pace, summary)
    lasted_s = of("duration")
    return Benchmark(
        pace, lambda: _listed_requests(result, source).run(source, settings, notes, lasted_s)
    )


def _what_lacks(tool: str, lacking: Sequence[str], *, is_streamed: bool) -> str:
    """Return why no fit is possible, and how to measure again; a client that does not stream writes a TTFT of 0."""
    words = []
    if list(lacking) == ["start_times"]:
        again = _WITH_TIMES[tool]
        words.append(f"it has no start_times, so arrivals are unknown; measure again {again}")
    elif lacking:
        what = "lists by request" if len(lacking) > 1 else f"list of {lacking[0]}"
        words.append(f"it has no {what}; measure again with {_DETAILS[tool]}")
    if not is_streamed:
        words.append(
            "all its times of first tokens are 0: the client did not stream; measure again with streaming"
        )
    return "; ".join(words)


def _listed_requests(result: Mapping[str, Any], source: str) -> Sent:
    columns = {name: result[name] for name in _LISTS}
    nothing = [None] * len(columns["ttfts"])
    further = {name: result.get(name) or nothing for name in ("errors", "latencies")}
    for name, values in further.items():
        if not isinstance(values, list):
            raise ConfigError(
                f"{source}: {name} is {shortened(values)}; give a list, or leave it out"
            )
    lists, errors = {**columns, **further}, further["errors"]
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
        of = numbers_of(request, f"{source}: request {place}:")
        ttft, total = of("ttfts"), of("latencies")
        itls = numbers_in(request["itls"] or [], f"{source}: request {place}: itls")
        if math.isnan(total):
            total = ttft + sum(itls)
        outputs = of("output_lens")
        sent.add(of("start_times"), (of("input_lens"), outputs), ttft, total)
        if outputs > 1:
            sent.add_gaps(ttft, itls, outputs - 1)
    return sent


def _load(
    result: Mapping[str, Any], of: Callable[..., float], rate_per_s: float, limit: float
) -> Load:
    """Return the load that the client sent, with standard deviations of lengths if the file lists lengths."""
    count = of("completed")
    tokens = [of(f"total_{kind}_tokens") / (count or math.nan) for kind in ("input", "output")]
    listed = (result.get("input_lens"), result.get("output_lens"))
    spread = [
        float(np.std(numbers_in(each, "a listed length"))) if isinstance(each, list) else math.nan
        for each in listed
    ]
    return Load(count, rate_per_s, tokens[0], tokens[1], spread[0], spread[1], limit)


def _lists_summary(
    of: Callable[..., float], tool: str, words: str, load: Load, settings: ServerSettings
) -> Summary:
    e2e = "e2e_latency" if tool == SGLANG else "e2el"
    figures = stated_figures(
        ("ttft", "tpot", e2e),
        ("mean", "median", "p90", "p99"),
        lambda name, statistic: of(f"{statistic}_{name}_ms"),
    )
    num_failed = of("failed")
    if math.isnan(num_failed):
        num_failed = max(of("num_prompts") - of("completed"), 0.0)
    return Summary(
        tool, figures, words, load, settings, 0.0 if math.isnan(num_failed) else num_failed
    )


# --- GuideLLM: benchmarks.json or .yaml, one benchmark for each pace, each with its requests ------

# Report schema 1 (GuideLLM 0.4 to 0.6) and 2 (0.7). Every request has request_start_time (s), prompt_tokens,
# output_tokens, time_to_first_token_ms, and inter_token_latency_ms from its first to its last token. GuideLLM 0.3 has
# start_time, first_token_time and last_token_time (s), and the strategy in `args`. The report's own figures of the
# inter-token latency weigh requests by tokens, so figures are computed from the requests here.
_CLOSED = ("synchronous", "concurrent", "throughput")


def _is_guidellm(document: object) -> bool:
    benchmarks = at(document, "benchmarks")
    if benchmarks == []:
        return at(document, "metadata", "guidellm_version") is not None
    is_list = isinstance(benchmarks, list) and bool(benchmarks)
    return is_list and at(benchmarks[0], "requests", "successful") is not None


def _read_guidellm(document: object, source: str) -> list[Benchmark]:
    if not at(document, "benchmarks"):
        raise ConfigError(
            f"{source}: GuideLLM's report has no benchmark, so none came to its end; measure again"
        )
    return [
        _guidellm_benchmark(benchmark, f"{source}: benchmark {place}")
        for place, benchmark in enumerate(at(document, "benchmarks"))
    ]


def _guidellm_benchmark(benchmark: object, source: str) -> Benchmark:
    if not isinstance(at(benchmark, "requests", "successful"), list):
        raise ConfigError(f"{source} has no requests.successful; give GuideLLM's own report")
    strategy = at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")
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
        of = numbers_of(request, where)
        output, ttft = of("output_tokens"), of("time_to_first_token_ms")
        gaps = of("inter_token_latency_ms") * (output - 1) if output > 1 else 0.0
        start, total = of("request_start_time"), ttft + gaps
        if math.isnan(start):
            start = of("start_time")
            ttft, total = (1e3 * (of(f"{end}_token_time") - start) for end in ("first", "last"))
        sent.add(start, (of("prompt_tokens"), output), ttft / 1e3, total / 1e3)
        cached = number(at(request, "input_metrics", "cached_tokens"), f"{where} cached_tokens")
        sent.cached_tokens += 0.0 if math.isnan(cached) else cached
        media = ("image_tokens", "image_count", "audio_seconds", "audio_tokens", "video_seconds")
        sent.num_with_media += any(at(request, "input_metrics", name) for name in media)
    settings = ServerSettings(model=text_at(benchmark, "config", "backend", "model"))
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
    run = partial(run_of, source, document, places, _add_inference_perf)
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
    if tokens[1] > 1:
        gaps = np.diff(numbers_in(times, f"{where} output_token_times")).tolist()
        sent.add_gaps(first - start, gaps, tokens[1] - 1)
    cached = at(answer, "server_usage", "prompt_tokens_details", "cached_tokens")
    sent.cached_tokens += number(cached or 0, f"{where} cached_tokens")


def _inference_perf_figures(document: object, source: str) -> Summary:
    of = numbers_of(document, f"{source}:")
    figures = stated_figures(
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
        max_open=of("load_summary", "concurrency"),
    )
    words = (
        "it has no requests; give per_request_lifecycle_metrics.json, which report.request_lifecycle."
        "per_request: true writes"
    )
    return Summary("inference-perf", figures, words, load, num_failed=of("failures", "count"))


CLIENTS = {
    "vllm-bench-serve": BenchmarkClient(_is_vllm, partial(_read_lists, tool=VLLM)),
    "sglang-bench-serving": BenchmarkClient(_is_sglang, partial(_read_lists, tool=SGLANG)),
    "guidellm": BenchmarkClient(_is_guidellm, _read_guidellm),
    "inference-perf": BenchmarkClient(_is_inference_perf, _read_inference_perf),
    "aiperf": BenchmarkClient(is_aiperf, read_aiperf),
    "genai-perf": BenchmarkClient(is_genai_perf, read_genai_perf),
    "llm-d-benchmark-report": BenchmarkClient(is_llmd_report, read_llmd_report),
}
