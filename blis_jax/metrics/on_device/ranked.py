"""Order statistics by one sort of whole numbers, of all members and of every SLO class at once.

XLA sorts single whole numbers seven times as fast on a CPU as pairs or floats. So each value is packed with the place
that it came from, and the sorted places give the values back exactly, slopes included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.types import SLO_CLASSES

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

NUM_CLASSES = len(SLO_CLASSES)
EVERYBODY = -1  # in place of the code of an SLO class: the group of all requests


class Ranked(NamedTuple):
    """Samples of several quantities in ascending order: of all members, then class by class."""

    values: Float[Array, "quantity entry"]  # in the order given
    places: Int[Array, "quantity twice_entry"]  # of the members of all classes, then of each class
    starts: Int[Array, "quantity group"]  # where a group begins there
    counts: Int[Array, "quantity group"]  # members of a group

    def percentiles_ms(self, percents: Sequence[float]) -> Float[Array, "quantity group percent"]:
        """Return percentiles of samples in µs, in ms; NaN for an empty one."""
        wanted = jnp.asarray(percents, jnp.float64)[None, None, :]
        low, high, fraction = self._around(wanted / 100.0)
        between = low / 1000 + (high - low) * fraction / 1000
        return jnp.where(self.counts[..., None] > 0, between, jnp.nan)

    def quantiles_ms(self, levels: Sequence[float]) -> Float[Array, "quantity group level"]:
        """Return quantiles of samples in µs at levels from 0 to 1, in ms, linear between members."""
        low, high, fraction = self._around(jnp.asarray(levels, jnp.float64)[None, None, :])
        between = (low + (high - low) * fraction) / 1000
        return jnp.where(self.counts[..., None] > 0, between, jnp.nan)

    def largest_us(self, ranks: Sequence[int]) -> Float[Array, "quantity group rank"]:
        """Return the members of those ranks, 0 for the largest, of samples in µs; NaN where there are fewer."""
        wanted = jnp.asarray(ranks)[None, None, :]
        at = self.starts[..., None] + self.counts[..., None] - 1 - wanted
        members = _at(self.values, _at(self.places, jnp.maximum(at, 0)[None]))[0]
        return jnp.where(wanted < self.counts[..., None], members, jnp.nan)

    def of(self, quantities: Sequence[int]) -> Ranked:
        """Return some of the quantities."""
        chosen = np.asarray(quantities)
        return Ranked(*(part[chosen] for part in self))

    def _around(self, levels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the members around the rank at each level, and how far between them it lies."""
        last = jnp.maximum(self.counts[..., None] - 1, 0)
        ranks = levels * last
        below = jnp.floor(ranks).astype(last.dtype)
        at = self.starts[None, ..., None] + jnp.stack([below, jnp.minimum(below + 1, last)])
        low, high = _at(self.values, _at(self.places, at))
        return low, high, ranks - below


def _at(values: Float[Array, "quantity entry"], places: Int[Array, "side quantity ..."]) -> Any:
    """Of each quantity, the entries at some places."""
    return jax.vmap(lambda entries, at: entries[at], in_axes=(0, 1), out_axes=1)(values, places)


def ranked(
    values: Float[Array, "quantity entry"] | Int[Array, "quantity entry"],
    is_member: Bool[Array, "quantity entry"],
    slo_class: Int[Array, "entry"],
    groups: Sequence[int],
) -> Ranked:
    """Return the samples of the members; groups are SLO classes, or EVERYBODY."""
    size, bits = values.shape[1], _bits_for(values.shape[1])
    order = jax.vmap(order_of)(values, is_member)
    count = jnp.sum(is_member, axis=1, keepdims=True)
    zero = jnp.zeros_like(count)
    if not any(group != EVERYBODY for group in groups):
        return Ranked(values.astype(jnp.float64), order, zero, count)
    rank = lax.iota(jnp.int64, size)[None, :]
    group = jnp.where(rank < count, slo_class[order], NUM_CLASSES)
    by_class = jnp.sort((group << bits) | rank, axis=1) & (2**bits - 1)
    codes = jnp.arange(NUM_CLASSES)[None, :, None]
    counts = jnp.sum(is_member[:, None, :] & (slo_class[None, None, :] == codes), axis=2)
    starts = size + jnp.cumsum(counts, axis=1) - counts
    columns = np.asarray(groups) - EVERYBODY
    return Ranked(
        values=values.astype(jnp.float64),
        places=jnp.concatenate([order, jnp.take_along_axis(order, by_class, axis=1)], axis=1),
        starts=jnp.concatenate([zero, starts], axis=1)[:, columns],
        counts=jnp.concatenate([count, counts], axis=1)[:, columns],
    )


def order_of(
    values: Float[Array, "entry"] | Int[Array, "entry"], is_member: Bool[Array, "entry"]
) -> Int[Array, "entry"]:
    """Return the places in ascending order of value, those of no member last.

    The order is exact for whole numbers below 2^63 ÷ the number of entries; other values that agree to 1 part in
    2^52 ÷ entries count as equal.
    """
    bits = _bits_for(len(values))
    place = lax.iota(jnp.int64, len(values))
    values = lax.stop_gradient(values)
    if jnp.issubdtype(values.dtype, jnp.floating):
        raw = lax.bitcast_convert_type(values.astype(jnp.float64), jnp.int64)
        raw = jnp.where(
            raw < 0, raw ^ jnp.int64(2**63 - 1), raw
        )  # negative floats ascend backwards
        key = raw & ~jnp.int64(2**bits - 1)
    else:
        key = values.astype(jnp.int64) << bits
    last = jnp.int64(2**63 - 1) & ~jnp.int64(2**bits - 1)
    return jnp.sort(jnp.where(is_member, key, last) | place) & (2**bits - 1)


def weighted_percentiles_ms(
    values: Float[Array, "entry"] | Int[Array, "entry"],
    weights: Int[Array, "entry"],
    percents: Sequence[float],
) -> tuple[jax.Array, jax.Array]:
    """Return percentiles in ms of values in µs that each count as often as their weight says; and their mean in ms."""
    order = order_of(values, weights > 0)
    values, weights = values.astype(jnp.float64), jnp.maximum(weights, 0)
    ends = jnp.cumsum(weights[order])
    count = ends[-1]
    ranks = jnp.asarray(percents, jnp.float64) / 100.0 * (count - 1)
    below = jnp.floor(ranks).astype(jnp.int64)
    wanted = jnp.stack([below, jnp.minimum(below + 1, count - 1)])
    at = jnp.sum(ends[None, None, :] <= wanted[..., None], axis=-1)
    low, high = values[order[jnp.minimum(at, len(values) - 1)]]
    between = low / 1000 + (high - low) * (ranks - below) / 1000
    mean = jnp.sum(values * weights) / jnp.maximum(count, 1) / 1000
    return jnp.where(count > 0, between, jnp.nan), jnp.where(count > 0, mean, jnp.nan)


def _bits_for(size: int) -> int:
    return max(size - 1, 1).bit_length()
