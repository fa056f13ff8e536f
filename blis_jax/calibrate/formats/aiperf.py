"""AIPerf's exports: profile_export.jsonl, one record a request, and profile_export_aiperf.json, figures.

AIPerf 0.1.1 to 0.10 (export schemas 1.0 to 1.3). A record has metadata.request_start_ns and
benchmark_phase, and in `metrics` values with units. E2E is request_latency, from sending to the last
answer with content. Requests of another phase than profiling (warm-up) arrive, but count as not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blis_jax.calibrate.formats.contract import (
    TO_MS,
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

NAME = "aiperf"
_LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
}
_STATISTICS = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99"}
_LACKING = "it has no requests; give profile_export.jsonl, which AIPerf writes beside it"


def matches(document: Any) -> bool:
    """Whether it is a record, or figures with units."""
    first = document[0] if isinstance(document, tuple) and document else document
    is_record = at(first, "metadata", "request_start_ns") is not None
    return is_record or at(first, "request_latency", "unit") is not None


def read(document: Any, source: str) -> list[Benchmark]:
    """One benchmark: the requests, or the figures."""
    records = document if isinstance(document, tuple) else (document,)
    if at(records[0], "metadata", "request_start_ns") is None:
        return [Benchmark("figures", lambda: _figures(records[0], source))]
    return [Benchmark("requests", lambda: _run(records, source))]


def _run(records: tuple[Any, ...], source: str) -> MeasuredRun:
    sent = Sent()
    for place, record in enumerate(records, 1):
        _add(sent, record, f"{source}, line {place}:")
    return sent.run(source, ServerSettings())


def _add(sent: Sent, record: Any, where: str) -> None:
    if at(record, "error") is not None or at(record, "metadata", "was_cancelled"):
        sent.num_failed += 1
        return
    start = number(at(record, "metadata", "request_start_ns"), f"{where} request_start_ns")
    input_tokens, output_tokens = (
        number(at(record, "metrics", name, "value"), f"{where} {name}")
        for name in ("input_sequence_length", "output_sequence_length")
    )
    ttft, total = (
        _ms(at(record, "metrics", name), "value", f"{where} {name}")
        for name in ("time_to_first_token", "request_latency")
    )
    if at(record, "metadata", "benchmark_phase") not in ("profiling", None):
        ttft = math.nan
    sent.add(start / 1e9, (input_tokens, output_tokens), ttft / 1e3, total / 1e3)


def _ms(metric: Any, name: str, where: str) -> float:
    """A value with a unit, in ms; NaN if there is none."""
    value, unit = number(at(metric, name), where), at(metric, "unit")
    if not math.isnan(value) and unit not in TO_MS:
        raise ConfigError(f"{where} has the unit {unit!r}; allowed are {', '.join(TO_MS)}")
    return value * TO_MS.get(unit, math.nan)


def _figures(document: Mapping[str, Any], source: str) -> Summary:
    figures = {
        (latency, statistic): _ms(at(document, name), theirs, f"{source}: {name}.{theirs}")
        for latency, name in _LATENCIES.items()
        for statistic, theirs in _STATISTICS.items()
    }
    count, inputs, outputs = (
        number(at(document, name, "avg"), f"{source}: {name}.avg")
        for name in ("request_count", "input_sequence_length", "output_sequence_length")
    )
    rate = at(document, "input_config", "loadgen", "request_rate")
    load = Load(
        count, number(rate, f"{source}: input_config.loadgen.request_rate"), inputs, outputs
    )
    return Summary(NAME, stated(figures), _LACKING, load)
