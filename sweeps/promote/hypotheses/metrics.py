"""Metrics of the simulator as figures of benchmark reports."""

from __future__ import annotations

import re

from blis_jax.errors import ConfigError
from sweeps.promote.hypotheses.document import MetricPath

AGGREGATE, CLASSES = "results.request_performance.aggregate", "summary.traffic_classes"
GOODPUT = "summary.goodput"  # made from the rows of priority-mix
_LATENCIES = {  # name in the simulator: name in a report, name by class, unit, what it is
    "ttft": ("time_to_first_token", "ttft_ms", "ms", "time to first token"),
    "e2e": ("request_latency", "latency_ms", "ms", "time to completion"),
    "tpot": ("time_per_output_token", "tpot_ms", "ms/token", "time per output token"),
}
_RATES = {
    "tokens_per_sec": ("output_token_rate", "tokens/s", "output tokens per second"),
    "output_tokens_per_s": ("output_token_rate", "tokens/s", "output tokens per second"),
    "requests_per_s": ("request_rate", "queries/s", "completed requests per second"),
}


def metric_path(metric: str) -> tuple[MetricPath, str] | None:
    """Where a report has a metric, and what it is in words; None where no report has it."""
    found = re.fullmatch(r"(ttft|e2e|tpot)_(mean|p\d+)_ms(?:\[([a-z]+)\])?", metric)
    if found:
        name, by_class, unit, words = _LATENCIES[found[1]]
        statistic, slo_class = found[2], found[3]
        if slo_class and statistic not in ("mean", "p50", "p95", "p99"):
            return None  # priority-mix has no others
        words = f"{statistic} of the {words}" + (f" of {slo_class} requests" if slo_class else "")
        if slo_class:
            return MetricPath(
                path=f"{CLASSES}.{slo_class}.{by_class}", statistic=statistic, unit=unit, better="lower"
            ), words  # fmt: skip
        path = f"{AGGREGATE}.latency.{name}"
        return MetricPath(path=path, statistic=statistic, unit=unit, better="lower"), words
    if metric in _RATES:
        name, unit, words = _RATES[metric]
        rate = f"{AGGREGATE}.throughput.{name}"
        return MetricPath(path=rate, statistic="mean", unit=unit, better="higher"), words
    if metric in ("goodput_rps", "attainment"):
        goodput = MetricPath(path=GOODPUT, statistic="mean", unit="fraction", better="higher")
        return goodput, "share of demanded requests that are served in time"
    return None


def known_metric(metric: str) -> tuple[MetricPath, str]:
    """The same, of a metric that a report has.

    Raises:
        ConfigError: no report has it.
    """
    found = metric_path(metric)
    if found is None:
        raise ConfigError(
            f"metric {metric} is in no benchmark report; use ttft_p99_ms or tokens_per_sec"
        )
    return found
