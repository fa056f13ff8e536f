"""Off-load tiers at the instances: contents of the CPU and the storage behind it, transfers, and waiting requests.

A program has these tables only where KV blocks are off-loaded. The content and the last use of each entry of the CPU
tier are in `Blocks` (`cpu_key`, `cpu_time`), as without storage.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

from blis_jax.core.pytrees import pytree
from blis_jax.tables.blocks import num_contents

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Bool, Float, Int

    from blis_jax.core.types import EngineShape


class WaitPhase(enum.IntEnum):
    """The phase of a request's wait for blocks of its prompt."""

    NONE = 0
    LOOK_UP = 1  # its blocks have not been asked for yet
    WAIT = 2  # until all are on the CPU
    SETTLED = 3  # it waits no longer


class JobState(enum.IntEnum):
    """The state of a transfer between the CPU and storage."""

    NONE = 0
    QUEUED = 1
    SERVED = 2
    DONE = 3  # and the CPU tier has not heard of it yet


class Count(enum.IntEnum):
    """The counters of an instance."""

    JOBS = 0  # transfers begun
    DRAWS = 1  # of the normal stream
    DONE = 2  # transfers that have ended since the CPU tier heard of some
    CHANGES = 3  # of waits, since the step in progress began
    FETCHES = 4  # runs of blocks that come back from storage
    REFUSALS = 5  # runs for which the CPU had no room
    DEFERRALS = 6  # requests that began to wait
    SKIPS = 7  # blocks that found no room on the CPU
    EVICTIONS = 8  # blocks that gave way there


@pytree
class OffloadParams:
    """The numbers of the tiers, all traced; sizes in bytes, bandwidths in bytes/µs, times in µs."""

    block_bytes: Float[Array, ""]
    is_prompt_only: Bool[Array, ""]
    read_bandwidth: Float[Array, "tier"]
    write_bandwidth: Float[Array, "tier"]
    base_us: Float[Array, "tier"]
    depth: Float[Array, "tier"]  # transfers at once from which on all the bandwidth is there
    fraction: Float[Array, "tier"]  # of the bandwidth, that one transfer has
    jitter: Float[Array, "tier"]
    num_readers: Int[Array, "tier"]
    num_writers: Int[Array, "tier"]
    normals: Float[Array, "draw"]


@pytree
class Jobs:
    """Transfers of one instance (in the table: of all): first each entry's writes to each tier, then its reads."""

    status: Int[Array, "*instance job"]  # JobState
    number: Int[Array, "*instance job"]
    tier: Int[Array, "*instance job"]
    num_blocks: Int[Array, "*instance job"]
    by_writer: Int[Array, "*instance job"]  # the kind of thread that serves it
    done_at: Int[Array, "*instance job"]  # number among those that have ended
    submitted: Int[Array, "*instance job"]  # µs, likewise the next
    ends: Int[Array, "*instance job"]
    factor: Float[Array, "*instance job"]  # of its time


@pytree
class Waits:
    """Requests by slot that wait for blocks or have waited, of one instance (in the table: of all)."""

    request: Int[Array, "*instance slot"]
    phase: Int[Array, "*instance slot"]  # WaitPhase
    first: Int[Array, "*instance slot"]  # block of its prompt
    count: Int[Array, "*instance slot"]
    tier: Int[Array, "*instance slot"]
    since: Int[Array, "*instance slot"]  # µs


@pytree
class KnownContents:
    """What is known of contents at all instances, indexed by their place in the table from content to block.

    Places are reused: an entry counts only where the name is the same.
    """

    entry: Int[Array, "instance content"]  # of the CPU tier, that had it last
    known: Int[Array, "instance content"]  # name that storage was asked about
    held: Int[Array, "instance tier content"]  # name that a tier has


@pytree
class OffloadTable:
    """Off-load tiers of every instance, a spare row included."""

    num_writes: Int[Array, "*lane instance entry"]  # on their way to storage
    is_pending: Bool[Array, "*lane instance entry"]  # on its way from there
    run: Int[Array, "*lane instance entry"]  # the first entry of those that come together
    place: Int[Array, "*lane instance entry"]  # among these
    jobs: Jobs
    waits: Waits
    counts: Int[Array, "*lane instance count"]
    contents: KnownContents

    @classmethod
    def first(cls, shape: EngineShape, num_tiers: int) -> OffloadTable:
        """Return the tables of tiers without contents."""
        rows, entries = shape.num_instances + 1, shape.mirror_size + 1
        each, places = jnp.zeros((rows, entries), jnp.int32), num_contents(shape) + 1
        job = jnp.zeros((rows, (num_tiers + 1) * entries), jnp.int32)
        slot = jnp.zeros((rows, shape.num_slots), jnp.int32)
        tier = jnp.broadcast_to(lax.iota(jnp.int32, job.shape[1]) // entries, job.shape)
        long = job.astype(jnp.int64)
        return cls(
            num_writes=each,
            is_pending=each == 1,
            run=each,
            place=each,
            jobs=Jobs(job, job, tier, job, job, job, long, long, job.astype(jnp.float64)),
            waits=Waits(slot, slot, slot, slot, slot, slot.astype(jnp.int64)),
            counts=jnp.zeros((rows, len(Count)), jnp.int32),
            contents=KnownContents(
                jnp.full((rows, places), entries - 1, jnp.int32),
                jnp.zeros((rows, places), jnp.int64),
                jnp.zeros((rows, num_tiers, places), jnp.int64),
            ),
        )


@pytree
class OffloadCounts:
    """The counters that results read: `OffloadTable.counts`."""

    of: Int[Array, "*lane instance count"]


@pytree
class Forgotten:
    """A slot whose request has got its blocks, so that its wait ends."""

    instance: Int[Array, ""]
    slot: Int[Array, ""]
    is_it: Bool[Array, ""]

    def put(self, table: OffloadTable) -> OffloadTable:
        """Return the tiers without the wait of this slot's request."""
        phase, at = table.waits.phase, (self.instance, self.slot)
        kept = jnp.where(self.is_it, jnp.int32(WaitPhase.NONE), phase[at])
        waits = dataclasses.replace(table.waits, phase=phase.at[at].set(kept))
        return dataclasses.replace(table, waits=waits)


def waits_of(table: OffloadTable, instance: jax.Array, request: jax.Array) -> jax.Array:
    """Return the wait phase of the request in every slot of an instance."""
    waits = table.waits
    is_it = waits.request[instance] == request
    return jnp.where(is_it, waits.phase[instance], jnp.int32(WaitPhase.NONE))
