"""The table sizes that requests need, counted from given requests or expected from draws.

Sizes are static: here are the first guesses, and how they grow if a run did not fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import has_cpu_tier, per_instance
from blis_jax.cluster.offload_tiers import cpu_capacity
from blis_jax.cluster.revisions import aligns_chunks
from blis_jax.cluster.step_times import merges_steps, name_of
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape, Mechanism
from blis_jax.engine.cluster_params import rows_to_begin_with
from blis_jax.files.input_files import is_file
from blis_jax.policies.reading import NUM_KEYS
from blis_jax.prefix_index.router_index import ROUTER_INDEX_CAPACITY
from blis_jax.runs.options import Options
from blis_jax.workload.drawing.plan import DrawPlan, longest_node, longest_request, prefix_blocks
from blis_jax.workload.table import NEVER_US, RequestTable

LONG_TABLE = 4096  # requests from which it pays to look at how many are there at a time
BUSY = 0.7  # share of an instance's time beyond which queues decide, not service times
BALANCED = ("round-robin", "least-loaded", "weighted")
# where steps in decode differ; those that last as many whole µs share a record, and each run fills the log with zeros
MOST_RECORDS, TOKENS_OF_RECORD, RECORDS_OF_REQUEST = 1 << 17, 8, 16
# prompts per instance from which the router's index of 10,000 blocks is likely to evict
REQUESTS_BEFORE_EVICTION = 300


def rounded(value: int, least: int = 1) -> int:
    """Return the next size of the grid 1, 1.5 × powers of two, so that near sizes share a compilation."""
    size = least
    while size < value:
        size = size * 3 // 2 if size & (size - 1) == 0 and size >= 2 else next_power(size)
    return size


def next_power(value: int) -> int:
    """Return the least power of two that is greater than a value."""
    return 1 << value.bit_length()


@dataclass(frozen=True)
class Demand:
    """The properties of requests and clusters from which table sizes follow."""

    num_instances: int  # of the largest cluster
    num_slots: int
    num_requests: int
    num_nodes: int  # shared contents; 0: none
    path_depth: int
    node_blocks: int  # of the longest shared content
    num_records: int  # of steps
    block_size: int
    clock: str
    has_router_eviction: bool
    has_shared_outputs: bool
    # at block level
    total_kv_blocks: int  # of the largest instance
    all_kv_blocks: int  # of all instances of the largest cluster
    has_cpu_tier: bool  # of February's revision
    longest: int = 1  # blocks of a request, prompt and output
    shared_blocks: int = 0
    output_blocks: int = 0  # 0 for draws: not known
    mirror_size: int = 0  # blocks of the largest CPU tier of August's revision
    num_allocations: int = 0  # for prompts; those of preempted requests come on top
    distinct_blocks: int | None = None  # blocks of different content; None: not known


def demand_of_table(config: ClusterConfig, table: RequestTable, options: Options) -> Demand:
    """Count the demand of one run on a given table."""
    count = int(np.sum(np.asarray(table.arrival_us) != NEVER_US))
    num_requests = rounded(max(count, 64), 64)
    longest_content = int(np.max(np.asarray(table.node_blocks), initial=0))
    has_nodes = longest_content > 0 and bool(np.any(np.asarray(table.path_nodes) >= 0))
    block_size = config.block_size_in_tokens
    is_sharing = has_nodes and shares_outputs(table, block_size)
    # an arrival ends the runs of equal steps of all instances that decode
    chunks = _num_chunks(config, table)
    records = 2 * num_requests + chunks
    records = max(records, min(2 + config.num_instances, 8) * num_requests)
    output_blocks = _num_output_blocks(table, block_size)
    if is_sharing:  # a step by itself whenever a member fills a block
        records += output_blocks
    if not merges_steps(config):
        tokens = int(np.sum(np.asarray(table.output_len), dtype=np.int64))
        records = max(records, min(records + tokens // TOKENS_OF_RECORD, MOST_RECORDS))
    prompt_blocks = int(np.sum(np.asarray(table.input_len) // block_size, dtype=np.int64))
    tokens_of_each = np.asarray(table.input_len) + np.asarray(table.output_len)
    return Demand(
        num_instances=rows_to_begin_with(config),
        num_slots=options.num_slots or slots_for(config, table),
        num_requests=num_requests,
        num_nodes=rounded(table.num_nodes) if has_nodes else 0,
        path_depth=rounded(table.depth) if has_nodes else 1,
        node_blocks=rounded(longest_content) if has_nodes else 1,
        num_records=records,
        block_size=block_size,
        clock=_clock_for(config, table, options.clock),
        has_router_eviction=prompt_blocks > config.num_instances * ROUTER_INDEX_CAPACITY,
        has_shared_outputs=is_sharing,
        total_kv_blocks=max(per_instance(config, "total_kv_blocks")),
        all_kv_blocks=sum(per_instance(config, "total_kv_blocks")),
        has_cpu_tier=has_cpu_tier(config) and not config.is_august,
        mirror_size=_mirror_size(config),
        longest=-(-int(np.max(tokens_of_each, initial=1)) // block_size),
        shared_blocks=int(np.sum(np.asarray(table.node_blocks))),
        output_blocks=output_blocks,
        num_allocations=num_requests + chunks,
        # a block may be used again if nobody looks for its content
        distinct_blocks=_num_distinct_blocks(table, block_size) if has_nodes else None,
    )


def demand_of_draws(
    configs: Sequence[ClusterConfig], plans: Sequence[DrawPlan], options: Options
) -> Demand:
    """Estimate the demand of runs of several points with one mechanism, whose plans have one shape."""
    draws = plans[0].shape
    longest_content = max(longest_node(plan) for plan in plans)
    has_nodes = longest_content > 0
    few = REQUESTS_BEFORE_EVICTION * min(config.num_instances for config in configs)
    is_skipping = all(map(merges_steps, configs))
    return Demand(
        num_instances=max(rows_to_begin_with(config) for config in configs),
        num_slots=options.num_slots
        or guessed_slots(draws.num_requests, min(map(sharing_instances, configs))),
        num_requests=draws.num_requests,
        num_nodes=draws.num_nodes if has_nodes else 0,
        path_depth=draws.path_depth if has_nodes else 1,
        node_blocks=rounded(longest_content) if has_nodes else 1,
        num_records=(4 if is_skipping else RECORDS_OF_REQUEST) * draws.num_requests,
        block_size=draws.block_size,
        clock=options.clock,
        has_router_eviction=draws.num_requests > few,
        has_shared_outputs=draws.has_shared_outputs and has_nodes,
        total_kv_blocks=max(max(per_instance(config, "total_kv_blocks")) for config in configs),
        all_kv_blocks=max(sum(per_instance(config, "total_kv_blocks")) for config in configs),
        has_cpu_tier=any(has_cpu_tier(config) and not config.is_august for config in configs),
        longest=max(map(longest_request, plans)),
        shared_blocks=max(map(prefix_blocks, plans)),
        mirror_size=max(_mirror_size(config) for config in configs),
        num_allocations=2 * draws.num_requests,
    )


def _mirror_size(config: ClusterConfig) -> int:
    if not config.is_august:
        return 0
    return max(*per_instance(config, "kv_cpu_blocks"), cpu_capacity(config))


def sharing_instances(config: ClusterConfig) -> int:
    """Return how many instances share the requests; 1 for a router from a user's file, which may not balance.

    A table that is too small costs a compilation, while a table of 512 slots costs a tenth of a run.
    """
    return 1 if is_file(config.routing_policy) else config.num_instances


def guessed_slots(num_requests: int, num_instances: int) -> int:
    """Guess the slots per instance: more than an even share, but not all requests of a long workload."""
    share = -(-num_requests * 5 // (4 * num_instances))
    return rounded(min(max(64, share + 16), 512), 64)


def slots_for(config: ClusterConfig, table: RequestTable) -> int:
    """Choose the slots per instance for a table; for a long one of light load, by how many requests overlap."""
    arrival = np.asarray(table.arrival_us)
    is_real = arrival != NEVER_US
    count = int(is_real.sum())
    guess = guessed_slots(count, sharing_instances(config))
    is_linear = name_of(config).startswith("blackbox")
    if count < LONG_TABLE or config.routing_policy not in BALANCED or not is_linear:
        return guess
    (alpha, *_), beta = (_largest(config, name) for name in ("alpha_coeffs", "beta_coeffs"))
    alpha += max(per_instance(config, "network_delay"))
    arrival = arrival[is_real].astype(np.float64)
    inputs, outputs = (
        np.asarray(x, np.float64)[is_real] for x in (table.input_len, table.output_len)
    )
    chunks = np.ceil(inputs / _chunk(config)) + aligns_chunks(config)
    prefill_us = chunks * beta[0] + inputs * beta[1]
    span_us = max(arrival[-1] - arrival[0], 1.0) * config.num_instances
    if prefill_us.sum() + outputs.sum() * beta[2] > BUSY * span_us:
        return guess
    # steps are shared, so a request stays longer than it would alone
    stay_us = alpha + 2.0 * (prefill_us + outputs * (beta[0] + beta[2]))
    left = np.sort(arrival + stay_us)
    most = int(np.max(np.arange(1, count + 1) - np.searchsorted(left, arrival)))
    return min(guess, rounded(2 * most // config.num_instances + 16, 64))


def _num_chunks(config: ClusterConfig, table: RequestTable) -> int:
    """Return the number of steps that compute prompts, one request at a time and without cached tokens."""
    chunks = -(-np.asarray(table.input_len, np.int64) // _chunk(config))
    return int(np.sum(chunks + aligns_chunks(config)))


def _chunk(config: ClusterConfig) -> int:
    """Return the most prompt tokens of a request in one step, on the instance with the lowest limit."""
    thresholds = per_instance(config, "long_prefill_token_threshold")
    limits = [threshold for threshold in thresholds if threshold > 0]
    tokens = min(per_instance(config, "max_num_scheduled_tokens") + limits)
    size = config.block_size_in_tokens
    return tokens // size * size if aligns_chunks(config) else tokens


def _largest(config: ClusterConfig, coefficients: str) -> list[float]:
    """Return the largest value of each coefficient over the instances."""
    return [max(values) for values in zip(*per_instance(config, coefficients), strict=True)]


def _num_output_blocks(table: RequestTable, block_size: int) -> int:
    """Return the number of KV blocks that all outputs fill."""
    return int(np.sum(np.asarray(table.output_len, np.int64))) // block_size


def shares_outputs(table: RequestTable, block_size: int) -> bool:
    """Return whether content that requests share reaches into the output of some request."""
    path = np.asarray(table.path_nodes)
    start = np.asarray(table.node_start)[np.maximum(path, 0)]
    prompt_blocks = np.asarray(table.input_len) // block_size
    return bool(np.any((path >= 0) & (start >= prompt_blocks[:, None])))


def _num_distinct_blocks(table: RequestTable, block_size: int) -> int:
    """Return the number of blocks with distinct content in all prompts and outputs."""
    blocks, path = np.asarray(table.node_blocks, np.int64), np.asarray(table.path_nodes)
    tokens = np.asarray(table.input_len, np.int64) + np.asarray(table.output_len)
    again = np.sum(np.where(path >= 0, blocks[np.maximum(path, 0)], 0)) - np.sum(blocks)
    return int(np.sum(-(-tokens // block_size)) - again)


def _clock_for(config: ClusterConfig, table: RequestTable, clock: str) -> str:
    """Return the clock asked for, or `int64` if arrivals exceed the range of `int32`."""
    arrivals = np.asarray(table.arrival_us)
    latest = int(np.max(arrivals[arrivals != NEVER_US], initial=0))
    latest += config.admission_latency + config.routing_latency
    return "int64" if clock == "int32" and latest >= 2**31 - 1 else clock


MAX_SLOTS = 8192
# shared blocks on a path, with padding, that a visit may cost without eviction
MOST_PATH_BLOCKS = 2048
FEWEST_CHANGES = 256  # decisions of an autoscaler to begin with
FEWEST_TOUCHES = 4096  # that the log of an index has room for where the caches feed it
LONG_LISTS = 1024  # blocks of a request from which a wide window pays for a single lane
_WIDER_CLOCK = {"int32": 0, "int64": 1, "float64": 2, "continuous": 3}


@dataclass(frozen=True)
class Sizes:
    """The table sizes of a run, and the demand and options from which they follow."""

    shape: EngineShape
    demand: Demand
    options: Options
    headroom: float = 1.0  # of draws, see `compile_plan`


def first_sizes(demand: Demand, options: Options, functions: Mechanism) -> Sizes:
    """Guess the sizes of a run, rounded to the grid; `grown` enlarges sizes that turn out too small."""
    shape = EngineShape(
        num_instances=demand.num_instances,
        num_slots=demand.num_slots,
        num_requests=demand.num_requests,
        num_nodes=demand.num_nodes,
        path_depth=demand.path_depth,
        num_keys=demand.num_requests if functions.reads(NUM_KEYS) else 1,
        node_blocks=demand.node_blocks,
        num_copies=options.num_copies,
        num_chains=options.num_chains,
        log_capacity=options.log_capacity or rounded(demand.num_records, 1024),
        block_size=demand.block_size,
        clock=demand.clock,
        has_router_eviction=demand.has_router_eviction,
        has_shared_outputs=demand.has_shared_outputs,
        num_routings=_num_touches(demand, functions),
        num_changes=FEWEST_CHANGES if functions.places_instances else 0,
    )
    sizes = Sizes(shape, demand, options)
    is_pressed = options.kv_model == "auto" and (_is_pressed(demand) or demand.mirror_size > 0)
    return pressed(sizes) if is_pressed or options.kv_model == "block-level" else sizes


def _num_touches(demand: Demand, functions: Mechanism) -> int:
    """Return how many lookups the log of the router's index must hold; 0: one for each request."""
    if functions.is_precise:
        return rounded(demand.num_allocations, FEWEST_TOUCHES)
    return 2 * demand.num_requests if functions.moves_requests else 0


def _is_pressed(demand: Demand) -> bool:
    """Return whether to start at block level: more distinct contents than blocks, or tables of long contents."""
    if demand.distinct_blocks is None:
        return False
    has_room = demand.distinct_blocks <= demand.all_kv_blocks
    return not has_room or demand.node_blocks * demand.path_depth > MOST_PATH_BLOCKS


def pressed(sizes: Sizes) -> Sizes:
    """Return the sizes with block-level memory, which needs more step records: one whenever a request needs a block."""
    shape, options = sizes.shape, sizes.options
    if not options.log_capacity:
        records = shape.log_capacity + 2 * sizes.demand.output_blocks
        shape = dataclasses.replace(shape, log_capacity=rounded(records, 1024))
    return dataclasses.replace(sizes, shape=at_block_level(shape, sizes.demand, options))


def at_block_level(shape: EngineShape, demand: Demand, options: Options) -> EngineShape:
    """Return the shape with tables of block-level memory that hold the demand."""
    num_blocks = rounded(demand.total_kv_blocks, options.num_blocks)
    list_blocks = rounded(min(demand.longest + 2, num_blocks + 2), options.list_blocks)
    # so many places that holes are seldom squeezed out
    ring_size = next_power(2 * num_blocks + 2 * list_blocks + 8192 - 1)
    shared_blocks = rounded(demand.shared_blocks, options.num_shared_blocks)
    evictions = rounded(2 * shape.num_requests, options.num_evictions)
    return dataclasses.replace(
        shape,
        num_blocks=max(num_blocks, shape.num_blocks),
        list_blocks=max(list_blocks, shape.list_blocks),
        num_shared_blocks=max(shared_blocks, shape.num_shared_blocks),
        ring_size=max(ring_size, shape.ring_size),
        eviction_capacity=max(evictions, shape.eviction_capacity),
        has_cpu_tier=demand.has_cpu_tier,
        mirror_size=rounded(demand.mirror_size, 128) if demand.mirror_size else 0,
        window=options.window or (8 if options.form == "rows" and list_blocks < LONG_LISTS else 32),
        # sizes that only the model without eviction has
        num_copies=1,
        node_blocks=1,
    )


def _grow(change: Callable[[EngineShape], Mapping[str, Any]]) -> Callable[[Sizes], Sizes]:
    def grown(sizes: Sizes) -> Sizes:
        shape = dataclasses.replace(sizes.shape, **change(sizes.shape))
        if shape.num_blocks:  # a longer request may have come to light since
            shape = at_block_level(shape, sizes.demand, sizes.options)
        return dataclasses.replace(sizes, shape=shape)

    return grown


def _times(factor: int, name: str) -> Callable[[Sizes], Sizes]:
    return _grow(lambda shape: {name: factor * getattr(shape, name)})


def _pressed_if_allowed(sizes: Sizes) -> Sizes:
    return pressed(sizes) if sizes.options.kv_model == "auto" else sizes


# What a run with this outcome is made again with; other outcomes are the end of it.
GROWTH: Mapping[Outcome, Callable[[Sizes], Sizes]] = {
    Outcome.SLOTS_FULL: _grow(lambda shape: {"num_slots": min(2 * shape.num_slots, MAX_SLOTS)}),
    Outcome.LOG_FULL: _times(4, "log_capacity"),
    Outcome.COPIES_FULL: _times(4, "num_copies"),
    Outcome.CHAINS_FULL: _times(4, "num_chains"),
    Outcome.LISTS_FULL: _times(2, "list_blocks"),
    Outcome.RING_FULL: _times(2, "ring_size"),
    Outcome.EVICTIONS_FULL: _times(4, "eviction_capacity"),
    Outcome.NODES_FULL: _grow(
        lambda shape: {
            "node_blocks": 2 * shape.node_blocks,
            "num_shared_blocks": max(2 * shape.num_shared_blocks, 16),
        }
    ),
    Outcome.ROUTER_INDEX_FULL: _grow(lambda _: {"has_router_eviction": True}),
    Outcome.ROUTINGS_FULL: _times(4, "num_routings"),
    Outcome.INSTANCES_FULL: _times(2, "num_instances"),
    Outcome.CHANGES_FULL: _times(4, "num_changes"),
    Outcome.CLOCK_OVERFLOW: _grow(
        lambda shape: {"clock": "int64"} if shape.clock == "int32" else {}
    ),
    Outcome.KV_CHECK_TRIPPED: _pressed_if_allowed,
    Outcome.WORKLOAD_SHORT: lambda sizes: dataclasses.replace(sizes, headroom=2 * sizes.headroom),
}


def grown(sizes: Sizes, outcome: Outcome) -> Sizes | None:
    """Return larger sizes for a run that ended with `outcome`; None if larger tables do not help."""
    larger = GROWTH[outcome](sizes) if outcome in GROWTH else sizes
    return larger if larger != sizes else None


def larger_shape(engine_shape: EngineShape, other: EngineShape) -> EngineShape:
    """Return the shape that holds the runs of two shapes: the greater size of each table, the wider clock."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(EngineShape):
        pair = getattr(engine_shape, field.name), getattr(other, field.name)
        values[field.name] = max(pair, key=lambda v: _WIDER_CLOCK[v] if isinstance(v, str) else v)
    return EngineShape(**values)
