"""Reductions over arrays of numpy or of JAX alike, so that one definition serves the host and a compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_MASKED = 16  # groups that are summed by one mask each; more are scattered


def namespace(array: Any) -> Any:
    """`numpy` for its own arrays, else `jax.numpy`."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import jax.numpy as jnp

    return jnp


def stacked(*leaves: Any) -> np.ndarray:
    """The same array of several runs, with the runs in front; `np.stack` costs ten times as much for a single one."""
    return np.stack(leaves) if len(leaves) > 1 else np.asarray(leaves[0])[None]


def clipped(values: Any, most: int) -> Any:
    """Whole numbers brought into [0, most]; `np.clip` takes three times as long."""
    xp = namespace(values)
    return xp.minimum(xp.maximum(values, 0), most)


def sums(index: Any, values: Any, size: int) -> Any:
    """Sums of the values of each index in [0, size); entries with another index count nowhere.

    Whole numbers stay whole (int64), numbers that are not are summed in float64.
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


def maxima(index: Any, values: Any, size: int) -> Any:
    """The largest value of each index in [0, size), 0 where there is none that is larger."""
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


def replaced(values: Any, index: Any, is_new: Any, new: Any) -> Any:
    """The values with those at some indices replaced, each at most once."""
    xp = namespace(values)
    if xp is np:
        changed = values.copy()
        changed[index[is_new]] = new[is_new]
        return changed
    return values.at[xp.where(is_new, index, len(values))].set(new, mode="drop")
