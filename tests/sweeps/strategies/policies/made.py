"""Waiting requests made by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import RequestView
from blis_jax.policies.contexts import LeadingContents, QueueContext
from blis_jax.policies.contract import Policy

NOW_US = 1_000_000


def queue(
    classes: list[int],
    ages_us: list[int],
    prompts: list[int] | None = None,
    waiting: list[bool] | None = None,
    **more: Any,
) -> QueueContext:
    """A queue of requests of some classes and ages, ranked as they are listed."""
    count = len(classes)
    rank = jnp.arange(count, dtype=jnp.int32)
    arrival = NOW_US - jnp.asarray(ages_us, jnp.int64)
    view = RequestView(
        slo_class=jnp.asarray(classes, jnp.int32),
        input_len=jnp.asarray(prompts or [100] * count, jnp.int32),
        arrival_us=arrival,
        tenant=rank,
        tie_rank=rank,
        queue_rank=rank,
    )
    return QueueContext(
        request=view,
        is_waiting=jnp.asarray(waiting or [True] * count),
        queued_us=arrival,
        num_expected_blocks=jnp.asarray(more.pop("expected", [0] * count), jnp.int32),
        queue_depth=jnp.int32(count),
        now_us=jnp.int64(NOW_US),
        instance=jnp.int32(0),
        key=jax.random.key(0),
        **more,
    )


def paths(*given: list[tuple[int, int]]) -> LeadingContents:
    """The contents on each prompt's path as (content, blocks), one behind the other."""
    depth = max(len(path) for path in given)
    rows = np.zeros((3, len(given), depth), np.int32)
    rows[0] = -1
    for number, path in enumerate(given):
        start = 0
        for place, (content, length) in enumerate(path):
            rows[:, number, place] = content, start, length
            start += length
    return LeadingContents(*(jnp.asarray(one) for one in rows))


def asked(policy: Policy, context: QueueContext, **numbers: float) -> Any:
    """What the policy decides, as numpy."""
    given = policy.with_numbers(**numbers)
    with runtime_infinity(jnp.float64(np.inf)):
        decision = policy.decide(given.values(), given.start(given.values(), None), context)[0]
    return jax.tree.map(np.asarray, decision)
