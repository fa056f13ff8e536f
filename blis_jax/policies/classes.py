"""SLO classes as policies tell them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import BACKGROUND, BATCH, CRITICAL, SHEDDABLE, STANDARD
from blis_jax.lazy import jax, jnp
from blis_jax.policies.numbers import FIXED, number

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


def worth_of_class(
    slo_class: Int[Array, "..."], *, critical: Any, standard: Any, sheddable: Any
) -> jax.Array:
    """The value for the request's class, where batch and background count as sheddable."""
    value = jnp.where(slo_class == CRITICAL, critical, standard)
    return jnp.where(is_sheddable(slo_class), sheddable, value)


def ttft_budget(default: float, slo_class: str) -> Any:
    """A policy's number: the time to first token in µs that requests of a class may take. BLIS has no option for it."""
    return number(
        default, "µs", f"time to first token that {slo_class} requests may take",
        low=0, excludes_low=True, setting=FIXED,
    )  # fmt: skip
