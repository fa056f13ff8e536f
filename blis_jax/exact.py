"""IEEE float64 arithmetic that the compiler must not rearrange.

XLA contracts `a * b + c` into one rounding and turns a division by a broadcast scalar into a
multiplication by its reciprocal. Both move truncated step times by a microsecond and break ties
between scores differently, so every product that enters a sum, and every quotient, goes through here.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def exact_product(a: jax.Array, b: jax.Array, infinity: jax.Array) -> jax.Array:
    """Product rounded on its own; `infinity` is +inf known only at run time, so `min` cannot be folded."""
    return jnp.minimum(a * b, infinity)


def exact_quotient(numerator: jax.Array, divisor: jax.Array) -> jax.Array:
    """Correctly rounded quotient, whatever the shapes and however it is vectorised.

    The divisor is made to depend on the numerator, so that it has its shape, lanes included, before the
    barrier hides it; a constant or shared divisor would otherwise be broadcast after the barrier.
    """
    shape = jnp.broadcast_shapes(jnp.shape(numerator), jnp.shape(divisor))
    above, below = jnp.broadcast_to(numerator, shape), jnp.broadcast_to(divisor, shape)
    hidden = lax.optimization_barrier(jnp.where(above == above, below, above))
    return above / hidden


@jax.custom_jvp
def _truncate_float(value: jax.Array) -> jax.Array:
    return jnp.trunc(value)


@_truncate_float.defjvp
def _truncate_float_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return _truncate_float(*primals), tangents[0]


def truncate(value: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Whole microseconds toward zero in the clock's dtype; on the float clock the derivative passes through."""
    if jnp.issubdtype(dtype, jnp.floating):
        return _truncate_float(value).astype(dtype)
    return value.astype(dtype)


@jax.custom_jvp
def _least_float(values: jax.Array) -> jax.Array:
    return jnp.min(values)


@_least_float.defjvp
def _least_float_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (values,), (slopes,) = primals, tangents
    return _least_float(values), slopes[jnp.argmin(values)]


def least(values: jax.Array) -> jax.Array:
    """The least of a vector of times; its derivative is that of the first of equals, not their mean."""
    return _least_float(values) if jnp.issubdtype(values.dtype, jnp.floating) else jnp.min(values)
