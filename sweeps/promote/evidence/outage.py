"""A cluster policy of the concern "outage": instance 0 goes down, its queue is routed again, and it comes back."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from blis_jax.policies import ClusterChange, ClusterContext, cluster_policy, number, pytree


@pytree
class OutageSpan:
    """When instance 0 is down."""

    from_us: Any = number(100_000, "us", "when it goes down", low=0, high=1e12)
    until_us: Any = number(300_000, "us", "when it comes up again", low=0, high=1e12)
    delay_us: Any = number(50_000, "us", "until its queue is routed again", low=0, high=1e9)


@pytree
class ChangesMade:
    """How often it went down or up."""

    count: Any


def _start(params: OutageSpan, shape: Any) -> ChangesMade:
    return ChangesMade(jnp.int32(0))


def _next_time(params: OutageSpan, state: ChangesMade) -> Any:
    later = jnp.where(state.count == 1, params.until_us, jnp.inf)
    return jnp.where(state.count == 0, params.from_us, later)


@cluster_policy(OutageSpan, _start, next_time=_next_time)
def one_instance_stops(
    params: OutageSpan, state: ChangesMade, context: ClusterContext
) -> tuple[ClusterChange, ChangesMade]:
    """Instance 0 is down for a while; what it runs, it finishes."""
    is_it = jnp.arange(context.is_up.shape[0], dtype=jnp.int32) == 0
    goes_down = state.count == 0
    change = ClusterChange(
        is_up=jnp.where(is_it, ~goes_down, context.is_up),
        queue_leaves=is_it & goes_down,
        delay_us=params.delay_us,
    )
    return change, ChangesMade(state.count + 1)
