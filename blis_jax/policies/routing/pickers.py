"""Pickers, which choose an instance by the scores of all instances; and ties broken by BLIS's seeded stream.

Names and meaning follow llm-d's pickers (`max-score`, `random` among the best, `weighted-random`). Of BLIS's revision
of August 2026 (`sim/routing.go` and `math/rand`): the router has one stream, and draws from it only at a tie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import FEW_ENTRIES, first_equal, greatest, least
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST, NO_DRAW
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contexts import GatewayContext, PickerContext
from blis_jax.policies.contract import NoParams, NoState, picker, routing_policy

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.core.types import EngineShape

Choice = tuple["jax.Array", Any]


def first_where(mask: jax.Array) -> jax.Array:
    """Return the index of the first true entry of `mask[n]`; a large number if there is none."""
    index = lax.iota(jnp.int32, mask.shape[0])
    return least(jnp.where(mask, index, LAST))


PER_ROW = 32  # of a long mask


def nth_where(mask: jax.Array, place: jax.Array) -> jax.Array:
    """Return the index of the true entry of `mask[n]` before which `place` others are; a large number if there is none.

    A long mask is counted row by row, then within one row: XLA's running sum of n entries takes up to n² additions.
    """
    size = mask.shape[0]
    if size <= FEW_ENTRIES:
        return first_where(mask & (jnp.cumsum(mask, dtype=jnp.int32) - 1 == place))
    rows = jnp.pad(mask, (0, -size % PER_ROW)).reshape(-1, PER_ROW)
    counts = jnp.sum(rows, axis=1, dtype=jnp.int32)
    before = jnp.cumsum(counts, dtype=jnp.int32) - counts
    row = first_where((before <= place) & (place < before + counts))
    within = nth_where(rows[row], place - before[row])
    is_there = (place >= 0) & (place < before[-1] + counts[-1])
    return jnp.where(is_there, row * PER_ROW + within, LAST)


def first_best_of(scores: jax.Array, is_eligible: jax.Array) -> jax.Array:
    """Return the index of the first eligible instance with the highest score."""
    among = jnp.where(is_eligible, scores, -jnp.inf)
    return first_equal(lambda start, stop: among[start:stop], among.shape[0], greatest(among))


def _is_best(scores: jax.Array, is_eligible: jax.Array) -> jax.Array:
    among = jnp.where(is_eligible, scores, -jnp.inf)
    return among == greatest(among)


@picker()
def first_best(params: NoParams, state: NoState, context: PickerContext) -> Choice:
    """Take the first instance with the highest score, as BLIS does."""
    return first_best_of(context.scores, context.is_eligible), state


@picker(is_random=True)
def random_best(params: NoParams, state: NoState, context: PickerContext) -> Choice:
    """Take one of the instances with the highest score, each as likely."""
    draw = jax.random.uniform(context.key, context.scores.shape, jnp.float64)
    draw = jnp.where(_is_best(context.scores, context.is_eligible), draw, -1.0)
    return first_where(draw == jnp.max(draw)), state


@picker(is_random=True)
def weighted_random(params: NoParams, state: NoState, context: PickerContext) -> Choice:
    """Take an instance with a probability in proportion to its score; any eligible one if all scores are 0."""
    scores = jnp.where(context.is_eligible, context.scores, 0.0)
    weights = jnp.where(jnp.max(scores) > 0, scores, context.is_eligible.astype(jnp.float64))
    upto = jnp.cumsum(weights)
    draw = jax.random.uniform(context.key, (), jnp.float64) * upto[-1]
    is_it = (upto > draw) & (weights > 0)
    last = scores.shape[0] - 1 - first_where(weights[::-1] > 0)  # rounding may pass the sum
    return jnp.minimum(first_where(is_it), last), state


# --- by BLIS's seeded stream ----------------------------------------------------------------------


LARGEST_INT31 = 2**31 - 1


@pytree
class DrawState:
    """The count of the stream's numbers used so far."""

    used: Int[Array, ""]


def none_used(params: NoParams, shape: EngineShape) -> DrawState:
    """Return the state in which no number of the stream is used."""
    return DrawState(jnp.zeros((), jnp.int32))


def draw_below(draws: Int[Array, "draw"], used: jax.Array, limit: jax.Array) -> Choice:
    """Draw Go's `Intn(limit)` from the next numbers of the stream; return it, and how many numbers are then used.

    Numbers of the incomplete last interval below 2^31 are drawn again, so that all results are equally likely. The
    result is NO_DRAW if the stream has ended.
    """
    size, wide = draws.shape[0], limit.astype(jnp.int64)
    rest = lax.rem(jnp.int64(2**31), wide)
    most = jnp.where((limit & (limit - 1)) == 0, jnp.int64(LARGEST_INT31), LARGEST_INT31 - rest)

    def at(place: jax.Array) -> jax.Array:
        return draws[jnp.minimum(place, size - 1)].astype(jnp.int64)

    def is_refused(place: jax.Array) -> jax.Array:
        return (place < size) & (at(place) > most)

    place = lax.while_loop(is_refused, lambda place: place + 1, used)
    value = lax.rem(at(place), wide).astype(jnp.int32)
    return jnp.where(place < size, value, jnp.int32(NO_DRAW)), place + 1


def one_of(is_tied: Bool[Array, "instance"], draws: Int[Array, "draw"], state: DrawState) -> Choice:
    """Return one of the tied instances at random; a single instance uses no number of the stream."""
    count = jnp.sum(is_tied, dtype=jnp.int32)
    place, used = draw_below(draws, state.used, jnp.maximum(count, 1))
    is_drawn = count > 1
    place = jnp.where(is_drawn, place, 0)
    chosen = jnp.where(place == NO_DRAW, jnp.int32(NO_DRAW), nth_where(is_tied, place))
    return chosen, DrawState(jnp.where(is_drawn, used, state.used))


@routing_policy(start=none_used, is_random=True)
def least_loaded_drawn(params: NoParams, state: DrawState, context: GatewayContext) -> Choice:
    """Choose one of the instances with the smallest effective load, by BLIS's seeded stream."""
    seen = context.snapshots
    load = jnp.where(seen.is_active, seen.effective_load, LAST)
    return one_of(load == least(load), context.draws, state)


@picker(start=none_used, is_random=True)
def drawn_best(params: NoParams, state: DrawState, context: PickerContext) -> Choice:
    """Take one of the instances with the highest score, by BLIS's seeded stream."""
    return one_of(_is_best(context.scores, context.is_eligible), context.draws, state)
