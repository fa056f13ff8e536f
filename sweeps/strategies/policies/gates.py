"""Gates on load, free KV blocks and the rate of arrivals.

Sources: of `kv_gated`, item 14 of the routing track's plan, never built there; of "burst-throttling admission" only the
name is recorded, and the estimate is the sliding window counter of rate limiters. `class_gated` is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import CRITICAL, STANDARD
from blis_jax.lazy import jax, jnp
from blis_jax.policies.admission import mean_load
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoState, admission_policy
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


@pytree
class ClassGatedParams:
    """Numbers of the gate by class."""

    standard_load: Float[Array, ""] = number(
        100.0, "requests", "mean load per instance above which standard is shed",
        low=0, search=(4, 400), prior="log-uniform",
    )  # fmt: skip
    sheddable_load: Float[Array, ""] = number(
        50.0, "requests", "mean load per instance above which sheddable, batch and background are shed",
        low=0, search=(4, 400), prior="log-uniform",
    )  # fmt: skip
    probability: Float[Array, ""] = number(
        1.0, "", "share of the class that is shed then",
        low=0, high=1,
    )  # fmt: skip


@admission_policy(ClassGatedParams, is_random=True)
def class_gated(
    params: ClassGatedParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Shed a share of a class while the mean effective load is above its limit; critical never.

    The draw has the key of the decision.
    """
    mean = mean_load(context.snapshots)
    slo_class = context.request.slo_class
    limit = jnp.where(is_sheddable(slo_class), params.sheddable_load, params.standard_load)
    is_shed = jax.random.uniform(context.key, (), jnp.float64) < params.probability
    return (slo_class == CRITICAL) | (mean <= limit) | ~is_shed, state


@pytree
class KvGatedParams:
    """The numbers of free blocks below which requests are rejected."""

    instance_blocks: Float[Array, ""] = number(
        64.0, "blocks", "free KV blocks of the instance routed to, below which a request is rejected",
        low=0, search=(1, 10_000), prior="log-uniform",
    )  # fmt: skip
    cluster_blocks: Float[Array, ""] = number(
        0.0, "blocks", "mean free KV blocks per instance, below which a request is rejected",
        low=0, search=(0, 10_000),
    )  # fmt: skip


@admission_policy(KvGatedParams)
def kv_gated(
    params: KvGatedParams, state: NoState, context: GatewayContext
) -> tuple[Bool[Array, ""], NoState]:
    """Reject while the instance that the router would choose, or the mean one, has too few free KV blocks."""
    seen, free = context.snapshots, context.snapshots.free_kv_blocks
    num_active = jnp.sum(seen.is_active, dtype=jnp.int32).astype(jnp.float64)
    mean = exact_quotient(jnp.sum(jnp.where(seen.is_active, free, 0.0)), num_active)
    return (free[context.picked] >= params.instance_blocks) & (mean >= params.cluster_blocks), state


@pytree
class BurstThrottledParams:
    """The limit, and over how long the rate is taken."""

    limit_per_s: Float[Array, ""] = number(
        1000.0, "requests/s", "arrival rate above which sheddable, batch and background are shed",
        low=0, excludes_low=True, search=(10, 10_000), prior="log-uniform",
    )  # fmt: skip
    standard_factor: Float[Array, ""] = number(
        2.0, "", "multiple of the limit above which standard is shed", low=1, search=(1, 8)
    )
    window_us: Float[Array, ""] = number(
        100_000.0, "µs", "window of the arrival rate",
        low=1, search=(5_000, 2_000_000), prior="log-uniform",
    )  # fmt: skip


@pytree
class WindowState:
    """Arrivals in the window now running and in the one before it."""

    window: Float[Array, ""]  # number of the window
    here: Float[Array, ""]
    before: Float[Array, ""]


def no_arrivals(params: Any, shape: Any) -> WindowState:
    """Return the state in which nothing has arrived."""
    zero = jnp.zeros((), jnp.float64)
    return WindowState(zero, zero, zero)


@admission_policy(BurstThrottledParams, no_arrivals)
def burst_throttled(
    params: BurstThrottledParams, state: WindowState, context: GatewayContext
) -> tuple[Bool[Array, ""], WindowState]:
    """Shed while requests arrive too fast: sheddable classes above the limit, standard later, critical never."""
    now = context.now_us.astype(jnp.float64)
    window = jnp.floor(exact_quotient(now, params.window_us))
    passed = now - exact_product(window, params.window_us)
    gone_by = window - state.window
    before = jnp.where(gone_by == 0, state.before, jnp.where(gone_by == 1, state.here, 0.0))
    here = jnp.where(gone_by == 0, state.here, 0.0) + 1.0
    # arrivals × window: those of the window before count by the part of it that still is in reach
    seen = exact_product(before, params.window_us - passed) + exact_product(here, params.window_us)
    slo_class = context.request.slo_class
    is_kept_longer = slo_class <= STANDARD
    limit = jnp.where(
        is_kept_longer,
        exact_product(params.limit_per_s, params.standard_factor),
        params.limit_per_s,
    )
    most = exact_product(limit, exact_product(params.window_us, params.window_us) * 1e-6)
    return (slo_class == CRITICAL) | (seen <= most), WindowState(window, here, before)
