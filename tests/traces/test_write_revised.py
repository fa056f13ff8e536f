"""Workloads and runs as TraceV2 of August 2026: the bytes of BLIS's own exporter."""

import numpy as np
import pandas
import pytest

from blis_jax.errors import ConfigError
from blis_jax.records.record import Status
from blis_jax.traces.formats import trace_v3
from blis_jax.traces.formats.trace_v3 import RevisedHeader
from blis_jax.traces.read import read_trace
from blis_jax.traces.write import write_drawn, write_replayed
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import load_spec
from tests.support.recorded.revised_data import FOLDER
from tests.support.tiny_records import run_of
from tests.traces.formats.test_trace_v3 import HEADER, line

TRACES = FOLDER / "traces"


@pytest.fixture(scope="module")
def workload():
    return drawn(load_spec(TRACES / "mixed_spec.yaml", REVISED))


def record_of(status, ttft_us, itl_us, token_step_idx):
    columns = {"status": status, "ttft_us": ttft_us, "token_step_idx": token_step_idx}
    return run_of({"arrival_us": np.arange(len(status)), "itl_us": itl_us, **columns})


def test_a_workload_is_written_as_blis_exports_it(tmp_path, workload):
    write_drawn(tmp_path / "mixed.csv", workload, header=RevisedHeader(workload_seed=11))
    for name in ("mixed.csv", "mixed.yaml"):
        assert (tmp_path / name).read_bytes() == (TRACES / name).read_bytes()


def test_what_is_written_is_read(workload):
    trace = read_trace(TRACES / "mixed.csv")
    assert trace.format == "trace-v3" and not trace.report.num_bad
    is_session = np.array([bool(one.session) for one in workload.requests])
    lengths = np.array([one.input_len for one in workload.requests])
    shared = np.array([one.prefix_len for one in workload.requests])
    # BLIS names no group in rows of sessions, so its replay loses their prefix
    assert trace.rows.input_len.tolist() == np.where(is_session, lengths - shared, lengths).tolist()
    assert trace.rows.prefix_len.tolist() == np.where(is_session, 0, shared).tolist()
    deadlines = [one.deadline_us and one.deadline_us - one.arrival_us for one in workload.requests]
    assert trace.rows.timeout_us.tolist() == deadlines
    assert trace.rows.session_names


def test_a_run_adds_times_and_what_became_of_each_request(tmp_path, workload):
    first = workload.requests[:4]
    record = record_of(
        [Status.COMPLETED, Status.TIMED_OUT, Status.WAITING, Status.RUNNING],
        [100, 300, 200, 50],
        [770, 40, 0, 6],
        [3, 4, -1, 9],  # the third was preempted and has no first token at present
    )
    path = tmp_path / "run.csv"
    write_drawn(path, workload, requests=first, record=record)
    written = pandas.read_csv(path, keep_default_na=False)
    assert written.status.tolist() == ["ok", "timeout", "incomplete", "incomplete"]
    assert written.first_chunk_time_us.tolist() == [100, 301, 0, 53]
    assert written.last_chunk_time_us.tolist() == [870, 341, 0, 59]
    assert trace_v3.read_header(tmp_path / "run.yaml").trace_version == 3


def test_a_record_of_other_requests_is_refused(tmp_path, workload):
    record = record_of([0], [1], [2], [3])
    with pytest.raises(ConfigError, match="record: has 1 requests, but 24 are to be written"):
        write_drawn(tmp_path / "run.csv", workload, record=record)


def test_a_replay_hands_on_the_prefix_that_a_row_says(tmp_path):
    """BLIS takes the row's own number off the prompt, also where no group has it."""
    given = [("", 48, 60), ("g", 16, 10), ("g", 0, 10), ("", 70, 60)]  # group, prefix, input
    text = HEADER + "".join(
        line(at, 1000 * at, prefix_group=group, prefix_length=str(prefix), input_tokens=str(tokens))
        for at, (group, prefix, tokens) in enumerate(given)
    )
    (tmp_path / "t.csv").write_text(text)
    rows = read_trace(tmp_path / "t.csv").rows
    assert rows.input_len.tolist() == [60, 26, 26, 60]
    record = record_of([Status.WAITING] * 4, [0] * 4, [0] * 4, [-1] * 4)
    write_replayed(tmp_path / "x.csv", record, rows)
    written = pandas.read_csv(tmp_path / "x.csv")
    assert written["prefix_length"].tolist() == [48, 16, 0, 0]
    assert written["input_tokens"].tolist() == [12, 10, 26, 60]
