"""The engine's carry: few tables, one row each for what an iteration writes.

Columns are named here once. Every table has one row more than it needs; a write that must not
happen goes there, so no write is ever a select over a whole table.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.kv_cache.blocks import Blocks, initial_blocks
from blis_jax.types import LAST, NO_REQUEST, EngineShape, Mechanism, Params, never, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


class Slot(enum.IntEnum):
    """Integer columns of a slot; `NO_REQUEST` in REQUEST marks it free."""

    REQUEST = 0
    ORDER = 1  # place in the running batch; LAST while not running
    FINISH = 2  # step index at which it completes; LAST until its first token
    ALLOC_OFFSET = 3  # tokens held in KV after step n of its decode are n + this
    SLO_CLASS = 4
    INPUT_LEN = 5
    TENANT = 6
    TIE_RANK = 7
    QUEUE_RANK = 8
    AFTER_STEPS = (
        9  # steps of the same microsecond that precede its queueing; negative: not verified
    )
    OVERSIZED = 10  # 1: will be dropped when it would be queued
    EXPECTED_BLOCKS = 11  # prompt blocks that the router's index held for the chosen instance


class SlotTime(enum.IntEnum):
    """Time columns of a slot."""

    QUEUED = 0  # never() unless pending or waiting
    ARRIVAL = 1


class Inst(enum.IntEnum):
    """Integer columns of an instance."""

    LOAD = 0  # pending + waiting + running
    NUM_PREFILL = 1
    NUM_DECODE = 2
    NEXT_ORDER = 3
    STEP_INDEX = 4  # steps made so far
    USED_BLOCKS = 5
    MISSES = 6  # blocks taken from the free list
    HITS = 7
    STEPS_AT_NOW = 8  # steps made at LAST_START
    IS_SEQUENTIAL = 9  # 1: a fully cached prompt was admitted, the budget may not reach all members
    IS_IDLE = 10
    NUM_DROPPED = 11
    NUM_OVERSIZED = 12  # in slots, not yet dropped


SEQUENTIAL_LAGGING = np.int32(2)  # IS_SEQUENTIAL: the budget did not reach some member


class InstTime(enum.IntEnum):
    """Time columns of an instance, followed by one column per step chain."""

    EVENT = 0
    LAST_START = 1
    TOTAL_DURATION = 2
    BUSY_UNTIL = 3  # end of the last step
    CHAIN = 4


class Dyn(enum.IntEnum):
    """Integer columns of what a request has been through."""

    PROGRESS = 0
    NUM_NEW = 1
    LAG = 2  # decode steps without an allocation
    NUM_SCHEDULED = 3  # -1: dropped
    NUM_PREFILL_STEPS = 4
    CACHED_FIRST = 5
    FIRST_RECORD = 6
    SCHEDULED_RECORD = 7
    SCHEDULED_INDEX = 8
    TOKEN_RECORD = 9
    TOKEN_INDEX = 10
    FINISH_RECORD = 11  # record of its last step, plus 1; 0 while not completed
    STEP_PROGRESS = (
        12  # prompt tokens computed before the last step of its prefill; 0 if that was its first
    )


class Log(enum.IntEnum):
    """Integer columns of a step record."""

    INSTANCE = 0
    NUM_STEPS = 1
    LAST_INDEX = 2
    RUNNING = 3
    WAITING = 4
    USED_BLOCKS = 5  # after the last of its steps, before releases
    SUM_USED_BLOCKS = 6  # over its steps
    NUM_DECODE = 7
    NUM_COMPLETED = 8
    PREFILL_TOKENS = 9
    NUM_SCHEDULED = 10


class LogTime(enum.IntEnum):
    """Time columns of a step record."""

    START = 0
    DURATION = 1
    TOTAL_DURATION = 2  # of the instance, this record included


class Reg(enum.IntEnum):
    """Integer scalars of the lane: pointers, and the step in progress."""

    NEXT_ADMIT = 0
    NEXT_ROUTE = 1
    NUM_REJECTED = 2
    NUM_RECORDS = 3
    OUTCOME = 4
    NUM_OPEN_TIES = 5
    IS_DONE = 6
    ACTIVE = 7  # instance in mid-step
    MODE = 8  # Mode of the lane
    BUDGET = 9
    PREFILL_TOKENS = 10
    DECODE_TOKENS = 11
    NUM_DECODE = 12  # members in decode when the step began
    NUM_WAITING = 13
    QUEUE_DEPTH = 14  # waiting when the step began
    NUM_TO_VISIT = 15
    VISIT_ALL = 16  # decode members are visited too: 1 from the start, 2 from an eviction on
    CURSOR = 17  # batch order visited last
    ORDER_LIMIT = 18  # members admitted in this step are beyond it
    NUM_SCHEDULED = 19
    NUM_STEPS = 20
    SUM_USED = 21
    NUM_TO_COMPLETE = 22
    INVARIANT_FAILURES = 23
    LOG_BASE = 24  # records taken out of the log, in a run in stretches


class Mode(enum.IntEnum):
    """Where the lane is in a step."""

    BETWEEN = 0
    FORMING = 1
    COMPLETING = 2


class Time(enum.IntEnum):
    """Clock-typed scalars of the lane."""

    NOW = 0  # start of the step in progress; after its end, of the last of its equal steps
    DURATION = 1
    LAST_EVENT = 2  # time of the latest event of any kind
    LAST_REFRESH = 3  # of the router's view of KV fields


@pytree
class RouterIndex:
    """What the router has sent where; node axis has a spare row."""

    touched: Int[Array, "node instance"]  # touch number, 0: never
    private_at: Int[Array, "node instance"]  # private blocks sent before that touch
    num_private: Int[Array, "instance"]
    num_distinct: Int[Array, "instance"]


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
    expected: Any  # int32[request]: prompt blocks in the router's index when it was routed
    shared: SharedBlocks | None  # memory without eviction
    blocks: Blocks | None  # memory at block level
    router: RouterIndex
    # float64[field, instance]: KV utilisation, free blocks and hit rate as the router last read them; in many lanes
    # a tuple of the fields, so that one which no policy reads is not kept
    stale: Any
    log: Int[Array, "record column"]
    log_time: Any
    gateway: Any  # states of the gateway's policies, see policy_calls.py
    local: Any  # states of the instances' policies `[instance]`, a spare row included
    news: News | None  # completions that the gateway's policies are still to be told of


@pytree
class News:
    """Completions known to the engine, whose time has not come for the gateway; a spare row at the end."""

    due: Any  # clock[request]: when it completes, never() if nothing is to be told
    latencies: Float[Array, "request 2"]  # TTFT and E2E, µs


@pytree
class Requests:
    """The request table as the engine reads it; one spare row at the end of each axis."""

    table: Int[Array, "request column"]  # see Req; in many lanes also with_paths
    arrival: Any  # clock dtype, never() in padding
    path: Int[Array, "request path"]  # node, or the spare node
    node_start: Int[Array, "node"]
    node_blocks: Int[Array, "node"]
    path_start: Int[Array, "request path"]  # first block of each node on the path, LAST at its end
    path_shift: Int[Array, "request path"]  # see contents.py
    num_shared: Int[Array, "request"]  # leading blocks that are shared
    has_shared: Int[Array, ""]
    is_late: Int[Array, ""]  # a routing decision lies beyond the clock
    is_wide: Int[Array, ""]  # shared contents are longer than the tables


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


class Req(enum.IntEnum):
    """Static integer columns of a request."""

    INPUT_LEN = 0
    OUTPUT_LEN = 1
    SLO_CLASS = 2
    TENANT = 3
    TIE_RANK = 4
    QUEUE_RANK = 5
    AFTER_STEPS = 6
    PROMPT_KEY = 7


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


def _no_news(shape: EngineShape, mechanism: Mechanism) -> News | None:
    if not mechanism.is_told_at_gateway:
        return None
    size, clock = shape.num_requests + 1, shape.clock_dtype
    return News(jnp.full((size,), never(clock), clock), jnp.zeros((size, 2), jnp.float64))


def initial_state(
    shape: EngineShape, mechanism: Mechanism, params: Params, gateway: Any, local: Any
) -> State:
    """An empty cluster at time zero; `gateway` and `local` are the policies' first states."""
    rows, slots, clock = shape.num_instances + 1, shape.num_slots, shape.clock_dtype
    nodes = shape.num_nodes + 1
    forever = never(clock)
    slot = jnp.zeros((len(Slot), rows, slots), jnp.int32)
    slot = slot.at[Slot.REQUEST].set(NO_REQUEST).at[Slot.ORDER].set(LAST).at[Slot.FINISH].set(LAST)
    inst_time = jnp.full((rows, len(InstTime) + shape.num_chains - 1), forever, clock)
    inst_time = inst_time.at[:, InstTime.LAST_START].set(0)
    inst_time = inst_time.at[:, InstTime.TOTAL_DURATION].set(0)
    inst_time = inst_time.at[:, InstTime.BUSY_UNTIL].set(0)
    inst = jnp.zeros((rows, len(Inst)), jnp.int32).at[:, Inst.IS_IDLE].set(1)
    i32 = jnp.int32
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
        router=RouterIndex(
            touched=jnp.zeros((nodes, shape.num_instances), i32),
            private_at=jnp.zeros((nodes, shape.num_instances), i32),
            num_private=jnp.zeros((shape.num_instances,), i32),
            num_distinct=jnp.zeros((shape.num_instances,), i32),
        ),
        stale=jnp.zeros((3, shape.num_instances), jnp.float64),
        log=jnp.zeros((shape.log_capacity + 1, len(Log)), i32),
        log_time=jnp.zeros((shape.log_capacity + 1, len(LogTime)), clock),
        gateway=gateway,
        local=local,
        news=_no_news(shape, mechanism),
    )
