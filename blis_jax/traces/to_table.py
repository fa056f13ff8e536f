"""From trace rows to the request table that the engine takes."""

from __future__ import annotations

import numpy as np

from blis_jax.traces.rows import NO_CODE, TraceRows
from blis_jax.workload.contents import Segments, fold_segments
from blis_jax.workload.table import RequestTable, WorkloadNames, tenants_in_order


def to_table(rows: TraceRows, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """Turn trace rows into the request table that `simulate` takes.

    Args:
        rows: requests by arrival.
        block_size: tokens of a KV block of the engine, `ClusterConfig.block_size_in_tokens`.

    Returns:
        The table, in which shared contents are nodes of KV blocks, the texts behind its codes, and the deadlines
        that its rows have.
    """
    code, names = tenants_in_order(rows.tenant_names)
    folded = fold_segments(segments_of(rows), rows.input_len, block_size)
    table = RequestTable(
        arrival_us=rows.arrival_us,
        input_len=rows.input_len,
        output_len=rows.output_len,
        slo_class=rows.slo_class,
        tenant=code[rows.tenant],
        client=rows.client,
        session=rows.session,
        round_index=rows.round_index,
        tie_rank=_tie_rank(rows),
        path_nodes=folded.path_nodes,
        prompt_key=folded.prompt_key,
        node_start=folded.node_start,
        node_blocks=folded.node_blocks,
    )
    texts = WorkloadNames(
        names,
        rows.prefix_group_names,
        rows.request_id,
        _deadlines(rows),
        session_names=rows.session_names,
        models=models_of(rows),
    )
    return table, texts


def _deadlines(rows: TraceRows) -> np.ndarray | None:
    """When each request is given up, µs, 0 for never; None if none ever is."""
    has_one = rows.timeout_us > 0
    return np.where(has_one, rows.arrival_us + rows.timeout_us, 0) if has_one.any() else None


def models_of(rows: TraceRows) -> np.ndarray | None:
    """The model that each request asks for, text `[request]`; None if none does."""
    return np.array(rows.model_names, object)[rows.model] if any(rows.model_names) else None


def segments_of(rows: TraceRows) -> Segments:
    """The contents that the trace names, else the shared prefixes of its groups."""
    if rows.segments is not None:
        return rows.segments
    has_prefix = (rows.prefix_group != NO_CODE) & (rows.prefix_len > 0)
    return Segments(
        ptr=np.concatenate([[0], np.cumsum(has_prefix)]),
        content=rows.prefix_group[has_prefix].astype(np.int64),
        end=rows.prefix_len[has_prefix].astype(np.int64),
    )


_MOST_DIGITS = 19  # of 2^62
_POWERS = np.uint64(10) ** np.arange(_MOST_DIGITS, dtype=np.uint64)


def _tie_rank(rows: TraceRows) -> np.ndarray:
    """Rank by arrival, then by the reference's id as text."""
    num_digits = np.maximum(np.searchsorted(_POWERS, rows.request_id, side="right"), 1)
    aligned = rows.request_id.astype(np.uint64) * _POWERS[_MOST_DIGITS - num_digits]
    order = np.lexsort((num_digits, aligned, rows.arrival_us))
    tie_rank = np.empty(len(order), np.int32)
    tie_rank[order] = np.arange(len(order), dtype=np.int32)
    return tie_rank
