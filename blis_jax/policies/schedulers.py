"""Schedulers: the order in which waiting requests are considered.

Each has the signature `(params, QueueView) -> (value[slot], rank[slot])`: least value first, equal values
by least rank; ranks are unique. Source: BLIS `sim/scheduler.go`.
"""

from __future__ import annotations

import jax

from blis_jax.policies.admission import NoParams
from blis_jax.types import QueueView

Keys = tuple[jax.Array, jax.Array]


def fcfs(params: NoParams, queue: QueueView) -> Keys:
    """In order of entry into the queue, which is not order of arrival."""
    del params
    return queue.queued_us, queue.request.queue_rank


def priority_fcfs(params: NoParams, queue: QueueView) -> Keys:
    """Highest priority first, then by arrival."""
    del params
    return -queue.priority, queue.request.tie_rank


def reverse_priority(params: NoParams, queue: QueueView) -> Keys:
    """Lowest priority first: a deliberately bad policy."""
    del params
    return queue.priority, queue.request.tie_rank


def sjf(params: NoParams, queue: QueueView) -> Keys:
    """Shortest prompt first, then by arrival."""
    del params
    return queue.request.input_len, queue.request.tie_rank
