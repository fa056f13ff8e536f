"""What one client of a specification sends, request by request, from its own stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.inference_perf import Pace
from blis_jax.workload.reference.laws.deadlines import deadline_us, slo_target_us
from blis_jax.workload.reference.laws.gaps import Gap, gap_law, paced_gaps
from blis_jax.workload.reference.laws.lengths import length_law
from blis_jax.workload.reference.prompts import Drawer, DrawnContents, drawer_of
from blis_jax.workload.reference.requests import (
    ClientLimits,
    DrawnRequest,
    RequestBatch,
)
from blis_jax.workload.spec import ClientSpec, MultiTurnSpec

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]


class Sender:
    """One client, ready to send so many arrivals per microsecond, or at a pace of its own."""

    def __init__(
        self,
        index: int,
        spec: ClientSpec,
        rate_us: float,
        prefix: Tokens,
        pace: Pace | None = None,
    ) -> None:
        self.spec = spec
        self._index = index
        self._rate_us = rate_us
        self._prefix = prefix
        self._pace = pace
        self._windows = [(window.start_us, window.end_us) for window in spec.active_windows]
        self._silent_from = max((end for _, end in self._windows), default=math.inf)

    def batches(self, seed: int, limits: ClientLimits) -> Iterator[RequestBatch]:
        """Requests in the order in which the reference draws them."""
        stream = Stream(seed)
        # BLIS seeds a pace of its own from the client's stream, even where the pace draws nothing
        gap = (
            gap_law(self.spec.arrival, self._rate_us)
            if self._pace is None
            else paced_gaps(self._pace, Stream(stream.int63()))
        )
        if self.spec.multi_turn:
            return self._sessions(stream, gap, limits, self.spec.multi_turn)
        return self._requests(stream, gap, limits)

    def _is_active(self, time_us: int) -> bool:
        return not self._windows or any(start <= time_us < end for start, end in self._windows)

    def _requests(self, stream: Stream, gap: Gap, limits: ClientLimits) -> Iterator[RequestBatch]:
        """Single-turn requests; an arrival outside the client's windows draws only its gap."""
        draw = drawer_of(self.spec)
        arrival_us, num_sent = 0, 0
        while num_sent < limits.most_requests:
            gap_us = gap(stream)
            arrival_us += gap_us
            if not gap_us or arrival_us >= min(limits.horizon_us, self._silent_from):
                return
            if not self._is_active(arrival_us):
                continue
            contents = draw(stream)
            request = single_request(self._index, self.spec, arrival_us, contents, self._prefix)
            yield RequestBatch(arrival_us, [request], len(contents.new) + len(contents.output))
            num_sent += 1

    def _sessions(
        self, stream: Stream, gap: Gap, limits: ClientLimits, turns: MultiTurnSpec
    ) -> Iterator[RequestBatch]:
        """Sessions, which overlap; or the first one alone, from the first window on."""
        draw = session_drawer(self.spec, drawer_of(self.spec))
        is_single = self.spec.has_single_session
        begins_us = self._windows[0][0] if is_single and self._windows else 0
        num_sent = 0
        while num_sent < limits.most_requests:
            gap_us = gap(stream)
            begins_us += gap_us
            if not gap_us or begins_us >= min(limits.horizon_us, self._silent_from):
                return
            if self._is_active(begins_us):
                name, rounds = draw(stream)
                requests = session_requests(
                    self._index, self.spec, begins_us, name, rounds, self._prefix
                )
                num_tokens = sum(len(one.new) + len(one.output) for one in rounds)
                yield RequestBatch(begins_us, self._kept(requests, limits), num_tokens)
                num_sent += turns.max_rounds
            if is_single:
                return

    def _kept(self, rounds: list[DrawnRequest], limits: ClientLimits) -> list[DrawnRequest]:
        """The rounds that begin in time; all of a bare session."""
        if self.spec.has_bare_sessions:
            return rounds
        return [
            one
            for one in rounds
            if one.arrival_us < limits.horizon_us and self._is_active(one.arrival_us)
        ]


def single_request(
    client: int, spec: ClientSpec, arrival_us: int, contents: DrawnContents, prefix: Tokens
) -> DrawnRequest:
    """A request of its own, behind the prefix that its group shares."""
    return DrawnRequest(
        arrival_us,
        client,
        (prefix, contents.new) if len(prefix) else (contents.new,),
        contents.output,
        prefix_group=spec.prefix_group,
        prefix_len=len(prefix),
        deadline_us=deadline_us(spec, arrival_us, is_round=False),
        slo_target_us=slo_target_us(spec),
        parts=contents.parts,
    )


SessionDrawer = Callable[[Stream], tuple[str, list[DrawnContents]]]


def session_drawer(spec: ClientSpec, draw: Drawer) -> SessionDrawer:
    """What draws a session's name and the contents of its rounds."""
    turns, reasoning = spec.multi_turn, spec.reasoning
    assert turns is not None and reasoning is not None
    ratio = reasoning.reason_ratio_distribution
    reason_ratio = None if ratio is None else length_law(ratio)

    def session(stream: Stream) -> tuple[str, list[DrawnContents]]:
        name = f"sess_{stream.int63()}"
        rounds: list[DrawnContents] = []
        for _ in range(turns.max_rounds):
            contents = draw(stream)
            percent = 0 if reason_ratio is None else reason_ratio(stream)
            rounds.append(contents._replace(reason_ratio=min(percent / 100.0, 1.0)))
        return name, rounds

    return session


def session_requests(
    client: int,
    spec: ClientSpec,
    begins_us: int,
    name: str,
    rounds: Sequence[DrawnContents],
    prefix: Tokens,
) -> list[DrawnRequest]:
    """All rounds of a session; each waits for the output before it, at 1 us a token, and a think time."""
    turns = spec.multi_turn
    assert turns is not None
    history = np.concatenate([prefix, *(part for one in rounds for part in one[:2])])
    is_growing = turns.context_growth == "accumulate"
    requests: list[DrawnRequest] = []
    arrival_us, end = begins_us, len(prefix)
    for turn, contents in enumerate(rounds):
        end += len(contents.new)
        shared = (prefix,) if len(prefix) else ()
        prompt = (history[:end],) if is_growing else (*shared, contents.new)
        requests.append(
            DrawnRequest(
                arrival_us,
                client,
                prompt,
                contents.output,
                session=name,
                round_index=turn,
                prefix_len=len(prefix),
                deadline_us=deadline_us(spec, arrival_us, is_round=True),
                slo_target_us=slo_target_us(spec),
                reason_ratio=contents.reason_ratio,
            )
        )
        end += len(contents.output)
        arrival_us += turns.think_time_us + len(contents.output)
    return requests
