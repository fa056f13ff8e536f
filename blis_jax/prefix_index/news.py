"""Messages on their way to the router's prefix index: late ones, and those that it never hears.

Late: where the caches feed the index, an allocation or a removal is put down when an instance makes it, and changes the
index once it is old enough (`heard` of index_events.py). All messages are equally long on their way, so they arrive in
the order in which they were told.

Lost: each message has the same probability to be lost. It says that an instance has all blocks of a prompt (a routing,
or where the caches feed the index an allocation for the prompt), or that it has used one block again. Of a lost message
of the first kind the index knows nothing. After one of the second kind it believes in a block that is gone, until a
later message says otherwise or newer blocks push it out. Draws follow the policy seed and what the message is about, so
strategies that send the same one share its fate.

Forgotten: an instance that loses its cache leaves the index at once, with all that it has told and nobody has heard. A
request that comes back to an instance finds none of its own blocks there; the cache tells of that as of a removal.

A mechanism without any of this has nothing of it in its compiled program.
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
    """The kinds of messages to the router's index."""

    ALLOCATION = 0
    REMOVAL = 1  # of an allocation that has told of a prompt: its message is the one before
    REMOVAL_ALONE = 2
    FORGETTING = 3  # a request comes back and finds no block of its own


def no_news(late: LateNews) -> LateWrite:
    """Return a write that tells nothing."""
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
    """Return one message more if `is_on`; `names` of contents only of a removal."""
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
    """Add a message to those on their way."""
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
    """Return the place of the message that is heard after `num_heard` others."""
    return lax.rem(num_heard, jnp.int32(_size(late)))


def is_old_enough(ctx: Context, late: LateNews, num_heard: jax.Array, now: jax.Array) -> jax.Array:
    """Return whether the router has heard of the next message by `now`."""
    told_us = late.told_us[next_place(late, num_heard)].astype(jnp.float64)
    delay = ctx.params.cluster.signals.index_delay_us.astype(jnp.float64)
    return (num_heard < late.num_told) & (now.astype(jnp.float64) - told_us >= delay)


def is_over(late: LateNews) -> Bool[Array, ""]:
    """Return whether more messages are on their way than the ring holds."""
    return late.num_told - late.num_heard > _size(late)


def _size(late: LateNews) -> int:
    return late.told_us.shape[0] - 1


# --- lost -----------------------------------------------------------------------------------------


def _is_lost(ctx: Context, key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, dtype=jnp.float64) < ctx.params.cluster.signals.index_loss


def is_touch_lost(ctx: Context, *about: jax.Array) -> jax.Array:
    """Return whether the router never hears of a prompt on an instance; see `unless_lost`."""
    return _is_lost(ctx, decision_key(ctx, RandomSource.LOSS, *about))


def unless_lost(
    ctx: Context, router: RouterIndex, done: RouterWrite, *about: jax.Array
) -> RouterWrite:
    """Return the touch if its message arrives, else no touch; `about` tells the message apart from others.

    A lost message has a number, as every message has, and nothing is touched under it.
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
    return choose(is_lost, lost, done)


def removals_heard(
    ctx: Context,
    instance: jax.Array,
    step: jax.Array,
    owner: jax.Array,
    block: jax.Array,
) -> tuple[Bool[Array, "window"], ...]:
    """Return masks of the blocks used again in a step that the router hears of; none where it hears of all.

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
    """Return the state in whose index these instances hold nothing."""
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
    """Return whether a message was told before its instance lost its cache."""
    return number < late[VoidNews].before[instance] if VoidNews in late else jnp.array(False)


def forget(
    ctx: Context,
    state: State,
    request: jax.Array,
    instance: jax.Array,
    is_on: Bool[Array, ""],
    now: jax.Array,
) -> State:
    """Return the state whose index is told, if `is_on`, that a request has no block of its own on the instance."""
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
    """Drop the blocks of the request's prompt that are its own from the instance's index if `is_on`;
    the index must be within its capacity.
    """
    count = own_blocks_there(ctx, router, prompt_of(ctx, request), instance)
    is_it = (lax.iota(jnp.int32, ctx.shape.num_instances) == instance) & is_on
    at = own_row(ctx, jnp.where(is_on, request, ctx.spare_request), jnp.where(is_on, instance, 0))
    touched = lax.dynamic_update_slice(
        router[PrivateBlocks].touched, jnp.zeros((1,), jnp.int32), (at,)
    )
    num_blocks = router.num_blocks - jnp.where(is_it, count, 0)
    return dataclasses.replace(router.having(PrivateBlocks(touched)), num_blocks=num_blocks)
