"""The step events of an instance: in the reference several chains of steps may run side by side."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from blis_jax.core.columns import Columns, Vector, as_int, is_apart, tail, with_tail
from blis_jax.tables.context import count_of
from blis_jax.tables.state import Instance, InstTime


def take_chain(
    chains: Vector, now: jax.Array, num_new: jax.Array, never: jax.Array
) -> tuple[Vector, jax.Array]:
    """Return the step events left when one at `now` is taken after `num_new` were added; and whether they fit."""
    if is_apart(chains):
        num_at_now = functools.reduce(jnp.add, (as_int(entry == now) for entry in chains.entries))
        rest: Vector = Columns(
            tuple(jnp.where(entry == now, never, entry) for entry in chains.entries)
        )
    else:
        at_now = chains == now
        num_at_now, rest = count_of(at_now), jnp.where(at_now, never, chains)
    return add_chain(rest, now, num_at_now + num_new - 1, never)


def add_chain(
    chains: Vector, time: jax.Array, count: jax.Array, never: jax.Array
) -> tuple[Vector, jax.Array]:
    """Return the step events with `count` more at `time`; and whether they fit."""
    if is_apart(chains):
        place, entries = jnp.int32(0), []
        for entry in chains.entries:
            place = place + as_int(entry == never)
            entries.append(jnp.where((entry == never) & (place <= count), time, entry))
        return Columns(tuple(entries)), count <= place
    is_free = chains == never
    place = jnp.cumsum(is_free, dtype=jnp.int32)
    takes = is_free & (place <= count)
    return jnp.where(takes, time, chains), count <= place[-1]


def chains_of(inst: Instance) -> Vector:
    """Return the times of the instance's step events; `never` where there is none."""
    return tail(inst.times, InstTime.CHAIN)


def has_chain(chains: Vector, time: jax.Array) -> jax.Array:
    """Return whether a step event is at this time."""
    if is_apart(chains):
        return functools.reduce(jnp.logical_or, (entry == time for entry in chains.entries))
    return jnp.any(chains == time)


def first_chain(chains: Vector) -> jax.Array:
    """Return the time of the next step event."""
    if is_apart(chains):
        return functools.reduce(jnp.minimum, chains.entries)
    return jnp.min(chains)


def with_chains(inst: Instance, chains: Vector) -> Instance:
    """Return the instance with its step events replaced."""
    return Instance(inst.numbers, with_tail(inst.times, InstTime.CHAIN, chains))
