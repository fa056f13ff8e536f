"""An elastic cluster: the number of instances follows load, KV memory or arrivals, between a least and a greatest
number.

The rule is that of Kubernetes' horizontal pod autoscaler, which llm-d's deployments use: at every interval each signal
proposes its sum over the instances that are up ÷ its target; the largest proposal counts, and fewer instances are taken
only when no proposal of a stabilisation window was larger. Instances of each role are scaled separately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import DECODE, ROLES, EngineShape
from blis_jax.lazy import jnp, lax
from blis_jax.policies.contexts import ClusterChange, ClusterContext
from blis_jax.policies.contract import cluster_policy
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Bool, Float, Int


@pytree
class AutoscalerParams:
    """The interval between looks, the bounds and targets of the size, and the delays of changes."""

    interval_s: Float[Array, ""] = number(
        15.0, "s", "time between two decisions", low=0.001, search=(0.1, 60), prior="log-uniform"
    )
    min_instances: Float[Array, ""] = number(
        1, "instances", "least number", low=1, search=(1, 64), is_whole=True
    )
    max_instances: Float[Array, ""] = number(
        1_000_000, "instances", "most number, of those that the cluster has",
        low=1, search=(1, 64), is_whole=True,
    )  # fmt: skip
    first_instances: Float[Array, ""] = number(
        1, "instances", "number at the start, within the least and the most",
        low=1, search=(1, 64), is_whole=True,
    )  # fmt: skip
    target_load: Float[Array, ""] = number(
        16.0, "requests", "wanted load of an instance: queued, running and on the way; 0: not looked at",
        low=0, search=(1, 256), prior="log-uniform",
    )  # fmt: skip
    target_kv: Float[Array, ""] = number(
        0.0, "", "wanted share of used KV blocks; 0: not looked at", low=0, high=1, search=(0.1, 1)
    )
    target_rate: Float[Array, ""] = number(
        0.0, "1/s", "wanted arrivals per instance; 0: not looked at", low=0, search=(0.1, 1000)
    )
    decode_target_load: Float[Array, ""] = number(
        0.0, "requests", "target_load of instances that only make tokens; 0: the same", low=0,
        search=(1, 256),
    )  # fmt: skip
    tolerance: Float[Array, ""] = number(
        0.1, "", "distance of signal ÷ target from 1 within which the number stays", low=0, high=1
    )
    start_up_s: Float[Array, ""] = number(
        60.0, "s", "time from the order until an instance takes requests", low=0, search=(0, 600)
    )
    stabilise_s: Float[Array, ""] = number(
        300.0, "s", "no fewer instances than any decision of so long a time asked for",
        low=0, search=(0, 600),
    )  # fmt: skip


@pytree
class AutoscalerState:
    """The instances that are held, and since when; times in whole µs."""

    next_us: Float[Array, ""]  # of the next decision
    acted_us: Float[Array, ""]  # of the latest change
    # when it takes requests, or took the first; infinity: not held
    ready_us: Float[Array, "instance"]
    wanted_us: Float[Array, "role instance"]  # entry n: the latest decision for more than n of them
    is_there: Bool[Array, "instance"]  # part of the cluster
    num_arrived: Int[Array, ""]  # at the latest decision


def not_begun(params: AutoscalerParams, shape: EngineShape) -> AutoscalerState:
    """Return the state before time 0, at which the initial instances are added."""
    nobody = jnp.full(shape.num_instances, jnp.inf)
    return AutoscalerState(
        next_us=jnp.float64(0.0),
        acted_us=jnp.float64(-1.0),
        ready_us=nobody,
        wanted_us=jnp.full((len(ROLES), shape.num_instances), -jnp.inf),
        is_there=jnp.zeros(shape.num_instances, bool),
        num_arrived=jnp.int32(0),
    )


def next_change(params: AutoscalerParams, state: AutoscalerState) -> jax.Array:
    """Return the time of the next decision or, if earlier, of the end of a start-up."""
    starting = jnp.where(state.ready_us > state.acted_us, state.ready_us, jnp.inf)
    return jnp.minimum(state.next_us, jnp.min(starting))


@cluster_policy(AutoscalerParams, not_begun, next_time=next_change)
def autoscaler(
    params: AutoscalerParams, state: AutoscalerState, context: ClusterContext
) -> tuple[ClusterChange, AutoscalerState]:
    """Keep as many instances as the signals ask for; one that goes takes no more requests and ends when it is empty."""
    now = context.now_us.astype(jnp.float64)
    is_first, decides = state.acted_us < 0, state.next_us <= now
    is_there = jnp.where(is_first, context.snapshots.is_active, state.is_there)
    start_up_us = exact_product(params.start_up_s, jnp.float64(1e6))
    ready = jnp.floor(now + jnp.where(is_first, 0.0, start_up_us))
    is_empty = is_there & (is_first | ~context.is_paid)
    place, changed, wanted_us = lax.iota(jnp.float64, is_there.shape[0]), state.ready_us, []
    for role in range(len(ROLES)):
        is_of_role = context.snapshots.role == role
        held_us = jnp.where(is_of_role, state.ready_us, jnp.inf)
        proposed = _proposed(params, state, context, now, role)
        proposed = jnp.where(is_first, params.first_instances, proposed)
        most = jnp.minimum(params.max_instances, _number(is_there & is_of_role))
        proposed = jnp.clip(proposed, jnp.minimum(params.min_instances, most), most)
        asked_us = jnp.where(decides & (place < proposed), now, state.wanted_us[role])
        wanted = _stabilised(params, held_us, proposed, asked_us, now)
        wanted = jnp.where(decides, wanted, _count(held_us))
        changed = jnp.where(
            is_of_role, _with(wanted, held_us, is_empty & is_of_role, ready), changed
        )
        wanted_us.append(asked_us)
    later = jnp.floor(now + exact_product(params.interval_s, jnp.float64(1e6)))
    change = ClusterChange(
        is_up=changed <= now,
        queue_leaves=jnp.zeros_like(is_there),
        delay_us=0.0,
        holds=jnp.isfinite(changed),
    )
    return change, AutoscalerState(
        next_us=jnp.where(decides, later, state.next_us),
        acted_us=now,
        ready_us=changed,
        wanted_us=jnp.stack(wanted_us),
        is_there=is_there,
        num_arrived=jnp.where(decides, context.num_arrived, state.num_arrived),
    )


def _number(is_it: jax.Array) -> jax.Array:
    """Return the number of true entries, as float64."""
    return jnp.sum(is_it, dtype=jnp.int32).astype(jnp.float64)


def _count(ready_us: jax.Array) -> jax.Array:
    """Return the number of held instances, as float64."""
    return _number(jnp.isfinite(ready_us))


def _proposed(
    params: AutoscalerParams,
    state: AutoscalerState,
    context: ClusterContext,
    now: jax.Array,
    role: int,
) -> jax.Array:
    """Return the largest number of instances of a role that any signal asks for; 0 if no signal has a target."""
    seen = context.snapshots
    ready_us = jnp.where(seen.role == role, state.ready_us, jnp.inf)
    held, is_up = _count(ready_us), ready_us <= now
    target_load = params.target_load
    if role == DECODE:
        decode_target = params.decode_target_load
        target_load = jnp.where(decode_target > 0, decode_target, target_load)
    arrived = (context.num_arrived - state.num_arrived).astype(jnp.float64)

    def instances_for(amount: jax.Array, target: jax.Array) -> jax.Array:
        needed = exact_quotient(amount, jnp.where(target > 0, target, 1.0))
        is_near = jnp.abs(exact_quotient(needed, jnp.maximum(held, 1.0)) - 1.0) <= params.tolerance
        return jnp.where(target > 0, jnp.where(is_near, held, jnp.ceil(needed)), 0.0)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(is_up, values.astype(jnp.float64), 0.0))

    asked_for = (
        instances_for(total(seen.effective_load), target_load),
        instances_for(total(seen.kv_utilization), params.target_kv),
        instances_for(exact_quotient(arrived, params.interval_s), params.target_rate),
    )
    return jnp.maximum(jnp.maximum(asked_for[0], asked_for[1]), asked_for[2])


def _stabilised(
    params: AutoscalerParams,
    ready_us: jax.Array,
    proposed: jax.Array,
    wanted_us: jax.Array,
    now: jax.Array,
) -> jax.Array:
    """Return the number of instances after stabilisation: growth at once; shrinking only to the largest number that a
    decision of the window asked for.
    """
    window_us = exact_product(params.stabilise_s, jnp.float64(1e6))
    asked_for = _number(wanted_us > now - window_us)
    fewer = jnp.minimum(_count(ready_us), jnp.maximum(proposed, asked_for))
    return jnp.maximum(proposed, fewer)


def _with(
    wanted: jax.Array, ready_us: jax.Array, is_empty: jax.Array, ready: jax.Array
) -> jax.Array:
    """Return each instance's time of readiness after changing the held instances to `wanted`.

    Growing starts the first free rows, ready at `ready`. Shrinking removes the instances with the latest time of
    readiness, of equal ones the last; instances that are still starting are therefore removed before serving ones.
    """
    rows, is_held = ready_us.shape[0], jnp.isfinite(ready_us)
    missing = (wanted - _count(ready_us)).astype(jnp.int32)
    is_free = is_empty & ~is_held
    is_new = is_free & (jnp.cumsum(is_free, dtype=jnp.int32) <= missing)
    latest_first = jnp.argsort(-jnp.where(is_held, ready_us, -jnp.inf)[::-1], stable=True)
    rank = lax.iota(jnp.int32, rows)
    goes = jnp.zeros((rows,), bool).at[rows - 1 - latest_first].set(rank < -missing)
    return jnp.where(is_new, ready, jnp.where(goes, jnp.inf, ready_us))
