"""Measured steps as tables, as Dynamo writes them and as vLLM logs them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.measured.steps import MeasuredEngine, holds_steps, read_steps

HEAD = (
    "phase,workload_segment,counter_id,worker_id,dp_rank,sum_prefill_tokens,num_prefill_requests,sum_prefill_kv_tokens,"
    "var_prefill_length,num_decode_requests,sum_decode_kv_tokens,var_decode_kv_tokens,queued_prefill_requests,"
    "queued_prefill_tokens,queued_var_prefill_length,queued_decode_requests,queued_decode_kv_tokens,"
    "queued_var_decode_kv_tokens,latency_ms"
)
DYNAMO = f"""{HEAD}
context,sweep,7,w0,0,128,1,0,0.0,0,0,0.0,0,0,0.0,0,0,0.0,21.5
decode,sweep,8,w0,0,0,0,0,0.0,2,3000,2500.0,0,0,0.0,0,0,0.0,9.25
mixed,real,4,w0,1,64,2,10,0.0,1,500,0.0,0,0,0.0,0,0,0.0,12.0
idle,real,5,w0,1,0,0,0,0.0,0,0,0.0,0,0,0.0,0,0,0.0,1.0
"""
TIME = "iteration elapsed time:"
FIVE, SEVEN = (f"{n} generation requests, {n} generation tokens" for n in (5, 7))
ENGINE = "INFO 06-01 [core.py:1] Iteration"
LOG = f"""\
(EngineCore_DP0 pid=9) {ENGINE}(3): 2 context requests, 700 context tokens, {FIVE}, {TIME} 31.25 ms
(APIServer pid=8) INFO something else
(EngineCore_DP1 pid=9) {ENGINE}(4): 0 context requests, 0 context tokens, {SEVEN}, {TIME} 8.50 ms, KV usage: 3%
"""


def metadata(tp: int, dp: int, model: str = "made/up", experts: bool = False) -> dict:
    return {
        "effective_config": {"parallel_config.tensor_parallel_size": tp, "parallel_config.data_parallel_size": dp},
        "requested": {
            "deployment_config": {"model": model},
            "engine_args": ["--model", model, *["--enable-expert-parallel"] * experts],
        },
    }  # fmt: skip


def test_dynamo_writes_a_file_and_its_metadata_beside(tmp_path: Path):
    for name, tp, dp in (("one", 1, 1), ("two", 2, 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fpm_metrics_detail.csv").write_text(DYNAMO)
        text = json.dumps(metadata(tp, dp, experts=dp > 1))
        (tmp_path / name / "vllm_metadata.json").write_text(text)
    assert holds_steps(tmp_path) and holds_steps(tmp_path / "one" / "fpm_metrics_detail.csv")
    found = read_steps(tmp_path)
    assert [one.run for one in found.runs] == ["one", "two"]
    assert [one.engine for one in found.runs] == [
        MeasuredEngine("made/up"),
        MeasuredEngine("made/up", 2, 4, 8),
    ]
    steps = found.runs[1]
    assert len(steps) == 3 and steps.rows.tolist() == [4, 5, 6]
    assert steps.phase.tolist() == [1, 0, 2]
    assert steps.number.tolist() == [7, 8, 4] and steps.sequence.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(steps.sums.spread, [0, 50, 0])
    np.testing.assert_array_equal(steps.ms, [21.5, 9.25, 12.0])
    assert found.notes == (
        "2 rows have no request in the batch, or no time; they are not looked at",
    )
    (steps,) = read_steps(tmp_path / "two" / "fpm_metrics_detail.csv", {"tp": 8}).runs
    assert steps.engine == MeasuredEngine("made/up", 8, 4, 8)


def test_vllm_logs_its_iterations(tmp_path: Path):
    path = tmp_path / "server.log"
    path.write_text(LOG)
    assert holds_steps(path)
    found = read_steps(path, {"model": "made/up", "tp": 2})
    (steps,) = found.runs
    assert steps.run == "server" and steps.engine == MeasuredEngine("made/up", 2)
    assert steps.sums.prompt_tokens.tolist() == [700, 0] and steps.sums.decodes.tolist() == [5, 7]
    assert steps.number.tolist() == [3, 4] and steps.sequence.tolist() == [0, 1]
    assert steps.ms.tolist() == [31.25, 8.5]
    assert any("how long contexts are" in note for note in found.notes)


def test_a_table_needs_three_columns(tmp_path: Path):
    path = tmp_path / "steps.csv"
    path.write_text("latency_ms,sum_prefill_tokens,num_decode_requests\n5,0,3\n20,100,0\n")
    (steps,) = read_steps(path).runs
    assert steps.sums.prompts.tolist() == [0, 1] and steps.engine == MeasuredEngine("")
    assert str(steps.engine) == "unnamed model, TP 1"


def test_requests_are_no_steps(tmp_path: Path):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_us,input_tokens,output_tokens,ttft_ms,e2e_ms\n0,1,2,3,4\n")
    assert (
        not holds_steps(path)
        and not holds_steps(tmp_path)
        and not holds_steps(tmp_path / "none.csv")
    )


@pytest.mark.parametrize("missing", ["latency_ms", "num_decode_requests", "sum_prefill_tokens"])
def test_a_file_of_steps_is_known_where_a_column_is_missing(tmp_path: Path, missing: str):
    """So it is told which one, and not taken for requests."""
    path = tmp_path / "steps.csv"
    columns = ["latency_ms", "sum_prefill_tokens", "num_decode_requests", "step"]
    path.write_text(",".join(one for one in columns if one != missing) + "\n5,3,1\n")
    assert holds_steps(path)
    with pytest.raises(ConfigError, match=f"has no column {missing}; needed are latency_ms"):
        read_steps(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "latency_ms,sum_prefill_tokens\n5,0\n",
            "has no column num_decode_requests; needed are latency_ms",
        ),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests\n5,-1,3\n",
            "row 1: sum_prefill_tokens is -1; give a number",
        ),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests\n5,0,3\nx,0,3\n",
            "row 2: latency_ms is x; give a number of at least 0",
        ),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests\n5,0,3\n,0,3\n",
            "row 2: latency_ms is empty; give a number of at least 0",
        ),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests\n5,0,2.5\n",
            "row 1: num_decode_requests is 2.5; give a whole number",
        ),
        (
            "latency_ms,sum_prefill_tokens,decode_requests\n5,0,2\n",
            "no column num_decode_requests; needed are .*; did you mean 'decode_requests'",
        ),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests,step,run\n5,0,2,1,a\n5,0,2,1,b\n5,0,2,x,b\n",
            "row 3: step is x; give a number",
        ),
        ("latency_ms,sum_prefill_tokens,num_decode_requests\n", "has no steps"),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests,tp\n5,0,3,two\n",
            "must be whole numbers",
        ),
        ("latency_ms,sum_prefill_tokens,num_decode_requests,tp\n5,0,3,0\n", "must be at least 1"),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests,tp\n5,0,3,1\n5,0,3,2\n",
            "2 different sets",
        ),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests\n0.008,0,3\n0.02,100,0\n",
            "if these are seconds: multiply them by 1000",
        ),
        (
            "latency_ms,sum_prefill_tokens,num_decode_requests\n8400,0,3\n9000,0,3\n",
            "if these are µs: divide them by 1000",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, words: str):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_steps(path)


def test_metadata_that_does_not_say_the_engine_is_refused(tmp_path: Path):
    (tmp_path / "fpm_metrics_detail.csv").write_text(DYNAMO)
    (tmp_path / "vllm_metadata.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not state the engine"):
        read_steps(tmp_path)
    (tmp_path / "a.parquet").write_text("none")
    with pytest.raises(ConfigError, match="is not a Parquet file"):
        read_steps(tmp_path / "a.parquet")


def test_steps_go_by_their_numbers_where_the_file_has_them_in_another_order(tmp_path: Path):
    path = tmp_path / "steps.csv"
    path.write_text(
        "step,latency_ms,sum_prefill_tokens,num_decode_requests\n3,7,0,3\n1,5,0,1\n2,6,0,2\n"
    )
    file = read_steps(path)
    assert file.runs[0].ms.tolist() == [5, 6, 7] and file.runs[0].rows.tolist() == [1, 2, 0]
    assert file.notes[:-1] == ()


def test_two_deployments_under_one_name_are_noted(tmp_path: Path):
    path = tmp_path / "steps.csv"
    rows = "".join(f"{step},5,0,1\n" for step in (1, 2, 3, 1, 2, 3))
    path.write_text("step,latency_ms,sum_prefill_tokens,num_decode_requests\n" + rows)
    assert "run steps has numbers of steps more than once" in read_steps(path).notes[0]


def test_parquet_without_pyarrow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "steps.parquet"
    path.write_bytes(b"PAR1")
    for name in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"needs pyarrow; install blis-jax\[parquet\]"):
        read_steps(path)
