"""Clients whose windows have rates or laws of their own: every window is filled exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.lengths.distribution import MOST_REQUESTS
from blis_jax.workload.reference import go_math
from blis_jax.workload.reference.clients import session_drawer, session_requests, single_request
from blis_jax.workload.reference.laws.gaps import gap_law
from blis_jax.workload.reference.laws.rates import window_rate
from blis_jax.workload.reference.prompts import language
from blis_jax.workload.reference.requests import NO_DEADLINE, DrawnRequest, RequestBatch
from blis_jax.workload.revised.spec import RevisedClient, RevisedWindow
from blis_jax.workload.spec import ClientSpec

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]


class WindowSender:
    """One client that is drawn window by window, from one stream."""

    def __init__(
        self,
        index: int,
        clients: Sequence[ClientSpec],
        aggregate_rate: float,
        prefix: Tokens,
    ) -> None:
        client = clients[index]
        assert isinstance(client, RevisedClient)
        self._index = index
        self._spec = client
        self._clients = clients
        self._aggregate_rate = aggregate_rate
        self._prefix = prefix

    def batch(self, seed: int, horizon_us: float) -> RequestBatch:
        """All requests of all windows, in the order of the windows."""
        assert self._spec.lifecycle is not None
        stream = Stream(seed)
        requests: list[DrawnRequest] = []
        for window in self._spec.lifecycle.windows:
            if window.start_us < horizon_us:
                end_us = int(min(window.end_us, horizon_us))
                requests += self._window(stream, window.model_copy(update={"end_us": end_us}))
        # rounds share their history, so this counts more than was drawn and never less
        num_tokens = sum(one.input_len + len(one.output) for one in requests)
        return RequestBatch(0, requests, num_tokens)

    def _window(self, stream: Stream, window: RevisedWindow) -> list[DrawnRequest]:
        """The requests of one window; gaps come first, the last one reaching the window's end."""
        rate = window_rate(self._spec, window, self._clients, self._aggregate_rate)
        span_us = window.end_us - window.start_us
        expected = max(rate, 0.0) * (float(span_us) / 1e6)
        if expected > MOST_REQUESTS:
            raise ConfigError(
                f"clients[{self._index}].lifecycle: {expected:g} requests in the window from "
                f"{window.start_us} us on, allowed are {MOST_REQUESTS}; lower trace_rate"
            )
        count = math.ceil(expected)
        gap = gap_law(window.arrival or self._spec.arrival, rate / 1e6) if count else None
        gaps_us = scaled([gap(stream) for _ in range(count)], span_us) if gap else []
        starts_us = [int(start) for start in window.start_us + np.cumsum(gaps_us, dtype=np.int64)]
        draw = language(
            window.input_distribution or self._spec.input_distribution,
            window.output_distribution or self._spec.output_distribution,
        )
        requests: list[DrawnRequest] = []
        if self._spec.multi_turn:
            session = session_drawer(self._spec, draw)
            for start_us in starts_us[: 1 if self._spec.has_single_session else None]:
                if start_us >= window.end_us:
                    break
                name, rounds = session(stream)
                drawn = session_requests(
                    self._index, self._spec, start_us, name, rounds, self._prefix
                )
                # BLIS gives these rounds no target
                requests += [
                    one._replace(slo_target_us=0) for one in drawn if one.arrival_us < window.end_us
                ]
            return requests
        nothing = np.empty(0, np.int32)
        for start_us in starts_us:
            if start_us >= window.end_us:
                break
            one = single_request(self._index, self._spec, start_us, draw(stream), nothing)
            requests.append(one._replace(prefix_group="", deadline_us=NO_DEADLINE))
        return requests


def scaled(gaps_us: list[int], span_us: int) -> list[int]:
    """Gaps of the same proportions that fill a span; the last one takes what truncation leaves."""
    scale = float(span_us) / float(sum(gaps_us))
    whole = [go_math.to_int64(float(gap) * scale) for gap in gaps_us]
    whole[-1] += span_us - sum(whole)
    return whole
