"""How a robustness map names metrics, constraints and values to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from blis_jax.metrics.scalars import TOKEN_RATES, lookup
from blis_jax.metrics.summaries import LATENCIES
from blis_jax.reports.run_words import RunWords, run_words

_SPELT = {
    **{name: words.replace("/s", " per second") for name, words in TOKEN_RATES.items()},
    "requests_per_s": "completed requests per second",
    "goodput_rps": "goodput",
    "attainment": "share within the SLO targets",
}


def metric_words(name: str) -> str:
    """A metric as prose, such as `TTFT P99 of critical requests`."""
    metric, slo_class = lookup(name)
    latency = next((one for one in (*LATENCIES, "itl") if metric.name.startswith(f"{one}_")), None)
    if latency is None:
        words = _SPELT.get(metric.name, metric.name.replace("_", " "))
    else:
        kind = metric.name.removeprefix(f"{latency}_").removesuffix("_ms")
        spelt = latency.upper() if len(latency) <= 4 else latency.replace("_", " ")
        words = f"mean {spelt}" if kind == "mean" else f"{spelt} {kind.upper()}"
    return words + (f" of {slo_class} requests" if slo_class else "")


def constraint_words(text: str, first: str) -> str:
    """A constraint as prose; `first` is the strategy that a relative one is in % of."""
    sign = "<=" if "<=" in text else ">="
    name, limit = text.split(sign)
    bound = f"{limit[:-1]} % of that of {first}" if limit.endswith("%") else limit
    return f"{metric_words(name)} at {'most' if sign == '<=' else 'least'} {bound}"


def runs_of(attributes: Mapping[str, Any], num_runs: int) -> RunWords:
    """What the runs in a cell are called: seeds of a workload, or windows of a trace."""
    documents = yaml.safe_load(attributes.get("workloads", "{}")).values()
    return run_words(next((one for one in documents if "windows" in one), None), num_runs)


def shown(value: str | float) -> str:
    """A value with at most six digits and its thousands apart; texts as they are."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e5 else f"{value:,.6g}"
