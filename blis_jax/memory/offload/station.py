"""Transfers between the CPU and storage: threads of each tier, two queues, and how long a transfer takes.

A thread that is free takes the next transfer of its own direction, else one of the other. The clock moves only when a
transfer is submitted or the CPU tier asks; what has ended by then waits until that asks.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.tables.offload import Count, Jobs, JobState, OffloadParams

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

FOREVER = jnp.iinfo(jnp.int64).max
LEAST_FACTOR = 0.05


def is_read(jobs: Jobs, numbers: OffloadParams) -> Bool[Array, "job"]:
    """Return which transfers come from storage: the last ones."""
    count, tiers = jobs.status.shape[0], numbers.base_us.shape[0]
    return lax.iota(jnp.int32, count) >= count // (tiers + 1) * tiers


def next_end(jobs: Jobs) -> jax.Array:
    """Return when the next transfer ends, FOREVER if none is on its way."""
    return jnp.min(jnp.where(jobs.status == JobState.SERVED, jobs.ends, FOREVER))


def advanced(
    numbers: OffloadParams,
    jobs: Jobs,
    counts: Int[Array, "count"],
    now: jax.Array,
    is_on: jax.Array,
) -> tuple[Jobs, Int[Array, "count"]]:
    """Return the transfers once the clock has come to `now`, if it `is_on`."""

    def goes_on(carry: tuple[Jobs, jax.Array]) -> jax.Array:
        return is_on & (next_end(carry[0]) <= now)

    def end(carry: tuple[Jobs, jax.Array]) -> tuple[Jobs, jax.Array]:
        jobs, counts = carry
        return _ended(numbers, jobs, counts)

    return lax.while_loop(goes_on, end, (jobs, counts))


def submitted(
    numbers: OffloadParams,
    jobs: Jobs,
    counts: Int[Array, "count"],
    at: jax.Array,
    tier: jax.Array,
    num_blocks: jax.Array,
    now: jax.Array,
    is_it: jax.Array,
) -> tuple[Jobs, Int[Array, "count"]]:
    """Return the transfers with another one, which a free thread takes at once."""
    jobs, counts = advanced(numbers, jobs, counts, now, is_it)
    here = is_it & (lax.iota(jnp.int32, jobs.status.shape[0]) == at)
    draws = is_it & (numbers.jitter[tier] > 0)
    draw = numbers.normals[jnp.minimum(counts[Count.DRAWS], numbers.normals.shape[0] - 1)]
    factor = jnp.maximum(LEAST_FACTOR, 1.0 + exact_product(draw, numbers.jitter[tier]))
    jobs = dataclasses.replace(
        jobs,
        status=jnp.where(here, jnp.int32(JobState.QUEUED), jobs.status),
        number=jnp.where(here, counts[Count.JOBS], jobs.number),
        tier=jnp.where(here, tier, jobs.tier),
        num_blocks=jnp.where(here, num_blocks, jobs.num_blocks),
        submitted=jnp.where(here, now, jobs.submitted),
        factor=jnp.where(here & draws, factor, jnp.where(here, 1.0, jobs.factor)),
    )
    counts = counts.at[Count.JOBS].add(is_it.astype(jnp.int32))
    counts = counts.at[Count.DRAWS].add(draws.astype(jnp.int32))
    busy = (jobs.status == JobState.SERVED) & (jobs.tier == tier)
    readers = jnp.sum(busy & (jobs.by_writer == 0), dtype=jnp.int32)
    writers = jnp.sum(busy & (jobs.by_writer == 1), dtype=jnp.int32)
    has_reader = readers < numbers.num_readers[tier]
    is_free = has_reader | (writers < numbers.num_writers[tier])
    by_writer = (~has_reader).astype(jnp.int32)
    return _begun(numbers, jobs, here, at, now, by_writer, is_free), counts


def _begun(
    numbers: OffloadParams,
    jobs: Jobs,
    here: Bool[Array, "job"],
    at: jax.Array,
    now: jax.Array,
    by_writer: jax.Array,
    is_it: jax.Array,
) -> Jobs:
    """The transfers in which this one is served from `now` on."""
    reads, tier = is_read(jobs, numbers), jobs.tier[at]
    is_alike = (jobs.status == JobState.SERVED) & (jobs.tier == tier) & (reads == reads[at])
    count = jnp.sum(is_alike & ~here, dtype=jnp.int32) + 1
    ends = now + _service_us(numbers, jobs, at, reads[at], count)
    here = here & is_it
    return dataclasses.replace(
        jobs,
        status=jnp.where(here, jnp.int32(JobState.SERVED), jobs.status),
        ends=jnp.where(here, ends, jobs.ends),
        by_writer=jnp.where(here, by_writer, jobs.by_writer),
    )


def _service_us(
    numbers: OffloadParams, jobs: Jobs, at: jax.Array, reads: jax.Array, count: jax.Array
) -> jax.Array:
    """How long a transfer takes, whole µs, when so many of its kind are served."""
    tier = jobs.tier[at]
    bandwidth = jnp.where(reads, numbers.read_bandwidth[tier], numbers.write_bandwidth[tier])
    depth, fraction = numbers.depth[tier], numbers.fraction[tier]
    others = (count - 1).astype(jnp.float64)
    share = exact_quotient(exact_product(1.0 - fraction, others), jnp.maximum(depth - 1.0, 1.0))
    is_whole = (depth < 2) | (fraction >= 1) | (fraction <= 0) | (others + 1.0 >= depth)
    bandwidth = jnp.where(is_whole, bandwidth, exact_product(bandwidth, fraction + share))
    size = exact_product(jobs.num_blocks[at].astype(jnp.float64), numbers.block_bytes)
    usual = numbers.base_us[tier] + jnp.trunc(exact_quotient(size, bandwidth))
    jittered = exact_product(usual, jobs.factor[at])
    cut = jnp.trunc(jittered)
    rounded = cut + (jittered - cut >= 0.5).astype(jnp.float64)  # halves away from zero
    return jnp.where(numbers.jitter[tier] > 0, rounded, usual).astype(jnp.int64)


def _ended(
    numbers: OffloadParams, jobs: Jobs, counts: Int[Array, "count"]
) -> tuple[Jobs, Int[Array, "count"]]:
    """The transfers once the next one has ended, and its thread has taken another."""
    now, reads = next_end(jobs), is_read(jobs, numbers)
    ending = (jobs.status == JobState.SERVED) & (jobs.ends == now)
    for column in (jobs.submitted, jobs.tier, (~reads).astype(jnp.int32), jobs.number):
        top = jnp.iinfo(column.dtype).max
        ending = ending & (column == jnp.min(jnp.where(ending, column, top)))
    at = jnp.argmax(ending)
    jobs = dataclasses.replace(
        jobs,
        status=jnp.where(ending, jnp.int32(JobState.DONE), jobs.status),
        done_at=jnp.where(ending, counts[Count.DONE], jobs.done_at),
    )
    counts = counts.at[Count.DONE].add(1)
    by_writer = jobs.by_writer[at]
    queued = (jobs.status == JobState.QUEUED) & (jobs.tier == jobs.tier[at])
    own = queued & (reads == (by_writer == 0))
    queued = jnp.where(jnp.any(own), own, queued)
    first = jnp.min(jnp.where(queued, jobs.number, jnp.iinfo(jnp.int32).max))
    here = queued & (jobs.number == first)
    after = jnp.argmax(here).astype(jnp.int32)
    return _begun(numbers, jobs, here, after, now, by_writer, jnp.any(here)), counts
