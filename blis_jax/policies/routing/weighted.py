"""Routing by the scorers. Source: BLIS `sim/routing.go`."""

from __future__ import annotations

from typing import Any

from blis_jax.lazy import jax
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, routing_policy

Choice = tuple["jax.Array", Any]


@routing_policy()
def weighted(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """The instance that the picker takes by the scores."""
    del params
    return context.picked, state
