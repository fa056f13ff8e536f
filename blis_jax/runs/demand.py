"""What runs need of their tables, counted from given requests or expected from draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import has_cpu_tier, per_instance
from blis_jax.cluster.offload_tiers import cpu_capacity
from blis_jax.cluster.revisions import aligns_chunks
from blis_jax.cluster.step_times import merges_steps, name_of
from blis_jax.engine.cluster_params import rows_to_begin_with
from blis_jax.files.python_files import is_file
from blis_jax.prefix_index.router_index import ROUTER_INDEX_CAPACITY
from blis_jax.runs.options import Options
from blis_jax.workload.drawing.plan import (
    DrawPlan,
    expected_output,
    longest_node,
    longest_request,
    prefix_blocks,
)
from blis_jax.workload.table import NEVER_US, RequestTable

LONG_TABLE = 4096  # requests from which it pays to look at how many are there at a time
BUSY = 0.7  # share of an instance's time beyond which queues decide, not service times
BALANCED = ("round-robin", "least-loaded", "weighted")
# of steps in decode that differ; those that last as many whole µs share a record, and each run fills the log with zeros
MOST_RECORDS, TOKENS_OF_RECORD, RECORDS_OF_REQUEST = 1 << 17, 8, 16
STEP_US = (
    5000.0  # of a step in decode, about: a shorter one makes batches smaller, and more records
)
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
    return Demand(
        num_instances=max(rows_to_begin_with(config) for config in configs),
        num_slots=options.num_slots
        or guessed_slots(draws.num_requests, min(map(sharing_instances, configs))),
        num_requests=draws.num_requests,
        num_nodes=draws.num_nodes if has_nodes else 0,
        path_depth=draws.path_depth if has_nodes else 1,
        node_blocks=rounded(longest_content) if has_nodes else 1,
        num_records=max(
            _drawn_records(config, plan, options)
            for config, plan in zip(configs, plans, strict=True)
        ),
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


def _drawn_records(config: ClusterConfig, plan: DrawPlan, options: Options) -> int:
    """Estimate the records of steps of a drawn run."""
    draws, records, is_merging = plan.shape, 4.0, merges_steps(config)
    has_drafts = config.speculative_config.num_speculative_tokens > 0
    if not is_merging and (has_drafts or options.clock == "continuous"):  # all steps differ
        return RECORDS_OF_REQUEST * draws.num_requests
    tokens = expected_output(plan)
    if math.isinf(tokens):  # of a law without a mean
        tokens = RECORDS_OF_REQUEST * TOKENS_OF_RECORD
    # requests of a batch share the records of its steps
    in_decode = tokens * STEP_US * float(plan.params.aggregate_rate) / 1e6
    batch = max(min(in_decode, draws.num_requests) / config.num_instances, 1.0)
    if draws.has_shared_outputs:  # a step in which a member fills a block, and those before it
        records += tokens * min(2.0 / draws.block_size, 1.0 / batch)
    if not is_merging:
        records += tokens / max(batch, TOKENS_OF_RECORD)
    return int(min(records * draws.num_requests, max(MOST_RECORDS, 4 * draws.num_requests)))


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
