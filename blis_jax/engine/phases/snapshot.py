"""The router's view of the instances, and how stale it is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import branch, choose
from blis_jax.core.exact import exact_quotient
from blis_jax.core.pytrees import Parts
from blis_jax.core.types import DECODE, ENCODE, PREFILL, Snapshots
from blis_jax.engine.phases.router_view import adapters_now, has_adapter, prompts_now
from blis_jax.policies.reading import ADAPTERS, CPU_TIER, KV
from blis_jax.tables.adapters import SeenAdapters
from blis_jax.tables.blocks import Blocks, InstanceMemory
from blis_jax.tables.context import Context
from blis_jax.tables.gateways import BeforePools
from blis_jax.tables.joined import Instances, queued_times, with_queued_times
from blis_jax.tables.journeys import Availability, Dismissals, Reservation, Reservations
from blis_jax.tables.requests import Elsewhere, Nodes
from blis_jax.tables.router import (
    AgedView,
    CopiedCaches,
    RouterCounts,
    SeenPrompts,
    View,
    looked_again,
)
from blis_jax.tables.state import Slot, State, kv_fields_read

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.core.groups import Rows


def kv_fields(ctx: Context, state: State) -> tuple[jax.Array, ...]:
    """Return the current values of the KV-cache fields (and CPU-tier fields) that are read, of all instances."""
    rows = ctx.shape.num_instances
    inst = Instances(state, rows)
    used = inst.used_blocks.astype(jnp.float64)
    total = ctx.params.cluster.total_kv_blocks.astype(jnp.float64)
    hits = inst.hits.astype(jnp.float64)
    lookups = hits + inst.misses.astype(jnp.float64)
    hit_rate = exact_quotient(hits, jnp.maximum(lookups, 1.0))
    by_name = dict(zip(KV, (exact_quotient(used, total), total - used, hit_rate), strict=True))
    names = kv_fields_read(ctx.shape, ctx.mechanism)
    if not by_name.keys() >= set(names):
        by_name |= zip(CPU_TIER, _of_cpu_tier(ctx, state), strict=True)
    fields = tuple(by_name[name] for name in names)
    return (jnp.stack(fields),) if fields and ctx.when is branch else fields


def _of_cpu_tier(ctx: Context, state: State) -> tuple[jax.Array, jax.Array]:
    """Return each instance's reload time before its next step, µs, and its share of thrashing reloads."""
    pool = InstanceMemory(state[Blocks].pool[: ctx.shape.num_instances])
    transfer_us = ctx.params.cluster.transfer_us.astype(jnp.float64)
    offloads = jnp.maximum(pool.offloads, 1).astype(jnp.float64)
    thrashing_rate = exact_quotient(pool.thrashing.astype(jnp.float64), offloads)
    return pool.pending_reloads.astype(jnp.float64) * transfer_us, thrashing_rate


def refreshed(
    ctx: Context, state: State, now: jax.Array, last_refresh: jax.Array
) -> tuple[View, jax.Array]:
    """Return the router's view of the instances at `now`, and the time of its last look at KV fields."""
    if isinstance(state.stale, AgedView):
        return _aged(ctx, state, state.stale, now), last_refresh
    interval = ctx.time(ctx.params.cluster.snapshot_refresh_interval_us)
    is_due = (interval <= 0) | (now - last_refresh >= interval)
    seen: View = choose(is_due, View(kv_fields(ctx, state), Parts()), state.stale)
    return seen, jnp.where(is_due, now, last_refresh)


def _aged(ctx: Context, state: State, view: AgedView, now: jax.Array) -> AgedView:
    """Return the view with new values for each instance and each group of signals whose refresh is due."""
    cluster = ctx.params.cluster
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
    parts: list[object] = []
    if CopiedCaches in view:
        parts.append(_copied_caches(ctx, state, now, view[CopiedCaches]))
    kv = choose(sees_kv, kv_fields(ctx, state), view.kv)
    depth = jnp.where(sees_load, queued, view.queue_depth)
    sizes = jnp.where(sees_load, _batch_sizes(ctx, state), view.batch_size)
    if SeenAdapters in view:
        now_loaded = adapters_now(ctx, state, view[SeenAdapters])
        parts.append(choose(sees_load[:, None], now_loaded, view[SeenAdapters]))
    if SeenPrompts in view:
        parts.append(choose(sees_load[:, None], prompts_now(ctx, state), view[SeenPrompts]))
    return AgedView(kv, Parts(*parts), depth, sizes, kv_seen_us, load_seen_us)


def may_be_unrouted(ctx: Context) -> bool:
    """Return whether a request may be rejected because no instance is there when it is to be routed."""
    is_placed = ctx.mechanism.cluster is not None and ctx.mechanism.rules.turns_away
    return is_placed or Elsewhere in ctx.requests


def finds_instance(ctx: Context, state: State, request: jax.Array) -> jax.Array:
    """Return whether the request can be routed now; to be called only if `may_be_unrouted`."""
    if Elsewhere not in ctx.requests:
        return jnp.any(_may_take(ctx, state, request))
    is_here = ~ctx.requests[Elsewhere].is_it[request]
    return is_here & jnp.any(_may_take(ctx, state, request)) if Availability in state else is_here


def _may_take(ctx: Context, state: State, request: jax.Array) -> Bool[Array, "instance"]:
    """Return the active instances, those of the request's pool where there are pools."""
    return ctx.pools.may_take(ctx, state, request, active_instances(ctx, state))


def in_pool(is_active: jax.Array, role: jax.Array, is_decode: jax.Array) -> jax.Array:
    """Return which active instances belong to the decode pool if `is_decode`, else to the prefill pool."""
    other = jnp.where(is_decode, jnp.int32(PREFILL), jnp.int32(DECODE))
    return is_active & (role != other) & (role < ENCODE)


def unless_elsewhere(
    ctx: Context,
    state: State,
    seen: View,
    *decisions: tuple[jax.Array | bool, *tuple[jax.Array, ...]],
) -> View:
    """Return the view after decisions; unchanged, except for the copy of the caches, if no decision reads an instance.

    Each of `decisions` holds whether the decision takes place, then the request concerned; without a request, all
    instances are read.
    """
    if Elsewhere not in ctx.requests:
        return seen
    marks, looks = ctx.requests[Elsewhere].is_it, jnp.array(False)
    for is_made, *request in decisions:
        looks = looks | (is_made & ~marks[request[0]] if request else is_made)
    view: View = choose(looks, seen, state.stale.having(*seen.own.only(CopiedCaches)))
    return view


def _copied_caches(ctx: Context, state: State, now: jax.Array, copy: CopiedCaches) -> CopiedCaches:
    """Return the router's copy of the caches, renewed if it is old enough."""
    delay = ctx.params.cluster.signals.cache_delay_us.astype(jnp.float64)
    time = now.astype(jnp.float64)
    is_due = (delay <= 0) | (time - copy.seen_us >= delay)
    blocks = ctx.when(is_due, lambda: ctx.memory.registered(ctx, state), lambda: copy.blocks)
    return CopiedCaches(blocks, jnp.where(is_due, time, copy.seen_us))


def cached_prompt_blocks(
    copy: CopiedCaches, nodes: Nodes, num_prompt_blocks: jax.Array
) -> Int[Array, "instance"]:
    """Return how many leading blocks of a prompt are in the copy of each cache.

    Contents of this request alone cannot be in a cache before the request has run.
    """
    by_node = jnp.where((nodes.start < num_prompt_blocks)[None, :], copy.blocks[:, nodes.node], 0)
    is_whole = (by_node == nodes.length[None, :]).astype(jnp.int32)
    ones = jnp.ones((by_node.shape[0], 1), jnp.int32)
    reached = jnp.concatenate([ones, jnp.cumprod(is_whole, axis=1)[:, :-1]], axis=1)
    return jnp.sum(by_node * reached, axis=1, dtype=jnp.int32)


def has_ticked(state: State, now: jax.Array) -> jax.Array:
    """Return whether the gateway's queue has ticked in this microsecond: transfers that end in it count as ended after
    the tick. Needs a `BeforePools`, which is there where transfers and a queue are.
    """
    return state[BeforePools].ticked == now


def _queue_depths(ctx: Context, state: State, now: jax.Array) -> Int[Array, "instance"]:
    """Return the number of waiting requests, before every instance event of the microsecond."""
    rows = ctx.shape.num_instances
    times = queued_times(state, rows)
    queued = times < now
    if BeforePools in state:
        comes = (times == now) & comes_with_kv(ctx, state, rows)
        queued = queued | (comes & has_ticked(state, now))
    return jnp.sum(queued, axis=1, dtype=jnp.int32)


def _batch_sizes(ctx: Context, state: State) -> Int[Array, "instance"]:
    inst = Instances(state, ctx.shape.num_instances)
    return inst.num_prefill + inst.num_decode


def num_on_their_way(ctx: Context, state: State, now: jax.Array) -> Int[Array, "instance"]:
    """Count the requests of each instance whose transfer lasts at `now`, which the router does not count."""
    reserved, columns = state[Reservations], Reservation.columns
    instance = lax.iota(jnp.int32, ctx.shape.num_instances)

    def count(so_far: jax.Array, rows: Rows) -> jax.Array:
        """Add to `so_far` the transfers in `rows`, counted by target instance."""
        ends, numbers = rows.take(reserved.times)[:, 0], rows.take(reserved.numbers)
        is_coming = (ends >= now) & (ends < ctx.never) & rows.is_in
        if BeforePools in state:
            is_coming = is_coming & ~((ends == now) & has_ticked(state, now))
        if Dismissals in state:
            is_coming = is_coming & (numbers[:, columns.IS_DROPPED] == 0)
        target = jnp.where(is_coming, numbers[:, columns.TARGET], -1)
        here = target[None, :] == instance[:, None]
        return so_far + jnp.sum(here, axis=1, dtype=jnp.int32)

    return ctx.over(reserved.last_end >= now, count, jnp.zeros_like(instance))


def behind_transfers(ctx: Context, state: State, now: jax.Array, is_it: jax.Array) -> State:
    """Return the state after the transfers that end at `now`, if `is_it`; else unchanged."""
    reserved, rows = state[Reservations], ctx.shape.num_instances + 1
    ends, times = reserved.times, queued_times(state, rows)
    is_over = is_it & (times == now) & comes_with_kv(ctx, state, rows)
    state = with_queued_times(state, jnp.where(is_over, now - 1, times))
    ends = jnp.where(is_it & (ends == now), now - 1, ends)
    return state.having(dataclasses.replace(reserved, times=ends))


def comes_with_kv(ctx: Context, state: State, rows: int) -> Bool[Array, "instance slot"]:
    """Return the slots whose request enters the queue with its KV, as its low rank tells."""
    return state.slot.numbers[Slot.QUEUE_RANK, :rows] < ctx.shape.num_requests


def active_instances(ctx: Context, state: State) -> Bool[Array, "instance"]:
    """Return the instances to which requests may be routed: part of the cluster, and up."""
    if ctx.mechanism.places_instances:
        return state[Availability].is_up == 1  # rows of instances still to be made are not up
    is_there = lax.iota(jnp.int32, ctx.shape.num_instances) < ctx.params.cluster.num_instances
    return is_there & (state[Availability].is_up == 1) if Availability in state else is_there


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
    """Return the router's snapshots at `now`, before every instance event of that microsecond.

    With several gateways they are those of the request's gateway.
    """
    load = Instances(state, ctx.shape.num_instances).load
    batch, queued = _batch_sizes(ctx, state), _queue_depths(ctx, state, now)
    kv = dict(zip(kv_fields_read(ctx.shape, ctx.mechanism), view.fields, strict=True))
    unread = jnp.zeros(load.shape, jnp.float64)  # no policy is shown it
    use, free, hit_rate = (kv.get(name, unread) for name in KV)
    pending_transfer_us, kv_thrashing_rate = map(kv.get, CPU_TIER)
    counts = RouterCounts(batch, queued, load - batch - queued, load)
    if request is not None:
        counts, num_rejected = ctx.gateways.known(ctx, state, now, counts, num_rejected, request)
    load = ctx.pools.load(ctx, state, counts.load, now)
    pending = ctx.mechanism.rules.pending(counts.pending, load)
    counts = view.counted(counts._replace(pending=pending, load=load), ctx.params.cluster)
    return Snapshots(
        effective_load=counts.load,
        queue_depth=counts.queue,
        batch_size=counts.batch,
        num_pending=counts.pending,
        kv_utilization=use,
        free_kv_blocks=free,
        cache_hit_rate=hit_rate,
        prefix_match_blocks=prefix_match_blocks,
        num_rejected=num_rejected,
        cached_prompt_blocks=cached,
        has_adapter=has_adapter(ctx, state, view, request)
        if ctx.mechanism.reads(ADAPTERS)
        else None,
        is_active=active_instances(ctx, state),
        role=ctx.params.cluster.roles,
        pending_transfer_us=pending_transfer_us,
        kv_thrashing_rate=kv_thrashing_rate,
    )
