"""What the KV caches tell the router's index where they feed it: allocations of prompts, and blocks used again.

An allocation for a prompt touches all its full blocks, computed or not; that of a generated token touches none. A block
that is popped from the free list removes its content, whoever else carries it. In the reference an allocation pops its
blocks before it touches the prompt. Here the touch is written with the visit, and the pops follow in operations: a
removal is numbered like the touches before the allocation, so the touch outlives it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.engine.arithmetic.block_counts import full_blocks
from blis_jax.engine.context import Context
from blis_jax.engine.phases.router_view.lost_news import is_removal_heard, unless_lost
from blis_jax.engine.phases.router_view.router_index import (
    RouterWrite,
    outcome_of_touch,
    touch,
    trimmed,
)
from blis_jax.engine.phases.steps.mid_step import Work
from blis_jax.engine.state import Req, State, nodes_of
from blis_jax.engine.tables.router import RouterIndex
from blis_jax.engine.types import pytree
from blis_jax.memory.block_tables.blocks import Do, MemoryTask
from blis_jax.memory.block_tables.contents import is_same, owner_of, shared_number_of
from blis_jax.memory.memory import Subject, Visit, prompt_len

if TYPE_CHECKING:
    from jaxtyping import Array, Int

    from blis_jax.memory.block_tables.turn import Turn


def settled(ctx: Context, state: State) -> RouterIndex | None:
    """The index before the next thing happens: what the latest allocation has pushed out is gone."""
    router, blocks = state.router, state.blocks
    if router is None or not ctx.mechanism.is_precise:
        return router
    is_settled = jnp.array(True)
    if blocks is not None:
        do = MemoryTask(blocks.task).do
        is_settled = (do != Do.PIN) & (do != Do.TAKE)
    return trimmed(ctx, router, is_settled)


def allocated(ctx: Context, state: State, work: Work, one: Subject, visit: Visit) -> Work:
    """Touch the prompt of a request that has been given room for a part of it.

    A cache with a CPU tier tells the router nothing.
    """
    router = state.router
    if router is None or not ctx.mechanism.is_precise:
        return work
    tells = ctx.params.cluster.kv_cpu_blocks[one.instance] == 0
    is_touched = visit.asks & visit.is_granted & ~one.in_decode & tells
    num_blocks = full_blocks(prompt_len(ctx, one), ctx.shape.block_size)

    def write() -> RouterWrite:
        nodes = nodes_of(ctx.requests, one.request)
        done = touch(ctx, router, one.request, nodes, num_blocks, one.instance)
        about = one.request, one.past.num_scheduled, one.past.progress
        return unless_lost(ctx, router, done, *about)

    nothing = work.router
    assert nothing is not None  # there is an index
    done: RouterWrite = ctx.when(is_touched, write, lambda: nothing)
    outcome = jnp.where(
        is_touched, outcome_of_touch(ctx, work.lane.outcome, done), work.lane.outcome
    )
    return dataclasses.replace(work, router=done, lane=work.lane.replace(outcome=outcome))


@pytree
class Removal:
    """Contents that leave the instance's index; spare places where none does."""

    number: Int[Array, "window"]  # of shared blocks
    request: Int[Array, "window"]  # of private ones, and their position
    position: Int[Array, "window"]
    stamp: Int[Array, ""]  # number of the latest touch before the allocation
    num_blocks: Int[Array, "instance"]


def popped(turn: Turn, name: Int[Array, "window"], is_touched: jax.Array) -> Removal | None:
    """The contents of blocks that the instance uses again, by name; 0 where there is none.

    `is_touched` says whether the allocation that pops them has touched a prompt.
    """
    ctx, router = turn.ctx, turn.state.router
    if router is None or router.removed is None:
        return None
    shape, cluster = ctx.shape, ctx.params.cluster
    stride = jnp.int32(shape.path_depth + 1)
    tells = turn.own(cluster.kv_cpu_blocks) == 0
    stamp = (router.num_sent - (is_touched & tells).astype(jnp.int32)) * stride
    spare_number = jnp.int32(shape.num_shared_blocks)
    number = shared_number_of(ctx, name)
    number = jnp.where(number < spare_number, number, spare_number)
    request, position = owner_of(ctx, name)
    prompt_blocks = full_blocks(ctx.requests.table[request, Req.INPUT_LEN], shape.block_size)
    is_own = (position >= 0) & (position < prompt_blocks)
    is_own = is_own & (position < jnp.int32(shape.list_blocks))
    request = jnp.where(is_own, request, jnp.int32(shape.num_requests))
    position = jnp.where(is_own, position, jnp.int32(shape.list_blocks))

    last = jnp.minimum(turn.instance, jnp.int32(shape.num_instances - 1))
    node = ctx.requests.node_of[number]
    touched = jnp.where(is_own, router.own[request], router.touched[node, last])
    removed = router.removed[turn.instance, number]
    removed = jnp.where(is_own, router.own_removed[request, position], removed)
    is_there = (touched >= router.oldest[last]) & (touched > removed) & (touched <= stamp)
    is_there = is_there & (is_own | (number < spare_number))
    about = jnp.where(is_own, request + 1, 0), jnp.where(is_own, position, number)
    heard = is_removal_heard(ctx, turn.instance, turn.inst.step_index, *about)
    if heard is not None:
        is_there = is_there & heard
        number = jnp.where(heard, number, spare_number)
        request = jnp.where(heard, request, jnp.int32(shape.num_requests))
        position = jnp.where(heard, position, jnp.int32(shape.list_blocks))
    place = lax.iota(jnp.int32, name.shape[0])
    is_earlier = place[None, :] < place[:, None]
    is_second = jnp.any(is_same(name[:, None], name[None, :]) & is_earlier, axis=1)
    count = jnp.sum(is_there & ~is_second, dtype=jnp.int32)
    is_mine = lax.iota(jnp.int32, shape.num_instances) == turn.instance
    return Removal(
        number, request, position, stamp, router.num_blocks - jnp.where(is_mine, count, 0)
    )


def without(ctx: Context, router: RouterIndex, instance: jax.Array, gone: Removal) -> RouterIndex:
    """The index without these contents."""
    stamps = jnp.broadcast_to(gone.stamp, gone.number.shape)
    removed = ctx.write(router.removed, (instance,), gone.number, stamps)
    own_removed = ctx.write_pairs(router.own_removed, gone.request, gone.position, stamps)
    return dataclasses.replace(
        router, removed=removed, own_removed=own_removed, num_blocks=gone.num_blocks
    )
