"""`replay`: BLIS's command of August 2026 on TraceV2 files; the figures are BLIS's."""

import json

import pandas
import pytest

from blis_jax.commands.door.dispatch import main as door
from blis_jax.commands.run import replay
from blis_jax.commands.run.replay import latencies, main
from tests.traces.formats.test_trace_v3 import HEADER, YAML, line

MODEL = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "2"]
FILES = ["--trace-header", "t.yaml", "--trace-data", "t.csv"]
CLOSED = ["--session-mode", "closed-loop"]
# number, TTFT and E2E in µs, prompt and output tokens of the requests that complete
COMPLETED = [
    (0, 15609, 82542, 0, 10),
    (1, 23097, 96596, 300, 11),
    (2, 28596, 108552, 300, 12),
    (3, 29272, 115559, 0, 13),
    (4, 26596, 120548, 300, 14),
    (5, 27272, 127556, 300, 15),
    (6, 24596, 132490, 0, 16),
    (7, 25272, 139498, 300, 17),
    (8, 31467, 151343, 300, 18),
    (9, 31507, 158283, 0, 19),
    (10, 29467, 163219, 300, 20),
]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        line(
            row,
            1000 * (row + 1),
            deadline_us=str(151_000 + 2000 * row),
            input_tokens=str(300 if row % 3 else 0),
            output_tokens=str(10 + row),
        )
        for row in range(16)
    ]
    (tmp_path / "t.csv").write_text(HEADER + "".join(rows))
    (tmp_path / "t.yaml").write_text(YAML)
    (tmp_path / "scaled.yaml").write_text("autoscaler: {interval_us: 100000}\n")
    (tmp_path / "nodes.yaml").write_text("node_pools: [{name: p}]\nautoscaler: {interval_us: 0}\n")


def test_latencies_and_figures_are_those_of_the_reference(tmp_path, capsys):
    more = ["--horizon", "90000000", "--results-path", "l.json", "--metrics-path", "m.json"]
    assert door(["replay", *MODEL, *FILES, *more]) == 0
    found = json.loads((tmp_path / "l.json").read_text())
    keys = ("request_id", "ttft_us", "e2e_us", "input_tokens", "output_tokens")
    assert [tuple(one[key] for key in keys) for one in found] == COMPLETED
    document = json.loads((tmp_path / "m.json").read_text())
    assert (document["completed_requests"], document["timed_out_requests"]) == (11, 5)
    # without --horizon the run ends at twice the last arrival, before a request completes
    again = ["--results-path", "l.json", "--overwrite", "--fitness-weights", "x"]
    assert main([*MODEL, *FILES, *again]) == 0
    assert json.loads((tmp_path / "l.json").read_text()) == []
    out, err = capsys.readouterr()
    assert '"vllm_estimated_duration_s": 0.031563' in out
    assert "Fitness" not in out and "--fitness-weights has no effect in replay" in err


def session_rows():
    """Three sessions of three rounds, and two requests of their own."""
    rows, more = [], {"prefix_group": "g", "prefix_length": "64"}
    for turn in range(3):
        for one in range(3):
            arrival_us = 1000 + 9000 * one + 150_000 * turn
            tokens = {
                "input_tokens": str(200 + 90 * one + turn),
                "output_tokens": str(6 + one + turn),
            }
            names = {"session_id": f"s{one}", "round_index": str(turn)}
            rows.append(line(40 - len(rows), arrival_us, **tokens, **names, **more))
    return [*rows, line(50, 3000), line(51, 200_000)]


# completed, mean E2E in ms, duration in s, prompt tokens: those of BLIS
SESSIONS = (11, 89.91072727272729, 0.353333, 6065)


def test_later_rounds_wait_for_their_answers(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(HEADER + "".join(session_rows()))
    (tmp_path / "t.yaml").write_text(YAML + "session_context_growth: accumulate\n")
    more = ["--metrics-path", "m.json", "--think-time-ms", "20", "--horizon", "90000000"]
    assert main([*MODEL, *FILES, *CLOSED, *more, "--results-path", "l.json"]) == 0
    document = json.loads((tmp_path / "m.json").read_text())
    completed, e2e_ms, seconds, prompt_tokens = SESSIONS
    assert document["completed_requests"] == completed
    assert document["e2e_mean_ms"] == pytest.approx(e2e_ms, rel=1e-12)
    assert document["vllm_estimated_duration_s"] == pytest.approx(seconds, rel=1e-12)
    assert document["total_input_tokens"] == prompt_tokens
    numbers = [one["request_id"] for one in json.loads((tmp_path / "l.json").read_text())]
    assert numbers == [38, 39, 40, 50, 51]


# arrival, prompt tokens without the prefix, first and last chunk of the rows that BLIS writes: the first rounds
FIRST_ROUNDS = [
    (1000, 200, 24017, 59248),
    (10000, 290, 38365, 79879),
    (19000, 380, 47165, 95647),
    (3000, 100, 25658, 159355),
    (200000, 100, 223254, 354233),
]


def test_a_trace_of_a_replay_that_waits_for_answers_has_the_first_rounds(tmp_path):
    (tmp_path / "t.csv").write_text(HEADER + "".join(session_rows()))
    (tmp_path / "t.yaml").write_text(YAML + "session_context_growth: accumulate\n")
    more = ["--trace-output", "x", "--think-time-ms", "20", "--horizon", "90000000"]
    assert main([*MODEL, *FILES, *CLOSED, *more]) == 0
    rows = pandas.read_csv(tmp_path / "x.csv")
    columns = ("arrival_time_us", "input_tokens", "first_chunk_time_us", "last_chunk_time_us")
    assert list(zip(*(rows[name] for name in columns), strict=True)) == FIRST_ROUNDS
    assert rows["session_id"].fillna("").tolist() == ["s0", "s1", "s2", "", ""]
    assert rows["request_id"].tolist() == list(range(5)) and set(rows["status"]) == {"ok"}
    assert set(rows["prefix_length"]) == {0, 64}
    assert "mode: replayed" in (tmp_path / "x.yaml").read_text()


@pytest.mark.parametrize("mode", [[], CLOSED])
def test_a_replayed_trace_keeps_the_order_of_the_file(mode, tmp_path):
    names = [
        line(40 - row, 90_000 - 7000 * row, input_tokens=str(100 + row), output_tokens="6")
        for row in range(6)
    ]
    (tmp_path / "t.csv").write_text(HEADER + "".join(names))
    assert main([*MODEL, *FILES, *mode, "--trace-output", "x", "--horizon", "90000000"]) == 0
    rows = pandas.read_csv(tmp_path / "x.csv")
    assert rows["request_id"].tolist() == list(range(6))
    assert rows["input_tokens"].tolist() == [100, 101, 102, 103, 104, 105]
    assert rows["first_chunk_time_us"].tolist() == [119348, 112355, 105418, 98422, 84667, 77669]
    assert rows["last_chunk_time_us"].tolist() == [153821, 146829, 140137, 133145, 119573, 112580]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([*MODEL, *FILES[:2]], 2, "--trace-data is missing"),
        ([*MODEL, *FILES[2:]], 2, "--trace-header is missing"),
        (FILES, 2, "--model is missing"),
        ([*MODEL, *FILES, "--session-mode", "loop"], 2, "--session-mode"),
        ([*MODEL, *FILES, "--think-time-ms", "5"], 2, "needs --session-mode closed-loop"),
        ([*MODEL, *FILES, "--slots", "0"], 2, "--slots: got 0, allowed is 1 to 8192"),
        ([*MODEL, *FILES, *CLOSED, "--think-time-ms", "-5"], 2, "at least 0, got -5"),
        ([*MODEL, *FILES, *CLOSED, "--think-time-dist", "x"], 2, "--think-time-dist: got 'x'"),
        (
            [
                *MODEL,
                *FILES,
                *CLOSED,
                "--think-time-ms",
                "5",
                "--think-time-dist",
                "constant:value=1",
            ],
            2,
            "are both given",
        ),
        ([*MODEL, *FILES, "--kv-offload-config", "x"], 2, "x does not exist"),
        ([*MODEL, *FILES, "--model-autoscaler-interval-us", "0"], 2, "keeps its instances"),
        ([*MODEL, *FILES, "--policy-config", "scaled.yaml"], 2, "autoscaler in --policy-config"),
        ([*MODEL, *FILES, "--policy-config", "nodes.yaml"], 2, "node_pools in --policy-config"),
        ([*MODEL, *FILES, "--pd-prefix-threshold", "5"], 2, "no effect with --pd-decider never"),
        ([*MODEL, *FILES, "--pd-decider", "always"], 2, "--pd-decider has no effect without"),
        ([*MODEL, *FILES, "--decode-tp", "2"], 2, "--decode-tp has no effect without"),
        ([*MODEL, "--trace-header", "no.yaml", *FILES[2:]], 2, "no.yaml does not exist"),
    ],
)
def test_refusals_are_one_sentence(words, code, said, capsys):
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


TIERS = "kv_offload: {{cpu_bytes_to_use: {}}}\n"


def test_the_tiers_of_the_header_count(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(
        replay.one_run, "simulate_one", lambda options, *_: seen.append(options) or 0
    )
    (tmp_path / "same.yaml").write_text(TIERS.format(10**9))
    (tmp_path / "other.yaml").write_text(TIERS.format(10**8))
    named = [*MODEL, *FILES, "--kv-offload-config"]
    assert main([*named, "same.yaml"]) == 0  # of a measured run the header cannot say them
    (tmp_path / "t.yaml").write_text(YAML.replace("real", "generated"))
    assert main([*named, "same.yaml"]) == 2
    assert "t.yaml has no kv_offload" in capsys.readouterr().err
    (tmp_path / "t.yaml").write_text(
        YAML
        + TIERS.format("1000000000, per_block_bytes: 5000, block_size: 16, tokens_per_hash: 16")
    )
    assert main([*named, "other.yaml"]) == 2
    assert "is not what t.yaml has as kv_offload" in capsys.readouterr().err
    for words in ([*named, "same.yaml"], named[:-1]):
        assert main(words) == 0
        assert seen[-1].named["kv_offload_config"].per_block_bytes == 5000


def test_classes_of_storage_are_those_of_the_defaults_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(replay.one_run, "simulate_one", lambda *_: 0)
    speed = "read_bandwidth: 900.5, write_bandwidth: 80.0, base_latency: 9.0"
    jitter = f"{speed}, latency_jitter_stddev: 0.4"
    (tmp_path / "d.yaml").write_text(f"kv_offload_devices: {{own: {{{jitter}}}}}\n")
    tier = "type: fs, root_dir: /kv, direct_io: true"
    (tmp_path / "tiers.yaml").write_text(
        TIERS.format(f"1000000000, secondary_tiers: [{{{tier}, device_class: own}}]")
    )
    for numbers, code in ((jitter, 0), (speed, 2)):
        said = f"{tier}, device_class: own, {numbers}"
        recorded = "block_size: 16, tokens_per_hash: 16, per_block_bytes: 5000"
        (tmp_path / "t.yaml").write_text(
            YAML + TIERS.format(f"1000000000, {recorded}, secondary_tiers: [{{{said}}}]")
        )
        named = [*MODEL, *FILES, "--kv-offload-config", "tiers.yaml"]
        assert main([*named, "--defaults-filepath", "d.yaml"]) == code
    assert "is not what t.yaml has as kv_offload" in capsys.readouterr().err


def test_latencies_leave_out_later_rounds_and_what_did_not_complete():
    base = {
        "ttft_ms": 1.5,
        "e2e_ms": 2.5,
        "itl_ms": 0.0,
        "num_prefill_tokens": 3,
        "num_decode_tokens": 1,
    }
    rows = [
        {**base, "requestID": "request_10", "model": "m"},
        {**base, "requestID": "session_s_round_1_4"},
        {**base, "requestID": "request_2", "e2e_ms": 0.0},
        {**base, "requestID": "request_9", "slo_class": "batch", "itl_ms": 7.25},
    ]
    times = {"ttft_us": 1500, "e2e_us": 2500, "input_tokens": 3, "output_tokens": 1}
    assert latencies(rows) == [
        {"request_id": 9, **times, "slo_class": "batch", "itl_mean_us": 7250.0},
        {"request_id": 10, **times, "model": "m"},
    ]
