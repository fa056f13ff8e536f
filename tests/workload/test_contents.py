"""Folding of shared segments into nodes, against block ids worked out token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_jax.workload.contents import Segments, fold_segments
from blis_jax.workload.table import from_golden
from tests.workload.test_table import golden_arrays


def make_segments(rows):
    """Segments of requests given as lists of (content, length)."""
    ptr = np.cumsum([0, *(len(row) for row in rows)])
    content = np.array([content for row in rows for content, _ in row], np.int64)
    ends = [np.cumsum([length for _, length in row], dtype=np.int64) for row in rows]
    return Segments(ptr, content, np.concatenate([np.zeros(0, np.int64), *ends]))


def tokens_of(rows, lengths):
    """The same requests as tokens: what no segment covers is private."""
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        shared = [(content, index) for content, size in row for index in range(size)]
        yield [*shared, *(("own", number, index) for index in range(len(shared), length))]


def paths(folded):
    """Per request the start, length and holders of its nodes, independent of their numbers."""
    holders = {
        node: frozenset(np.flatnonzero((folded.path_nodes == node).any(axis=1)).tolist())
        for node in range(len(folded.node_start))
    }
    return [
        [
            (int(folded.node_start[node]), int(folded.node_blocks[node]), holders[node])
            for node in row.tolist()
            if node >= 0
        ]
        for row in folded.path_nodes
    ]


request_rows = st.tuples(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=4),
    st.integers(1, 20),  # prompt tokens
    st.integers(0, 12),  # tokens behind both prompt and segments
)


@given(st.lists(request_rows, min_size=1, max_size=6), st.integers(1, 5))
def test_nodes_and_keys_are_those_of_the_tokens(requests, block_size):
    rows = [row for row, _, _ in requests]
    prompts = [prompt for _, prompt, _ in requests]
    lengths = [max(sum(size for _, size in row), prompt) + more for row, prompt, more in requests]
    tokens = list(tokens_of(rows, lengths))
    golden = golden_arrays(
        [(row[:prompt], row[prompt:]) for row, prompt in zip(tokens, prompts, strict=True)],
        block_size=block_size,
    )
    expected = from_golden(golden)
    folded = fold_segments(make_segments(rows), np.array(prompts), block_size)
    assert paths(folded) == paths(expected)
    np.testing.assert_array_equal(folded.prompt_key, expected.prompt_key)


def test_a_partly_filled_block_is_shared_as_far_as_the_shorter_prompt_goes():
    rows = [[(7, 10)], [(7, 10)], [(7, 6)]]
    folded = fold_segments(make_segments(rows), np.array([10, 10, 6]), 2)
    assert paths(folded) == [
        [(0, 3, frozenset({0, 1, 2})), (3, 2, frozenset({0, 1}))],
        [(0, 3, frozenset({0, 1, 2})), (3, 2, frozenset({0, 1}))],
        [(0, 3, frozenset({0, 1, 2}))],
    ]
    assert folded.prompt_key.tolist() == [0, 0, 1]


def test_other_beginnings_make_equal_later_segments_private():
    folded = fold_segments(make_segments([[(1, 4), (3, 4)], [(2, 4), (3, 4)]]), np.array([8, 8]), 4)
    assert paths(folded) == [[], []]
    assert folded.prompt_key.tolist() == [0, 1]


def test_no_requests_and_no_segments():
    assert fold_segments(make_segments([]), np.zeros(0, int), 16).path_nodes.shape[0] == 0
    folded = fold_segments(make_segments([[], []]), np.array([20, 20]), 16)
    assert paths(folded) == [[], []]
    assert folded.prompt_key.tolist() == [0, 1]


def test_take_keeps_the_segments_of_the_taken_requests():
    segments = make_segments([[(1, 2)], [], [(1, 2), (5, 4)]])
    taken = segments.take(np.array([2, 1]))
    assert taken.ptr.tolist() == [0, 2, 2]
    assert taken.content.tolist() == [1, 5]
    assert taken.end.tolist() == [2, 6]


@pytest.mark.parametrize("size", [1, 16, 512])
def test_a_block_of_any_size_takes_the_segment_of_its_last_token(size):
    rows = [[(1, 8), (2, 8)], [(1, 8), (3, 8)]]
    folded = fold_segments(make_segments(rows), np.array([16, 16]), size)
    shared = 8 // size
    assert paths(folded)[0] == ([(0, shared, frozenset({0, 1}))] if shared else [])
