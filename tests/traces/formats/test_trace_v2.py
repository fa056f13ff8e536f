"""TraceV2 as the reference replays it: prefix groups, ids, status, strict header."""

import functools

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.formats import trace_v2
from blis_jax.traces.read import TraceOptions, read_trace
from blis_jax.traces.rows import make_rows, to_table
from tests.traces.scenes import assert_same_rows, read_text, row_of

HEADER = ",".join(trace_v2.COLUMNS) + "\n"
YAML = "trace_version: 2\ntime_unit: microseconds\nmode: real\nwarm_up_requests: 0\n"


TEXTS = ("client_id", "tenant_id", "slo_class", "session_id", "prefix_group", "error_message")
line = functools.partial(row_of, trace_v2.COLUMNS, TEXTS)


def test_columns_are_taken_over_whatever_the_status(tmp_path):
    trace = read_text(
        tmp_path,
        HEADER
        + line(0, 5, client_id="c", tenant_id="t", slo_class="batch", streaming="T")
        + line(1, 7, session_id="s", round_index="3", status="error", reason_ratio="0.25")
        + line(2, 1708100000000000, slo_class="interactive", output_tokens="0"),
    )
    rows = trace.rows
    assert trace.format == "trace-v2"
    assert rows.arrival_us.tolist() == [5, 7, 1708100000000000]
    assert rows.input_len.tolist() == [100, 100, 100]
    assert rows.output_len.tolist() == [20, 20, 0]
    assert rows.slo_class.tolist() == [4, 0, 2]  # batch, none, and interactive under its new name
    assert rows.session.tolist() == [-1, 0, -1]
    assert rows.round_index.tolist() == [0, 3, 0]
    assert rows.tenant_names == ("t", "")
    assert rows.client_names == ("c", "")


def test_a_prefix_group_puts_fifty_shared_tokens_before_the_prompt(tmp_path):
    rows = read_text(
        tmp_path,
        HEADER
        + line(0, prefix_group="g")
        + line(1, prefix_group="g", input_tokens="0")
        + line(2, prefix_group="h")
        + line(3),
    ).rows
    assert rows.input_len.tolist() == [150, 50, 150, 100]
    table, names = to_table(rows, 16)
    assert names.prefix_group_names == ("g", "h")
    assert (table.path_nodes >= 0).sum(axis=1).tolist() == [1, 1, 0, 0]
    assert table.node_blocks[table.path_nodes[0, 0]] == 3


def test_ties_are_ranked_by_the_id_as_text(tmp_path):
    rows = read_text(tmp_path, HEADER + line(2) + line(10) + line(1)).rows
    assert rows.request_id.tolist() == [2, 10, 1]
    table, names = to_table(rows, 16)
    assert table.tie_rank.tolist() == [2, 1, 0]
    assert names.request_numbers.tolist() == [2, 10, 1]


def test_ranks_of_many_ids_are_those_of_their_text():
    ids = np.unique(np.random.default_rng(2).integers(0, 2**62, 300) >> np.arange(300) % 63)
    rows = make_rows(np.zeros(len(ids)), np.ones(len(ids)), np.ones(len(ids)), request_id=ids)
    rank = to_table(rows, 16)[0].tie_rank
    assert [str(number) for number in ids[np.argsort(rank)]] == sorted(map(str, ids))


def test_text_with_commas_quotes_and_line_breaks(tmp_path):
    trace = read_text(
        tmp_path,
        HEADER
        + line(0, error_message='"timeout, ""late""\nagain"')
        + line(1, input_tokens="-1")
        + line(2),
    )
    assert trace.rows.request_id.tolist() == [0, 2]
    assert [row.place for row in trace.report.first_bad] == ["line 4"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slo_class": "gold"}, "slo_class is gold, not one of critical"),
        ({"streaming": "yes"}, "streaming is yes, not true or false"),
        ({"input_tokens": "0"}, "input_tokens is 0, and no prefix group adds to it"),
        ({"arrival_time_us": "1.5"}, "arrival_time_us is 1.5, not a whole number"),
        ({"reason_ratio": "many"}, "reason_ratio is many, not a number"),
        ({"request_id": "a"}, "request_id is a, not a whole number"),
    ],
)
def test_malformed_rows(tmp_path, changes, reason):
    trace = read_text(tmp_path, HEADER + line(0) + line(1, **changes))
    assert len(trace.rows) == 1
    assert trace.report.first_bad[0].place == "line 3"
    assert reason in trace.report.first_bad[0].reason


def test_rows_and_header_find_each_other(tmp_path):
    (tmp_path / "run.yaml").write_text(YAML)
    first = read_text(tmp_path, HEADER + line(0), name="run.csv")
    assert first.report.notes == []
    assert_same_rows(read_trace(tmp_path / "run.yaml").rows, first.rows)
    (tmp_path / "run.yaml").rename(tmp_path / "other.yaml")
    assert "no YAML header" in read_trace(tmp_path / "run.csv").report.notes[0]
    named = TraceOptions(header=str(tmp_path / "other.yaml"))
    assert read_trace(tmp_path / "run.csv", named).report.notes == []
    with pytest.raises(ConfigError, match=r"other\.csv is not beside it"):
        read_trace(tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (YAML + "colour: red\n", "colour: unknown key, allowed here"),
        (YAML.replace("2", "3", 1), "trace_version"),
        (YAML.replace("microseconds", "ms"), "time_unit"),
        (YAML + "server: {modell: x}\n", "server.modell: unknown key"),
    ],
)
def test_a_header_is_read_strictly(tmp_path, text, words):
    (tmp_path / "trace.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_text(tmp_path, HEADER + line(0))
    assert words in str(caught.value)


def test_columns_moved_by_another_revision_are_found_by_name(tmp_path):
    first = read_text(tmp_path, HEADER + line(0, 5, tenant_id="t", slo_class="batch"))
    cells = [*line(0, 5, tenant_id="t", slo_class="batch").strip().split(",")]
    moved = ",".join(["model", *trace_v2.COLUMNS]) + "\n" + ",".join(["m", *cells]) + "\n"
    assert_same_rows(read_text(tmp_path, moved).rows, first.rows)


def test_round_trip(tmp_path):
    rows = read_text(
        tmp_path,
        HEADER
        + line(7, 5, client_id="c,1", tenant_id="t", slo_class="batch", prefix_group="g")
        + line(3, 5, session_id="s", round_index="3", slo_class="critical"),
    ).rows
    server = trace_v2.Server(model="m", block_size=16)
    trace_v2.write(rows, tmp_path / "again.csv", trace_v2.Header(mode="real", server=server))
    again = read_trace(tmp_path / "again.csv", TraceOptions(strict=True))
    assert again.report.notes == []
    assert_same_rows(again.rows, rows)
    header = trace_v2.read_header(tmp_path / "again.yaml")
    assert header.mode == "real"
    assert header.server == server
    first = (tmp_path / "again.csv").read_text().splitlines()[0]
    assert first + "\n" == HEADER


def test_other_shared_contents_cannot_be_written(tmp_path):
    rows = read_text(tmp_path, HEADER + line(0), prefix_model="shared:64").rows
    np.testing.assert_array_equal(rows.prefix_len, [64])
    with pytest.raises(ConfigError, match="50 tokens of a group"):
        trace_v2.write(rows, tmp_path / "again.csv")
