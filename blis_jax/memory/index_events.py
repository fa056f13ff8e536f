"""Messages of the KV caches to the router's index, if they feed it: allocations for prompts, and reused blocks.

An allocation for a prompt touches all its full blocks, computed or not; one for a generated token touches none. A block
that is popped from the free list removes its content, even if another block carries it too. In the reference an
allocation pops its blocks before it touches the prompt. Here the touch is written with the visit, and the pops follow
in operations: a removal is numbered like the touches before the allocation, so the touch outlives it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.exact import full_blocks
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.memory.block_tables.contents import is_same, owner_of, shared_number_of
from blis_jax.memory.memory import Subject, Visit
from blis_jax.prefix_index.news import (
    NewsKind,
    is_old_enough,
    is_over,
    is_touch_lost,
    is_void,
    next_place,
    removals_heard,
    told,
    unless_lost,
    with_news,
    without_own,
)
from blis_jax.prefix_index.router_index import (
    PromptBlocks,
    outcome_of_touch,
    own_row,
    touch,
    trimmed,
    write,
)
from blis_jax.tables.context import Context, Work, failing
from blis_jax.tables.requests import BlockNodes, Req, nodes_of
from blis_jax.tables.router import (
    Gaps,
    LateNews,
    LateWrite,
    PrivateBlocks,
    RemovedNames,
    RouterIndex,
    RouterWrite,
    VoidNews,
)
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.memory.block_tables.turn import Turn

    _Heard = tuple[RouterIndex, jax.Array, jax.Array]  # the index, how many messages, the outcome


def settled(ctx: Context, state: State) -> State:
    """Return the state without the contents that the latest allocation has evicted from the index."""
    return state.having(trimmed(ctx, state[RouterIndex], ctx.memory.is_settled(state)))


def _is_touched(ctx: Context, subject: Subject, visit: Visit) -> jax.Array:
    """Return whether the visit touches the prompt: it got room, and the cache, without a CPU tier, reports it."""
    tells = ctx.params.cluster.kv_cpu_blocks[subject.instance] == 0
    return visit.asks & visit.is_granted & ~subject.in_decode & tells


def touched_at_once(ctx: Context, state: State, work: Work, subject: Subject, visit: Visit) -> Work:
    """Return the work with the prompt touched in the index, if the visit gave it room."""
    router, is_touched = state[RouterIndex], _is_touched(ctx, subject, visit)
    about = subject.request, subject.past.num_scheduled, subject.past.progress
    num_blocks = full_blocks(ctx.memory.preempted.prompt_len(ctx, subject), ctx.shape.block_size)

    def write() -> RouterWrite:
        nodes = nodes_of(ctx.requests, subject.request)
        prompt = PromptBlocks(subject.request, nodes, num_blocks)
        done = touch(ctx, router, prompt, subject.instance)
        return unless_lost(ctx, router, done, *about)

    done: RouterWrite = ctx.when(is_touched, write, lambda: work[RouterWrite])
    outcome = jnp.where(
        is_touched, outcome_of_touch(ctx, work.lane.outcome, done), work.lane.outcome
    )
    return dataclasses.replace(work.having(done), lane=work.lane.replace(outcome=outcome))


def told_later(ctx: Context, state: State, work: Work, subject: Subject, visit: Visit) -> Work:
    """Return the work with the message that the prompt was touched, which the router receives later."""
    late, is_touched, request = state[LateNews], _is_touched(ctx, subject, visit), subject.request
    if ctx.mechanism.loses_index:
        is_lost = is_touch_lost(ctx, request, subject.past.num_scheduled, subject.past.progress)
        request = jnp.where(is_lost, ctx.spare_request, request)
    kind = jnp.int32(NewsKind.ALLOCATION)
    news = told(late, work.lane.now, subject.instance, request, kind, is_on=is_touched)
    return work.having(news)


@pytree
class NamedContents:
    """Names of block contents in the form of the index; spare indices where there is none."""

    number: Int[Array, "window"]  # of shared blocks
    request: Int[Array, "window"]  # of private ones, and their position
    position: Int[Array, "window"]
    is_own: Bool[Array, "window"]  # private


@pytree
class Removal:
    """Contents that leave the instance's part of the index."""

    contents: NamedContents
    stamp: Int[Array, ""]  # number of the latest touch before the allocation
    num_blocks: Int[Array, "instance"]


def popped(
    turn: Turn, name: Int[Array, "window"], is_touched: jax.Array
) -> tuple[Removal | LateWrite, ...]:
    """Return the message to the router's index that the instance reuses blocks; empty if the index needs none.

    `name` is 0 where a block had no content; `is_touched` says whether the allocation that pops the blocks has touched
    a prompt.
    """
    ctx, state = turn.ctx, turn.state
    if RouterIndex not in state or Gaps not in state[RouterIndex]:
        return ()
    router = state[RouterIndex]
    follows = is_touched & (turn.own(ctx.params.cluster.kv_cpu_blocks) == 0)
    contents = _contents(ctx, name)
    heard = removals_heard(ctx, turn.instance, turn.inst.step_index, *_about(contents))
    if LateNews not in state:
        return (_removal(ctx, router, turn.instance, name, contents, follows, *heard),)
    is_known = contents.is_own | (contents.number < ctx.shape.num_shared_blocks)
    for is_heard in heard:
        is_known = is_known & is_heard
    kind = jnp.where(follows, jnp.int32(NewsKind.REMOVAL), jnp.int32(NewsKind.REMOVAL_ALONE))
    nobody = ctx.spare_request
    names, is_on = RemovedNames(jnp.where(is_known, name, 0)), jnp.any(is_known)
    message = turn.lane.now, turn.instance, nobody, kind
    return (told(state[LateNews], *message, names, is_on=is_on),)


def _contents(ctx: Context, name: Int[Array, "window"]) -> NamedContents:
    shape = ctx.shape
    spare_number = jnp.int32(shape.num_shared_blocks)
    number = shared_number_of(ctx, name)
    number = jnp.where(number < spare_number, number, spare_number)
    request, position = owner_of(ctx, name)
    prompt_blocks = full_blocks(ctx.requests.table[request, Req.INPUT_LEN], shape.block_size)
    is_own = (position >= 0) & (position < prompt_blocks)
    is_own = is_own & (position < jnp.int32(shape.list_blocks))
    request = jnp.where(is_own, request, jnp.int32(shape.num_requests))
    position = jnp.where(is_own, position, jnp.int32(shape.list_blocks))
    return NamedContents(number, request, position, is_own)


def _about(contents: NamedContents) -> tuple[jax.Array, jax.Array]:
    """Return the owner and the block number that identify each content, see `removals_heard`."""
    is_own = contents.is_own
    owner = jnp.where(is_own, contents.request + 1, 0)
    return owner, jnp.where(is_own, contents.position, contents.number)


def _removal(
    ctx: Context,
    router: RouterIndex,
    instance: jax.Array,
    name: Int[Array, "window"],
    contents: NamedContents,
    follows: jax.Array,
    *heard: Bool[Array, "window"],
) -> Removal:
    """Return the removal from the index; `follows` says whether the latest touch is part of the same allocation."""
    shape = ctx.shape
    stamp = (router.num_sent - follows.astype(jnp.int32)) * jnp.int32(shape.path_depth + 1)
    spare_number, is_own = jnp.int32(shape.num_shared_blocks), contents.is_own
    number, request, position = contents.number, contents.request, contents.position
    last = jnp.minimum(instance, jnp.int32(shape.num_instances - 1))
    node = ctx.requests[BlockNodes].node[number]
    row = own_row(ctx, request, instance)
    private, gaps = router[PrivateBlocks], router[Gaps]
    touched = jnp.where(is_own, private.touched[row], router.touched[node, last])
    removed = gaps.shared[instance, number]
    removed = jnp.where(is_own, gaps.private[row, position], removed)
    is_there = (touched >= router.oldest[last]) & (touched > removed) & (touched <= stamp)
    is_there = is_there & (is_own | (number < spare_number))
    for is_heard in heard:
        is_there = is_there & is_heard
        number = jnp.where(is_heard, number, spare_number)
        request = jnp.where(is_heard, request, jnp.int32(shape.num_requests))
        position = jnp.where(is_heard, position, jnp.int32(shape.list_blocks))
    place = lax.iota(jnp.int32, name.shape[0])
    is_earlier = place[None, :] < place[:, None]
    is_second = jnp.any(is_same(name[:, None], name[None, :]) & is_earlier, axis=1)
    count = jnp.sum(is_there & ~is_second, dtype=jnp.int32)
    is_mine = lax.iota(jnp.int32, shape.num_instances) == instance
    gone = NamedContents(number, request, position, is_own)
    return Removal(gone, stamp, router.num_blocks - jnp.where(is_mine, count, 0))


def left_out(ctx: Context, state: State, instance: jax.Array, gone: Removal | LateWrite) -> State:
    """Return the state with these contents removed from the index, or with the message for later."""
    if isinstance(gone, LateWrite):
        return state.having(with_news(state[LateNews], gone))
    return state.having(without(ctx, state[RouterIndex], instance, gone))


def without(ctx: Context, router: RouterIndex, instance: jax.Array, gone: Removal) -> RouterIndex:
    """Return the index without these contents."""
    left = gone.contents
    stamps = jnp.broadcast_to(gone.stamp, left.number.shape)
    shared = ctx.write(router[Gaps].shared, (instance,), left.number, stamps)
    row = own_row(ctx, left.request, instance)
    private = ctx.write_pairs(router[Gaps].private, row, left.position, stamps)
    return dataclasses.replace(router.having(Gaps(shared, private)), num_blocks=gone.num_blocks)


def heard(
    ctx: Context, state: State, outcome: jax.Array, now: jax.Array, is_asked: jax.Array
) -> tuple[State, jax.Array]:
    """Return the state and the outcome after the index has received all old enough messages, if `is_asked`.

    The messages of one allocation have one age, so contents that it evicts leave once all of them are received.
    """
    index, late = state[RouterIndex], state[LateNews]
    outcome = failing(outcome, is_over(late), Outcome.ROUTINGS_FULL)

    def goes_on(carry: _Heard) -> jax.Array:
        _, num_heard, outcome = carry
        return is_asked & (outcome == 0) & is_old_enough(ctx, late, num_heard, now)

    def hear(carry: _Heard) -> _Heard:
        """Apply the next message to the index, unless it is void."""
        index, num_heard, outcome = carry
        at = next_place(late, num_heard)
        instance, request, kind = late.about[:, at]
        is_heard = ~is_void(late, num_heard, instance)
        index, outcome = ctx.when(
            (kind == NewsKind.ALLOCATION) & is_heard,
            lambda: _with_touch(ctx, index, outcome, instance, request),
            lambda: (_with_removal(ctx, index, late, at, is_heard), outcome),
        )
        return index, num_heard + 1, outcome

    index, num_heard, outcome = lax.while_loop(goes_on, hear, (index, late.num_heard, outcome))
    left = dataclasses.replace(late, num_heard=num_heard)
    return state.having(trimmed(ctx, index), left), outcome


def _with_touch(
    ctx: Context, index: RouterIndex, outcome: jax.Array, instance: jax.Array, request: jax.Array
) -> tuple[RouterIndex, jax.Array]:
    index = trimmed(ctx, index)
    num_blocks = full_blocks(ctx.request(request).input_len, ctx.shape.block_size)
    prompt = PromptBlocks(request, nodes_of(ctx.requests, request), num_blocks)
    done = touch(ctx, index, prompt, instance)
    return write(ctx, index, done), outcome_of_touch(ctx, outcome, done)


def _with_removal(
    ctx: Context, index: RouterIndex, late: LateNews, at: jax.Array, is_heard: jax.Array
) -> RouterIndex:
    """Return the index after the removal message at this place, if it `is_heard`."""
    instance, request, kind = late.about[:, at]
    # the blocks of the latest allocation go before what it pushes out, others after that
    index = trimmed(ctx, index, kind != NewsKind.REMOVAL)
    if VoidNews in late:
        is_forgotten = (kind == NewsKind.FORGETTING) & is_heard
        index = without_own(ctx, index, request, instance, is_forgotten)
    if RemovedNames not in late:
        return index
    name = late[RemovedNames].of[at]
    if VoidNews in late:
        name = jnp.where(is_heard, name, 0)
    about = name, _contents(ctx, name), kind == NewsKind.REMOVAL
    return without(ctx, index, instance, _removal(ctx, index, instance, *about))
