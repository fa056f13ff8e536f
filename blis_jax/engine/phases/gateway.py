"""The gateway's side of a scan step: admit the next request, and route the next admitted one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, choose
from blis_jax.core.exact import full_blocks
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts
from blis_jax.core.types import LAST, NO_DRAW, NO_REQUEST, REJECTED, RequestView
from blis_jax.engine.calendar import later
from blis_jax.engine.phases.decisions import Decisions, Routed, no_decisions
from blis_jax.engine.phases.departures.oversized import is_unservable
from blis_jax.engine.phases.departures.pools import is_over_budget
from blis_jax.engine.phases.policy_calls import admit, request_view, route
from blis_jax.engine.phases.router_view import handed_over, with_asked_signals
from blis_jax.engine.phases.snapshot import (
    cached_prompt_blocks,
    finds_instance,
    may_be_unrouted,
    refreshed,
    snapshots,
    unless_elsewhere,
)
from blis_jax.latency.blackbox import queueing_time
from blis_jax.policies.contexts import GatewayContext, LeadingContents
from blis_jax.policies.reading import MATCH
from blis_jax.policies.routing.pickers import first_where
from blis_jax.policies.seeds import RandomSource
from blis_jax.prefix_index import router_index
from blis_jax.prefix_index.news import unless_lost
from blis_jax.tables.context import Context, SlotRows, decision_key, failing, row, waking_time
from blis_jax.tables.gateways import States
from blis_jax.tables.joined import instance_of, lane_of, place_of
from blis_jax.tables.journeys import Journey, Journeys
from blis_jax.tables.requests import Elsewhere, Nodes, RequestDeadlines, nodes_of
from blis_jax.tables.router import CopiedCaches, RouterIndex, View
from blis_jax.tables.state import Resident, State
from blis_jax.tables.writes import HandedOver


def _number(ctx: Context, state: State, request: jax.Array) -> jax.Array:
    """Return the number that seeds a request's random draws; a request that has left an instance gets a new one."""
    if Journeys not in state:
        return request
    has_left = as_int(state[Journeys].of(request).came_from >= 0)
    return request + jnp.int32(ctx.shape.num_requests) * has_left


class Asking(NamedTuple):
    """A request for the gateway's policies to decide on, the time, and the router's view of the instances."""

    request: jax.Array
    now: jax.Array
    seen: View  # what the router has last seen


def _context(
    ctx: Context,
    state: State,
    asking: Asking,
    source: RandomSource,
    matched: jax.Array,
    rejected: jax.Array,
    picked: jax.Array | None = None,
) -> GatewayContext:
    """Return the context that the gateway's policies read to decide on a request."""
    request, now, seen = asking
    view = request_view(ctx, request)
    more: dict[str, Any] = {}
    if ctx.mechanism.reads("contents"):
        more["contents"] = LeadingContents(*nodes_of(ctx.requests, request))
    num_blocks = full_blocks(view.input_len, ctx.shape.block_size)
    cached = None
    if CopiedCaches in seen:
        nodes_ = nodes_of(ctx.requests, request)
        cached = cached_prompt_blocks(seen[CopiedCaches], nodes_, num_blocks)
    journeys = [state[Journeys].of(request)] if Journeys in state else []
    context = GatewayContext(
        request=view,
        num_prompt_blocks=num_blocks,
        prompt_key=ctx.request(request).prompt_key,
        snapshots=snapshots(ctx, state, now, seen, matched, rejected, request, cached),
        now_us=now,
        key=decision_key(ctx, source, _number(ctx, state, request)),
        run_key=decision_key(ctx, RandomSource.RUN),
        picked=picked,
        **_travelled(journeys),
        block_size=jnp.int32(ctx.shape.block_size),
        draws=ctx.params.policy.draws,
        **more,
    )
    if Elsewhere in ctx.requests:
        context = _where_its_model_is(ctx, context, request)
    context = with_asked_signals(ctx, state, context, seen, request)
    return ctx.pools.seen(ctx, state, context, source, request)


def _travelled(journeys: Sequence[Journey]) -> dict[str, jax.Array]:
    return {
        name: value
        for journey in journeys
        for name, value in (("came_from", journey.came_from), ("computed_tokens", journey.computed))
    }


def _where_its_model_is(
    ctx: Context, context: GatewayContext, request: jax.Array
) -> GatewayContext:
    """Return the context with no instance active if no instance has the request's model."""
    seen = context.snapshots
    is_active = seen.is_active & ~ctx.requests[Elsewhere].is_it[request]
    return dataclasses.replace(context, snapshots=dataclasses.replace(seen, is_active=is_active))


def admission(
    ctx: Context, state: State, asking: Asking, rejected: jax.Array
) -> tuple[jax.Array, States]:
    """Decide whether to admit the request after `rejected` rejections; return that and the policies' states."""
    candidate, now = asking.request, asking.now
    matched = jnp.zeros((ctx.shape.num_instances,), jnp.int32)
    if ctx.mechanism.admission.reads(MATCH):
        nodes = nodes_of(ctx.requests, candidate)
        matched = _matched(ctx, state, candidate, nodes, now)[1]
    picked = _would_be_routed_to(ctx, state, asking)
    context = _context(ctx, state, asking, RandomSource.ADMISSION, matched, rejected, picked)
    is_admitted, states = admit(ctx, ctx.gateways.own_states(state.gateway, candidate), context)
    gateway = ctx.gateways.with_own(state.gateway, states, candidate)
    if ctx.mechanism.has_budgets:  # the policy is not asked about a tenant over its share
        is_over = is_over_budget(ctx, state, candidate, now)
        is_admitted = is_admitted & ~is_over
        gateway = choose(is_over, state.gateway, gateway)
    return is_admitted, gateway


def decide(ctx: Context, state: State, admit_time: jax.Array, route_time: jax.Array) -> Decisions:
    """Admit the next request if its admission is due, and route the next admitted one if its routing is due.

    With zero latencies all arrivals of one microsecond pass admission before the first is routed.
    """
    lane = lane_of(ctx, state)
    is_admit = admit_time <= route_time
    now = jnp.where(is_admit, admit_time, route_time)
    seen, last_refresh = refreshed(ctx, state, now, lane.last_refresh)
    candidate, rejected = lane.next_admit, lane.num_rejected
    is_admitted, gateway = admission(ctx, state, Asking(candidate, now, seen), rejected)
    is_rejected = is_admit & ~is_admitted
    gateway = choose(is_admit, gateway, state.gateway)
    next_admit = candidate + as_int(is_admit)
    following = later(
        ctx, ctx.requests.arrival[next_admit], ctx.params.cluster.admission_latency_us
    )
    is_turn = ~is_admit | ((route_time == now) & (route_time < following))
    request = lane.next_route
    was_rejected = (place_of(state, request) == REJECTED) | (is_rejected & (request == candidate))
    is_routed = is_turn & ~was_rejected
    is_seen = is_admit | is_routed
    decided = (is_admit, candidate), (is_routed, request)
    went_back = now < lane.last_event
    turned_away = jnp.where(is_rejected, candidate, ctx.spare_request)
    base = dataclasses.replace(
        no_decisions(ctx, state),
        lane=lane.replace(
            next_admit=next_admit,
            next_route=request + as_int(is_turn),
            num_rejected=rejected + as_int(is_rejected),
            invariant_failures=lane.invariant_failures + as_int(went_back),
            last_event=now,
            last_refresh=jnp.where(is_seen, last_refresh, lane.last_refresh),
        ),
        stale=choose(is_seen, unless_elsewhere(ctx, state, seen, *decided), state.stale),
        gateway=gateway,
    )
    base = dataclasses.replace(base, where=base.where.replace(turned_away=turned_away))
    asking = Asking(request, now, seen)
    return ctx.when(is_routed, lambda: _routed(ctx, state, base, asking), lambda: base)


def decide_again(ctx: Context, state: State, request: jax.Array, now: jax.Array) -> Decisions:
    """Route a request that has left an instance; admission has accepted it before."""
    lane = lane_of(ctx, state)
    seen, last_refresh = refreshed(ctx, state, now, lane.last_refresh)
    base = dataclasses.replace(
        no_decisions(ctx, state),
        lane=lane.replace(last_event=now, last_refresh=last_refresh),
        stale=unless_elsewhere(ctx, state, seen, (True, request)),
    )
    return _routed(ctx, state, base, Asking(request, now, seen))


def _routed(ctx: Context, state: State, base: Decisions, asking: Asking) -> Decisions:
    """Route the request; it is unrouted if no instance has its model, or none is up and it does not wait for one."""

    def route_it() -> Decisions:
        return _route(ctx, state, base, asking)

    if not may_be_unrouted(ctx):
        return route_it()
    nowhere = dataclasses.replace(base, where=base.where.replace(routed=asking.request))
    return ctx.when(finds_instance(ctx, state, asking.request), route_it, lambda: nowhere)


def _route(ctx: Context, state: State, base: Decisions, asking: Asking) -> Decisions:
    request, question = asking.request, _question(ctx, state, asking, base.lane.num_rejected)
    context = question.context
    chosen, is_there, is_drawn, gateway = _choice(ctx, state, base.gateway, request, context)
    routed = Routed(request, chosen, asking.now, context)
    placed = _place(ctx, state, base, routed)
    gateway = ctx.pools.encoded(ctx, state, gateway, request, context)
    placed = ctx.pools.placed(ctx, state, base, placed, routed)
    outcome = failing(placed.lane.outcome, ~is_there, Outcome.NO_SUCH_INSTANCE)
    if ctx.mechanism.reads("draws"):
        outcome = failing(outcome, ~is_drawn, Outcome.DRAWS_EXHAUSTED)
    lane = placed.lane.replace(outcome=outcome)
    placed = dataclasses.replace(placed, gateway=gateway, lane=lane)
    if HandedOver in placed:
        placed = placed.having(handed_over(ctx, context, chosen))
    if ctx.mechanism.is_precise or RouterIndex not in question.known:
        return placed
    router = question.known[RouterIndex]
    prompt = router_index.PromptBlocks(request, question.nodes, context.num_prompt_blocks)
    done = router_index.touch(ctx, router, prompt, chosen, asking.now)
    done = unless_lost(ctx, router, done, _number(ctx, state, request))
    lane = placed.lane
    lane = lane.replace(outcome=router_index.outcome_of_touch(ctx, lane.outcome, done))
    return dataclasses.replace(placed.having(done), lane=lane)


class _Question(NamedTuple):
    """A routing question: the context, and the shared contents of the prompt."""

    context: GatewayContext
    nodes: Nodes
    known: Parts  # the router's index as it was looked at, if there is one


def _question(ctx: Context, state: State, asking: Asking, rejected: jax.Array) -> _Question:
    nodes = nodes_of(ctx.requests, asking.request)
    index, matched = _matched(ctx, state, asking.request, nodes, asking.now)
    context = _context(ctx, state, asking, RandomSource.ROUTING, matched, rejected)
    return _Question(context, nodes, index)


def _matched(
    ctx: Context, state: State, request: jax.Array, nodes: Nodes, now: jax.Array
) -> tuple[Parts, jax.Array]:
    """Return the router's index, if there is one, and how many leading prompt blocks it has `[instance]`."""
    if RouterIndex not in state:
        return Parts(), jnp.zeros((ctx.shape.num_instances,), jnp.int32)
    router = state[RouterIndex]
    if not ctx.mechanism.is_precise:
        router = router_index.trimmed(ctx, router)
    num_blocks = full_blocks(ctx.request(request).input_len, ctx.shape.block_size)
    prompt = router_index.PromptBlocks(request, nodes, num_blocks)
    return Parts(router), router_index.matched_blocks(ctx, router, prompt, now)


def _choice(
    ctx: Context, state: State, gateway: States, request: jax.Array, context: GatewayContext
) -> tuple[jax.Array, jax.Array, jax.Array, States]:
    """Return the instance for a request, whether it was active, whether draws sufficed, and the policies' states.

    If the router's choice is not active, the first active instance is returned.
    """
    states = ctx.gateways.own_states(gateway, request)
    chosen, states = route(ctx, states, context, _number(ctx, state, request))
    gateway = ctx.gateways.with_own(gateway, states, request)
    is_active = context.snapshots.is_active
    is_there = jnp.any(is_active & (lax.iota(jnp.int32, ctx.shape.num_instances) == chosen))
    instance = jnp.where(is_there, chosen, first_where(is_active))
    is_drawn = chosen != NO_DRAW if ctx.mechanism.reads("draws") else is_there
    return instance, is_there, is_drawn, gateway


def _would_be_routed_to(ctx: Context, state: State, asking: Asking) -> jax.Array | None:
    """Return the instance that the router would choose now, without a change of any policy's state."""
    if not ctx.mechanism.admission.reads("picked"):
        return None
    context = _question(ctx, state, asking, lane_of(ctx, state).num_rejected).context
    return _choice(ctx, state, state.gateway, asking.request, context)[0]


def _unserved(request: jax.Array, view: RequestView, after: jax.Array) -> dict[str, jax.Array]:
    """Return the slot fields of a request that has not been served yet."""
    return {
        "request": request,
        "order": jnp.int32(LAST),
        "finish": jnp.int32(LAST),
        "alloc_offset": jnp.int32(0),
        "slo_class": view.slo_class,
        "input_len": view.input_len,
        "tenant": view.tenant,
        "after_steps": after,
        "arrival": view.arrival_us,
    }


def _place(ctx: Context, state: State, base: Decisions, routed: Routed) -> Decisions:
    """Put the request into a free slot of its instance, pending until its queueing time has passed."""
    request, chosen, now, context = routed
    expected = context.snapshots.prefix_match_blocks[chosen]
    cluster = ctx.params.cluster
    slots = SlotRows(state, chosen)
    view = ctx.memory.preempted.with_kept(state, request, context.request)
    after, input_len = ctx.request(request).after_steps, view.input_len
    free = first_where(slots.request == NO_REQUEST)
    delay = ctx.pools.delay(context, queueing_time(row(cluster.alpha, chosen), input_len))
    queued = now + ctx.truncated(delay)
    is_tie = jnp.any(slots.queued == queued) & (after < 0)
    is_oversized = is_unservable(ctx, state, request, chosen)
    if RequestDeadlines in ctx.requests:  # it leaves the same way
        is_oversized = is_oversized | (ctx.requests[RequestDeadlines].at[request] <= queued)
    inst = instance_of(ctx, state, chosen)
    starts = (inst.is_idle == 1) | is_oversized
    event, busy = inst.event, inst.busy_until
    acts = jnp.where(is_oversized, queued, waking_time(ctx, queued, busy))
    event = jnp.where(starts, jnp.minimum(event, acts), event)
    tie_rank, queue_rank = ctx.pools.ranks(ctx, request, context)
    outcome = base.lane.outcome
    outcome = jnp.where(free >= LAST, jnp.int32(Outcome.SLOTS_FULL), outcome)
    is_beyond = ctx.is_beyond(now, delay)
    outcome = jnp.where(is_beyond, jnp.int32(Outcome.CLOCK_OVERFLOW), outcome)
    ties = base.lane.num_open_ties + as_int(is_tie)
    values = {
        **_unserved(request, view, after),
        "tie_rank": tie_rank,
        "queue_rank": queue_rank,
        "oversized": is_oversized,
        "expected_blocks": expected,
        "queued": queued,
    }
    slot = ctx.existing_slot(free)
    return dataclasses.replace(
        base,
        lane=base.lane.replace(outcome=outcome, num_open_ties=ties),
        where=base.where.replace(routed=request, instance=chosen, slot=slot),
        slot=Resident.make(ctx.clock, **values),
        inst=inst.replace(
            load=inst.load + 1,
            num_oversized=inst.num_oversized + as_int(is_oversized),
            event=event,
        ),
    )
