"""What the router may see of the instances, and how stale it is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.branching import branch
from blis_jax.core.columns import choose
from blis_jax.core.exact import exact_quotient
from blis_jax.core.types import ENCODE, ROLES, Snapshots
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.signals import AgedView, looked_again
from blis_jax.engine.phases.router_view.gateways import own_pending, own_rejections
from blis_jax.engine.phases.router_view.prompts import prompts_now
from blis_jax.engine.state import Instance, Nodes, Slot, State, reads_cpu_tier
from blis_jax.engine.tables.joined import queued_times
from blis_jax.memory.block_tables.blocks import InstanceMemory

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

View = Any  # see State.stale


def kv_fields(ctx: Context, state: State) -> Any:
    """KV utilisation, free blocks and hit rate of every instance now, and what its CPU tier does if that is read."""
    rows = ctx.shape.num_instances
    inst = Instance(state.inst[:rows])
    used = inst.used_blocks.astype(jnp.float64)
    total = ctx.params.cluster.total_kv_blocks.astype(jnp.float64)
    hits = inst.hits.astype(jnp.float64)
    lookups = hits + inst.misses.astype(jnp.float64)
    hit_rate = exact_quotient(hits, jnp.maximum(lookups, 1.0))
    fields: tuple[jax.Array, ...] = exact_quotient(used, total), total - used, hit_rate
    if reads_cpu_tier(ctx.shape, ctx.mechanism):
        fields += _of_cpu_tier(ctx, state)
    return jnp.stack(fields) if ctx.when is branch else fields


def _of_cpu_tier(ctx: Context, state: State) -> tuple[jax.Array, jax.Array]:
    """Time that every instance's next step will wait for reloads, µs, and its share of thrashing reloads."""
    assert state.blocks is not None
    pool = InstanceMemory(state.blocks.pool[: ctx.shape.num_instances])
    transfer_us = ctx.params.cluster.transfer_us.astype(jnp.float64)
    offloads = jnp.maximum(pool.offloads, 1).astype(jnp.float64)
    thrashing_rate = exact_quotient(pool.thrashing.astype(jnp.float64), offloads)
    return pool.pending_reloads.astype(jnp.float64) * transfer_us, thrashing_rate


def refreshed(
    ctx: Context, state: State, now: jax.Array, last_refresh: jax.Array
) -> tuple[View, jax.Array]:
    """What the router knows of the instances at `now`, and when it last looked at their KV fields."""
    if ctx.mechanism.ages_signals:
        return _aged(ctx, state, now), last_refresh
    interval = ctx.time(ctx.params.cluster.snapshot_refresh_interval_us)
    is_due = (interval <= 0) | (now - last_refresh >= interval)
    fields = choose(is_due, kv_fields(ctx, state), state.stale)
    return fields, jnp.where(is_due, now, last_refresh)


def _aged(ctx: Context, state: State, now: jax.Array) -> AgedView:
    """The view with new values where a look is due, for each instance and each group of signals."""
    cluster, view = ctx.params.cluster, state.stale
    signals, queued = cluster.signals, _queue_depths(ctx, state, now)
    of_kv = signals, cluster.snapshot_refresh_interval_us, view.kv_seen_us, now
    of_load = signals, signals.load_interval_us, view.load_seen_us, now
    sees_kv, kv_seen_us = looked_again(*of_kv)
    sees_load, load_seen_us = looked_again(*of_load)
    if ctx.mechanism.places_instances:  # nobody looks at one that takes no requests
        is_up = active_instances(ctx, state)
        sees_kv, sees_load = sees_kv & is_up, sees_load & is_up
        kv_seen_us = jnp.where(is_up, kv_seen_us, view.kv_seen_us)
        load_seen_us = jnp.where(is_up, load_seen_us, view.load_seen_us)
    cached, cached_seen_us = _copied_caches(ctx, state, now)
    return AgedView(
        choose(sees_kv, kv_fields(ctx, state), view.kv),
        jnp.where(sees_load, queued, view.queue_depth),
        jnp.where(sees_load, _batch_sizes(ctx, state), view.batch_size),
        kv_seen_us,
        load_seen_us,
        cached,
        cached_seen_us,
        _seen_prompts(ctx, state, view, sees_load),
    )


def may_be_unrouted(ctx: Context) -> bool:
    """Whether a request may find no instance when it is to be routed, and is turned away then."""
    is_placed = ctx.mechanism.cluster is not None and ctx.mechanism.rules.turns_away
    return is_placed or ctx.requests.is_elsewhere is not None


def finds_instance(ctx: Context, state: State, request: jax.Array) -> jax.Array:
    """Whether the request can be routed now, where that is not certain."""
    marks, placed = ctx.requests.is_elsewhere, ctx.mechanism.cluster is not None
    if marks is None:
        return jnp.any(_may_take(ctx, state, request))
    return ~marks[request] & jnp.any(_may_take(ctx, state, request)) if placed else ~marks[request]


def _may_take(ctx: Context, state: State, request: jax.Array) -> Bool[Array, "instance"]:
    """Active instances, of the request's pool where there are pools."""
    is_active = active_instances(ctx, state)
    if not ctx.mechanism.reserves_decode:
        return is_active
    assert state.movement is not None
    is_decode = state.movement.reservation(request).target < 0
    return in_pool(is_active, ctx.params.cluster.roles[: is_active.shape[0]], is_decode)


def in_pool(is_active: jax.Array, role: jax.Array, is_decode: jax.Array) -> jax.Array:
    """Return which active instances are of the decode pool, or of the prefill pool."""
    prefill, decode = (jnp.int32(ROLES.index(name)) for name in ("prefill", "decode"))
    other = jnp.where(is_decode, prefill, decode)
    return is_active & (role != other) & (role < ENCODE)


def unless_elsewhere(
    ctx: Context, state: State, seen: View, *asked: tuple[jax.Array | bool, jax.Array | None]
) -> View:
    """The view after decisions: as it was, but for the copy of the caches, where nobody looks at an instance.

    `asked`: whether a decision is made, and about which request; None: about all instances.
    """
    marks = ctx.requests.is_elsewhere
    if marks is None:
        return seen
    looks = jnp.array(False)
    for is_made, request in asked:
        looks = looks | (is_made if request is None else is_made & ~marks[request])
    aged = state.stale
    copied = dataclasses.replace(aged, cached=seen.cached, cached_seen_us=seen.cached_seen_us)
    return choose(looks, seen, copied)


def _seen_prompts(ctx: Context, state: State, view: AgedView, looks: jax.Array) -> Any:
    """The prompts of the last look at the load; None if no policy asks for them."""
    return (
        None
        if view.prompts is None
        else choose(looks[:, None], prompts_now(ctx, state), view.prompts)
    )


def _copied_caches(ctx: Context, state: State, now: jax.Array) -> tuple[Any, Any]:
    """The router's copy of the caches, made anew if it is old enough, and when it was made."""
    view = state.stale
    if view.cached is None:
        return None, None
    delay = ctx.params.cluster.signals.cache_delay_us.astype(jnp.float64)
    time = now.astype(jnp.float64)
    is_due = (delay <= 0) | (time - view.cached_seen_us >= delay)
    cached = ctx.when(is_due, lambda: ctx.memory.registered(ctx, state), lambda: view.cached)
    return cached, jnp.where(is_due, time, view.cached_seen_us)


def cached_prompt_blocks(
    ctx: Context, view: View, nodes: Nodes, num_prompt_blocks: jax.Array
) -> Int[Array, "instance"] | None:
    """Leading blocks of a prompt in the copy of every cache; None if no policy looks.

    What only this request has cannot be in a cache before it has run.
    """
    if not isinstance(view, AgedView) or view.cached is None:
        return None
    found = jnp.where((nodes.start < num_prompt_blocks)[None, :], view.cached[:, nodes.node], 0)
    is_whole = (found == nodes.length[None, :]).astype(jnp.int32)
    ones = jnp.ones((found.shape[0], 1), jnp.int32)
    reached = jnp.concatenate([ones, jnp.cumprod(is_whole, axis=1)[:, :-1]], axis=1)
    return jnp.sum(found * reached, axis=1, dtype=jnp.int32)


def has_ticked(state: State, now: jax.Array) -> Any:
    """Whether the gateway's queue has had its tick of this microsecond: behind it the transfers that end then are over.

    None where there are no such transfers, or no queue.
    """
    queue = state.queue
    return None if queue is None or queue.ticked is None else queue.ticked == now


def _queue_depths(ctx: Context, state: State, now: jax.Array) -> Int[Array, "instance"]:
    """Waiting requests before every instance event of the microsecond."""
    rows = ctx.shape.num_instances
    times = queued_times(state, rows)
    queued = times < now
    if (
        has_ticked(state, now) is not None
    ):  # ranks of those that come with their KV are below all others
        comes = (times == now) & (state.slot[Slot.QUEUE_RANK, :rows] < ctx.shape.num_requests)
        queued = queued | (comes & has_ticked(state, now))
    return jnp.sum(queued, axis=1, dtype=jnp.int32)


def _batch_sizes(ctx: Context, state: State) -> Int[Array, "instance"]:
    inst = Instance(state.inst[: ctx.shape.num_instances])
    return inst.num_prefill + inst.num_decode


def num_on_their_way(ctx: Context, state: State, now: jax.Array) -> Int[Array, "instance"]:
    """Requests in slots of each instance whose transfer has not ended before `now`: the router does not count them."""
    movement = state.movement
    assert movement is not None  # there is one where requests are split
    ends = movement.reserved_time[:-1, 0]
    is_coming = ends >= now
    if has_ticked(state, now) is not None:
        is_coming = is_coming & ~((ends == now) & has_ticked(state, now))
    target = jnp.where(is_coming & (ends < ctx.never), movement.reserved[:-1, 0], -1)
    instance = lax.iota(jnp.int32, ctx.shape.num_instances)
    return jnp.sum(target[None, :] == instance[:, None], axis=1, dtype=jnp.int32)


def active_instances(ctx: Context, state: State) -> Bool[Array, "instance"]:
    """Instances that requests may be routed to: part of the cluster, and up."""
    if ctx.mechanism.places_instances and state.movement is not None:
        return state.movement.is_up == 1  # rows of instances still to be made are not up
    is_there = lax.iota(jnp.int32, ctx.shape.num_instances) < ctx.params.cluster.num_instances
    return is_there if state.movement is None else is_there & (state.movement.is_up == 1)


def snapshots(
    ctx: Context,
    state: State,
    now: jax.Array,
    view: View,
    prefix_match_blocks: Int[Array, "instance"],
    num_rejected: jax.Array,
    request: jax.Array | None = None,
    cached: Int[Array, "instance"] | None = None,
) -> Snapshots:
    """The router's view at `now`, which is before every instance event of that microsecond.

    Of several gateways it is that of the request's.
    """
    load = Instance(state.inst[: ctx.shape.num_instances]).load
    batch, queued, kv = _batch_sizes(ctx, state), _queue_depths(ctx, state, now), view
    pending = load - batch - queued
    if request is not None and ctx.mechanism.num_gateways > 1:
        pending = own_pending(ctx, state, now, request)
        load = batch + queued + pending
        num_rejected = own_rejections(ctx, state, num_rejected, request)
    if ctx.mechanism.reserves_decode:
        load = load - num_on_their_way(ctx, state, now)
    if ctx.mechanism.rules.sees_old_loads:  # all that the router has sent it knows at once
        pending = load
    if ctx.mechanism.ages_signals:  # what the router has sent itself it knows at once
        pending = pending * ctx.params.cluster.signals.counts_in_flight
        batch, queued, kv = view.batch_size, view.queue_depth, view.kv
        load = batch + queued + pending
    return Snapshots(
        effective_load=load,
        queue_depth=queued,
        batch_size=batch,
        num_pending=pending,
        kv_utilization=kv[0],
        free_kv_blocks=kv[1],
        cache_hit_rate=kv[2],
        prefix_match_blocks=prefix_match_blocks,
        num_rejected=num_rejected,
        cached_prompt_blocks=cached,
        is_active=active_instances(ctx, state),
        role=ctx.params.cluster.roles,
        pending_transfer_us=kv[3] if len(kv) > 3 else None,
        kv_thrashing_rate=kv[4] if len(kv) > 3 else None,
    )
