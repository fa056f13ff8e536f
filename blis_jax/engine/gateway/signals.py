"""What the router knows besides snapshots, and how old it is: contents of prompts, the age of each signal.

Ours, beyond BLIS, where only the KV fields may be old. A mechanism that asks for none of this has none of it in its
compiled program, see `Mechanism.ages_signals`, `.delays_index` and `.loses_index`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import ClusterParams, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


@pytree
class LeadingContents:
    """The contents that a prompt shares with others, from its first block on, `[path]`."""

    content: Int[Array, "path"]  # equal numbers: equal prompts up to the content's end
    start: Int[Array, "path"]  # its first block
    length: Int[Array, "path"]  # its blocks, 0 past the end


@pytree
class Outstanding:
    """Prompts that were sent to the instances and are not wholly in a step yet, `[instance, slot]`.

    What the router has sent it knows at once, unless requests in flight do not count; that a prompt is in, it hears at
    the next look at the load. Where `is_there` does not hold, the other fields are junk. With old signals there are
    twice the slots: what the last look saw, and what was sent since.
    """

    is_there: Bool[Array, "instance slot"]
    slo_class: Int[Array, "instance slot"]
    input_len: Int[Array, "instance slot"]  # prompt tokens
    expected_blocks: Int[Array, "instance slot"]  # of them cached, as the router's index had it
    arrival_us: jax.Array  # clock dtype


@pytree
class SeenPrompts:
    """The prompts of one look, and the request that held each slot then."""

    holder: Int[Array, "instance slot"]
    prompts: Outstanding


@pytree
class SignalParams:
    """The numbers of the signals, all traced."""

    load_interval_us: Int[
        Array, ""
    ]  # between two looks at queue depth and batch size, 0: always fresh
    index_delay_us: Int[Array, ""]  # from a routing to the router's index
    index_loss: Float[Array, ""]  # probability that the index never hears of it
    phase: Float[
        Array, "instance"
    ]  # share of an interval by which an instance's looks come earlier
    has_phases: Bool[
        Array, ""
    ]  # looks have fixed times: one interval after the other from the first on
    counts_in_flight: Int[Array, ""]  # 1: pending requests are part of the load
    cache_delay_us: Any = None  # between two copies of the caches, where the profile has them


@pytree
class AgedView:
    """What the router has last seen of every instance, and when."""

    kv: jax.Array  # KV fields as in `State.stale`
    queue_depth: Int[Array, "instance"]
    batch_size: Int[Array, "instance"]
    kv_seen_us: Float[Array, "instance"]
    load_seen_us: Float[Array, "instance"]
    # only where a policy reads the copy of the caches:
    cached: Any = (
        None  # int32[instance, node]: leading blocks of each shared content that are registered
    )
    cached_seen_us: Any = None
    prompts: Any = None  # SeenPrompts, only where a policy reads outstanding prompts


def first_view(
    cluster: ClusterParams,
    kv: jax.Array,
    num_nodes: int | None = None,
    prompts: SeenPrompts | None = None,
) -> AgedView:
    """An empty cluster, last looked at before time zero by each instance's share of an interval.

    `num_nodes` shared contents, where a policy reads the copy of the caches; empty `prompts`, where one reads those.
    """
    signals = cluster.signals
    nothing = jnp.zeros(signals.phase.shape, jnp.int32)

    def seen(interval: jax.Array) -> jax.Array:
        return -jnp.floor(exact_product(signals.phase, interval.astype(jnp.float64)))

    of_kv, of_load = cluster.snapshot_refresh_interval_us, signals.load_interval_us
    view = AgedView(kv, nothing, nothing, seen(of_kv), seen(of_load), prompts=prompts)
    if num_nodes is None:
        return view
    empty = jnp.zeros((*nothing.shape, num_nodes + 1), jnp.int32)
    return dataclasses.replace(view, cached=empty, cached_seen_us=jnp.zeros((), jnp.float64))


def looked_again(
    signals: SignalParams, interval_us: jax.Array, seen_us: jax.Array, now: jax.Array
) -> tuple[Bool[Array, "instance"], Float[Array, "instance"]]:
    """Where a look is due at `now`, and the times of the last looks then.

    As in BLIS the interval counts from the last look, which the router takes when it has a decision to make. With
    phases that would let instances fall into step, so there it counts from the time at which the look was due.
    """
    interval = interval_us.astype(jnp.float64)
    age = now.astype(jnp.float64) - seen_us
    is_due = (interval <= 0) | (age >= interval)
    periods = jnp.floor(exact_quotient(age, jnp.maximum(interval, 1.0)))
    due_us = seen_us + exact_product(periods, interval)
    last = jnp.where(signals.has_phases & (interval > 0), due_us, now.astype(jnp.float64))
    return is_due, jnp.where(is_due, last, seen_us)
