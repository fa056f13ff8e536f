"""Curves: a server whose saturation rate is known, the front, going on, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blis_jax.statistics.intervals import Estimate
from sweeps.capacity.rates import (
    ARRIVING,
    CLEAR,
    KEEPS_UP,
    CurvePoint,
    RateCurve,
    RatedRuns,
    arrivals_per_s,
    front,
)
from sweeps.curve import main
from sweeps.strategies.arms import arm_of

STEP_MS, TOKENS = 10.0, 21
WORKLOAD = f"""
version: '2'
aggregate_rate: 1.0
num_requests: 100
clients:
  - {{id: a, rate_fraction: 1.0, arrival: {{process: poisson}},
     input_distribution: {{type: constant, params: {{value: 16}}}},
     output_distribution: {{type: constant, params: {{value: {TOKENS}}}}}}}
"""
SERVER = f"vllm:num_instances=1;max_num_seqs={{}};alpha_coeffs=[0,0,0];beta_coeffs=[{1000 * STEP_MS:g},0,0]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curve")
    (folder / "load.yaml").write_text(WORKLOAD)
    assert main(words(folder)) == 0
    return folder


def words(folder: Path, *further: str) -> list[str]:
    arms = [f"one={SERVER.format(1)}", f"two={SERVER.format(2)}"]
    given = ["--workload", str(folder / "load.yaml"), "--num-requests", "200", "--seeds", "3"]
    return [*arms, *given, "--output", str(folder / "out.json"), *further]


def test_a_server_of_one_request_at_a_time_is_full_where_its_service_says(folder: Path) -> None:
    """Every step takes 10 ms whatever is in it, so twenty-one tokens take 0.21 s, and two at once as long."""
    one, two = json.loads((folder / "out.json").read_text())["arms"]
    most = 1000 / (STEP_MS * TOKENS)
    assert one["full_at"]["mean"] == pytest.approx(most, rel=0.03)
    assert two["full_at"]["mean"] == pytest.approx(2 * most, rel=0.03)
    figures = one["points"][0]["figures"]
    assert figures["tokens_per_s_user"]["mean"] == pytest.approx(1000 / STEP_MS)
    tails = [point["figures"]["ttft_p99_ms"]["mean"] for point in one["points"]]
    assert tails[0] < tails[-1] and one["points"][-1]["rate"] == pytest.approx(most, rel=0.03)


def test_the_front_is_of_the_larger_batch(folder: Path) -> None:
    """Both serve a user at the same pace, and the second carries twice as much."""
    document = json.loads((folder / "out.json").read_text())
    last = document["arms"][1]["points"][-1]["rate"]
    assert document["front"] == [["two", last]]
    assert (folder / "out.png").stat().st_size > 10_000


def test_going_on_runs_nothing_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "out.json").read_text()
    assert main(words(folder, "--resume", "--report", str(folder / "out.html"))) == 0
    shown = capsys.readouterr().out
    assert "one on 1 GPU is full at " in shown and "Price:   0 runs." in shown
    assert "Pareto front" in (folder / "out.html").read_text()
    assert json.loads(before)["arms"] == json.loads((folder / "out.json").read_text())["arms"]


def test_few_requests_that_come_slowly_by_chance_do_not_show_a_full_cluster() -> None:
    """What leaves is held against what came, not against what should come."""
    assert arrivals_per_s(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), 1.0) == pytest.approx(4 / 3)
    assert arrivals_per_s(np.array([0.0, 1.0]), 5.0) == 0.0
    slow = RatedRuns(150, {"requests_per_s": [12.0, 13.0], ARRIVING: [12.5, 13.0]})
    full = RatedRuns(150, {"requests_per_s": [8.0, 8.0], ARRIVING: [16.0, 16.0]})
    assert slow.kept > KEEPS_UP > CLEAR > full.kept == 0.5


def test_a_point_that_another_beats_is_not_of_the_front() -> None:
    def point(user: float, gpu: float) -> CurvePoint:
        both = {"tokens_per_s_user": user, "tokens_per_s_gpu": gpu}
        return CurvePoint(1.0, {k: Estimate(v, v, v, 3) for k, v in both.items()})

    points = tuple(point(*both) for both in ((100, 10), (90, 5), (80, 20), (80, 15), (10, 20)))
    curve = RateCurve(arm_of("vllm"), Estimate(1.0, 1.0, 1.0, 3), points, is_short=False)
    assert [one for _, one in front([curve])] == [points[0], points[2]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--rate", "0"], "--rate: 0 is not above 0"),
        (["--seeds", "1"], "--seeds: 1 run is too few for an interval"),
        (["--workload", "stationry"], "did you mean 'stationary'?"),
        (["--grid", "tp"], "--grid: 'tp' is not KEY=VALUE"),
    ],
)
def test_refusals(
    given: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vllm", *given, "--output", str(tmp_path / "out.json")]) == 2
    assert sentence in capsys.readouterr().err
