"""SLO classes as policies tell them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.engine.types import BACKGROUND, BATCH, CRITICAL, SHEDDABLE, STANDARD
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Int


def is_sheddable(slo_class: Int[Array, "..."]) -> jax.Array:
    """Sheddable, batch and background."""
    return slo_class > STANDARD


def of_class(
    slo_class: Int[Array, "..."],
    *,
    critical: Any,
    standard: Any,
    sheddable: Any,
    batch: Any,
    background: Any,
) -> jax.Array:
    """The value for the request's class; without a class, that of standard."""
    value = jnp.where(slo_class == CRITICAL, critical, standard)
    rest = ((SHEDDABLE, sheddable), (BATCH, batch), (BACKGROUND, background))
    for code, one in rest:
        value = jnp.where(slo_class == code, one, value)
    return value
