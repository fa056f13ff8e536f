"""The event sources of a program, among them the source that a user defines, see `policies.event_source`."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.types import EngineShape, Mechanism
from blis_jax.engine.calendar import ClusterSource, Due, EventKind, Offer, Outlook, Sources
from blis_jax.engine.phases.departures.giving_up import give_up
from blis_jax.engine.sources.adapters import AdapterLoads
from blis_jax.engine.sources.cluster import (
    ChangeSource,
    Drops,
    Leaving,
    MoveSource,
    Placements,
    Stopping,
)
from blis_jax.engine.sources.drafts import Drafts
from blis_jax.engine.sources.gateway import (
    AllCompletions,
    Completions,
    DeadlineSource,
    Evictions,
    Gateway,
    IndexNews,
    LateIndexNews,
    QueuedGateway,
)
from blis_jax.engine.sources.steps import (
    BlockMoves,
    EarlyExits,
    Freeing,
    HandOvers,
    OffloadTiers,
    StepSource,
    Storing,
)
from blis_jax.engine.writing import no_writes
from blis_jax.policies.contexts import Happening, SourceContext
from blis_jax.policies.contract import PolicyStates
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.adapters import RequestAdapters
from blis_jax.tables.context import Context, decision_key
from blis_jax.tables.joined import Instances, lane_of, places_of
from blis_jax.tables.journeys import ExitWrite
from blis_jax.tables.requests import RequestDeadlines, Requests
from blis_jax.tables.state import State
from blis_jax.tables.writes import Writes


def sources_of(shape: EngineShape, mechanism: Mechanism, requests: Requests) -> Sources:
    """Return the sources that a program needs.

    If several sources take an event, the last of them acts; the first of the cluster and the first of the instances
    take the rest.
    """
    has, gives_up = mechanism, RequestDeadlines in requests
    has_exits = gives_up or has.leaves_early
    is_late = has.is_precise and has.delays_index
    frees = shape.has_mirror and has_exits
    used = (
        (QueuedGateway if has.has_queue else Gateway, True),
        (Evictions, has.evicts_in_flight),
        (UsersEvents, has.source is not None),
        (MoveSource, has.moves_requests),
        (Drops, has.reserves_decode and has.places_instances),
        (ChangeSource, has.cluster is not None),
        (Stopping, has.cluster is not None),
        (Leaving, has.cluster is not None),
        (Placements, has.places_instances),
        (DeadlineSource, gives_up),
        (AdapterLoads, bool(has.num_adapters) and RequestAdapters in requests),
        (OffloadTiers, has.has_offload_tiers),
        (Drafts, has.num_drafts > 0),
        (EarlyExits, has_exits),
        (Freeing, frees and not has.reserves_decode),
        (Storing, has.reserves_decode),
        (HandOvers, has.hand_over is not None),
        (LateIndexNews if is_late else IndexNews, has.is_precise),
        (AllCompletions if has.source is not None else Completions, has.is_told_at_gateway),
        (BlockMoves, shape.num_blocks > 0),
    )
    first, *others = (source() for source, is_used in used if is_used)
    return Sources((first, StepSource(), *others), tuple(others))


class UsersEvents(ClusterSource):
    """A user's source, called when its next time has come, before all other events at that time."""

    kinds = (EventKind.SOURCE,)

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the source's next time; the offer is endless."""
        ctx, (policy, place) = look.ctx, look.ctx.mechanism.at_gateway("source")
        assert policy.next_time is not None  # every source says when
        time = policy.next_time(ctx.params.policy.source, look.state.gateway[place])
        time = jnp.asarray(time, jnp.float64)
        is_never = ~(time < ctx.never.astype(jnp.float64))
        on_clock = jnp.where(is_never, ctx.never, ctx.truncated(jnp.where(is_never, 0.0, time)))
        # not in the past, as the calendar never goes back
        on_clock = jnp.maximum(on_clock, look.lane.last_event)
        return (Offer(EventKind.SOURCE, (on_clock,), is_endless=True),)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the source's new state, and the departure of the request that it gives up, if any."""
        policy, place = ctx.mechanism.at_gateway("source")
        rows, lane = ctx.shape.num_instances, lane_of(ctx, state)
        context = SourceContext(
            now_us=due.cluster,
            key=decision_key(ctx, RandomSource.SOURCE, due.cluster.astype(jnp.int32)),
            num_arrived=lane.next_admit,
            load=Instances(state, rows).load,
            instance_of=places_of(state)[:-1],
        )
        happening: Happening
        happening, after = policy.ask(ctx.params.policy.source, state.gateway[place], context)
        if policy.gives_up:
            done = _given_up(ctx, state, happening, due.cluster)
        else:
            nothing = no_writes(ctx, state, jnp.int32(rows))
            done = dataclasses.replace(nothing, lane=lane.replace(last_event=due.cluster))
        return dataclasses.replace(done, gateway=state.gateway.having(place, after))


def _given_up(ctx: Context, state: State, happening: Happening, now: jax.Array) -> Writes:
    """Return the changes that begin the departure of the request that the source names, if it is at an instance."""
    spare, request = ctx.spare_request, jnp.asarray(happening.gives_up, jnp.int32)
    request = jnp.where((request >= 0) & (request < spare), request, spare)
    done, is_there = give_up(ctx, state, request, now, keeps_batch=False, takes_pending=True)
    change = done[ExitWrite]
    leaves_at_once = is_there & (change.leaving >= spare)
    change = dataclasses.replace(
        change, request=jnp.where(leaves_at_once, request, spare), step_index=jnp.int32(-1)
    )
    return done.having(change)


def figures_of(mechanism: Mechanism, gateway: PolicyStates[object]) -> dict[str, jax.Array]:
    """Return the figures of a run that the user's source reports, by name, from its last state."""
    if mechanism.source is None:
        return {}
    policy, place = mechanism.at_gateway("source")
    return {
        name: getattr(gateway[place], figure.name)
        for name, figure in zip(policy.figure_names, policy.figures, strict=True)
    }
