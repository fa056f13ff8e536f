"""The router's prefix index: which blocks of a prompt an instance has been given lately.

The index of an instance holds the blocks touched most recently, up to a capacity. A routing touches all blocks of the
prompt; where the caches feed the index, an allocation does (index_events.py). Touches are numbered: those of one prompt
are neighbours, its shared contents in the order of the prompt and its private blocks behind them as one entry.
The blocks touched at or after an entry only grow in number, so an entry that has left the index comes back by another
touch alone. One number for each instance, its oldest entry, therefore tells which contents are still there; single
blocks that the cache has used again since their last touch are gaps in them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.block_counts import full_blocks
from blis_jax.core.branching import branch
from blis_jax.core.columns import as_int
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import pytree
from blis_jax.engine.context import Context, row
from blis_jax.engine.phases.router_view.gateways import index_column, own_columns
from blis_jax.engine.phases.router_view.late_news import LateWrite, no_news, with_news
from blis_jax.engine.phases.steps.mid_step import failing
from blis_jax.engine.state import Nodes, State, nodes_of
from blis_jax.engine.tables.router import ROUTINGS_READ, RouterIndex
from blis_jax.memory.block_tables.blocks import LOOK_UP_BLOCKS
from blis_jax.memory.block_tables.contents import shared_numbers

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

ROUTER_INDEX_CAPACITY = 10_000  # blocks per instance (BLIS default)


@pytree
class RouterWrite:
    """What touching one prompt changes; none of it where nothing is touched."""

    path: Int[Array, "path"]  # nodes, then the spare one
    num_nodes: Int[Array, ""]
    request: Int[Array, ""]
    instance: Int[Array, ""]
    num_blocks: Int[Array, "instance"]
    oldest: Int[Array, "instance"]
    num_sent: Int[Array, ""]
    since: Any = None  # clock[path]: when the entries came in, only where the index is delayed


def no_touch(ctx: Context, state: State) -> RouterWrite | LateWrite | None:
    """Nothing is touched, or no policy looks at the index."""
    router, zero = state.router, jnp.int32(0)
    if router is None:
        return None
    if router.late is not None:
        return no_news(router.late)
    spare = jnp.full((ctx.shape.path_depth,), ctx.shape.num_nodes, jnp.int32)
    nobody = zero if router.own is None else jnp.int32(ctx.shape.num_requests)
    since = None if router.since is None else jnp.zeros(spare.shape, ctx.clock)
    counts = router.num_blocks, router.oldest, router.num_sent
    return RouterWrite(spare, zero, nobody, zero, *counts, since)


def _is_prompt(nodes: Nodes, num_prompt_blocks: jax.Array) -> Bool[Array, "path"]:
    return (nodes.start < num_prompt_blocks) & (nodes.length > 0)


def matched_blocks(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    nodes: Nodes,
    num_prompt_blocks: jax.Array,
    now: jax.Array,
) -> Int[Array, "instance"]:
    """Leading prompt blocks in the index of every instance; without gaps a content is there whole or not.

    Where the index is delayed, entries younger than the delay do not count.
    """
    if router.removed is not None:
        return _matched_with_gaps(ctx, router, request, nodes, num_prompt_blocks)
    touched = own_columns(ctx, router.touched[nodes.node], request)
    present = touched >= own_columns(ctx, router.oldest, request)[None, :]
    if router.since is not None:
        since = own_columns(ctx, router.since[nodes.node], request)
        age = now.astype(jnp.float64) - since.astype(jnp.float64)
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
    now: jax.Array | None = None,
) -> RouterWrite:
    """Record the prompt's blocks for the instance that it goes to, or that has room for it now.

    `now` is needed where the index is delayed.
    """
    since = None
    chosen = index_column(ctx, request, chosen)
    is_chosen = lax.iota(jnp.int32, len(router.oldest)) == chosen
    counts = _is_prompt(nodes, num_prompt_blocks)
    if router.own is None:
        is_new = counts & (router.touched[nodes.node, chosen] < router.oldest[chosen])
        private = num_prompt_blocks - jnp.sum(jnp.where(counts, nodes.length, 0), dtype=jnp.int32)
        new = private + jnp.sum(jnp.where(is_new, nodes.length, 0), dtype=jnp.int32)
        if router.since is not None and now is not None:
            since = jnp.where(is_new, now, router.since[nodes.node, chosen])
    else:
        there = _blocks_there(ctx, router, request, nodes, num_prompt_blocks, chosen)
        own = own_blocks_there(ctx, router, request, nodes, num_prompt_blocks, chosen)
        new = num_prompt_blocks - jnp.sum(there, dtype=jnp.int32) - own
    return RouterWrite(
        path=jnp.where(counts, nodes.node, jnp.int32(ctx.shape.num_nodes)),
        num_nodes=jnp.sum(counts, dtype=jnp.int32),
        request=request,
        instance=chosen,
        num_blocks=router.num_blocks + jnp.where(is_chosen, new, 0),
        oldest=router.oldest,
        num_sent=router.num_sent + 1,
        since=since,
    )


def outcome_of_touch(ctx: Context, outcome: jax.Array, done: RouterWrite) -> jax.Array:
    """The outcome where the index, or its log of touches, cannot hold one more."""
    if not ctx.shape.has_router_eviction:
        is_over = jnp.any(done.num_blocks > ROUTER_INDEX_CAPACITY)
        return failing(outcome, is_over, Outcome.ROUTER_INDEX_FULL)
    if not (ctx.mechanism.moves_requests or ctx.mechanism.is_precise):
        return outcome
    is_over = done.num_sent > ctx.shape.num_routings
    return failing(outcome, is_over, Outcome.ROUTINGS_FULL)


def write(ctx: Context, router: RouterIndex, done: RouterWrite | LateWrite) -> RouterIndex:
    """The index after a touch, or once one is told that it will hear of later."""
    if isinstance(done, LateWrite):
        assert router.late is not None  # where news is late, it is told
        return dataclasses.replace(router, late=with_news(router.late, done))
    depth = ctx.shape.path_depth
    first = router.num_sent * jnp.int32(depth + 1) + 1
    numbers = first + lax.iota(jnp.int32, depth)
    own, since = router.own, router.since
    if own is not None:
        number, at = first + jnp.int32(depth), own_row(ctx, done.request, done.instance)
        own = lax.dynamic_update_slice(own, number[None], (at,))
    return dataclasses.replace(
        router,
        touched=_put_on_path(ctx, router.touched, done, numbers),
        num_blocks=done.num_blocks,
        oldest=done.oldest,
        num_sent=done.num_sent,
        sent=_with_routing(ctx, router, done),
        own=own,
        since=since if since is None else _put_on_path(ctx, since, done, done.since),
    )


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
    """The log with the touch at its number; where nothing is touched, the next one will replace it."""
    if not ctx.shape.has_router_eviction:
        return router.sent
    routing = jnp.stack([done.request, done.instance])[:, None]
    return lax.dynamic_update_slice(router.sent, routing, (jnp.int32(0), router.num_sent))


def trimmed(ctx: Context, router: RouterIndex, is_settled: jax.Array | None = None) -> RouterIndex:
    """The index once the latest touch has pushed out what is beyond the capacity.

    Unless `is_settled`, it waits: blocks that the latest allocation pops leave the index before.
    """
    if not ctx.shape.has_router_eviction:
        return router
    instance = router.sent[1, jnp.maximum(router.num_sent - 1, 0)]

    def is_over(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        excess = carry[1] > ROUTER_INDEX_CAPACITY
        return excess if is_settled is None else excess & is_settled

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return _without_oldest(ctx, router, instance, *carry)

    first = router.oldest[instance], router.num_blocks[instance]
    oldest, num_blocks = lax.while_loop(is_over, step, first)
    is_it = lax.iota(jnp.int32, len(router.oldest)) == instance
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
    """The instance's oldest entry and number of blocks, without as much of its oldest touch as must go."""
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
    num_prompt_blocks = full_blocks(ctx.request(request).input_len, ctx.shape.block_size)
    counts = _is_prompt(nodes, num_prompt_blocks)
    entry = lax.iota(jnp.int32, depth)
    is_latest = router.touched[nodes.node, instance] == number * stride + entry + 1
    there = nodes.length
    if router.removed is not None:
        there = _blocks_there(ctx, router, request, nodes, num_prompt_blocks, instance)
    sizes = jnp.where(counts & is_latest & (entry >= place), there, 0)
    up_to = jnp.cumsum(sizes, dtype=jnp.int32)
    excess = num_blocks - ROUTER_INDEX_CAPACITY
    goes = up_to - sizes < excess  # the leading entries: as many as must
    private = num_prompt_blocks - jnp.sum(jnp.where(counts, nodes.length, 0), dtype=jnp.int32)
    if router.own is not None:
        own = own_blocks_there(ctx, router, request, nodes, num_prompt_blocks, instance)
        latest = router.own[own_row(ctx, request, instance)]
        private = jnp.where(latest == (number + 1) * stride, own, 0)
    all_go = up_to[-1] < excess
    gone = jnp.where(
        all_go, up_to[-1] + private, jnp.sum(jnp.where(goes, sizes, 0), dtype=jnp.int32)
    )
    after = jnp.where(all_go, stride, jnp.maximum(place, jnp.sum(goes, dtype=jnp.int32)))
    return (
        number * stride + jnp.where(is_found, after, 0) + 1,
        num_blocks - jnp.where(is_found, gone, 0),
    )


# --- an index with gaps, and one that is touched again --------------------------------------------


def _is_there(
    router: RouterIndex, nodes: Nodes, place: jax.Array, number: jax.Array
) -> Bool[Array, "block instance"]:
    """Whether every instance has these shared blocks, given as places on the path and as numbers."""
    touched = router.touched[nodes.node[place]]
    removed = router.removed[: touched.shape[1], number].T
    return (touched >= router.oldest[None, :]) & (touched > removed)


def _window(
    ctx: Context, request: jax.Array, start: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Block positions of a request from `start` on, their places on its path, and their numbers."""
    position = start + lax.iota(jnp.int32, LOOK_UP_BLOCKS)
    number, _ = shared_numbers(ctx, request, position)
    starts = row(ctx.requests.path_start, request)
    place = jnp.sum(starts[None, :] <= position[:, None], axis=1, dtype=jnp.int32) - 1
    return position, jnp.maximum(place, 0), number


def _shared_prompt_blocks(nodes: Nodes, num_prompt_blocks: jax.Array) -> jax.Array:
    counts = _is_prompt(nodes, num_prompt_blocks)
    return jnp.sum(jnp.where(counts, nodes.length, 0), dtype=jnp.int32)


def _matched_with_gaps(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    nodes: Nodes,
    num_prompt_blocks: jax.Array,
) -> Int[Array, "instance"]:
    """Leading prompt blocks in the index of every instance, up to the first gap."""
    end = _shared_prompt_blocks(nodes, num_prompt_blocks)

    def goes_on(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, found = carry
        return jnp.any(found == start) & (start < end)

    def look(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, found = carry
        position, place, number = _window(ctx, request, start)
        is_there = _is_there(router, nodes, place, number) & (position < end)[:, None]
        run = jnp.sum(jnp.cumprod(as_int(is_there), axis=0), axis=0, dtype=jnp.int32)
        return start + LOOK_UP_BLOCKS, found + jnp.where(found == start, run, 0)

    nothing = jnp.zeros((ctx.shape.num_instances,), jnp.int32)
    return lax.while_loop(goes_on, look, (jnp.int32(0), nothing))[1]


def _blocks_there(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    nodes: Nodes,
    num_prompt_blocks: jax.Array,
    instance: jax.Array,
) -> Int[Array, "path"]:
    """Prompt blocks in the instance's index, by node of the request's path."""
    counts = _is_prompt(nodes, num_prompt_blocks)
    if router.removed is None:
        is_there = counts & (router.touched[nodes.node, instance] >= router.oldest[instance])
        return jnp.where(is_there, nodes.length, 0)
    end = _shared_prompt_blocks(nodes, num_prompt_blocks)
    entry = lax.iota(jnp.int32, ctx.shape.path_depth)

    def look(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, found = carry
        position, place, number = _window(ctx, request, start)
        is_there = _is_there(router, nodes, place, number)[:, instance] & (position < end)
        is_mine = is_there[:, None] & (place[:, None] == entry[None, :])
        return start + LOOK_UP_BLOCKS, found + jnp.sum(is_mine, axis=0, dtype=jnp.int32)

    first = jnp.int32(0), jnp.zeros_like(nodes.node)
    return lax.while_loop(lambda carry: carry[0] < end, look, first)[1]


def own_row(ctx: Context, request: jax.Array, instance: jax.Array) -> jax.Array:
    """Where the index keeps private blocks: by request, and where requests move by instance, too.

    The spare instance has the row of the last one.
    """
    if not ctx.mechanism.moves_requests:
        return request
    rows = ctx.shape.num_instances
    return request * jnp.int32(rows) + jnp.minimum(instance, jnp.int32(rows - 1))


def own_blocks_there(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    nodes: Nodes,
    num_prompt_blocks: jax.Array,
    instance: jax.Array,
) -> Int[Array, ""]:
    """Prompt blocks that the request shares with nobody, in the index of an instance that it has been on."""
    first, at = _shared_prompt_blocks(nodes, num_prompt_blocks), own_row(ctx, request, instance)
    touched, count = router.own[at], num_prompt_blocks - first
    if router.own_removed is not None:
        removed = row(router.own_removed, at)
        position = lax.iota(jnp.int32, removed.shape[0])
        is_own = (position >= first) & (position < num_prompt_blocks)
        count = count - jnp.sum(is_own & (removed >= touched), dtype=jnp.int32)
    return jnp.where(touched >= router.oldest[instance], count, 0)
