"""A measured run: the requests of a real server with the latencies that each of them had."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.calibrate.settings import ServerSettings
from blis_jax.traces.rows import TraceRows

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@dataclass(frozen=True)
class MeasuredRun:
    """Requests by arrival and what was measured of each; µs, NaN where nothing was."""

    rows: TraceRows
    ttft_us: Float[np.ndarray, " request"]  # first token - queued
    e2e_us: Float[np.ndarray, " request"]  # last token - queued
    settings: ServerSettings = field(default_factory=ServerSettings)
    notes: tuple[str, ...] = ()

    @property
    def tpot_us(self) -> Float[np.ndarray, " request"]:
        """(E2E − TTFT) ÷ (output tokens − 1); NaN for a single token."""
        gaps = np.where(self.rows.output_len > 1, self.rows.output_len - 1.0, np.nan)
        return (self.e2e_us - self.ttft_us) / gaps

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Int[np.ndarray, " taken"]) -> MeasuredRun:
        """Some requests, in the order of `places`."""
        return dataclasses.replace(
            self,
            rows=self.rows.take(places),
            ttft_us=self.ttft_us[places],
            e2e_us=self.e2e_us[places],
        )
