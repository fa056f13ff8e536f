"""BLIS's CSV traces: contents by equality of tokens, times cut as the reference does."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_jax.errors import ConfigError
from blis_jax.traces.formats import csv_traces
from blis_jax.traces.read import read_trace
from blis_jax.traces.rows import to_table
from blis_jax.workload.contents import fold_segments
from blis_jax.workload.table import from_golden, load_table
from tests.support.recorded.reference_data import find_golden_dir
from tests.traces.scenes import assert_same_rows, read_text
from tests.workload.test_contents import paths
from tests.workload.test_table import golden_arrays

HEADER = csv_traces.HEADER + "\n"


def line(seconds, prompt, output):
    return f'{seconds},r,m,"{list(prompt)}","{list(output)}"\n'


def test_times_and_lengths(tmp_path):
    trace = read_text(
        tmp_path, HEADER + line("0.0", [1, 2], [3]) + line("1.0000019", [1], []) + line(2, [9], [9])
    )
    assert trace.format == "blis-csv"
    assert trace.rows.arrival_us.tolist() == [0, int(1.0000019 * 1e6), 2_000_000]
    assert trace.rows.input_len.tolist() == [2, 1, 1]
    assert trace.rows.output_len.tolist() == [1, 0, 1]
    assert not trace.rows.slo_class.any()


def test_columns_are_taken_by_place(tmp_path):
    text = 'when,who,what,in,out,more\n0.5,a,b,"[1, 2]","[3]",x\n'
    trace = read_text(tmp_path, text)
    assert trace.format == "blis-csv"
    rows = trace.rows
    assert rows.arrival_us.tolist() == [500_000]
    assert rows.input_len.tolist() == [2]


@pytest.mark.parametrize(
    "row",
    [
        '1,r,m,"[1.0]","[2]"\n',
        '1,r,m,"[true]","[2]"\n',
        '1,r,m,"[1, 2","[2]"\n',
        '1,r,m,"5","[2]"\n',
        '1,r,m,"[]","[2]"\n',
        '1,r,m,,"[2]"\n',
        'x,r,m,"[1]","[2]"\n',
        '1,r,m,"[1]"\n',
        "1,r,m,[1,2],[3]\n",
        '1,r,m,"[99999999999999999999]","[2]"\n',
    ],
)
def test_malformed_rows(tmp_path, row):
    trace = read_text(tmp_path, HEADER + line(0, [1], [2]) + row + line(2, [1], [2]))
    assert trace.rows.arrival_us.tolist() == [0, 2_000_000]
    assert [bad.place for bad in trace.report.first_bad] == ["line 3"]


def test_reading_ends_at_the_first_arrival_after_the_horizon(tmp_path):
    text = HEADER + line(1, [1], [2]) + line(3, [1], [2]) + line(2, [1], [2])
    assert len(read_text(tmp_path, text).rows) == 3
    assert len(read_text(tmp_path, text, horizon_us=2_500_000).rows) == 1
    assert len(read_text(tmp_path, text, horizon_us=3_000_000).rows) == 3
    with pytest.raises(ConfigError, match=r"the first request arrives after .* raise --horizon"):
        read_text(tmp_path, text, horizon_us=1)


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@given(st.lists(st.tuples(tokens, st.lists(st.integers(0, 1), max_size=6)), max_size=8))
def test_contents_are_those_of_the_tokens_at_any_block_size(requests):
    sequences = [np.array([*p, *o], ">i8").tobytes() for p, o in requests]
    segments = csv_traces.common_beginnings(sequences)
    lengths = np.array([len(prompt) for prompt, _ in requests], np.int64)
    for block_size in (1, 3, 4):
        expected = from_golden(golden_arrays(requests, block_size=block_size))
        folded = fold_segments(segments, lengths, block_size)
        assert paths(folded) == paths(expected)
        np.testing.assert_array_equal(folded.prompt_key, expected.prompt_key)


def test_round_trip(tmp_path):
    text = HEADER + (
        line("0.000001", range(40), [5, 6])
        + line("0.000001", [*range(20), *range(50, 80)], [])
        + line("4.999999", range(40), [5, 6, 7])
        + line("123456.000007", [1000], [1001])
    )
    rows = read_text(tmp_path, text).rows
    csv_traces.BLIS.write(rows, tmp_path / "again.csv")
    again = read_trace(tmp_path / "again.csv").rows
    assert_same_rows(again, rows, but=("segments",))
    assert paths(to_table(again, 16)[0]) == paths(to_table(rows, 16)[0])


def recorded_traces() -> dict[str, Path]:
    """One scenario of each recorded workload that came from a trace."""
    folder = find_golden_dir()
    if folder is None:
        return {}
    track = folder / "scheduling"
    entries = json.loads((track / "index.json").read_text())["scenarios"]
    return {
        entry["workload"]: track / entry["config_file"]
        for entry in entries
        if entry["workload_spec"].startswith("traces")
    }


@pytest.mark.golden
@pytest.mark.parametrize("workload", recorded_traces())
def test_a_recorded_trace_gives_the_recorded_requests(workload):
    scenario = recorded_traces()[workload]
    words = json.loads(scenario.read_text())["cli_args"]
    path = scenario.parents[1] / words[words.index("--workload-traces-filepath") + 1]
    if not path.is_file():
        pytest.skip(f"the reference results here lack {path.name}")
    ours, _ = to_table(read_trace(path).rows, block_size=16)
    theirs, _ = load_table(scenario.parents[1] / "workloads" / f"{workload}.npz")
    for field in dataclasses.fields(theirs):
        if field.name not in ("session", "client", "tenant"):
            np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name))
