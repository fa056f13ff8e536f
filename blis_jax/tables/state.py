"""The engine's carry: a few tables, each written in one row per scan step.

All columns are named here. Every table has a spare row for writes that must not happen.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.columns import Moment, PastTable, Row, RowTable, Vector, Whole
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.types import LAST, NO_REQUEST, EngineShape, Mechanism, Params, never
from blis_jax.policies.contexts import Outstanding
from blis_jax.policies.contract import OverStep, PolicyStates
from blis_jax.policies.reading import ADAPTERS, CACHES, CPU_TIER, KV
from blis_jax.tables.adapters import SeenAdapters
from blis_jax.tables.router import CopiedCaches, SeenPrompts, View, first_view

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


class Resident(Row):
    """A request in a slot of an instance; `NO_REQUEST` in `request` marks the slot free."""

    request: Whole
    order: Whole  # place in the running batch; LAST while not running
    finish: Whole  # step index at which it completes; LAST until its first token
    alloc_offset: Whole  # tokens held in KV are this; after step n, with `finish` known, n + this
    slo_class: Whole
    input_len: Whole
    tenant: Whole
    tie_rank: Whole
    queue_rank: Whole
    # steps of the same microsecond that precede its queueing; negative: not verified
    after_steps: Whole
    oversized: Whole  # 1: will be dropped when it would be queued
    expected_blocks: Whole  # prompt blocks that the router's index held for the chosen instance
    queued: Moment  # never() unless pending or waiting
    arrival: Moment


class Instance(Row):
    """An instance; its times are followed by one column per chain of steps."""

    load: Whole  # pending + waiting + running
    num_prefill: Whole
    num_decode: Whole
    next_order: Whole
    step_index: Whole  # steps made so far
    used_blocks: Whole
    misses: Whole  # blocks taken from the free list
    hits: Whole
    steps_at_now: Whole  # steps made at LAST_START
    # 1: a fully cached prompt was admitted, the budget may not reach all members
    is_sequential: Whole
    is_idle: Whole
    num_dropped: Whole
    num_oversized: Whole  # in slots, not yet dropped
    event: Moment
    last_start: Moment
    total_duration: Moment
    busy_until: Moment  # end of the last step
    chain: Moment


# places of the fields, for code that reads whole tables
Slot, SlotTime = Resident.columns, Resident.time_columns
Inst, InstTime = Instance.columns, Instance.time_columns
RUNAWAY = LAST - 1  # Resident.finish of a request computed beyond its end: it never completes
SEQUENTIAL_LAGGING = np.int32(2)  # Instance.is_sequential: the budget did not reach some member


class Past(Row):
    """A request's history."""

    progress: Whole
    num_new: Whole
    lag: Whole  # decode steps without an allocation; in August the last such step
    num_scheduled: Whole  # negative: dropped, see `stays.times_scheduled`
    num_prefill_steps: Whole
    cached_first: Whole
    first_record: Whole
    scheduled_record: Whole
    scheduled_index: Whole
    token_record: Whole
    token_index: Whole
    finish_record: Whole  # record of its last step, plus 1; 0 while not completed
    # prompt tokens computed before the last step of its prefill; 0 if that was its first
    step_progress: Whole


class StepRecord(Row):
    """The record of a step, or of several equal ones."""

    instance: Whole
    num_steps: Whole
    last_index: Whole
    running: Whole
    waiting: Whole
    used_blocks: Whole  # after the last of its steps, before releases
    sum_used_blocks: Whole  # over its steps
    num_decode: Whole
    num_completed: Whole
    prefill_tokens: Whole
    num_scheduled: Whole
    start: Moment
    duration: Moment
    total_duration: Moment  # of the instance, this record included


class StepInProgress(Row):
    """The step that an instance of the lane is in."""

    active: Whole  # instance in mid-step
    mode: Whole  # Mode of the lane
    budget: Whole
    prefill_tokens: Whole
    decode_tokens: Whole
    num_decode: Whole  # members in decode when the step began
    num_waiting: Whole
    queue_depth: Whole  # waiting when the step began
    num_to_visit: Whole
    visit_all: Whole  # decode members are visited too: 1 from the start, 2 from an eviction on
    cursor: Whole  # batch order visited last
    order_limit: Whole  # members admitted in this step are beyond it
    num_scheduled: Whole
    num_steps: Whole
    sum_used: Whole
    num_to_complete: Whole
    now: Moment  # start of the step in progress; after its end, of the last of its equal steps
    duration: Moment


class Lane(StepInProgress):
    """A lane: how far its run has come, and the step in progress."""

    next_admit: Whole
    next_route: Whole
    num_rejected: Whole
    num_records: Whole
    outcome: Whole
    num_open_ties: Whole
    is_done: Whole
    invariant_failures: Whole
    log_base: Whole  # records taken out of the log, in a run in stretches
    last_event: Moment  # time of the latest event of any kind
    last_refresh: Moment  # of the router's view of KV fields


Dyn = Past.columns
Log, LogTime = StepRecord.columns, StepRecord.time_columns
Reg, Time = Lane.columns, Lane.time_columns


class Mode(enum.IntEnum):
    """The lane's position in a step."""

    BETWEEN = 0
    FORMING = 1
    COMPLETING = 2
    STORING = 3  # KV whose transfer begins gets its blocks
    STORED = 4  # these are being moved


@pytree
class LaneRow:
    """The lane as it is carried: its whole numbers and its times, or both joined; `joined.lane_of` reads it."""

    parts: tuple[Vector, ...]

    @property
    def numbers(self) -> Vector:
        """Return the whole numbers; if joined, the times follow."""
        return self.parts[0]

    @property
    def is_joined(self) -> bool:
        """Return whether whole numbers and times are joined."""
        return len(self.parts) == 1

    @property
    def row(self) -> Lane:
        """Return the lane's row.

        Raises:
            ValueError: whole numbers and times are joined.
        """
        numbers, times = self.parts
        return Lane(numbers, times)

    def with_numbers(self, numbers: Vector) -> LaneRow:
        """Return the row with its whole numbers replaced."""
        return LaneRow((numbers, *self.parts[1:]))


@pytree
class SharedBlocks:
    """Physical copies of shared blocks per instance (spare row) and node (spare row)."""

    # how many hold each copy `[*lane, instance, node, copy, block]`, and the copy that the table names, -1: not
    # registered, `[*lane, instance, node, block]`; or the named ones as the last of the copies, see joined.py
    copies: tuple[Int[Array, "..."], ...]
    held: Int[Array, "*lane instance slot path block"]  # copy held by the slot's request, -1: none

    @property
    def is_joined(self) -> bool:
        """Return whether the named copies are in one table with the others."""
        return len(self.copies) == 1

    @property
    def named(self) -> Int[Array, "*lane instance node block"]:
        """Return the copy of each block that is named in the prefix table."""
        return self.copies[0][..., -1, :] if self.is_joined else self.copies[1]


@pytree
class State(HasParts):
    """The carry of the scan; in many lanes some tables are joined, see joined.py."""

    lane: LaneRow
    slot: RowTable  # Resident `[column, instance, slot]`
    inst: RowTable  # Instance `[column, instance]`
    past: PastTable
    own: Parts  # of the memory model, and of the sources that have rows of their own
    stale: View  # what the router has last seen; an AgedView where signals age
    log: RowTable  # StepRecord `[record, column]`
    gateway: PolicyStates[object]  # of the gateway's policies, see policy_calls.py
    local: PolicyStates[
        OverStep[object]
    ]  # of the instances' policies `[instance]`, a spare row included


@pytree
class News:
    """Completions that the gateway's policies do not know yet, as their time has not come; a spare row at the end."""

    due: Array  # clock[request]: when it completes, never() if nothing is to be told
    latencies: Float[Array, "request 2"]  # TTFT and E2E, µs

    @classmethod
    def first(cls, shape: EngineShape) -> News:
        """Return the table with no completion to report."""
        size, clock = shape.num_requests + 1, shape.clock_dtype
        return cls(jnp.full((size,), never(clock), clock), jnp.zeros((size, 2), jnp.float64))


@pytree
class Handed:
    """The value that the router handed over with each request, where a policy reads it; a spare row at the end."""

    value: Float[Array, "request"]


def no_copies(shape: EngineShape) -> SharedBlocks:
    """Return the tables of memory without eviction, with nothing stored."""
    rows, nodes, blocks = shape.num_instances + 1, shape.num_nodes + 1, shape.node_blocks
    i32 = jnp.int32
    return SharedBlocks(
        copies=(
            jnp.zeros((rows, nodes, shape.num_copies, blocks), i32),
            jnp.full((rows, nodes, blocks), -1, i32),
        ),
        held=jnp.full((rows, shape.num_slots, shape.path_depth, blocks), -1, i32),
    )


def kv_fields_read(shape: EngineShape, mechanism: Mechanism) -> tuple[str, ...]:
    """Return the names of the KV-cache and CPU-tier signals that a policy or the gateway reads."""
    names = (*KV, *CPU_TIER) if shape.has_cpu_tier or shape.has_mirror else KV
    # the gateway's detector looks at utilization
    saturation = KV[:1] if mechanism.has_queue else ()
    return tuple(name for name in names if name in saturation or mechanism.reads(name))


def _first_view(
    shape: EngineShape, mechanism: Mechanism, params: Params, kv: tuple[jax.Array, ...]
) -> View:
    if not mechanism.ages_signals:
        return View(kv, Parts())

    def no_caches() -> CopiedCaches:
        empty = jnp.zeros((shape.num_instances, shape.num_nodes + 1), jnp.int32)
        return CopiedCaches(empty, jnp.zeros((), jnp.float64))

    def no_adapters() -> SeenAdapters:
        return SeenAdapters(jnp.zeros((shape.num_instances, mechanism.num_adapters), bool))

    parts = Parts.used(
        (no_caches, mechanism.reads(CACHES)),
        (no_adapters, mechanism.num_adapters > 0 and mechanism.reads(ADAPTERS)),
        (lambda: _no_prompts(shape), mechanism.reads("outstanding")),
    )
    return first_view(params.cluster, kv, parts)


def _no_prompts(shape: EngineShape) -> SeenPrompts:
    """Return the snapshot of prompts with all slots empty."""
    zero = jnp.zeros((shape.num_instances, shape.num_slots), jnp.int32)
    times = jnp.zeros(zero.shape, shape.clock_dtype)
    prompts = Outstanding(jnp.zeros(zero.shape, bool), zero, zero, zero, times)
    return SeenPrompts(jnp.full_like(zero, NO_REQUEST), prompts)


def initial_state(
    shape: EngineShape,
    mechanism: Mechanism,
    params: Params,
    gateway: PolicyStates[object],
    local: PolicyStates[OverStep[object]],
    own: Parts,
) -> State:
    """Return an empty cluster at time zero.

    Args:
        shape: sizes of the tables.
        mechanism: functions of the run.
        params: numbers of the run.
        gateway: first states of the gateway's policies.
        local: first states of the instances' policies `[instance]`.
        own: the sub-trees of memory and of the sources.
    """
    rows, slots, clock = shape.num_instances + 1, shape.num_slots, shape.clock_dtype
    forever, size = never(clock), shape.num_requests + 1
    slot = jnp.zeros((len(Slot), rows, slots), jnp.int32)
    slot = slot.at[Slot.REQUEST].set(NO_REQUEST).at[Slot.ORDER].set(LAST).at[Slot.FINISH].set(LAST)
    inst_time = jnp.full((len(InstTime) + shape.num_chains - 1, rows), forever, clock)
    for zero in (InstTime.LAST_START, InstTime.TOTAL_DURATION, InstTime.BUSY_UNTIL):
        inst_time = inst_time.at[zero].set(0)
    inst = jnp.zeros((len(Inst), rows), jnp.int32).at[Inst.IS_IDLE].set(1)
    i32, num_read = jnp.int32, len(kv_fields_read(shape, mechanism))
    kv = (jnp.zeros((num_read, shape.num_instances), jnp.float64),) if num_read else ()
    return State(
        lane=LaneRow((jnp.zeros((len(Reg),), i32), jnp.zeros((len(Time),), clock))),
        slot=RowTable((slot, jnp.full((len(SlotTime), rows, slots), forever, clock))),
        inst=RowTable((inst, inst_time)),
        past=PastTable(
            (jnp.zeros((size, len(Dyn)), i32), jnp.full((size,), -1, i32), jnp.zeros((size,), i32))
        ),
        own=own,
        stale=_first_view(shape, mechanism, params, kv),
        log=RowTable(
            (
                jnp.zeros((shape.log_capacity + 1, len(Log)), i32),
                jnp.zeros((shape.log_capacity + 1, len(LogTime)), clock),
            )
        ),
        gateway=gateway,
        local=local,
    )
