"""Result files of benchmark clients: the same 24 made-up requests in every format of `tests/data/benchmark_results`.

`requests.csv` is the truth. Every file with requests has one more that failed.
"""

import bz2
import contextlib
import gzip
import json
import lzma
import math
from collections.abc import Iterator
from dataclasses import fields
from functools import reduce
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import yaml

from blis_jax.calibrate.__main__ import CalibrateOptions, main
from blis_jax.calibrate.report import how_to_predict
from blis_jax.calibrate.validation import figures
from blis_jax.errors import ConfigError
from blis_jax.traces.measured.recorded import CLIENTS, FORMATS, read_measured, read_result
from blis_jax.traces.measured.run import MeasuredRun
from blis_jax.traces.measured.sent import Load, Summary
from blis_jax.traces.read import read_trace
from blis_jax.workload.distribution import GaussianLengths
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
    assert "2 requests of the warm-up arrive, but are not measured" in run.notes
    assert len(run) == 24 and np.isnan(run.ttft_us).tolist() == [True] * 2 + [False] * 22
    header = (FILES / "observe.yaml").read_text().replace("requests: 0", "requests: 3")
    (tmp_path / "observe.yaml").write_text(header)
    (tmp_path / "observe.csv").write_text((FILES / "observe.csv").read_text())
    run = read_measured(tmp_path / "observe.csv")
    assert len(run) == 24 and np.isnan(run.ttft_us).sum() == 3


def test_a_run_whose_requests_all_failed_is_called_so(tmp_path: Path):
    failed = {"errors": ["no"] * 25, "ttfts": [0.0] * 25, "completed": 0, "failed": 25}
    for times in ([0.0] * 25, None):
        path = changed(tmp_path, "vllm_serve_detailed.json", **failed, start_times=times)
        with pytest.raises(ConfigError, match="all 25 requests have failed, so there is nothing"):
            read_result(path)


def test_all_at_once_needs_no_start_times(tmp_path: Path, truth: MeasuredRun):
    path = changed(tmp_path, "vllm_serve_detailed.json", start_times=None, request_rate="inf")
    run = read_measured(path)
    assert run.rows.arrival_us.tolist() == [0] * 24
    np.testing.assert_allclose(np.sort(run.ttft_us), np.sort(truth.ttft_us), atol=200)


def test_contradictory_rows_are_counted(tmp_path: Path):
    lines = (FILES / "aiperf_records.jsonl").read_text().splitlines()
    for place in (0, 4):
        record = json.loads(lines[place])
        record["metrics"]["request_latency"]["value"] = 1.0
        lines[place] = json.dumps(record)
    (tmp_path / "odd.jsonl").write_text("\n".join(lines))
    run = read_measured(tmp_path / "odd.jsonl")
    assert "2 requests have their first token after their last" in " ".join(run.notes)
    assert np.isnan(run.ttft_us).sum() == 2


def test_negative_latencies_are_told_from_a_client_that_does_not_stream(tmp_path: Path):
    """vllm-project/guidellm#216: a time since 1970 was taken off a time of 0."""
    ttfts = json.loads((FILES / "vllm_serve_detailed.json").read_text())["ttfts"]
    some = changed(tmp_path, "vllm_serve_detailed.json", ttfts=[-1.75e9, *ttfts[1:]])
    run = read_measured(some)
    assert "1 requests have a negative latency" in " ".join(run.notes)
    assert np.isnan(run.ttft_us).sum() == 1
    with pytest.raises(ConfigError, match="before they were sent, so their latencies are negative"):
        read_measured(
            changed(tmp_path, "vllm_serve_detailed.json", ttfts=[-each for each in ttfts])
        )


def test_latencies_longer_than_the_run_are_of_another_unit(tmp_path: Path):
    """SemiAnalysisAI/InferenceX#2405: seconds under the name of milliseconds."""
    name = "vllm_serve_detailed.json"
    ttfts = json.loads((FILES / name).read_text())["ttfts"]
    longer = changed(tmp_path, name, duration=10.0, ttfts=[1e3 * each for each in ttfts])
    assert "but the run lasted 10 s: its times of requests seem to be in another unit" in " ".join(
        read_measured(longer).notes
    )
    assert "lasted" not in " ".join(read_measured(FILES / name).notes)


def test_a_number_that_is_written_as_nan_is_none(tmp_path: Path):
    name = "vllm_serve_detailed.json"
    ttfts = json.loads((FILES / name).read_text())["ttfts"]
    run = read_measured(changed(tmp_path, name, ttfts=["NaN", *ttfts[1:]]))
    assert np.isnan(run.ttft_us).sum() == 1


def test_a_model_that_is_no_text_is_unknown(tmp_path: Path):
    path = changed(tmp_path, "vllm_serve_detailed.json", model_id=float("nan"))
    assert read_measured(path).settings.model is None


@pytest.mark.parametrize("share", [1, 3])
def test_far_fewer_gaps_than_tokens_are_noted(tmp_path: Path, share: int):
    document = json.loads((FILES / "vllm_serve_detailed.json").read_text())
    counts = [max(tokens - 1, 0) // share for tokens in document["output_lens"]]
    path = changed(tmp_path, "vllm_serve_detailed.json", itls=[[0.01] * n for n in counts])
    words = "chunks hold several tokens, or tokens (of reasoning) come before the first content"
    assert any(words in note for note in read_measured(path).notes) == (share > 1)


SGLANG = {
    "backend": "sglang", "request_rate": float("inf"), "max_concurrency": 16, "completed": 24,
    "total_input_tokens": 12000, "total_output_tokens": 1200, "request_throughput": 9.0,
    "mean_e2e_latency_ms": 700.0, "median_e2e_latency_ms": 690.0, "p99_e2e_latency_ms": 1500.0,
    "mean_ttft_ms": 0.0, "median_ttft_ms": 0.0, "p99_ttft_ms": 0.0, "mean_tpot_ms": 9.0,
}  # fmt: skip


def written(folder: Path, document: object) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_first_chunk_without_a_token_is_told(tmp_path: Path, is_empty: bool):
    """The client takes the chunk with the role for the first token, 1 ms after it has sent; the prompt takes 100."""
    result = json.loads((FILES / "vllm_serve_detailed.json").read_text())
    result["itls"] = [[0.01] * max(tokens - 1, 0) for tokens in result["output_lens"]]
    if is_empty:
        result["itls"] = [[0.1, *gaps] if gaps else [] for gaps in result["itls"]]
        result["ttfts"] = [0.001 if ttft else ttft for ttft in result["ttfts"]]
    (tmp_path / "vllm.json").write_text(json.dumps(result))
    notes = read_measured(tmp_path / "vllm.json").notes
    assert any("hold no token" in note for note in notes) == is_empty


def test_sglang_has_its_own_name_options_and_figures(tmp_path: Path):
    found = read_result(written(tmp_path, SGLANG))
    assert isinstance(found, Summary)
    assert found.tool == "SGLang's bench_serving"
    assert found.lacking == "it has no lists by request; measure again with --output-details"
    assert found.figures["e2e_ms", "mean"] == 700.0
    assert ("ttft_ms", "mean") not in found.figures  # 0 is no measurement
    command = how_to_predict(found.load)
    assert "--concurrency 16 --num-requests 24 --prompt-tokens 500 " in command
    assert "--output-tokens 50 --output-tokens-stdev 1 --output-tokens-min 1 " in command


def test_lists_of_sglang_at_once_can_be_fitted(tmp_path: Path):
    lists = {"input_lens": [100] * 30, "output_lens": [3] * 30, "ttfts": [0.1] * 30}
    lists |= {"itls": [[0.01, 0.01]] * 30, "errors": [""] * 30}
    at_once = {**SGLANG, **lists, "max_concurrency": None}
    run = read_measured(written(tmp_path, at_once))
    assert len(run) == 30 and run.e2e_us == pytest.approx(120e3)
    with pytest.raises(ConfigError, match=r"arrivals are unknown.*SGLang's server understands"):
        read_measured(written(tmp_path, {**at_once, "max_concurrency": 4}))


def test_no_rate_is_proposed_for_a_ramp(tmp_path: Path):
    """vllm bench serve --ramp-up-strategy states the rate inf; its requests came at other times."""
    ramp = {"request_rate": "inf", "ramp_up_strategy": "linear", "max_concurrency": None}
    figures = {"request_throughput": 5.0, "mean_ttft_ms": 20.0, "completed": 30}
    lists = {"input_lens": [100] * 30, "output_lens": [3] * 30, "ttfts": [0.1] * 30}
    lists |= {"itls": [[0.01, 0.01]] * 30, "errors": [""] * 30}
    found = read_result(written(tmp_path, {**ramp, **figures, **lists}))
    assert isinstance(found, Summary)
    assert "arrivals are unknown" in found.lacking and "--rate RPS" in how_to_predict(found.load)


def test_a_proposed_command_draws_the_means_that_were_sent():
    """The deviation of the lists, as far as a normal law with the mean can have it."""
    command = how_to_predict(Load(10, 2.0, 500.0, 66.0, 100.0, 300.0))
    assert "--rate 2 " in command
    assert "--prompt-tokens 500 --prompt-tokens-stdev 100" in command
    assert "--output-tokens 66 --output-tokens-stdev 26 --output-tokens-min 1" in command
    assert "--rate RPS" in how_to_predict(Load(10)) and "its file does not say" in how_to_predict(
        Load(10)
    )
    assert "process: poisson" in command
    assert "poisson" not in how_to_predict(Load(10, np.inf)) + how_to_predict(
        Load(10, max_open=4.0)
    )
    assert GaussianLengths(66, 26, 1, 7000).drawn_mean == pytest.approx(66, rel=0.01)


def test_guidellm_of_2025_is_read(tmp_path: Path, truth: MeasuredRun):
    """Version 0.3 has times of tokens in place of latencies, and its strategy in `args`."""
    document = json.loads((FILES / "guidellm.json").read_text())["benchmarks"][1]
    document["args"] = {"strategy": document.pop("config")["strategy"]}
    for request in document["requests"]["successful"]:
        start = request["start_time"] = request.pop("request_start_time")
        first = request["first_token_time"] = start + request.pop("time_to_first_token_ms") / 1e3
        gap = request.pop("inter_token_latency_ms") or 0.0
        request["last_token_time"] = first + gap * (request["output_tokens"] - 1) / 1e3
    run = read_measured(written(tmp_path, {"benchmarks": [document]}))
    np.testing.assert_allclose(run.ttft_us, truth.ttft_us, atol=200)
    np.testing.assert_allclose(run.e2e_us, truth.e2e_us, atol=200)


def test_genai_perf_has_times_but_no_lengths(tmp_path: Path):
    requests = [
        {
            "timestamp": 10**9 * n,
            "response_timestamps": [10**9 * n + 30_000_000, 10**9 * n + 90_000_000],
        }
        for n in range(4)
    ]
    document = {
        "experiments": [{"experiment": {"mode": "concurrency", "value": 2}, "requests": requests}]
    }
    found = read_result(written(tmp_path, document))
    assert isinstance(found, Summary)
    assert found.figures["ttft_ms", "p50"] == pytest.approx(30.0)
    assert found.figures["e2e_ms", "mean"] == pytest.approx(90.0)
    assert (found.load.num_requests, found.load.max_open) == (4, 2.0)
    assert "no lengths in tokens" in found.lacking


def statistic(unit: str, mean: float) -> dict[str, object]:
    return {"units": unit, "mean": mean, "p50": mean, "p99": 2 * mean, "stddev": mean / 4}


@pytest.mark.parametrize("version", ["0.1", "0.2", "0.2.1"])
def test_the_benchmark_report_of_llmd_is_read(tmp_path: Path, version: str):
    part = {
        "requests": {
            "total": 52, "failures": 2,
            "input_length": statistic("count", 400.0), "output_length": statistic("count", 80.0),
        },
        "latency": {
            "time_to_first_token": statistic("s", 0.05),
            "time_per_output_token": statistic("ms/token", 12.0),
            "inter_token_latency": statistic("s/token", 0.011),
            "request_latency": statistic("ms", 998.0),
        },
    }  # fmt: skip
    load = {"standardized": {"tool": "guidellm", "rate_qps": 5.0}}
    document = {"version": version, "scenario": {"load": load}}
    if version == "0.1":
        document["scenario"] = {"load": {"name": "inference-perf", "args": {"request_rate": 5.0}}}
        document["metrics"] = part
    else:
        document["results"] = {"request_performance": {"aggregate": part}}
    found = read_result(written(tmp_path, document))
    assert isinstance(found, Summary)
    assert found.tool.endswith(f"(llm-d Benchmark Report {version})")
    assert found.figures["ttft_ms", "p99"] == pytest.approx(100.0)
    # what GuideLLM calls TPOT is E2E divided by tokens
    assert found.figures["tpot_ms", "mean"] == pytest.approx(12.0 if version == "0.1" else 11.0)
    # and its gaps are weighed by tokens, so that their percentiles are not those of requests
    assert (("tpot_ms", "p99") in found.figures) == (version == "0.1")
    assert found.load == Load(50, 5.0, 400.0, 80.0, 100.0, 20.0, found.load.max_open)
    assert found.remarks == ["2 of 52 requests have failed: the figures are of the others"]
    part.pop("latency")
    part["requests"]["failures"] = 52
    with pytest.raises(ConfigError, match="all 52 requests have failed"):
        read_result(written(tmp_path, document))
    with pytest.raises(ConfigError, match=r"version '0\.9' is not known"):
        read_result(written(tmp_path, document | {"version": "0.9"}))


def test_latencies_may_be_separated_by_semicolons(tmp_path: Path, truth: MeasuredRun):
    text = (FILES / "requests.csv").read_text().replace(",", ";")
    (tmp_path / "requests.csv").write_text(text)
    run = read_measured(tmp_path / "requests.csv")
    np.testing.assert_array_equal(run.ttft_us, truth.ttft_us)


@pytest.mark.parametrize("mark", ["\ufeff", ""])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_result_may_be_packed_or_begin_with_a_mark(
    tmp_path: Path, truth: MeasuredRun, mark: str, pack
) -> None:
    text = mark + (FILES / "vllm_serve_detailed.json").read_text()
    (tmp_path / "run.json").write_bytes(pack(text.encode()))
    np.testing.assert_allclose(read_measured(tmp_path / "run.json").e2e_us, truth.e2e_us)


def test_results_that_were_joined_with_themselves_are_told(tmp_path: Path, truth: MeasuredRun):
    text = (FILES / "aiperf_records.jsonl").read_text()
    (tmp_path / "twice.jsonl").write_text(text + text)
    run = read_measured(tmp_path / "twice.jsonl")
    assert len(run) == 2 * len(truth)
    assert any(f"{len(truth)} requests are equal to another one" in note for note in run.notes)


def test_a_client_without_token_counts_is_not_called_failed(tmp_path: Path):
    records = [
        json.loads(line) for line in (FILES / "aiperf_records.jsonl").read_text().splitlines()
    ]
    for record in records:
        record["metrics"].pop("input_sequence_length", None)
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    with pytest.raises(
        ConfigError, match="24 requests were answered, but the file has not how many"
    ):
        read_measured(tmp_path / "records.jsonl")


def test_outputs_of_0_tokens_that_were_seen_are_not_counted_ones(tmp_path: Path):
    path = changed(tmp_path, "vllm_serve_detailed.json", output_lens=[0] * 25, errors=[""] * 25)
    data = json.loads(path.read_text())
    count = sum(one > 0 for one in data["ttfts"])
    with pytest.raises(ConfigError, match=f"{count} requests were answered, but the file has not"):
        read_measured(path)


def test_what_a_file_lacks_is_named(tmp_path: Path):
    found = read_result(changed(tmp_path, "vllm_serve_detailed.json", itls=None))
    assert isinstance(found, Summary)
    assert "it has no list of itls; measure again with --save-detailed" in found.lacking
    (tmp_path / "empty.json").write_text(
        json.dumps({"metadata": {"guidellm_version": "0.5.0"}, "benchmarks": []})
    )
    with pytest.raises(
        ConfigError, match="GuideLLM's report has no benchmark, so none came to its"
    ):
        read_result(tmp_path / "empty.json")


def test_seconds_and_micro_signs_are_units(tmp_path: Path, truth: MeasuredRun):
    records = [
        json.loads(line) for line in (FILES / "aiperf_records.jsonl").read_text().splitlines()
    ]
    for record in records:
        for name, unit, factor in (
            ("time_to_first_token", "µs", 1e3),
            ("request_latency", "seconds", 1e-3),
        ):
            if name in record["metrics"]:
                record["metrics"][name] = {
                    "value": record["metrics"][name]["value"] * factor, "unit": unit,
                }  # fmt: skip
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    np.testing.assert_allclose(read_measured(tmp_path / "records.jsonl").ttft_us, truth.ttft_us)


def test_genai_perf_without_streaming_has_no_ttft_and_counts_failures(tmp_path: Path):
    answered = [
        {"timestamp": 10**9 * k, "response_timestamps": [10**9 * k + 5 * 10**8]} for k in range(4)
    ]
    failed = [{"timestamp": 0, "response_timestamps": []}, {**answered[0], "success": False}]
    document = {
        "experiments": [
            {"experiment": {"mode": "concurrency", "value": 1}, "requests": answered + failed}
        ]
    }
    found = read_result(written(tmp_path, document))
    assert found.figures == {
        ("e2e_ms", name): pytest.approx(500.0) for name in ("mean", "p50", "p90", "p99")
    }
    assert found.remarks == ["2 of 6 requests have failed: the figures are of the others"]


def test_figures_that_contradict_each_other_are_told(tmp_path: Path):
    document = json.loads((FILES / "inference_perf_summary.json").read_text())
    document["successes"]["latency"]["time_to_first_token"]["mean"] = 38.9  # ms in place of s
    found = read_result(written(tmp_path, document))
    assert any(
        "the mean of TTFT, 3.89e+04 ms, is above that of E2E, 818 ms" in each
        for each in found.remarks
    )


def test_requests_that_a_summary_does_not_count_have_failed(tmp_path: Path):
    changes = {"num_prompts": 30, "completed": 24, "request_rate": "Infinity"}
    document = json.loads(changed(tmp_path, "vllm_serve.json", **changes).read_text())
    document.pop("failed", None)
    found = read_result(written(tmp_path, document))
    assert found.num_failed == 6 and found.load.rate_per_s == math.inf
    assert found.remarks[0] == "6 of 30 requests have failed: the figures are of the others"


def test_later_turns_of_conversations_are_told(tmp_path: Path):
    records = [
        json.loads(line) for line in (FILES / "aiperf_records.jsonl").read_text().splitlines()
    ]
    for place, record in enumerate(records):
        record["metadata"]["turn_index"] = place % 2
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    notes = read_measured(tmp_path / "records.jsonl").notes
    assert any("requests are later turns of conversations" in note for note in notes)


def test_contradictory_means_do_not_accuse_the_chunks(tmp_path: Path, capsys) -> None:
    document = json.loads((FILES / "inference_perf_summary.json").read_text())
    document["successes"]["latency"]["time_to_first_token"]["mean"] = 38.9
    (tmp_path / "run.json").write_text(
        json.dumps({"requests": [{"ttft_ms": 30.0, "e2e_ms": 90.0, "num_decode_tokens": 5}]})
    )
    command = [str(written(tmp_path, document)), "--predicted", str(tmp_path / "run.json")]
    assert main([*command, "--output", str(tmp_path / "out.json")]) == 0
    said = capsys.readouterr().err
    assert "do not trust either" in said and "trust E2E and TTFT" not in said


def test_a_ramp_is_not_all_at_once(tmp_path: Path):
    path = changed(
        tmp_path, "vllm_serve_detailed.json", request_rate="inf", ramp_up_strategy="linear"
    )
    document = json.loads(path.read_text())
    del document["start_times"]
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="it has no start_times, so arrivals are unknown"):
        read_measured(path)


BAD = {
    "nothing streamed": ({"ttfts": [0.0] * 25}, "the client did not stream"),
    "all failed": ({"errors": ["no"] * 25}, "all 25 requests have failed"),
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
        ("[]", "is empty; give the result file"),
        ("[1, 2]", "has no measured latencies that are known here"),
        ("{", "line 1: the file ends in the middle of a record, after 0 whole ones"),
        ('{"a" 1}', "line 1: Expecting ':' delimiter"),
        ("", "is empty; give the result file"),
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
        assert (
            "TTFT +100.0 %, TPOT +100.0 %" in printed.out
            and "1 simulated requests have no end" in printed.err
        )
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


@pytest.mark.parametrize("is_said", [True, False])
def test_a_prediction_of_other_requests_is_said(tmp_path: Path, capsys, is_said: bool):
    path = tmp_path / "aiperf.json"
    records = [
        json.loads(line) for line in (FILES / "aiperf_records.jsonl").read_text().splitlines()
    ]
    path.write_text(json.dumps(records))
    mean = float(np.mean(read_measured(path).rows.input_len))
    outputs = float(np.mean(read_measured(path).rows.output_len))
    request = {"ttft_ms": 30.0, "e2e_ms": 900.0, "num_prefill_tokens": 1.1 * mean}
    request["num_decode_tokens"] = outputs * (1.5 if is_said else 0.9)
    (tmp_path / "run.json").write_text(json.dumps({"requests": [request]}))
    assert main([str(path), "--predicted", str(tmp_path / "run.json")]) == 0
    assert ("these are not the same requests" in capsys.readouterr().err) == is_said


def test_one_json_list_is_read_as_lines_are(tmp_path: Path, truth: MeasuredRun):
    lines = (FILES / "aiperf_records.jsonl").read_text().splitlines()
    (tmp_path / "list.json").write_text(json.dumps([json.loads(line) for line in lines], indent=1))
    names = ("arrival_s", "input_tokens", "output_tokens", "ttft_ms", "e2e_ms")
    rows = truth.rows
    columns = (
        rows.arrival_us / 1e6,
        rows.input_len,
        rows.output_len,
        truth.ttft_us / 1e3,
        truth.e2e_us / 1e3,
    )
    table = [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)]
    (tmp_path / "table.json").write_text(json.dumps([row for row in table if row["ttft_ms"] > 0]))
    for name in ("list.json", "table.json"):
        run = read_measured(tmp_path / name)
        is_measured = np.isfinite(truth.ttft_us)
        assert int(np.sum(np.isfinite(run.ttft_us))) == int(np.sum(is_measured))
        np.testing.assert_allclose(np.nanmean(run.ttft_us), np.nanmean(truth.ttft_us), atol=200)
        np.testing.assert_allclose(np.nanmean(run.e2e_us), np.nanmean(truth.e2e_us), atol=200)


ODD_VALUES = (
    None,
    "",
    -1,
    1e308,
    math.nan,
    "abc",
    [],
    {},
    True,
    10**30,
    [[]],
    "\ud800",
    "2026-13-45",
)


def places_in(document: object, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Ways to the values of a document, of long lists the first ones."""
    if way:
        yield way
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(min(len(document), 4))
        for key in list(keys):
            yield from places_in(document[key], (*way, key))


@pytest.mark.parametrize(
    "name", sorted({*WITH_REQUESTS, *FIGURES_ONLY} - {"observe.csv", "observe.yaml"})
)
def test_an_odd_value_anywhere_is_read_or_refused(name: str, tmp_path: Path):
    """Of every place in a file one odd value, another for each."""
    text = (FILES / name).read_text()
    lines = text.splitlines() if name.endswith("jsonl") else [text]
    load = yaml.safe_load if name.endswith("yaml") else json.loads
    for number, way in enumerate(islice(places_in(load(lines[0])), 200)):
        document = load(lines[0])
        *before, last = way
        inner = reduce(lambda value, key: value[key], before, document)
        inner[last] = ODD_VALUES[number % len(ODD_VALUES)]
        path = tmp_path / name
        path.write_text("\n".join([json.dumps(document), *lines[1:]]))
        for read in (read_result, read_trace):
            with contextlib.suppress(ConfigError):
                read(path)
