"""Messages to the router's prefix index that arrive late or are lost.

Late: if the caches feed the index, an allocation or a removal is recorded when an instance makes it, and changes the
index after the delay (`heard` of index_events.py). All messages have the same delay, so they arrive in the order in
which they were sent.

Lost: each message has the same probability of being lost. A message says that an instance has all blocks of a prompt
(after a routing or, if the caches feed the index, after an allocation for the prompt), or that an instance has reused
one block. If a message of the first kind is lost, the index lacks the prompt's blocks. If a message of the second kind
is lost, the index keeps a block that is gone, until a later message corrects it or newer blocks push the block out.
Draws depend on the policy seed and the message's content, so under all strategies that send the same message it is
either lost or not.

Forgotten: an instance that loses its cache is removed from the index at once, together with its messages that have not
arrived yet. A request that returns to an instance finds none of its private blocks there; the cache reports this as a
removal.

A compiled program contains only the parts that the configuration uses.
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import choose, with_entry
from blis_jax.policies.seeds import RandomSource
from blis_jax.prefix_index.router_index import own_blocks_there, own_row, prompt_of
from blis_jax.tables.context import Context, decision_key
from blis_jax.tables.router import (
    LateNews,
    LateWrite,
    PrivateBlocks,
    RemovedNames,
    RouterIndex,
    VoidNews,
)
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.tables.router import RouterIndex, RouterWrite

# --- late -----------------------------------------------------------------------------------------


class NewsKind(IntEnum):
    """The kinds of messages to the router's prefix index."""

    ALLOCATION = 0
    REMOVAL = 1  # by an allocation whose preceding message announced a prompt
    REMOVAL_ALONE = 2
    FORGETTING = 3  # a request comes back and finds no block of its own


def no_news(late: LateNews) -> LateWrite:
    """Return a write that adds no message."""
    return LateWrite(
        place=jnp.int32(_size(late)),
        told_us=jnp.zeros((), late.told_us.dtype),
        about=jnp.zeros(late.about.shape[:1], jnp.int32),
        num_told=late.num_told,
        own=jax.tree.map(lambda of: jnp.zeros(of.shape[1:], of.dtype), late.own.only(RemovedNames)),
    )


def told(
    late: LateNews,
    now: jax.Array,
    instance: jax.Array,
    request: jax.Array,
    kind: jax.Array,
    *names: RemovedNames,
    is_on: Bool[Array, ""] | bool = True,
) -> LateWrite:
    """Return a write that adds one message if `is_on`; `names` has the contents of a removal, and only then is
    given.
    """
    nothing = no_news(late)
    is_told = jnp.asarray(is_on)
    place = lax.rem(late.num_told, jnp.int32(_size(late)))
    return dataclasses.replace(
        nothing,
        place=jnp.where(is_told, place, nothing.place),
        told_us=now.astype(late.told_us.dtype),
        about=jnp.stack([instance, request, kind]).astype(jnp.int32),
        num_told=late.num_told + is_told.astype(jnp.int32),
        own=nothing.own.having(*names),
    )


def with_news(late: LateNews, done: LateWrite) -> LateNews:
    """Return the messages in transit after a write."""
    zero = jnp.int32(0)

    def put(table: jax.Array, name: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(table, name[None], (done.place, zero))

    names = jax.tree.map(put, late.own.only(RemovedNames), done.own)
    return dataclasses.replace(
        late,
        told_us=with_entry(late.told_us, done.told_us, done.place),
        about=lax.dynamic_update_slice(late.about, done.about[:, None], (zero, done.place)),
        num_told=done.num_told,
        own=late.own.having(*names),
    )


def next_place(late: LateNews, num_heard: jax.Array) -> Int[Array, ""]:
    """Return the index in the ring of the message that arrives after `num_heard` others."""
    return lax.rem(num_heard, jnp.int32(_size(late)))


def is_old_enough(ctx: Context, late: LateNews, num_heard: jax.Array, now: jax.Array) -> jax.Array:
    """Return whether the message after the first `num_heard` ones has reached the router by `now`."""
    told_us = late.told_us[next_place(late, num_heard)].astype(jnp.float64)
    delay = ctx.params.cluster.signals.index_delay_us.astype(jnp.float64)
    return (num_heard < late.num_told) & (now.astype(jnp.float64) - told_us >= delay)


def is_over(late: LateNews) -> Bool[Array, ""]:
    """Return whether more messages are in transit than the ring holds."""
    return late.num_told - late.num_heard > _size(late)


def _size(late: LateNews) -> int:
    return late.told_us.shape[0] - 1


# --- lost -----------------------------------------------------------------------------------------


def _is_lost(ctx: Context, key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, dtype=jnp.float64) < ctx.params.cluster.signals.index_loss


def is_touch_lost(ctx: Context, *about: jax.Array) -> jax.Array:
    """Return whether the message that an instance has a prompt's blocks is lost; see `unless_lost`."""
    return _is_lost(ctx, decision_key(ctx, RandomSource.LOSS, *about))


def unless_lost(
    ctx: Context, router: RouterIndex, done: RouterWrite, *about: jax.Array
) -> RouterWrite:
    """Return the touch if its message arrives, else no touch; `about` identifies the message for its draw.

    A lost message uses up a number as every message does, but no block is touched under that number.
    """
    if not ctx.mechanism.loses_index:
        return done
    lost = dataclasses.replace(
        done,
        path=jnp.full_like(done.path, ctx.shape.num_nodes),
        num_nodes=jnp.zeros_like(done.num_nodes),
        request=jnp.full_like(done.request, ctx.shape.num_requests),
        num_blocks=router.num_blocks[done.instance],
    )
    is_lost = is_touch_lost(ctx, *about)
    return choose(is_lost, lost, done)


def removals_heard(
    ctx: Context,
    instance: jax.Array,
    step: jax.Array,
    owner: jax.Array,
    block: jax.Array,
) -> tuple[Bool[Array, "window"], ...]:
    """Return masks of the blocks reused in a step whose messages arrive; an empty tuple if none is ever lost.

    `owner` and `block` `[window]` name the contents: the owner's number plus 1 and the position in its prompt, or 0 and
    the number of the shared block.
    """
    if not ctx.mechanism.loses_index:
        return ()
    of_step = decision_key(ctx, RandomSource.REMOVAL_LOSS, instance, step)

    def is_removed(owner: jax.Array, block: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(of_step, owner), block)
        return ~_is_lost(ctx, key)

    return (jax.vmap(is_removed)(owner, block),)


def cleared(ctx: Context, state: State, is_it: Bool[Array, "instance"]) -> State:
    """Return the state after removing all blocks of the instances in the mask `is_it` from the index."""
    columns, router = jnp.tile(is_it, ctx.mechanism.num_indices), state[RouterIndex]
    if PrivateBlocks in router:
        by_instance = router[PrivateBlocks].touched.reshape(-1, ctx.shape.num_instances)
        router = router.having(PrivateBlocks(jnp.where(is_it[None, :], 0, by_instance).reshape(-1)))
    if LateNews in state:
        late = state[LateNews]
        void = jnp.where(is_it, late.num_told, late[VoidNews].before)
        state = state.having(late.having(VoidNews(void)))
    index = dataclasses.replace(
        router,
        touched=jnp.where(columns[None, :], 0, router.touched),
        num_blocks=jnp.where(columns, 0, router.num_blocks),
    )
    return state.having(index)


def is_void(late: LateNews, number: jax.Array, instance: jax.Array) -> jax.Array:
    """Return whether message `number` was sent before its instance lost its cache, so that it no longer counts."""
    return number < late[VoidNews].before[instance] if VoidNews in late else jnp.array(False)


def forget(
    ctx: Context,
    state: State,
    request: jax.Array,
    instance: jax.Array,
    is_on: Bool[Array, ""],
    now: jax.Array,
) -> State:
    """Return the state after a message, if `is_on`, that the instance has none of the request's private blocks."""
    if LateNews in state:
        kind = jnp.int32(NewsKind.FORGETTING)
        message = told(state[LateNews], now, instance, request, kind, is_on=is_on)
        return state.having(with_news(state[LateNews], message))
    if PrivateBlocks not in state[RouterIndex]:
        return state
    return state.having(without_own(ctx, state[RouterIndex], request, instance, is_on))


def without_own(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    instance: jax.Array,
    is_on: Bool[Array, ""],
) -> RouterIndex:
    """Return the index without the request's private blocks on the instance if `is_on`; the index must be within its
    capacity.
    """
    count = own_blocks_there(ctx, router, prompt_of(ctx, request), instance)
    is_it = (lax.iota(jnp.int32, ctx.shape.num_instances) == instance) & is_on
    at = own_row(ctx, jnp.where(is_on, request, ctx.spare_request), jnp.where(is_on, instance, 0))
    touched = lax.dynamic_update_slice(
        router[PrivateBlocks].touched, jnp.zeros((1,), jnp.int32), (at,)
    )
    num_blocks = router.num_blocks - jnp.where(is_it, count, 0)
    return dataclasses.replace(router.having(PrivateBlocks(touched)), num_blocks=num_blocks)
