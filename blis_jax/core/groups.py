"""Requests in groups of neighbours, since few of a million requests wait, or are on their way, at one time.

A search for them in a table of all requests would read the whole table at every event. A summary with one entry for
each group says which groups contain some, and only the rows of these groups are read. A group has about as many
requests as there are groups, so the work grows with the square root of the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

T = TypeVar("T")
LEAST_SIZE = 16  # requests of a group: fewer take as long


class Rows(NamedTuple):
    """The table rows of one group of requests; every table has a spare row behind the rows of the requests."""

    number: Int[Array, "row"]  # of each request
    is_in: Bool[Array, "row"]  # of the group, and not the spare one
    take: Callable[[jax.Array], jax.Array]  # a table's rows


@dataclass(frozen=True)
class Groups:
    """The division of a run's requests into groups of equal size."""

    num_requests: int

    @property
    def size(self) -> int:
        """Return the number of requests in a group: a power of two, unless one group holds all requests."""
        root = 1 << math.ceil(math.log2(max(self.num_requests, 1)) / 2)
        return min(max(root, LEAST_SIZE), self.num_requests + 1)

    @property
    def count(self) -> int:
        """Return the number of groups; the spare row counts as a request."""
        return self.num_requests // self.size + 1

    def of(self, request: jax.Array) -> jax.Array:
        """Return the number of the group that a request belongs to."""
        return request // jnp.int32(self.size)

    def rows(self, group: jax.Array) -> Rows:
        """Return the table rows of a group."""
        first = group * jnp.int32(self.size)
        start = jnp.minimum(first, jnp.int32(self.num_requests + 1 - self.size))
        number = start + lax.iota(jnp.int32, self.size)

        def take(table: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(table, start, self.size)

        return Rows(number, (number >= first) & (number < self.num_requests), take)

    def every(self) -> Rows:
        """Return the table rows of all requests."""
        number = lax.iota(jnp.int32, self.num_requests + 1)
        return Rows(number, number < self.num_requests, lambda table: table)

    def over(
        self, is_open: Bool[Array, "group"], fold: Callable[[T, Rows], T], first: T, whole: bool
    ) -> T:
        """Fold the rows of one open group after the other, starting from `first`; if `whole`, fold all rows at once.

        Args:
            is_open: the groups whose rows can change the result, `[group]`.
            fold: makes the next result of the last one and of rows; in which order it gets the rows must not matter.
            first: the result without any row, arrays of the same shapes.
            whole: for many lanes in one loop, where a group for each lane would be read in turn.
        """
        if whole or self.count == 1:
            return fold(first, self.every())
        number = lax.iota(jnp.int32, self.count)

        def following(done: jax.Array) -> jax.Array:
            return jnp.min(jnp.where(is_open & (number > done), number, jnp.int32(self.count)))

        def turn(carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
            return following(carry[0]), fold(carry[1], self.rows(carry[0]))

        def is_left(carry: tuple[jax.Array, T]) -> jax.Array:
            return carry[0] < self.count

        return lax.while_loop(is_left, turn, (following(jnp.int32(-1)), first))[1]

    def between(
        self, ends: tuple[jax.Array, jax.Array], fold: Callable[[T, Rows], T], first: T, whole: bool
    ) -> T:
        """Fold likewise the groups from the one of request `ends[0]` to the one of `ends[1]`; none if that is first."""
        if whole or self.count == 1:
            return fold(first, self.every())

        def turn(group: jax.Array, so_far: T) -> T:
            return fold(so_far, self.rows(group))

        return lax.fori_loop(self.of(ends[0]), self.of(ends[1]) + 1, turn, first)
