import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from blis_jax.calibrate.calibration import CalibrationPlan, calibrate
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.traces.measured import run as measured_run
from blis_jax.traces.measured.recorded import read_measured
from blis_jax.traces.measured.run import blocks_from_series, held_blocks
from tests.support.recorded.reference_data import REPO_ROOT, SHARED_DIR

EXAMPLE = REPO_ROOT / "examples" / "measured_run"
REAL = SHARED_DIR / "data" / "vllm_bench_llmservingsim"


def test_a_vllm_benchmark_with_its_settings():
    run = read_measured(EXAMPLE)
    assert len(run) == 80
    assert run.settings.max_num_seqs == 24 and run.settings.max_num_batched_tokens == 1024
    assert run.rows.arrival_us[0] == 0 and np.all(np.diff(run.rows.arrival_us) >= 0)
    first = json.loads((EXAMPLE / "requests.jsonl").read_text().splitlines()[0])
    ttft = first["first_token_ts"] - first["queued_ts"]
    assert run.ttft_us[0] == pytest.approx(1e6 * ttft)
    gap = (first["last_token_ts"] - first["first_token_ts"]) / (first["output_toks"] - 1)
    assert run.tpot_us[0] == pytest.approx(1e6 * gap)


def test_kv_blocks_from_the_logged_use():
    """The series was made with 6,000 blocks."""
    run = read_measured(EXAMPLE)
    assert run.settings.total_kv_blocks == pytest.approx(6000, rel=0.01)
    assert "estimated from" in run.notes[0]


def test_kv_blocks_that_a_series_cannot_tell(tmp_path: Path):
    columns = {name: np.array([1.0]) for name in ("queued_ts", "first_token_ts", "last_token_ts")}
    series = tmp_path / "timeseries.csv"
    series.write_text("t,kv_cache_pct,waiting\n1,0.0,0\n2,0.0,0\n3,0.0,0\n")
    found = blocks_from_series(series, columns, measured_run.ServerSettings())
    assert found.blocks is None and "is 0 throughout" in found.words
    series.write_text("t,running\n1,0\n")
    with pytest.raises(ConfigError, match="lacks a column"):
        blocks_from_series(series, columns, measured_run.ServerSettings())


def _with_other_latencies(folder: Path, first: int) -> Path:
    """The example with other latencies of all requests from this one on, by arrival."""
    shutil.copytree(EXAMPLE, folder)
    rows = [json.loads(line) for line in (EXAMPLE / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["queued_ts"])
    for place, row in enumerate(rows[first:]):
        row["first_token_ts"] = row["queued_ts"] + 0.001 * (1 + place)
        row["last_token_ts"] = row["first_token_ts"] + 100.0
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, rows[::-1])))
    return folder


def test_latencies_of_held_out_requests_inform_no_setting(tmp_path: Path):
    changed = _with_other_latencies(tmp_path / "changed", first=40)
    one, other = (read_measured(folder, num_fitted=40) for folder in (EXAMPLE, changed))
    assert one.settings == other.settings
    assert one.settings.total_kv_blocks == pytest.approx(6000, rel=0.01)
    # the changes matter where all are fitted
    assert read_measured(EXAMPLE).settings != read_measured(changed).settings


def test_latencies_of_held_out_requests_change_nothing_in_the_fit(tmp_path: Path):
    found = []
    for folder in (EXAMPLE, _with_other_latencies(tmp_path / "changed", first=40)):
        run = read_measured(folder, num_fitted=40)
        config = ClusterConfig(**measured_run.cluster_values(run.settings, {}), corrected=True)
        found.append(
            calibrate(run, config, CalibrationPlan(("beta0", "beta2"), num_fitted=40, num_starts=1))
        )
    one, other = found
    assert one.config == other.config
    assert one.fit.cost == other.fit.cost
    np.testing.assert_array_equal(one.uncertainty.covariance, other.uncertainty.covariance)
    assert one.errors != other.errors


def test_a_series_without_ticks_before_the_requests_held_out():
    run = read_measured(EXAMPLE, num_fitted=5)
    assert run.settings.total_kv_blocks is None
    assert "before the first request that is held out" in run.notes[0]


def test_held_blocks_by_hand():
    columns = {
        "first_token_ts": np.array([1.0, 5.0]),
        "last_token_ts": np.array([3.0, 6.0]),
        "input_toks": np.array([16.0, 100.0]),
        "output_toks": np.array([32.0, 1.0]),
    }
    assert held_blocks(np.array([0.5, 2.0, 5.5]), columns, 16).tolist() == [0, 2, 7]


def test_trace_v2(tmp_path: Path):
    from blis_jax.traces.formats import trace_v2
    from blis_jax.traces.rows import make_rows

    count = 24
    arrival = 1000 * np.arange(count)
    rows = make_rows(arrival, np.full(count, 10), np.full(count, 5))
    status = np.array(["ok"] * (count - 1) + ["error"], object)
    header = trace_v2.Header(server=trace_v2.Server(max_num_seqs=64, block_size=16))
    outcome = {
        "first_chunk_time_us": arrival + 700,
        "last_chunk_time_us": arrival + 4700,
        "status": status,
    }
    trace_v2.write(rows, tmp_path / "trace.csv", header, outcome)
    run = read_measured(tmp_path)
    assert run.ttft_us[:-1].tolist() == [700.0] * (count - 1) and np.isnan(run.ttft_us[-1])
    assert run.tpot_us[0] == 1000.0
    assert run.settings.max_num_seqs == 64


def _csv(folder: Path, *lines: str) -> Path:
    path = folder / "latencies.csv"
    rows = [f"{k * 0.1},{20 + k},{5},{30.0},{130.0}" for k in range(20)]
    path.write_text(
        "\n".join(["arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms", *rows, *lines])
    )
    return path


def test_latency_csv(tmp_path: Path):
    run = read_measured(_csv(tmp_path, "0.05,7,5,20,60", "0.06,7,5,,"))
    assert run.rows.arrival_us[:4].tolist() == [0, 50_000, 60_000, 100_000]
    assert run.ttft_us[1] == 20_000 and np.isnan(run.e2e_us[2])


@pytest.mark.parametrize(
    ("line", "words", "num_left"),
    [
        ("0.05,seven,5,20,60", "1 malformed row, the first at line 22 (input_tokens is seven", 0),
        ("0.05,7,5,20,10", "1 requests have their first token after their last", 1),
        ("0.05,7,5,0,60", "1 requests have no time of a first token", 1),
        ("0.05,7,0,20,60", "1 of 21 requests have failed or lack their lengths", 0),
    ],
)
def test_a_bad_row_is_told_and_not_measured(
    tmp_path: Path, line: str, words: str, num_left: int
) -> None:
    run = read_measured(_csv(tmp_path, line))
    assert len(run) == 20 + num_left and np.isfinite(run.ttft_us).sum() == 20
    assert run.ttft_us[np.isfinite(run.ttft_us)].tolist() == [30_000.0] * 20
    assert any(words in note for note in run.notes)


# by header: one row of a request sent at 0.1 k s, TTFT 30 ms, E2E 130 ms, so a TPOT of 25 ms
TABLES = {
    "arrival_s,prompt_tokens,completion_tokens,ttft_s,e2e_s": "{t},{i},5,0.03,0.13",
    "timestamp,isl,osl,ttft,latency": "{t},{i},5,0.03,0.13",
    "timestamp,isl,osl,ttft,end_to_end_latency": "{t},{i},5,30,130",
    "start_time_ms,num_input_tokens,num_output_tokens,time_to_first_token_ms,tpot_ms": "{ms},{i},5,30,25",
    "arrival_us,input_num_tokens,output_num_tokens,ttft_us,request_latency_ms": "{us},{i},5,30000,130",
    "arrival_s;input_tokens;output_tokens;ttft_ms;e2e_ms": "{t};{i};5;30;130",
    # multi-round-qa of vLLM's production stack
    ",prompt_tokens,generation_tokens,ttft,generation_time,user_id,question_id,launch_time,finish_time": (
        "0,{i},5,0.03,0.1,1,2,{t},9"
    ),
}


@pytest.mark.parametrize("header", TABLES)
def test_a_table_of_latencies_may_have_usual_names_and_units(tmp_path: Path, header: str) -> None:
    line, path = TABLES[header], tmp_path / "run.csv"
    rows = [line.format(t=k / 10, ms=100 * k, us=100_000 * k, i=20 + k) for k in range(20)]
    path.write_text("\n".join([header, *rows]), encoding="utf-8-sig", newline="\r\n")
    run = read_measured(path)
    assert run.rows.arrival_us.tolist() == [100_000 * k for k in range(20)]
    assert run.rows.input_len.tolist() == [20 + k for k in range(20)]
    np.testing.assert_allclose(run.ttft_us, 30_000)
    np.testing.assert_allclose(run.e2e_us, 130_000)
    assert not any("--" in note for note in run.notes)  # calibrate has none of a trace's options


def test_failed_rows_of_a_table_are_left_out(tmp_path: Path) -> None:
    rows = [
        f"{k / 10},20,5,{0 if k < 5 else 30},{0 if k < 5 else 130},{500 if k < 5 else 200}"
        for k in range(25)
    ]
    path = tmp_path / "run.csv"
    path.write_text(
        "\n".join(["arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms,status", *rows])
    )
    run = read_measured(path)
    assert len(run) == 20 and run.ttft_us.tolist() == [30_000.0] * 20
    assert "5 failed requests (by their status or error) left out" in run.notes


def test_latencies_in_another_unit_than_the_column_says_are_told(tmp_path: Path) -> None:
    rows = [f"{k / 10},20,5,0.03,0.13" for k in range(20)]
    path = tmp_path / "run.csv"
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms", *rows]))
    assert any("in another unit than" in note for note in read_measured(path).notes)


def test_files_that_are_no_measured_runs(tmp_path: Path):
    path = tmp_path / "plain.csv"
    path.write_text("arrival_us,input_tokens,output_tokens\n0,1,1\n")
    with pytest.raises(ConfigError, match="has no measured latencies"):
        read_measured(path)
    with pytest.raises(ConfigError, match=r"neither requests\.jsonl, .* nor summary_lifecycle"):
        read_measured(tmp_path)
    path.write_text('{"input_toks": 3}\n')
    with pytest.raises(ConfigError, match="line 1: no output_toks"):
        read_measured(path)
    with pytest.raises(ConfigError, match="does not exist"):
        read_measured(tmp_path / "nowhere.jsonl")
    few = "\n".join((EXAMPLE / "requests.jsonl").read_text().splitlines()[:5])
    path.write_text(few)
    with pytest.raises(ConfigError, match="at least 20 are needed"):
        read_measured(path)


def test_options_go_before_the_files_of_the_run():
    stated = measured_run.ServerSettings(num_instances=2, max_num_seqs=64, total_kv_blocks=500)
    values = measured_run.cluster_values(stated, {"total_kv_blocks": 700})
    assert values["total_kv_blocks"] == 700 and values["max_num_running_reqs"] == 64
    assert values["routing_policy"] == "least-loaded"
    assert not measured_run.silent(
        measured_run.ServerSettings(max_num_seqs=1, max_num_batched_tokens=1),
        {"total_kv_blocks": 1},
    )
    assert len(measured_run.silent(measured_run.ServerSettings(), {})) == 3
    with pytest.raises(ConfigError, match="at least 1"):
        measured_run.cluster_values(stated, {"total_kv_blocks": 0})


@pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is not here")
def test_real_runs_have_the_published_means():
    for folder in sorted(path for path in REAL.iterdir() if path.is_dir()):
        run = read_measured(folder)
        published = {}
        for line in (folder / "summary.txt").read_text().splitlines():
            words = line.split()
            if "Mean" in words:
                published[words[0]] = float(words[2])
        assert np.mean(run.ttft_us) / 1e3 == pytest.approx(published["TTFT"], abs=0.06)
        assert np.mean(run.tpot_us) / 1e3 == pytest.approx(published["TPOT"], abs=0.06)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is not here")
def test_estimated_blocks_against_stated_ones():
    """The one run that states its blocks and logs their use: 2,588, found within 3 %."""
    from blis_jax.traces.measured import run

    folder = REAL / "RTX4090_Llama-3.1-8B"
    columns = run._json_lines(folder / "requests.jsonl")
    found = blocks_from_series(folder / "timeseries.csv", columns, measured_run.ServerSettings())
    assert found.blocks == pytest.approx(2588, rel=0.03)


def test_the_fit_says_how_the_server_was_set_where_the_run_does_not():
    run = measured_run.ServerSettings(model="m", max_num_seqs=64)
    fit = {
        "max_num_running_reqs": 24,
        "max_num_scheduled_tokens": 1024,
        "total_kv_blocks": measured_run.UNKNOWN_KV_BLOCKS,
        "routing_policy": "weighted",
    }
    known = measured_run.completed(run, fit)
    assert (known.max_num_seqs, known.max_num_batched_tokens) == (64, 1024)
    assert known.total_kv_blocks is None  # the fit did not know them either
    assert measured_run.silent(known, {}) == [
        "KV blocks are unknown: the fit assumes that memory never fills up"
    ]
    assert not measured_run.silent(known, {}, ["KV blocks are unknown: meta.json states none"])
    assert measured_run.routing_of(fit) == {"routing_policy": "weighted"}
