"""A prompt goes where its like went before. Source: BLIS `sim/routing.go`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import NO_INSTANCE, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import GatewayContext, NoParams, routing_policy
from blis_jax.policies.routing.by_load import first_least_loaded

if TYPE_CHECKING:
    from jaxtyping import Array, Int

Choice = tuple["jax.Array", Any]


@pytree
class PromptMapState:
    """Instance that first got a prompt key, `NO_INSTANCE` if none."""

    instance: Int[Array, "key"]


def empty_prompt_map(params: Any, shape: Any) -> PromptMapState:
    """No prompt seen yet."""
    del params
    return PromptMapState(jnp.full((shape.num_keys,), NO_INSTANCE, jnp.int32))


@routing_policy(start=empty_prompt_map, reads_prompt_key=True)
def prefix_affinity(params: NoParams, state: PromptMapState, context: GatewayContext) -> Choice:
    """The instance that first got a prompt with the same last full block, else the least loaded."""
    del params
    known = state.instance[context.prompt_key]
    chosen = jnp.where(known == NO_INSTANCE, first_least_loaded(context.snapshots), known)
    return chosen, PromptMapState(
        lax.dynamic_update_slice(state.instance, chosen[None], (context.prompt_key,))
    )
