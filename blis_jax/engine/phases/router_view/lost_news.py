"""News that the router's prefix index never hears: each message is lost with one probability.

A message says that an instance has all blocks of a prompt (a routing, or where the caches feed the index an allocation
for the prompt), or that it has used one block again. Of a lost message of the first kind the index knows nothing. After
one of the second kind it believes in a block that is gone, until a later message says otherwise or newer blocks push it
out. Draws follow the policy seed and what the message is about, so strategies that send the same one share its fate.
A mechanism that loses nothing has none of this in its compiled program.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.engine.context import Context
from blis_jax.engine.phases.policy_calls import decision_key
from blis_jax.policies.seeds import RandomSource

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

    from blis_jax.engine.phases.router_view.router_index import RouterWrite
    from blis_jax.engine.tables.router import RouterIndex


def _is_lost(ctx: Context, key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, dtype=jnp.float64) < ctx.params.cluster.signals.index_loss


def is_touch_lost(ctx: Context, *about: jax.Array) -> jax.Array:
    """Whether the router never hears of a prompt on an instance; see `unless_lost`."""
    return _is_lost(ctx, decision_key(ctx, RandomSource.LOSS, *about))


def unless_lost(
    ctx: Context, router: RouterIndex, done: RouterWrite, *about: jax.Array
) -> RouterWrite:
    """The touch, if its message arrives; `about` are the numbers that tell the message apart from others.

    A lost one has a number, as every message has, and nothing is touched under it.
    """
    if not ctx.mechanism.loses_index:
        return done
    lost = dataclasses.replace(
        done,
        path=jnp.full_like(done.path, ctx.shape.num_nodes),
        num_nodes=jnp.zeros_like(done.num_nodes),
        request=jnp.full_like(done.request, ctx.shape.num_requests),
        num_blocks=router.num_blocks,
    )
    is_lost = is_touch_lost(ctx, *about)
    return jax.tree.map(lambda nothing, heard: jnp.where(is_lost, nothing, heard), lost, done)


def is_removal_heard(
    ctx: Context,
    instance: jax.Array,
    step: jax.Array,
    owner: jax.Array,
    block: jax.Array,
) -> Bool[Array, "window"] | None:
    """Whether the router hears of blocks that the instance uses again in its step; None where it hears of all.

    `owner` and `block` `[window]` name the contents: the owner's number plus 1 and the position in its prompt, or 0 and
    the number of the shared block.
    """
    if not ctx.mechanism.loses_index:
        return None
    of_step = decision_key(ctx, RandomSource.REMOVAL_LOSS, instance, step)

    def one(owner: jax.Array, block: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(of_step, owner), block)
        return ~_is_lost(ctx, key)

    return jax.vmap(one)(owner, block)
