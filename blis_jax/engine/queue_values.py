"""What a scheduler orders waiting requests by, asked after the run: their places in one step's batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import Mechanism, Params, RequestView
from blis_jax.policies.contract import NoState, QueueContext, no_state
from blis_jax.policies.queue_order import fcfs
from blis_jax.workload.table import RequestTable

# (row[n], when each arrived, was queued, was scheduled[3, n]) -> value[n], least first
QueueValues = Callable[[np.ndarray, np.ndarray], np.ndarray]


def asked(
    mechanism: Mechanism, params: Params, context: QueueContext
) -> tuple[jax.Array, jax.Array]:
    """Return the value and rank `[slot]` that the scheduler gives; the instance's policies must keep no state."""
    policy = params.policy
    with runtime_infinity(jnp.asarray(params.cluster.infinity)):
        priority, _ = mechanism.priority.ask(policy.priority, NoState(), context)
        context = dataclasses.replace(context, priority=priority)
        order, _ = mechanism.scheduler.ask(policy.scheduler, NoState(), context)
    return order


def orders_by_slots(mechanism: Mechanism) -> bool:
    """Return whether the scheduler sorts the queue by what its slots and the time say alone."""
    is_plain = not any(
        policy.is_random or policy.start is not no_state for policy in mechanism.of_instance
    )
    return mechanism.scheduler != fcfs and is_plain and not mechanism.looks_beyond_queue


def queue_values(params: Params, mechanism: Mechanism, table: RequestTable) -> QueueValues:
    """Ask the scheduler of `orders_by_slots` for requests of a table; how many wait is taken to be 0."""

    def value_of(
        slo_class: jax.Array,
        input_len: jax.Array,
        tenant: jax.Array,
        arrival: jax.Array,
        queued: jax.Array,
        now: jax.Array,
    ) -> jax.Array:
        """Return what the scheduler sorts one request by."""
        zero = jnp.zeros(1, jnp.int32)
        context = QueueContext(
            request=RequestView(
                slo_class=slo_class[None],
                input_len=input_len[None],
                arrival_us=arrival[None],
                tenant=tenant[None],
                tie_rank=zero,
                queue_rank=zero,
            ),
            is_waiting=jnp.ones(1, bool),
            queued_us=queued[None],
            num_expected_blocks=zero,
            queue_depth=jnp.int32(0),
            now_us=now,
            instance=jnp.int32(0),
            key=None,
        )
        return asked(mechanism, params, context)[0][0]

    columns = [jnp.asarray(column) for column in (table.slo_class, table.input_len, table.tenant)]
    every = jax.jit(jax.vmap(value_of))

    def values(rows: np.ndarray, times_us: np.ndarray) -> np.ndarray:
        times = np.zeros((3, table.num_rows), np.int64)
        times[:, rows] = times_us
        with jax.enable_x64(True):
            return np.asarray(every(*columns, *times))[rows]

    return values
