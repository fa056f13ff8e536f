"""The Mooncake reader: hash blocks as shared contents, malformed lines, the real files."""

import json
import random
import time

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.traces.closed_loop import closed_loop_of_rows
from blis_jax.traces.formats import mooncake
from blis_jax.traces.read import TraceOptions, read_trace
from blis_jax.traces.rows import DELAY, to_table
from tests.traces.scenes import assert_same_rows, read_text, real_file


def lines_of(*requests):
    """JSON lines of (milliseconds, input, output, hash ids)."""
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(
        json.dumps(dict(zip(names, request, strict=True))) + "\n" for request in requests
    )


def shared_blocks(table):
    """Blocks that each pair of requests shares."""
    paths = np.asarray(table.path_nodes)
    count = {}
    for first in range(len(paths)):
        for second in range(first + 1, len(paths)):
            common = set(paths[first]) & set(paths[second]) - {-1}
            if common:
                count[first, second] = int(sum(table.node_blocks[node] for node in common))
    return count


def test_milliseconds_lengths_and_prefixes(tmp_path):
    trace = read_text(
        tmp_path,
        lines_of((0, 1100, 5, [1, 2, 3]), (0.5, 1100, 6, [1, 2, 4]), (27, 600, 0, [1, 9])),
    )
    assert trace.format == "mooncake"
    assert trace.rows.arrival_us.tolist() == [0, 500, 27_000]
    assert trace.rows.input_len.tolist() == [1100, 1100, 600]
    assert trace.rows.output_len.tolist() == [5, 6, 0]
    table, names = to_table(trace.rows, 16)
    assert shared_blocks(table) == {(0, 1): 64, (0, 2): 32, (1, 2): 32}
    assert names.tenant_names == ("",)


def test_a_partial_last_block_is_shared_up_to_the_shorter_prompt(tmp_path):
    rows = read_text(tmp_path, lines_of((0, 700, 5, [1, 2]), (1, 800, 6, [1, 2]))).rows
    table, _ = to_table(rows, 16)
    assert shared_blocks(table) == {(0, 1): 700 // 16}


def test_output_is_never_shared(tmp_path):
    rows = read_text(tmp_path, lines_of((0, 20, 100, [1]), (1, 20, 100, [1]))).rows
    table, _ = to_table(rows, 16)
    assert shared_blocks(table) == {(0, 1): 1}


def test_equal_prompts_below_one_block_have_one_key_and_others_do_not(tmp_path):
    rows = read_text(
        tmp_path, lines_of((0, 13, 5, [1]), (1, 13, 5, [1]), (2, 12, 5, [1]), (3, 13, 5, [2]))
    ).rows
    table, _ = to_table(rows, 16)
    assert table.prompt_key.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("block_size", [12, 16, 100, 512, 1000])
def test_engine_blocks_of_any_size(tmp_path, block_size):
    rows = read_text(tmp_path, lines_of((0, 3000, 1, range_list(6)), (1, 1024, 1, [0, 1]))).rows
    table, _ = to_table(rows, block_size)
    expected = 1024 // block_size
    assert shared_blocks(table) == {(0, 1): expected}


def range_list(count):
    return list(range(count))


def test_another_size_of_hash_blocks(tmp_path):
    text = lines_of((0, 40, 1, [1, 2, 3]), (1, 32, 1, [1, 2]))
    rows = read_text(tmp_path, text, block_size=16).rows
    assert shared_blocks(to_table(rows, 16)[0]) == {(0, 1): 2}


def test_a_wrong_size_of_hash_blocks_is_refused_with_the_right_one(tmp_path):
    text = lines_of(*((time, 1000, 1, list(range(63))) for time in range(20)))
    with pytest.raises(ConfigError, match="give --trace-block-size 16"):
        read_text(tmp_path, text)


def test_missing_ids_leave_the_rest_of_a_prompt_private(tmp_path):
    text = lines_of((0, 1100, 1, [1, 2]), (1, 1100, 1, [1, 2])) + (
        '{"timestamp": 2, "input_length": 1100, "output_length": 1}\n'
    )
    trace = read_text(tmp_path, text)
    assert trace.report.num_bad == 0
    assert shared_blocks(to_table(trace.rows, 16)[0]) == {(0, 1): 64}


@pytest.mark.parametrize(
    ("lengths", "ending"),
    [((1900, 1500), "--trace-block-size 1024 fits all"), ((9000, 1100), "as private")],
)
def test_ids_that_stand_for_little_of_the_prompts_are_told(tmp_path, lengths, ending):
    text = lines_of(*((at, length, 1, [7, at]) for at, length in enumerate(lengths)))
    (note,) = read_text(tmp_path, text).report.notes[:1]
    assert note.startswith("hash_ids of 512 tokens stand for")
    assert note.endswith(ending)
    again = read_text(tmp_path, text, block_size=1024).report.notes
    assert any("stand for" in each for each in again) == (lengths[0] == 9000)


BAD_LINES = {
    "not json": "not a JSON object",
    "[1, 2]": "not a JSON object",
    '{"timestamp": 1, "input_length": 5}': "output_length is missing",
    '{"timestamp": -1, "input_length": 5, "output_length": 1}': "timestamp is -1, not a number",
    '{"timestamp": "x", "input_length": 5, "output_length": 1}': 'timestamp is "x", not a number',
    '{"timestamp": NaN, "input_length": 5, "output_length": 1}': "timestamp is NaN",
    '{"timestamp": 1, "input_length": 0, "output_length": 1}': "input_length is 0",
    '{"timestamp": 1, "input_length": 5.5, "output_length": 1}': "input_length is 5.5",
    '{"timestamp": 1, "input_length": 5, "output_length": true}': "output_length is true",
    '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": 3}': "hash_ids is not",
    '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1.5]}': "hash_ids is not",
    '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}': "512; --trace-block-size 4 would",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_malformed_lines_are_left_out(tmp_path, line):
    good = lines_of((0, 600, 5, [1, 2])), lines_of((1, 600, 5, [1, 3]))
    trace = read_text(tmp_path, f"{good[0]}\n{line}\n{good[1]}")
    clean = read_text(tmp_path, "".join(good))
    assert_same_rows(trace.rows, clean.rows)
    assert trace.report.num_bad == 1
    assert trace.report.first_bad[0].place == "line 3"
    assert BAD_LINES[line] in trace.report.first_bad[0].reason


def test_the_names_that_dynamo_reads_too(tmp_path):
    names = {
        "timestamp": "created_time",
        "input_length": "input_tokens",
        "output_length": "output_tokens",
    }
    text = lines_of((0, 1100, 5, [1, 2, 3]), (1500, 1100, 6, [1, 2, 4]))
    other = text
    for ours, theirs in names.items():
        other = other.replace(f'"{ours}"', f'"{theirs}"')
    trace = read_text(tmp_path, other)
    assert trace.format == "mooncake" and not trace.report.notes
    assert_same_rows(trace.rows, read_text(tmp_path, text).rows)


def test_requests_of_agents_wait_for_tools_and_for_their_own_turn_before(tmp_path):
    """Of Dynamo's agentic rows: r1 waits 0.5 + 1.5 s after r0, r2 begins a session, r3 joins two."""
    rows = [
        {"request_id": "r0", "session_id": "a", "timestamp": 100},
        {
            "request_id": "r1",
            "session_id": "a",
            "delay": 500,
            "tool_wait_ms": 1500,
            "wait_for": ["r0"],
        },
        {"request_id": "r2", "session_id": "b", "delay_ms": 50, "wait_for": ["r0"]},
        {"request_id": "r3", "session_id": "a", "wait_for": ["r1", "r2"]},
    ]
    lengths = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    trace = read_text(tmp_path, "".join(json.dumps({**row, **lengths}) + "\n" for row in rows))
    assert trace.report.num_bad == 0
    assert trace.rows.arrival_us.tolist() == [100_000, 150_000, 2_100_000, 2_100_000]
    assert trace.rows.others[DELAY].tolist() == [-1, -1, 2_000_000, 0]
    assert [
        note for note in trace.report.notes if note.startswith("2 rows wait for requests of other")
    ]


def test_the_record_of_dynamos_frontend(tmp_path):
    def record(at, session, hashes):
        replay = {"trace_block_size": 64, "input_length": 100, "input_sequence_hashes": hashes}
        request = {"request_received_ms": at, "output_tokens": 7, "replay": replay}
        context = {"trajectory_id": session} if session else None
        return {"schema": "dynamo.request.trace.v1", "request": request, "agent_context": context}

    large = 14879255164371896291  # beyond 63 bits
    start = 1777312800000
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {}}
    records = [record(start, "a", [large, 5]), tool, record(start + 500, "", [large, 6])]
    trace = read_text(tmp_path, "".join(json.dumps(each) + "\n" for each in records))
    assert trace.format == "mooncake" and trace.report.num_bad == 0
    assert trace.rows.arrival_us.tolist() == [0, 500_000]
    assert trace.rows.input_len.tolist() == [100, 100] and trace.rows.output_len.tolist() == [7, 7]
    assert trace.rows.session_names == ("a",)
    assert shared_blocks(to_table(trace.rows, 16)[0]) == {(0, 1): 4}


def test_limit_counts_usable_lines(tmp_path):
    text = lines_of((0, 5, 1, [])) + "bad\n" + lines_of((1, 6, 1, []), (2, 7, 1, []))
    assert read_text(tmp_path, text, limit=2).rows.input_len.tolist() == [5, 6]


def test_round_trip(tmp_path):
    rows = read_text(tmp_path, lines_of((0, 700, 5, [8, 3]), (1.25, 513, 6, [8, 4]))).rows
    mooncake.write(rows, tmp_path / "again.jsonl")
    assert_same_rows(read_trace(tmp_path / "again.jsonl").rows, rows)


def test_contents_that_are_no_hash_blocks_cannot_be_written(tmp_path):
    rows = read_text(tmp_path, lines_of((0, 700, 5, [8, 3]))).rows
    with pytest.raises(ConfigError, match="write the plain format"):
        mooncake.write(rows, tmp_path / "again.jsonl", block_size=256)


@pytest.mark.parametrize(("name", "count"), [("conversation", 12031), ("synthetic", 3993)])
def test_real_files_agree_with_an_independent_count(name, count):
    path = real_file(f"mooncake_fast25/{name}_trace.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    started = time.perf_counter()
    trace = read_trace(path, TraceOptions(strict=True))
    table, _ = to_table(trace.rows, 16)
    assert time.perf_counter() - started < 10  # about 0.25 s on an idle core
    assert len(trace.rows) == len(lines) == count
    assert trace.rows.input_len.sum() == sum(line["input_length"] for line in lines)
    assert trace.rows.output_len.sum() == sum(line["output_length"] for line in lines)
    assert trace.rows.arrival_us[-1] == lines[-1]["timestamp"] * 1000
    assert len(table.node_start) < 5000
    assert table.depth <= 23


def test_shared_blocks_of_real_requests_agree_with_a_comparison_id_by_id():
    path = real_file("mooncake_fast25/conversation_trace.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    table, _ = to_table(read_trace(path).rows, 16)
    paths, blocks = table.path_nodes, table.node_blocks
    draws = random.Random(7)
    by_id = {}
    for number, line in enumerate(lines):
        by_id.setdefault(line["hash_ids"][min(3, len(line["hash_ids"]) - 1)], []).append(number)
    groups = [rows for rows in by_id.values() if len(rows) > 1]
    pairs = [draws.sample(draws.choice(groups), 2) for _ in range(1500)]
    pairs += [draws.sample(range(len(lines)), 2) for _ in range(500)]
    for first, second in pairs:
        equal = 0
        ids = zip(lines[first]["hash_ids"], lines[second]["hash_ids"], strict=False)
        for one, other in ids:
            if one != other:
                break
            equal += 1
        shortest = min(lines[first]["input_length"], lines[second]["input_length"])
        common = set(paths[first]) & set(paths[second]) - {-1}
        assert sum(blocks[node] for node in common) == min(equal * 512, shortest) // 16


def test_ids_may_be_words_or_beyond_64_bits(tmp_path):
    text = lines_of(
        (0, 1100, 1, ["a", 2**64, 7]), (1, 1100, 1, ["a", 2**64, 8]), (2, 600, 1, ["a", 7])
    )
    trace = read_text(tmp_path, text)
    assert trace.report.num_bad == 0
    assert shared_blocks(to_table(trace.rows, 16)[0]) == {(0, 1): 64, (0, 2): 32, (1, 2): 32}


def row_of(**columns):
    return json.dumps({"input_length": 40, "output_length": 5, **columns}) + "\n"


def test_sessions_are_read_and_other_keys_are_named(tmp_path):
    trace = read_text(
        tmp_path,
        row_of(timestamp=0, session_id="a", kind="x")
        + row_of(timestamp=9, session_id="b")
        + row_of(timestamp=700, session_id="a", input_length=90),
    )
    assert trace.rows.session_names == ("a", "b")
    assert trace.rows.session.tolist() == [0, 1, 0]
    assert trace.rows.round_index.tolist() == [0, 0, 1]
    assert trace.report.notes[0] == "column without effect: kind"
    assert trace.report.notes[1].startswith("a later turn of a session begins with what was said")


def test_rows_of_new_tokens_are_noted_and_can_be_made_whole(tmp_path):
    text = row_of(timestamp=0, session_id=1, input_length=100) + row_of(
        timestamp=900, session_id=1, input_length=30
    )
    (note,) = read_text(tmp_path, text).report.notes
    assert note.startswith("1 of 1 later turns have a shorter prompt")
    whole = read_text(tmp_path, text, prefix_model="deltas")
    assert whole.report.notes == []
    assert whole.rows.input_len.tolist() == [100, 100 + 5 + 30]
    table, _ = to_table(whole.rows, 16)
    assert shared_blocks(table) == {(0, 1): 105 // 16}


WAITING = (
    row_of(timestamp=0, session_id="a")
    + row_of(timestamp=300, session_id="b")
    + row_of(delay=700, session_id="a")
    + row_of(timestamp=9000, session_id="a")
    + row_of(delay=0.5, session_id="a")
)


def test_turns_that_wait_for_an_answer_arrive_at_their_earliest_and_keep_their_delay(tmp_path):
    apart = {"prefix_model": "none"}
    trace = read_text(tmp_path, WAITING, name="waiting.jsonl", **apart)
    assert trace.rows.arrival_us.tolist() == [0, 300_000, 700_000, 9_000_000, 9_000_500]
    assert trace.rows.others[DELAY].tolist() == [-1, -1, 700_000, -1, 500]
    mooncake.write(trace.rows, tmp_path / "again.jsonl")
    assert_same_rows(read_trace(tmp_path / "again.jsonl", TraceOptions(**apart)).rows, trace.rows)


def test_a_turn_that_waits_for_nothing_is_named(tmp_path):
    trace = read_text(tmp_path, row_of(timestamp=0) + row_of(delay=700))
    assert trace.report.first_bad[0].reason.startswith("delay, but no earlier turn of a session")


def test_completions_bring_the_turns_that_wait(tmp_path):
    rows = read_text(tmp_path, WAITING, name="waiting.jsonl").rows
    workload = closed_loop_of_rows(rows)
    assert workload is not None
    assert [request.arrival_us for request in workload.requests] == [0, 300_000, 9_000_000]
    assert {name: each.num_rounds for name, each in workload.sessions.items()} == {"a": 2, "a/2": 2}
    run = simulate_closed_loop(ClusterConfig(), workload)
    requests = run.record.requests
    arrivals = requests.arrival_us.tolist()
    first_ends = int(requests.left_us[0])
    assert arrivals[:2] == [0, 300_000]
    assert first_ends + 700_000 in arrivals
    assert len(arrivals) == 5


def test_qwen_bailian_has_seconds_chats_and_ids_of_16_tokens(tmp_path):
    trace = read_text(
        tmp_path,
        row_of(chat_id=7, parent_chat_id=-1, turn=1, timestamp=0.5, hash_ids=[1, 2, 3])
        + row_of(chat_id=8, parent_chat_id=-1, turn=1, timestamp=1.0, hash_ids=[9])
        + row_of(chat_id=9, parent_chat_id=7, turn=2, timestamp=2.25, hash_ids=[1, 2, 4]),
    )
    assert trace.rows.arrival_us.tolist() == [500_000, 1_000_000, 2_250_000]
    assert trace.rows.session.tolist() == [0, 1, 0]
    assert trace.rows.round_index.tolist() == [0, 0, 1]
    assert trace.report.notes == []
    table, _ = to_table(trace.rows, 16)
    assert shared_blocks(table) == {(0, 2): 2}
