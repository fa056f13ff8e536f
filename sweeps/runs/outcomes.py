"""What became of every request of a run, kept where the requests of one trace are resampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.metrics.reference import class_code
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import LATENCIES, select, tpot_us
from blis_jax.results.records import Status

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from blis_jax.metrics.summaries import SloTargets, Window
    from blis_jax.results.records import RunRecord

GOOD, REJECTED = "good", "rejected"
SHARES = {"attainment": (GOOD, 1.0), "slo_miss_rate": (GOOD, -1.0), "reject_rate": (REJECTED, 1.0)}


@dataclass(frozen=True)
class Outcomes:
    """The measured requests of one run, a list each; NaN where a request has no such latency."""

    arrival_us: Sequence[int]
    slo_class: Sequence[int]
    values: Mapping[str, Sequence[float]]  # ms by latency; 1 or 0 for GOOD and REJECTED

    def __len__(self) -> int:
        return len(self.arrival_us)

    def arrivals(self) -> Int[np.ndarray, "request"]:
        """Times of arrival, µs."""
        return np.asarray(self.arrival_us, np.int64)

    def column(self, name: str, slo_class: str | None) -> Float[np.ndarray, "request"]:
        """The values of a class, NaN for the requests of others."""
        values = np.asarray(self.values[name], np.float64)
        if slo_class is None:
            return values
        return np.where(np.asarray(self.slo_class) == class_code(slo_class), values, np.nan)


def outcomes_of(record: RunRecord, targets: SloTargets, window: Window) -> Outcomes:
    """Of the requests that arrive in the window."""
    requests, chosen = record.requests, select(record, targets, window)
    kept = chosen.is_chosen
    has_tpot = (requests.status == Status.COMPLETED) & (requests.ttft_us >= 0)
    latencies_us = {
        "ttft": _recorded(requests.ttft_us),
        "e2e": _recorded(requests.e2e_us),
        "tpot": np.where(has_tpot, tpot_us(record), np.nan),
        "scheduling_delay": _recorded(requests.sched_delay_us),
    }
    values = {name: latencies_us[name][kept] / 1000 for name in LATENCIES}
    values[GOOD] = chosen.is_good[kept].astype(np.float64)
    values[REJECTED] = (requests.status == Status.REJECTED)[kept].astype(np.float64)
    return Outcomes(
        requests.arrival_us[kept].tolist(),
        requests.slo_class[kept].tolist(),
        {name: column.tolist() for name, column in values.items()},
    )


def _recorded(values_us: Any) -> Float[np.ndarray, "request"]:
    return np.where(values_us >= 0, values_us.astype(np.float64), np.nan)


@dataclass(frozen=True)
class Ingredient:
    """How a metric is made of requests: the mean, or a quantile, of a column."""

    column: str
    slo_class: str | None
    level: float | None = None  # of a quantile
    sign: float = 1.0  # −1: one minus the mean


def ingredient_of(name: str) -> Ingredient | None:
    """Of a metric, `[class]` included; None if it is not a figure of single requests."""
    metric, slo_class = lookup(name)
    if metric.name in SHARES:
        column, sign = SHARES[metric.name]
        return Ingredient(column, slo_class, sign=sign)
    for latency in LATENCIES:
        rest = metric.name.removeprefix(f"{latency}_")
        if rest == "mean_ms":
            return Ingredient(latency, slo_class)
        if rest != metric.name and rest[0] == "p" and rest[1:-3].isdecimal():
            return Ingredient(latency, slo_class, int(rest[1:-3]) / 100)
    return None
