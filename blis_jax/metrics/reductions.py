"""Counts, sums and look-ups over `[..., request]` and `[..., instance]` arrays of one run or of a batch.

The arrays are numpy's, or JAX's of one lane inside a compiled call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.metrics.arrays import clipped, namespace, sums
from blis_jax.results.records import InstanceRecords, RequestRecords, Status

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

Counts = Any  # an integer for one run, integers over the leading axes for a batch


def count(is_wrong: Bool[np.ndarray, "*row entry"]) -> Counts:
    """How many entries are wrong."""
    return is_wrong.sum(axis=-1)


def of_instance(values: np.ndarray, requests: RequestRecords) -> np.ndarray:
    """Each request's value of its instance; of the first one where it has none."""
    xp = namespace(values)
    row = clipped(requests.instance.astype(np.int64), values.shape[-1] - 1)
    return xp.take_along_axis(values, row, axis=-1)


def per_instance(
    is_counted: Bool[np.ndarray, "*row request"],
    requests: RequestRecords,
    instances: InstanceRecords,
    values: Int[np.ndarray, "*row request"] | None = None,
) -> Int[np.ndarray, "*row instance"]:
    """Sums over the counted requests of each instance: of ones, or of the values."""
    shape = instances.completed_requests.shape
    if namespace(is_counted) is not np:  # one lane of a compiled call
        one = is_counted if values is None else is_counted * values
        return sums(requests.instance, one, shape[-1])
    run = np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    is_counted = is_counted & (requests.instance >= 0) & (requests.instance < shape[-1])
    cell = (run * shape[-1] + requests.instance)[is_counted]
    weights = None if values is None else values[is_counted]
    totals = np.bincount(cell, weights, math.prod(shape))
    return totals.astype(np.int64).reshape(shape)


def per_status(
    requests: RequestRecords, instances: InstanceRecords, statuses: Sequence[Status]
) -> list[Int[np.ndarray, "*row instance"]]:
    """How many requests of each instance have each of these statuses."""
    if namespace(requests.status) is not np:  # one lane of a compiled call
        return [per_instance(requests.status == int(one), requests, instances) for one in statuses]
    shape, most = instances.completed_requests.shape, len(Status)
    is_counted = (requests.status >= 0) & (requests.status < most)
    is_counted &= (requests.instance >= 0) & (requests.instance < shape[-1])
    run = np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    cell = (run * shape[-1] + requests.instance) * most + requests.status
    table = np.bincount(cell[is_counted], minlength=math.prod(shape) * most)
    table = table.reshape(*shape, most)
    return [table[..., int(one)] for one in statuses]
