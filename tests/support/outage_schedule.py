"""A cluster policy that carries out a schedule of changes, for tests of outages of several instances."""

from typing import Any

import jax.numpy as jnp

from blis_jax.policies import ClusterChange, ClusterContext, Policy, cluster_policy, number, pytree

NUM_CHANGES = 8
NEVER_US = 1e12
Changes = list[tuple[int, dict[int, int]]]
"""(time in µs, what becomes of running requests by instance): one that is up fails, one that is down comes up."""


def _numbers() -> dict[str, Any]:
    found = {"delay_us": number(0, "us", "until a queue is routed again", low=0, high=1e9)}
    for at in range(NUM_CHANGES):
        found |= {
            f"time_{at}": number(NEVER_US, "us", "when", low=0, high=NEVER_US),
            f"instance_{at}": number(0, "instance", "who", low=0, high=100),
            f"running_{at}": number(0, "", "0 finish, 1 again, 2 lost", low=0, high=2),
        }
    return found


NUMBERS = _numbers()
ScheduleParams = pytree(
    type("ScheduleParams", (), {"__annotations__": dict.fromkeys(NUMBERS, Any), **NUMBERS})
)


@pytree
class ScheduleState:
    """The time of the latest change, µs."""

    acted_us: Any


def _columns(params: Any, name: str) -> Any:
    return jnp.stack([getattr(params, f"{name}_{at}") for at in range(NUM_CHANGES)])


def _next_time(params: Any, state: Any) -> Any:
    times = _columns(params, "time")
    is_to_come = (times > state.acted_us) & (times < NEVER_US)
    return jnp.min(jnp.where(is_to_come, times, jnp.inf))


@cluster_policy(
    ScheduleParams,
    start=lambda params, shape: ScheduleState(jnp.float64(-1)),
    next_time=_next_time,
)
def scheduled(params: Any, state: Any, context: ClusterContext) -> Any:
    """All changes of this time at once."""
    now = _next_time(params, state)
    place = jnp.arange(context.is_up.shape[0], dtype=jnp.float64)
    is_now = _columns(params, "time")[:, None] == now
    is_it = (_columns(params, "instance")[:, None] == place[None, :]) & is_now
    fails = jnp.any(is_it, axis=0) & context.is_up
    running = jnp.max(jnp.where(is_it, _columns(params, "running")[:, None], 0.0), axis=0)
    change = ClusterChange(
        is_up=context.is_up ^ jnp.any(is_it, axis=0),
        queue_leaves=fails,
        delay_us=params.delay_us,
        stops=fails & (running > 0),
        loses=fails & (running > 1),
    )
    return change, ScheduleState(now)


def schedule_of(changes: Changes, delay_us: int) -> Policy:
    """The policy with these changes; of one time, every instance once."""
    flat = [(at, one, running) for at, ones in changes for one, running in ones.items()]
    assert len(flat) <= NUM_CHANGES, len(flat)
    given: dict[str, float] = {"delay_us": delay_us}
    for place, (at, one, running) in enumerate(flat):
        given |= {f"time_{place}": at, f"instance_{place}": one, f"running_{place}": running}
    return scheduled.with_numbers(**given)
