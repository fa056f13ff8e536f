"""The compiled engine: from requests and numbers to raw results, for one row or many.

The same scan step runs in two loop forms. `rows`: each row alone, with real branches and an early exit after every
chunk of scan steps; the form for CPUs. `lanes`: all rows in one vectorised loop, every phase masked; the form for GPUs,
see runs/programs.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.columns import When, branch, choose, once
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts, pytree
from blis_jax.core.types import LAST, Absent, EngineShape, Mechanism, Params, never
from blis_jax.engine.phases.departures.pools import pools_of
from blis_jax.engine.phases.policy_calls import first_states
from blis_jax.engine.scan_step import scan_step
from blis_jax.engine.sources.listed import figures_of, sources_of
from blis_jax.memory.models import memory_of
from blis_jax.policies.routing.by_load import regrets_of
from blis_jax.tables.adapters import RequestAdapters
from blis_jax.tables.blocks import Blocks, compact, is_crowded
from blis_jax.tables.context import Context
from blis_jax.tables.gateways import gateways_of
from blis_jax.tables.raw import Raw, Regrets, parts_of
from blis_jax.tables.requests import (
    BlockNodes,
    Elsewhere,
    Media,
    PartRanks,
    RequestDeadlines,
    Requests,
    RequestTargets,
    Sessions,
    TextRanks,
)
from blis_jax.tables.state import Inst, Reg, State, initial_state
from blis_jax.workload.table import NEVER_US, NO_SESSION, RequestTable

if TYPE_CHECKING:
    from jaxtyping import Array, Int


CHUNK = 64  # scan steps between two looks at whether the run is over


@pytree
class Order:
    """The verified order of events within one microsecond, per request; see ties.py."""

    # order of entry among requests queued in one microsecond
    queue_rank: Int[Array | np.ndarray, "*run request"]
    # steps of that microsecond that come before; -1 not verified
    after_steps: Int[Array | np.ndarray, "*run request"]
    # rank of each id as a text, of those of all prefill and decode parts among them; None: that
    # of `request_<row>`; only with `Mechanism.reserves_decode`
    part_texts: Int[Array | np.ndarray, "*run part request"] | Absent = None


def first_order(num_requests: int) -> Order:
    """Return the engine's own order: queued before any step, in order of arrival, and nothing verified."""
    rank = jnp.arange(num_requests, dtype=jnp.int32)
    return Order(rank, jnp.full((num_requests,), -1, jnp.int32))


PARTS = ("", "_prefill", "_decode")  # behind the id of a request and of its two parts


def ranks_of_parts(ids: Sequence[str]) -> np.ndarray:
    """Return `Order.part_texts` for requests with these ids."""
    texts = np.array([request_id + part for part in PARTS for request_id in ids])
    ranks = np.empty(len(texts), np.int32)
    ranks[np.argsort(texts, kind="stable")] = np.arange(len(texts), dtype=np.int32)
    return ranks.reshape(len(PARTS), len(ids))


def requests_of(
    shape: EngineShape, mechanism: Mechanism, params: Params, table: RequestTable, order: Order
) -> Requests:
    """Return the request table as the engine reads it: typed for its clock, columns joined."""
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
        has_shared=has_shared,
        is_late=is_late.astype(jnp.int32),
        is_wide=_is_wide(shape, blocks).astype(jnp.int32),
        own=Parts(
            *_own(shape, mechanism, table, order, blocks), *_deadlines(table, arrival, forever)
        ),
    )


def _own(
    shape: EngineShape, mechanism: Mechanism, table: RequestTable, order: Order, blocks: jax.Array
) -> Iterator[object]:
    """Yield the sub-trees of requests that only some programs read, in a fixed order."""
    kinds: tuple[tuple[Callable[[], Iterable[object]], bool], ...] = (
        (
            lambda: [BlockNodes(_node_of(shape, blocks))],
            mechanism.is_precise and shape.num_blocks > 0,
        ),
        (lambda: [Media(_has_media(table))], mechanism.encodes),
        (lambda: [PartRanks(_part_ranks(table, order))], mechanism.reserves_decode),
        (lambda: [_text_ranks(table, order)], mechanism.has_offload_tiers),
        (lambda: _columns(table), True),
        (lambda: [_sessions(table)], mechanism.reads("has_session")),
    )
    for parts, is_read in kinds:
        yield from parts() if is_read else ()


def _sessions(table: RequestTable) -> Sessions:
    return Sessions(jnp.pad(jnp.asarray(table.session) != NO_SESSION, (0, 1)))


def _has_media(table: RequestTable) -> jax.Array:
    if not hasattr(table, "has_media"):
        return jnp.zeros(table.num_rows + 1, jnp.int32)
    return jnp.pad(jnp.asarray(table.has_media, jnp.int32), (0, 1))


def _columns(table: RequestTable) -> Iterator[object]:
    """Yield the table's columns for models, SLO targets and adapters, as far as it has them."""
    if hasattr(table, "is_elsewhere"):
        yield Elsewhere(jnp.pad(jnp.asarray(table.is_elsewhere, jnp.int32) == 1, (0, 1)))
    if hasattr(table, "slo_target_us"):
        yield RequestTargets(jnp.pad(jnp.asarray(table.slo_target_us, jnp.int64), (0, 1)))
    if hasattr(table, "adapter"):
        yield RequestAdapters(jnp.pad(jnp.asarray(table.adapter, jnp.int32), (0, 1)) - 1)


def _texts(table: RequestTable, order: Order) -> jax.Array:
    """Return `Order.part_texts`, computed from the usual ids if the order has none."""
    texts = order.part_texts
    if texts is None:
        texts = ranks_of_parts([f"request_{row}" for row in range(table.num_rows)])
    return jnp.asarray(texts, jnp.int32)


def _text_ranks(table: RequestTable, order: Order) -> TextRanks:
    return TextRanks(jnp.pad(_texts(table, order)[:2].T, ((0, 1), (0, 0))))


def _part_ranks(table: RequestTable, order: Order) -> jax.Array:
    """Return the array of `PartRanks.table`."""
    texts = _texts(table, order)
    arrival = jnp.tile(jnp.asarray(table.arrival_us), len(texts))
    by_arrival = jnp.lexsort((texts.reshape(-1), arrival))
    ranks = jnp.zeros(texts.size, jnp.int32)
    ranks = ranks.at[by_arrival].set(jnp.arange(texts.size, dtype=jnp.int32))
    columns = jnp.concatenate([ranks.reshape(texts.shape), texts[1:2]])
    return jnp.pad(columns.T, ((0, 1), (0, 0)))


def _deadlines(
    table: RequestTable, arrival: jax.Array, forever: np.number
) -> tuple[RequestDeadlines, ...]:
    """Yield the time at which each request is given up, a spare one included; nothing if none has a deadline."""
    if not hasattr(table, "timeout_us"):
        return ()
    timeout = table.timeout_us
    last = jnp.asarray(forever).astype(jnp.float64)
    has_one = (timeout > 0) & (arrival.astype(jnp.float64) + timeout.astype(jnp.float64) < last)
    deadline = arrival + jnp.where(has_one, timeout, 0).astype(arrival.dtype)
    at = jnp.pad(jnp.where(has_one, deadline, forever), (0, 1), constant_values=forever)
    return (RequestDeadlines(at),)


def _shared_numbers(
    shape: EngineShape, path: jax.Array, node_start: jax.Array, node_blocks: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the numbering of shared blocks, see contents.py: starts, shifts `[request, path]`, and their number.

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
    """Return the node of every shared block; the spare node for numbers without a block."""
    ends = jnp.cumsum(node_blocks, dtype=jnp.int32)
    number = lax.iota(jnp.int32, shape.num_shared_blocks + 1)
    return jnp.searchsorted(ends, number, side="right").astype(jnp.int32)


def _is_wide(shape: EngineShape, node_blocks: jax.Array) -> jax.Array:
    """Return whether the nodes have more shared blocks than the tables can hold."""
    if shape.num_blocks:
        return jnp.sum(node_blocks, dtype=jnp.int32) > shape.num_shared_blocks
    return jnp.any(node_blocks > shape.node_blocks)


def context_of(
    shape: EngineShape,
    mechanism: Mechanism,
    params: Params,
    requests: Requests,
    when: When = branch,
    scorer_shares: jax.Array | None = None,
) -> Context:
    """Return the context that the phases of a run read; `when` is the form of its branches, real ones by default."""
    parts = memory_of(shape, mechanism), pools_of(mechanism), gateways_of(mechanism)
    sources = sources_of(shape, mechanism, requests)
    return Context(shape, mechanism, params, requests, when, *parts, sources, scorer_shares)


def first_state(
    shape: EngineShape, mechanism: Mechanism, params: Params, requests: Requests
) -> State:
    """Return the state of the empty cluster; its outcome is a failure already if the clock or a table is too small."""
    ctx = context_of(shape, mechanism, params, requests)
    states = first_states(shape, mechanism, params)
    tables = (source.first_tables(ctx) for source in ctx.sources.all)
    sub_trees = Parts(ctx.memory.first_tables(ctx), *(part for parts in tables for part in parts))
    state = initial_state(shape, mechanism, params, *states, sub_trees)
    code = jnp.where(requests.is_late == 1, jnp.int32(Outcome.CLOCK_OVERFLOW), jnp.int32(0))
    code = jnp.where(requests.is_wide == 1, jnp.int32(Outcome.NODES_FULL), code)
    lane = state.lane.row.replace(outcome=code)
    return dataclasses.replace(state, lane=state.lane.with_numbers(lane.numbers))


def raw_of(mechanism: Mechanism, state: State, chunks: jax.Array) -> Raw:
    """Return the raw results of a state after `chunks` chunks of scan steps."""
    registers = state.lane.numbers
    is_cut = (registers[..., Reg.IS_DONE] == 0) & (registers[..., Reg.OUTCOME] == 0)
    code = jnp.where(is_cut, jnp.int32(Outcome.ITERATIONS_EXHAUSTED), registers[..., Reg.OUTCOME])
    registers = registers.at[..., Reg.OUTCOME].set(code)
    registers = registers.at[..., Reg.CURSOR].set(chunks * CHUNK)
    return Raw(
        registers,
        state.past.places,
        state.past.rows,
        state.log.numbers,
        state.log.times,
        state.inst.numbers,
        state.inst.times,
        state.past.expected,
        parts_of(state, *map(Regrets, regrets_of(state.gateway))),
        figures_of(mechanism, state.gateway),
    )


def without_holes(shape: EngineShape, params: Params, state: State) -> State:
    """Return the state with its free lists compacted when that is due; an extra axis distinguishes the lanes."""
    if Blocks not in state:
        return state
    blocks = state[Blocks]
    has_lanes = state.lane.numbers.ndim == 2

    num_free = params.cluster.total_kv_blocks - state.inst.numbers[..., Inst.USED_BLOCKS, :-1]

    def crowded(blocks: Blocks, num_free: jax.Array) -> jax.Array:
        slack = CHUNK * shape.window * shape.windows_a_step
        return is_crowded(shape, blocks, num_free, slack)

    def squeezed(blocks: Blocks, num_free: jax.Array) -> Blocks:
        dense, is_due = compact(shape, blocks), crowded(blocks, num_free)
        return choose(is_due, dense, blocks)

    over_lanes = jax.vmap if has_lanes else (lambda function: function)

    def change(blocks: Blocks, _: jax.Array) -> Blocks:
        return over_lanes(squeezed)(blocks, num_free)

    is_due = jnp.any(over_lanes(crowded)(blocks, num_free))
    return state.having(once(is_due, change, blocks))


def run_row(
    shape: EngineShape,
    mechanism: Mechanism,
    params: Params,
    requests: Requests,
    max_scan_steps: jax.Array,
) -> Raw:
    """Run one row to its end, with real branches; return its raw results."""
    ctx = context_of(shape, mechanism, params, requests)
    start = first_state(shape, mechanism, params, requests)
    return raw_of(mechanism, *_chunks(ctx, start, max_scan_steps // CHUNK))


def _chunks(ctx: Context, start: State, most: jax.Array) -> tuple[State, jax.Array]:
    """Return the state after at most `most` chunks of scan steps, and the number of chunks run."""
    shape, params = ctx.shape, ctx.params

    def is_running(carry: tuple[State, jax.Array]) -> jax.Array:
        state, done = carry
        goes_on = (state.lane.numbers[Reg.IS_DONE] == 0) & (done < most)
        return goes_on & _has_room(shape, state) if shape.stall_steps else goes_on

    def chunk(carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        state, _ = lax.scan(lambda s, _: (scan_step(ctx, s), None), carry[0], length=CHUNK)
        return without_holes(shape, params, state), carry[1] + 1

    return lax.while_loop(is_running, chunk, (start, jnp.zeros((), jnp.int32)))


def _has_room(shape: EngineShape, state: State) -> jax.Array:
    """Return whether the log and the preemptions have room for another chunk, in a run of several stretches."""
    registers, blocks = state.lane.numbers, state[Blocks]
    num_records = registers[Reg.NUM_RECORDS] - registers[Reg.LOG_BASE]
    is_full = num_records + CHUNK > shape.log_capacity
    return ~(is_full | (blocks.num_evictions + CHUNK > shape.eviction_capacity))


def beginning_of(
    shape: EngineShape, mechanism: Mechanism
) -> Callable[[Params, RequestTable, Order], tuple[Requests, State]]:
    """Return the function `(params, table, order) -> (Requests, State)`, which builds the state before the first event
    of a run in stretches.
    """

    def begin(params: Params, table: RequestTable, order: Order) -> tuple[Requests, State]:
        requests = requests_of(shape, mechanism, params, table, order)
        return requests, first_state(shape, mechanism, params, requests)

    return begin


def stretch_of(
    shape: EngineShape, mechanism: Mechanism
) -> Callable[[Params, Requests, State, jax.Array], tuple[State, jax.Array]]:
    """Return the function `(params, Requests, State, max_chunks) -> (State, chunks)`, which runs the next stretch.

    The stretch ends with the run, with an outcome, or, in a run whose log is emptied between stretches, before the log
    or the preemptions have no room left.
    """

    def go_on(
        params: Params, requests: Requests, state: State, most: jax.Array
    ) -> tuple[State, jax.Array]:
        """Run at most `most` chunks of scan steps; return the state and the number of chunks run."""
        return _chunks(context_of(shape, mechanism, params, requests), state, most)

    return go_on


# arguments by place that a program works on without a copy, so that the caller must not use them again
USED_UP = {stretch_of: (2,)}
