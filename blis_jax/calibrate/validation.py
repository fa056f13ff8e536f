"""Errors of simulated against measured latencies: mean, P50, P90 and P99 of TTFT, TPOT and E2E."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.calibrate.measured_run import MeasuredRun

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
STATISTICS = ("mean", "p50", "p90", "p99")


class ErrorRow(NamedTuple):
    """One statistic of one latency over some requests."""

    part: str
    metric: str
    statistic: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative error of the simulation."""
        return self.simulated / self.measured - 1.0


def errors(
    run: MeasuredRun,
    ttft_us: Float[np.ndarray, " request"],
    e2e_us: Float[np.ndarray, " request"],
    is_part: Bool[np.ndarray, " request"],
    part: str,
) -> list[ErrorRow]:
    """Every statistic of every latency over the requests of a part that were measured."""
    used = is_part & np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)
    gaps = np.where(run.rows.output_len > 1, run.rows.output_len - 1.0, np.nan)
    measured = (run.ttft_us, run.tpot_us, run.e2e_us)
    simulated = (ttft_us, (e2e_us - ttft_us) / gaps, e2e_us)
    rows = []
    for metric, real, made in zip(METRICS, measured, simulated, strict=True):
        for statistic in STATISTICS:
            pair = (_statistic(values[used] / 1e3, statistic) for values in (real, made))
            rows.append(ErrorRow(part, metric, statistic, *pair))
    return rows


def _statistic(values: np.ndarray, name: str) -> float:
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan")
    return float(np.mean(values) if name == "mean" else np.percentile(values, float(name[1:])))


def table(rows: Sequence[ErrorRow]) -> str:
    """The errors as aligned text, one line per latency and part."""
    lines = [f"{'part':<10} {'latency':<8} " + "".join(f"{name:>30}" for name in STATISTICS)]
    keys = dict.fromkeys((row.part, row.metric) for row in rows)
    by_place = {(row.part, row.metric, row.statistic): row for row in rows}
    for part, metric in keys:
        cells = []
        for name in STATISTICS:
            row = by_place[part, metric, name]
            cells.append(f"{row.measured:>11.1f} →{row.simulated:>9.1f} {100 * row.error:+6.1f}%")
        lines.append(f"{part:<10} {metric:<8} " + " ".join(cells))
    return "\n".join(lines)
