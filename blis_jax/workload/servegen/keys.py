"""The key `servegen_data` of workload files: a folder of ServeGen data, whose traffic is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_jax.workload.length_laws import Count, Strict
from blis_jax.workload.servegen.clients import first_clients
from blis_jax.workload.servegen.cohorts import (
    Cohorts,
    classes_of,
    cohorts_of,
    notes_of,
    tells_reasoning,
)
from blis_jax.workload.servegen.reading import digest_of

USUAL_WINDOW_S = 600  # of a period


class ServeGenSpec(Strict):
    """Recorded ServeGen data, each of whose clients becomes a client with the arrivals of its busiest window."""

    path: str  # of the folder, relative to the current one
    span_start: Count = 0  # seconds from which windows count
    span_end: Count = 0  # seconds before which they count; 0: all

    def clients(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the clients as YAML documents, and what is left out, one sentence each.

        Raises:
            ConfigError: the data cannot be read, or no client sends a request.
        """
        notes: list[str] = []
        span = self.span_start, self.span_end
        return first_clients(Path(self.path), span, notes.append), notes


class RevisedServeGen(Strict):
    """Recorded ServeGen data, of which cohorts are made by seed."""

    path: str = ""  # of the folder, relative to the current one
    time_window: str = ""  # accepted without effect, as in BLIS
    span_start: Count = 0  # likewise
    span_end: Count = 0  # likewise
    window_duration_secs: Count = 0  # of each period; 0: 600
    drain_timeout_secs: Count = 0  # without requests between periods

    @property
    def idle(self) -> tuple[str, ...]:
        """Return the keys that are given without effect."""
        names = ("time_window", "span_start", "span_end")
        return tuple(name for name in names if getattr(self, name))

    @property
    def slo_classes(self) -> tuple[str, ...]:
        """Return the SLO classes that requests may have.

        Raises:
            ConfigError: the folder holds no data.
        """
        return classes_of(Path(self.path))

    @property
    def has_reasoning(self) -> bool:
        """Return whether the data are of requests that reason, so sessions of one round.

        Raises:
            ConfigError: the data cannot be read.
        """
        return tells_reasoning(Path(self.path))

    @property
    def digest(self) -> str:
        """Return a digest of the files.

        Raises:
            ConfigError: the folder holds no data.
        """
        return digest_of(Path(self.path))

    def notes(self) -> tuple[str, ...]:
        """Return what is left out of the data, one sentence each.

        Raises:
            ConfigError: the data cannot be read.
        """
        return notes_of(Path(self.path))

    def cohorts(self, seed: int) -> Cohorts:
        """Return the cohorts of a seed.

        Raises:
            ConfigError: the data cannot be read, or no client sends requests in the chosen windows.
        """
        window_s = self.window_duration_secs or USUAL_WINDOW_S
        return cohorts_of(Path(self.path), seed, window_s, self.drain_timeout_secs)
