"""Drafted tokens: how many are accepted in the next step of each request in decode, and the room that they take.

A program has these tables only where tokens are drafted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import Row, Whole
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import NO_REQUEST, EngineShape

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

TOKEN_PARTS = 1 << 20  # of a token, in which expectations are added up


@pytree
class DraftParams:
    """The numbers of drafted tokens, all traced; columns beyond the most drafted tokens have the probability 0."""

    # probability that this one and all before it are accepted
    reach: Float[Array, "slo_class draft"]
    expected: Int[Array, "slo_class _"]  # tokens accepted of 0, 1, ... drafts, in TOKEN_PARTS
    is_expected: Bool[Array, ""]  # as many are accepted as are expected; else they are drawn
    sizes: Int[Array, "range"]  # the least batch of each range, ascending
    nums: Int[Array, "range"]  # tokens that each request of such a batch drafts
    step_us: Float[Array, ""]  # the drafter's time for one draft of a batch, µs
    token_us: Float[Array, ""]  # and for each request in it


@pytree
class DraftTable:
    """The drafts for the next step of every instance (a spare one included), by slot, and counts of past drafts.

    A slot's entries belong to the request named in `request`. A row of the table is of one instance, without the axis
    `of`.
    """

    drawn_at: Int[Array, "*of"]  # steps that had been made
    num: Int[Array, "*of"]  # tokens that each request in decode has drafted
    blocks: Int[Array, "*of"]  # that they take when the step begins
    request: Int[Array, "*of slot"]
    accepted: Int[Array, "*of slot"]
    credit: Int[Array, "*of slot"]  # accepted parts of a token, see TOKEN_PARTS
    ahead: Int[Array, "*of slot"]  # tokens beyond its own that the request will have room for
    more: Int[Array, "*of slot"]  # of these, where they need blocks that it must ask for
    num_drafts: Int[Array, "*of"]  # requests times steps
    num_draft_tokens: Int[Array, "*of"]
    num_accepted_tokens: Int[Array, "*of"]

    @classmethod
    def first(cls, shape: EngineShape) -> DraftTable:
        """Return the table with no tokens drafted."""
        none = jnp.zeros((shape.num_instances + 1,), jnp.int32)
        each = jnp.zeros((shape.num_instances + 1, shape.num_slots), jnp.int32)
        nobody = jnp.full_like(each, NO_REQUEST)
        return cls(none, none, none, nobody, each, each, each, each, none, none, none)

    def row(self, instance: jax.Array) -> DraftTable:
        """Return the entries of one instance."""
        row: DraftTable = jax.tree.map(lambda column: column[instance], self)
        return row

    def with_row(self, instance: jax.Array, row: DraftTable, is_it: jax.Array) -> DraftTable:
        """Return the table with the entries of an instance replaced, if `is_it`."""

        def put(column: jax.Array, new: jax.Array) -> jax.Array:
            return column.at[instance].set(jnp.where(is_it, new, column[instance]))

        table: DraftTable = jax.tree.map(put, self, row)
        return table


class DraftPast(Row):
    """A request's drafts in the steps that were made."""

    turns: Whole  # steps in decode
    accepted: Whole  # tokens
    credit: Whole  # accepted parts of a token, see TOKEN_PARTS


@pytree
class DraftPasts:
    """The `DraftPast` of every request, a spare one included; a preemption does not undo it."""

    rows: Int[Array, "*of request draft_column"]

    @classmethod
    def first(cls, shape: EngineShape) -> DraftPasts:
        """Return the table of requests that have drafted nothing."""
        return cls(jnp.zeros((shape.num_requests + 1, len(DraftPast.columns)), jnp.int32))
