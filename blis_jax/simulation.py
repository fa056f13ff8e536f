"""Entry points: one run, or many rows of parameters and seeds, repaired until they are whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from blis_jax.config import ClusterConfig
from blis_jax.engine import Order as EngineOrder
from blis_jax.engine import compiled_tables
from blis_jax.instance_groups import has_cpu_tier, per_instance
from blis_jax.invariants import cheap_violations
from blis_jax.latency.registry import model_of
from blis_jax.livelock import has_end, run_to_horizon
from blis_jax.mechanism import mechanism, params
from blis_jax.observe import Observation, unstack
from blis_jax.policies.contract import Policies
from blis_jax.policies.seeds import policy_seed
from blis_jax.records import RunRecord
from blis_jax.sizes import (
    blocks_of,
    next_power,
    num_chunks,
    num_distinct_blocks,
    num_output_blocks,
    rounded,
    shares_outputs,
    slots_for,
)
from blis_jax.snapshot import ROUTER_INDEX_CAPACITY
from blis_jax.ties import Order, correct
from blis_jax.types import EngineShape, Mechanism, Outcome
from blis_jax.workload.table import NEVER_US, RequestTable, pad_to

MAX_SLOTS = 8192
MAX_REPAIRS = 4000
MOST_RECORDS = 1 << 17  # to begin with, of steps that stand by themselves
MOST_PATH_BLOCKS = (
    2048  # shared blocks on a path, with padding, that a visit may cost without eviction
)
LONG_LISTS = 1024  # blocks of a request from which a wide window pays for a single lane


@dataclass(frozen=True)
class Options:
    """How to run, apart from what is simulated."""

    num_slots: int | None = None  # per instance; found by itself if None
    log_capacity: int | None = None
    clock: str = "int32"  # or int64, float64, or continuous: float64 without truncation to whole µs
    form: str = "rows"  # "rows": branches, for CPUs; "lanes": one vectorised loop, for GPUs
    resolve_ties: bool = True
    max_scan_steps: int = 2**30
    kv_model: str = "auto"  # "no-eviction" where it is provably enough, else "block-level"
    window: int | None = None  # blocks moved in one scan step at block level; by the form if None
    num_copies: int = 4  # to begin with, of one shared block on one instance
    num_chains: int = 2  # to begin with, step events pending on one instance
    # least sizes at block level, so that several runs share a compilation
    num_blocks: int = 64
    list_blocks: int = 16
    num_shared_blocks: int = 16
    num_evictions: int = 256


def shape_for(
    config: ClusterConfig, table: RequestTable, options: Options, functions: Mechanism
) -> EngineShape:
    """Static sizes for a table: bucketed, with guesses that repair.py's loop enlarges if they fail."""
    rows = int(np.sum(np.asarray(table.arrival_us) != NEVER_US))
    num_requests = rounded(max(rows, 64), 64)
    longest = int(np.max(np.asarray(table.node_blocks), initial=0))
    has_nodes = longest > 0 and bool(np.any(np.asarray(table.path_nodes) >= 0))
    block_size = config.block_size_in_tokens
    is_sharing = has_nodes and shares_outputs(table, block_size)
    # an arrival ends the runs of equal steps of all instances that decode
    records = 2 * num_requests + num_chunks(config, table)
    records = max(records, min(2 + config.num_instances, 8) * num_requests)
    if is_sharing:  # a step by itself whenever a member fills a block
        records += num_output_blocks(table, block_size)
    if not model_of(config).has_equal_decode_steps:  # every step stands by itself
        tokens = int(np.sum(np.asarray(table.output_len), dtype=np.int64))
        records = max(records, min(records + tokens, MOST_RECORDS))
    prompt_blocks = int(np.sum(np.asarray(table.input_len) // block_size, dtype=np.int64))
    return EngineShape(
        num_instances=config.num_instances,
        num_slots=options.num_slots or slots_for(config, table),
        num_requests=num_requests,
        num_nodes=rounded(table.num_nodes) if has_nodes else 0,
        path_depth=rounded(table.depth) if has_nodes else 1,
        num_keys=num_requests if functions.uses_prompt_keys else 1,
        node_blocks=rounded(longest) if has_nodes else 1,
        num_copies=options.num_copies,
        num_chains=options.num_chains,
        log_capacity=options.log_capacity or rounded(records, 1024),
        block_size=block_size,
        clock=_clock_for(config, table, options.clock),
        has_router_eviction=prompt_blocks > config.num_instances * ROUTER_INDEX_CAPACITY,
        has_shared_outputs=is_sharing,
    )


def at_block_level(
    shape: EngineShape,
    configs: Sequence[ClusterConfig],
    longest: int,
    shared_blocks: int,
    options: Options,
) -> EngineShape:
    """The shape with block-level memory; `longest` is a request's prompt and output in blocks."""
    most = max(max(per_instance(config, "total_kv_blocks")) for config in configs)
    num_blocks = rounded(most, options.num_blocks)
    list_blocks = rounded(min(longest + 2, num_blocks + 2), options.list_blocks)
    # so many places that holes are seldom squeezed out
    ring_size = next_power(2 * num_blocks + 2 * list_blocks + 8192 - 1)
    return dataclasses.replace(
        shape,
        num_blocks=num_blocks,
        list_blocks=max(list_blocks, shape.list_blocks),
        num_shared_blocks=max(
            rounded(shared_blocks, options.num_shared_blocks), shape.num_shared_blocks
        ),
        ring_size=max(ring_size, shape.ring_size),
        eviction_capacity=max(
            rounded(2 * shape.num_requests, options.num_evictions), shape.eviction_capacity
        ),
        has_cpu_tier=any(has_cpu_tier(config) for config in configs),
        window=options.window or (8 if options.form == "rows" and list_blocks < LONG_LISTS else 32),
        # sizes that only the model without eviction has
        num_copies=1,
        node_blocks=1,
    )


def _pressed(
    shape: EngineShape, config: ClusterConfig, table: RequestTable, options: Options
) -> EngineShape:
    """The shape with block-level memory, where a step stands by itself whenever a member needs a block."""
    records = shape.log_capacity + 2 * num_output_blocks(table, shape.block_size)
    capacity = shape.log_capacity if options.log_capacity else rounded(records, 1024)
    shape = dataclasses.replace(shape, log_capacity=capacity)
    return at_block_level(shape, [config], *blocks_of(table, shape.block_size), options)


def _is_pressed(shape: EngineShape, config: ClusterConfig, table: RequestTable) -> bool:
    """Whether a run without eviction is not worth a try: more contents than blocks, or tables of long contents."""
    if shape.num_nodes == 0:  # a block may be used again if nobody looks for its content
        return False
    distinct = num_distinct_blocks(table, shape.block_size)
    has_room = distinct <= sum(per_instance(config, "total_kv_blocks"))
    return not has_room or shape.node_blocks * shape.path_depth > MOST_PATH_BLOCKS


def _clock_for(config: ClusterConfig, table: RequestTable, clock: str) -> str:
    """The clock asked for, or 64 bits if arrivals alone exceed 32."""
    arrivals = np.asarray(table.arrival_us)
    latest = int(np.max(arrivals[arrivals != NEVER_US], initial=0))
    latest += config.admission_latency + config.routing_latency
    return "int64" if clock == "int32" and latest >= 2**31 - 1 else clock


_WHOLE = (Outcome.COMPLETED, Outcome.HORIZON)
# the size that was too small, and how much larger it is next time
_GROWTH = {
    Outcome.LOG_FULL: ("log_capacity", 4),
    Outcome.COPIES_FULL: ("num_copies", 4),
    Outcome.CHAINS_FULL: ("num_chains", 4),
    Outcome.LISTS_FULL: ("list_blocks", 2),
    Outcome.RING_FULL: ("ring_size", 2),
    Outcome.EVICTIONS_FULL: ("eviction_capacity", 4),
}


def enlarged(shape: EngineShape, outcome: Outcome) -> EngineShape | None:
    """The shape that can repair a row with this outcome, or None."""
    if outcome == Outcome.SLOTS_FULL and shape.num_slots < MAX_SLOTS:
        return dataclasses.replace(shape, num_slots=min(2 * shape.num_slots, MAX_SLOTS))
    if outcome in _GROWTH:
        field, factor = _GROWTH[outcome]
        return dataclasses.replace(shape, **{field: factor * getattr(shape, field)})
    if outcome == Outcome.NODES_FULL:
        return dataclasses.replace(
            shape,
            node_blocks=2 * shape.node_blocks,
            num_shared_blocks=max(2 * shape.num_shared_blocks, 16),
        )
    if outcome == Outcome.ROUTER_INDEX_FULL:
        return dataclasses.replace(shape, has_router_eviction=True)
    if outcome == Outcome.CLOCK_OVERFLOW and shape.clock == "int32":
        return dataclasses.replace(shape, clock="int64")
    return None


@dataclass(frozen=True)
class Row:
    """One run to make."""

    config: ClusterConfig
    table: RequestTable  # numpy
    policy_seed: int  # of the policies' own draws, see policies/seeds.py
    policies: Policies | None = None  # in place of those that the configuration names


class Attempt:
    """One run on its way to a result: its sizes, the order of its ties, how often it was repaired.

    Capacities are enlarged where they were hit, ties put in the reference's order. What cannot be
    repaired stays in the record's `outcome`.
    """

    def __init__(self, row: Row, options: Options) -> None:
        """Before the first run."""
        self.row, self.options = row, options
        self.functions: Mechanism = mechanism(row.config, row.policies)
        self.shape = _first_shape(row, options, self.functions)
        self.order = _identity_order(int(np.sum(np.asarray(row.table.arrival_us) != NEVER_US)))
        self.repairs, self.has_replayed = 0, False

    def take(self, seen: Observation) -> RunRecord | None:
        """The record if this run was the last; else it is repaired and to be made again."""
        if self._goes_on(seen.outcome()):
            seen = self._to_horizon()
        outcome = seen.outcome()
        repairs = self.repairs
        is_last = repairs + 1 >= MAX_REPAIRS
        self.repairs += 1
        larger = self._larger(outcome)
        if larger is not None and not is_last:
            self.shape = larger
            return None
        has_ties = outcome in _WHOLE and (self._is_tied(seen.num_open_ties()) or self.has_replayed)
        if larger is not None or not has_ties:
            return _checked(seen.record(repairs))
        self.has_replayed = True
        if correct(seen.histories(), self.order):
            return _checked(dataclasses.replace(seen.record(repairs), num_open_ties=0))
        if is_last:
            return _checked(dataclasses.replace(seen.record(repairs), outcome=Outcome.OPEN_TIE))
        return None

    def _to_horizon(self) -> Observation:
        """The run again, past barren steps up to the horizon."""
        inputs = self.arguments(self.shape)
        raw = run_to_horizon(self.shape, self.functions, inputs, self.options.max_scan_steps)
        return observed(raw, inputs, self.shape, self.functions)

    def _goes_on(self, outcome: Outcome) -> bool:
        """Whether a run that stalled is to be made again up to its horizon."""
        return outcome == Outcome.LIVELOCK and has_end(self.row.config.horizon, self.functions)

    def is_settled(self, outcome: Outcome, num_open_ties: int) -> bool:
        """Whether a run that ended so is the last, with nothing to look at but its figures."""
        if self.has_replayed or self._larger(outcome) is not None or self._goes_on(outcome):
            return False
        return outcome not in _WHOLE or not self._is_tied(num_open_ties)

    def _larger(self, outcome: Outcome) -> EngineShape | None:
        if outcome == Outcome.KV_CHECK_TRIPPED and self.options.kv_model == "auto":
            return _pressed(self.shape, self.row.config, self.row.table, self.options)
        return enlarged(self.shape, outcome)

    def _is_tied(self, num_open_ties: int) -> bool:
        """Whether there is an order to look for; without the reference's defects it has none."""
        if not self.options.resolve_ties or self.shape.is_continuous:
            return False
        if self.functions.moves_requests:  # the reference knows none of this
            return False
        return not self.row.config.corrected and num_open_ties > 0

    def arguments(self, shape: EngineShape) -> tuple[Any, RequestTable, EngineOrder]:
        """Numbers, requests and order in the sizes of `shape`, which must hold the attempt's own."""
        table = self.row.table
        if shape.num_nodes == 0:
            empty = np.full((table.num_rows, 1), -1, np.int32)
            zero = np.zeros(1, np.int32)
            table = dataclasses.replace(table, path_nodes=empty, node_start=zero, node_blocks=zero)
        table = pad_to(table, shape.num_requests, max(shape.num_nodes, 1), shape.path_depth)
        spare = shape.num_requests - len(self.order.queue_rank)
        rank = np.arange(shape.num_requests, dtype=np.int32)
        rank[: len(self.order.queue_rank)] = self.order.queue_rank
        after = np.pad(self.order.after_steps, (0, spare), constant_values=-1).astype(np.int32)
        row = self.row
        numbers = params(row.config, shape.num_instances, row.policy_seed, row.policies)
        return numbers, table, EngineOrder(rank, after)


def _first_shape(row: Row, options: Options, functions: Mechanism) -> EngineShape:
    shape = shape_for(row.config, row.table, options, functions)
    is_pressed = options.kv_model == "auto" and _is_pressed(shape, row.config, row.table)
    if is_pressed or options.kv_model == "block-level":
        shape = _pressed(shape, row.config, row.table, options)
    return shape


def _identity_order(num_requests: int) -> Order:
    return Order(np.arange(num_requests, dtype=np.int32), np.full(num_requests, -1, np.int32))


def run_attempts(
    shape: EngineShape, attempts: Sequence[Attempt], options: Options
) -> list[Observation]:
    """One compiled call over attempts of one mechanism, all in sizes that hold each of them."""
    inputs, stacked = stacked_arguments(shape, attempts)
    functions = attempts[0].functions
    with jax.enable_x64(True):
        function = compiled_tables(shape, functions, options.form)
        raw = jax.device_get(function(*stacked, np.int32(options.max_scan_steps)))
    return [
        observed(unstack(raw, place), one, shape, functions) for place, one in enumerate(inputs)
    ]


def stacked_arguments(shape: EngineShape, attempts: Sequence[Attempt]) -> tuple[list[Any], Any]:
    """What each attempt is run with, and the same with a leading axis."""
    inputs = [attempt.arguments(shape) for attempt in attempts]
    return inputs, jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *inputs)


def observed(
    raw: Any, given: tuple[Any, ...], shape: EngineShape, functions: Mechanism
) -> Observation:
    """What happened in one run, from its raw tables and what it was run with."""
    numbers, table, _ = given
    seen = Observation(raw, table, numbers, shape.record_dtype)
    seen.block_size, seen.defects = shape.block_size, functions.defects
    seen.overhead = functions.latency.overhead
    return seen


def simulate(
    config: ClusterConfig,
    table: RequestTable,
    options: Options | None = None,
    seed: int = 0,
    policies: Policies | None = None,
) -> RunRecord:
    """One run, repaired: capacities enlarged where they were hit, ties put in the reference's order.

    Args:
        config: the cluster, and names of its policies.
        table: the requests, as numpy arrays.
        options: how to run.
        seed: the one that the requests were drawn from; random policies draw from it, as in
            `over_seeds`, and other policies ignore it.
        policies: policies to use in place of those that the configuration names.

    Returns:
        The record; what cannot be repaired stays in its `outcome`.
    """
    options = options or Options()
    attempt = Attempt(Row(config, table, policy_seed(seed), policies), options)
    while True:
        (seen,) = run_attempts(attempt.shape, [attempt], options)
        record = attempt.take(seen)
        if record is not None:
            return record


def _checked(record: RunRecord) -> RunRecord:
    """The record with the counts of the cheap invariants."""
    failures = record.invariant_failures | cheap_violations([record])[0]
    return dataclasses.replace(record, invariant_failures=failures)
