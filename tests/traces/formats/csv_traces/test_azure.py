"""The Azure reader: header variants, times of every spelling, malformed rows, the real files."""

import csv
import datetime

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.formats.csv_traces import AZURE
from blis_jax.traces.read import TraceOptions, read_trace
from tests.traces.scenes import assert_same_rows, read_text, real_file

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_times_start_at_the_first_and_are_cut_to_microseconds(tmp_path):
    trace = read_text(
        tmp_path,
        HEADER
        + "2023-11-16 18:17:03.9799600,10,1\n"
        + "2023-11-16 18:17:03.9799619,20,2\n"
        + "2023-11-16 18:17:05,30,0\n",
    )
    assert trace.format == "azure"
    assert trace.rows.arrival_us.tolist() == [0, 1, 1_020_040]
    assert trace.rows.input_len.tolist() == [10, 20, 30]
    assert trace.rows.output_len.tolist() == [1, 2, 0]
    assert not trace.rows.slo_class.any()
    assert trace.report.lines() == []


def test_time_zones_are_heeded_and_utc_where_none_is_named(tmp_path):
    trace = read_text(
        tmp_path,
        HEADER
        + "2024-05-10 00:00:00.009930+00:00,1,1\n"
        + "2024-05-10 02:00:01.009930+02:00,2,1\n"
        + "2024-05-10T00:00:02.009930Z,3,1\n"
        + "2024-05-10 00:00:03.009930,4,1\n",
    )
    assert trace.rows.arrival_us.tolist() == [0, 1_000_000, 2_000_000, 3_000_000]


def test_byte_order_mark_case_order_blank_lines_and_more_columns_do_not_matter(tmp_path):
    plain = read_text(tmp_path, HEADER + "2023-11-16 18:00:00,5,6\n2023-11-16 18:00:01,7,8\n")
    odd = read_text(
        tmp_path,
        "\ufeff\r\nmodel, generated_tokens ,Timestamp,context tokens\r\n"
        "a,6,2023-11-16 18:00:00,5\r\n\r\n"
        'b,"8",2023-11-16 18:00:01,7.0',
    )
    assert_same_rows(plain.rows, odd.rows)
    assert odd.report.num_bad == 0


def test_malformed_rows_are_named_with_their_lines(tmp_path):
    text = (
        HEADER
        + "yesterday,5,6\n"
        + "\n"
        + "2023-11-16 18:00:01,x,6\n"
        + "2023-11-16 18:00:02,0,6\n"
        + "2023-11-16 18:00:03,5\n"
        + "2023-11-16 18:00:04,5,6,7\n"
        + "2023-11-16 18:00:05,5,6\n"
        + "2023-11-16 18:00:06,5,-1\n"
    )
    trace = read_text(tmp_path, text)
    assert len(trace.rows) == 1
    assert trace.report.lines() == [
        "6 malformed rows are left out:",
        "  line 2: TIMESTAMP is yesterday, not a date and time like 2023-11-16 18:17:03.9799600",
        "  line 4: ContextTokens is x, not a whole number of at least 1",
        "  line 5: ContextTokens is 0, not a whole number of at least 1",
        "  line 6: GeneratedTokens is missing",
        "  line 7: more fields than the header",
        "  line 9: GeneratedTokens is -1, not a whole number of at least 0",
    ]
    with pytest.raises(ConfigError, match=r"has 6 malformed rows, the first at line 2"):
        read_text(tmp_path, text, strict=True)


def test_only_ten_malformed_rows_are_named(tmp_path):
    trace = read_text(tmp_path, HEADER + "2023-11-16 18:00:05,5,6\n" + "x,1,1\n" * 12)
    lines = trace.report.lines()
    assert lines[0] == "12 malformed rows are left out:"
    assert len(lines) == 12
    assert lines[-1] == "  and 2 more"


def test_an_unclosed_quote_spoils_only_its_own_line(tmp_path):
    trace = read_text(
        tmp_path,
        HEADER
        + "2023-11-16 18:00:00,1,1\n"
        + '"2023-11-16 18:00:01,2,2\n'
        + "2023-11-16 18:00:02,3,3\n"
        + '2023-11-16 18:00:03,"4,4\n',
    )
    assert trace.rows.input_len.tolist() == [1, 3]
    assert [row.place for row in trace.report.first_bad] == ["line 3", "line 5"]


def test_rows_out_of_order_are_sorted_and_ties_keep_the_order_of_the_file(tmp_path):
    trace = read_text(
        tmp_path,
        HEADER
        + "2023-11-16 18:00:02,1,2\n"
        + "2023-11-16 18:00:01,2,2\n"
        + "2023-11-16 18:00:02,3,2\n"
        + "2023-11-16 18:00:01,4,2\n",
    )
    assert trace.rows.input_len.tolist() == [2, 4, 1, 3]
    assert trace.rows.arrival_us.tolist() == [0, 0, 10**6, 10**6]
    assert trace.report.notes == [
        "2 rows came earlier than the row above; all are sorted by arrival"
    ]


def test_gzip_is_unpacked(tmp_path):
    text = HEADER + "2023-11-16 18:00:00,5,6\n"
    packed = read_text(tmp_path, text, name="trace.csv.gz")
    assert_same_rows(packed.rows, read_text(tmp_path, text).rows)


def test_a_header_without_a_column_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no column GeneratedTokens; its header is"):
        read_text(tmp_path, "TIMESTAMP,ContextTokens\n1,2\n", format="azure")


def test_round_trip(tmp_path):
    trace = read_text(
        tmp_path, HEADER + "2023-11-16 18:00:00.000001,5,6\n2023-11-16 19:30:01.25,7,0\n"
    )
    AZURE.write(trace.rows, tmp_path / "again.csv")
    again = read_trace(tmp_path / "again.csv")
    assert again.format == "azure"
    assert_same_rows(trace.rows, again.rows)


@pytest.mark.parametrize(("name", "count"), [("code", 8819), ("conv", 19366)])
def test_real_files_agree_with_an_independent_count(name, count):
    path = real_file(f"azure_llm_2023/AzureLLMInferenceTrace_{name}.csv")
    with path.open() as file:
        lines = list(csv.DictReader(file))
    trace = read_trace(path, TraceOptions(strict=True))
    assert len(trace.rows) == len(lines) == count
    assert trace.rows.input_len.sum() == sum(int(line["ContextTokens"]) for line in lines)
    assert trace.rows.output_len.sum() == sum(int(line["GeneratedTokens"]) for line in lines)
    times = [datetime.datetime.fromisoformat(line["TIMESTAMP"][:26]) for line in lines]
    span = (max(times) - min(times)) // datetime.timedelta(microseconds=1)
    assert abs(int(trace.rows.arrival_us[-1]) - span) <= 1
    assert np.all(np.diff(trace.rows.arrival_us) >= 0)
