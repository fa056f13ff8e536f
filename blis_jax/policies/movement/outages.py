"""Outages: every instance fails after a random time, or one at a given time; and comes back after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contexts import ClusterChange, ClusterContext
from blis_jax.policies.contract import cluster_policy
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


@pytree
class FailureParams:
    """The fate of the requests of an instance that fails."""

    reroute_ms: Float[Array, ""] = number(
        10.0, "ms", "time until a request is routed again", low=0, search=(0, 10_000)
    )
    running: Float[Array, ""] = number(
        0, "", "what an instance runs when it fails: 0 is finished there, 1 is computed again elsewhere, 2 is lost",
        low=0, high=2, is_whole=True,
    )  # fmt: skip


@pytree
class OutageParams(FailureParams):
    """The mean times between failures and to repair, and the start-up time."""

    mtbf_s: Float[Array, ""] = number(
        3600.0, "s", "mean time from an instance's start to its failure",
        low=0, excludes_low=True, search=(60, 1e5), prior="log-uniform",
    )  # fmt: skip
    mttr_s: Float[Array, ""] = number(
        60.0, "s", "mean time from a failure to the repair",
        low=0, excludes_low=True, search=(1, 3600), prior="log-uniform",
    )  # fmt: skip
    start_up_s: Float[Array, ""] = number(
        30.0, "s", "time from the repair until the instance takes requests", low=0, search=(0, 600)
    )


@pytree
class OutageState:
    """The next time at which each instance fails or comes back `[instance]`; before the first draw 0 for all."""

    next_us: Float[Array, "instance"]
    has_begun: Bool[Array, ""]


def not_begun(params: OutageParams, shape: EngineShape) -> OutageState:
    """Return the state before time 0; the first failures are drawn at time 0, when the policy has its key."""
    return OutageState(jnp.zeros(shape.num_instances, jnp.float64), jnp.array(False))


def next_change(params: OutageParams, state: OutageState) -> jax.Array:
    """Return the earliest next failure or return of any instance, µs."""
    return jnp.min(state.next_us)


@cluster_policy(OutageParams, not_begun, is_random=True, next_time=next_change)
def outages(
    params: OutageParams, state: OutageState, context: ClusterContext
) -> tuple[ClusterChange, OutageState]:
    """Let instances fail after random times: their queues are routed again, and repairs bring them back."""
    now = context.now_us.astype(jnp.float64)
    # times on the clock are whole
    is_due = state.has_begun & (jnp.floor(state.next_us) <= now)
    is_up = context.is_up ^ is_due
    lasting = jnp.where(is_up, params.mtbf_s, params.mttr_s) * 1e6
    drawn = jax.random.exponential(context.key, is_up.shape, jnp.float64)
    start_up_us = jnp.where(is_up, 0.0, exact_product(params.start_up_s, jnp.float64(1e6)))
    then = now + 1.0 + exact_product(drawn, lasting) + start_up_us
    following = jnp.where(is_due | ~state.has_begun, then, state.next_us)
    change = _failing(params, is_up, is_due & ~is_up)
    return change, OutageState(following, jnp.array(True))


def _failing(
    params: FailureParams, is_up: Bool[Array, "instance"], fails: Bool[Array, "instance"]
) -> ClusterChange:
    """Return the change in which instances fail; `params.running` decides the fate of their running requests."""
    stops, loses = fails & (params.running > 0), fails & (params.running > 1)
    return ClusterChange(is_up, fails, params.reroute_ms * 1e3, stops, loses)


@pytree
class OutageAtParams(FailureParams):
    """The instance that fails, when, and for how long."""

    instance: Float[Array, ""] = number(
        0, "instance", "which one fails, counted from 0", low=0, is_whole=True
    )
    time_s: Float[Array, ""] = number(1.0, "s", "when it fails", low=0, search=(0, 600))
    lasting_s: Float[Array, ""] = number(
        60.0, "s", "from there until it takes requests again", low=0, excludes_low=True, search=(1, 3600)
    )  # fmt: skip


@pytree
class OutageAtState:
    """The number of changes made so far."""

    count: Int[Array, ""]


def no_change_yet(params: OutageAtParams, shape: EngineShape) -> OutageAtState:
    """Return the state in which every instance is up."""
    return OutageAtState(jnp.int32(0))


def failure_or_return(params: OutageAtParams, state: OutageAtState) -> jax.Array:
    """Return the time of the next change: the failure, then the return, then never."""
    back_s = params.time_s + params.lasting_s
    time_s = jnp.where(state.count == 0, params.time_s, back_s)
    return jnp.where(state.count > 1, jnp.inf, exact_product(time_s, jnp.float64(1e6)))


@cluster_policy(OutageAtParams, no_change_yet, next_time=failure_or_return)
def outage_at(
    params: OutageAtParams, state: OutageAtState, context: ClusterContext
) -> tuple[ClusterChange, OutageAtState]:
    """Let one instance fail at a given time, and come back after another."""
    number_of = jnp.arange(context.is_up.shape[0], dtype=jnp.int32)
    is_it = number_of == params.instance.astype(jnp.int32)
    fails = is_it & (state.count == 0)
    is_up = jnp.where(is_it, ~fails, context.is_up)
    change = _failing(params, is_up, fails)
    return change, OutageAtState(state.count + 1)
