"""An event source of one's own: a fault that makes the steps of one instance longer between two times.

    blis-jax run --model meta-llama/llama-3.1-8b-instruct --num-instances 2 --workload chatbot \
        --event-source examples/policies/fault.py:slow_instance --policy-numbers source.factor=3,source.until_s=20
"""

from typing import Any

import jax.numpy as jnp

from blis_jax.policies import Happening, event_source, figure, number, pytree


@pytree
class Fault:
    """Where and when it is, and how bad."""

    instance: Any = number(0, "", "index of the slow instance", low=0, is_whole=True)
    factor: Any = number(2, "", "its step time ÷ that without the fault", low=0, excludes_low=True)
    from_s: Any = number(1, "s", "when the fault begins", low=0)
    until_s: Any = number(10, "s", "when it ends", low=0)


@pytree
class Course:
    """How far it has come."""

    stage: Any  # int32: 0 before the fault, 1 while it lasts, 2 after it
    slowed_requests: Any  # int32


def next_time(params, state):
    """Return when the fault begins or, once it has begun, when it ends, in µs."""
    return jnp.array([params.from_s * 1e6, params.until_s * 1e6, jnp.inf])[state.stage]


def is_slow(params, state, instance):
    """Return whether the fault slows this instance now."""
    return (state.stage == 1) & (instance == params.instance)


def observe(params, state, completion):
    """Count the requests that the slow instance completes."""
    return Course(state.stage, state.slowed_requests + is_slow(params, state, completion.instance))


@event_source(
    Fault,
    start=lambda params, shape: Course(jnp.int32(0), jnp.int32(0)),
    observe=observe,
    next_time=next_time,
    step_time=lambda params, state, instance, time_us: jnp.where(
        is_slow(params, state, instance), params.factor * time_us, time_us
    ),
    figures=(figure("slowed_requests", "1", "requests completed meanwhile", better="lower"),),
)
def slow_instance(params, state, context):
    """The fault begins or ends; a step takes the time that was right when it began."""
    return Happening(), Course(state.stage + 1, state.slowed_requests)
