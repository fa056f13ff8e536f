"""Which blocks of which requests hold the same tokens, told without comparing every pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int32, Int64, UInt64

    Tokens = Int32[np.ndarray, " token"]

NOT_SHORT = -1


def block_ids(
    rows: Sequence[Sequence[Tokens]], block_size: int
) -> tuple[Int64[np.ndarray, " request+1"], Int64[np.ndarray, " block"]]:
    """Row pointers and the id of each full block, for requests given as parts of their tokens.

    Blocks have equal ids if and only if the tokens up to their ends are equal; ids are numbered in
    the order in which they occur first.
    """
    tokens, num_blocks = _aligned(rows, block_size)
    block_ptr = np.concatenate([[0], np.cumsum(num_blocks)])
    position = np.arange(len(tokens)) - np.repeat(block_ptr[:-1], num_blocks)
    for attempt in range(100):
        ids, first = _hashed_ids(tokens, position, block_ptr, np.random.default_rng(attempt))
        if _is_exact(tokens, position, ids, first):
            return block_ptr, ids
    raise AssertionError("no hash tells these contents apart")


def short_prompt_ids(
    prompts: Sequence[Sequence[Tokens]], block_size: int
) -> Int32[np.ndarray, " request"]:
    """One number per content among the prompts shorter than a block, NOT_SHORT for the others."""
    seen: dict[bytes, int] = {}
    ids = np.full(len(prompts), NOT_SHORT, np.int32)
    for row, parts in enumerate(prompts):
        if sum(map(len, parts)) < block_size:
            ids[row] = seen.setdefault(np.concatenate(parts).tobytes(), len(seen))
    return ids


def _aligned(
    rows: Sequence[Sequence[Tokens]], block_size: int
) -> tuple[Int32[np.ndarray, "block token"], Int64[np.ndarray, " request"]]:
    """Tokens of all full blocks, row after row."""
    num_blocks = np.array([sum(map(len, parts)) // block_size for parts in rows], np.int64)
    tokens = np.empty(int(num_blocks.sum()) * block_size, np.int32)
    end = 0
    for parts, blocks in zip(rows, num_blocks.tolist(), strict=True):
        start, end = end, end + blocks * block_size
        for part in parts:
            kept = part[: end - start]
            tokens[start : start + len(kept)] = kept
            start += len(kept)
    return tokens.reshape(-1, block_size), num_blocks


def _hashed_ids(
    tokens: Int32[np.ndarray, "block token"],
    position: Int64[np.ndarray, " block"],
    block_ptr: Int64[np.ndarray, " request+1"],
    rng: np.random.Generator,
) -> tuple[Int64[np.ndarray, " block"], Int64[np.ndarray, " id"]]:
    """Ids by a 64-bit hash of all tokens up to a block's end, and the first block of each id."""
    block_hash = np.zeros(len(tokens), np.uint64)
    for column, factor in enumerate(_odd(rng, tokens.shape[1])):
        # 1 is added, or else a block of zeros would not lengthen its prefix
        block_hash += (tokens[:, column].astype(np.uint64) + np.uint64(1)) * factor
    powers = np.cumprod(np.repeat(_odd(rng, 1), int(position.max(initial=0)) + 1))
    total = np.cumsum(block_hash * powers[position])
    before = np.concatenate([np.zeros(1, np.uint64), total])[block_ptr[:-1]]
    prefix_hash = total - np.repeat(before, np.diff(block_ptr))
    _, first, inverse = np.unique(prefix_hash, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order]


def _odd(rng: np.random.Generator, count: int) -> UInt64[np.ndarray, " n"]:
    return rng.integers(0, 2**63, count, np.uint64) * np.uint64(2) + np.uint64(1)


def _is_exact(
    tokens: Int32[np.ndarray, "block token"],
    position: Int64[np.ndarray, " block"],
    ids: Int64[np.ndarray, " block"],
    first: Int64[np.ndarray, " id"],
) -> bool:
    """Whether blocks of one id agree in place, tokens and the id before; then so do all before."""
    repeated = np.flatnonzero(first[ids] != np.arange(len(ids)))
    original = first[ids[repeated]]
    before = np.where(position > 0, np.concatenate([[0], ids])[:-1], -1)
    return bool(
        np.array_equal(position[repeated], position[original])
        and np.array_equal(before[repeated], before[original])
        and all(np.array_equal(column[repeated], column[original]) for column in tokens.transpose())
    )
