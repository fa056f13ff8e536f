"""One request and the router's view of a few instances, made by hand."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.types import EngineShape
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import Policy
from sweeps.principles.probes import context_of

SHAPE = EngineShape(num_instances=1, num_slots=1, num_requests=1, num_nodes=0, path_depth=1)


def asked(
    loads: list[int],
    slo_class: int = 2,
    utilization: list[float] | None = None,
    matched: list[int] | None = None,
    blocks: int = 4,
    input_len: int | None = None,
    **seen: Any,
) -> GatewayContext:
    """A context with a prompt of some 16-token blocks; other fields of the snapshots as lists by name."""
    size = len(loads)
    context = context_of(
        np.array(loads),
        np.array(utilization or [0.0] * size),
        np.array(matched or [0] * size),
        blocks,
        slo_class,
    )
    fields = vars(context.snapshots)
    changed = {
        name: jnp.asarray(values, None if fields[name] is None else fields[name].dtype)
        for name, values in seen.items()
    }
    context = dataclasses.replace(
        context, snapshots=dataclasses.replace(context.snapshots, **changed)
    )
    if input_len is None:
        return context
    request = dataclasses.replace(context.request, input_len=jnp.int32(input_len))
    return dataclasses.replace(context, request=request)


def decision(policy: Policy, context: GatewayContext, **numbers: float) -> Any:
    """What the policy decides at first, as numpy; compiled, as in a run."""
    given = policy.with_numbers(**numbers)
    return np.asarray(_first_decision(given.function(), given.values(), context))


@functools.partial(jax.jit, static_argnums=0)
def _first_decision(policy: Policy, params: Any, context: GatewayContext) -> Any:
    return policy.decide(params, policy.start(params, SHAPE), context)[0]
