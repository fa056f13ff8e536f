"""Short vectors whose entries have names: a row of a table, or the lane's scalars.

On a CPU a vector is one buffer: branches capture and return it whole, and a change is one fused kernel. In many lanes
its entries are apart: each is a scalar of the lane, so that no kernel waits for entries that it does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.types import pytree


@pytree
class Columns:
    """A vector whose entries are apart."""

    entries: tuple[Any, ...]


Vector = Any  # an array, or Columns


def is_apart(value: Any) -> bool:
    """Whether it is a vector with its entries apart."""
    return isinstance(value, Columns)


def apart(vector: Vector) -> Columns:
    """The vector with its entries apart."""
    if isinstance(vector, Columns):
        return vector
    return Columns(tuple(get(vector, column) for column in range(vector.shape[0])))


def together(vector: Vector) -> jax.Array:
    """The vector as one array."""
    return jnp.stack(vector.entries) if isinstance(vector, Columns) else vector


def selected(vector: Vector) -> jax.Array:
    """The vector as one array made by selects: unlike a concatenation they are fused into what reads it."""
    if not isinstance(vector, Columns):
        return vector
    place = lax.iota(jnp.int32, len(vector.entries))
    row = jnp.broadcast_to(vector.entries[0], place.shape)
    for index, entry in enumerate(vector.entries[1:], start=1):
        row = jnp.where(place == jnp.int32(index), entry, row)
    return row


def get(vector: Vector, column: int) -> Any:
    """One entry, as a scalar; of a table of vectors, one column."""
    if isinstance(vector, Columns):
        entry: jax.Array = vector.entries[int(column)]
        return entry
    if isinstance(vector, np.ndarray):
        return vector[..., int(column)]
    return lax.index_in_dim(vector, int(column), axis=vector.ndim - 1, keepdims=False)


def put(vector: Vector, changes: Mapping[Any, jax.Array]) -> Vector:
    """The vector with some entries replaced."""
    if isinstance(vector, Columns):
        entries = list(vector.entries)
        for index, value in changes.items():
            entries[int(index)] = value.astype(entries[int(index)].dtype)
        return Columns(tuple(entries))
    place = lax.iota(jnp.int32, vector.shape[0])
    for index, value in changes.items():
        vector = jnp.where(place == jnp.int32(index), value.astype(vector.dtype), vector)
    return vector


def choose(predicate: jax.Array, one: Any, other: Any) -> Any:
    """`one` where the predicate holds, else `other`; a vector with entries apart on either side stays apart."""

    def pick(a: Any, b: Any) -> Any:
        if is_apart(a) or is_apart(b):
            pairs = zip(apart(a).entries, apart(b).entries, strict=True)
            return Columns(tuple(jnp.where(predicate, x, y) for x, y in pairs))
        return jnp.where(predicate, a, b)

    return jax.tree.map(pick, one, other, is_leaf=is_apart)


def tail(vector: Vector, start: int) -> Vector:
    """The entries from `start` on."""
    if isinstance(vector, Columns):
        return Columns(vector.entries[int(start) :])
    return vector[int(start) :]


def with_tail(vector: Vector, start: int, entries: Vector) -> Vector:
    """The vector with its entries from `start` on replaced."""
    if isinstance(vector, Columns):
        return Columns(vector.entries[: int(start)] + apart(entries).entries)
    return jnp.concatenate([vector[: int(start)], entries])


def as_int(mask: jax.Array) -> jax.Array:
    """1 where true, else 0."""
    return mask.astype(jnp.int32)


def build(columns: Any, values: Mapping[Any, jax.Array], dtype: Any) -> Vector:
    """A vector with one entry per member of the enumeration `columns`; it comes together where a branch ends."""
    return Columns(tuple(values[column].astype(dtype) for column in columns))
