"""Weights, gates and affinity by the regime that the cluster is in; some leave it at a lower load than they enter it.

Sources: of `match_switched`, iteration 2 of the routing track, of which the code is lost ("if any instance matches,
3:2:2, else qd1 kv1"); of the others, its principle RP-7, which names best weights for three regimes, and no rule that
tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import CRITICAL
from blis_jax.lazy import jnp
from blis_jax.policies.admission import mean_load
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoState, admission_policy, routing_policy, scorer
from blis_jax.policies.numbers import number
from blis_jax.policies.routing.by_score import Profile, best_by
from blis_jax.policies.scorers import prefix_share

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


def matches(context: GatewayContext) -> Int[Array, "instance"]:
    """Return the number of the prompt's blocks in the router's index, 0 on inactive instances."""
    seen = context.snapshots
    return jnp.where(seen.is_active, seen.prefix_match_blocks, 0)


def _weight(default: float, scorer: str, regime: str) -> Any:
    is_queue = scorer == "queue-depth"
    return number(
        default, "", f"weight of {scorer} {regime}",
        low=0, excludes_low=is_queue, search=(0.1 if is_queue else 0, 8),
    )  # fmt: skip


@pytree
class MatchSwitchedParams:
    """The weights on a match, and those without one."""

    affinity: Float[Array, ""] = _weight(3.0, "prefix-affinity", "on a match")
    queue: Float[Array, ""] = _weight(2.0, "queue-depth", "on a match")
    kv: Float[Array, ""] = _weight(2.0, "kv-utilization", "on a match")
    queue_alone: Float[Array, ""] = _weight(1.0, "queue-depth", "where nothing matches")
    kv_alone: Float[Array, ""] = _weight(1.0, "kv-utilization", "where nothing matches")


@routing_policy(MatchSwitchedParams)
def match_switched(
    params: MatchSwitchedParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """Choose by weighted scores, with other weights for a prompt that no instance has a block of; of
    equals the first.
    """
    is_match = jnp.any(matches(context) > 0)
    profile = Profile(
        jnp.where(is_match, params.affinity, 0.0),
        jnp.where(is_match, params.queue, params.queue_alone),
        jnp.where(is_match, params.kv, params.kv_alone),
    )
    return best_by(profile, context), state


@pytree
class RegimeSwitchedParams:
    """The load and KV utilisation at which the regimes begin, and the weights in each."""

    kv_threshold: Float[Array, ""] = number(
        0.5, "", "highest KV utilisation of an instance above which the cluster is pressed",
        low=0, high=1,
    )  # fmt: skip
    load_threshold: Float[Array, ""] = number(
        16.0, "requests", "mean load per instance above which the cluster is busy",
        low=0, search=(1, 400), prior="log-uniform",
    )  # fmt: skip
    affinity_calm: Float[Array, ""] = _weight(3.0, "prefix-affinity", "in calm")
    queue_calm: Float[Array, ""] = _weight(2.0, "queue-depth", "in calm")
    kv_calm: Float[Array, ""] = _weight(2.0, "kv-utilization", "in calm")
    affinity_busy: Float[Array, ""] = _weight(4.0, "prefix-affinity", "when busy")
    queue_busy: Float[Array, ""] = _weight(3.0, "queue-depth", "when busy")
    kv_busy: Float[Array, ""] = _weight(0.0, "kv-utilization", "when busy")
    affinity_pressed: Float[Array, ""] = _weight(3.0, "prefix-affinity", "when pressed")
    queue_pressed: Float[Array, ""] = _weight(2.0, "queue-depth", "when pressed")
    kv_pressed: Float[Array, ""] = _weight(0.0, "kv-utilization", "when pressed")


@routing_policy(RegimeSwitchedParams)
def regime_switched(
    params: RegimeSwitchedParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """Choose by weighted scores with the weights of the regime: pressed by KV use, else busy by load, else calm."""
    seen = context.snapshots
    fullest = jnp.max(jnp.where(seen.is_active, seen.kv_utilization, 0.0))
    is_pressed = fullest > params.kv_threshold
    is_busy = mean_load(seen) > params.load_threshold
    return best_in_regime(params, context, is_pressed, is_busy), state


def best_in_regime(
    params: RegimeSwitchedParams, context: GatewayContext, is_pressed: Any, is_busy: Any
) -> Int[Array, ""]:
    """Return the best instance by the weights of the regime; pressed comes before busy."""

    def of_regime(pressed: Any, busy: Any, calm: Any) -> Any:
        return jnp.where(is_pressed, pressed, jnp.where(is_busy, busy, calm))

    profile = Profile(
        of_regime(params.affinity_pressed, params.affinity_busy, params.affinity_calm),
        of_regime(params.queue_pressed, params.queue_busy, params.queue_calm),
        of_regime(params.kv_pressed, params.kv_busy, params.kv_calm),
    )
    return best_by(profile, context)


def stay_number() -> Any:
    """Return the declaration of a number that sets where a regime is left."""
    return number(
        0.7, "", "share of a threshold down to which a regime stays; 1: left where it is entered",
        low=0, high=1, search=(0.2, 1),
    )  # fmt: skip


def kept(is_in: Any, value: Any, threshold: Any, stay: Any) -> Any:
    """Return whether a regime holds: entered above the threshold, left at `stay` times it or below."""
    return value > jnp.where(is_in, exact_product(stay, threshold), threshold)


@pytree
class RegimeKeptParams(RegimeSwitchedParams):
    """The load and KV utilisation at which the regimes begin and end, and the weights in each."""

    stay: Float[Array, ""] = stay_number()


@pytree
class RegimeState:
    """The regimes that hold since the last decision."""

    is_pressed: Bool[Array, ""]
    is_busy: Bool[Array, ""]


def calm(params: Any, shape: Any) -> RegimeState:
    """Return the state that is neither pressed nor busy."""
    return RegimeState(jnp.zeros((), bool), jnp.zeros((), bool))


@routing_policy(RegimeKeptParams, calm)
def regime_kept(
    params: RegimeKeptParams, state: RegimeState, context: GatewayContext
) -> tuple[Int[Array, ""], RegimeState]:
    """Choose by weights of the regime as in regime-switched, but leave a regime at a lower threshold
    than it is entered.
    """
    seen = context.snapshots
    fullest = jnp.max(jnp.where(seen.is_active, seen.kv_utilization, 0.0))
    load = mean_load(seen)
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
    """Return the state in which all classes are let in."""
    return ShedState(jnp.zeros((), bool), jnp.zeros((), bool))


@admission_policy(RegimeGatedParams, nothing_shed)
def regime_gated(
    params: RegimeGatedParams, state: ShedState, context: GatewayContext
) -> tuple[Bool[Array, ""], ShedState]:
    """Shed sheddable classes above a mean load until it has fallen, standard above a higher one, critical never."""
    load = mean_load(context.snapshots)
    limit = params.load_threshold
    higher = exact_product(limit, params.standard_factor)
    sheds = kept(state.sheddable, load, limit, params.stay)
    sheds_standard = kept(state.standard, load, higher, params.stay)
    slo_class = context.request.slo_class
    is_shed = jnp.where(is_sheddable(slo_class), sheds, sheds_standard) & (slo_class != CRITICAL)
    return ~is_shed, ShedState(sheds, sheds_standard)


@pytree
class RegimeAffinityParams:
    """The loads at which the busy regime begins and ends, and the weight of affinity in it."""

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
    """Return the calm state."""
    return BusyState(jnp.zeros((), bool))


@scorer(RegimeAffinityParams, not_busy)
def regime_affinity(
    params: RegimeAffinityParams, state: BusyState, context: GatewayContext
) -> tuple[Float[Array, "instance"], BusyState]:
    """Score prefix-affinity, which counts less from one mean load on down to a lower one."""
    load = mean_load(context.snapshots)
    is_busy = kept(state.is_busy, load, params.busy_load, params.stay)
    weight = jnp.where(is_busy, params.busy_share, jnp.float64(1.0))
    return exact_product(weight, prefix_share(context)), BusyState(is_busy)
