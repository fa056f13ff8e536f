"""GuideLLM's report, `benchmarks.json` or .yaml: one benchmark for each pace, each with its requests.

Report schema 1 (GuideLLM 0.4 to 0.6) and 2 (0.7). Every request has request_start_time (s),
prompt_tokens, output_tokens, time_to_first_token_ms, and inter_token_latency_ms from its first to its
last token. The report's own figures of the inter-token latency weigh requests by tokens, so figures
are computed from the requests here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blis_jax.calibrate.formats.contract import Benchmark, Sent, at, closed_loop, number
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.settings import ServerSettings
from blis_jax.errors import ConfigError

NAME = "guidellm"
_CLOSED = ("synchronous", "concurrent", "throughput")


def matches(document: Any) -> bool:
    """Whether it has benchmarks with requests by status."""
    benchmarks = at(document, "benchmarks")
    return (
        isinstance(benchmarks, list) and bool(benchmarks) and _by_status(benchmarks[0]) is not None
    )


def _by_status(benchmark: Any) -> Any:
    return at(benchmark, "requests", "successful")


def read(document: Any, source: str) -> list[Benchmark]:
    """The benchmarks in the order of the report."""
    return [
        _benchmark(benchmark, f"{source}: benchmark {place}")
        for place, benchmark in enumerate(document["benchmarks"])
    ]


def _benchmark(benchmark: Mapping[str, Any], source: str) -> Benchmark:
    requests = _by_status(benchmark)
    if not isinstance(requests, list):
        raise ConfigError(f"{source} has no requests.successful; give GuideLLM's own report")
    strategy = at(benchmark, "config", "strategy")
    kind = str(at(strategy, "type_") or "unknown pace")
    rate = at(strategy, "rate")
    label = kind if rate is None else f"{kind} at {number(rate, source):g}/s"
    return Benchmark(label, lambda: _run(benchmark, source, is_closed=kind in _CLOSED))


def _run(benchmark: Mapping[str, Any], source: str, *, is_closed: bool) -> MeasuredRun:
    sent = Sent()
    sent.num_failed = len(at(benchmark, "requests", "errored") or ())
    sent.num_failed += len(at(benchmark, "requests", "incomplete") or ())
    for place, request in enumerate(_by_status(benchmark)):
        _add(sent, request, f"{source}: request {place}:")
    model = at(benchmark, "config", "backend", "model")
    settings = ServerSettings(model=model if isinstance(model, str) else None)
    return sent.run(source, settings, [closed_loop(None)] if is_closed else [])


def _add(sent: Sent, request: Any, where: str) -> None:
    def of(name: str) -> float:
        return number(at(request, name), f"{where} {name}")

    output = of("output_tokens")
    gaps = of("inter_token_latency_ms") * (output - 1) if output > 1 else 0.0
    ttft = of("time_to_first_token_ms")
    sent.add(
        of("request_start_time"), (of("prompt_tokens"), output), ttft / 1e3, (ttft + gaps) / 1e3
    )
    cached = number(at(request, "input_metrics", "cached_tokens"), f"{where} cached_tokens")
    sent.cached_tokens += 0.0 if math.isnan(cached) else cached
