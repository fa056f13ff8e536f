"""The runtime of a policy that was read from Go: Go's slice of snapshots, growing slices, and sums in Go's order.

Active instances are numbered from 0 in their order, as in Go's slice of snapshots; vectors have the shape `[instance]`
in that order. An instance's ID is its number; -1 stands for the empty string and for nil.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.exact import exact_product as times
from blis_jax.core.exact import exact_quotient as over
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import NO_DRAW
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.routing.pickers import DrawState, draw_below

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

    from blis_jax.policies.contexts import GatewayContext

    Mask = Bool[Array, "..."] | bool

INT, REAL = np.int64, np.float64  # Go's int and float64
SNAPSHOT_FIELDS = {  # in Go: the router's vector
    "QueueDepth": "queue_depth", "BatchSize": "batch_size", "KVUtilization": "kv_utilization",
    "FreeKVBlocks": "free_kv_blocks", "CacheHitRate": "cache_hit_rate", "InFlightRequests": "in_flight",
    "PendingRequests": "in_flight",
}  # fmt: skip
MOST_SELECTED = 64  # values of a slice that grows by selects; a longer one by a scatter, which makes a run slower


@pytree
class KeptState:
    """The state that a Go router keeps between requests: its numbers by name, and how many random draws it has used."""

    used: Any
    numbers: dict[str, Any]


def keeping(draws: bool, **numbers: Any) -> Callable[..., KeptState]:
    """Return the `start` function of a policy: it creates the first state of a router that keeps `numbers`."""

    def start(params: object, shape: object) -> KeptState:
        used = jnp.zeros((), jnp.int32) if draws else None
        return KeptState(used, {name: jnp.asarray(number) for name, number in numbers.items()})

    return start


class GoRouter:
    """A Go router's view of one decision: `req`, `snapshots`, `ws.scorers`, `ws.weights` and `ws.rng` of Go."""

    def __init__(self, context: GatewayContext, state: Any) -> None:
        self._context, self._state = context, state
        is_active: Any = context.snapshots.is_active
        self.size = is_active.shape[0]  # the most instances that there may be
        self.count = jnp.sum(is_active, dtype=INT)
        self.place = lax.iota(INT, self.size)
        self.there = is_active
        self._row: jax.Array | None = None
        if not isinstance(is_active, np.ndarray):  # else all are, and a row is its number
            self.there = self.place < self.count
            self._row = _rows_where(is_active)
        self._used: Any = getattr(state, "used", None)
        self.numbers: dict[str, Any] = dict(getattr(state, "numbers", {}))  # that it keeps
        self._has_ended = jnp.bool_(False)

    def _of(self, name: str, dtype: Any) -> jax.Array:
        return self._in_order(getattr(self._context.snapshots, name)).astype(dtype)

    def _in_order(self, values: jax.Array) -> jax.Array:
        return values if self._row is None else values[..., self._row]

    # --- fields of a snapshot ---------------------------------------------------------------------

    @property
    def effective_load(self) -> jax.Array:
        """Return the number of requests that wait, run or are in flight, by instance."""
        return self._of("effective_load", INT)

    @property
    def queue_depth(self) -> jax.Array:
        """Return the number of waiting requests, by instance."""
        return self._of("queue_depth", INT)

    @property
    def batch_size(self) -> jax.Array:
        """Return the number of running requests, by instance."""
        return self._of("batch_size", INT)

    @property
    def in_flight(self) -> jax.Array:
        """Return the number of requests in flight, as the profile (a BLIS revision) counts them, by instance."""
        return self._of("num_pending", INT)

    @property
    def kv_utilization(self) -> jax.Array:
        """Return the used share of the KV blocks."""
        return self._of("kv_utilization", REAL)

    @property
    def free_kv_blocks(self) -> jax.Array:
        """Return the free KV blocks."""
        return self._of("free_kv_blocks", INT)

    @property
    def cache_hit_rate(self) -> jax.Array:
        """Return the share of prompt tokens found in the cache."""
        return self._of("cache_hit_rate", REAL)

    def text_rank(self, ids: jax.Array) -> jax.Array:
        """Return the rank of each ID when IDs are sorted as texts such as `instance_10`; the empty ID comes first."""
        names = np.array([f"instance_{row}" for row in range(self.size)])
        rank = np.argsort(np.argsort(names, kind="stable"), kind="stable")
        return jnp.where(ids >= 0, self._in_order(jnp.asarray(rank, INT))[ids], -1)

    # --- the request and the router ---------------------------------------------------------------

    @property
    def input_len(self) -> jax.Array:
        """Return the length of the prompt, in tokens."""
        return self._context.request.input_len.astype(INT)

    @property
    def slo_class(self) -> jax.Array:
        """Return the index of the class in `SLO_CLASSES`."""
        return self._context.request.slo_class.astype(INT)

    @property
    def has_session(self) -> jax.Array:
        """Return whether the request is a turn of a session."""
        return self._context.has_session

    @property
    def arrival_us(self) -> jax.Array:
        """Return when the request arrived, µs."""
        return self._context.request.arrival_us.astype(INT)

    @property
    def clock_us(self) -> jax.Array:
        """Return the time of the decision, µs."""
        return self._context.now_us.astype(INT)

    @property
    def scores(self) -> jax.Array:
        """Return the scores of every scorer `[scorer, instance]`."""
        return self._in_order(self._context.scorer_scores)

    @property
    def weights(self) -> jax.Array:
        """Return the shares of the scorers' weights `[scorer]`."""
        return self._context.scorer_shares

    @property
    def num_scorers(self) -> int:
        """Return the number of scorers."""
        return int(self._context.scorer_shares.shape[0])

    def intn(self, limit: jax.Array, mask: Mask = True) -> jax.Array:
        """Draw `ws.rng.Intn(limit)` where the mask holds; elsewhere no random number is used up."""
        wide = jnp.maximum(jnp.asarray(limit), 1).astype(jnp.int32)
        value, used = draw_below(self._context.draws, self._used, wide)
        self._used = jnp.where(mask, used, self._used)
        self._has_ended = self._has_ended | (mask & (value == NO_DRAW))
        return value.astype(INT)

    def decided(self, place: jax.Array) -> tuple[jax.Array, Any]:
        """Return the decision for an instance's number, and the router's next state."""
        chosen = jnp.clip(place, 0, self.size - 1)
        chosen = chosen.astype(jnp.int32) if self._row is None else self._row[chosen]
        if self._used is not None:
            chosen = jnp.where(self._has_ended, jnp.int32(NO_DRAW), chosen)
        if self.numbers:
            return chosen, KeptState(self._used, self.numbers)
        return chosen, self._state if self._used is None else DrawState(self._used)


# --- numbers --------------------------------------------------------------------------------------


def real(value: Any) -> jax.Array:
    """Convert as `float64(value)` does."""
    return jnp.asarray(value).astype(REAL)


def whole(value: Any) -> jax.Array:
    """Convert as `int(value)` does: toward zero."""
    return jnp.trunc(value).astype(INT) if _is_real(value) else jnp.asarray(value).astype(INT)


def rounded(value: Any) -> jax.Array:
    """Round as `math.Round` does: halves away from zero."""
    below = jnp.trunc(value)
    return jnp.where(jnp.abs(value - below) >= 0.5, below + jnp.sign(value), below)


def quotient(first: Any, second: Any) -> jax.Array:
    """Divide ints as Go does: toward zero."""
    return lax.div(*_alike(first, second))


def remainder(first: Any, second: Any) -> jax.Array:
    """Return the remainder of ints with the sign of the first, as Go does."""
    return lax.rem(*_alike(first, second))


def _alike(first: Any, second: Any) -> tuple[jax.Array, jax.Array]:
    both = jnp.broadcast_arrays(jnp.asarray(first, INT), jnp.asarray(second, INT))
    return both[0], both[1]


def _is_real(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))


# --- loops over instances -------------------------------------------------------------------------


def summed(start: Any, values: Any, mask: Mask) -> jax.Array:
    """Add to `start` the values where the mask holds; floats are added one after another, as a Go loop does."""
    values, mask = jnp.broadcast_arrays(values, mask)
    if not _is_real(values):
        return start + jnp.sum(jnp.where(mask, values, 0), dtype=INT)
    total = jnp.asarray(start, REAL)
    for place in range(values.shape[0]):
        total = jnp.where(mask[place], total + values[place], total)
    return total


def winner(values: Any, mask: Mask, start: Any, comparison: str) -> tuple[jax.Array, jax.Array]:
    """Run `if value > best { best = value; … }` over the instances where the mask holds.

    Returns:
        Whether any value was taken, and the number of the instance taken last: the first of equal ones, or with
        `>=` or `<=` the last.
    """
    values, mask = jnp.broadcast_arrays(values, mask)
    beats = {
        ">": values > start, "<": values < start, ">=": values >= start, "<=": values <= start,
    }[comparison]  # fmt: skip
    is_met = mask & beats
    worst = _end(values, -1 if ">" in comparison else 1)
    among = jnp.where(is_met, values, worst)
    best = jnp.max(among) if ">" in comparison else jnp.min(among)
    is_best = is_met & (among == best)
    last = "=" in comparison
    return jnp.any(is_met), last_where(is_best) if last else jnp.argmax(is_best).astype(INT)


def extreme(start: Any, values: Any, mask: Mask, function: str) -> jax.Array:
    """Run `best = max(best, value)`, or `min`, over the instances where the mask holds."""
    values, mask = jnp.broadcast_arrays(values, mask)
    if function == "max":
        return jnp.maximum(start, jnp.max(jnp.where(mask, values, _end(values, -1))))
    return jnp.minimum(start, jnp.min(jnp.where(mask, values, _end(values, 1))))


def _end(values: jax.Array, sign: int) -> Any:
    """Return the least value of the dtype, or with `sign=1` the greatest."""
    if _is_real(values):
        return jnp.asarray(sign * np.inf, values.dtype)
    return np.iinfo(values.dtype).min if sign < 0 else np.iinfo(values.dtype).max


def last_where(mask: Any) -> jax.Array:
    """Return the last index where the mask holds; 0 if it holds nowhere."""
    size = mask.shape[0]
    return jnp.max(jnp.where(mask, lax.iota(INT, size), 0))


def lanes(values: Any, size: int) -> jax.Array:
    """Broadcast a value to one element for each instance."""
    return jnp.broadcast_to(values, (size,))


def _rows_where(mask: jax.Array) -> jax.Array:
    """Return the indexes where a mask holds, in order, padded with zeros.

    Each index is found by bisection. A scatter would keep XLA from compiling the run as one function.
    """
    size = mask.shape[0]
    count, place = jnp.cumsum(mask, dtype=jnp.int32), lax.iota(jnp.int32, size)
    row, half = jnp.zeros(size, jnp.int32), 1 << (size.bit_length() - 1)
    while half:
        before = jnp.minimum(row + np.int32(half - 1), np.int32(size - 1))
        row = jnp.where(count[before] <= place, row + np.int32(half), row)
        half //= 2
    return jnp.where(place < count[-1], row, 0)


# --- slices and maps ------------------------------------------------------------------------------


def at(values: jax.Array, place: Any) -> jax.Array:
    """Return the map's value at an ID; 0 for the empty ID."""
    return jnp.where(place >= 0, values[place], jnp.zeros((), values.dtype))


def put(values: jax.Array, places: tuple[Any, ...], value: Any, mask: Mask) -> jax.Array:
    """Return the values with `value` put at the index `places` of the leading axes, where the mask holds."""
    is_it: Any = mask
    for axis, place in enumerate(places):
        shape = [1] * values.ndim
        shape[axis] = values.shape[axis]
        is_it = is_it & (lax.iota(INT, values.shape[axis]) == place).reshape(shape)
    return jnp.where(is_it, value, values)


@dataclass(frozen=True)
class Slice:
    """A slice that grows: of `values`, only the first `count` belong to the slice."""

    values: jax.Array
    count: jax.Array

    @property
    def capacity(self) -> int:
        """Return the length of the padded array: the most values that the slice can hold."""
        return int(self.values.shape[0])

    def at(self, place: Any) -> jax.Array:
        """Return the value at an index."""
        if not self.capacity:
            return jnp.zeros((), self.values.dtype)
        return self.values[jnp.clip(place, 0, self.capacity - 1)]

    def part(self, start: Any, end: Any = None) -> Slice:
        """Return `slice[start:end]`."""
        count = (self.count if end is None else jnp.asarray(end, INT)) - start
        return Slice(jnp.roll(self.values, -start), count)

    def append(self, value: Any, mask: Mask = True) -> Slice:
        """Return the slice with `value` appended where the mask holds."""
        return self.extend(jnp.asarray(value)[None], jnp.asarray(mask)[None])

    def extend(self, values: Any, mask: Any) -> Slice:
        """Return the slice with the values where the mask holds appended in order."""
        values, mask = jnp.broadcast_arrays(values, mask)
        size = self.capacity + mask.shape[0]
        grown = jnp.pad(self.values, (0, mask.shape[0]))
        place = jnp.where(mask, self.count + jnp.cumsum(mask, dtype=INT) - 1, size)
        more = values.astype(grown.dtype)
        if size > MOST_SELECTED:
            grown = grown.at[place].set(more, mode="drop")
        else:
            for row in range(mask.shape[0]):
                grown = jnp.where(lax.iota(INT, size) == place[row], more[row], grown)
        return Slice(grown, self.count + jnp.sum(mask, dtype=INT))


def either(mask: Mask, first: Slice, second: Slice) -> Slice:
    """Return the first slice where the mask holds, else the second."""
    size = max(first.capacity, second.capacity)
    both = [jnp.pad(part.values, (0, size - part.capacity)) for part in (first, second)]
    return Slice(jnp.where(mask, both[0], both[1]), jnp.where(mask, first.count, second.count))


def slice_of(dtype: Any, *values: Any) -> Slice:
    """Return a slice of the given values."""
    made = (
        jnp.stack([jnp.asarray(value, dtype) for value in values])
        if values
        else jnp.zeros(0, dtype)
    )
    return Slice(made, jnp.asarray(len(values), INT))


__all__ = [
    "INT",
    "REAL",
    "GoRouter",
    "Slice",
    "at",
    "either",
    "extreme",
    "keeping",
    "lanes",
    "last_where",
    "over",
    "put",
    "quotient",
    "real",
    "remainder",
    "rounded",
    "slice_of",
    "summed",
    "times",
    "whole",
    "winner",
]  # fmt: skip
