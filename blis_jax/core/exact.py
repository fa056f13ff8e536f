"""IEEE float64 arithmetic that the compiler must not rearrange.

XLA contracts `a * b + c` into one rounding and turns a division by a broadcast scalar into a
multiplication by its reciprocal. Both move truncated step times by a microsecond and break ties
between scores differently, so every product that enters a sum, and every quotient, goes through here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from blis_jax.lazy import jax, jnp, lax

if TYPE_CHECKING:
    import numpy as np

    Number = jax.Array | np.ndarray | float  # traced, or known while the program is made

_RUNTIME_INFINITY: ContextVar[Any] = ContextVar("runtime_infinity", default=None)


@contextlib.contextmanager
def runtime_infinity(infinity: Any) -> Iterator[None]:
    """While the block is traced, `exact_product` uses this traced +inf, which the compiler cannot know.

    The engine opens the block around a scan step, so no policy or latency model has to pass it on.
    """
    token = _RUNTIME_INFINITY.set(infinity)
    try:
        yield
    finally:
        _RUNTIME_INFINITY.reset(token)


def exact_product(a: Number, b: Number) -> jax.Array:
    """Product rounded on its own, so that a sum it enters cannot absorb it.

    Outside the engine, see `runtime_infinity`, that holds unless a factor is a constant.
    """
    product = a * b
    infinity = _RUNTIME_INFINITY.get()
    if infinity is None:
        return jnp.where(product == product, product, jnp.nan)
    return jnp.minimum(product, infinity)


def exact_chain(first: Number, second: Number, *others: Number) -> jax.Array:
    """The product from left to right, every step rounded."""
    product = exact_product(first, second)
    for other in others:
        product = exact_product(product, other)
    return product


def exact_quotient(numerator: Number, divisor: Number) -> jax.Array:
    """Correctly rounded quotient, whatever the shapes and however it is vectorised.

    The divisor is made to depend on the numerator, so that it has its shape, lanes included, before the
    barrier hides it; a constant or shared divisor would otherwise be broadcast after the barrier.
    """
    shape = jnp.broadcast_shapes(jnp.shape(numerator), jnp.shape(divisor))
    above, below = jnp.broadcast_to(numerator, shape), jnp.broadcast_to(divisor, shape)
    hidden = lax.optimization_barrier(jnp.where(above == above, below, above))
    return above / hidden
