"""ServeGen data as clients of February 2026: each has the arrivals of its busiest window, and the first lengths.

Source: `sim/workload/servegen.go` of that revision.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.workload.servegen.reading import (
    Chunk,
    Window,
    chunks_of,
    laws_of,
    number,
    read_texts,
    read_windows,
)

CLIENT, TENANT = "servegen-chunk-", "chunk-"  # begin the names of a chunk's client and tenant
Span = tuple[int, int]  # seconds from and before which windows count, 0 for no bound


def first_clients(path: Path, span: Span, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a folder's clients as YAML documents; a client's share of the rate is its rate.

    Args:
        path: the folder, with a pair of files for each client.
        span: the seconds in which windows count.
        note: is told what is left out.

    Raises:
        ConfigError: the data cannot be read, or no client sends a request.
    """
    made = (_client(chunk, span, note) for chunk in chunks_of(path))
    clients = [client for client in made if client is not None]
    if not clients:
        when = " between span_start and span_end" if any(span) else ""
        raise ConfigError(f"{path}: no client sends a request{when}; give other chunks")
    return clients


def _client(chunk: Chunk, span: Span, note: Callable[[str], None]) -> dict[str, Any] | None:
    """Return a chunk's client; None if it sends nothing."""
    busiest: Window | None = None
    for window in read_windows(chunk.trace, note):
        most = 0.0 if busiest is None else busiest.rate
        if _is_in(window.start_s, span) and window.rate > most:
            busiest = window
    if busiest is None:
        return None
    family = busiest.family.lower()
    arrival: dict[str, Any] = {"process": "poisson"}
    if family in ("gamma", "weibull"):
        arrival = {"process": family, "cv": busiest.cv}
    inputs, outputs = (
        {tokens: share for tokens, share in law.items() if share}
        for law in _lengths(chunk.dataset, span, note)
    )
    return {
        "id": f"{CLIENT}{chunk.number}",
        "tenant_id": f"{TENANT}{chunk.number}",
        "rate_fraction": busiest.rate,
        "arrival": arrival,
        "input_distribution": {"type": "empirical", "params": inputs},
        "output_distribution": {"type": "empirical", "params": outputs},
    }


def _lengths(
    path: Path, span: Span, note: Callable[[str], None]
) -> tuple[dict[int, float], dict[int, float]]:
    """Return the distributions of prompts and answers of the first window that has both, seconds as texts."""
    dataset = read_texts(path)
    for start in sorted(dataset):
        try:
            start_s = number(start)
        except ValueError:
            note(f"{path.name}: window {start[:40]!r} is left out as in BLIS: no number")
            continue
        if not _is_in(start_s, span):
            continue
        if dataset[start].get("input_tokens") and dataset[start].get("output_tokens"):
            return laws_of(dataset[start], f"{path}, window {start[:40]}")
    when = " between span_start and span_end" if any(span) else ""
    raise ConfigError(
        f"{path} has no window with input_tokens and output_tokens{when}; give others"
    )


def _is_in(start_s: float, span: Span) -> bool:
    first_s, end_s = span
    return not (first_s > 0 and start_s < first_s) and not (0 < end_s <= start_s)
