"""Off-load tiers: requests that wait for blocks of their prompt are passed over, and empty steps are made at once.

What the tiers hold and what they do in a step is memory's, see `memory/offload`. Source: BLIS as of August 2026,
`sim/kv` and `sim/simulator.go`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.engine.calendar import EventSource
from blis_jax.memory.memory import Subject, Visit
from blis_jax.memory.offload.here import FOREVER, next_end
from blis_jax.memory.offload.waits import LONGEST_WAIT_US
from blis_jax.tables.context import Context, SlotRows, Work, failing, row, waiting_mask
from blis_jax.tables.offload import (
    Count,
    Forgotten,
    OffloadParams,
    OffloadTable,
    WaitPhase,
    waits_of,
)
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


class OffloadTiers(EventSource):
    """The tables of off-load tiers, and what batches make of requests that wait for blocks."""

    carries = (Forgotten,)
    withholds = True
    repeats = True

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return tiers without contents."""
        numbers: OffloadParams = ctx.params.cluster[OffloadParams]
        return (OffloadTable.first(ctx.shape, numbers.base_us.shape[-1]),)

    def may_be_served(
        self, state: State, work: Work, instance: jax.Array, is_waiting: Bool[Array, "slot"]
    ) -> Bool[Array, "slot"]:
        """Return the requests that wait for no blocks."""
        phase = waits_of(state[OffloadTable], instance, SlotRows(state, instance).request)
        return is_waiting & (phase != WaitPhase.LOOK_UP) & (phase != WaitPhase.WAIT)

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return that a wait is forgotten of a request which held nothing and has got its blocks."""
        is_it = visit.asks & visit.is_granted & (subject.held == 0)
        return work.having(Forgotten(subject.instance, subject.slot, is_it))

    def repeated(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        until: jax.Array,
        rests: jax.Array,
    ) -> Work:
        """Return one step for all until a transfer ends, where nobody runs, all wait for storage, nothing changes.

        A run that has used up the stream of transfers' jitter ends.
        """
        table, slots, now = state[OffloadTable], SlotRows(state, instance), work.lane.now
        phase = waits_of(table, instance, slots.request)
        is_waiting = waiting_mask(slots, now, work.inst.steps_at_now)
        members = work.inst.num_prefill + work.inst.num_decode
        all_wait = jnp.all(~is_waiting | (phase == WaitPhase.WAIT)) & jnp.any(is_waiting)
        is_still = table.counts[instance, Count.CHANGES] == 0
        repeats = (members == 0) & all_wait & is_still & ~rests
        jobs = jax.tree.map(lambda part: row(part, instance), table.jobs)
        since = jnp.where(phase == WaitPhase.WAIT, table.waits.since[instance], FOREVER)
        given_up = jnp.min(jnp.minimum(since, FOREVER - LONGEST_WAIT_US)) + LONGEST_WAIT_US
        comes = jnp.min(jnp.where(is_waiting, ctx.never, slots.queued)).astype(jnp.int64)
        last = ctx.params.cluster.horizon_us.astype(jnp.int64) + 1
        end = jnp.minimum(jnp.minimum(until.astype(jnp.int64), comes), jnp.minimum(last, given_up))
        end = jnp.minimum(end, next_end(jobs))
        most = lax.div(jnp.int32(LAST), ctx.params.cluster.total_kv_blocks[instance] + 1)
        count = jnp.clip(end - now.astype(jnp.int64), 1, most.astype(jnp.int64)).astype(jnp.int32)
        count = jnp.where(repeats, count, 1)
        used = work.inst.used_blocks * count
        drawn, there = (
            table.counts[instance, Count.DRAWS],
            ctx.params.cluster[OffloadParams].normals,
        )
        exhausted = (drawn > there.shape[-1]) & jnp.any(
            ctx.params.cluster[OffloadParams].jitter > 0
        )
        lane = work.lane.replace(
            outcome=failing(work.lane.outcome, exhausted, Outcome.DRAWS_EXHAUSTED),
            num_steps=jnp.where(repeats, count, work.lane.num_steps),
            sum_used=jnp.where(repeats, used, work.lane.sum_used),
        )
        return dataclasses.replace(work, lane=lane)
