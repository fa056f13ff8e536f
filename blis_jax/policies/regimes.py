"""Regimes that are entered at one threshold and left at a lower one, so that a load near it does not switch to and fro.

Regimes and weights are those of `regime-switched`, which has one threshold for both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product
from blis_jax.core.types import CRITICAL, pytree
from blis_jax.lazy import jnp
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contract import GatewayContext, admission_policy, routing_policy, scorer
from blis_jax.policies.described.regime_switched import RegimeSwitchedParams, best_in_regime
from blis_jax.policies.described.shared import mean_over_active
from blis_jax.policies.numbers import number
from blis_jax.policies.scorers.cache import prefix_share

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


def stay_number() -> Any:
    """The number of a regime that says where it is left."""
    return number(
        0.7, "", "share of a threshold down to which a regime stays; 1: left where it is entered",
        low=0, high=1, search=(0.2, 1),
    )  # fmt: skip


def kept(is_in: Any, value: Any, threshold: Any, stay: Any) -> Any:
    """Whether a regime holds: entered above the threshold, left at `stay` times it or below."""
    return value > jnp.where(is_in, exact_product(stay, threshold), threshold)


@pytree
class RegimeKeptParams(RegimeSwitchedParams):
    """Where the regimes begin and end, and the weights in each."""

    stay: Float[Array, ""] = stay_number()


@pytree
class RegimeState:
    """The regimes that hold since the last decision."""

    is_pressed: Bool[Array, ""]
    is_busy: Bool[Array, ""]


def calm(params: Any, shape: Any) -> RegimeState:
    """Neither pressed nor busy."""
    del params, shape
    return RegimeState(jnp.zeros((), bool), jnp.zeros((), bool))


@routing_policy(RegimeKeptParams, calm, reads_prefix_index=True)
def regime_kept(
    params: RegimeKeptParams, state: RegimeState, context: GatewayContext
) -> tuple[Int[Array, ""], RegimeState]:
    """Weights by regime as in regime-switched, but a regime is left at a lower threshold than it is entered."""
    seen = context.snapshots
    fullest = jnp.max(jnp.where(seen.is_active, seen.kv_utilization, 0.0))
    load = mean_over_active(seen, seen.effective_load)
    is_pressed = kept(state.is_pressed, fullest, params.kv_threshold, params.stay)
    is_busy = kept(state.is_busy, load, params.load_threshold, params.stay)
    return best_in_regime(params, context, is_pressed, is_busy), RegimeState(is_pressed, is_busy)


@pytree
class RegimeGatedParams:
    """From which load on classes are shed, and down to which."""

    load_threshold: Float[Array, ""] = number(
        50.0, "requests", "mean load per instance above which sheddable, batch and background are shed",
        low=0, search=(4, 400), prior="log-uniform",
    )  # fmt: skip
    standard_factor: Float[Array, ""] = number(
        2.0, "", "multiple of the threshold above which standard is shed", low=1, search=(1, 8)
    )
    stay: Float[Array, ""] = stay_number()


@pytree
class ShedState:
    """The classes that are shed since the last decision."""

    sheddable: Bool[Array, ""]
    standard: Bool[Array, ""]


def nothing_shed(params: Any, shape: Any) -> ShedState:
    """All classes are let in."""
    del params, shape
    return ShedState(jnp.zeros((), bool), jnp.zeros((), bool))


@admission_policy(RegimeGatedParams, nothing_shed)
def regime_gated(
    params: RegimeGatedParams, state: ShedState, context: GatewayContext
) -> tuple[Bool[Array, ""], ShedState]:
    """Shed sheddable classes from one mean load on down to a lower one, standard likewise later, critical never."""
    load = mean_over_active(context.snapshots, context.snapshots.effective_load)
    limit = params.load_threshold
    higher = exact_product(limit, params.standard_factor)
    sheds = kept(state.sheddable, load, limit, params.stay)
    sheds_standard = kept(state.standard, load, higher, params.stay)
    slo_class = context.request.slo_class
    is_shed = jnp.where(is_sheddable(slo_class), sheds, sheds_standard) & (slo_class != CRITICAL)
    return ~is_shed, ShedState(sheds, sheds_standard)


@pytree
class RegimeAffinityParams:
    """Where the busy regime begins and ends, and what affinity counts in it."""

    busy_load: Float[Array, ""] = number(
        20.0, "requests", "mean load per instance above which the cluster is busy",
        low=0, search=(1, 100), prior="log-uniform",
    )  # fmt: skip
    stay: Float[Array, ""] = stay_number()
    busy_share: Float[Array, ""] = number(
        0.0,
        "",
        "what a matched block counts in the busy regime, against one in the calm",
        low=0,
        high=1,
    )


@pytree
class BusyState:
    """The regime since the last decision."""

    is_busy: Bool[Array, ""]


def not_busy(params: Any, shape: Any) -> BusyState:
    """Calm."""
    del params, shape
    return BusyState(jnp.zeros((), bool))


@scorer(RegimeAffinityParams, not_busy, reads_prefix_index=True)
def regime_affinity(
    params: RegimeAffinityParams, state: BusyState, context: GatewayContext
) -> tuple[Float[Array, "instance"], BusyState]:
    """prefix-affinity that counts less from one mean load on down to a lower one."""
    load = mean_over_active(context.snapshots, context.snapshots.effective_load)
    is_busy = kept(state.is_busy, load, params.busy_load, params.stay)
    weight = jnp.where(is_busy, params.busy_share, jnp.float64(1.0))
    return exact_product(weight, prefix_share(context)), BusyState(is_busy)
