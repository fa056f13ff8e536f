"""Request tables: radix nodes against block ids, keys, ranks, padding, files."""

import time
from itertools import pairwise

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_jax.errors import ConfigError
from blis_jax.workload.table import (
    NEVER_US,
    RequestTable,
    from_golden,
    load_table,
    pad_to,
    with_targets,
    with_timeouts,
)
from tests.support.recorded.reference_data import REVISIONS

BLOCK = 4


def block_ids_of(token_rows, block_size=BLOCK):
    """Ids of whole-prefix contents in order of first sight, per request."""
    ids = {}
    return [
        [
            ids.setdefault(tuple(row[: end + block_size]), len(ids))
            for end in range(0, len(row) - block_size + 1, block_size)
        ]
        for row in token_rows
    ]


def golden_arrays(requests, arrival_us=None, block_size=BLOCK):
    """Arrays of the golden format for requests given as (prompt tokens, output tokens)."""
    num = len(requests)
    rows = block_ids_of([[*prompt, *output] for prompt, output in requests], block_size)
    short_ids = {}
    ids = np.array([block for row in rows for block in row], np.int64)
    zeros = np.zeros(num, np.int16)
    return {
        "arrival_us": np.arange(num) if arrival_us is None else np.asarray(arrival_us, np.int64),
        "input_len": np.array([len(prompt) for prompt, _ in requests], np.int32),
        "output_len": np.array([len(output) for _, output in requests], np.int32),
        "slo_class": zeros.astype(np.int8),
        "tenant": zeros,
        "client": zeros,
        "session": np.full(num, -1, np.int32),
        "round_index": zeros,
        "id_rank": np.argsort(np.argsort(np.arange(num).astype(str))).astype(np.int32),
        "block_ptr": np.cumsum([0, *(len(row) for row in rows)]),
        "block_ids_delta": np.diff(ids, prepend=0).astype(np.int32),
        "block_size": np.int32(block_size),
        "short_input_id": np.array(
            [
                short_ids.setdefault(tuple(prompt), len(short_ids))
                if len(prompt) < block_size
                else -1
                for prompt, _ in requests
            ],
            np.int32,
        ),
        "tenant_names": np.array(["t"]),
        "prefix_group_names": np.array([], "U1"),
    }


def common_blocks(table, one, other):
    """Leading blocks that two requests share, from their nodes."""
    pairs = zip(table.path_nodes[one], table.path_nodes[other], strict=True)
    total = 0
    for mine, theirs in pairs:
        if mine != theirs or mine < 0:
            break
        total += int(table.node_blocks[mine])
    return total


def leading_equal(mine, theirs):
    count = 0
    for a, b in zip(mine, theirs, strict=False):
        if a != b:
            break
        count += 1
    return count


def check_structure(table, block_size):
    """What every table promises, whatever it was made from."""
    num = table.num_rows
    assert sorted(np.asarray(table.tie_rank)) == list(range(num))
    assert np.all(np.diff(np.asarray(table.arrival_us)) >= 0)
    path, start = np.asarray(table.path_nodes), np.asarray(table.node_start)
    blocks, prompt_key = np.asarray(table.node_blocks), np.asarray(table.prompt_key)
    prompt_blocks = np.asarray(table.input_len) // block_size
    full_blocks = (np.asarray(table.input_len) + np.asarray(table.output_len)) // block_size
    reached = np.zeros(num, np.int64)
    for column in path.T:
        has_node = column >= 0
        assert np.array_equal(start[column[has_node]], reached[has_node])  # contiguous from block 0
        begin = reached.copy()
        reached[has_node] += blocks[column[has_node]]
        assert np.all(blocks[column[has_node]] > 0)
        assert not np.any((begin < prompt_blocks) & (prompt_blocks < reached))  # never straddled
    assert np.all(reached <= full_blocks)
    assert np.all((path[:, :-1] >= 0) | (path[:, 1:] < 0))  # padded at the end only
    real_keys = prompt_key[np.asarray(table.arrival_us) != NEVER_US]
    assert set(real_keys) == set(range(len(set(real_keys))))  # dense


def test_one_prefix_is_one_node():
    shared = list(range(8))
    requests = [(shared + [10 + i] * 6, [50 + i] * 4) for i in range(3)]
    table = from_golden(golden_arrays(requests))
    assert table.node_start.tolist() == [0]
    assert table.node_blocks.tolist() == [2]
    assert table.path_nodes.tolist() == [[0], [0], [0]]
    assert table.prompt_key.tolist() == [0, 1, 2]


def test_without_a_shared_block_there_is_no_node():
    requests = [([i] * 8, [9] * 4) for i in range(3)]
    table = from_golden(golden_arrays(requests))
    assert table.path_nodes.tolist() == [[-1], [-1], [-1]]
    assert table.node_blocks.tolist() == [0]


def test_next_round_of_a_conversation_shares_prompt_and_output():
    first_prompt, first_output = list(range(10)), list(range(100, 109))
    second_prompt = [*first_prompt, *first_output, *range(200, 206)]
    table = from_golden(golden_arrays([(first_prompt, first_output), (second_prompt, [7] * 5)]))
    # cut at block 2, where the first prompt ends; block 4 needs the tokens of the second round
    assert table.path_nodes.tolist() == [[0, 1], [0, 1]]
    assert table.node_start.tolist() == [0, 2]
    assert table.node_blocks.tolist() == [2, 2]


def test_equal_whole_prompts_have_equal_keys():
    short, long = [1, 2], [1, 2, 3, 4, 5]
    requests = [(long, [6] * 3), (short, [6] * 3), (long, [7] * 3), (short, [8]), ([1, 3], [8])]
    assert from_golden(golden_arrays(requests)).prompt_key.tolist() == [0, 1, 0, 1, 2]


def test_tie_rank_takes_the_id_as_text():
    requests = [([i] * 4, [i]) for i in range(12)]
    table = from_golden(golden_arrays(requests, arrival_us=[0, 0] + [5] * 10))
    by_rank = np.argsort(table.tie_rank)
    assert by_rank.tolist() == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=14),
            st.lists(st.integers(0, 1), max_size=9),
        ),
        min_size=1,
        max_size=7,
    )
)
def test_nodes_say_what_block_ids_say(requests):
    arrays = golden_arrays(requests, block_size=2)
    table = from_golden(arrays)
    check_structure(table, 2)
    rows = block_ids_of([[*prompt, *output] for prompt, output in requests], 2)
    for one, mine in enumerate(rows):
        for other in range(one):
            assert common_blocks(table, one, other) == leading_equal(mine, rows[other])
            prompts = [
                requests[i][0][: len(requests[i][0]) // 2 * 2] or tuple(requests[i][0])
                for i in (one, other)
            ]
            assert (table.prompt_key[one] == table.prompt_key[other]) == (prompts[0] == prompts[1])
        shared = {block for other, row in enumerate(rows) if other != one for block in row}
        path = table.path_nodes[one]
        assert sum(table.node_blocks[path[path >= 0]]) == sum(block in shared for block in mine)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=10),
            st.lists(st.integers(0, 1), max_size=6),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_nodes_are_maximal(requests):
    """Two neighbours on a path differ in their requests, or a prompt ends between them."""
    table = from_golden(golden_arrays(requests, block_size=2))
    paths = [set(path[path >= 0].tolist()) for path in table.path_nodes]
    prompt_blocks = table.input_len // 2
    for path in table.path_nodes:
        for left, right in pairwise(path):
            if right < 0:
                break
            holders = [
                {row for row, nodes in enumerate(paths) if node in nodes} for node in (left, right)
            ]
            ends = {int(prompt_blocks[row]) for row in holders[0]}
            assert holders[1] < holders[0] or int(table.node_start[right]) in ends


@pytest.mark.golden
def test_golden_workloads_keep_their_contents(golden_dir):
    generator = np.random.default_rng(1)
    files = sorted(
        path for name in REVISIONS for path in golden_dir.glob(f"{name}/workloads/*.npz")
    )
    assert files
    for file in files:
        arrays = dict(np.load(file))
        table, names = load_table(file)
        check_structure(table, int(arrays["block_size"]))
        ids, ptr = np.cumsum(arrays["block_ids_delta"]), arrays["block_ptr"]
        rows = [ids[ptr[i] : ptr[i + 1]] for i in range(table.num_rows)]
        for one, other in generator.integers(0, table.num_rows, (200, 2)):
            if one != other:
                expected = leading_equal(rows[one], rows[other])
                assert common_blocks(table, one, other) == expected, (file.name, one, other)
        assert len(names.tenant_names) > table.tenant.max()


@pytest.mark.golden
def test_golden_prefix_groups_are_their_nodes(golden_dir):
    files = sorted(golden_dir.glob("scheduling/workloads/mixed_s*.npz"))
    assert files
    for file in files:
        table, names = load_table(file)
        assert table.node_blocks.tolist() == [32]
        assert np.all(table.path_nodes == 0)
        assert names.prefix_group_names == ("system-prompt",)


def test_padding_adds_rows_that_never_arrive():
    table = from_golden(golden_arrays([(list(range(9)), [1]), (list(range(9)), [2])]))
    padded = pad_to(table, 5, 4, 3)
    assert (padded.num_rows, padded.num_nodes, padded.depth) == (5, 4, 3)
    assert padded.arrival_us[2:].tolist() == [NEVER_US] * 3
    assert padded.input_len[2:].tolist() == padded.output_len[2:].tolist() == [1, 1, 1]
    assert padded.tie_rank.tolist() == [0, 1, 2, 3, 4]
    assert padded.path_nodes[:2, : table.depth].tolist() == table.path_nodes.tolist()
    assert np.all(padded.path_nodes[2:] == -1)
    check_structure(padded, BLOCK)
    for name in RequestTable.__dataclass_fields__:
        assert getattr(padded, name).dtype == getattr(table, name).dtype, name


def test_padding_refuses_to_shrink():
    table = from_golden(golden_arrays([([1], [1]), ([2], [2])]))
    with pytest.raises(ConfigError, match="num_requests 1 is below the table's own 2"):
        pad_to(table, 1, 1, 1)


def test_a_table_is_a_pytree():
    table = from_golden(golden_arrays([([1], [1])]))
    assert len(jax.tree.leaves(table)) == len(RequestTable.__dataclass_fields__)


def test_a_table_may_have_further_columns():
    table = from_golden(golden_arrays([([1], [1]), ([2], [2])]))
    timed = with_timeouts(table, [0, 7])
    both = with_targets(timed, np.array([3, 0]))
    assert type(with_timeouts(table, [1, 1])) is type(timed)
    assert (both.timeout_us.tolist(), both.slo_target_us.tolist()) == ([0, 7], [3, 0])
    assert len(jax.tree.leaves(both)) == len(RequestTable.__dataclass_fields__) + 2


def spoilt(**changes):
    return {**golden_arrays([([1] * 5, [1]), ([2] * 5, [2])]), **changes}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (spoilt(arrival_us=np.array([5, 4])), "falls from row 0 to row 1"),
        (spoilt(input_len=np.array([0, 5])), r"input_len\[0\] is 0"),
        (spoilt(tenant=np.zeros(3, np.int16)), r"tenant has shape \(3,\), allowed is \(2,\)"),
        (spoilt(output_len=np.array([30, 1])), "block_ptr and block_ids_delta do not list"),
        (spoilt(block_ids_delta=np.array([-4, 1])), "block_ptr and block_ids_delta do not list"),
    ],
)
def test_contradictory_arrays_are_refused(arrays, message):
    with pytest.raises(ConfigError, match=message):
        from_golden(arrays)


def test_another_block_size_is_refused():
    with pytest.raises(ConfigError, match="set the KV block size to 4"):
        from_golden(golden_arrays([([1], [1])]), block_size=16)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.npz does not exist"):
        load_table(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ConfigError, match=r"not a readable \.npz archive"):
        load_table(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ConfigError, match=r"not a readable \.npz archive"):
        load_table(tmp_path / "one.npy")
    arrays = golden_arrays([([1] * 5, [1])])
    del arrays["id_rank"]
    np.savez(tmp_path / "partial.npz", **arrays)
    with pytest.raises(ConfigError, match=r"partial\.npz has no array 'id_rank'"):
        load_table(tmp_path / "partial.npz")


def test_a_large_workload_folds_quickly():
    """20,000 requests of 200 blocks; the limit is many times what it takes."""
    num, length, prefix = 20_000, 200, 60
    own = prefix + np.arange(num * (length - prefix)).reshape(num, -1)
    ids = np.hstack([np.broadcast_to(np.arange(prefix), (num, prefix)), own]).ravel()
    base = golden_arrays([([1], [1])])
    arrays = {name: np.zeros(num, np.int32) for name in base if np.shape(base[name]) == (1,)}
    arrays |= {"input_len": np.full(num, 3000), "output_len": np.full(num, 200)}
    arrays |= {"block_size": np.int32(16), "block_ptr": np.arange(num + 1) * length}
    arrays |= {"block_ids_delta": np.diff(ids, prepend=0), "short_input_id": np.full(num, -1)}
    begin = time.perf_counter()
    table = from_golden(arrays)
    assert time.perf_counter() - begin < 10.0
    assert table.node_blocks.tolist() == [prefix]
