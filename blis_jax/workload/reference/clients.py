"""The requests that one client of a specification sends, drawn one by one from the client's own stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.distribution import MOST_REQUESTS
from blis_jax.workload.go_math import to_int64
from blis_jax.workload.go_random import Stream
from blis_jax.workload.inference_perf import Pace
from blis_jax.workload.reference.laws import (
    AnyLaw,
    Gap,
    Length,
    deadline_us,
    gap_law,
    length_law,
    paced_gaps,
    slo_target_us,
    window_rate,
)
from blis_jax.workload.reference.requests import (
    NO_DEADLINE,
    NO_PARTS,
    ClientLimits,
    DrawnRequest,
    RequestBatch,
)
from blis_jax.workload.revised_spec import RevisedClient, RevisedWindow
from blis_jax.workload.spec import ClientSpec, MultimodalSpec, MultiTurnSpec

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]


VOCABULARY = 128_000  # tokens are uniform below it
MOST_TOKENS = 2**28  # of one workload; held in memory to compare contents


class DrawnContents(NamedTuple):
    """The drawn contents of one request's prompt and output."""

    new: Tokens  # without a shared prefix or earlier rounds
    output: Tokens
    parts: tuple[int, int, int, int] = NO_PARTS  # of multimodal prompts
    reason_ratio: float = 0.0  # of rounds


Drawer = Callable[[Stream], DrawnContents]
Parts = Callable[[Stream], tuple[int, int, int, int]]


def drawer_of(client: ClientSpec) -> Drawer:
    """Return the function that draws lengths and tokens of the client's prompts and outputs from a stream."""
    if client.multimodal is None or client.multi_turn:
        return language(client.input_distribution, client.output_distribution)
    prompt_parts = modality_parts(client.multimodal)
    output_length = length_law(client.output_distribution)

    def multimodal(stream: Stream) -> DrawnContents:
        parts = prompt_parts(stream)
        new = draw_tokens(stream, max(sum(parts), 1))
        return DrawnContents(new, draw_tokens(stream, output_length(stream)), parts)

    return multimodal


def language(input_law: AnyLaw, output_law: AnyLaw) -> Drawer:
    """Return the function that draws text prompts and outputs: both lengths, then both contents."""
    input_length, output_length = length_law(input_law), length_law(output_law)

    def contents(stream: Stream) -> DrawnContents:
        num_inputs, num_outputs = input_length(stream), output_length(stream)
        return DrawnContents(draw_tokens(stream, num_inputs), draw_tokens(stream, num_outputs))

    return contents


def draw_tokens(stream: Stream, count: int) -> Tokens:
    """Return the drawn token ids of a new content.

    Raises:
        ConfigError: the content has more tokens than a whole workload may have.
    """
    if count > MOST_TOKENS:
        raise ConfigError(
            f"a length law drew {count} tokens, allowed are {MOST_TOKENS} in the whole workload; "
            f"make its tail lighter"
        )
    return stream.intn_vector(VOCABULARY, count)


def modality_parts(spec: MultimodalSpec) -> Parts:
    """Return a function that draws the token counts of text, and of all images, recordings and videos."""
    text = None if spec.text_distribution is None else length_law(spec.text_distribution)
    modalities = [_items(count, size) for count, size in spec.modalities]

    def parts(stream: Stream) -> tuple[int, int, int, int]:
        words = 0 if text is None else text(stream)
        images, audio, video = (items(stream) for items in modalities)
        return words, images, audio, video

    return parts


def _items(number: AnyLaw | None, size: AnyLaw | None) -> Length:
    """Return the token count of all items of one kind."""
    if number is None or size is None:
        return lambda stream: 0
    count, length = length_law(number), length_law(size)

    def items(stream: Stream) -> int:
        return sum(length(stream) for _ in range(count(stream)))

    return items


class Sender:
    """A client that sends a number of arrivals per µs, or follows its own pace."""

    def __init__(
        self, index: int, spec: ClientSpec, rate_us: float, prefix: Tokens, pace: Pace | None = None
    ) -> None:
        self.spec = spec
        self._index = index
        self._rate_us = rate_us
        self._prefix = prefix
        self._pace = pace
        self._windows = [(window.start_us, window.end_us) for window in spec.active_windows]
        self._silent_from = max((end for _, end in self._windows), default=math.inf)

    def batches(self, seed: int, limits: ClientLimits) -> Iterator[RequestBatch]:
        """Return the requests in the order in which the reference draws them."""
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
        """Yield single-turn requests; an arrival outside the client's windows uses only the draw of its gap."""
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
        """Yield sessions, which may overlap; for a single session only the first one, from the first window on."""
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
                num_tokens = sum(len(turn.new) + len(turn.output) for turn in rounds)
                yield RequestBatch(begins_us, self._kept(requests, limits), num_tokens)
                num_sent += turns.max_rounds
            if is_single:
                return

    def _kept(self, rounds: list[DrawnRequest], limits: ClientLimits) -> list[DrawnRequest]:
        """Return the rounds that arrive before the horizon and in the client's windows; all of a bare session."""
        if self.spec.has_bare_sessions:
            return rounds
        return [
            turn
            for turn in rounds
            if turn.arrival_us < limits.horizon_us and self._is_active(turn.arrival_us)
        ]


def single_request(
    client: int, spec: ClientSpec, arrival_us: int, contents: DrawnContents, prefix: Tokens
) -> DrawnRequest:
    """Return a single-turn request, whose prompt begins with its group's prefix."""
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
    """Return the function that draws a session's name and the contents of its rounds."""
    turns, reasoning = spec.multi_turn, spec.reasoning
    assert turns is not None and reasoning is not None
    ratio = reasoning.reason_ratio_distribution
    reason_ratio = None if ratio is None else length_law(ratio)

    def session(stream: Stream) -> tuple[str, list[DrawnContents]]:
        """Return the drawn name and round contents of one session."""
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
    """Return all rounds of a session; each begins after the previous output, at 1 µs per token, and the think time."""
    turns = spec.multi_turn
    assert turns is not None
    history = np.concatenate([prefix, *(part for turn in rounds for part in turn[:2])])
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


# --- clients whose windows have rates or laws of their own: every window is filled exactly --------


class WindowSender:
    """A client whose requests are drawn window by window from one stream."""

    def __init__(
        self, index: int, clients: Sequence[ClientSpec], aggregate_rate: float, prefix: Tokens
    ) -> None:
        client = clients[index]
        assert isinstance(client, RevisedClient)
        self._index = index
        self._spec = client
        self._clients = clients
        self._aggregate_rate = aggregate_rate
        self._prefix = prefix

    def batches(self, seed: int, horizon_us: float) -> Iterator[RequestBatch]:
        """Return the requests in the order of the windows, drawn as far as they are asked for.

        Where windows overlap, or do not follow each other, no batch says from when on its requests arrive.
        """
        assert self._spec.lifecycle is not None
        stream, windows = Stream(seed), self._spec.lifecycle.windows
        follows = all(before.end_us <= after.start_us for before, after in pairwise(windows))
        for window in windows:
            if window.start_us < horizon_us:
                end_us = int(min(window.end_us, horizon_us))
                yield RequestBatch(window.start_us if follows else 0, [], 0)
                for start_us, requests in self._window(
                    stream, window.model_copy(update={"end_us": end_us})
                ):
                    # rounds share their history, so this counts more than was drawn and never less
                    num_tokens = sum(each.input_len + len(each.output) for each in requests)
                    yield RequestBatch(start_us if follows else 0, requests, num_tokens)

    def _window(
        self, stream: Stream, window: RevisedWindow
    ) -> Iterator[tuple[int, list[DrawnRequest]]]:
        """Yield each arrival in one window with its requests; gaps are drawn first, and the last reaches its end."""
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
                yield (
                    start_us,
                    [
                        request._replace(slo_target_us=0)
                        for request in drawn
                        if request.arrival_us < window.end_us
                    ],
                )
            return
        nothing = np.empty(0, np.int32)
        for start_us in starts_us:
            if start_us >= window.end_us:
                break
            request = single_request(self._index, self._spec, start_us, draw(stream), nothing)
            yield start_us, [request._replace(prefix_group="", deadline_us=NO_DEADLINE)]


def scaled(gaps_us: list[int], span_us: int) -> list[int]:
    """Return gaps scaled so that they fill a span in µs; the last gap takes the remainder of truncation."""
    scale = float(span_us) / float(sum(gaps_us))
    whole = [to_int64(float(gap) * scale) for gap in gaps_us]
    whole[-1] += span_us - sum(whole)
    return whole
