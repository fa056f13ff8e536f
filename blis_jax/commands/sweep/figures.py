"""A sweep's figures of one run, computed in the compiled call; see `sweep_data.Summarizer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from blis_jax.metrics.on_device.figures import figure
from blis_jax.metrics.on_device.lane import LaneSelection
from blis_jax.metrics.scalars import POOLED_LATENCIES
from blis_jax.metrics.summaries import LATENCIES
from blis_jax.metrics.tails import RANKS
from blis_jax.results.dataset import RUN_METRICS


@dataclass(frozen=True)
class SweepFigures:
    """By name of the Dataset's variable: of all requests and the classes of these codes, and of the run."""

    codes: tuple[int, ...]
    levels: tuple[float, ...]  # of the TTFT distribution
    curve: str  # its name

    latencies = LATENCIES

    @property
    def groups(self) -> tuple[int | None, ...]:
        """All requests, then the classes."""
        return None, *self.codes

    def __call__(self, selection: LaneSelection) -> dict[str, Any]:
        """Of one lane; a group without requests has NaN, but for counts."""
        figures = dict(selection.counts) | {"attainment": selection.attainment}
        is_there = (figures["num_requests"] > 0) | (selection.rates["requests_per_s"] > 0)
        is_there = is_there.at[selection.place(None)].set(True)
        for name, values in selection.rates.items():
            figures[name] = jnp.where(is_there, values, jnp.nan)
        for row, latency in enumerate(LATENCIES):
            figures[f"{latency}_mean_ms"] = selection.means_ms[row]
            figures[f"{latency}_ms"] = selection.percentiles_ms[row]
        ttft = selection.ranked.of([LATENCIES.index("ttft")])
        figures[self.curve] = ttft.quantiles_ms(self.levels)[0].astype(jnp.float32)
        for latency in POOLED_LATENCIES:
            one = selection.ranked.of([LATENCIES.index(latency)])
            figures[f"{latency}_count"] = one.counts[0]
            figures[f"{latency}_top_us"] = one.largest_us(RANKS)[0].astype(jnp.float32)
        for name in RUN_METRICS:
            figures[name] = figure(selection, name)
        figures["itl_ms"], figures["itl_mean_ms"] = selection.itl_ms
        return figures
