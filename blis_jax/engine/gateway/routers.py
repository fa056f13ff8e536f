"""What chooses an instance: a routing policy, scorers and a picker. The decode pool may have its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.core.types import Mechanism, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from blis_jax.policies.contract import Policy


@dataclass(frozen=True)
class Router:
    """The functions: static, hashable."""

    routing: Policy
    scorers: tuple[Policy, ...]
    picker: Policy

    @property
    def policies(self) -> tuple[Policy, ...]:
        """In the order of their states."""
        return (self.routing, *self.scorers, self.picker)


@pytree
class RouterParams:
    """The numbers, as `PolicyParams` has them for the cluster's router."""

    routing: Any  # the policy's numbers
    scorers: tuple[Any, ...]
    scorer_weights: Float[Array, "scorer"]  # as given
    picker: Any  # likewise
    draws: Any = None  # of a stream of its own, see GatewayContext; None: the cluster's

    @property
    def policies(self) -> tuple[Any, ...]:
        """In the order of `Router.policies`."""
        return (self.routing, *self.scorers, self.picker)


def of_cluster(mechanism: Mechanism) -> Router:
    """The cluster's router."""
    return Router(mechanism.routing, mechanism.scorers, mechanism.picker)
