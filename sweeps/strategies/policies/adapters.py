"""Placement of LoRA adapters by the router: every adapter has home instances, as many as there are slots for.

The scorer `lora-affinity` follows what is loaded, so where adapters lie is an accident of the first requests, and while
an adapter is being loaded nobody is seen to have it: further requests for it then make other instances load it, too.
Homes are known before anything is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.pytrees import pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoState, routing_policy
from blis_jax.policies.numbers import number
from blis_jax.policies.routing.pickers import first_where

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class HomesParams:
    """How many adapters there are, how many an instance holds, and what it takes to leave a home."""

    adapters: Float[Array, ""] = number(
        1,
        "adapters",
        "adapters that are declared, the most popular one first",
        low=1,
        is_whole=True,
        search=(1, 64),
    )
    slots: Float[Array, ""] = number(
        1,
        "adapters",
        "adapters that an instance holds, as lora_adapter_capacity says",
        low=1,
        is_whole=True,
        search=(1, 64),
    )
    stray: Float[Array, ""] = number(
        1e9, "requests", "more requests at the least loaded home than elsewhere for which a request goes there",
        low=0, search=(1, 1000), prior="log-uniform",
    )  # fmt: skip


@routing_policy(HomesParams)
def adapter_homes(
    params: HomesParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Choose the least loaded home of the request's adapter, unless another instance has much less load.

    Slots that one home for each adapter leaves free go to the first adapters of the list, which then have a home
    everywhere. The others are dealt out in turn, every second round backwards, so that no instance has more homes than
    slots, and the load of adapters whose popularity falls with their place is spread evenly.
    """
    seen, adapter = context.snapshots, context.adapter
    size = seen.effective_load.shape[0]
    count = jnp.sum(seen.is_active, dtype=jnp.int32)
    num_adapters, num_slots = params.adapters.astype(jnp.int32), params.slots.astype(jnp.int32)
    spare = jnp.maximum(count * num_slots - num_adapters, 0)
    each = jnp.maximum(count - 1, 1)  # further homes of an adapter that is everywhere
    everywhere, more = spare // each, 1 + spare % each
    is_everywhere = (adapter < everywhere) | (count == 1)
    homes = jnp.where(adapter == everywhere, more, 1)
    dealt = jnp.where(adapter == everywhere, 0, more + adapter - everywhere - 1)
    turn, first = dealt // count, dealt % count
    first = jnp.where(turn % 2 == 1, count - 1 - first, first)
    distance = (lax.iota(jnp.int32, size) - first) % count
    is_home = is_everywhere | (distance < homes)
    load = seen.effective_load.astype(jnp.float64) + jnp.where(is_home, 0.0, params.stray)
    load = jnp.where(seen.is_active, load, jnp.inf)
    return first_where(load == jnp.min(load)), state
