"""The router's prefix index: which blocks of a prompt it has sent to an instance lately.

The index of an instance holds the blocks touched most recently, up to a capacity. Touches are numbered: those of one
routing are neighbours, its shared contents in the order of the prompt and its private blocks behind them as one entry.
The blocks touched at or after an entry only grow in number, so an entry that has left the index comes back by another
touch alone. One number for each instance, its oldest entry, therefore tells which contents are still there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.engine.branching import branch
from blis_jax.engine.context import Context
from blis_jax.engine.phases.mid_step import failing
from blis_jax.engine.state import ROUTINGS_READ, Nodes, RouterIndex, State, nodes_of
from blis_jax.engine.tables.columns import as_int
from blis_jax.engine.types import Outcome, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

ROUTER_INDEX_CAPACITY = 10_000  # blocks per instance (BLIS default)


@pytree
class RouterWrite:
    """What one routing changes; none of it where nothing is routed."""

    path: Int[Array, "path"]  # nodes, then the spare one
    num_nodes: Int[Array, ""]
    request: Int[Array, ""]
    instance: Int[Array, ""]
    num_blocks: Int[Array, "instance"]
    oldest: Int[Array, "instance"]
    num_sent: Int[Array, ""]
    since: Any = None  # clock[path]: when the entries came in, only where the index is delayed


def no_touch(ctx: Context, state: State) -> RouterWrite | None:
    """Nothing is routed, or no policy looks at the index."""
    router, zero = state.router, jnp.int32(0)
    if router is None:
        return None
    spare = jnp.full((ctx.shape.path_depth,), ctx.shape.num_nodes, jnp.int32)
    since = None if router.since is None else jnp.zeros(spare.shape, ctx.clock)
    counts = router.num_blocks, router.oldest, router.num_sent
    return RouterWrite(spare, zero, zero, zero, *counts, since)


def _is_prompt(nodes: Nodes, num_prompt_blocks: jax.Array) -> Bool[Array, "path"]:
    return (nodes.start < num_prompt_blocks) & (nodes.length > 0)


def matched_blocks(
    ctx: Context, router: RouterIndex, nodes: Nodes, num_prompt_blocks: jax.Array, now: jax.Array
) -> Int[Array, "instance"]:
    """Leading prompt blocks in the index of every instance; a content counts if it is there whole, and not too new."""
    present = router.touched[nodes.node] >= router.oldest[None, :]
    if router.since is not None:
        age = now.astype(jnp.float64) - router.since[nodes.node].astype(jnp.float64)
        delay = ctx.params.cluster.signals.index_delay_us.astype(jnp.float64)
        present = present & (age >= delay)
    present = present & _is_prompt(nodes, num_prompt_blocks)[:, None]
    reached = jnp.cumprod(as_int(present), axis=0)
    return jnp.sum(reached * nodes.length[:, None], axis=0, dtype=jnp.int32)


def touch(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    nodes: Nodes,
    num_prompt_blocks: jax.Array,
    chosen: jax.Array,
    now: jax.Array,
) -> RouterWrite:
    """Record the prompt's blocks for the chosen instance."""
    is_chosen = lax.iota(jnp.int32, ctx.shape.num_instances) == chosen
    counts = _is_prompt(nodes, num_prompt_blocks)
    is_new = counts & (router.touched[nodes.node, chosen] < router.oldest[chosen])
    private = num_prompt_blocks - jnp.sum(jnp.where(counts, nodes.length, 0), dtype=jnp.int32)
    new = private + jnp.sum(jnp.where(is_new, nodes.length, 0), dtype=jnp.int32)
    return RouterWrite(
        path=jnp.where(counts, nodes.node, jnp.int32(ctx.shape.num_nodes)),
        num_nodes=jnp.sum(counts, dtype=jnp.int32),
        request=request,
        instance=chosen,
        num_blocks=router.num_blocks + jnp.where(is_chosen, new, 0),
        oldest=router.oldest,
        num_sent=router.num_sent + 1,
        since=None
        if router.since is None
        else jnp.where(is_new, now, router.since[nodes.node, chosen]),
    )


def outcome_of_touch(ctx: Context, outcome: jax.Array, done: RouterWrite) -> jax.Array:
    """The outcome where the index, or its log of routings, cannot hold one more."""
    if not ctx.shape.has_router_eviction:
        is_over = jnp.any(done.num_blocks > ROUTER_INDEX_CAPACITY)
        return failing(outcome, is_over, Outcome.ROUTER_INDEX_FULL)
    if not ctx.mechanism.moves_requests:
        return outcome
    is_over = done.num_sent > ctx.shape.num_routings
    return failing(outcome, is_over, Outcome.ROUTINGS_FULL)


def write(ctx: Context, router: RouterIndex, done: RouterWrite) -> RouterIndex:
    """The index after a routing."""
    first = router.num_sent * jnp.int32(ctx.shape.path_depth + 1) + 1
    numbers = first + lax.iota(jnp.int32, ctx.shape.path_depth)
    touched = _put_on_path(ctx, router.touched, done, numbers)
    since = (
        router.since if done.since is None else _put_on_path(ctx, router.since, done, done.since)
    )
    sent = _with_routing(ctx, router, done)
    return RouterIndex(touched, done.num_blocks, done.oldest, done.num_sent, sent, since)


def _put_on_path(ctx: Context, table: jax.Array, done: RouterWrite, values: jax.Array) -> jax.Array:
    """The table `[node, instance]` with the values `[path]` for the chosen instance."""
    if ctx.shape.path_depth == 1:
        return lax.dynamic_update_slice(table, values[:, None], (done.path[0], done.instance))
    if ctx.when is not branch:
        return table.at[done.path, done.instance].set(values)

    def put(place: jax.Array, table: jax.Array) -> jax.Array:
        node, value = (
            lax.dynamic_index_in_dim(one, place, keepdims=False) for one in (done.path, values)
        )
        return lax.dynamic_update_slice(table, value[None, None], (node, done.instance))

    return lax.fori_loop(0, done.num_nodes, put, table)


def _with_routing(ctx: Context, router: RouterIndex, done: RouterWrite) -> jax.Array:
    """The log with the routing at its number; where nothing is routed, the next one will replace it."""
    if not ctx.shape.has_router_eviction:
        return router.sent
    routing = jnp.stack([done.request, done.instance])[:, None]
    return lax.dynamic_update_slice(router.sent, routing, (jnp.int32(0), router.num_sent))


def trimmed(ctx: Context, router: RouterIndex) -> RouterIndex:
    """The index once the latest routing has pushed out what is beyond the capacity."""
    if not ctx.shape.has_router_eviction:
        return router
    instance = router.sent[1, jnp.maximum(router.num_sent - 1, 0)]

    def is_over(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        return carry[1] > ROUTER_INDEX_CAPACITY

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return _without_oldest(ctx, router, instance, *carry)

    first = router.oldest[instance], router.num_blocks[instance]
    oldest, num_blocks = lax.while_loop(is_over, step, first)
    is_it = lax.iota(jnp.int32, ctx.shape.num_instances) == instance
    return dataclasses.replace(
        router,
        num_blocks=jnp.where(is_it, num_blocks, router.num_blocks),
        oldest=jnp.where(is_it, oldest, router.oldest),
    )


def _without_oldest(
    ctx: Context,
    router: RouterIndex,
    instance: jax.Array,
    oldest: jax.Array,
    num_blocks: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The instance's oldest entry and number of blocks, without as much of its oldest routing as must go."""
    depth = ctx.shape.path_depth
    stride = jnp.int32(depth + 1)
    number, place = lax.div(oldest - 1, stride), lax.rem(oldest - 1, stride)
    sent_to = lax.dynamic_slice(router.sent[1], (number,), (ROUTINGS_READ,))
    is_here = sent_to == instance
    is_found = jnp.any(is_here)
    ahead = jnp.where(is_found, lax.argmax(is_here, 0, jnp.int32), jnp.int32(ROUTINGS_READ))
    number, place = number + ahead, jnp.where(ahead > 0, 0, place)

    request = router.sent[0, number]
    nodes = nodes_of(ctx.requests, request)
    num_prompt_blocks = lax.div(ctx.request(request).input_len, jnp.int32(ctx.shape.block_size))
    counts = _is_prompt(nodes, num_prompt_blocks)
    entry = lax.iota(jnp.int32, depth)
    is_latest = router.touched[nodes.node, instance] == number * stride + entry + 1
    sizes = jnp.where(counts & is_latest & (entry >= place), nodes.length, 0)
    up_to = jnp.cumsum(sizes, dtype=jnp.int32)
    excess = num_blocks - ROUTER_INDEX_CAPACITY
    goes = up_to - sizes < excess  # the leading entries: as many as must
    private = num_prompt_blocks - jnp.sum(jnp.where(counts, nodes.length, 0), dtype=jnp.int32)
    all_go = up_to[-1] < excess
    gone = jnp.where(
        all_go, up_to[-1] + private, jnp.sum(jnp.where(goes, sizes, 0), dtype=jnp.int32)
    )
    after = jnp.where(all_go, stride, jnp.maximum(place, jnp.sum(goes, dtype=jnp.int32)))
    return (
        number * stride + jnp.where(is_found, after, 0) + 1,
        num_blocks - jnp.where(is_found, gone, 0),
    )
