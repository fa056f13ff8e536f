"""The calendar: which event is due next, in the cluster and on its instances, according to a program's event sources.

Each source offers its next events. Events at one time are ordered by `EventKind`; every event of the cluster comes
before those of the instances, which go by index, as in the reference. A mechanism that a program does not use has no
source, and so adds nothing to the compiled code.
"""

from __future__ import annotations

import enum
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from blis_jax.engine.phases.steps.hooks import StepHooks
from blis_jax.tables.context import Context
from blis_jax.tables.joined import first_of
from blis_jax.tables.state import Lane, State

if TYPE_CHECKING:
    from jaxtyping import Array, Shaped

    from blis_jax.tables.writes import Writes

T = TypeVar("T")


class EventKind(enum.IntEnum):
    """Kinds of cluster events, in the order in which they happen at one time."""

    SOURCE = -1  # a user's source acts
    CHANGE = 0  # instances go down or come up
    GATEWAY = 1  # a request is admitted, or routed for the first time
    MOVE = 2  # a request that has left an instance is routed again
    DROP = 3  # KV has come to an instance that was told to go
    EVICTION = 4  # an instance gives up a request for one at the gateway
    EXPIRY = 5  # a request has waited too long at the gateway
    TICK = 6  # the gateway's queue is looked at again
    SCALE = 7  # a cluster policy that comes last acts
    DEADLINE = 8  # a request's time is up: behind all that instances do at that time
    NEWS = 9  # completions are told that no later event of the cluster waits for


class Offer(NamedTuple):
    """The next events of one kind; a time is never() where there is no event."""

    kind: EventKind
    times: tuple[jax.Array, ...]
    is_endless: bool = False  # goes on for ever; a run ends with the last event of other kinds
    beyond: jax.Array | None = None  # bool: requests wait for a time beyond the clock
    # of a source behind the steps: ahead of them, and next after this kind
    follows: EventKind | None = None

    @property
    def time(self) -> jax.Array:
        """Return the earliest time that the source offers."""
        return functools.reduce(jnp.minimum, self.times)


class First(NamedTuple):
    """The earliest of several events: its time and kind."""

    time: jax.Array
    kind: jax.Array

    def or_earlier(self, offer: Offer) -> First:
        """Return the earlier of this event and the offer; the offer loses a tie."""
        at = offer.time
        kind = jnp.where(at < self.time, jnp.int32(offer.kind), self.kind)
        return First(jnp.minimum(self.time, at), kind)

    def or_next(self, offer: Offer, event: jax.Array) -> First:
        """Return the earlier of this event and the offer, which may come behind instances that act at `event`."""
        at = offer.time
        if offer.follows is None:
            is_next = (at < self.time) & (at < event)
        else:
            is_earlier = (at < self.time) | ((at == self.time) & (self.kind > offer.follows))
            is_next = is_earlier & (at <= event)
        kind = jnp.where(is_next, jnp.int32(offer.kind), self.kind)
        return First(jnp.where(is_next, at, self.time), kind)


class Due(NamedTuple):
    """The next events of the cluster and of the instances; a time is never() where there is no event."""

    cluster: jax.Array  # time of the cluster's next event of any kind
    kind: jax.Array  # EventKind of that event
    event: jax.Array  # time of the instances' next event
    instance: jax.Array  # and whose it is; once an event is chosen, the instance that acts
    events: Shaped[Array, "instance"]  # clock
    offers: tuple[Offer, ...]  # of the cluster

    @property
    def beyond(self) -> list[jax.Array]:
        """Return whether requests wait for a time beyond the clock, as a list of one array; empty where none can."""
        waits = [offer.beyond for offer in self.offers if offer.beyond is not None]
        return [functools.reduce(jnp.logical_or, waits)] if waits else []

    def of(self, kind: EventKind) -> Offer:
        """Return the first offer of this kind; the program must have one."""
        return next(offer for offer in self.offers if offer.kind == kind)


class NextEvent(NamedTuple):
    """The event of a scan step: a cluster event, a phase on an instance, or none once the run is over."""

    due: Due
    is_cluster: jax.Array
    is_instance: jax.Array
    is_over: jax.Array  # nothing happens any more
    in_step: jax.Array  # the instance goes on with the step in progress
    now: jax.Array  # of the instance


@dataclass(frozen=True)
class Outlook:
    """The state that the sources read to offer events, with a cache of values that several sources need."""

    ctx: Context
    state: State
    lane: Lane
    _seen: dict[Any, Any] = field(default_factory=dict)

    def once(self, function: Callable[[Outlook], T]) -> T:
        """Return `function(self)`, computed at the first call and cached."""
        if function not in self._seen:
            self._seen[function] = function(self)
        value: T = self._seen[function]
        return value


class EventSource(StepHooks):
    """A source of events, created when a program is built; hooks that a source does not override change nothing."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the source's own sub-trees of the state, as they are before the first event."""
        return ()

    def until(self, ctx: Context, state: State, due: Due) -> tuple[jax.Array, ...]:
        """Return times from which on the source may disturb the acting instance, beside the cluster's next event."""
        return ()

    def prepare(self, ctx: Context, state: State) -> State:
        """Return the state as the calendar reads it."""
        return state

    def reach(self, ctx: Context, state: State, lane: Lane, event: NextEvent) -> tuple[State, Lane]:
        """Return the state and the lane when the clock has advanced to the event."""
        return state, lane

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state after an event's changes have been written to its tables."""
        return state


class ActingSource(EventSource, ABC):
    """A source that has events of its own, and acts when they are due."""

    @abstractmethod
    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the event that is due belongs to this source."""

    @abstractmethod
    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes of the source's event."""


class ClusterSource(ActingSource):
    """A source of events of the cluster."""

    kinds: ClassVar[tuple[EventKind, ...]] = ()
    is_behind_steps: ClassVar[bool] = False  # offers once it is known which instance acts next

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the source's next event of each kind."""
        return ()

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the event that is due is of one of the source's kinds."""
        return functools.reduce(jnp.logical_or, (due.kind == kind for kind in self.kinds))


class InstanceSource(ActingSource):
    """A source of events on instances."""

    def times(self, look: Outlook, start: int, stop: int) -> tuple[Shaped[Array, "_"], ...]:
        """Return the times of the source's next events on the instances from `start` on and before `stop`."""
        return ()


@dataclass(frozen=True)
class Sources:
    """The sources of a program."""

    all: tuple[EventSource, ...]
    hooks: tuple[EventSource, ...]  # of them, those that steps call, in this order

    @property
    def of_cluster(self) -> list[ClusterSource]:
        """Return the sources of the cluster's events."""
        return [source for source in self.all if isinstance(source, ClusterSource)]

    @property
    def of_instances(self) -> list[InstanceSource]:
        """Return the sources of events on instances."""
        return [source for source in self.all if isinstance(source, InstanceSource)]


def act(ctx: Context, state: State, due: Due, sources: Sequence[ActingSource]) -> Writes:
    """Return the changes of the event that is due: the last source that takes the event acts, else the first source."""
    *others, source = sources
    if not others:
        return source.act(ctx, state, due)
    return ctx.when(
        source.takes(ctx, state, due),
        lambda: source.act(ctx, state, due),
        lambda: act(ctx, state, due, others),
    )


def later(ctx: Context, time: jax.Array, latency: jax.Array) -> jax.Array:
    """Return `time + latency`, or never() if `time` is never()."""
    return jnp.where(time >= ctx.never, ctx.never, time + ctx.time(latency))


def next_due(ctx: Context, state: State, lane: Lane) -> Due:
    """Return the next events of all sources."""
    look, all_of = Outlook(ctx, state, lane), ctx.sources.of_cluster
    offers = [
        offer for source in all_of if not source.is_behind_steps for offer in source.offers(look)
    ]

    def events(start: int, stop: int) -> jax.Array:
        of_all = ctx.sources.of_instances
        times = (time for source in of_all for time in source.times(look, start, stop))
        return functools.reduce(jnp.minimum, times)

    size = ctx.shape.num_instances
    whole = events(0, size)
    ahead, *others = sorted(_while_others_are_due(ctx, offers, whole), key=attrgetter("kind"))
    first = First(ahead.time, jnp.int32(ahead.kind))
    for offer in others:
        first = first.or_earlier(offer)
    event, instance = first_of(ctx, events, size)
    behind = [offer for source in all_of if source.is_behind_steps for offer in source.offers(look)]
    for offer in behind:
        first = first.or_next(offer, event)
    return Due(*first, event, instance, whole, (ahead, *others, *behind))


def _while_others_are_due(
    ctx: Context, offers: Sequence[Offer], events: Shaped[Array, "instance"]
) -> Sequence[Offer]:
    """Return the offers, where endless ones are set to never() once all other events are over."""
    if not any(offer.is_endless for offer in offers):
        return offers
    times = [offer.time for offer in offers if not offer.is_endless]
    is_over = functools.reduce(jnp.minimum, [*times, jnp.min(events)]) >= ctx.never
    ended = [offer._replace(times=(jnp.where(is_over, ctx.never, offer.time),)) for offer in offers]
    return [new if new.is_endless else old for new, old in zip(ended, offers, strict=True)]
