"""Prompts of text, images, recordings and video: how many of each, and tokens of each one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.workload.drawing.samplers import (
    LONGEST_TOKENS,
    Empirical,
    LengthParams,
    draw_lengths,
    law_name,
    length_params,
    whole_tokens,
)
from blis_jax.workload.lengths.bounds import longest_length
from blis_jax.workload.lengths.laws import LengthLaw
from blis_jax.workload.spec import MultimodalSpec

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    Number = jax.Array | np.ndarray

CHANCE_OF_MORE = 1e-12  # that one prompt would have more items than are drawn


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Modality:
    """Numbers of one kind of item."""

    count: LengthParams  # items per prompt
    size: LengthParams  # tokens per item
    item: Float[Number, " item"]  # 0, 1, …: as many as are drawn for each prompt


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Multimodal:
    """Numbers of all parts of a prompt."""

    text: LengthParams | None
    modalities: tuple[Modality, ...]

    @property
    def name(self) -> str:
        """What is static: the laws and the number of items drawn."""
        text = "none" if self.text is None else law_name(self.text)
        items = [
            f"up to {len(one.item)} by {law_name(one.count)} of {law_name(one.size)}"
            for one in self.modalities
        ]
        return f"multimodal({', '.join([text, *items])})"

    @property
    def draws_per_prompt(self) -> int:
        """Lengths that one prompt takes."""
        return 1 + sum(len(one.item) for one in self.modalities)


def multimodal_params(spec: MultimodalSpec) -> Multimodal:
    """The numbers of a specification; parts without tokens are left out."""
    pairs = (
        (spec.image_count_distribution, spec.image_distribution),
        (spec.audio_count_distribution, spec.audio_distribution),
        (spec.video_count_distribution, spec.video_distribution),
    )
    modalities = []
    for count_law, size_law in pairs:
        if count_law is None or size_law is None or _is_nothing(count_law) or _is_nothing(size_law):
            continue
        count = length_params(count_law)
        most = longest_length(count, CHANCE_OF_MORE)
        modalities.append(Modality(count, length_params(size_law), np.arange(float(most))))
    text = spec.text_distribution
    has_text = text is not None and not _is_nothing(text)
    return Multimodal(length_params(text) if text and has_text else None, tuple(modalities))


def _is_nothing(law: LengthLaw) -> bool:
    """A gaussian law whose bounds are both 0: the only one that the reference does not raise to 1."""
    return law.type == "gaussian" and law.params.max == 0


def multimodal_lengths(
    key: PRNGKeyArray, num: int, params: Multimodal
) -> Float[Array, " proposal"]:
    """Tokens of all parts together; a prompt without any has length 0."""
    keys = jax.random.split(key, 1 + 2 * len(params.modalities))
    total = jnp.zeros(num, jnp.float64)
    if params.text is not None:
        total += _whole(keys[0], num, params.text)
    for index, one in enumerate(params.modalities):
        key_count, key_size = keys[2 * index + 1], keys[2 * index + 2]
        most = one.item.shape[-1]
        count = _whole(key_count, num, one.count)
        size = _whole(key_size, num * most, one.size).reshape(num, most)
        total += jnp.sum(jnp.where(one.item[None, :] < count[:, None], size, 0.0), axis=1)
    return jnp.minimum(total, float(LONGEST_TOKENS))


def _whole(key: PRNGKeyArray, num: int, params: LengthParams) -> Float[Array, " proposal"]:
    """Rounded; only an empirical law may give 0."""
    drawn = draw_lengths(key, num, params)
    if isinstance(params, Empirical):
        return drawn
    return whole_tokens(drawn).astype(jnp.float64)
