"""The result file of `vllm bench serve`: JSON with figures, with --save-detailed lists by request too.

Times of requests are seconds, figures are ms. `start_times`, without which arrivals are unknown, are
written since January 2026 (vLLM's pull request 32667). E2E is `latencies` where a later version writes
it, else TTFT plus all gaps. A file to which --append-result added holds one result a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from blis_jax.calibrate.formats.contract import (
    Benchmark,
    Load,
    Sent,
    Summary,
    at,
    closed_loop,
    number,
    stated,
)
from blis_jax.calibrate.settings import ServerSettings
from blis_jax.errors import ConfigError

NAME = "vllm-bench-serve"
TOOL = "vllm bench serve"
_LISTS = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
_LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el"}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}


def matches(document: Any) -> bool:
    """Whether it is a result, or a tuple of them."""
    first = document[0] if isinstance(document, tuple) and document else document
    return at(first, "request_throughput") is not None and (
        at(first, "mean_ttft_ms") is not None or at(first, "ttfts") is not None
    )


def read(document: Any, source: str) -> list[Benchmark]:
    """The results in the file."""
    results = document if isinstance(document, tuple) else (document,)
    return [_benchmark(result, source) for result in results]


def _benchmark(result: Mapping[str, Any], source: str) -> Benchmark:
    rate = result.get("request_rate")
    rate_per_s = math.nan if rate in (None, "inf") else number(rate, f"{source}: request_rate")
    limit = number(result.get("max_concurrency"), f"{source}: max_concurrency")
    pace = "all at once" if math.isnan(rate_per_s) else f"{rate_per_s:g}/s"
    if math.isfinite(limit):
        pace = f"{pace}, at most {limit:.0f} open"
    settings = ServerSettings(model=result.get("model_id"))
    lacking = [name for name in _LISTS if not isinstance(result.get(name), list)]
    if lacking:
        return Benchmark(pace, partial(_summary, result, source, lacking, rate_per_s, settings))
    notes = [closed_loop(limit)] if math.isfinite(limit) else []
    return Benchmark(pace, lambda: _requests(result, source).run(source, settings, notes))


def _requests(result: Mapping[str, Any], source: str) -> Sent:
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
        of = {name: values[place] for name, values in lists.items()}
        where = f"{source}: request {place}:"
        ttft = number(of["ttfts"], f"{where} ttfts")
        total = number(of["latencies"], f"{where} latencies")
        if math.isnan(total):
            total = ttft + sum(number(gap, f"{where} itls") for gap in of["itls"] or ())
        tokens = (
            number(of["input_lens"], f"{where} input_lens"),
            number(of["output_lens"], f"{where} output_lens"),
        )
        sent.add(number(of["start_times"], f"{where} start_times"), tokens, ttft, total)
    return sent


def _summary(
    result: Mapping[str, Any],
    source: str,
    lacking: list[str],
    rate_per_s: float,
    settings: ServerSettings,
) -> Summary:
    def of(name: str) -> float:
        return number(result.get(name), f"{source}: {name}")

    figures = {
        (latency, statistic): of(f"{theirs}_{name}_ms")
        for latency, name in _LATENCIES.items()
        for statistic, theirs in _STATISTICS.items()
    }
    count = of("completed") or math.nan
    load = Load(
        count, rate_per_s, of("total_input_tokens") / count, of("total_output_tokens") / count
    )
    if lacking == ["start_times"]:
        words = "it has no start_times, so arrivals are unknown; measure again with a vLLM of 2026"
    else:
        words = "it has no lists by request; measure again with --save-detailed"
    return Summary(TOOL, stated(figures), words, load, settings)
