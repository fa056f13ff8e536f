"""What the router may see of the instances, and how stale it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.branching import branch
from blis_jax.columns import choose
from blis_jax.context import Context, row
from blis_jax.exact import exact_quotient
from blis_jax.joined import queued_times
from blis_jax.state import Instance, Nodes, State
from blis_jax.types import Snapshots

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

KvFields = Any  # see State.stale
ROUTER_INDEX_CAPACITY = 10_000  # blocks per instance in the router's prefix index (BLIS default)


def kv_fields(ctx: Context, state: State) -> KvFields:
    """KV utilisation, free blocks and hit rate of every instance now."""
    rows = ctx.shape.num_instances
    inst = Instance(state.inst[:rows])
    used = inst.used_blocks.astype(jnp.float64)
    total = ctx.params.cluster.total_kv_blocks.astype(jnp.float64)
    hits = inst.hits.astype(jnp.float64)
    lookups = hits + inst.misses.astype(jnp.float64)
    hit_rate = exact_quotient(hits, jnp.maximum(lookups, 1.0))
    fields = exact_quotient(used, total), total - used, hit_rate
    return jnp.stack(fields) if ctx.when is branch else fields


def refreshed(
    ctx: Context, state: State, now: jax.Array, last_refresh: jax.Array
) -> tuple[KvFields, jax.Array]:
    """KV fields as the router reads them at `now`, and when they were last refreshed."""
    interval = ctx.time(ctx.params.cluster.snapshot_refresh_interval_us)
    is_due = (interval <= 0) | (now - last_refresh >= interval)
    fields = choose(is_due, kv_fields(ctx, state), state.stale)
    return fields, jnp.where(is_due, now, last_refresh)


def active_instances(ctx: Context, state: State) -> Bool[Array, "instance"]:
    """Instances that requests may be routed to: part of the cluster, and up."""
    is_there = lax.iota(jnp.int32, ctx.shape.num_instances) < ctx.params.cluster.num_instances
    return is_there if state.movement is None else is_there & (state.movement.is_up == 1)


def matched_blocks(
    ctx: Context,
    state: State,
    nodes: Nodes,
    num_prompt_blocks: jax.Array,
) -> Int[Array, "instance"]:
    """Leading prompt blocks in the router's index of every instance.

    The index holds the most recently touched blocks up to its capacity, and a touch goes through a node
    from its first block on; so a node counts iff its first block is still within that distance.
    """
    router = state.router
    path, start, length = nodes
    is_prompt = (start < num_prompt_blocks) & (length > 0)
    if ctx.shape.has_router_eviction:
        return _matched_of_latest(ctx, state, path, length, is_prompt)
    present = (router.touched[path] > 0) & is_prompt[:, None]
    reached = jnp.cumprod(present.astype(jnp.int32), axis=0)
    return jnp.sum(reached * length[:, None], axis=0, dtype=jnp.int32)


def _matched_of_latest(
    ctx: Context,
    state: State,
    path: Int[Array, "path"],
    length: Int[Array, "path"],
    is_prompt: Bool[Array, "path"],
) -> Int[Array, "instance"]:
    """The same where blocks are evicted: node by node, for most paths are short and most matches shorter."""
    router, depth = state.router, jnp.int32(path.shape[0])

    def goes_on(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        place, reached, _ = carry
        return (place < depth) & is_prompt[jnp.minimum(place, depth - 1)] & jnp.any(reached)

    def look(
        carry: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One node of the path on every instance that has all nodes before it."""
        place, reached, matched = carry
        node, blocks = path[place], length[place]
        touched = row(router.touched, node)
        is_later = router.touched > touched[None, :]
        between = jnp.where(is_later, ctx.requests.node_blocks[:, None], 0)
        distance = router.num_private - row(router.private_at, node)
        distance = distance + jnp.sum(between, axis=0, dtype=jnp.int32)
        present = (touched > 0) & (distance + (blocks - 1) < ROUTER_INDEX_CAPACITY)
        reached = reached & present
        return place + 1, reached, matched + jnp.where(reached, blocks, 0)

    nothing = jnp.zeros_like(router.num_private)
    start = (jnp.int32(0), nothing == 0, nothing)
    return lax.while_loop(goes_on, look, start)[2]


def snapshots(
    ctx: Context,
    state: State,
    now: jax.Array,
    fields: KvFields,
    prefix_match_blocks: Int[Array, "instance"],
    num_rejected: jax.Array,
) -> Snapshots:
    """The router's view at `now`, which is before every instance event of that microsecond."""
    rows = ctx.shape.num_instances
    inst = Instance(state.inst[:rows])
    load, batch = inst.load, inst.num_prefill + inst.num_decode
    queued = jnp.sum(queued_times(state, rows) < now, axis=1, dtype=jnp.int32)
    return Snapshots(
        effective_load=load,
        queue_depth=queued,
        batch_size=batch,
        num_pending=load - batch - queued,
        kv_utilization=fields[0],
        free_kv_blocks=fields[1],
        cache_hit_rate=fields[2],
        prefix_match_blocks=prefix_match_blocks,
        num_rejected=num_rejected,
        is_active=active_instances(ctx, state),
        role=ctx.params.cluster.roles,
    )
