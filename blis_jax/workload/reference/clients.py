"""What one client of a specification sends, request by request, from its own stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.reference.gaps import gap_law
from blis_jax.workload.reference.lengths import Length, length_law
from blis_jax.workload.spec import ClientSpec, MultimodalSpec, MultiTurnSpec

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]

VOCABULARY = 128_000  # tokens are uniform below it
MOST_TOKENS = 2**28  # of one workload; they are held in memory to tell which contents are equal
NO_SESSION = -1


class DrawnRequest(NamedTuple):
    """One request with its contents; parts of a prompt may be shared with other requests."""

    arrival_us: int
    client: int
    session: int  # number within the client, NO_SESSION for a single-turn request
    round_index: int
    prompt: tuple[Tokens, ...]
    output: Tokens


class RequestBatch(NamedTuple):
    """Requests that a client draws together: one, or a session."""

    begins_us: int  # no request of a later batch arrives before
    requests: list[DrawnRequest]
    num_tokens: int  # drawn for them


Contents = Callable[[Stream], tuple["Tokens", "Tokens"]]  # draws a new prompt and its output


@dataclass(frozen=True)
class ClientLimits:
    """Where a client's requests end."""

    horizon_us: float  # exclusive, infinite without one
    most_requests: float  # per client, infinite without a limit; a session is not cut


class Sender:
    """One client, ready to send so many arrivals per microsecond."""

    def __init__(self, index: int, spec: ClientSpec, rate_us: float, prefix: Tokens) -> None:
        self.index = index
        self.spec = spec
        self.rate_us = rate_us
        self.prefix = prefix
        self._contents = _contents(spec)
        ratio = spec.reasoning.reason_ratio_distribution if spec.reasoning else None
        self._reason_ratio = None if ratio is None else length_law(ratio)

    def batches(self, seed: int, limits: ClientLimits) -> Iterator[RequestBatch]:
        """Requests in the order in which the reference draws them."""
        stream = Stream(seed)
        if self.spec.multi_turn:
            return self._sessions(stream, limits, self.spec.multi_turn)
        return self._requests(stream, limits)

    def _requests(self, stream: Stream, limits: ClientLimits) -> Iterator[RequestBatch]:
        """Single-turn requests; an arrival outside the client's windows draws only its gap."""
        gap = gap_law(self.spec.arrival, self.rate_us)
        windows = [(window.start_us, window.end_us) for window in self.spec.active_windows]
        silent_from = max((end for _, end in windows), default=math.inf)
        arrival_us, num_sent = 0, 0
        while num_sent < limits.most_requests:
            arrival_us += gap(stream)
            if arrival_us >= min(limits.horizon_us, silent_from):
                return
            if windows and not any(start <= arrival_us < end for start, end in windows):
                continue
            new, output = self._contents(stream)
            prompt = (self.prefix, new) if len(self.prefix) else (new,)
            request = DrawnRequest(arrival_us, self.index, NO_SESSION, 0, prompt, output)
            yield RequestBatch(arrival_us, [request], len(new) + len(output))
            num_sent += 1

    def _sessions(
        self, stream: Stream, limits: ClientLimits, turns: MultiTurnSpec
    ) -> Iterator[RequestBatch]:
        """Sessions, which overlap; prefix groups, windows and modalities do not apply to them."""
        gap = gap_law(self.spec.arrival, self.rate_us)
        begins_us, num_sent = 0, 0
        while num_sent < limits.most_requests:
            begins_us += gap(stream)
            if begins_us >= limits.horizon_us:
                return
            stream.int63()  # the session's name
            rounds = [self._round(stream) for _ in range(turns.max_rounds)]
            yield self._session(begins_us, num_sent // turns.max_rounds, rounds, turns)
            num_sent += turns.max_rounds

    def _round(self, stream: Stream) -> tuple[Tokens, Tokens]:
        contents = self._contents(stream)
        if self._reason_ratio is not None:
            self._reason_ratio(stream)  # has no effect but on the stream
        return contents

    def _session(
        self,
        begins_us: int,
        session: int,
        rounds: Sequence[tuple[Tokens, Tokens]],
        turns: MultiTurnSpec,
    ) -> RequestBatch:
        """A round waits for the output before it, at 1 us a token, and a think time."""
        history = np.concatenate([part for contents in rounds for part in contents])
        requests: list[DrawnRequest] = []
        arrival_us, end = begins_us, 0
        for turn, (new, output) in enumerate(rounds):
            end += len(new)
            prompt = history[:end] if turns.context_growth == "accumulate" else new
            requests.append(DrawnRequest(arrival_us, self.index, session, turn, (prompt,), output))
            end += len(output)
            arrival_us += turns.think_time_us + len(output)
        return RequestBatch(begins_us, requests, len(history))


def _contents(spec: ClientSpec) -> Contents:
    """What draws the lengths and tokens of a prompt and its output."""
    output_length = length_law(spec.output_distribution)
    if spec.multimodal is not None and not spec.multi_turn:
        prompt_length = _multimodal_length(spec.multimodal)

        def multimodal(stream: Stream) -> tuple[Tokens, Tokens]:
            prompt = draw_tokens(stream, prompt_length(stream))
            return prompt, draw_tokens(stream, output_length(stream))

        return multimodal
    input_length = length_law(spec.input_distribution)

    def language(stream: Stream) -> tuple[Tokens, Tokens]:
        num_inputs, num_outputs = input_length(stream), output_length(stream)
        return draw_tokens(stream, num_inputs), draw_tokens(stream, num_outputs)

    return language


def draw_tokens(stream: Stream, count: int) -> Tokens:
    """Token ids of a new content."""
    if count > MOST_TOKENS:
        raise ConfigError(
            f"a length law drew {count} tokens, allowed are {MOST_TOKENS} in the whole workload; "
            f"make its tail lighter"
        )
    return stream.intn_vector(VOCABULARY, count)


def _multimodal_length(spec: MultimodalSpec) -> Length:
    """Tokens of text and of each image, recording and video, at least 1 together."""
    text = None if spec.text_distribution is None else length_law(spec.text_distribution)
    modalities = [
        (length_law(number), length_law(size))
        for number, size in (
            (spec.image_count_distribution, spec.image_distribution),
            (spec.audio_count_distribution, spec.audio_distribution),
            (spec.video_count_distribution, spec.video_distribution),
        )
        if number is not None and size is not None
    ]

    def length(stream: Stream) -> int:
        total = text(stream) if text is not None else 0
        for number, size in modalities:
            for _ in range(number(stream)):
                total += size(stream)
        return max(total, 1)

    return length
