"""Messages of the caches on their way to the router's prefix index.

Where the caches feed the index and it hears of them late, an allocation or a removal is put down when an instance
makes it, and changes the index once it is old enough (`heard` of index_events.py). All messages are equally long on
their way, so they arrive in the order in which they were told. A mechanism without such a delay has none of this in
its compiled program.
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.types import pytree
from blis_jax.engine.tables.router import LateNews

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.engine.context import Context


class MessageField(IntEnum):
    """Fields of a message."""

    INSTANCE = 0
    REQUEST = 1  # whose prompt is allocated; the spare one if that message is lost
    KIND = 2  # of `NewsKind`


class NewsKind(IntEnum):
    """What a message says."""

    ALLOCATION = 0
    REMOVAL = 1  # of an allocation that has told of a prompt: its message is the one before
    REMOVAL_ALONE = 2
    FORGETTING = 3  # a request comes back and finds no block of its own


@pytree
class LateWrite:
    """One message more, or none."""

    place: Int[Array, ""]
    told_us: Int[Array, ""]
    about: Int[Array, "field"]
    name: Any  # int64[window]
    num_told: Int[Array, ""]


def no_news(late: LateNews) -> LateWrite:
    """Nothing is told."""
    return LateWrite(
        place=jnp.int32(_size(late)),
        told_us=jnp.zeros((), late.told_us.dtype),
        about=jnp.zeros((len(MessageField),), jnp.int32),
        name=None if late.name is None else jnp.zeros(late.name.shape[1:], late.name.dtype),
        num_told=late.num_told,
    )


def told(
    late: LateNews,
    now: jax.Array,
    instance: jax.Array,
    request: jax.Array,
    kind: jax.Array,
    name: Any = None,
    is_on: Bool[Array, ""] | bool = True,
) -> LateWrite:
    """One message more if `is_on`; contents `name` `[window]` only of a removal."""
    nothing = no_news(late)
    is_told = jnp.asarray(is_on)
    place = lax.rem(late.num_told, jnp.int32(_size(late)))
    return dataclasses.replace(
        nothing,
        place=jnp.where(is_told, place, nothing.place),
        told_us=now.astype(late.told_us.dtype),
        about=jnp.stack([instance, request, kind]).astype(jnp.int32),
        name=nothing.name if name is None else name,
        num_told=late.num_told + is_told.astype(jnp.int32),
    )


def with_news(late: LateNews, done: LateWrite) -> LateNews:
    """The messages with one more."""
    zero = jnp.int32(0)
    name = late.name
    if name is not None:
        name = lax.dynamic_update_slice(name, done.name[None], (done.place, zero))
    return dataclasses.replace(
        late,
        told_us=lax.dynamic_update_slice(late.told_us, done.told_us[None], (done.place,)),
        about=lax.dynamic_update_slice(late.about, done.about[:, None], (zero, done.place)),
        name=name,
        num_told=done.num_told,
    )


def next_place(late: LateNews, num_heard: jax.Array) -> Int[Array, ""]:
    """Where the message is that is heard after so many."""
    return lax.rem(num_heard, jnp.int32(_size(late)))


def is_old_enough(ctx: Context, late: LateNews, num_heard: jax.Array, now: jax.Array) -> jax.Array:
    """Whether the router has heard of the next message by `now`."""
    told_us = late.told_us[next_place(late, num_heard)].astype(jnp.float64)
    delay = ctx.params.cluster.signals.index_delay_us.astype(jnp.float64)
    return (num_heard < late.num_told) & (now.astype(jnp.float64) - told_us >= delay)


def is_over(late: LateNews) -> Bool[Array, ""]:
    """Whether more messages are on their way than the ring holds."""
    return late.num_told - late.num_heard > _size(late)


def _size(late: LateNews) -> int:
    return late.told_us.shape[0] - 1
