"""Ids of contents against a dictionary of whole prefixes."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_jax.workload.reference import arrays
from tests.workload.test_table import block_ids_of


@given(
    rows=st.lists(
        st.lists(st.lists(st.integers(0, 1), max_size=9), min_size=1, max_size=3), min_size=1
    ),
    block_size=st.integers(1, 4),
)
def test_ids_are_those_of_whole_prefixes(rows, block_size):
    parts = [[np.array(part, np.int32) for part in row] for row in rows]
    block_ptr, ids = arrays.block_ids(parts, block_size)
    expected = block_ids_of([list(chain.from_iterable(row)) for row in rows], block_size)
    found = [ids[start:end].tolist() for start, end in pairwise(block_ptr)]
    assert found == expected


def test_a_hash_that_confuses_contents_is_not_believed(monkeypatch):
    factors = iter([np.zeros(2, np.uint64), np.ones(1, np.uint64)])
    plain = arrays._odd
    tokens = [[np.array([1, 2, 1, 2], np.int32)], [np.array([3, 4, 1, 2], np.int32)]]
    monkeypatch.setattr(arrays, "_odd", lambda rng, count: next(factors, plain(rng, count)))
    assert arrays.block_ids(tokens, 2)[1].tolist() == [0, 1, 2, 3]
    assert next(factors, None) is None


@pytest.mark.parametrize("block_size", [4, 16])
def test_short_prompts_are_told_apart_by_length_and_tokens(block_size):
    prompts = [[[5]], [[5, 0]], [[5]], [[1] * block_size], [[5], [0]]]
    parts = [[np.array(part, np.int32) for part in prompt] for prompt in prompts]
    assert arrays.short_prompt_ids(parts, block_size).tolist() == [0, 1, 0, -1, 1]
