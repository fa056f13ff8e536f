"""When a client gives up waiting, and how soon it wants its first token."""

from __future__ import annotations

from blis_jax.workload.reference.requests import NO_DEADLINE
from blis_jax.workload.revised.spec import RevisedClient
from blis_jax.workload.spec import ClientSpec

SESSION_TIMEOUT_US = 300_000_000  # of requests that others wait for


def timeout_of(spec: ClientSpec, is_round: bool) -> int:
    """Microseconds from an arrival to its deadline; 0: none.

    Rounds of sessions, and all requests of a closed loop, have a deadline unless the file says otherwise.
    """
    if not isinstance(spec, RevisedClient):
        return 0
    if spec.timeout is not None:
        return spec.timeout
    return SESSION_TIMEOUT_US if is_round or spec.is_closed_loop else 0


def slo_target_us(spec: ClientSpec) -> int:
    """The client's bound on the time to the first token, 0 for none."""
    return (spec.slo_target_us or 0) if isinstance(spec, RevisedClient) else 0


def deadline_us(spec: ClientSpec, arrival_us: int, is_round: bool) -> int:
    """The deadline of a request that arrives at this time, NO_DEADLINE for none."""
    timeout_us = timeout_of(spec, is_round)
    return arrival_us + timeout_us if timeout_us else NO_DEADLINE
