"""The router's prefix index: which blocks of prompts each instance was given lately.

The index of an instance holds the blocks touched most recently, up to a capacity. A routing touches all blocks of the
prompt; where the caches feed the index, an allocation does (index_events.py). Touches are numbered: the entries of one
prompt have consecutive numbers, first its shared contents in the order of the prompt, then its private blocks as one
entry. The number of blocks touched at or after an entry never falls, so an entry that has left the index returns only
by another touch. One number for each instance, its oldest entry, therefore decides which contents are still in the
index; single blocks that the cache has reused since their last touch are gaps in these contents.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, branch, with_entry
from blis_jax.core.exact import full_blocks
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts
from blis_jax.tables.blocks import LOOK_UP_BLOCKS
from blis_jax.tables.context import Context, failing, row, shared_numbers
from blis_jax.tables.gateways import index_column, own_columns
from blis_jax.tables.requests import Nodes, nodes_of
from blis_jax.tables.router import (
    ROUTINGS_READ,
    Entrances,
    Gaps,
    PrivateBlocks,
    PushedOut,
    RouterIndex,
    RouterWrite,
    Routings,
)

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

ROUTER_INDEX_CAPACITY = 10_000  # blocks per instance (BLIS default)


def no_touch(ctx: Context, router: RouterIndex) -> RouterWrite:
    """Return a write that touches no block."""
    zero = jnp.int32(0)
    spare = jnp.full((ctx.shape.path_depth,), ctx.shape.num_nodes, jnp.int32)
    nobody = ctx.spare_request if PrivateBlocks in router else zero
    further = (Entrances(jnp.zeros(spare.shape, ctx.clock)),) if Entrances in router else ()
    counts = router.num_blocks[0], router.num_sent
    parts = Parts(*further, *_pushed_out(router))
    return RouterWrite(spare, zero, nobody, zero, *counts, parts)


def _pushed_out(router: RouterIndex) -> tuple[PushedOut, ...]:
    """Return the numbers of the instance of the latest touch; nothing if no entry leaves the index."""
    if Routings not in router:
        return ()
    instance = _latest(router)
    return (PushedOut(instance, router.num_blocks[instance], router.oldest[instance]),)


class PromptBlocks(NamedTuple):
    """A request's prompt in blocks: the contents that it shares with other prompts, and its number of full blocks."""

    request: jax.Array
    nodes: Nodes
    num_blocks: jax.Array

    @property
    def is_shared(self) -> Bool[Array, "path"]:
        """Return which contents on the request's path belong to its prompt, bool[path]."""
        return (self.nodes.start < self.num_blocks) & (self.nodes.length > 0)

    @property
    def num_shared(self) -> jax.Array:
        """Return the number of blocks in these shared contents."""
        return jnp.sum(jnp.where(self.is_shared, self.nodes.length, 0), dtype=jnp.int32)


def prompt_of(ctx: Context, request: jax.Array) -> PromptBlocks:
    """Return the prompt with which a request was sent."""
    nodes = nodes_of(ctx.requests, request)
    num_blocks = full_blocks(ctx.request(request).input_len, ctx.shape.block_size)
    return PromptBlocks(request, nodes, num_blocks)


def matched_blocks(
    ctx: Context, router: RouterIndex, prompt: PromptBlocks, now: jax.Array
) -> Int[Array, "instance"]:
    """Return the number of leading prompt blocks in each instance's index; without gaps, contents count only as a
    whole.

    Where the index is delayed, entries younger than the delay do not count.
    """
    if Gaps in router:
        return _matched_with_gaps(ctx, router, prompt)
    request, node = prompt.request, prompt.nodes.node
    touched = own_columns(ctx, router.touched[node], request)
    present = touched >= own_columns(ctx, router.oldest, request)[None, :]
    if Entrances in router:
        since = own_columns(ctx, router[Entrances].at[node], request)
        age = now.astype(jnp.float64) - since.astype(jnp.float64)
        delay = ctx.params.cluster.signals.index_delay_us.astype(jnp.float64)
        present = present & (age >= delay)
    present = present & prompt.is_shared[:, None]
    reached = jnp.cumprod(as_int(present), axis=0)
    return jnp.sum(reached * prompt.nodes.length[:, None], axis=0, dtype=jnp.int32)


def touch(
    ctx: Context,
    router: RouterIndex,
    prompt: PromptBlocks,
    chosen: jax.Array,
    now: jax.Array | None = None,
) -> RouterWrite:
    """Return a write that touches the prompt's blocks on the instance that it is routed to or allocated on.

    `now` is needed if routings reach the index late.
    """
    further: tuple[Entrances, ...] = ()
    request, nodes, num_blocks = prompt
    chosen = index_column(ctx, request, chosen)
    counts = prompt.is_shared
    if PrivateBlocks not in router:
        is_new = counts & (router.touched[nodes.node, chosen] < router.oldest[chosen])
        private = num_blocks - jnp.sum(jnp.where(counts, nodes.length, 0), dtype=jnp.int32)
        new = private + jnp.sum(jnp.where(is_new, nodes.length, 0), dtype=jnp.int32)
        if Entrances in router and now is not None:
            since = jnp.where(is_new, now, router[Entrances].at[nodes.node, chosen])
            further = (Entrances(since),)
    else:
        there = _blocks_there(ctx, router, prompt, chosen)
        private = own_blocks_there(ctx, router, prompt, chosen)
        new = num_blocks - jnp.sum(there, dtype=jnp.int32) - private
    return RouterWrite(
        path=jnp.where(counts, nodes.node, jnp.int32(ctx.shape.num_nodes)),
        num_nodes=jnp.sum(counts, dtype=jnp.int32),
        request=request,
        instance=chosen,
        num_blocks=router.num_blocks[chosen] + new,
        num_sent=router.num_sent + 1,
        own=Parts(*further, *_pushed_out(router)),
    )


def outcome_of_touch(ctx: Context, outcome: jax.Array, done: RouterWrite) -> jax.Array:
    """Return the outcome after a touch: a failure if the index, or its log of touches, is full."""
    if not ctx.shape.has_router_eviction:
        is_over = done.num_blocks > ROUTER_INDEX_CAPACITY
        return failing(outcome, is_over, Outcome.ROUTER_INDEX_FULL)
    if not (ctx.mechanism.moves_requests or ctx.mechanism.is_precise):
        return outcome
    is_over = done.num_sent > ctx.shape.num_routings
    return failing(outcome, is_over, Outcome.ROUTINGS_FULL)


def write(ctx: Context, router: RouterIndex, done: RouterWrite) -> RouterIndex:
    """Return the index after a touch is written."""
    depth = ctx.shape.path_depth
    first = router.num_sent * jnp.int32(depth + 1) + 1
    numbers = first + lax.iota(jnp.int32, depth)
    parts: list[object] = []
    if PrivateBlocks in router:
        number, at = first + jnp.int32(depth), own_row(ctx, done.request, done.instance)
        parts.append(PrivateBlocks(with_entry(router[PrivateBlocks].touched, number, at)))
    on_path = _put_on_path(ctx, router.touched, done, numbers)
    if Routings in router:
        parts.append(_with_routing(router, done))
    if Entrances in router:
        since = _put_on_path(ctx, router[Entrances].at, done, done[Entrances].at)
        parts.append(Entrances(since))
    num_blocks, oldest = router.num_blocks, router.oldest
    if PushedOut in done:
        out = done[PushedOut]
        num_blocks = _put(ctx, num_blocks, out.num_blocks, out.instance)
        oldest = _put(ctx, oldest, out.oldest, out.instance)
    return dataclasses.replace(
        router.having(*parts),
        touched=on_path,
        num_blocks=_put(ctx, num_blocks, done.num_blocks, done.instance),
        oldest=oldest,
        num_sent=done.num_sent,
    )


def _put(ctx: Context, table: jax.Array, value: jax.Array, at: jax.Array) -> jax.Array:
    """Return the table `[instance]` with an entry replaced; in many lanes without a kernel of its own."""
    if ctx.when is branch:
        return with_entry(table, value, at)
    return jnp.where(lax.iota(jnp.int32, table.shape[0]) == at, value, table)


def _put_on_path(ctx: Context, table: jax.Array, done: RouterWrite, values: jax.Array) -> jax.Array:
    """Return the table `[node, instance]` with the values `[path]` written for the chosen instance."""
    if ctx.shape.path_depth == 1:
        return lax.dynamic_update_slice(table, values[:, None], (done.path[0], done.instance))
    if ctx.when is not branch:
        return table.at[done.path, done.instance].set(values)

    def put(place: jax.Array, table: jax.Array) -> jax.Array:
        node, value = (
            lax.dynamic_index_in_dim(values_along, place, keepdims=False)
            for values_along in (done.path, values)
        )
        return lax.dynamic_update_slice(table, value[None, None], (node, done.instance))

    return lax.fori_loop(0, done.num_nodes, put, table)


def _with_routing(router: RouterIndex, done: RouterWrite) -> Routings:
    """Return the log with the touch at its number; the next touch overwrites an entry that touched no block."""
    routing, at = jnp.stack([done.request, done.instance])[:, None], router.num_sent
    return Routings(lax.dynamic_update_slice(router[Routings].sent, routing, (jnp.int32(0), at)))


def trimmed(ctx: Context, router: RouterIndex, is_settled: jax.Array | None = None) -> RouterIndex:
    """Return the index after pushing out the oldest blocks beyond the capacity, on the instance of the latest touch.

    While `is_settled` is false, no block is pushed out: blocks that the latest allocation takes from the cache must
    leave the index first.
    """
    if Routings not in router:
        return router
    instance = _latest(router)

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


def _latest(router: RouterIndex) -> jax.Array:
    """Return the instance of the latest touch, if entries leave the index."""
    sent = router[Routings].sent
    return sent[1, jnp.maximum(router.num_sent - 1, 0)]


def _without_oldest(
    ctx: Context,
    router: RouterIndex,
    instance: jax.Array,
    oldest: jax.Array,
    num_blocks: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return the instance's oldest entry and number of blocks, with its oldest touch dropped as far as needed."""
    depth = ctx.shape.path_depth
    stride = jnp.int32(depth + 1)
    number, place = lax.div(oldest - 1, stride), lax.rem(oldest - 1, stride)
    sent_to = lax.dynamic_slice(router[Routings].sent[1], (number,), (ROUTINGS_READ,))
    is_here = sent_to == instance
    is_found = jnp.any(is_here)
    ahead = jnp.where(is_found, lax.argmax(is_here, 0, jnp.int32), jnp.int32(ROUTINGS_READ))
    number, place = number + ahead, jnp.where(ahead > 0, 0, place)

    request = router[Routings].sent[0, number]
    prompt = prompt_of(ctx, request)
    counts, there = prompt.is_shared, prompt.nodes.length
    entry = lax.iota(jnp.int32, depth)
    is_latest = router.touched[prompt.nodes.node, instance] == number * stride + entry + 1
    if Gaps in router:
        there = _blocks_there(ctx, router, prompt, instance)
    sizes = jnp.where(counts & is_latest & (entry >= place), there, 0)
    up_to = jnp.cumsum(sizes, dtype=jnp.int32)
    excess = num_blocks - ROUTER_INDEX_CAPACITY
    goes = up_to - sizes < excess  # the leading entries: as many as must
    shared = jnp.sum(jnp.where(counts, prompt.nodes.length, 0), dtype=jnp.int32)
    private = prompt.num_blocks - shared
    if PrivateBlocks in router:
        num_private = own_blocks_there(ctx, router, prompt, instance)
        latest = router[PrivateBlocks].touched[own_row(ctx, request, instance)]
        private = jnp.where(latest == (number + 1) * stride, num_private, 0)
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
    """Return whether every instance's index has these shared blocks, given by path entry and block number."""
    touched = router.touched[nodes.node[place]]
    removed = router[Gaps].shared[: touched.shape[1], number].T
    return (touched >= router.oldest[None, :]) & (touched > removed)


def _window(
    ctx: Context, request: jax.Array, start: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a window of a request's block positions from `start` on, with each block's path entry and number."""
    position = start + lax.iota(jnp.int32, LOOK_UP_BLOCKS)
    number, _ = shared_numbers(ctx, request, position)
    starts = row(ctx.requests.path_start, request)
    place = jnp.sum(starts[None, :] <= position[:, None], axis=1, dtype=jnp.int32) - 1
    return position, jnp.maximum(place, 0), number


def _matched_with_gaps(
    ctx: Context, router: RouterIndex, prompt: PromptBlocks
) -> Int[Array, "instance"]:
    """Return the number of leading prompt blocks in the index of every instance, up to the first gap."""
    end = prompt.num_shared

    def goes_on(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, matched = carry
        return jnp.any(matched == start) & (start < end)

    def look(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, matched = carry
        position, place, number = _window(ctx, prompt.request, start)
        is_there = _is_there(router, prompt.nodes, place, number) & (position < end)[:, None]
        run = jnp.sum(jnp.cumprod(as_int(is_there), axis=0), axis=0, dtype=jnp.int32)
        return start + LOOK_UP_BLOCKS, matched + jnp.where(matched == start, run, 0)

    nothing = jnp.zeros((ctx.shape.num_instances,), jnp.int32)
    return lax.while_loop(goes_on, look, (jnp.int32(0), nothing))[1]


def _blocks_there(
    ctx: Context, router: RouterIndex, prompt: PromptBlocks, instance: jax.Array
) -> Int[Array, "path"]:
    """Return the number of prompt blocks in the instance's index, by node of the request's path."""
    nodes = prompt.nodes
    if Gaps not in router:
        is_there = prompt.is_shared & (
            router.touched[nodes.node, instance] >= router.oldest[instance]
        )
        return jnp.where(is_there, nodes.length, 0)
    end = prompt.num_shared
    entry = lax.iota(jnp.int32, ctx.shape.path_depth)

    def look(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, blocks = carry
        position, place, number = _window(ctx, prompt.request, start)
        is_there = _is_there(router, nodes, place, number)[:, instance] & (position < end)
        is_mine = is_there[:, None] & (place[:, None] == entry[None, :])
        return start + LOOK_UP_BLOCKS, blocks + jnp.sum(is_mine, axis=0, dtype=jnp.int32)

    first = jnp.int32(0), jnp.zeros_like(nodes.node)
    return lax.while_loop(lambda carry: carry[0] < end, look, first)[1]


def own_row(ctx: Context, request: jax.Array, instance: jax.Array) -> jax.Array:
    """Return the row that stores private blocks: one per request or, if requests move, per request and instance.

    The spare instance shares the row of the last instance.
    """
    if not ctx.mechanism.moves_requests:
        return request
    rows = ctx.shape.num_instances
    return request * jnp.int32(rows) + jnp.minimum(instance, jnp.int32(rows - 1))


def own_blocks_there(
    ctx: Context, router: RouterIndex, prompt: PromptBlocks, instance: jax.Array
) -> Int[Array, ""]:
    """Return the number of the request's private prompt blocks in the index of an instance on which it has been."""
    first, at = prompt.num_shared, own_row(ctx, prompt.request, instance)
    touched, count = router[PrivateBlocks].touched[at], prompt.num_blocks - first
    if Gaps in router:
        removed = row(router[Gaps].private, at)
        position = lax.iota(jnp.int32, removed.shape[0])
        is_own = (position >= first) & (position < prompt.num_blocks)
        count = count - jnp.sum(is_own & (removed >= touched), dtype=jnp.int32)
    return jnp.where(touched >= router.oldest[instance], count, 0)
