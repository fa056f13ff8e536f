"""How many inter-token latencies of completed requests each step record holds, in fixed shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.engine.state import Dyn
from blis_jax.memory.block_tables.blocks import Eviction
from blis_jax.results.from_tables import Observation
from blis_jax.results.records import RequestRecords, Status, StepRecords

if TYPE_CHECKING:
    from jaxtyping import Array, Int


def completed_counts(
    seen: Observation, requests: RequestRecords, steps: StepRecords, is_needed: jax.Array
) -> Int[Array, "record"]:
    """As `step_records.completed_itl_counts`; `is_needed` is false where all latencies are completed requests'."""

    def less_unfinished() -> jax.Array:
        return steps.num_itl - steps.num_steps * _num_unfinished(seen, requests, steps)

    if steps.num_completed_itl is not None:
        return steps.num_completed_itl
    return lax.cond(is_needed, less_unfinished, lambda: steps.num_itl)


def _num_unfinished(
    seen: Observation, requests: RequestRecords, steps: StepRecords
) -> Int[Array, "record"]:
    """How many decodes of unfinished requests are under way in each record.

    Each lasts from the record after its first token's up to the end, or to the record before the one whose step
    evicts it. The records are put by instance, so that one running sum counts for all instances.
    """
    size, lives = len(steps.instance), seen.lives
    bits = max(size - 1, 1).bit_length()
    record = lax.iota(jnp.int64, size)
    group = jnp.where(steps.num_steps > 0, steps.instance, seen.num_instances)
    order = jnp.sort((group << bits) | record) & (2**bits - 1)
    place = jnp.zeros(size, jnp.int64).at[order].set(record)
    goes_on = (requests.status == int(Status.RUNNING)) & (requests.token_step_idx >= 0)
    gave_up = requests.ended_step_idx
    is_left = goes_on if gave_up is None else (gave_up > 0) & (requests.token_step_idx >= 0)
    goes_on = goes_on | is_left
    evictions = lives.evictions
    of = jnp.where(lives.is_eviction, evictions[:, Eviction.REQUEST], 0)
    is_open = (requests.status[of] != int(Status.COMPLETED)) | lives.is_forgotten
    began = jnp.abs(evictions[:, Eviction.DECODE_RECORD])
    ends = lives.is_eviction & is_open & (began > 0)
    change = jnp.zeros(size + 1, jnp.int64)
    for is_one, at, amount in (
        (goes_on, place[jnp.clip(seen.dyn[:, Dyn.TOKEN_RECORD], 0, size - 1)], 1),
        (ends, place[jnp.clip(began - 1, 0, size - 1)], 1),
        (ends, place[jnp.clip(evictions[:, Eviction.RECORD], 0, size - 1)] - 1, -1),
        *(
            []
            if gave_up is None
            else [(is_left, _last_before(seen, requests, group, order, bits), -1)]
        ),
    ):
        change = change.at[jnp.where(is_one, at, size)].add(jnp.where(is_one, amount, 0))
    # what has begun before each place; a group's own is what has since its first place
    begun = jnp.cumsum(change) - change
    first = jnp.searchsorted(group[order], jnp.arange(seen.num_instances + 1))
    # a request that came with its KV has a latency in the record of its token, too
    joined = jnp.zeros(size, jnp.int64)
    if seen.journey is not None:
        at = jnp.clip(seen.dyn[:, Dyn.TOKEN_RECORD], 0, size - 1)
        joined = joined.at[at].add(jnp.where(goes_on, lives.num_handed, 0))
    return begun[place] - begun[first[group]] + joined


def _last_before(
    seen: Observation, requests: RequestRecords, group: Any, order: Any, bits: int
) -> Int[Array, "request"]:
    """Place of the last record of each request's instance when the request left the batch early."""
    record = seen.raw.exits.record[: seen.num_requests].astype(jnp.int64)
    keys = (group[order].astype(jnp.int64) << bits) | order
    wanted = (jnp.maximum(requests.instance, 0) << bits) | record
    return jnp.searchsorted(keys, wanted) - 1
