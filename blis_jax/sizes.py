"""Static sizes to begin with, guessed from a table; what turns out too small is enlarged and run again."""

from __future__ import annotations

import numpy as np

from blis_jax.config import ClusterConfig
from blis_jax.instance_groups import per_instance
from blis_jax.user_files import is_file
from blis_jax.workload.table import NEVER_US, RequestTable

LONG_TABLE = 4096  # requests from which it pays to look at how many are there at a time
BUSY = 0.7  # share of an instance's time beyond which queues decide, not service times
BALANCED = ("round-robin", "least-loaded", "weighted")


def rounded(value: int, least: int = 1) -> int:
    """The next size of the grid 1, 1.5 × powers of two, so that near sizes share a compilation."""
    size = least
    while size < value:
        size = size * 3 // 2 if size & (size - 1) == 0 and size >= 2 else next_power(size)
    return size


def next_power(value: int) -> int:
    """The next power of two above a value."""
    return 1 << value.bit_length()


def guessed_slots(num_requests: int, num_instances: int) -> int:
    """Slots per instance: more than an even share, but not all requests of a long workload."""
    share = -(-num_requests * 5 // (4 * num_instances))
    return rounded(min(max(64, share + 16), 512), 64)


def slots_for(config: ClusterConfig, table: RequestTable) -> int:
    """Slots per instance for a table: of a long one that the cluster can keep up with, by how many requests overlap."""
    arrival = np.asarray(table.arrival_us)
    is_real = arrival != NEVER_US
    count = int(is_real.sum())
    guess = guessed_slots(count, config.num_instances)
    if count < LONG_TABLE or config.routing_policy not in BALANCED or is_file(config.latency_model):
        return guess
    (alpha, *_), beta = (_largest(config, name) for name in ("alpha_coeffs", "beta_coeffs"))
    arrival = arrival[is_real].astype(np.float64)
    inputs, outputs = (
        np.asarray(x, np.float64)[is_real] for x in (table.input_len, table.output_len)
    )
    chunks = np.ceil(inputs / _chunk(config))
    prefill_us = chunks * beta[0] + inputs * beta[1]
    span_us = max(arrival[-1] - arrival[0], 1.0) * config.num_instances
    if prefill_us.sum() + outputs.sum() * beta[2] > BUSY * span_us:
        return guess
    # steps are shared, so a request stays longer than it would alone
    stay_us = alpha + 2.0 * (prefill_us + outputs * (beta[0] + beta[2]))
    left = np.sort(arrival + stay_us)
    most = int(np.max(np.arange(1, count + 1) - np.searchsorted(left, arrival)))
    return min(guess, rounded(2 * most // config.num_instances + 16, 64))


def num_chunks(config: ClusterConfig, table: RequestTable) -> int:
    """Steps in which prompts are computed, one request at a time and nothing cached."""
    return int(np.sum(-(-np.asarray(table.input_len, np.int64) // _chunk(config))))


def _chunk(config: ClusterConfig) -> int:
    """Prompt tokens of a request in a step, on the instance that takes the fewest."""
    thresholds = per_instance(config, "long_prefill_token_threshold")
    limits = [threshold for threshold in thresholds if threshold > 0]
    return min(per_instance(config, "max_num_scheduled_tokens") + limits)


def _largest(config: ClusterConfig, coefficients: str) -> list[float]:
    """Each coefficient of the instance that has the largest one."""
    return [max(values) for values in zip(*per_instance(config, coefficients), strict=True)]


def num_output_blocks(table: RequestTable, block_size: int) -> int:
    """Whole blocks that outputs take."""
    return int(np.sum(np.asarray(table.output_len, np.int64))) // block_size


def blocks_of(table: RequestTable, block_size: int) -> tuple[int, int]:
    """Blocks of the longest request, prompt and output, and of all nodes."""
    tokens = np.asarray(table.input_len) + np.asarray(table.output_len)
    longest = -(-int(np.max(tokens, initial=1)) // block_size)
    return longest, int(np.sum(np.asarray(table.node_blocks)))


def shares_outputs(table: RequestTable, block_size: int) -> bool:
    """Whether a shared content lies in some request's output."""
    path = np.asarray(table.path_nodes)
    start = np.asarray(table.node_start)[np.maximum(path, 0)]
    prompt_blocks = np.asarray(table.input_len) // block_size
    return bool(np.any((path >= 0) & (start >= prompt_blocks[:, None])))


def num_distinct_blocks(table: RequestTable, block_size: int) -> int:
    """Blocks of different content in all prompts and outputs."""
    blocks, path = np.asarray(table.node_blocks, np.int64), np.asarray(table.path_nodes)
    tokens = np.asarray(table.input_len, np.int64) + np.asarray(table.output_len)
    again = np.sum(np.where(path >= 0, blocks[np.maximum(path, 0)], 0)) - np.sum(blocks)
    return int(np.sum(-(-tokens // block_size)) - again)
