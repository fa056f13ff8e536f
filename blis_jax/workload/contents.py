"""Shared contents of token sequences, folded into the radix nodes of a request table.

A token sequence is a prompt and the output after it. Shared contents are given as segments, and folded run by run: a
run is a number of consecutive KV blocks held by the same sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int, Int32, Int64

NO_NODE = np.int32(-1)  # end of a request's path


@dataclass(frozen=True)
class Segments:
    """The beginning of every sequence as segments of named contents; the rest is private.

    Two sequences share tokens as far as their segments, from the first on, have the same content and the same start.
    The last common segment may be shorter in one of the two sequences.
    """

    ptr: Int64[np.ndarray, " offset"]  # segments of request r are ptr[r] to ptr[r + 1]
    content: Int64[np.ndarray, " segment"]  # any number, equal where the contents are
    end: Int64[np.ndarray, " segment"]  # tokens from the start of the sequence, exclusive

    def take(self, rows: Int[np.ndarray, " taken"]) -> Segments:
        """Return the segments of some requests, in the order of `rows`."""
        counts = np.diff(self.ptr)[rows]
        ptr = np.concatenate([[0], np.cumsum(counts)])
        source = np.repeat(self.ptr[rows] - ptr[:-1], counts) + np.arange(ptr[-1])
        return Segments(ptr, self.content[source], self.end[source])


class Folded(NamedTuple):
    """The columns of a request table that describe shared contents."""

    path_nodes: Int32[np.ndarray, "request depth"]
    node_start: Int32[np.ndarray, " node"]
    node_blocks: Int32[np.ndarray, " node"]
    prompt_key: Int32[np.ndarray, " request"]


class Runs(NamedTuple):
    """Runs of consecutive blocks with the same content, in order of request and position."""

    row: Int64[np.ndarray, " run"]
    content: Int64[np.ndarray, " run"]  # dense; stands for the whole prefix up to the run's end
    position: Int64[np.ndarray, " run"]  # first block, counted from the start of the prompt
    blocks: Int64[np.ndarray, " run"]


def fold_segments(
    segments: Segments, input_len: Int[np.ndarray, " request"], block_size: int
) -> Folded:
    """Fold segments into nodes, paths and prompt keys at blocks of `block_size` tokens.

    A block has the content of the segment that holds its last token, so segment lengths need not be multiples of the
    block size.
    """
    input_len = np.asarray(input_len, np.int64)
    prompt_blocks = input_len // block_size
    row = np.repeat(np.arange(len(input_len)), np.diff(segments.ptr))
    start, chain = chain_numbers(segments)
    is_shared = np.bincount(chain, minlength=1)[chain] >= 2
    row, start, end, chain = (
        row[is_shared],
        start[is_shared],
        segments.end[is_shared],
        chain[is_shared],
    )
    runs = _cut_into_runs(row, chain, start // block_size, end // block_size, prompt_blocks)
    nodes = fold_runs(runs, prompt_blocks)
    contents = np.full(len(input_len), -1, np.int64)
    holds_last = runs.position + runs.blocks == prompt_blocks[runs.row]
    contents[runs.row[holds_last]] = runs.content[holds_last]
    is_whole = (prompt_blocks[row] == 0) & (start < input_len[row]) & (input_len[row] <= end)
    wholes = np.column_stack([chain[is_whole], input_len[row[is_whole]]])
    contents[row[is_whole]] = -2 - np.unique(wholes, axis=0, return_inverse=True)[1].ravel()
    return Folded(*nodes, prompt_keys(contents, contents == -1))


def fold_runs(
    runs: Runs, prompt_blocks: Int[np.ndarray, " request"]
) -> tuple[
    Int32[np.ndarray, "request depth"], Int32[np.ndarray, " node"], Int32[np.ndarray, " node"]
]:
    """Return path nodes [request, depth], and each node's first block and length [node], numbered by first use.

    A run's content stands for the whole prefix up to its end, so the requests that hold a run also hold the run before
    it, and two runs with equally many holders have the same holders.
    """
    num_requests = len(prompt_blocks)
    row, content, position, blocks = runs
    num_holders = np.bincount(content, minlength=1)
    holders = num_holders[content]
    previous_holders = np.concatenate([[0], holders])[:-1]
    is_shared = holders >= 2
    cuts = (position == 0) | (holders != previous_holders) | (position == prompt_blocks[row])
    starts_node = np.zeros(len(num_holders), bool)
    starts_node[content[is_shared & cuts]] = True
    at_start = np.flatnonzero(is_shared & starts_node[content])
    nodes = dense_by_first_use(content[at_start])
    num_nodes = max(int(starts_node.sum()), 1)
    nodes_before = np.concatenate(
        [[0], np.cumsum(np.bincount(row[at_start], minlength=num_requests))]
    )
    column = np.arange(len(at_start)) - nodes_before[row[at_start]]
    depth = int(column.max(initial=0)) + 1
    path_nodes = np.full((num_requests, depth), NO_NODE, np.int32)
    path_nodes[row[at_start], column] = nodes

    node_start = np.zeros(num_nodes, np.int32)
    node_start[nodes] = position[at_start]
    node_blocks = np.zeros(num_nodes, np.int32)
    next_start = np.append(at_start[1:], len(content))
    shared_before = np.concatenate([[0], np.cumsum(np.where(is_shared, blocks, 0))])
    node_blocks[nodes] = shared_before[next_start] - shared_before[at_start]
    return path_nodes, node_start, node_blocks


def prompt_keys(
    contents: Int64[np.ndarray, " request"], is_private: np.ndarray | None = None
) -> Int32[np.ndarray, " request"]:
    """Return dense keys by first use: equal for two requests if their contents are equal and neither is private."""
    if is_private is not None:
        contents = np.where(
            is_private, contents.max(initial=0) + 1 + np.arange(len(contents)), contents
        )
    return dense_by_first_use(contents)


def dense_by_first_use(names: Int64[np.ndarray, " entry"]) -> Int32[np.ndarray, " entry"]:
    """Return a number from 0 on for each entry, equal for equal entries, in the order of their first occurrence."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return ranks(np.argsort(first))[inverse]


def ranks(order: Int[np.ndarray, " entry"] | list[int]) -> Int32[np.ndarray, " entry"]:
    """Return the position of each entry in `order`, which lists all entries."""
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank


def chain_numbers(
    segments: Segments,
) -> tuple[Int64[np.ndarray, " segment"], Int64[np.ndarray, " segment"]]:
    """Return the first token of every segment, and a dense number per segment that is equal for equal chains.

    A chain consists of the contents and starts of a segment and of all segments before it.
    """
    start = _starts(segments)
    return start, _chains(segments, start)


def _starts(segments: Segments) -> Int64[np.ndarray, " segment"]:
    start = np.concatenate([[0], segments.end[:-1]])[: len(segments.end)]
    start[segments.ptr[:-1][np.diff(segments.ptr) > 0]] = 0
    return start


def _chains(
    segments: Segments, start: Int64[np.ndarray, " segment"]
) -> Int64[np.ndarray, " segment"]:
    if not len(start):
        return np.zeros(0, np.int64)
    _, name = np.unique(segments.content, return_inverse=True)
    _, place = np.unique(start, return_inverse=True)
    kind = name * (int(place.max()) + 1) + place
    _, kind = np.unique(kind, return_inverse=True)
    num_kinds = int(kind.max()) + 1
    counts = np.diff(segments.ptr)
    rows = np.flatnonzero(counts)
    before = np.zeros(len(counts), np.int64)  # chain of each request so far, plus 1
    chain = np.empty(len(start), np.int64)
    num_chains = 0
    level = 0
    while len(rows):
        entries = segments.ptr[rows] + level
        _, number = np.unique(before[rows] * num_kinds + kind[entries], return_inverse=True)
        chain[entries] = num_chains + number
        before[rows] = chain[entries] + 1
        num_chains += int(number.max()) + 1
        level += 1
        rows = rows[counts[rows] > level]
    return chain


def _cut_into_runs(
    row: Int64[np.ndarray, " segment"],
    chain: Int64[np.ndarray, " segment"],
    first: Int64[np.ndarray, " segment"],
    last: Int64[np.ndarray, " segment"],
    prompt_blocks: Int64[np.ndarray, " request"],
) -> Runs:
    """Return the blocks `first` to `last` of every segment as runs, cut where any holder's segment or prompt ends."""
    has_block = last > first
    row, chain, first, last = row[has_block], chain[has_block], first[has_block], last[has_block]
    width = int(last.max(initial=0)) + 1
    prompt_end = prompt_blocks[row]
    is_inside = (first < prompt_end) & (prompt_end < last)
    ends = np.concatenate([chain * width + last, chain[is_inside] * width + prompt_end[is_inside]])
    cuts = np.unique(ends)
    from_cut = np.searchsorted(cuts, chain * width + first, side="right")
    to_cut = np.searchsorted(cuts, chain * width + last, side="right")
    counts = to_cut - from_cut
    segment = np.repeat(np.arange(len(row)), counts)
    offset = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    content = from_cut[segment] + offset
    end = cuts[content] % width
    position = np.where(offset == 0, first[segment], np.concatenate([[0], end])[:-1])
    return Runs(row[segment], content, position, end - position)
