"""The router's data: how old its signals are, and the tables of its prefix index.

The age of signals is ours; in BLIS only the KV fields may be old. A mechanism that ages no signals has none of this in
its compiled program, see `Mechanism.ages_signals`, `.delays_index` and `.loses_index`. The tables of the index are
explained in router_index.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, Self

import jax
import jax.numpy as jnp

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.types import Absent, ClusterParams, EngineShape, Mechanism
from blis_jax.policies.contexts import Outstanding

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Real


@pytree
class SeenPrompts:
    """The prompts seen in one look, and the request that held each slot then."""

    holder: Int[Array, "*lane instance slot"]
    prompts: Outstanding


@pytree
class SignalParams:
    """The numbers of the signals' age and loss, all traced."""

    # between two looks at queue depth and batch size, 0: always fresh
    load_interval_us: Int[Array, ""]
    index_delay_us: Int[Array, ""]  # from a routing to the router's index
    index_loss: Float[Array, ""]  # probability that the index never hears of it
    # share of an interval by which an instance's looks come earlier
    phase: Float[Array, "instance"]
    # looks have fixed times: one interval after the other from the first on
    has_phases: Bool[Array, ""]
    counts_in_flight: Int[Array, ""]  # 1: pending requests are part of the load
    # between two copies of the caches, where the profile has them
    cache_delay_us: Int[Array, ""] | Absent = None


@pytree
class CopiedCaches:
    """The router's copy of the KV caches, and when it was made; where a policy reads it."""

    # leading blocks of each shared content that are registered
    blocks: Int[Array, "*lane instance node"]
    seen_us: Float[Array, "*lane"]


class RouterCounts(NamedTuple):
    """Requests at every instance, as counted by the router."""

    batch: Int[Array, "instance"]
    queue: Int[Array, "instance"]
    pending: Int[Array, "instance"]  # sent there, and not queued yet
    load: Int[Array, "instance"]  # all of them


@pytree
class View(HasParts):
    """The router's last view of the KV caches: one table `[field, instance]`, in many lanes one row per field.

    The fields are those of `kv_fields_read`, in that order; without fields there is no table.
    """

    kv: tuple[jax.Array, ...]  # float64
    own: Parts  # of an AgedView: CopiedCaches, SeenAdapters, SeenPrompts

    @property
    def fields(self) -> jax.Array | tuple[jax.Array, ...]:
        """Return the fields of every instance, indexed by field number."""
        return self.kv[0] if self.kv and self.kv[0].ndim == 2 else self.kv

    def with_kv(self, *kv: jax.Array) -> Self:
        """Return the view with its KV fields replaced."""
        return dataclasses.replace(self, kv=kv)

    def counted(self, now: RouterCounts, cluster: ClusterParams) -> RouterCounts:
        """Return the requests at each instance as the router counts them; `now` are the current counts."""
        return now


@pytree
class AgedView(View):
    """The router's last view of every instance, and the times of its looks."""

    queue_depth: Int[Array, "*lane instance"]
    batch_size: Int[Array, "*lane instance"]
    kv_seen_us: Float[Array, "*lane instance"]
    load_seen_us: Float[Array, "*lane instance"]

    def counted(self, now: RouterCounts, cluster: ClusterParams) -> RouterCounts:
        """Return the counts of the last look, and of requests that the router itself has sent since, if these count."""
        pending = now.pending * cluster.signals.counts_in_flight
        load = self.batch_size + self.queue_depth + pending
        return RouterCounts(self.batch_size, self.queue_depth, pending, load)


def first_view(cluster: ClusterParams, kv: tuple[jax.Array, ...], further: Parts) -> AgedView:
    """Return the view of an empty cluster, last seen before time zero by each instance's share of an interval."""
    signals = cluster.signals
    nothing = jnp.zeros(signals.phase.shape, jnp.int32)

    def seen(interval: jax.Array) -> jax.Array:
        return -jnp.floor(exact_product(signals.phase, interval.astype(jnp.float64)))

    of_kv, of_load = cluster.snapshot_refresh_interval_us, signals.load_interval_us
    return AgedView(kv, further, nothing, nothing, seen(of_kv), seen(of_load))


def looked_again(
    signals: SignalParams, interval_us: jax.Array, seen_us: jax.Array, now: jax.Array
) -> tuple[Bool[Array, "instance"], Float[Array, "instance"]]:
    """Return which instances are due for a look at `now`, and the times of their last looks then.

    As in BLIS the interval counts from the last look, which the router takes when it has a decision to make. With
    phases this would let instances fall into step, so there it counts from the time at which the look was due.
    """
    interval = interval_us.astype(jnp.float64)
    age = now.astype(jnp.float64) - seen_us
    is_due = (interval <= 0) | (age >= interval)
    periods = jnp.floor(exact_quotient(age, jnp.maximum(interval, 1.0)))
    due_us = seen_us + exact_product(periods, interval)
    last = jnp.where(signals.has_phases & (interval > 0), due_us, now.astype(jnp.float64))
    return is_due, jnp.where(is_due, last, seen_us)


ROUTINGS_READ = 32  # routings that are looked at together for the next one to an instance
NEWS_FIELDS = 3  # of a message: its instance, a request, and what it says


@pytree
class RemovedNames:
    """Names of contents whose blocks are reused, where the caches report that."""

    of: Int[Array, "*place window"]


@pytree
class VoidNews:
    """The number of messages sent before an instance lost its cache, which are void; only where instances stop."""

    before: Int[Array, "instance"]


@pytree
class LateNews(HasParts):
    """Messages of the caches that the router has not received yet, in the order of sending; see news.py.

    A ring, followed by a spare place. After `num_told` messages the next one takes the place `num_told % size`.
    """

    told_us: Real[Array, "place"]  # of the clock
    # instance; request that it is about, the spare one if a prompt's message is lost; `NewsKind`
    about: Int[Array, "field place"]
    num_told: Int[Array, ""]
    num_heard: Int[Array, ""]
    own: Parts  # RemovedNames, VoidNews


@pytree
class Routings:
    """The touches in their order, by request and instance, where the index evicts."""

    sent: Int[Array, "2 routing"]


@pytree
class PrivateBlocks:
    """The latest touch of each request's private blocks, see `own_row`, where the caches feed the index."""

    touched: Int[Array, "own_row"]


@pytree
class Gaps:
    """The number of touches when a block was reused, where the caches report that."""

    shared: Int[Array, "_ shared_block"]  # by instance
    private: Int[Array, "own_row position"]


@pytree
class Entrances:
    """The times on the clock at which entries were added, where routings reach the index late."""

    at: Real[Array, "node *instance"]


@pytree
class RouterIndex(HasParts):
    """The router's record of which prompt went to which instance, see router_index.py; the node axis has a spare row.

    With several gateways each has its own columns for the instances, one gateway's after the other's.
    """

    touched: Int[Array, "node instance"]  # number of the latest touch, 0: never
    num_blocks: Int[Array, "instance"]  # what the latest touch has pushed out included
    oldest: Int[Array, "instance"]  # number of the oldest entry
    num_sent: Int[Array, ""]  # routings, or allocations of prompts, so far
    own: Parts  # Routings, PrivateBlocks, Gaps, Entrances


@pytree
class PushedOut:
    """The blocks and the oldest entry of an instance after its latest touch has pushed out what is beyond the capacity;
    only where entries leave the index.
    """

    instance: Int[Array, ""]
    num_blocks: Int[Array, ""]
    oldest: Int[Array, ""]


@pytree
class RouterWrite(HasParts):
    """The index's changes from touching one prompt; spare indices if nothing is touched."""

    path: Int[Array, "path"]  # nodes, then the spare one
    num_nodes: Int[Array, ""]
    request: Int[Array, ""]
    instance: Int[Array, ""]
    num_blocks: Int[Array, ""]  # of the instance
    num_sent: Int[Array, ""]
    own: Parts  # Entrances of the path, PushedOut


@pytree
class LateWrite(HasParts):
    """One more message, or none."""

    place: Int[Array, ""]
    told_us: Real[Array, ""]
    about: Int[Array, "field"]
    num_told: Int[Array, ""]
    own: Parts  # RemovedNames


def no_index(shape: EngineShape, mechanism: Mechanism) -> RouterIndex:
    """Return the empty index, before anything is routed."""
    i32, rows = jnp.int32, shape.num_instances * mechanism.num_indices
    requests = (shape.num_requests + 1) * (shape.num_instances if mechanism.moves_requests else 1)
    size = max(shape.num_routings, shape.num_requests) + ROUTINGS_READ
    shared, positions = shape.num_shared_blocks + 1, shape.list_blocks + 1

    def no_gaps() -> Gaps:
        return Gaps(jnp.zeros((rows + 1, shared), i32), jnp.zeros((requests, positions), i32))

    def no_entrances() -> Entrances:
        return Entrances(jnp.zeros((shape.num_nodes + 1, rows), shape.clock_dtype))

    is_precise = mechanism.is_precise
    own = Parts.used(
        (lambda: Routings(jnp.full((2, size), -1, i32)), shape.has_router_eviction),
        (lambda: PrivateBlocks(jnp.zeros((requests,), i32)), is_precise),
        (no_gaps, is_precise and shape.num_blocks > 0),
        (no_entrances, mechanism.delays_index and not is_precise),
    )
    return RouterIndex(
        touched=jnp.zeros((shape.num_nodes + 1, rows), i32),
        num_blocks=jnp.zeros((rows,), i32),
        oldest=jnp.ones((rows,), i32),
        num_sent=jnp.int32(0),
        own=own,
    )


def no_late_news(shape: EngineShape, mechanism: Mechanism) -> LateNews:
    """Return the table with no message on its way."""
    places, rows = shape.num_routings + 1, shape.num_instances
    own = Parts.used(
        (lambda: RemovedNames(jnp.zeros((places, shape.window), jnp.int64)), shape.num_blocks > 0),
        (lambda: VoidNews(jnp.zeros((rows,), jnp.int32)), mechanism.cluster is not None),
    )
    return LateNews(
        told_us=jnp.zeros((places,), shape.clock_dtype),
        about=jnp.zeros((NEWS_FIELDS, places), jnp.int32),
        num_told=jnp.int32(0),
        num_heard=jnp.int32(0),
        own=own,
    )
