"""Drawn requests as arrays of the golden format, and as the engine's request table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.workload.expansion import refuse_adapters
from blis_jax.workload.reference.clients import MOST_TOKENS
from blis_jax.workload.reference.generate import DrawnWorkload, drawn
from blis_jax.workload.reference.requests import DrawnRequest
from blis_jax.workload.source import FIRST_REVISION
from blis_jax.workload.spec import ClientSpec, WorkloadSpec
from blis_jax.workload.table import (
    LATEST_US,
    RequestTable,
    WorkloadNames,
    from_golden,
    tenants_in_order,
    text_rank,
)

if TYPE_CHECKING:
    from jaxtyping import Int32, Int64, UInt64

    Tokens = Int32[np.ndarray, " _"]  # of any length


NOT_SHORT = -1


def block_ids(
    rows: Sequence[Sequence[Tokens]], block_size: int
) -> tuple[Int64[np.ndarray, " offset"], Int64[np.ndarray, " block"]]:
    """Return row pointers and the id of each full block, for requests whose tokens are given in parts.

    Blocks have equal ids if and only if the tokens up to their ends are equal; ids are numbered in the order of their
    first occurrence.
    """
    kept = _kept_blocks(rows, block_size)
    for attempt in range(100):
        ids, first = _hashed_ids(kept, np.random.default_rng(attempt))
        if _is_exact(kept, ids, first):
            return kept.block_ptr, ids[kept.place_of_each()]
    raise AssertionError("no hash tells these contents apart")


@dataclass(frozen=True)
class _KeptBlocks:
    """The full blocks of all requests; blocks of a shared first part are stored once, for its first request."""

    tokens: Int32[np.ndarray, "block token"]
    block_ptr: Int64[np.ndarray, " offset"]  # of all blocks
    kept_ptr: Int64[np.ndarray, " offset"]
    skipped: Int64[np.ndarray, " request"]  # leading blocks that are not kept here
    holder: Int64[np.ndarray, " request"]  # the request that keeps them, which skips none

    @property
    def before(self) -> Int64[np.ndarray, " request"]:
        """Return the index of the block before each request's first stored block; -1 if there is none."""
        return np.where(self.skipped > 0, self.kept_ptr[self.holder] + self.skipped - 1, -1)

    def position(self) -> Int64[np.ndarray, " block"]:
        """Return each stored block's position in its request."""
        first = self.kept_ptr[:-1] - self.skipped
        return np.arange(len(self.tokens)) - np.repeat(first, np.diff(self.kept_ptr))

    def place_of_each(self) -> Int64[np.ndarray, " block"]:
        """Return, for each block of all requests, the index of the stored block."""
        num_blocks = np.diff(self.block_ptr)
        position = np.arange(self.block_ptr[-1]) - np.repeat(self.block_ptr[:-1], num_blocks)
        place = np.repeat(self.kept_ptr[:-1] - self.skipped, num_blocks)
        shared = np.repeat(self.kept_ptr[self.holder], num_blocks)
        return position + np.where(position < np.repeat(self.skipped, num_blocks), shared, place)


def _kept_blocks(rows: Sequence[Sequence[Tokens]], block_size: int) -> _KeptBlocks:
    """Return the blocks to compare, request after request."""
    seen: dict[int, int] = {}
    holder = np.array([seen.setdefault(id(row[0]), at) for at, row in enumerate(rows)], np.int64)
    skipped = np.array([len(row[0]) // block_size for row in rows], np.int64)
    skipped[holder == np.arange(len(rows))] = 0
    num_blocks = np.array([sum(map(len, row)) // block_size for row in rows], np.int64)
    kept_ptr = np.concatenate([[0], np.cumsum(num_blocks - skipped)])
    tokens = np.empty(int(kept_ptr[-1]) * block_size, np.int32)
    begins, ends = ((kept_ptr * block_size).tolist()[part] for part in (slice(-1), slice(1, None)))
    for row, skip, start, end in zip(rows, skipped.tolist(), begins, ends, strict=True):
        for part in (row[0][skip * block_size :], *row[1:]):
            kept = part[: end - start]
            tokens[start : start + len(kept)] = kept
            start += len(kept)
    block_ptr = np.concatenate([[0], np.cumsum(num_blocks)])
    return _KeptBlocks(tokens.reshape(-1, block_size), block_ptr, kept_ptr, skipped, holder)


def short_prompt_ids(
    prompts: Sequence[Sequence[Tokens]], block_size: int
) -> Int32[np.ndarray, " request"]:
    """Return a number per prompt, equal for equal prompts shorter than a block; NOT_SHORT for longer prompts."""
    seen: dict[bytes, int] = {}
    ids = np.full(len(prompts), NOT_SHORT, np.int32)
    for row, parts in enumerate(prompts):
        if sum(map(len, parts)) < block_size:
            ids[row] = seen.setdefault(np.concatenate(parts).tobytes(), len(seen))
    return ids


def _hashed_ids(
    kept: _KeptBlocks, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, " block"], Int64[np.ndarray, " id"]]:
    """Return block ids by a 64-bit hash of all tokens up to each block's end, and the first block of each id."""
    factors, position = _odd(rng, kept.tokens.shape[1]), kept.position()
    # factors.sum() counts every token as 1 more, so that a block of zeros also changes the prefix's hash
    block_hash = kept.tokens.astype(np.uint64) @ factors + factors.sum()
    powers = np.cumprod(np.repeat(_odd(rng, 1), int(position.max(initial=0)) + 1))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(block_hash * powers[position])])
    start = total[kept.kept_ptr[:-1]]
    start -= np.where(kept.before >= 0, total[kept.before + 1] - start[kept.holder], np.uint64(0))
    prefix_hash = total[1:] - np.repeat(start, np.diff(kept.kept_ptr))
    _, inverse = np.unique(prefix_hash, return_inverse=True)
    first = np.empty(int(inverse.max(initial=-1)) + 1, np.int64)
    first[inverse[::-1]] = np.arange(len(inverse))[::-1]  # the last one written stays
    is_first = first[inverse] == np.arange(len(inverse))
    return (np.cumsum(is_first) - 1)[first[inverse]], np.flatnonzero(is_first)


def _odd(rng: np.random.Generator, count: int) -> UInt64[np.ndarray, " n"]:
    return rng.integers(0, 2**63, count, np.uint64) * np.uint64(2) + np.uint64(1)


def _is_exact(
    kept: _KeptBlocks, ids: Int64[np.ndarray, " block"], first: Int64[np.ndarray, " id"]
) -> bool:
    """Return whether blocks with equal ids agree in position, tokens and preceding id, so that prefixes agree too."""
    repeated = np.flatnonzero(first[ids] != np.arange(len(ids)))
    original = first[ids[repeated]]
    position, none = kept.position(), len(ids)
    before = np.concatenate([[none], ids])[:-1]
    begins = np.diff(kept.kept_ptr) > 0
    before[kept.kept_ptr[:-1][begins]] = np.append(ids, none)[kept.before[begins]]
    return bool(
        np.array_equal(position[repeated], position[original])
        and np.array_equal(before[repeated], before[original])
        and np.array_equal(kept.tokens[repeated], kept.tokens[original])
    )


def draw(
    spec: WorkloadSpec, seed: int | None = None, block_size: int = 16
) -> tuple[RequestTable, WorkloadNames]:
    """Return the requests that BLIS draws, from Go's random streams.

    Of closed-loop sessions only the first rounds are returned; `draw_closed_loop` also returns the later rounds.

    Args:
        spec: the workload; its revision says whose rules apply.
        seed: seed of the streams; the specification's if None.
        block_size: tokens of a KV block, by which shared contents are cut.

    Returns:
        The requests by arrival, numpy arrays `[request]`, and the texts of their codes.

    Raises:
        ConfigError: the workload needs a mechanism that is not supported, or draws more tokens than allowed.
    """
    refuse_adapters(spec)
    return table_of(drawn(spec, seed), block_size)


def run_of_reference(
    spec: WorkloadSpec, seed: int, block_size: int
) -> tuple[RequestTable, WorkloadNames | None]:
    """Return the requests that BLIS draws from a seed, and the texts of their codes, None under February's revision."""
    if spec.revision == FIRST_REVISION:
        return draw(spec, seed, block_size)[0], None
    return table_of(drawn(spec, seed), block_size)


def table_of(workload: DrawnWorkload, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """Return the table and the texts of a drawn workload's requests that arrive without waiting for others."""
    arrays = arrays_of(workload, block_size)
    names = names_of(arrays)
    models, adapters = (
        named_by(workload.clients, workload.requests, what) for what in ("model", "adapter")
    )
    names = replace(names, models=models, adapters=adapters)
    return from_golden(arrays, least_prompt=0), names  # `drawn` has checked the requests


def named_by(
    clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest], what: str
) -> np.ndarray | None:
    """Return the `model` or `adapter` that each request's client names, text `[request]`; None if none does."""
    of_client = [getattr(client, what, "") for client in clients]
    if not any(of_client):
        return None
    return np.array([of_client[request.client] for request in requests], object)


def names_of(arrays: dict[str, np.ndarray]) -> WorkloadNames:
    """Return the texts of the codes in golden arrays, and deadlines and bounds if there are any."""
    deadline_us, target_us = arrays["deadline_us"], arrays["slo_target_us"]
    return WorkloadNames(
        slo_target_us=target_us if target_us.any() else None,
        deadline_us=deadline_us if deadline_us.any() else None,
        tenant_names=tenants_in_order(arrays["tenant_names"])[1],
        prefix_group_names=tuple(map(str, arrays["prefix_group_names"])),
        session_names=tuple(map(str, arrays["session_names"])),
    )


def golden_arrays(
    spec: WorkloadSpec, seed: int | None = None, block_size: int = 16, timeout_us: int | None = None
) -> dict[str, np.ndarray]:
    """Return the reference's requests in the golden format, as recorded workload files hold them.

    `timeout_us` replaces the deadlines of the file, as `--timeout` does; 0 removes the deadlines.
    """
    return arrays_of(drawn(spec, seed, timeout_us), block_size)


def arrays_of(workload: DrawnWorkload, block_size: int) -> dict[str, np.ndarray]:
    """Return a drawn workload's requests as arrays of the golden format."""
    return request_arrays(workload.clients, workload.requests, block_size)


def request_arrays(
    clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest], block_size: int
) -> dict[str, np.ndarray]:
    """Return requests of these clients as arrays of the golden format, in the given order."""
    senders = [clients[request.client] for request in requests]
    tenant, tenant_names = _numbered([client.tenant_id for client in senders])
    group, group_names = _numbered([request.prefix_group for request in requests], none="")
    is_streaming = [
        has_stream(client, request) for client, request in zip(senders, requests, strict=True)
    ]
    return content_arrays(requests, block_size) | {
        "slo_class": np.array([SLO_CLASSES.index(client.slo_class) for client in senders], np.int8),
        "tenant": tenant,
        "prefix_group": group,
        "streaming": np.array(is_streaming, np.int8),
        "tenant_names": tenant_names,
        "prefix_group_names": group_names,
        "client_names": np.array([client.id for client in clients], np.str_),
    }


def has_stream(client: ClientSpec, request: DrawnRequest) -> bool:
    """Return whether BLIS marks the request as streaming, which it never does for rounds of a session."""
    return client.streaming and not client.multi_turn and not request.round_index


def _numbered(names: Sequence[str], none: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers by first appearance, with -1 for the name `none`, and the names in that order."""
    seen = list(dict.fromkeys(name for name in names if name != none))
    number = {name: index for index, name in enumerate(seen)}
    return np.array([number.get(name, -1) for name in names], np.int32), np.array(seen, np.str_)


def content_arrays(requests: Sequence[DrawnRequest], block_size: int) -> dict[str, np.ndarray]:
    """Return the arrays that depend on the requests alone, not on their clients."""
    input_len = np.array([request.input_len for request in requests], np.int64)
    output_len = np.array([len(request.output) for request in requests], np.int64)
    _check_requests(requests, input_len, output_len)
    block_ptr, ids = block_ids([(*row.prompt, row.output) for row in requests], block_size)
    session, session_names = _numbered([request.session for request in requests], none="")
    return {
        "arrival_us": np.array([request.arrival_us for request in requests], np.int64),
        "input_len": input_len.astype(np.int32),
        "output_len": output_len.astype(np.int32),
        "max_output_len": output_len.astype(np.int32),
        "deadline_us": np.array([request.deadline_us for request in requests], np.int64),
        "slo_target_us": np.array([request.slo_target_us for request in requests], np.int64),
        "prefix_length": np.array([request.prefix_len for request in requests], np.int32),
        "multimodal": np.array([any(request.parts) for request in requests], np.int8),
        "client": np.array([request.client for request in requests], np.int32),
        "session": session,
        "session_names": session_names,
        "round_index": np.array([request.round_index for request in requests], np.int32),
        "id_rank": text_rank(len(requests)),
        "block_ptr": block_ptr,
        "block_ids_delta": np.diff(ids, prepend=0).astype(np.int32),
        "block_size": np.array(block_size, np.int32),
        "short_input_id": short_prompt_ids([row.prompt for row in requests], block_size),
    }


def _check_requests(
    requests: Sequence[DrawnRequest], input_len: np.ndarray, output_len: np.ndarray
) -> None:
    if requests and requests[-1].arrival_us >= LATEST_US:
        raise ConfigError(
            f"aggregate_rate: a request arrives at {requests[-1].arrival_us} us, allowed is less "
            f"than 2^60; raise aggregate_rate, or lower num_requests or think_time_us"
        )
    if int(input_len.sum() + output_len.sum()) > MOST_TOKENS:
        raise ConfigError(
            f"the workload has more than {MOST_TOKENS} tokens, shared ones counted each time, which "
            f"would not fit in memory; lower num_requests or horizon"
        )
