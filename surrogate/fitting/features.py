"""Inputs as a network sees them: every column on a common scale, some on two."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from surrogate.columns import InputColumn

WIDE = 2.0  # a range that spans such a factor is also seen by its logarithm
LEVELS = 512  # where a range begins at 0, the logarithm resolves one part in so many


def num_features(columns: Sequence[InputColumn]) -> int:
    """How many numbers `features` makes of a point."""
    middle = np.array([[(column.low + column.high) / 2 for column in columns]], np.float32)
    return int(features(columns, jnp.asarray(middle)).shape[1])


def features(
    columns: Sequence[InputColumn], inputs: Float[Array, "point column"]
) -> Float[Array, "point feature"]:
    """Each column from -1 to 1: linear, logarithmic or both; one number a category.

    Where a column has no limit it stands at its high end, with a mark of its own. Scorers' weights also
    have their shares of all weights, since a router sees nothing else of them.
    """
    parts: list[jax.Array] = []
    for place, column in enumerate(columns):
        x = inputs[:, place]
        if column.kind == "categorical":
            codes = jnp.arange(len(column.categories), dtype=x.dtype)
            parts += list((jnp.round(x)[None, :] == codes[:, None]).astype(x.dtype))
            continue
        if column.unlimited_at is not None:
            is_unlimited = x == column.unlimited_at
            x = jnp.where(is_unlimited, column.high, x)
            parts.append(is_unlimited.astype(x.dtype))
        if not column.is_log:
            parts.append(_scaled(x, column.low, column.high))
        if column.is_log or _is_wide(column):
            offset = 0.0 if column.low > 0 else _step(column) - column.low
            low, high = float(np.log(column.low + offset)), float(np.log(column.high + offset))
            safe = jnp.maximum(x + offset, 0.5 * (column.low + offset))
            parts.append(_scaled(jnp.log(safe), low, high))
    return jnp.stack(parts + _weight_shares(columns, inputs), axis=1)


def _weight_shares(
    columns: Sequence[InputColumn], inputs: Float[Array, "point column"]
) -> list[jax.Array]:
    """From -1 to 1; none where one weight is all there is."""
    places = [place for place, column in enumerate(columns) if column.fixed_weights is not None]
    if not places:
        return []
    fixed = columns[places[0]].fixed_weights or 0.0
    if len(places) == 1 and fixed == 0:
        return []
    weights = jnp.maximum(inputs[:, np.array(places)], 0.0)
    total = jnp.maximum(weights.sum(axis=1) + fixed, np.finfo(np.float32).tiny)
    return [_scaled(weights[:, place] / total, 0.0, 1.0) for place in range(len(places))]


def _scaled(x: jax.Array, low: float, high: float) -> jax.Array:
    """-1 at the low end, 1 at the high one."""
    return (x - low) * (2.0 / (high - low)) - 1.0


def _is_wide(column: InputColumn) -> bool:
    return column.low <= 0 or column.high / column.low >= WIDE


def _step(column: InputColumn) -> float:
    """What is added before the logarithm where a range begins at or below 0."""
    step = (column.high - column.low) / LEVELS
    return max(step, 1.0) if column.kind == "integer" else step
