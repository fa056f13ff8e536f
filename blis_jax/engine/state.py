"""The engine's carry: few tables, one row each for what an iteration writes.

Columns are named here once. Every table has a spare row, to which a write goes that must not happen.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.rows import Moment, Row, Whole
from blis_jax.core.types import LAST, NO_REQUEST, EngineShape, Mechanism, Params, never, pytree
from blis_jax.engine.gateway.exits import Exits
from blis_jax.engine.gateway.gateway_queue import GatewayQueue, empty_queue
from blis_jax.engine.gateway.signals import Outstanding, SeenPrompts, first_view
from blis_jax.engine.tables.journeys import Movement, no_movement_yet
from blis_jax.engine.tables.router import RouterIndex, no_index
from blis_jax.memory.block_tables.blocks import Blocks, initial_blocks

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
    after_steps: (
        Whole  # steps of the same microsecond that precede its queueing; negative: not verified
    )
    oversized: Whole  # 1: will be dropped when it would be queued
    expected_blocks: Whole  # prompt blocks that the router's index held for the chosen instance
    queued: Moment  # never() unless pending or waiting
    arrival: Moment


class Instance(Row):
    """An instance; its times are followed by one column per step chain."""

    load: Whole  # pending + waiting + running
    num_prefill: Whole
    num_decode: Whole
    next_order: Whole
    step_index: Whole  # steps made so far
    used_blocks: Whole
    misses: Whole  # blocks taken from the free list
    hits: Whole
    steps_at_now: Whole  # steps made at LAST_START
    is_sequential: (
        Whole  # 1: a fully cached prompt was admitted, the budget may not reach all members
    )
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
    """What a request has been through."""

    progress: Whole
    num_new: Whole
    lag: Whole  # decode steps without an allocation; with `RevisionRules.passes_over` the last such step
    num_scheduled: Whole  # negative: dropped, see `stays.times_scheduled`
    num_prefill_steps: Whole
    cached_first: Whole
    first_record: Whole
    scheduled_record: Whole
    scheduled_index: Whole
    token_record: Whole
    token_index: Whole
    finish_record: Whole  # record of its last step, plus 1; 0 while not completed
    step_progress: (
        Whole  # prompt tokens computed before the last step of its prefill; 0 if that was its first
    )


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


class Request(Row):
    """What is given of a request."""

    input_len: Whole
    output_len: Whole
    slo_class: Whole
    tenant: Whole
    tie_rank: Whole
    queue_rank: Whole
    after_steps: Whole
    prompt_key: Whole


Dyn, Req = Past.columns, Request.columns
Log, LogTime = StepRecord.columns, StepRecord.time_columns
Reg, Time = Lane.columns, Lane.time_columns


class Mode(enum.IntEnum):
    """Where the lane is in a step."""

    BETWEEN = 0
    FORMING = 1
    COMPLETING = 2
    STORING = 3  # KV whose transfer begins gets its blocks
    STORED = 4  # these are being moved


@pytree
class SharedBlocks:
    """Physical copies of shared blocks per instance (spare row) and node (spare row)."""

    holders: Int[Array, "instance node copy block"]
    named: Any  # int32[instance, node, block]: copy that the table names, -1: not registered
    held: Int[Array, "instance slot path block"]  # copy held by the slot's request, -1: none


@pytree
class State:
    """The carry of the scan; in many lanes some tables are beside others, see joined.py."""

    registers: Int[Array, "column"]
    times: Any
    slot: Int[Array, "column instance slot"]
    slot_time: Any
    inst: Int[Array, "instance column"]
    inst_time: Any
    dyn: Int[Array, "request column"]
    instance_of: Any  # int32[request]
    expected: Array  # int32[request]: prompt blocks in the router's index when it was routed
    shared: SharedBlocks | None  # memory without eviction
    blocks: Blocks | None  # memory at block level
    router: RouterIndex | None  # where a policy looks at it
    # float64[field, instance]: the KV fields as the router last read them; in many lanes a tuple; or an AgedView
    stale: Any  # columns of KV use, or an AgedView
    log: Int[Array, "record column"]
    log_time: Any
    gateway: Any  # states of the gateway's policies, see policy_calls.py
    local: Any  # states of the instances' policies `[instance]`, a spare row included
    news: News | None  # completions that the gateway's policies are still to be told of
    movement: Movement | None  # where requests move
    queue: GatewayQueue | None = None  # where requests wait at the gateway
    exits: Exits | None = None  # where requests give up
    handed: Any = None  # float64[request]: what the router handed over, where somebody looks


@pytree
class News:
    """Completions known to the engine, whose time has not come for the gateway; a spare row at the end."""

    due: Array  # clock[request]: when it completes, never() if nothing is to be told
    latencies: Float[Array, "request 2"]  # TTFT and E2E, µs


@pytree
class Requests:
    """The request table as the engine reads it; one spare row at the end of each axis."""

    table: Int[Array, "request column"]  # see Req; in many lanes also with_paths
    arrival: Array  # clock dtype, never() in padding
    path: Int[Array, "request path"]  # node, or the spare node
    node_start: Int[Array, "node"]
    node_blocks: Int[Array, "node"]
    path_start: Int[Array, "request path"]  # first block of each node on the path, LAST at its end
    path_shift: Int[Array, "request path"]  # see contents.py
    num_shared: Int[Array, "request"]  # leading blocks that are shared
    node_of: Any  # int32[shared block]: its node, where the router's index hears of single blocks
    has_shared: Int[Array, ""]
    deadline: Any  # clock[request], never() for none; None where no request is given up
    is_late: Int[Array, ""]  # a routing decision lies beyond the clock
    is_wide: Int[Array, ""]  # shared contents are longer than the tables
    part_ranks: Any = None  # int32[request, column]: PartRank, only with `reserves_decode`
    has_media: Any = (
        None  # int32[request], 1: it brings images or sound; only with `Mechanism.encodes`
    )
    is_elsewhere: Any = (
        None  # bool[request]: no instance has its model; None where each has an instance
    )
    slo_target: Any = None  # µs[request] of its own, 0: its class's; None where none has one


class PartRank(enum.IntEnum):
    """Columns of `Requests.part_ranks`."""

    WHOLE = 0  # rank by (arrival, id as text) of a request that is not split
    PREFILL = 1  # of its prefill part
    DECODE = 2  # of its decode part
    PREFILL_TEXT = 3  # of the prefill part's id as a text alone


class Nodes(NamedTuple):
    """The shared contents on one request's path."""

    node: Int[Array, "path"]  # the spare node where the path has ended
    start: Int[Array, "path"]  # first block
    length: Int[Array, "path"]  # blocks, 0 past the path's end


def with_paths(requests: Requests) -> Requests:
    """The requests with their paths' nodes behind the columns of `table`, so that one read finds all."""
    sizes = requests.node_start[requests.path], requests.node_blocks[requests.path]
    table = jnp.concatenate([requests.table, requests.path, *sizes], axis=-1)
    return dataclasses.replace(requests, table=table)


def nodes_of(requests: Requests, request: Int[Array, ""]) -> Nodes:
    """The nodes on a request's path."""
    zero, depth, table = jnp.int32(0), requests.path.shape[1], requests.table
    if table.shape[1] == len(Req):
        path = lax.dynamic_slice(requests.path, (request, zero), (1, depth))[0]
        return Nodes(path, requests.node_start[path], requests.node_blocks[path])
    row = lax.dynamic_slice(table, (request, zero), (1, table.shape[1]))[0, len(Req) :]
    return Nodes(row[:depth], row[depth : 2 * depth], row[2 * depth :])


def _no_copies(shape: EngineShape) -> SharedBlocks | None:
    if shape.num_blocks:
        return None
    rows, nodes, blocks = shape.num_instances + 1, shape.num_nodes + 1, shape.node_blocks
    i32 = jnp.int32
    return SharedBlocks(
        holders=jnp.zeros((rows, nodes, shape.num_copies, blocks), i32),
        named=jnp.full((rows, nodes, blocks), -1, i32),
        held=jnp.full((rows, shape.num_slots, shape.path_depth, blocks), -1, i32),
    )


def reads_cpu_tier(shape: EngineShape, mechanism: Mechanism) -> bool:
    """Whether the router sees what the instances' CPU tiers do: there are some, and a policy looks."""
    return (shape.has_cpu_tier or shape.has_mirror) and mechanism.reads_cpu_tier


def _no_news(shape: EngineShape, mechanism: Mechanism) -> News | None:
    if not mechanism.is_told_at_gateway:
        return None
    size, clock = shape.num_requests + 1, shape.clock_dtype
    return News(jnp.full((size,), never(clock), clock), jnp.zeros((size, 2), jnp.float64))


def _nothing_handed(shape: EngineShape, mechanism: Mechanism) -> Any:
    if not mechanism.hands_over_intent:
        return None
    return jnp.zeros((shape.num_requests + 1,), jnp.float64)


def _first_view(shape: EngineShape, mechanism: Mechanism, params: Params, kv: Any) -> Any:
    num_nodes = shape.num_nodes if mechanism.reads_caches else None
    prompts = _no_prompts(shape) if mechanism.reads_outstanding else None
    return first_view(params.cluster, kv, num_nodes, prompts)


def _no_prompts(shape: EngineShape) -> SeenPrompts:
    """Empty slots."""
    zero = jnp.zeros((shape.num_instances, shape.num_slots), jnp.int32)
    times = jnp.zeros(zero.shape, shape.clock_dtype)
    prompts = Outstanding(jnp.zeros(zero.shape, bool), zero, zero, zero, times)
    return SeenPrompts(jnp.full_like(zero, NO_REQUEST), prompts)


def initial_state(
    shape: EngineShape, mechanism: Mechanism, params: Params, gateway: Any, local: Any
) -> State:
    """An empty cluster at time zero; `gateway` and `local` are the policies' first states."""
    rows, slots, clock = shape.num_instances + 1, shape.num_slots, shape.clock_dtype
    forever = never(clock)
    slot = jnp.zeros((len(Slot), rows, slots), jnp.int32)
    slot = slot.at[Slot.REQUEST].set(NO_REQUEST).at[Slot.ORDER].set(LAST).at[Slot.FINISH].set(LAST)
    inst_time = jnp.full((rows, len(InstTime) + shape.num_chains - 1), forever, clock)
    for zero in (InstTime.LAST_START, InstTime.TOTAL_DURATION, InstTime.BUSY_UNTIL):
        inst_time = inst_time.at[:, zero].set(0)
    inst = jnp.zeros((rows, len(Inst)), jnp.int32).at[:, Inst.IS_IDLE].set(1)
    num_kv_fields = 5 if reads_cpu_tier(shape, mechanism) else 3
    i32, kv = jnp.int32, jnp.zeros((num_kv_fields, shape.num_instances), jnp.float64)
    return State(
        registers=jnp.zeros((len(Reg),), i32),
        times=jnp.zeros((len(Time),), clock),
        slot=slot,
        slot_time=jnp.full((len(SlotTime), rows, slots), forever, clock),
        inst=inst,
        inst_time=inst_time,
        dyn=jnp.zeros((shape.num_requests + 1, len(Dyn)), i32),
        instance_of=jnp.full((shape.num_requests + 1,), -1, i32),
        expected=jnp.zeros((shape.num_requests + 1,), i32),
        shared=_no_copies(shape),
        blocks=initial_blocks(shape, mechanism, params),
        router=no_index(shape, mechanism),
        stale=_first_view(shape, mechanism, params, kv) if mechanism.ages_signals else kv,
        log=jnp.zeros((shape.log_capacity + 1, len(Log)), i32),
        log_time=jnp.zeros((shape.log_capacity + 1, len(LogTime)), clock),
        gateway=gateway,
        local=local,
        news=_no_news(shape, mechanism),
        movement=no_movement_yet(shape, mechanism),
        queue=empty_queue(shape, mechanism),
        handed=_nothing_handed(shape, mechanism),
    )
