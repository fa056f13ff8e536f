"""The compiled engine: from requests and numbers to raw results, for one row or many.

Two loop forms over the same scan step. `rows`: each row by itself, with real branches, early exit after
every chunk of a scan; the form for CPUs. `lanes`: rows in one vectorised loop, every phase masked; the
form for GPUs, see lanes.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.branching import branch, once
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST, EngineShape, Mechanism, Params, never, pytree
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.exits import no_exits
from blis_jax.engine.phases.policy_calls import first_states
from blis_jax.engine.scan_step import scan_step
from blis_jax.engine.state import Inst, Lane, Reg, Requests, State, initial_state
from blis_jax.memory.block_tables.blocks import Blocks, compact, is_crowded
from blis_jax.policies.routing.by_load import regret_of
from blis_jax.workload.table import NEVER_US, RequestTable

CHUNK = 64  # scan steps between two looks at whether the run is over


@pytree
class Order:
    """Verified order of events of one microsecond, per request; see ties.py."""

    queue_rank: Any  # int32[request]: order of entry among requests queued in one microsecond
    after_steps: Any  # int32[request]: steps of that microsecond that come before; -1 not verified
    # int32[part, request]: rank of each id as a text, of those of all prefill and decode parts among them; None: that
    # of `request_<row>`; only with `Mechanism.reserves_decode`
    part_texts: Any = None


@pytree
class Raw:
    """What the engine leaves behind, before any interpretation."""

    registers: Any
    instance_of: Any
    dyn: Any
    log: Any
    log_time: Any
    inst: Any
    inst_time: Any
    expected: Any
    life: Any = None  # block level only, likewise the next three
    pool: Any = None
    evictions: Any = None
    num_evictions: Any = None
    journey: Any = None  # only where requests move, likewise the next
    journey_time: Any = None
    downs: Any = None  # times that each instance has gone down, likewise
    reserved: Any = None  # only where KV is reserved, likewise the next
    reserved_time: Any = None
    queue_place: Any = None  # gateway_queue.Place of each request, where they wait there, likewise
    dispatched: Any = None  # when it was dispatched from there
    exits: Any = None  # only where requests give up
    paid: Any = None  # PaidTime, only with a cluster policy
    ordered: Any = None  # Movement.ordered, only where instances are placed
    routed_at: Any = None  # Movement.routed_at, only where a routing may wait for an instance
    regret: Any = None  # WatchedState.regret, only where the router is watched


def first_order(num_requests: int) -> Order:
    """The engine's own rule: queued before any step, in order of arrival; nothing verified."""
    rank = jnp.arange(num_requests, dtype=jnp.int32)
    return Order(rank, jnp.full((num_requests,), -1, jnp.int32))


PARTS = ("", "_prefill", "_decode")  # behind the id of a request and of its two parts


def ranks_of_parts(ids: Sequence[str]) -> np.ndarray:
    """`Order.part_texts` of requests with these ids."""
    texts = np.array([one + part for part in PARTS for one in ids])
    ranks = np.empty(len(texts), np.int32)
    ranks[np.argsort(texts, kind="stable")] = np.arange(len(texts), dtype=np.int32)
    return ranks.reshape(len(PARTS), len(ids))


def requests_of(
    shape: EngineShape, mechanism: Mechanism, params: Params, table: RequestTable, order: Order
) -> Requests:
    """The request table as the engine reads it."""
    clock = shape.clock_dtype
    forever = never(clock)
    columns = [
        table.input_len,
        table.output_len,
        table.slo_class,
        table.tenant,
        table.tie_rank,
        order.queue_rank,
        order.after_steps,
        table.prompt_key,
    ]
    stacked = jnp.stack([jnp.asarray(column, jnp.int32) for column in columns], axis=1)
    arrival = jnp.asarray(table.arrival_us)
    is_real = arrival != NEVER_US
    cluster = params.cluster
    latency = cluster.admission_latency_us + cluster.routing_latency_us
    is_late = jnp.any(is_real & (arrival >= int(forever) - latency))
    arrival = jnp.where(is_real, arrival.astype(clock), forever)
    if shape.num_nodes == 0:
        path = jnp.zeros((shape.num_requests, shape.path_depth), jnp.int32)
        start = blocks = jnp.zeros((0,), jnp.int32)
    else:
        path = jnp.asarray(table.path_nodes, jnp.int32)
        start = jnp.asarray(table.node_start, jnp.int32)
        blocks = jnp.asarray(table.node_blocks, jnp.int32)
        path = jnp.where(path < 0, jnp.int32(shape.num_nodes), path)
    starts, shifts, num_shared = _shared_numbers(shape, path, start, blocks)
    has_shared = jnp.any(path < shape.num_nodes).astype(jnp.int32)
    return Requests(
        table=jnp.pad(stacked, ((0, 1), (0, 0))),
        arrival=jnp.pad(arrival, (0, 1), constant_values=forever),
        path=jnp.pad(path, ((0, 1), (0, 0)), constant_values=shape.num_nodes),
        node_start=jnp.pad(start, (0, 1)),
        node_blocks=jnp.pad(blocks, (0, 1)),
        path_start=jnp.pad(starts, ((0, 1), (0, 0)), constant_values=LAST),
        path_shift=jnp.pad(shifts, ((0, 1), (0, 0))),
        num_shared=jnp.pad(num_shared, (0, 1)),
        node_of=_node_of(shape, blocks) if mechanism.is_precise and shape.num_blocks else None,
        has_shared=has_shared,
        has_media=_has_media(table) if mechanism.encodes else None,
        is_elsewhere=_elsewhere(table),
        slo_target=_own_targets(table),
        part_ranks=_part_ranks(table, order) if mechanism.reserves_decode else None,
        deadline=_deadlines(table, arrival, forever),
        is_late=is_late.astype(jnp.int32),
        is_wide=_is_wide(shape, blocks).astype(jnp.int32),
    )


def _has_media(table: RequestTable) -> jax.Array:
    """`Requests.has_media`."""
    has_media = getattr(table, "has_media", None)
    if has_media is None:
        return jnp.zeros(table.num_rows + 1, jnp.int32)
    return jnp.pad(jnp.asarray(has_media, jnp.int32), (0, 1))


def _elsewhere(table: RequestTable) -> jax.Array | None:
    """`Requests.is_elsewhere`."""
    marks = getattr(table, "is_elsewhere", None)
    return None if marks is None else jnp.pad(jnp.asarray(marks, jnp.int32) == 1, (0, 1))


def _own_targets(table: RequestTable) -> jax.Array | None:
    """`Requests.slo_target`."""
    target = getattr(table, "slo_target_us", None)
    return None if target is None else jnp.pad(jnp.asarray(target, jnp.int64), (0, 1))


def _part_ranks(table: RequestTable, order: Order) -> jax.Array:
    """`Requests.part_ranks`."""
    texts, num_rows = order.part_texts, table.num_rows
    if texts is None:
        texts = ranks_of_parts([f"request_{row}" for row in range(num_rows)])
    texts = jnp.asarray(texts, jnp.int32)
    arrival = jnp.tile(jnp.asarray(table.arrival_us), len(texts))
    by_arrival = jnp.lexsort((texts.reshape(-1), arrival))
    ranks = jnp.zeros(texts.size, jnp.int32)
    ranks = ranks.at[by_arrival].set(jnp.arange(texts.size, dtype=jnp.int32))
    columns = jnp.concatenate([ranks.reshape(texts.shape), texts[1:2]])
    return jnp.pad(columns.T, ((0, 1), (0, 0)))


def _deadlines(table: RequestTable, arrival: jax.Array, forever: Any) -> jax.Array | None:
    """When each request is given up, a spare one included; None where none is."""
    timeout = getattr(table, "timeout_us", None)
    if timeout is None:
        return None
    last = jnp.asarray(forever).astype(jnp.float64)
    has_one = (timeout > 0) & (arrival.astype(jnp.float64) + timeout.astype(jnp.float64) < last)
    deadline = arrival + jnp.where(has_one, timeout, 0).astype(arrival.dtype)
    return jnp.pad(jnp.where(has_one, deadline, forever), (0, 1), constant_values=forever)


def _shared_numbers(
    shape: EngineShape, path: jax.Array, node_start: jax.Array, node_blocks: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What numbers a request's shared blocks, see contents.py: starts, shifts `[request, path]`, and their count.

    Blocks are numbered node by node. The nodes of a path follow each other from its first block on.
    """
    start, length = jnp.pad(node_start, (0, 1)), jnp.pad(node_blocks, (0, 1))
    base = jnp.cumsum(length, dtype=jnp.int32) - length
    is_node = path < shape.num_nodes
    shift = jnp.where(is_node, base[path] - start[path], 0)
    shift = shift - jnp.pad(shift, ((0, 0), (1, 0)))[:, :-1]
    starts = jnp.where(is_node, start[path], jnp.int32(LAST))
    ends = jnp.where(is_node, start[path] + length[path], 0)
    return starts, jnp.where(is_node, shift, 0), jnp.max(ends, axis=1)


def _node_of(shape: EngineShape, node_blocks: jax.Array) -> jax.Array:
    """The node of every shared block; the spare node for numbers that no block has."""
    ends, number = (
        jnp.cumsum(node_blocks, dtype=jnp.int32),
        lax.iota(jnp.int32, shape.num_shared_blocks + 1),
    )
    return jnp.searchsorted(ends, number, side="right").astype(jnp.int32)


def _is_wide(shape: EngineShape, node_blocks: jax.Array) -> jax.Array:
    """Whether the tables of shared blocks are too small for these nodes."""
    if shape.num_blocks:
        return jnp.sum(node_blocks, dtype=jnp.int32) > shape.num_shared_blocks
    return jnp.any(node_blocks > shape.node_blocks)


def first_state(
    shape: EngineShape, mechanism: Mechanism, params: Params, requests: Requests
) -> State:
    """The empty cluster, or one that has failed already because the clock or a table is too small."""
    states = first_states(shape, mechanism, params)
    state = initial_state(shape, mechanism, params, *states)
    if mechanism.evicts_in_flight or requests.deadline is not None:
        state = dataclasses.replace(state, exits=no_exits(shape))
    code = jnp.where(requests.is_late == 1, jnp.int32(Outcome.CLOCK_OVERFLOW), jnp.int32(0))
    code = jnp.where(requests.is_wide == 1, jnp.int32(Outcome.NODES_FULL), code)
    return dataclasses.replace(state, registers=Lane(state.registers).replace(outcome=code).numbers)


def raw_of(state: State, chunks: jax.Array) -> Raw:
    """What a state leaves behind after so many chunks of scan steps."""
    registers = state.registers
    is_cut = (registers[..., Reg.IS_DONE] == 0) & (registers[..., Reg.OUTCOME] == 0)
    code = jnp.where(is_cut, jnp.int32(Outcome.ITERATIONS_EXHAUSTED), registers[..., Reg.OUTCOME])
    registers = registers.at[..., Reg.OUTCOME].set(code)
    registers = registers.at[..., Reg.CURSOR].set(chunks * CHUNK)
    raw = Raw(
        registers,
        state.instance_of,
        state.dyn,
        state.log,
        state.log_time,
        state.inst,
        state.inst_time,
        state.expected,
        regret=regret_of(state.gateway),
    )
    blocks, movement = state.blocks, state.movement
    if movement is not None:
        raw = dataclasses.replace(
            raw,
            journey=movement.journey,
            journey_time=movement.journey_time,
            downs=movement.downs,
            reserved=movement.reserved,
            reserved_time=movement.reserved_time,
            paid=movement.paid,
            ordered=movement.ordered,
            routed_at=movement.routed_at,
        )
    if state.queue is not None:
        waited = {"queue_place": state.queue.place, "dispatched": state.queue.dispatched}
        raw = dataclasses.replace(raw, **waited)
    if state.exits is not None:
        raw = dataclasses.replace(raw, exits=state.exits)
    if blocks is None:
        return raw
    return dataclasses.replace(
        raw,
        life=blocks.life,
        pool=blocks.pool,
        evictions=blocks.evictions,
        num_evictions=blocks.num_evictions,
    )


def without_holes(shape: EngineShape, params: Params, state: State) -> State:
    """The state with compact free lists, if it is time; lanes are told apart by an axis."""
    blocks = state.blocks
    if blocks is None:
        return state
    has_lanes = state.registers.ndim == 2

    num_free = params.cluster.total_kv_blocks - state.inst[..., :-1, Inst.USED_BLOCKS]

    def crowded(blocks: Blocks, num_free: jax.Array) -> jax.Array:
        slack = CHUNK * shape.window * shape.windows_a_step
        return is_crowded(shape, blocks, num_free, slack)

    def squeezed(blocks: Blocks, num_free: jax.Array) -> Blocks:
        dense, is_due = compact(shape, blocks), crowded(blocks, num_free)
        return jax.tree.map(lambda a, b: jnp.where(is_due, a, b), dense, blocks)

    over_lanes = jax.vmap if has_lanes else (lambda function: function)

    def change(blocks: Blocks, _: jax.Array) -> Blocks:
        return over_lanes(squeezed)(blocks, num_free)

    is_due = jnp.any(over_lanes(crowded)(blocks, num_free))
    return dataclasses.replace(state, blocks=once(is_due, change, blocks))


def run_row(
    shape: EngineShape,
    mechanism: Mechanism,
    params: Params,
    requests: Requests,
    max_scan_steps: jax.Array,
) -> Raw:
    """One run, with real branches."""
    ctx = Context(shape, mechanism, params, requests, branch)
    start = first_state(shape, mechanism, params, requests)
    return raw_of(*_chunks(ctx, start, max_scan_steps // CHUNK))


def _chunks(ctx: Context, start: State, most: jax.Array) -> tuple[State, jax.Array]:
    """The state after at most so many chunks of scan steps, and how many there were."""
    shape, params = ctx.shape, ctx.params

    def is_running(carry: tuple[State, jax.Array]) -> jax.Array:
        state, done = carry
        goes_on = (state.registers[Reg.IS_DONE] == 0) & (done < most)
        return goes_on & _has_room(shape, state) if shape.stall_steps else goes_on

    def chunk(carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        state, _ = lax.scan(lambda s, _: (scan_step(ctx, s), None), carry[0], length=CHUNK)
        return without_holes(shape, params, state), carry[1] + 1

    return lax.while_loop(is_running, chunk, (start, jnp.zeros((), jnp.int32)))


def _has_room(shape: EngineShape, state: State) -> jax.Array:
    """Whether the log and the preemptions have room for another chunk, in a run whose log is taken out."""
    registers, blocks = state.registers, state.blocks
    assert blocks is not None
    num_records = registers[Reg.NUM_RECORDS] - registers[Reg.LOG_BASE]
    is_full = num_records + CHUNK > shape.log_capacity
    return ~(is_full | (blocks.num_evictions + CHUNK > shape.eviction_capacity))


def beginning_of(shape: EngineShape, mechanism: Mechanism) -> Callable[..., Any]:
    """`(params, table, order) -> (Requests, State)` before the first event of a run in stretches."""

    def begin(params: Any, table: Any, order: Any) -> tuple[Requests, State]:
        requests = requests_of(shape, mechanism, params, table, order)
        return requests, first_state(shape, mechanism, params, requests)

    return begin


def stretch_of(shape: EngineShape, mechanism: Mechanism) -> Callable[..., Any]:
    """`(params, Requests, State, max_chunks) -> (State, chunks)`: the next stretch.

    It ends with the run, with an outcome, or before the log or the preemptions of a run whose log is taken out have
    no room left.
    """

    def go_on(params: Any, requests: Any, state: State, most: Any) -> tuple[State, Any]:
        """At most so many chunks of scan steps; and how many there were."""
        return _chunks(Context(shape, mechanism, params, requests, branch), state, most)

    return go_on
