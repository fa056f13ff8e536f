"""A scorer of one's own, promoted in docs/how-to/promote.md: prefers the instance with the least work left."""

from typing import Any

import jax.numpy as jnp

from blis_jax.policies import number, pytree, scorer


@pytree
class CalmParams:
    """What a request that waits counts beside one that runs."""

    waiting: Any = number(2.0, "", "weight of a waiting request", low=0, high=10)


@scorer(CalmParams)
def calm(params, state, context):
    """1 without requests, the less the more of them run or wait."""
    seen = context.snapshots
    work = seen.batch_size + params.waiting * (seen.queue_depth + seen.num_pending)
    return 1.0 / (1.0 + work.astype(jnp.float64)), state
