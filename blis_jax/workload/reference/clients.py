"""What one client of a specification sends, request by request, from its own stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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


class Request(NamedTuple):
    """One request with its contents; parts of a prompt may be shared with other requests."""

    arrival_us: int
    client: int
    session: int  # number within the client, NO_SESSION for a single-turn request
    round_index: int
    prompt: tuple[Tokens, ...]
    output: Tokens


Contents = Callable[[Stream], tuple["Tokens", "Tokens"]]  # draws a new prompt and its output
Batch = tuple[int, list[Request]]  # a time that no later batch of the client precedes, and requests


@dataclass(frozen=True)
class Limits:
    """Where a client's requests end."""

    horizon_us: float  # exclusive, infinite without one
    most_requests: float  # per client, infinite without a limit; a session is not cut


@dataclass(frozen=True)
class Sender:
    """One client, ready to send."""

    index: int
    spec: ClientSpec
    rate_us: float  # arrivals per microsecond
    prefix: Tokens

    def batches(self, seed: int, limits: Limits) -> Iterator[Batch]:
        """Requests in the order in which the reference draws them."""
        stream = Stream(seed)
        if self.spec.multi_turn:
            return self._sessions(stream, limits, self.spec.multi_turn)
        return self._requests(stream, limits)

    def _requests(self, stream: Stream, limits: Limits) -> Iterator[Batch]:
        """Single-turn requests; an arrival outside the client's windows draws only its gap."""
        gap, contents = gap_law(self.spec.arrival, self.rate_us), self._contents()
        windows = [(window.start_us, window.end_us) for window in self.spec.active_windows]
        silent_from = max((end for _, end in windows), default=math.inf)
        arrival_us, num_sent = 0, 0
        while num_sent < limits.most_requests:
            arrival_us += gap(stream)
            if arrival_us >= min(limits.horizon_us, silent_from):
                return
            if windows and not any(start <= arrival_us < end for start, end in windows):
                continue
            new, output = contents(stream)
            prompt = (self.prefix, new) if len(self.prefix) else (new,)
            yield arrival_us, [Request(arrival_us, self.index, NO_SESSION, 0, prompt, output)]
            num_sent += 1

    def _contents(self) -> Contents:
        output_length = length_law(self.spec.output_distribution)
        if self.spec.multimodal is not None:
            prompt_length = _multimodal_length(self.spec.multimodal)

            def multimodal(stream: Stream) -> tuple[Tokens, Tokens]:
                prompt = draw_tokens(stream, prompt_length(stream))
                return prompt, draw_tokens(stream, output_length(stream))

            return multimodal
        input_length = length_law(self.spec.input_distribution)

        def language(stream: Stream) -> tuple[Tokens, Tokens]:
            num_inputs, num_outputs = input_length(stream), output_length(stream)
            return draw_tokens(stream, num_inputs), draw_tokens(stream, num_outputs)

        return language

    def _sessions(self, stream: Stream, limits: Limits, turns: MultiTurnSpec) -> Iterator[Batch]:
        """Sessions, which overlap; prefix groups, windows and modalities do not apply to them."""
        gap, contents = gap_law(self.spec.arrival, self.rate_us), self._contents()
        assert self.spec.reasoning is not None
        ratio_law = self.spec.reasoning.reason_ratio_distribution
        reason_ratio = None if ratio_law is None else length_law(ratio_law)
        start_us, num_sent, session = 0, 0, 0
        while num_sent < limits.most_requests:
            start_us += gap(stream)
            if start_us >= limits.horizon_us:
                return
            stream.int63()  # the session's name
            requests: list[Request] = []
            context: tuple[Tokens, ...] = ()
            arrival_us = start_us
            for turn in range(turns.max_rounds):
                new, output = contents(stream)
                if reason_ratio is not None:
                    reason_ratio(stream)  # has no effect but on the stream
                prompt = (*context, new)
                requests.append(Request(arrival_us, self.index, session, turn, prompt, output))
                if turns.context_growth == "accumulate":
                    context = (*prompt, output)
                arrival_us += turns.think_time_us + len(output)
            yield start_us, requests
            num_sent += len(requests)
            session += 1


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
