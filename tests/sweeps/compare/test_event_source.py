"""An event source from a file through `run` and `compare`, by a hand calculation."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_jax.run import main as run
from sweeps.compare.__main__ import main as compare
from tests.support.recorded.reference_data import REPO_ROOT

SOURCE = f"{REPO_ROOT / 'examples' / 'policies' / 'fault.py'}:slow_instance"
# four requests, at 1111, 2222, 3333 and 4444 µs, in turn on two instances; each takes five steps of 1000 µs
WORKLOAD = """
version: "2"
seed: 42
aggregate_rate: 900.0
num_requests: 4
clients:
  - id: steady
    rate_fraction: 1.0
    slo_class: standard
    arrival: {process: constant}
    input_distribution: {type: constant, params: {value: 10}}
    output_distribution: {type: constant, params: {value: 5}}
"""
STRATEGY = """
name: steady
description: two instances whose steps take one millisecond
mechanism: {num_instances: 2, alpha_coeffs: [0, 0, 0], beta_coeffs: [1000, 0, 0]}
parameters: []
objectives:
  - {metric: ttft_mean_ms, direction: min}
"""
# Instance 0 begins steps at 1111, 2111, 3111, 4111, … µs, and its second request joins at 4111. From 2500 µs on they
# take 2000 µs: it begins them at 1111, 2111, 3111, 5111, …, and the request has its first token at 7111.
TTFT_US = {
    "usual": [1000, 1000, 5111 - 3333, 6222 - 4444],
    "slow": [1000, 1000, 7111 - 3333, 6222 - 4444],
}

pytestmark = pytest.mark.lenient_promotion  # a user's source may add a Python number to an array


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "steady_load.yaml"
    path.write_text(WORKLOAD)
    return path


def test_run_takes_the_source_and_tells_its_figure(
    workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "2"]
    words += ["--workload-spec", str(workload), "--alpha-coeffs", "0,0,0"]
    words += ["--beta-coeffs", "1000,0,0", "--event-source", SOURCE]
    words += [
        "--policy-numbers",
        "source.from_s=0.0025",
        "--results-path",
        str(tmp_path / "r.json"),
    ]
    assert run(words) == 0
    assert "source.slowed_requests: 2 (" in capsys.readouterr().out
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["figures"] == {"source.slowed_requests": 2}
    assert [one["ttft_ms"] * 1000 for one in document["requests"]] == pytest.approx(TTFT_US["slow"])


def test_compare_has_its_figure_beside_the_others(workload: Path, tmp_path: Path) -> None:
    strategy = tmp_path / "steady.yaml"
    strategy.write_text(STRATEGY)
    slow = f"slow={strategy}:event_source={SOURCE};source.from_s=0.0025"
    words = [f"usual={strategy}", slow, "--workload", str(workload), "--seeds", "42,43"]
    assert compare([*words, "--inert", "records", "--output", str(tmp_path / "out.json")]) == 0
    arms = {one["name"]: one for one in json.loads((tmp_path / "out.json").read_text())["arms"]}

    def per_seed(arm: str, metric: str) -> list[Any]:
        found: list[Any] = arms[arm]["figures"]["all"][metric]["per_seed"]
        return found

    for arm, ttft_us in TTFT_US.items():
        assert per_seed(arm, "ttft_mean_ms") == pytest.approx([sum(ttft_us) / 4000] * 2)
    assert per_seed("slow", "source.slowed_requests") == [2, 2]
    assert per_seed("usual", "source.slowed_requests") == [None, None]  # it has no such source
