"""TraceV2 of August 2026 as the reference replays it with fixed arrivals."""

import functools

import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.formats import trace_v3
from blis_jax.traces.read import TraceOptions, read_trace
from blis_jax.traces.rows import to_table
from tests.traces.scenes import assert_same_rows, read_text, row_of

HEADER = ",".join(trace_v3.COLUMNS) + "\n"
YAML = "trace_version: 3\ntime_unit: microseconds\nmode: real\nwarm_up_requests: 0\n"
TEXTS = (
    "client_id", "tenant_id", "slo_class", "session_id", "prefix_group", "model", "error_message",
    "finish_reason",
)  # fmt: skip
line = functools.partial(row_of, trace_v3.COLUMNS, TEXTS)


def test_a_group_has_as_many_shared_tokens_as_its_first_row_says(tmp_path):
    trace = read_text(
        tmp_path,
        HEADER
        + line(0, prefix_group="g", prefix_length="0")
        + line(1, prefix_group="g", prefix_length="64")
        + line(2, prefix_group="g", prefix_length="8")
        + line(3, prefix_group="h")
        + line(4, prefix_length="40"),
    )
    assert trace.format == "trace-v3"
    assert trace.rows.input_len.tolist() == [164, 164, 164, 100, 100]
    table, names = to_table(trace.rows, 16)
    assert names.prefix_group_names == ("g",)
    assert (table.path_nodes >= 0).sum(axis=1).tolist() == [1, 1, 1, 0, 0]


def test_the_servers_count_and_the_time_of_sending_go_first(tmp_path):
    rows = read_text(
        tmp_path,
        HEADER
        + line(0, 5, server_input_tokens="130", send_time_us="9")
        + line(1, 15, server_input_tokens="130", prefix_group="g", prefix_length="16")
        + line(2, 20, input_tokens="0", server_input_tokens="7", send_time_us="-4"),
    ).rows
    assert rows.input_len.tolist() == [130, 116, 7]
    assert rows.arrival_us.tolist() == [9, 15, 20]


def test_deadlines_are_kept_as_times_from_the_arrival(tmp_path):
    rows = read_text(tmp_path, HEADER + line(0, 5, deadline_us="905") + line(1, 6)).rows
    assert rows.timeout_us.tolist() == [900, 0]
    trace_v3.write(rows, tmp_path / "again.csv")
    assert_same_rows(read_trace(tmp_path / "again.csv").rows, rows)


def test_columns_that_only_some_files_have(tmp_path):
    names = [*trace_v3.COLUMNS[:4], "vllm_priority", *trace_v3.COLUMNS[4:], "think_time_us"]
    cells = line(0, 5, slo_class="batch").strip().split(",")
    text = ",".join(names) + "\n" + ",".join([*cells[:4], "3", *cells[4:], "900"]) + "\n"
    assert_same_rows(
        read_text(tmp_path, text).rows,
        read_text(tmp_path, HEADER + line(0, 5, slo_class="batch")).rows,
    )
    bad = read_text(tmp_path, text + text.splitlines()[1].replace(",900", ",-1") + "\n")
    assert "think_time_us is -1, not a whole number of at least 0" in bad.report.first_bad[0].reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prefix_length": "-1"}, "prefix_length is -1, not a whole number of at least 0"),
        (
            {"input_tokens": "0", "output_tokens": "0"},
            "input_tokens and output_tokens are 0, and no prefix adds to them",
        ),
        ({"deadline_us": "3"}, "deadline_us is not later than the arrival"),
        ({"reason_ratio": "1.5"}, "reason_ratio is 1.5, not a number from 0 to 1"),
        ({"slo_class": "gold"}, "slo_class is gold, not one of critical"),
        ({"streaming": "yes"}, "streaming is yes, not true or false"),
    ],
)
def test_malformed_rows(tmp_path, changes, reason):
    trace = read_text(tmp_path, HEADER + line(0) + line(1, 7, **changes))
    assert len(trace.rows) == 1 and trace.report.first_bad[0].place == "line 3"
    assert reason in trace.report.first_bad[0].reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (YAML + "colour: red\n", "colour: unknown key, allowed here"),
        (YAML.replace("3", "4", 1), "trace_version"),
        (YAML + "session_context_growth: Accumulate\n", "session_context_growth: got 'Accumulate'"),
        (YAML + "goodput_slo_targets: {batch: {ttft: 3}}\n", "goodput_slo_targets.batch.ttft"),
    ],
)
def test_a_header_is_read_strictly(tmp_path, text, words):
    (tmp_path / "trace.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_text(tmp_path, HEADER + line(0))
    assert words in str(caught.value)


def test_rows_and_header_find_each_other(tmp_path):
    (tmp_path / "run.yaml").write_text(YAML + "workload_seed: -7\n")
    first = read_text(tmp_path, HEADER + line(0), name="run.csv")
    assert first.report.notes == []
    again = read_trace(tmp_path / "run.yaml")
    assert again.format == "trace-v3"
    assert_same_rows(again.rows, first.rows)
    assert trace_v3.read_header(tmp_path / "run.yaml").workload_seed == -7


def test_tiers_of_the_header_are_said_not_to_be_replayed(tmp_path):
    (tmp_path / "run.yaml").write_text(YAML + "kv_offload: {cpu_bytes_to_use: 4096}\n")
    notes = read_text(tmp_path, HEADER + line(0), name="run.csv").report.notes
    assert (
        len(notes) == 1
        and "kv_offload of the header (cpu_bytes_to_use) counts in `replay` alone" in notes[0]
    )


def test_any_number_of_shared_tokens_can_be_written(tmp_path):
    rows = read_text(tmp_path, HEADER + line(0) + line(1), prefix_model="shared:64").rows
    trace_v3.write(rows, tmp_path / "again.csv")
    again = read_trace(tmp_path / "again.csv", TraceOptions(strict=True)).rows
    assert again.prefix_len.tolist() == [64, 64] and again.input_len.tolist() == [100, 100]
