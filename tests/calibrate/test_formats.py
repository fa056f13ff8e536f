"""Result files of benchmark clients: the same 24 made-up requests in every format of `tests/data/benchmark_results`.

`requests.csv` is the truth. Every file with requests has one more that failed.
"""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from blis_jax.calibrate.__main__ import CalibrateOptions, main
from blis_jax.calibrate.measured_run import MeasuredRun, Summary
from blis_jax.calibrate.recorded import CLIENTS, FORMATS, read_measured, read_result
from blis_jax.calibrate.validation import figures
from blis_jax.errors import ConfigError
from tests.support.recorded.reference_data import REPO_ROOT

FILES = REPO_ROOT / "tests" / "data" / "benchmark_results"
WITH_REQUESTS = {
    "vllm_serve_detailed.json": None,
    "guidellm.json": 1,
    "inference_perf_requests_0_4.json": None,
    "inference_perf_requests_0_5.json": None,
    "inference_perf_requests_0_6.json": None,
    "aiperf_records.jsonl": None,
    "observe.csv": None,
    "observe.yaml": None,
}
FIGURES_ONLY = ("vllm_serve.json", "inference_perf_summary.json", "aiperf_summary.json")


@pytest.fixture(scope="module")
def truth() -> MeasuredRun:
    return read_measured(FILES / "requests.csv")


@pytest.mark.parametrize(("name", "stage"), WITH_REQUESTS.items())
def test_every_format_gives_the_same_requests(name: str, stage: int | None, truth: MeasuredRun):
    run = read_measured(FILES / name, stage=stage)
    np.testing.assert_allclose(run.rows.arrival_us, truth.rows.arrival_us, atol=200)
    np.testing.assert_array_equal(run.rows.input_len, truth.rows.input_len)
    np.testing.assert_array_equal(run.rows.output_len, truth.rows.output_len)
    np.testing.assert_allclose(run.ttft_us, truth.ttft_us, atol=200)
    np.testing.assert_allclose(run.e2e_us, truth.e2e_us, atol=200)
    assert any("1 of 25 requests have" in note for note in run.notes)


@pytest.mark.parametrize("name", FIGURES_ONLY)
def test_figures_are_those_of_the_requests(name: str, truth: MeasuredRun):
    found = read_result(FILES / name)
    assert isinstance(found, Summary)
    expected = figures(truth.ttft_us, truth.e2e_us, truth.rows.output_len)
    assert {("ttft_ms", "mean"), ("ttft_ms", "p99"), ("tpot_ms", "p50")} <= set(found.figures)
    for key, value in found.figures.items():
        assert value == pytest.approx(expected[key], rel=2e-3), key
    load = found.load
    assert (load.num_requests, load.rate_per_s) == (24, 10.0)
    assert load.input_tokens == pytest.approx(truth.rows.input_len.mean(), rel=1e-6)
    assert load.output_tokens == pytest.approx(truth.rows.output_len.mean(), rel=1e-6)


def test_what_a_file_says_of_the_server(truth: MeasuredRun):
    for name in ("vllm_serve_detailed.json", "guidellm.json", "observe.csv"):
        run = read_measured(FILES / name, stage=WITH_REQUESTS[name])
        assert run.settings.model == "example/made-up-8b"
    assert any("2 ms are taken off" in note for note in read_measured(FILES / "observe.csv").notes)


def test_a_folder_of_a_client_is_read_by_its_requests(tmp_path: Path):
    for name, place in (
        ("aiperf_summary.json", "profile_export_aiperf.json"),
        ("aiperf_records.jsonl", "profile_export.jsonl"),
    ):
        (tmp_path / place).write_text((FILES / name).read_text())
        assert isinstance(read_result(tmp_path), MeasuredRun) == place.endswith("jsonl")


def test_a_file_with_several_runs_lets_choose():
    with pytest.raises(
        ConfigError, match=r"2 runs; choose .* \(0: synchronous; 1: poisson at 10/s"
    ):
        read_result(FILES / "guidellm.json")
    with pytest.raises(ConfigError, match="--stage: got 2, allowed is 0 to 1"):
        read_result(FILES / "guidellm.json", stage=2)
    with pytest.raises(ConfigError, match="has one run"):
        read_result(FILES / "requests.csv", stage=1)


def test_appended_results_are_one_a_line(tmp_path: Path):
    text = (FILES / "vllm_serve_detailed.json").read_text()
    (tmp_path / "both.json").write_text(text + (FILES / "vllm_serve.json").read_text())
    first, second = (read_result(tmp_path / "both.json", stage=stage) for stage in (0, 1))
    assert isinstance(first, MeasuredRun) and isinstance(second, Summary)


def test_results_are_known_however_they_are_indented(tmp_path: Path):
    document = json.loads((FILES / "vllm_serve.json").read_text())
    (tmp_path / "serve.json").write_text(json.dumps(document, indent=2))
    assert isinstance(read_result(tmp_path / "serve.json"), Summary)


def changed(tmp_path: Path, name: str, **changes: object) -> Path:
    """A file with other values at its top level; None takes a key away."""
    document = {**json.loads((FILES / name).read_text()), **changes}
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({key: v for key, v in document.items() if v is not None}))
    return path


def test_without_start_times_arrivals_are_unknown(tmp_path: Path):
    found = read_result(changed(tmp_path, "vllm_serve_detailed.json", start_times=None))
    assert isinstance(found, Summary) and "no start_times, so arrivals are unknown" in found.lacking


def test_a_closed_loop_is_said(tmp_path: Path):
    run = read_measured(changed(tmp_path, "vllm_serve_detailed.json", max_concurrency=8))
    assert any("waited for answers" in note and "at most 8 open" in note for note in run.notes)


def test_latencies_go_before_the_sum_of_gaps(tmp_path: Path):
    path = changed(tmp_path, "vllm_serve_detailed.json", latencies=[9.0] * 25)
    assert read_measured(path).e2e_us == pytest.approx(9e6)


def test_prompts_from_the_prefix_cache_are_said(tmp_path: Path):
    document = json.loads((FILES / "guidellm.json").read_text())
    for request in document["benchmarks"][1]["requests"]["successful"]:
        request["input_metrics"]["cached_tokens"] = request["prompt_tokens"] // 2
    (tmp_path / "cached.json").write_text(json.dumps(document))
    notes = read_measured(tmp_path / "cached.json", stage=1).notes
    assert any("50 % of the prompt tokens in its prefix cache" in note for note in notes)


def test_requests_before_the_measurement_only_arrive(tmp_path: Path):
    text = (FILES / "aiperf_records.jsonl").read_text().replace("profiling", "warmup", 2)
    (tmp_path / "warm.jsonl").write_text(text)
    run = read_measured(tmp_path / "warm.jsonl")
    assert len(run) == 24 and np.isnan(run.ttft_us).tolist() == [True] * 2 + [False] * 22
    header = (FILES / "observe.yaml").read_text().replace("requests: 0", "requests: 3")
    (tmp_path / "observe.yaml").write_text(header)
    (tmp_path / "observe.csv").write_text((FILES / "observe.csv").read_text())
    run = read_measured(tmp_path / "observe.csv")
    assert len(run) == 24 and np.isnan(run.ttft_us).sum() == 3


BAD = {
    "nothing streamed": ({"ttfts": [0.0] * 25}, "the client did not stream"),
    "all failed": ({"errors": ["no"] * 25}, "no request that was answered"),
    "other lengths": ({"ttfts": [0.1]}, "different numbers of requests"),
    "a word": ({"ttfts": ["fast"] * 25}, "request 0: ttfts is 'fast'"),
    "a negative TTFT of one": ({"ttfts": [-1.0] + [0.1] * 24}, None),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_results_end_in_a_sentence(case: str, tmp_path: Path):
    changes, words = BAD[case]
    path = changed(tmp_path, "vllm_serve_detailed.json", **changes)
    if words is None:
        assert np.isnan(read_measured(path).ttft_us[0])
        return
    with pytest.raises(ConfigError, match=words):
        read_measured(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}', "has no measured latencies that are known here"),
        ("[]", "has no measured latencies that are known here"),
        ("{", "line 1: Expecting property name"),
        ("", "its first line is ''"),
        ('{"benchmarks": [{"requests": {"successful": 3}}]}', "no requests.successful"),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_result(tmp_path / "other.json")


def test_a_wrong_format_is_refused():
    with pytest.raises(ConfigError, match="is no file of aiperf"):
        read_result(FILES / "vllm_serve.json", "aiperf")


def test_the_option_knows_every_format():
    (names,) = (field for field in fields(CalibrateOptions) if field.name == "format")
    assert set(FORMATS) == {*names.metadata["declared"].read.choices}
    assert set(CLIENTS) < set(FORMATS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vllm_serve.json"], "measure again with --save-detailed; to hold a simulation"),
        (["vllm_serve.json"], "--rate 10 --num-requests 24 --prompt-tokens"),
        (["aiperf_summary.json", "--coefficients-from", "x.json"], "give profile_export.jsonl"),
        (["guidellm.json", "--predicted", "x.json", "--stage", "1"], "x.json does not exist"),
        (["guidellm.json", "--predicted", "x.json", "--starts", "2"], "--starts has no meaning"),
        (["observe.csv", "--predicted", "requests.csv"], "is not JSON"),
        (["observe.csv", "--predicted", "vllm_serve.json"], "has no simulated requests"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments: list[str], words: str, capsys, monkeypatch):
    monkeypatch.chdir(FILES)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_a_simulation_is_held_against_figures(tmp_path: Path, capsys, truth: MeasuredRun):
    """The simulated run is the truth with all times doubled, so every error is +100 %."""
    requests = [
        {"ttft_ms": ttft / 500, "e2e_ms": e2e / 500, "num_decode_tokens": int(count)}
        for ttft, e2e, count in zip(truth.ttft_us, truth.e2e_us, truth.rows.output_len, strict=True)
    ]
    requests.append({"ttft_ms": 0.0, "e2e_ms": 0.0, "num_decode_tokens": 5})
    (tmp_path / "run.json").write_text(json.dumps({"requests": requests}))
    output = tmp_path / "errors.json"
    for name in FIGURES_ONLY:
        command = [str(FILES / name), "--predicted", str(tmp_path / "run.json")]
        assert main([*command, "--output", str(output), "--overwrite"]) == 0
        printed = capsys.readouterr()
        assert "+100.0%" in printed.out and "1 simulated requests have no end" in printed.err
        rows = json.loads(output.read_text())["errors"]
        assert [row["error"] for row in rows] == pytest.approx([1.0] * len(rows), abs=4e-3)
    assert len(rows) == 12


def test_a_tpot_that_counts_chunks_is_said(tmp_path: Path, capsys):
    """Half of the true value, as of a client that gets two tokens in a chunk."""
    requests = [{"ttft_ms": 30.0, "e2e_ms": 900.0, "num_decode_tokens": 60}]
    (tmp_path / "run.json").write_text(json.dumps({"requests": requests}))
    document = json.loads((FILES / "inference_perf_summary.json").read_text())
    for factor, is_said in ((1.0, False), (0.5, True)):
        document["successes"]["latency"]["time_per_output_token"]["mean"] *= factor
        (tmp_path / "report.json").write_text(json.dumps(document))
        command = [str(tmp_path / "report.json"), "--predicted", str(tmp_path / "run.json")]
        assert main(command) == 0
        assert ("may count chunks in place of tokens" in capsys.readouterr().err) == is_said
