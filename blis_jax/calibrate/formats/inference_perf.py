"""inference-perf's reports: per_request_lifecycle_metrics.json, and the figures of a stage or of all.

Per request start_time (s), and in `info` lengths and output_token_times on the same clock: flat up to
version 0.4, in `response_info` in 0.5, in `request_metrics` and `response_metrics` since 0.6. The last
token counts as the end, since end_time includes the client's own work. A token count by the server goes
before the client's. Figures are in `successes.latency`, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blis_jax.calibrate.formats.contract import (
    Benchmark,
    Load,
    Sent,
    Summary,
    at,
    number,
    stated,
)
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.settings import ServerSettings
from blis_jax.errors import ConfigError

NAME = "inference-perf"
_LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "time_per_output_token",
    "e2e_ms": "request_latency",
}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
_LACKING = (
    "it has no requests; give per_request_lifecycle_metrics.json, which report.request_lifecycle."
    "per_request: true writes"
)


def matches(document: Any) -> bool:
    """Whether it is the list of requests, or figures of successes."""
    first = document[0] if isinstance(document, list) and document else None
    is_list = at(first, "start_time") is not None and isinstance(at(first, "info"), Mapping)
    return is_list or (at(document, "successes") is not None and "load_summary" in document)


def read(document: Any, source: str) -> list[Benchmark]:
    """One benchmark: requests of all stages, or the figures of one report."""
    if not isinstance(document, list):
        return [Benchmark("figures", lambda: _figures(document, source))]
    return [Benchmark("requests of all stages", lambda: _run(document, source))]


def _run(requests: list[Any], source: str) -> MeasuredRun:
    sent = Sent()
    for place, request in enumerate(requests):
        _add(sent, request, f"{source}: request {place}:")
    return sent.run(source, ServerSettings())


def _add(sent: Sent, request: Any, where: str) -> None:
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
    tokens = (
        number(prompt, f"{where} input_tokens"),
        number(output, f"{where} output_tokens"),
    )
    sent.add(start, tokens, first - start, last - start)
    cached = at(answer, "server_usage", "prompt_tokens_details", "cached_tokens")
    sent.cached_tokens += number(cached or 0, f"{where} cached_tokens")


def _figures(document: Mapping[str, Any], source: str) -> Summary:
    def of(*names: str) -> float:
        return number(at(document, *names), f"{source}: {'.'.join(names)}")

    figures = {
        (latency, statistic): 1e3 * of("successes", "latency", name, theirs)
        for latency, name in _LATENCIES.items()
        for statistic, theirs in _STATISTICS.items()
    }
    answered = at(document, "successes")
    prompts = "prompt_tokens" if at(answered, "prompt_tokens") is not None else "prompt_len"
    load = Load(
        of("successes", "count"),
        of("load_summary", "requested_rate"),
        of("successes", prompts, "mean"),
        of("successes", "output_len", "mean"),
    )
    return Summary(NAME, stated(figures), _LACKING, load)
