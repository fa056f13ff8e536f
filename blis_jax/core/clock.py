"""Times on the clock: whole microseconds, and derivatives that pass through where floats carry them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


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
