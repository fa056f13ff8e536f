"""Priority inversions in a compiled call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.types import SLO_CLASSES
from blis_jax.results.records import RequestRecords


def priority_inversions(requests: RequestRecords) -> jax.Array:
    """As `metrics.priority_inversions` where they count.

    Requests are put by instance and class, in order of arrival, and compared with the one that comes d places
    later, for every d up to the size of the largest group.
    """
    size = len(requests.status)
    bits = max(size - 1, 1).bit_length()
    place = lax.iota(jnp.int64, size)
    is_chosen = (requests.e2e_us >= 0) & (requests.instance >= 0)
    last = jnp.int64(1) << (62 - bits)
    group = jnp.where(
        is_chosen, requests.instance * len(SLO_CLASSES) + requests.slo_class, last
    ).astype(jnp.int64)
    keys = jnp.sort((group << bits) | place)
    order = keys & (2**bits - 1)
    group = keys >> bits
    e2e = requests.e2e_us[order]
    later_group = jnp.concatenate([group, jnp.full(size, -1, group.dtype)])
    later_e2e = jnp.concatenate([2 * e2e, jnp.zeros(size, e2e.dtype)])

    def of_distance(carry: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
        distance, count, _ = carry
        is_pair = lax.dynamic_slice(later_group, (distance,), (size,)) == group
        is_pair &= group < last
        is_above = e2e > lax.dynamic_slice(later_e2e, (distance,), (size,))
        return distance + 1, count + jnp.sum(is_pair & is_above), jnp.any(is_pair)

    start = jnp.int64(1), jnp.int64(0), jnp.asarray(True)
    return lax.while_loop(lambda c: c[2], of_distance, start)[1]
