"""Runs as TraceV2: times, status of what did not complete, contents that are lost."""

from types import SimpleNamespace

import numpy as np
import pandas

from blis_jax.records.record import Status
from blis_jax.traces.read import read_trace
from blis_jax.traces.write import from_table, write_run
from blis_jax.workload.table import WorkloadNames, from_golden
from tests.traces.formats.test_mooncake import lines_of
from tests.traces.scenes import read_text
from tests.workload.test_table import golden_arrays


def record_of(statuses):
    """The columns of a run that a written trace needs."""
    count = len(statuses)
    return SimpleNamespace(
        requests=SimpleNamespace(
            status=np.array(statuses),
            arrival_us=np.arange(count),
            made_len=np.full(count, 7),
            ttft_us=np.full(count, 100),
            e2e_us=np.full(count, 900),
        )
    )


def test_only_completed_requests_have_chunks(tmp_path):
    text = lines_of(*((number / 1000, 30, 7, []) for number in range(len(Status))))
    rows = read_text(tmp_path, text).rows
    assert write_run(tmp_path / "run.csv", record_of(list(Status)), rows) == ""
    written = pandas.read_csv(tmp_path / "run.csv", keep_default_na=False)
    at_gateway = ["error", "error", "timeout", "error", "timeout", "timeout", "error"]
    assert written.status[:7].tolist() == ["ok", *["error"] * 2, *["timeout"] * 3, "error"]
    assert written.status[7:].tolist() == at_gateway
    nothing = [0] * (len(Status) - 1)
    assert written.num_chunks.tolist() == [7, *nothing]
    assert written.first_chunk_time_us.tolist() == [100, *nothing]
    assert written.last_chunk_time_us.tolist() == [900, *nothing]
    assert written.error_message[1] == "rejected by admission"
    assert len(read_trace(tmp_path / "run.csv").rows) == len(Status)


def test_contents_that_the_format_cannot_hold_are_remarked_on(tmp_path):
    rows = read_text(tmp_path, lines_of((0, 600, 7, [1, 2]), (1, 600, 7, [1, 3]))).rows
    remark = write_run(tmp_path / "run.csv", record_of([Status.COMPLETED] * 2), rows)
    assert "cannot say which contents prompts share" in remark
    again = read_trace(tmp_path / "run.csv").rows
    assert again.input_len.tolist() == [600, 600]
    assert again.segments is None


def test_the_rows_of_a_table_have_names():
    table = from_golden(golden_arrays([([1, 2], [3]), ([4], [])]))
    rows = from_table(table, WorkloadNames(("t",), ()))
    assert rows.tenant_names == ("t",)
    assert rows.client_names == ("client_0",)
    assert rows.session_names == ()
    assert rows.input_len.tolist() == [2, 1]
    assert from_table(table, WorkloadNames(), ("chat",)).client_names == ("chat",)
