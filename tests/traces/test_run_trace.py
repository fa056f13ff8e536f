"""`python -m blis_jax.run --trace`: runs, refusals, the run as a trace."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from blis_jax import run
from blis_jax.traces.read import TraceOptions, read_trace
from blis_jax.traces.write import write_trace
from tests.support.recorded.reference_data import REPO_ROOT
from tests.traces.formats.test_trace_v3 import HEADER, line

EXAMPLES = REPO_ROOT / "examples" / "traces"
BASE = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "2"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def results(capsys, *arguments):
    assert run.main([*BASE, "--results-path", "results.json", "--overwrite", *arguments]) == 0
    capsys.readouterr()
    with open("results.json") as file:
        return json.load(file)


@pytest.mark.lenient_promotion
def test_a_run_can_be_written_as_a_trace_and_simulated_again(capsys):
    path = str(EXAMPLES / "trace_v2.csv")
    document = results(
        capsys, "--trace", path, "--trace-output", "run.csv", "--trace-format=trace-v2"
    )
    assert document["provenance"]["workload"] == path
    assert document["provenance"]["trace_options"] == {"trace_format": "trace-v2", "seed": 42}
    first = document["requests"][0]
    assert first["requestID"] == "request_0"
    assert first["slo_class"] == "critical"
    assert first["tenant_id"] == "acme"
    assert first["num_prefill_tokens"] == 250
    written = pandas.read_csv("run.csv")
    assert written.first_chunk_time_us[0] == round(first["ttft_ms"] * 1000)
    assert written.last_chunk_time_us[0] == round(first["e2e_ms"] * 1000)
    assert written.status.tolist() == ["ok"] * 6
    again = results(capsys, "--trace", "run.csv")
    assert again["requests"] == document["requests"]


@pytest.mark.lenient_promotion
def test_formats_with_the_same_contents_give_the_same_figures(capsys):
    rows = read_trace(EXAMPLES / "mooncake.jsonl").rows
    documents = []
    for name in ("mooncake", "plain", "blis-csv"):
        write_trace(rows, path := Path(f"trace.{name}"), name)
        documents.append(results(capsys, "--trace", str(path)))
    requests = [document["requests"] for document in documents]
    assert requests[0] == requests[1] == requests[2]
    assert len(requests[0]) == 8


@pytest.mark.lenient_promotion
def test_a_drawn_workload_becomes_a_trace(capsys):
    arguments = ["--workload-spec", "lowload", "--num-requests", "6", "--trace-output", "run.csv"]
    document = results(capsys, *arguments)
    trace = read_trace("run.csv", TraceOptions(strict=True))
    assert trace.report.notes == []
    assert trace.rows.input_len.tolist() == [
        request["num_prefill_tokens"] for request in document["requests"]
    ]
    np.testing.assert_array_equal(
        trace.rows.arrival_us / 1e6, [request["arrived_at"] for request in document["requests"]]
    )
    assert all(trace.rows.client_names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trace", "t.csv", "--workload-spec", "mixed"], "--trace and --workload-spec are both"),
        (["--trace", "t.csv", "--requests", "r.npz"], "--trace and --requests are both given"),
        (["--workload-spec", "mixed", "--limit", "3"], "--limit has no meaning without --trace"),
        (["--workload-spec", "mixed", "--strict"], "--strict has no meaning without --trace"),
        (["--trace", "none.csv"], "none.csv does not exist"),
        (["--trace", "odd.csv"], "the format of odd.csv is not recognised"),
        (["--trace", "t.csv", "--trace-format", "csv"], "--trace-format: 'csv' is not known"),
        (["--trace", "t.csv", "--trace-output", "t.csv/run.csv"], "t.csv is not a folder"),
        (["--trace", "bad.csv", "--strict"], "has 1 malformed row, the first at line 3"),
        (["--trace", "t.csv", "--slo-mix", "gold:1"], "--slo-mix: class 'gold'"),
        (["--trace", "t.csv", "--prefix-model", "all"], "--prefix-model 'all' is not one of"),
        (["--trace", "t.csv", "--time-scale", "0"], "--time-scale must be a number above 0"),
        (["--trace", "t.csv", "--limit", "0"], "--limit must be at least 1"),
        (["--trace", "t.csv", "--horizon", "0"], "--horizon must be at least 1"),
    ],
)
def test_bad_input_ends_in_one_sentence(tmp_path, capsys, arguments, words):
    good = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n"
    (tmp_path / "t.csv").write_text(good)
    (tmp_path / "bad.csv").write_text(good + "x,1,1\n")
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    before = sorted(tmp_path.iterdir())
    assert run.main([*BASE, "--results-path", "results.json", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.lenient_promotion
def test_the_references_option_names_read_its_csv(capsys):
    path = str(EXAMPLES / "blis.csv")
    document = results(capsys, "--workload", "traces", "--workload-traces-filepath", path)
    exact = ("--corrected", "false")
    again = results(capsys, "--trace", path, "--trace-format", "blis-csv", *exact)
    assert document["requests"] == again["requests"]
    assert document["provenance"] == again["provenance"]


def test_requests_of_a_trace_are_given_up_at_their_deadlines(capsys):
    """BLIS: 8 of 8 timed out, the last at 108 ms; the instances end 6.638 ms later."""
    rows = [line(row, 1000 * row, deadline_us=str(1000 * row + 100_000)) for row in range(1, 9)]
    Path("late.csv").write_text(HEADER + "".join(rows))
    document = results(capsys, "--trace", "late.csv", "--profile", "blis-2026-08")
    assert document["timed_out_requests"] == 8 and document["completed_requests"] == 0
    assert document["vllm_estimated_duration_s"] == 0.114638
    assert run.main([*BASE, "--trace", "late.csv", "--corrected", "false"]) == 0
    assert "the deadlines of late.csv have no effect" in capsys.readouterr().err


@pytest.mark.parametrize("length", [131_072 - 20, 131_072 - 19])
def test_requests_beyond_the_context_of_the_model_are_told(tmp_path, capsys, length):
    text = f"arrived_at,num_prefill_tokens,num_decode_tokens\n0,{length},20\n1,100,20\n"
    (tmp_path / "t.csv").write_text(text)
    model = ["--model", "meta-llama/llama-3.1-8b-instruct", "--total-kv-blocks", "20000"]
    assert run.main([*model, "--trace", str(tmp_path / "t.csv")]) == 0
    told = "1 of 2 requests have more tokens, prompt and output together, than the 131,072"
    assert (told in capsys.readouterr().err) == (length + 20 > 131_072)


def test_a_trace_stands_for_real_servers(capsys):
    """BLIS of February counts the last gap of an answer twice; a trace is run so only where its profile is named."""
    Path("t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,3\n")
    one_step = {}
    for name, chosen in {
        "": [],
        "corrected": ["--corrected", "true"],
        "exact": ["--corrected", "false"],
    }.items():
        (request,) = results(capsys, "--trace", "t.csv", *chosen)["requests"]
        one_step[name] = request["e2e_ms"] - request["ttft_ms"]
    assert one_step[""] == one_step["corrected"]
    assert one_step["exact"] == pytest.approx(1.5 * one_step[""], rel=0.01)  # three gaps for two
    assert run.main([*BASE, "--trace", "t.csv", "--profile", "blis-2026-02", "--overwrite"]) == 0
    said = capsys.readouterr().err
    assert "TPOT is 50 % too long" in said and "with defects" in said
