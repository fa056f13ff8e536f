"""The Vidur reader."""

import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.formats.csv_traces import VIDUR
from blis_jax.traces.read import read_trace
from tests.traces.scenes import assert_same_rows, read_text

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def test_seconds_are_rounded_to_microseconds(tmp_path):
    trace = read_text(tmp_path, HEADER + "0.0,374,44\n5.8926549999999995,91,16\n6.311529,381.0,0\n")
    assert trace.format == "vidur"
    assert trace.rows.arrival_us.tolist() == [0, 5_892_655, 6_311_529]
    assert trace.rows.input_len.tolist() == [374, 91, 381]
    assert trace.rows.output_len.tolist() == [44, 16, 0]


def test_columns_may_have_any_order_and_more_beside_them(tmp_path):
    plain = read_text(tmp_path, HEADER + "0.5,3,4\n")
    more = read_text(
        tmp_path,
        "num_decode_tokens,num_total_tokens,num_prefill_tokens,pd_ratio,arrived_at\n4,7,3,0.75,0.5\n",
    )
    assert_same_rows(plain.rows, more.rows)
    older = read_text(tmp_path, "Date,Time,PromptTokenCount,CompletionTokenCount\nx,0.5,3,4\n")
    assert_same_rows(plain.rows, older.rows)


def test_lengths_without_arrivals_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no column for a time of arrival"):
        read_text(tmp_path, "num_prefill_tokens,num_decode_tokens\n3,4\n")


def test_malformed_rows(tmp_path):
    trace = read_text(tmp_path, HEADER + "0,3,4\n,3,4\n1,0,4\n2,3.5,4\n3,3,-4\n4,3\n")
    assert len(trace.rows) == 1
    assert [row.place for row in trace.report.first_bad] == [f"line {n}" for n in range(3, 8)]


def test_round_trip(tmp_path):
    rows = read_text(tmp_path, HEADER + "0.000001,374,44\n123456.789,91,16\n").rows
    VIDUR.write(rows, tmp_path / "again.csv")
    assert_same_rows(read_trace(tmp_path / "again.csv").rows, rows)
