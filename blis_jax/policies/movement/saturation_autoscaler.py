"""BLIS's autoscaler of August 2026: it reads signals, decides, waits, then acts; and instances that take time to load.

Source: `sim/cluster/autoscaler.go`, `infra_config.go` and `infra_lifecycle_event.go`. At every tick the KV caches and
queues, as the router sees them, decide how many instances are wanted. A wanted change that has lasted for its window is
carried out after the scrape delay, see placement.py. A new instance loads, then accepts requests.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from blis_jax.core.exact import exact_product
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape
from blis_jax.core.views import FleetView
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contexts import ClusterChange, ClusterContext
from blis_jax.policies.contract import cluster_policy
from blis_jax.policies.movement.placement import (
    Placed,
    Replicas,
    Thresholds,
    Wanted,
    first_ones,
    freed,
    is_loading,
    is_up,
    nobody,
    wanted,
    with_fewer,
    with_more,
)
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


@pytree
class SaturationAutoscalerParams:
    """BLIS's `autoscaler` and `instance_lifecycle`, under its names."""

    interval_us: Float[Array, ""] = number(
        15e6, "µs", "time between two ticks; 0: no ticks, instances only load", low=0
    )
    scale_up_stabilization_window_us: Float[Array, ""] = number(
        0.0, "µs", "time for which more instances must be wanted", low=0, search=(0, 6e7)
    )
    scale_down_stabilization_window_us: Float[Array, ""] = number(
        0.0, "µs", "time for which fewer instances must be wanted", low=0, search=(0, 6e8)
    )
    scrape_delay_mean_s: Float[Array, ""] = number(
        0.0, "s", "mean time from a tick's wish until it is carried out", low=0
    )
    scrape_delay_stddev_s: Float[Array, ""] = number(
        0.0, "s", "its standard deviation; what is below 0 is 0", low=0
    )
    kv_cache_threshold: Float[Array, ""] = number(
        0.8, "", "share of a KV cache that counts as supply", low=0, high=1, excludes_low=True, search=(0.01, 1)
    )  # fmt: skip
    scale_up_threshold: Float[Array, ""] = number(
        0.8, "", "demand ÷ supply above which there are too few instances",
        low=0, excludes_low=True, search=(0.1, 1),
    )  # fmt: skip
    scale_down_boundary: Float[Array, ""] = number(
        0.4, "", "demand ÷ supply of the others below which some may go",
        low=0, excludes_low=True, search=(0.05, 0.9),
    )  # fmt: skip
    avg_input_tokens: Float[Array, ""] = number(
        512.0, "tokens", "tokens that a waiting request counts for",
        low=0, excludes_low=True, search=(16, 8192), prior="log-uniform",
    )  # fmt: skip
    loading_delay_mean_s: Float[Array, ""] = number(
        0.0, "s", "mean time that a new instance loads", low=0, search=(0, 600)
    )
    loading_delay_stddev_s: Float[Array, ""] = number(
        0.0, "s", "its standard deviation; what is below 0 is 0", low=0
    )
    warm_start: Float[Array, ""] = number(
        0, "", "1: the first instances on nodes take requests from time 0 on; 0: they load, too",
        low=0, high=1, is_whole=True,
    )  # fmt: skip


class Changes(NamedTuple):
    """The changes that have lasted for their windows, in the order of their ticks; carried-out ones included."""

    due_us: Float[Array, "change"]  # infinity: carried out, or not there yet
    change: Int[Array, "change"]
    kind: Int[Array, "change"]
    num_made: Int[Array, ""]


@pytree
class SaturationState:
    """The autoscaler's state between its ticks; times in whole µs."""

    has_begun: Bool[Array, ""]
    acted_us: Float[Array, ""]
    tick_us: Float[Array, ""]  # infinity: there is no further one
    up_since_us: Float[Array, ""]  # more have been wanted since then, infinity: they are not
    down_since_us: Float[Array, ""]
    changes: Changes
    placed: Placed


def not_begun(params: SaturationAutoscalerParams, shape: EngineShape) -> SaturationState:
    """Return the state before time 0, at which the initial instances are added."""
    size, never = shape.num_changes, jnp.float64(jnp.inf)
    nothing = jnp.zeros((size,), jnp.int32)
    return SaturationState(
        has_begun=jnp.array(False),
        acted_us=jnp.float64(-1.0),
        tick_us=never,
        up_since_us=never,
        down_since_us=never,
        changes=Changes(jnp.full((size,), never), nothing, nothing, jnp.int32(0)),
        placed=nobody(shape.num_instances),
    )


def _loaded_us(state: SaturationState) -> jax.Array:
    """Return the time at which the next instance has loaded, µs."""
    ready = state.placed.ready_us
    return jnp.min(jnp.where(ready > state.acted_us, ready, jnp.inf))


def _acts_us(state: SaturationState) -> jax.Array:
    """Return the time of the next tick or of the next change, whichever is earlier, µs."""
    return jnp.minimum(state.tick_us, jnp.min(state.changes.due_us))


def next_time(params: SaturationAutoscalerParams, state: SaturationState) -> jax.Array:
    """Return the time of the next event: the beginning, the end of a loading, a tick or a change."""
    earliest = jnp.minimum(_loaded_us(state), _acts_us(state))
    return jnp.where(state.has_begun, earliest, 0.0)


def comes_last(params: SaturationAutoscalerParams, state: SaturationState) -> jax.Array:
    """Return whether the next event comes after everything else that the gateway does at its time: a tick or a change
    does, the end of a loading does not.
    """
    return state.has_begun & (_acts_us(state) < _loaded_us(state))


def has_spread(params: SaturationAutoscalerParams) -> bool:
    """Return whether any delay has a standard deviation above 0, so that it is drawn at random."""
    return bool(params.scrape_delay_stddev_s > 0) or bool(params.loading_delay_stddev_s > 0)


@cluster_policy(
    SaturationAutoscalerParams,
    not_begun,
    next_time=next_time,
    comes_last=comes_last,
    is_random=has_spread,
)
def saturation_autoscaler(
    params: SaturationAutoscalerParams, state: SaturationState, context: ClusterContext
) -> tuple[ClusterChange, SaturationState]:
    """Take more instances where tokens in KV caches and queues ask for them, fewer where the others could carry all."""
    now, view = context.now_us.astype(jnp.float64), context.fleet
    acts = state.has_begun & (_acts_us(state) < _loaded_us(state))
    ticks = acts & (state.tick_us <= jnp.min(state.changes.due_us))
    changes = acts & ~ticks
    begun = _begun(params, state, view)
    ticked, is_full = _ticked(params, state, context, now)
    changed, failure = _changed(params, state, view, now)
    # if neither holds, an instance has finished loading, which only changes `acted_us`
    after = _one_of(
        ~state.has_begun, begun, _one_of(ticks, ticked, _one_of(changes, changed, state))
    )
    after = dataclasses.replace(after, acted_us=now)
    outcome = jnp.where(ticks & is_full, jnp.int32(Outcome.CHANGES_FULL), 0)
    outcome = jnp.where(changes, failure, outcome)
    change = ClusterChange(
        is_up=is_up(after.placed, now),
        queue_leaves=jnp.zeros_like(after.placed.is_there),
        delay_us=0.0,
        holds=is_loading(after.placed, now),
        looked=ticks,
        ordered=after.placed.order,
        outcome=outcome,
    )
    return change, after


def _one_of(
    is_first: jax.Array, saturation_state: SaturationState, other: SaturationState
) -> SaturationState:
    # `core.columns.choose` would load JAX, which a list of policies does without
    return jax.tree.map(lambda a, b: jnp.where(is_first, a, b), saturation_state, other)


def _delay_us(mean_s: jax.Array, stddev_s: jax.Array, draw: jax.Array) -> jax.Array:
    """Return a normally distributed delay in whole µs; a negative one is 0."""
    drawn = jnp.maximum(exact_product(draw, stddev_s) + mean_s, 0.0)
    seconds = jnp.where(stddev_s > 0, drawn, mean_s)
    return jnp.floor(exact_product(seconds, jnp.float64(1e6)))


def _loading_us(params: SaturationAutoscalerParams, view: FleetView) -> jax.Array:
    """Return each row's loading time in µs `[instance]`; initial instances that load use the first draws."""
    loads_first = view.params.has_nodes & (params.warm_start == 0)
    place = jnp.arange(view.params.loading_draws.shape[0], dtype=jnp.int32)
    place = jnp.where(loads_first, place, jnp.maximum(place - view.params.num_first, 0))
    draw = view.params.loading_draws[place]
    return _delay_us(params.loading_delay_mean_s, params.loading_delay_stddev_s, draw)


def _begun(
    params: SaturationAutoscalerParams, state: SaturationState, view: FleetView
) -> SaturationState:
    loads = view.params.has_nodes & (params.warm_start == 0)
    delay_us = jnp.where(loads, _loading_us(params, view), 0.0)
    return dataclasses.replace(
        state,
        has_begun=jnp.array(True),
        tick_us=jnp.where(params.interval_us > 0, 0.0, jnp.inf),
        placed=first_ones(view.params, delay_us),
    )


def _ticked(
    params: SaturationAutoscalerParams,
    state: SaturationState,
    context: ClusterContext,
    now: jax.Array,
) -> tuple[SaturationState, jax.Array]:
    """Return the state after a tick, with a change put into the table if it has lasted; and whether the table is
    full.
    """
    wish = _wish(params, state, context, now)
    changes, fleet = state.changes, context.fleet.params
    grows, shrinks = wish.change > 0, wish.change < 0
    up, up_since = _lasting(grows, state.up_since_us, params.scale_up_stabilization_window_us, now)
    down, down_since = _lasting(
        shrinks, state.down_since_us, params.scale_down_stabilization_window_us, now
    )
    passes = up | down
    at = jnp.minimum(changes.num_made, changes.due_us.shape[0] - 1)
    draw = fleet.scrape_draws[jnp.minimum(at, fleet.scrape_draws.shape[0] - 1)]
    delay = _delay_us(params.scrape_delay_mean_s, params.scrape_delay_stddev_s, draw)

    def put(table: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(passes, table.at[at].set(value), table)

    # without a horizon, ticks end once no request is in flight or still to come
    in_flight = jnp.sum(context.snapshots.num_pending)
    is_last = fleet.is_endless & ~context.fleet.has_more & (in_flight == 0)
    following = now + jnp.floor(params.interval_us)
    after = dataclasses.replace(
        state,
        tick_us=jnp.where(is_last, jnp.inf, following),
        up_since_us=up_since,
        down_since_us=down_since,
        changes=Changes(
            put(changes.due_us, now + delay),
            put(changes.change, wish.change),
            put(changes.kind, wish.kind),
            changes.num_made + passes.astype(jnp.int32),
        ),
    )
    return after, passes & (changes.num_made >= changes.due_us.shape[0])


def _wish(
    params: SaturationAutoscalerParams,
    state: SaturationState,
    context: ClusterContext,
    now: jax.Array,
) -> Wanted:
    """Return the wanted change that the optimizer computes from the router's signals."""
    seen, view = context.snapshots, context.fleet
    size, total = view.block_size.astype(jnp.float64), view.total_kv_blocks.astype(jnp.float64)
    # before the first look all is 0; then some blocks are used or some are free
    has_looked = (seen.free_kv_blocks > 0) | (seen.kv_utilization > 0)
    used = jnp.where(has_looked, total - seen.free_kv_blocks, 0.0)
    waiting = exact_product(seen.queue_depth.astype(jnp.float64), params.avg_input_tokens)
    capacity = exact_product(total, size)
    pending = jnp.sum(jnp.where(is_loading(state.placed, now), capacity, 0.0))
    replicas = Replicas(
        is_seen=is_up(state.placed, now) & has_looked,
        kind=view.params.row_kind,
        capacity=capacity,
        demand=exact_product(used, size) + waiting,
        pending=pending,
    )
    limits = Thresholds(
        params.kv_cache_threshold, params.scale_up_threshold, params.scale_down_boundary
    )
    return wanted(replicas, limits, view.params.rank_up, view.params.rank_down)


def _lasting(
    is_wanted: jax.Array, since_us: jax.Array, window_us: jax.Array, now: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return whether a wanted change has lasted for its window, and since when; an interruption restarts the window."""
    is_new = jnp.isinf(since_us)
    lasts_us = jnp.where(is_new, 0.0, now - jnp.where(is_new, now, since_us))
    is_early = (is_new & (window_us > 0)) | (lasts_us < jnp.floor(window_us))
    passes = is_wanted & ~is_early
    since = jnp.where(is_new, now, since_us)
    return passes, jnp.where(is_wanted & ~passes, since, jnp.inf)


def _changed(
    params: SaturationAutoscalerParams, state: SaturationState, view: FleetView, now: jax.Array
) -> tuple[SaturationState, jax.Array]:
    """Return the state after the due change, and the outcome: 0, or why the run ends, such as too few rows."""
    changes = state.changes
    at = jnp.argmin(changes.due_us)
    change, kind = changes.change[at], changes.kind[at]
    placed = freed(state.placed, view, now)
    more, outcome = with_more(placed, view.params, kind, change, now, _loading_us(params, view))
    fewer = with_fewer(more, view, kind, -change, now)
    due = changes.due_us.at[at].set(jnp.inf)
    return dataclasses.replace(state, placed=fewer, changes=changes._replace(due_us=due)), outcome
