"""How clients share a workload's rate."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from blis_jax.workload.revised.spec import RevisedClient, RevisedWindow
from blis_jax.workload.spec import ActiveWindow, ClientSpec

Spans = tuple[tuple[int, int], ...]  # start and end in us; none: always


def shared_rates(clients: Sequence[ClientSpec], aggregate_rate: float) -> list[float]:
    """Arrivals per microsecond of each client.

    A client shares the rate with all clients that are active at some moment at which it is. BLIS's
    first revision takes every client for active at any time.
    """
    spans = [tuple(map(_span, _windows(client))) for client in clients]
    total_of: dict[Spans, float] = {}
    meets = functools.cache(_overlap)
    for own in dict.fromkeys(spans):
        total = 0.0  # one by one: Python's sum rounds less from 3.12 on
        for client, other in zip(clients, spans, strict=True):
            if client.rate_fraction > 0.0 and meets(own, other):
                total += client.rate_fraction
        total_of[own] = total
    return [
        aggregate_rate * (client.rate_fraction / total_of[own]) / 1e6
        if client.rate_fraction > 0.0
        else 0.0
        for client, own in zip(clients, spans, strict=True)
    ]


def has_own_windows(clients: Sequence[ClientSpec]) -> bool:
    """Whether some window replaces its client's rate or laws; then all are drawn window by window."""
    return any(
        isinstance(window, RevisedWindow) and window.has_own_laws
        for client in clients
        for window in _windows(client)
    )


def window_rate(
    client: RevisedClient,
    window: RevisedWindow,
    clients: Sequence[ClientSpec],
    aggregate_rate: float,
) -> float:
    """Requests per second in one window: its weight among the windows that it overlaps.

    Of each client the first overlapping window counts. Without an aggregate rate the window's own
    rate is taken.
    """
    if not aggregate_rate and window.trace_rate is not None:
        return window.trace_rate
    total = 0.0
    for other in clients:
        windows = _windows(other)
        if not windows:
            total += other.rate_fraction
        first = next((one for one in windows if _meets(_span(one), _span(window))), None)
        if first is not None:
            total += _weight(other, first)
    return aggregate_rate * (_weight(client, window) / total) if total else 0.0


def _weight(client: ClientSpec, window: ActiveWindow) -> float:
    if isinstance(window, RevisedWindow) and window.trace_rate is not None:
        return window.trace_rate
    return client.rate_fraction


def _windows(client: ClientSpec) -> tuple[ActiveWindow, ...]:
    """The windows that divide the rate; none for a client that is always active."""
    if isinstance(client, RevisedClient) and client.lifecycle is not None:
        return client.lifecycle.windows
    return ()


def _span(window: ActiveWindow) -> tuple[int, int]:
    return window.start_us, window.end_us


def _overlap(mine: Spans, other: Spans) -> bool:
    if not mine or not other:
        return True
    return any(_meets(one, another) for one in mine for another in other)


def _meets(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
