"""What a policy of the gateway is asked with, made by hand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import EngineShape
from blis_jax.policies.contexts import GatewayContext, LeadingContents
from blis_jax.policies.contract import Policy
from sweeps.principles.probes import context_of

SHAPE = EngineShape(num_instances=4, num_slots=1, num_requests=1, num_nodes=0, path_depth=1)
TOTAL_BLOCKS = 1000


def asked(
    loads: Any,
    matched: Any = None,
    used: Any = None,
    content: int | None = None,
    own: int = 0,
    seed: int = 0,
    **more: Any,
) -> GatewayContext:
    """A prompt of 10 blocks, the first four of which are a shared content if one is given."""
    size = len(loads)
    matched = np.zeros(size, int) if matched is None else np.array(matched)
    used = np.zeros(size) if used is None else np.array(used)
    changes = {name: more.pop(name) for name in ("now_us", "picked", "is_active") if name in more}
    context = context_of(np.array(loads), used, matched, 10, total_blocks=TOTAL_BLOCKS, **more)
    path = [0 if content is None else content], [0], [0 if content is None else 4]
    if "is_active" in changes:
        active = jnp.asarray(changes.pop("is_active"))
        seen = dataclasses.replace(context.snapshots, is_active=active)
        changes["snapshots"] = seen
    return dataclasses.replace(
        context,
        request=dataclasses.replace(context.request, tie_rank=jnp.int32(own)),
        contents=LeadingContents(*(jnp.asarray(one, jnp.int32) for one in path)),
        run_key=jax.random.key(seed),
        **changes,
    )


def decided(policy: Policy, context: GatewayContext, state: Any = None, **numbers: float) -> Any:
    """The decision, and the state then."""
    params = policy.with_numbers(**numbers).values()
    with jax.enable_x64(True), runtime_infinity(np.float64(np.inf)):
        first = policy.start(params, SHAPE) if state is None else state
        return policy.decide(params, first, context)


def choice(policy: Policy, context: GatewayContext, **numbers: float) -> int:
    """The instance that a routing policy takes, or 0 and 1 of a gate."""
    return int(decided(policy, context, **numbers)[0])
