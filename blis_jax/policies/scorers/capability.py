"""A score for instances of unequal speed: load counts by how long the instance needs for a prompt like this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoState, scorer
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class CapabilityParams:
    """What the request itself adds."""

    own_requests: Float[Array, ""] = number(
        1.0, "requests", "what the request adds to an instance's load; 0: idle instances of all speeds are equal",
        low=0, search=(0, 16),
    )  # fmt: skip


@scorer(CapabilityParams, reads_prompt_time=True)
def capability_load(
    params: CapabilityParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """(Effective load + the request) × time for this prompt ÷ that of the fastest instance, scaled, least best."""
    seen = context.snapshots
    times = seen.prompt_us
    fastest = jnp.min(jnp.where(seen.is_active, times, jnp.inf))
    slowness = jnp.where(fastest > 0, exact_quotient(times, fastest), 1.0)
    load = seen.effective_load.astype(jnp.float64) + params.own_requests
    wait = exact_product(load, slowness)
    least = jnp.min(jnp.where(seen.is_active, wait, jnp.inf))
    most = jnp.max(jnp.where(seen.is_active, wait, 0.0))
    spread = jnp.where(most > least, most - least, 1.0)
    scaled = jnp.clip(exact_quotient(most - wait, spread), 0.0, 1.0)
    return jnp.where(most > least, scaled, jnp.float64(1.0)), state
