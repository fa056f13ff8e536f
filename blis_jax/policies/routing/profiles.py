"""Weights of prefix affinity, load and KV use, which the routing track's policies change as they go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext
from blis_jax.policies.numbers import FIXED, number
from blis_jax.policies.routing.pickers import first_best_of
from blis_jax.policies.scorers.cache import free_share, prefix_share
from blis_jax.policies.scorers.load import depth_scores
from blis_jax.policies.scorers.sums import shares_of, weighted_sum

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class Profile:
    """Weights of three scorers; `kv` is None where the scorer of KV use has no part."""

    prefix: Float[Array, ""]
    depth: Float[Array, ""]
    kv: Any = None


def weight(default: float, scorer: str, case: str) -> Any:
    """A weight of a profile, declared as a number; that of `queue-depth` is above 0, so that no sum is 0."""
    return number(
        default, "", f"weight of {scorer} {case}",
        low=0, excludes_low=scorer == "queue-depth", search=(0.1, 10), setting=FIXED,
    )  # fmt: skip


def best_by(profile: Profile, context: GatewayContext) -> jax.Array:
    """The first active instance with the highest weighted sum of `prefix-affinity`, `queue-depth`, `kv-utilization`."""
    seen = context.snapshots
    scores = [prefix_share(context), depth_scores(seen)]
    weights = [profile.prefix, profile.depth]
    if profile.kv is not None:
        scores, weights = [*scores, free_share(context)], [*weights, profile.kv]
    shares = shares_of(jnp.stack(weights))
    return first_best_of(weighted_sum(scores, shares, seen.effective_load.shape), seen.is_active)
