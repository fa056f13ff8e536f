"""New prompts and outputs, drawn by the laws of a client or of one of its windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.reference.laws.lengths import AnyLaw, Length, length_law
from blis_jax.workload.reference.requests import NO_PARTS
from blis_jax.workload.spec import ClientSpec, MultimodalSpec

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]

VOCABULARY = 128_000  # tokens are uniform below it
MOST_TOKENS = 2**28  # of one workload; they are held in memory to tell which contents are equal


class DrawnContents(NamedTuple):
    """What one request asks and is answered."""

    new: Tokens  # without a shared prefix or earlier rounds
    output: Tokens
    parts: tuple[int, int, int, int] = NO_PARTS  # of multimodal prompts
    reason_ratio: float = 0.0  # of rounds


Drawer = Callable[[Stream], DrawnContents]
Parts = Callable[[Stream], tuple[int, int, int, int]]


def drawer_of(client: ClientSpec) -> Drawer:
    """What draws the lengths and tokens of the client's prompts and outputs."""
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
    """What draws prompts of text alone: both lengths, then both contents."""
    input_length, output_length = length_law(input_law), length_law(output_law)

    def contents(stream: Stream) -> DrawnContents:
        num_inputs, num_outputs = input_length(stream), output_length(stream)
        return DrawnContents(draw_tokens(stream, num_inputs), draw_tokens(stream, num_outputs))

    return contents


def draw_tokens(stream: Stream, count: int) -> Tokens:
    """Token ids of a new content."""
    if count > MOST_TOKENS:
        raise ConfigError(
            f"a length law drew {count} tokens, allowed are {MOST_TOKENS} in the whole workload; "
            f"make its tail lighter"
        )
    return stream.intn_vector(VOCABULARY, count)


def modality_parts(spec: MultimodalSpec) -> Parts:
    """Tokens of text, and of all images, recordings and videos."""
    text = None if spec.text_distribution is None else length_law(spec.text_distribution)
    modalities = (
        _items(spec.image_count_distribution, spec.image_distribution),
        _items(spec.audio_count_distribution, spec.audio_distribution),
        _items(spec.video_count_distribution, spec.video_distribution),
    )

    def parts(stream: Stream) -> tuple[int, int, int, int]:
        words = 0 if text is None else text(stream)
        images, audio, video = (items(stream) for items in modalities)
        return words, images, audio, video

    return parts


def _items(number: AnyLaw | None, size: AnyLaw | None) -> Length:
    """Tokens of all items of one kind."""
    if number is None or size is None:
        return lambda stream: 0
    count, length = length_law(number), length_law(size)

    def items(stream: Stream) -> int:
        return sum(length(stream) for _ in range(count(stream)))

    return items
