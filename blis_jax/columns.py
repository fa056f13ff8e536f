"""Short vectors whose entries have names: a row of a table, or the lane's scalars.

A vector is one buffer: branches capture and return it whole, and a change is one fused kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def get(vector: jax.Array, column: int) -> jax.Array:
    """One entry, as a scalar."""
    return lax.index_in_dim(vector, int(column), axis=0, keepdims=False)


def put(vector: jax.Array, changes: Mapping[Any, jax.Array]) -> jax.Array:
    """The vector with some entries replaced."""
    place = lax.iota(jnp.int32, vector.shape[0])
    for index, value in changes.items():
        vector = jnp.where(place == jnp.int32(index), value.astype(vector.dtype), vector)
    return vector


def as_int(mask: jax.Array) -> jax.Array:
    """1 where true, else 0."""
    return mask.astype(jnp.int32)


def build(columns: Any, values: Mapping[Any, jax.Array], dtype: Any) -> jax.Array:
    """A vector with one entry per member of the enumeration `columns`."""
    return jnp.stack([values[column].astype(dtype) for column in columns])
