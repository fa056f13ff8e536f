"""Everything is admitted, or nothing. Source: BLIS `sim/admission.go`."""

from __future__ import annotations

from typing import Any

from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, admission_policy

Decision = tuple["jax.Array", Any]


@admission_policy()
def always_admit(params: NoParams, state: NoState, context: GatewayContext) -> Decision:
    """Everything is admitted."""
    del params, context
    return jnp.array(True), state


@admission_policy()
def reject_all(params: NoParams, state: NoState, context: GatewayContext) -> Decision:
    """Nothing is admitted."""
    del params, context
    return jnp.array(False), state
