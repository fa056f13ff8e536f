"""Detectors of saturation against what BLIS says of its own latencies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_jax.commands.run.scores import ScoreOptions, scores_of
from blis_jax.errors import ConfigError
from blis_jax.results.scores import DETECTORS, LEVELS, saturation

# `blis run --rate 20 --num-requests 40 --max-num-seqs 3 --output-tokens 40 --output-tokens-stdev 10 --seed 9
# --detectors all --saturation-config FILE --saturation-final-window 700ms` (f90a1e3a): E2E in µs
E2E_US = [
    296326, 345581, 323890, 556871, 412633, 506962, 548485, 576197, 638509, 545021, 711610, 943740, 675489,
    927245, 920161, 1066163, 1201507, 979986, 1184895, 1198273, 1436940, 1306615, 1300045, 1537137, 1502090,
    1545367, 1789632, 1647394, 1737824, 1763568, 1819606, 1828053, 1892766, 1919438, 1947668, 2074611, 2039588,
    1965182, 2195638, 2034670,
]  # fmt: skip
LETTERS = {  # of the levels after each event
    "composite": "B" * 59 + "O" * 21,
    "threshold": "S" * 58 + "O" * 22,
    "backlog-drift": "S" * 32 + "O" * 34 + "S" * 14,
}
FINAL = {"backlog-drift": "STABLE", "composite": "OVERLOADED", "threshold": "OVERLOADED"}
VERDICTS = [  # after the event 40 and the event 71
    (1399972, "composite", "BACKLOGGED", 0.5714285714285714, 1,
     {"latency_trend": 0, "latency_trend_raw": 0.5130684123700028, "noise_floor": 0.1889822365046136,
      "quartile_monotone": 0, "rate_deficit": 0.5714285714285714}),
    (1399972, "threshold", "STABLE", 0.36533178571428576, 0.7226499018873854,
     {"mean_e2e": 511.46450000000004, "threshold": 700}),
    (1399972, "backlog-drift", "OVERLOADED", 1, 1,
     {"arrivals": 28, "completions": 12, "in_flight": 16, "noise_floor": 0.1889822365046136, "running_slope": 4}),
    (3369575, "composite", "OVERLOADED", 1, 1,
     {"latency_trend": 1, "latency_trend_raw": 1, "noise_floor": 0.15811388300841897, "quartile_monotone": 1,
      "rate_deficit": 0.22499999999999998}),
    (3369575, "threshold", "OVERLOADED", 0.868038732718894, 0.8232233047033631,
     {"mean_e2e": 1030.5084516129032, "threshold": 700}),
    (3369575, "backlog-drift", "STABLE", 0, 1,
     {"arrivals": 40, "completions": 31, "in_flight": 9, "noise_floor": 0.15811388300841897, "running_slope": -1.8}),
]  # fmt: skip
TUNING = "threshold: {threshold_ms: 700}\nbacklog_drift: {window_size_sec: 1}\n"


def record_of(arrival_us: list[int], e2e_us: list[int]) -> Any:
    requests = SimpleNamespace(arrival_us=np.array(arrival_us), e2e_us=np.array(e2e_us))
    return SimpleNamespace(requests=requests)


@pytest.fixture
def record() -> Any:
    return record_of([49999 * row for row in range(1, 41)], E2E_US)


def judged(record: Any, folder: Path, names: str = "all") -> Any:
    (folder / "tuning.yaml").write_text(TUNING)
    scores = scores_of(
        ScoreOptions.of(
            {
                "detectors": names,
                "saturation_config": str(folder / "tuning.yaml"),
                "saturation_final_window": "700ms",
            }
        )
    )
    assert scores.tuning is not None
    ids = [f"request_{row}" for row in range(len(record.requests.e2e_us))]
    return saturation(record, ids, scores.detectors, scores.tuning)


def test_verdicts_are_those_of_blis(record: Any, tmp_path: Path) -> None:
    found = judged(record, tmp_path)
    assert found.final == FINAL and list(found.final) == sorted(FINAL)
    for name, letters in LETTERS.items():
        assert "".join(LEVELS[v.level][0] for _, own, v in found.trace if own == name) == letters
    rows = [found.document()["trace"][3 * place + part] for place in (39, 70) for part in range(3)]
    for row, (time_us, name, level, score, confidence, signals) in zip(rows, VERDICTS, strict=True):
        result = {"level": level, "score": score, "confidence": confidence, "signals": signals}
        assert row == {"timestamp": time_us, "detector": name, "result": result}
        assert list(row["result"]["signals"]) == sorted(signals)


def test_a_detector_says_the_same_alone(record: Any, tmp_path: Path) -> None:
    every = judged(record, tmp_path).trace
    some = judged(record, tmp_path, "backlog-drift,threshold,threshold").trace
    assert some == [row for row in every if row[1] != "composite"]


def test_a_run_without_completions_has_no_label() -> None:
    scores = scores_of(ScoreOptions.of({"detectors": "composite"}))
    assert scores.detectors == ("composite",) and scores.tuning is not None
    found = saturation(record_of([5], [-1]), ["request_0"], scores.detectors, scores.tuning)
    assert found.document() == {"trace": []}


def test_an_arrival_comes_before_a_completion_of_the_same_time() -> None:
    scores = scores_of(ScoreOptions.of({"detectors": "all"}))
    assert scores.tuning is not None and scores.detectors == DETECTORS
    record = record_of([10, 0], [5, 10])
    found = saturation(record, ["b", "a"], ("backlog-drift",), scores.tuning)
    assert [verdict.signals["in_flight"] for _, _, verdict in found.trace] == [1, 2, 1, 0]


def test_the_window_is_the_files_bucket_if_it_is_not_given(tmp_path: Path) -> None:
    (tmp_path / "tuning.yaml").write_text("backlog_drift: {window_size_sec: 7, peak_ratio: 3}\n")
    given = {"detectors": "all", "saturation_config": str(tmp_path / "tuning.yaml")}
    tuning = scores_of(ScoreOptions.of(given)).tuning
    assert tuning is not None and (tuning.bucket_us, tuning.window_us) == (7_000_000, 7_000_000)


@pytest.mark.parametrize(
    ("given", "text", "sentence"),
    [
        ({"detectors": "compost"}, "", "--detectors: 'compost' is not known; .* or all"),
        ({"detectors": ","}, "", "--detectors: ',' is not known"),
        ({"detectors": "composite,all"}, "", "'all' is not known"),
        ({"saturation_report": "x"}, "", "--saturation-report has no meaning without --detectors"),
        ({"detectors": "all", "saturation_final_window": "30"}, "", "must be a time above 0"),
        ({"detectors": "threshold"}, TUNING, "backlog_drift has no meaning without that detector"),
        ({"detectors": "all"}, "composite: {}", "'composite' is not known"),
        ({"detectors": "all"}, "threshold: {limit: 3}", "threshold: 'limit' is not known"),
        ({"detectors": "all"}, "threshold: {threshold_ms: 0}", "a number above 0"),
        ({"detectors": "all"}, "threshold: [1]", "allowed is a mapping"),
        ({"detectors": "all"}, "backlog_drift: {window_size_sec: 1.5}", "a whole number above 0"),
        ({"detectors": "all"}, "backlog_drift: {confidence_ci: 1}", "above 0, below 1"),
        ({"detectors": "all"}, "backlog_drift: {tail_windows: -1}", "of at least 0"),
        ({"detectors": "all"}, "backlog_drift: {saturated_drain_ratio: 1}", "is above transient"),
    ],
)
def test_what_is_no_detector_or_number(
    given: dict[str, str], text: str, sentence: str, tmp_path: Path
) -> None:
    if text:
        (tmp_path / "tuning.yaml").write_text(text)
        given = {**given, "saturation_config": str(tmp_path / "tuning.yaml")}
    with pytest.raises(ConfigError, match=sentence):
        scores_of(ScoreOptions.of(given))
