"""Exact arithmetic: float64 that the compiler must not rearrange, tokens in blocks, microseconds on the clock; and
the least and the greatest of a vector.

XLA contracts `a * b + c` into one rounding and turns a division by a broadcast scalar into a
multiplication by its reciprocal. Both move truncated step times by a microsecond and break ties
between scores differently, so every product that enters a sum, and every quotient, goes through here.

Counts of tokens and blocks are never negative, so that for blocks of 2, 4, 8 … tokens a division is one shift: a
division of signed numbers takes XLA six operations. Where a slot holds junk, so does the result. Derivatives pass
through floats that carry times.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING

from blis_jax.core.types import LAST
from blis_jax.lazy import jax, jnp, lax

if TYPE_CHECKING:
    import numpy as np

    Number = jax.Array | np.ndarray | float  # traced, or known while the program is made
    # entries of a vector, from a first one on and before a last one
    Part = Callable[[int, int], jax.Array]

_RUNTIME_INFINITY: ContextVar["jax.Array | None"] = ContextVar("runtime_infinity", default=None)


@contextlib.contextmanager
def runtime_infinity(infinity: jax.Array) -> Iterator[None]:
    """Let `exact_product` use this traced +inf, whose value the compiler cannot see, while the block is traced.

    The engine opens the block around a scan step, so no policy or latency model has to pass it on.
    """
    token = _RUNTIME_INFINITY.set(infinity)
    try:
        yield
    finally:
        _RUNTIME_INFINITY.reset(token)


def exact_product(a: Number, b: Number) -> jax.Array:
    """Return a product that is rounded by itself, so that the compiler cannot contract it with a sum that it enters.

    Outside the engine (see `runtime_infinity`) this does not hold if a factor is a constant.
    """
    product = a * b
    infinity = _RUNTIME_INFINITY.get()
    if infinity is None:
        return jnp.where(product == product, product, jnp.nan)
    return jnp.minimum(product, infinity)


def exact_chain(first: Number, second: Number, *others: Number) -> jax.Array:
    """Return the product of numbers, multiplied from left to right with every step rounded."""
    product = exact_product(first, second)
    for other in others:
        product = exact_product(product, other)
    return product


def exact_quotient(numerator: Number, divisor: Number) -> jax.Array:
    """Return the correctly rounded quotient, whatever the shapes and however the code is vectorised.

    The divisor is made to depend on the numerator, so that it has the numerator's shape, lanes included, before the
    barrier hides it; a constant or shared divisor would otherwise be broadcast after the barrier.
    """
    shape = jnp.broadcast_shapes(jnp.shape(numerator), jnp.shape(divisor))
    above, below = jnp.broadcast_to(numerator, shape), jnp.broadcast_to(divisor, shape)
    hidden = lax.optimization_barrier(jnp.where(above == above, below, above))
    return above / hidden


# --- tokens in blocks -----------------------------------------------------------------------------


def full_blocks(tokens: jax.Array, size: int) -> jax.Array:
    """Return the number of full blocks among `tokens`: tokens // size."""
    whole = tokens.dtype.type(size)
    if size & (size - 1):
        return lax.div(tokens, jnp.full_like(tokens, whole))
    shift = jnp.full_like(tokens, tokens.dtype.type(size.bit_length() - 1))
    return lax.shift_right_arithmetic(tokens, shift)


def ceil_div(tokens: jax.Array, size: int) -> jax.Array:
    """Return the number of blocks that hold `tokens`: tokens / size, rounded up."""
    return full_blocks(tokens + tokens.dtype.type(size - 1), size)


def in_last_block(tokens: jax.Array, size: int) -> jax.Array:
    """Return the number of tokens in the last, partly filled block: tokens % size."""
    if size & (size - 1):
        return lax.rem(tokens, jnp.full_like(tokens, tokens.dtype.type(size)))
    return tokens & tokens.dtype.type(size - 1)


# --- microseconds on the clock --------------------------------------------------------------------


@cache
def _truncate_float() -> Callable[[jax.Array], jax.Array]:
    """Build the function at its first use, so that code which only reads settings need not import JAX."""

    @jax.custom_jvp
    def _truncate_float(value: jax.Array) -> jax.Array:
        return jnp.trunc(value)

    _truncate_float.defjvps(lambda slope, _, value: slope)
    return _truncate_float


def truncate(value: jax.Array, dtype: jnp.dtype | type) -> jax.Array:
    """Truncate a time toward zero to whole µs, in the clock's dtype; a float clock passes the derivative through."""
    if jnp.issubdtype(dtype, jnp.floating):
        return _truncate_float()(value).astype(dtype)
    return value.astype(dtype)


# --- the least and the greatest -------------------------------------------------------------------


FEW_ENTRIES = 64  # which XLA reduces as fast as we can


@cache
def _least_float() -> Callable[[jax.Array], jax.Array]:
    @jax.custom_jvp
    def _least_float(values: jax.Array) -> jax.Array:
        return jnp.min(values)

    _least_float.defjvps(lambda slopes, _, values: slopes[jnp.argmin(values)])
    return _least_float


def least(values: jax.Array) -> jax.Array:
    """Return the minimum of a vector of times; of equal minima, the first alone gets the derivative."""
    if jnp.issubdtype(values.dtype, jnp.floating):
        return _least_float()(values)
    return least_of(lambda start, stop: values[start:stop], values.shape[0])


def least_of(part: Part, size: int) -> jax.Array:
    """Return the minimum of a vector of whole numbers that is given part by part, so that it need not be copied."""
    return jnp.min(_folded(jnp.minimum, part, size))


def greatest(values: jax.Array) -> jax.Array:
    """Return the maximum of a vector."""
    return jnp.max(_folded(jnp.maximum, lambda start, stop: values[start:stop], values.shape[0]))


def first_equal(part: Part, size: int, value: jax.Array) -> jax.Array:
    """Return the index of the first entry equal to `value` in a vector that is given part by part; LAST if none is."""

    def place(start: int, stop: int) -> jax.Array:
        index = lax.iota(jnp.int32, stop - start)
        index = index + jnp.int32(start) if start else index
        return jnp.where(part(start, stop) == value, index, LAST)

    return least_of(place, size)


def _folded(
    combine: Callable[[jax.Array, jax.Array], jax.Array], part: Part, size: int
) -> jax.Array:
    """Return few numbers of which `combine` makes what it makes of all entries; some entries are taken twice.

    On a CPU, XLA reduces a long vector in windows of 32 entries, each to a number by itself, which takes five times as
    long as parts of the vector side by side.
    """
    if size <= FEW_ENTRIES:
        return part(0, size)
    width = -(-size // (FEW_ENTRIES // 2 * 32)) * 32
    starts = (*range(0, size - width, width), size - width)
    folded = functools.reduce(combine, (part(start, start + width) for start in starts))
    return _folded(combine, lambda start, stop: folded[start:stop], width)
