"""The BurstGPT reader: failed requests, sessions, both releases of the columns."""

import pytest

from blis_jax.traces.formats.csv_traces import BURSTGPT
from blis_jax.traces.read import read_trace
from tests.traces.scenes import assert_same_rows, read_text

OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NEW = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)


def test_seconds_lengths_models_and_log_types(tmp_path):
    trace = read_text(
        tmp_path, OLD + "5,ChatGPT,472,18,490,Conversation log\n45.000001,GPT-4,10,2,12,API log\n"
    )
    rows = trace.rows
    assert trace.format == "burstgpt"
    assert rows.arrival_us.tolist() == [5_000_000, 45_000_001]
    assert rows.input_len.tolist() == [472, 10]
    assert rows.output_len.tolist() == [18, 2]
    assert [rows.client_names[client] for client in rows.client] == ["ChatGPT", "GPT-4"]
    assert [rows.tenant_names[tenant] for tenant in rows.tenant] == ["Conversation log", "API log"]
    assert rows.session.tolist() == [-1, -1]


def test_failed_requests_are_left_out_and_not_malformed(tmp_path):
    text = OLD + "5,a,4,3,7,x\n6,a,4,0,4,x\n7,a,4,0,4,x\n8,a,0,3,3,x\n9,a,4,2,6,x\n"
    trace = read_text(tmp_path, text)
    assert trace.rows.arrival_us.tolist() == [5_000_000, 9_000_000]
    assert trace.report.notes == ["2 failed requests (no response tokens) left out"]
    assert [row.place for row in trace.report.first_bad] == ["line 5"]
    strict = read_text(tmp_path, text.replace("8,a,0,3,3,x\n", ""), strict=True)
    assert len(strict.rows) == 2


def test_limit_does_not_count_failed_requests(tmp_path):
    trace = read_text(
        tmp_path, OLD + "1,a,4,1,5,x\n2,a,4,0,4,x\n3,a,4,1,5,x\n4,a,4,1,5,x\n", limit=2
    )
    assert trace.rows.arrival_us.tolist() == [1_000_000, 3_000_000]


def test_turns_of_a_session_are_numbered_by_time(tmp_path):
    rows = read_text(
        tmp_path,
        NEW
        + "9,s,1,m,10,5,15,x\n3,t,1,m,10,5,15,x\n1,s,1,m,10,5,15,x\n9,s,1,m,10,5,15,x\n5,,1,m,1,1,2,x\n",
    ).rows
    assert rows.arrival_us.tolist() == [1_000_000, 3_000_000, 5_000_000, 9_000_000, 9_000_000]
    assert [rows.session_names[code] if code >= 0 else "" for code in rows.session] == [
        *("s", "t", "", "s", "s")
    ]
    assert rows.round_index.tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("row", ["x,m,1,1,2,y", "-1,m,1,1,2,y", "1,m,nan,1,2,y", "inf,m,1,1,2,y"])
def test_malformed_rows(tmp_path, row):
    trace = read_text(tmp_path, f"{OLD}1,m,1,1,2,y\n{row}\n")
    assert len(trace.rows) == trace.report.num_bad == 1


@pytest.mark.parametrize("text", [OLD + "5.25,a,4,1,5,x\n6,b,5,2,7,y\n", NEW + "1,s,0,a,4,1,5,x\n"])
def test_round_trip(tmp_path, text):
    rows = read_text(tmp_path, text).rows
    BURSTGPT.write(rows, tmp_path / "again.csv")
    assert_same_rows(read_trace(tmp_path / "again.csv").rows, rows)
