"""The time for which instances are paid: from the order for one until it is empty and no more wanted.

A cluster policy says which instances are held. One that is let go is paid until the end of its last step. Time is added
up whenever the policy acts, and once more when the run has ended. A mechanism without a cluster policy has nothing of
this in its program: there every instance is paid from the beginning to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import pytree
from blis_jax.lazy import jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


@pytree
class PaidTime:
    """What has been paid so far; times in µs, clock dtype."""

    is_held: Int[Array, "instance"]  # 1: the cluster policy wants it, or it has been ordered
    paid_us: Array  # clock[instance]
    until: Array  # clock: up to here it is added up


def nothing_paid(num_rows: int, clock: Any) -> PaidTime:
    """All instances are held from time 0 on."""
    held = jnp.ones((num_rows,), jnp.int32)
    return PaidTime(held, jnp.zeros((num_rows,), clock), jnp.zeros((), clock))


def is_paid(paid: PaidTime, load: Any, busy_until: Any, now: Any) -> Bool[Array, "instance"]:
    """Instances that cost something at `now`: held, or not yet done with what they were given."""
    return (paid.is_held == 1) | (load > 0) | (busy_until > now)


def paid_until(paid: PaidTime, load: Any, busy_until: Any, now: Any, xp: Any) -> Any:
    """What each instance has been paid for `[instance]` until `now`, in arrays of `xp`: numpy or JAX.

    An instance that is down gets no new request, so one that is empty now has been so since its last step.
    """
    is_on = (paid.is_held == 1) | (load > 0)
    last = xp.minimum(xp.maximum(busy_until, paid.until), now)
    return paid.paid_us + xp.where(is_on, now, last) - paid.until
