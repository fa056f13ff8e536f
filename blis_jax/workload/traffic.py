"""What the clients of a specification send, as far as the sizes of a draw depend on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from blis_jax.workload.drawing.plan_params import gap_law
from blis_jax.workload.drawing.samplers import length_params
from blis_jax.workload.lengths.bounds import mean_length
from blis_jax.workload.spec import ArrivalSpec, ClientSpec, WorkloadSpec

CAP_PER_REQUEST = 2  # a client begins no session after this many times num_requests (reference)


def most_sessions(num_rounds: int, num_requests: int) -> int:
    """Sessions that a client begins before a workload of so many requests takes no more."""
    return -(-CAP_PER_REQUEST * num_requests // num_rounds)


@dataclass(frozen=True)
class Traffic:
    """What the clients send, as far as sizes depend on it; one entry per client."""

    rate_us: np.ndarray  # arrivals per microsecond
    cv: np.ndarray  # of their gaps
    num_rounds: np.ndarray  # requests per arrival
    round_gap_us: np.ndarray  # mean time from one round to the next
    most_arrivals: np.ndarray
    windows: tuple[tuple[tuple[float, float], ...], ...]  # empty: always active


def traffic_of(spec: WorkloadSpec, wanted: int) -> Traffic:
    """Traffic of a specification of which so many requests are wanted, 0 for all."""
    assert spec.aggregate_rate is not None
    fractions = np.array([client.rate_fraction for client in spec.clients])
    num_rounds = [rounds_of(client) for client in spec.clients]
    is_limited = [wanted > 0 and client.multi_turn is not None for client in spec.clients]
    return Traffic(
        rate_us=spec.aggregate_rate * fractions / fractions.sum() / 1e6,
        cv=np.array([_gap_cv(client.arrival) for client in spec.clients]),
        num_rounds=np.array(num_rounds),
        round_gap_us=np.array([_round_gap_us(client) for client in spec.clients]),
        most_arrivals=np.array(
            [
                float(most_sessions(rounds, wanted)) if limited else math.inf
                for rounds, limited in zip(num_rounds, is_limited, strict=True)
            ]
        ),
        windows=tuple(
            tuple((window.start_us, window.end_us) for window in client.active_windows)
            for client in spec.clients
        ),
    )


def expected_arrivals(traffic: Traffic, end_us: float) -> np.ndarray:
    """Expected arrivals per client up to a time."""
    active_us = [
        sum(max(0.0, min(end, end_us) - start) for start, end in windows) if windows else end_us
        for windows in traffic.windows
    ]
    return np.minimum(traffic.rate_us * np.array(active_us), traffic.most_arrivals)


def expected_requests(traffic: Traffic, end_us: float) -> float:
    """A lower bound of the requests expected up to a time: later rounds come at their mean times."""
    total = float(expected_arrivals(traffic, end_us).sum())
    for client in np.flatnonzero(traffic.num_rounds > 1):
        later = np.arange(1, traffic.num_rounds[client])
        span_us = np.maximum(end_us - later * traffic.round_gap_us[client], 0.0)
        most = traffic.most_arrivals[client]
        total += float(np.minimum(traffic.rate_us[client] * span_us, most).sum())
    return total


def last_end(windows: tuple[tuple[float, float], ...]) -> float:
    """End of the last window, infinite without any."""
    return max((end for _, end in windows), default=math.inf)


def rounds_of(client: ClientSpec) -> int:
    """Requests that each arrival of a client brings."""
    return client.multi_turn.max_rounds if client.multi_turn else 1


def _round_gap_us(client: ClientSpec) -> float:
    think_time_us = client.multi_turn.think_time_us if client.multi_turn else 0
    return think_time_us + mean_length(length_params(client.output_distribution))


def _gap_cv(arrival: ArrivalSpec) -> float:
    law = gap_law(arrival)
    if law in ("poisson", "constant"):
        return 1.0 if law == "poisson" else 0.0
    return 1.0 if arrival.cv is None else arrival.cv
