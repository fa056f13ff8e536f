"""Weighted sums of scores, in the order and precision of BLIS `sim/routing.go`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def shares_of(weights: Float[Array, "scorer"]) -> Float[Array, "scorer"]:
    """Each weight's share of their sum, added in order as the reference does."""
    total = jnp.zeros((), jnp.float64)
    for index in range(weights.shape[0]):
        total = total + weights[index]
    return exact_quotient(weights, total)


def weighted_sum(
    scores: Sequence[Float[Array, "instance"]],
    shares: Float[Array, "scorer"],
    shape: tuple[int, ...],
) -> jax.Array:
    """Scores cut to [0, 1] times their shares, added in order as the reference does; zeros without scores."""
    total = jnp.zeros(shape, jnp.float64)
    for index, score in enumerate(scores):
        total = total + exact_product(jnp.clip(score, 0.0, 1.0), shares[index])
    return total
