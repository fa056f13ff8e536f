"""Reductions over arrays of numpy or of JAX alike, so that one definition serves the host and a compiled call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.lazy import jnp, lax

if TYPE_CHECKING:
    import jax
    from jax.typing import ArrayLike

    Values = jax.Array | np.ndarray
    Number = jax.Array | np.ndarray | np.float64 | np.int64 | float

MOST_MASKED = 16  # groups that are summed by one mask each; more are scattered


def namespace(array: object) -> Any:
    """Return `numpy` for its own arrays and for plain numbers, else `jax.numpy`."""
    if isinstance(array, np.ndarray | np.generic | int | float):
        return np
    return jnp


def stacked(*leaves: ArrayLike) -> np.ndarray:
    """Stack the arrays of several runs along a new first axis, `[run, ...]`; the array of a single run only gets that
    axis, because `np.stack` costs ten times as much.
    """
    return np.stack(leaves) if len(leaves) > 1 else np.asarray(leaves[0])[None]


def clipped(values: Values, most: int) -> Any:
    """Return whole numbers clipped to [0, most]; `np.clip` takes three times as long."""
    xp = namespace(values)
    return xp.minimum(xp.maximum(values, 0), most)


def sums(index: Values, values: Values, size: int) -> Any:
    """Return the sum of the values at each index in [0, size); values at any other index are ignored.

    Booleans are counted as int64; other sums keep the dtype of the values.
    """
    xp = namespace(values)
    values = values.astype(xp.int64) if values.dtype == bool else values
    if xp is np:
        if not len(index):
            return np.zeros(size, values.dtype)
        # entries without one are counted in front, which costs a fifth of leaving them out
        total = np.bincount(np.maximum(index, -1) + 1, values, size + 1)
        return total[1 : size + 1].astype(values.dtype)
    if size <= MOST_MASKED:
        is_here = index[None, :] == xp.arange(size, dtype=index.dtype)[:, None]
        return xp.sum(xp.where(is_here, values[None, :], 0), axis=1, dtype=values.dtype)
    place = xp.where(index < 0, size, index)
    return xp.zeros(size, values.dtype).at[place].add(values, mode="drop")


def maxima(index: Values, values: Values, size: int) -> Any:
    """Return the largest value at each index in [0, size), at least 0; values at any other index are ignored."""
    xp = namespace(values)
    if xp is np:
        is_there = (index >= 0) & (index < size)
        largest = np.zeros(size, values.dtype)
        np.maximum.at(largest, index[is_there], values[is_there])
        return largest
    if size <= MOST_MASKED:
        is_here = index[None, :] == xp.arange(size, dtype=index.dtype)[:, None]
        return xp.max(xp.where(is_here, values[None, :], 0), axis=1)
    place = xp.where(index < 0, size, index)
    return xp.zeros(size, values.dtype).at[place].max(values, mode="drop")


def ratio(amount: Number, of: Number, otherwise: float = 0.0) -> Any:
    """Return `amount / of`, or `otherwise` where `of` is not above 0."""
    xp = namespace(of)
    return choose(of > 0, amount / xp.where(of > 0, of, 1), otherwise)


def choose(is_first: ArrayLike, first: ArrayLike, second: ArrayLike) -> Any:
    """Return `first` where `is_first` holds, else `second`; a scalar if all arguments are scalars."""
    xp = namespace(is_first)
    chosen = xp.where(is_first, first, second)
    return chosen[()] if xp is np else chosen


def in_order(values: Values) -> Any:
    """Return the sum of the values: numpy arrays are added from left to right, JAX arrays in any order."""
    if not isinstance(values, np.ndarray):
        return values.sum()
    return np.cumsum(values)[-1] if len(values) else values.sum()


def stable_order(keys: Values) -> Any:
    """Return the indices that sort integer keys in ascending order; equal keys stay in the order given.

    JAX keys must be at least 0 and below 2^63 / len(keys).
    """
    if isinstance(keys, np.ndarray):
        return np.argsort(keys, kind="stable")
    size = len(keys)
    bits = max(size - 1, 1).bit_length()  # single whole numbers sort seven times as fast as pairs
    packed = (keys.astype(jnp.int64) << bits) | jnp.arange(size, dtype=jnp.int64)
    return jnp.sort(packed) & (2**bits - 1)


def running_maxima(values: Values) -> Any:
    """Return the running maximum: for each index the largest value up to it."""
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values)
    return lax.cummax(values)


def replaced(values: Values, index: Values, is_new: Values, new: Values) -> Any:
    """Return the values with `new[i]` at `index[i]` wherever `is_new[i]`; no such index may occur twice."""
    if isinstance(values, np.ndarray):
        changed = values.copy()
        changed[index[is_new]] = new[is_new]
        return changed
    return values.at[jnp.where(is_new, index, len(values))].set(new, mode="drop")
