"""Our own format: every column, CSV and Parquet, no loss."""

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.formats import plain
from blis_jax.traces.read import TraceOptions, read_trace
from blis_jax.traces.rows import DELAY, to_table
from tests.traces.formats.test_mooncake import lines_of, shared_blocks
from tests.traces.scenes import assert_same_rows, read_text

FULL = (
    "arrival_us,input_tokens,output_tokens,slo_class,tenant,client,session,round_index,"
    "prefix_group,prefix_tokens,request_id\n"
    "5,100,10,critical,t1,c1,s1,0,g,64,11\n"
    "7,200,0,,t2,c1,,2,,0,4\n"
    "9,80,3,realtime,t1,c2,s1,1,g,80,7\n"
)
SUFFIXES = [
    ".csv",
    ".csv.gz",
    pytest.param(
        ".parquet",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
        ),
    ),
]


def test_all_columns(tmp_path):
    trace = read_text(tmp_path, FULL)
    rows = trace.rows
    assert trace.format == "plain"
    assert rows.slo_class.tolist() == [1, 0, 1]
    assert rows.tenant_names == ("t1", "t2")
    assert rows.session.tolist() == [0, -1, 0]
    assert rows.round_index.tolist() == [0, 2, 1]
    assert rows.prefix_group.tolist() == [0, -1, 0]
    assert rows.request_id.tolist() == [11, 4, 7]
    assert shared_blocks(to_table(rows, 16)[0]) == {(0, 2): 4}


def test_three_columns_are_enough_and_seconds_will_do(tmp_path):
    text = "output_tokens,arrival_s,input_tokens\n3,0.0000015,2\n4,1.25,6\n"
    rows = read_text(tmp_path, text).rows
    assert rows.arrival_us.tolist() == [2, 1_250_000]
    assert rows.input_len.tolist() == [2, 6]
    assert rows.request_id.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("5,100,10,gold,t,c,,0,,0,1", "slo_class is gold"),
        ("5,100,10,,t,c,,0,g,101,1", "prefix_tokens is above input_tokens"),
        ("5.5,100,10,,t,c,,0,,0,1", "arrival_us is 5.5"),
        ("5,100,10,,t,c,,-1,,0,1", "round_index is -1"),
    ],
)
def test_malformed_rows(tmp_path, cells, reason):
    trace = read_text(tmp_path, f"{FULL}{cells}\n")
    assert len(trace.rows) == 3
    assert trace.report.first_bad[0].place == "line 5"
    assert reason in trace.report.first_bad[0].reason


@pytest.mark.parametrize(
    ("contents", "ends"), [("1 2", "16"), ("1 2", "16 16"), ("1", "111"), ("", "16"), ("1", "x")]
)
def test_segments_that_do_not_fit_are_malformed(tmp_path, contents, ends):
    text = "arrival_us,input_tokens,output_tokens,segment_contents,segment_ends\n"
    trace = read_text(tmp_path, f"{text}0,100,10,1 2,16 64\n1,100,10,{contents},{ends}\n")
    assert len(trace.rows) == trace.report.num_bad == 1
    assert "segment_ends" in trace.report.first_bad[0].reason


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path, suffix):
    rows = read_text(tmp_path, FULL).rows
    plain.write(rows, tmp_path / f"again{suffix}")
    again = read_trace(tmp_path / f"again{suffix}", TraceOptions(strict=True))
    assert again.format == "plain"
    assert_same_rows(again.rows, rows)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_of_contents(tmp_path, suffix):
    text = lines_of((0, 700, 5, [8, 3]), (1, 90, 5, []), (2, 513, 6, [8, 4]))
    rows = read_text(tmp_path, text).rows
    plain.write(rows, tmp_path / f"again{suffix}")
    assert_same_rows(read_trace(tmp_path / f"again{suffix}").rows, rows)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "trace.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(ConfigError, match=r"needs pyarrow; install blis-jax\[parquet\] or use CSV"):
        read_trace(tmp_path / "trace.parquet")
    rows = read_text(tmp_path, FULL).rows
    with pytest.raises(ConfigError, match=r"install blis-jax\[parquet\]"):
        plain.write(rows, tmp_path / "again.parquet")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_of_other_types_and_with_malformed_rows(tmp_path):
    import pandas

    frame = pandas.DataFrame(
        {
            "arrival_us": np.array([3.0, np.nan, 1.0]),
            "input_tokens": np.array([4, 5, 6], np.uint16),
            "output_tokens": np.array([1, 1, 1], np.int8),
            "tenant": [None, "a", "b"],
        }
    )
    frame.to_parquet(tmp_path / "trace.parquet")
    trace = read_trace(tmp_path / "trace.parquet")
    assert trace.rows.input_len.tolist() == [6, 4]
    assert [bad.place for bad in trace.report.first_bad] == ["row 2"]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(ConfigError, match="not a whole Parquet file"):
        read_trace(tmp_path / "broken.parquet")


# --- names that people use ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "first", "second"),
    [
        ("timestamp,prompt_tokens,completion_tokens", "10.0", "12.5"),
        ("Timestamp,Prompt Tokens,Completion Tokens", "1790000010", "1790000012.5"),
        (
            "arrived_at;input_length;output_length",
            "2026-09-01T10:00:00+02:00",
            "2026-09-01 08:00:02.5",
        ),
        ("timestamp_ms,isl,osl", "1790000010000", "1790000012500"),
        ("created,context_tokens,generated_tokens", "1790000010000", "1790000012500"),
        ("start_time_ns,input_len,output_len", "1790000010000000000", "1790000012500000000"),
    ],
)
def test_usual_names_dates_and_units(tmp_path, header, first, second):
    separator = ";" if ";" in header else ","
    lines = [header, separator.join((first, "300", "40")), separator.join((second, "500", "60"))]
    trace = read_text(tmp_path, "\n".join(lines) + "\n")
    assert trace.format == "plain"
    assert np.diff(trace.rows.arrival_us).tolist() == [2_500_000]
    assert trace.rows.input_len.tolist() == [300, 500]
    assert trace.rows.output_len.tolist() == [40, 60]


def test_a_time_without_a_unit_is_said_and_can_be_overruled(tmp_path):
    text = "timestamp,prompt_tokens,completion_tokens\n0,10,4\n1500,10,4\n2500,10,4\n"
    unsaid = read_text(tmp_path, text)  # one request in 800 s is no service
    assert any("times are read as ms, the first unit" in note for note in unsaid.report.notes)
    assert unsaid.rows.arrival_us.tolist() == [0, 1_500_000, 2_500_000]
    in_s = read_text(tmp_path, text, time_unit="s")
    assert in_s.rows.arrival_us.tolist() == [0, 1_500_000_000, 2_500_000_000]


def test_json_lines_of_a_server_log(tmp_path):
    path = tmp_path / "log.jsonl"
    good = (
        '{"created": %d, "model": "m", "usage": {"prompt_tokens": 30, "completion_tokens": %d}}\n'
    )
    path.write_text(good % (1790000000, 5) + "{broken\n" + good % (1790000002, 7))
    trace = read_trace(path)
    assert trace.rows.output_len.tolist() == [5, 7]
    assert np.diff(trace.rows.arrival_us).tolist() == [2_000_000]
    assert trace.report.num_bad == 1
    assert trace.report.first_bad[0].place == "line 2"
    assert any("column without effect: model" in note for note in trace.report.notes)


@pytest.mark.parametrize(
    ("name", "tokens"), [("input_tokens", [1000, 1012]), ("prompt_tokens", [10, 12])]
)
def test_prompts_of_anthropic_have_what_was_cached(tmp_path, name, tokens):
    """Its input_tokens leave out what the cache had; prompt_tokens, as OpenAI counts them, have it."""
    usage = (
        '{"timestamp": "2026-01-01T00:00:0%dZ", "usage": {"%s": %d, "cache_read_input_tokens": %s, '
        '"cache_creation_input_tokens": %d, "output_tokens": 6}}\n'
    )
    path = tmp_path / "log.jsonl"
    path.write_text(usage % (0, name, 10, "990", 0) + usage % (1, name, 12, "null", 1000))
    trace = read_trace(path)
    assert trace.rows.input_len.tolist() == tokens
    assert any("input_tokens plus" in note for note in trace.report.notes) == (
        name == "input_tokens"
    )


def test_faulty_cells_are_named_as_the_file_names_them(tmp_path):
    text = (
        "timestamp,prompt_tokens,completion_tokens,request_id\n0,10,4,abc\n1,0,4,abd\n2,9,4,abe\n"
    )
    trace = read_text(tmp_path, text)
    assert trace.report.first_bad[0].reason.startswith("prompt_tokens is 0")
    assert trace.rows.request_id.tolist() == [0, 1]


def test_turns_of_a_session_share_what_was_said_unless_told_otherwise(tmp_path):
    text = (
        "timestamp,prompt_tokens,completion_tokens,session_id\n"
        "0,64,16,a\n5,128,16,a\n9,200,16,a\n3,64,16,b\n"
    )
    trace = read_text(tmp_path, text)
    assert any("begins with what was said before" in note for note in trace.report.notes)
    assert trace.rows.round_index[trace.rows.session == 0].tolist() == [0, 1, 2]
    assert shared_blocks(to_table(trace.rows, 16)[0])
    apart = read_text(tmp_path, text, prefix_model="none")
    assert not shared_blocks(to_table(apart.rows, 16)[0])


def test_sessions_that_every_client_numbers_anew_are_sessions_of_their_own(tmp_path):
    text = "arrival_s,user_id,session_id,input_tokens,output_tokens\n" + "".join(
        f"{at},u{at % 2},{at // 6 + 1 if at < 10 else ''},100,20\n" for at in range(12)
    )
    trace = read_text(tmp_path, text)
    assert trace.rows.session.tolist() == [0, 1] * 3 + [2, 3] * 2 + [-1, -1]
    assert trace.rows.session_names == ("u0/1", "u1/1", "u0/2", "u1/2")
    assert trace.rows.round_index.tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 0, 0]
    assert any("each client's" in note for note in trace.report.notes)
    alone = read_text(tmp_path, text.replace("u1", "u0"))
    assert alone.rows.session_names == ("1", "2")
    assert not any("each client's" in note for note in alone.report.notes)


def test_dates_may_name_utc_in_words(tmp_path):
    text = "timestamp,prompt_tokens,completion_tokens\n2026-01-01T00:00:00Z,9,9\n"
    text += "2026-01-01 00:00:03 UTC,9,9\n2026-01-01 00:00:05 GMT,9,9\n"
    assert read_text(tmp_path, text).rows.arrival_us.tolist() == [0, 3_000_000, 5_000_000]


def test_names_that_are_numbers_and_ids_that_are_none(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [
        {
            "timestamp": at * 2.0,
            "isl": 100 + at,
            "osl": 9,
            "session_id": at % 2,
            "request_id": f"r{at}",
        }
        for at in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert trace.rows.session_names == ("0", "1")
    assert trace.rows.session.tolist() == [0, 1, 0, 1]
    assert "column without effect: request_id" in trace.report.notes


def test_ids_that_come_twice_are_told_whether_numbers_or_texts(tmp_path):
    for prefix in ("", "r"):
        (tmp_path / f"a{prefix}").mkdir()
        text = "arrival_s,request_id,input_tokens,output_tokens\n" + "".join(
            f"{at},{prefix}{number},10,4\n" for at, number in enumerate([1, 2, 1, 3, 1])
        )
        notes = read_text(tmp_path / f"a{prefix}", text).report.notes
        assert any(note.startswith("2 rows repeat the request_id") for note in notes)


def test_a_number_of_eight_digits_is_no_date(tmp_path):
    text = "timestamp,isl,osl\n17900000,10,4\n17901500,10,4\n17903000,10,4\n"
    rows = read_text(tmp_path, text).rows
    assert np.diff(rows.arrival_us).tolist() == [1_500_000, 1_500_000]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
@pytest.mark.parametrize("as_text", [False, True])
def test_parquet_with_dates_and_numbered_sessions(tmp_path, as_text):
    times = pd.date_range("2026-09-01 10:00", periods=3, freq="1500ms", tz="UTC")
    times = times.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if as_text else times
    columns = {
        "created_at": times,
        "prompt_tokens": [10, 20, 30],
        "completion_tokens": 4,
        "session_id": [7, 8, 7],
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "log.parquet")
    rows = read_trace(tmp_path / "log.parquet").rows
    assert np.diff(rows.arrival_us).tolist() == [1_500_000, 1_500_000]
    assert rows.session_names == ("7", "8")


OBJECTS = [
    {"arrival_s": 0.5, "input_tokens": 7, "output_tokens": 3},
    {"arrival_s": "soon", "input_tokens": 8, "output_tokens": 3},
    {"arrival_s": 2.0, "input_tokens": 9, "output_tokens": 4},
]


@pytest.mark.parametrize("indent", [None, 2])
def test_one_json_list_is_read_as_lines_are(tmp_path, indent):
    trace = read_text(tmp_path, json.dumps(OBJECTS, indent=indent), name="trace.json")
    assert trace.rows.arrival_us.tolist() == [500_000, 2_000_000]
    assert trace.rows.input_len.tolist() == [7, 9]
    assert [each.place for each in trace.report.first_bad] == ["object 2"]


def test_a_json_list_that_is_cut_off_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="it was cut off"):
        read_text(tmp_path, json.dumps(OBJECTS)[:-20], name="trace.json")


def test_the_sums_in_a_clients_file_are_no_request(tmp_path):
    found = {
        "date": "20260101-000000", "request_throughput": 1.0, "mean_ttft_ms": 5.0, "max_concurrency": None,
        "request_rate": 2.0, "completed": 2, "total_input_tokens": 10, "total_output_tokens": 6,
        "start_times": [0.0, 0.5], "input_lens": [4, 6], "output_lens": [3, 3], "ttfts": [0.1, 0.1],
        "itls": [[0.01, 0.01]] * 2, "errors": ["", ""],
    }  # fmt: skip
    trace = read_text(tmp_path, json.dumps(found) + "\n", name="vllm.json")
    assert trace.format == "benchmark"
    assert trace.rows.arrival_us.tolist() == [0, 500_000]
    assert trace.rows.input_len.tolist() == [4, 6]


TURNS = (
    "a,{0},,100,10\n"  # session, arrival, delay, tokens
    "b,{1},,100,10\n"
    "a,,{2},150,10\n"
    "a,{3},,200,10\n"
    "b,{4},{2},150,10\n"
)


@pytest.mark.parametrize(
    ("header", "values", "notes"),
    [
        ("session,arrival_us,delay_us", (0, 300_000, 700_000, 9_000_000, 9_500_000), 1),
        ("session_id,timestamp,delay_ms", (0, 0.3, 700, 9, 9.5), 2),
        ("session_id,timestamp_ms,delay", (0, 300, 700, 9000, 9500), 2),
        (
            "session_id,timestamp,delay_s",
            (*(f"2026-01-01 00:00:{second}" for second in ("00", "00.3")), 0.7,
             *(f"2026-01-01 00:00:{second}" for second in ("09", "09.5"))),
            1,
        ),
    ],
)  # fmt: skip
def test_turns_with_a_delay_wait_for_the_answer_before(tmp_path, header, values, notes):
    text = f"{header},input_tokens,output_tokens\n" + TURNS.format(*values)
    trace = read_text(tmp_path, text, name="turns.csv", prefix_model="none")
    rows = trace.rows
    assert rows.arrival_us.tolist() == [0, 300_000, 700_000, 9_000_000, 9_500_000]
    assert rows.others[DELAY].tolist() == [-1, -1, 700_000, -1, -1]
    assert rows.round_index.tolist() == [0, 0, 1, 2, 1]
    assert len(trace.report.notes) == notes
    assert "1 rows have an arrival and a delay: the arrival is taken" in trace.report.notes
    plain.write(rows, tmp_path / "again.csv")
    again = read_trace(tmp_path / "again.csv", TraceOptions(prefix_model="none")).rows
    assert_same_rows(again, rows)
    assert again.others[DELAY].tolist() == rows.others[DELAY].tolist()


def test_a_turn_that_waits_for_nothing_is_left_out(tmp_path):
    text = "session,arrival_us,delay_us,input_tokens,output_tokens\na,0,,9,9\nb,,5,9,9\n,,5,9,9\na,,,9,9\n"
    trace = read_text(tmp_path, text)
    assert len(trace.rows) == 1
    assert any(
        note.startswith("2 rows have a delay, but no earlier turn") for note in trace.report.notes
    )
    assert trace.report.first_bad[0].reason == "the arrival is missing, and so is a delay"


def test_a_second_column_of_one_name_is_called_so(tmp_path):
    trace = read_text(tmp_path, "timestamp,isl,osl,isl\n0,100,10,7\n1,200,20,7\n")
    assert trace.rows.input_len.tolist() == [100, 200]
    assert "column without effect: isl (the second of this name)" in trace.report.notes
