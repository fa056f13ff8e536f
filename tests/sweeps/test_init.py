"""Tracks: a folder that is complete or not there, its baseline measured, its pages valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.init import main
from sweeps.ledger.__main__ import main as ledger
from sweeps.ledger.book import Ledger
from sweeps.ledger.trial import ArmRuns
from sweeps.runs.requests import workload_of
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of
from sweeps.tracks.problem import load_problem, to_markdown
from tests.support.recorded.reference_data import REPO_ROOT, SHARED_DIR
from tests.sweeps.tiny import TINY

FILES = {
    "baseline.json",
    "iter1-findings.md",
    "iter1-strategy.yaml",
    "ledger.jsonl",
    "ledger.md",
    "problem.md",
    "problem.yaml",
    "research.md",
    "workload.yaml",
}
SECTIONS = (
    "Hypothesis",
    "Experiment Design",
    "Results",
    "Root Cause Analysis",
    "Devil's Advocate",
    "Findings Classification",
    "Standards Audit",
    "Scope and Limitations",
    "Evidence Quality",
    "Implications",
    "Reproducing",
)
SCHEDULING = REPO_ROOT / "sweeps" / "tracks" / "scheduling"
PUBLISHED = SHARED_DIR / "data" / "blis_reference" / "strategy_pr452" / "baseline.json"
ARM = "tiny.yaml:max_num_scheduled_tokens=600"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(yaml.safe_load(TINY)["workload"]))
    return tmp_path


def init(*words: str) -> int:
    return main(["mine", "--workload", "w.yaml", "--baseline", ARM, *words])


def test_a_track_is_complete_and_usable(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--seeds", "42,43,44") == 0
    track = here / "tracks" / "mine"
    assert {path.name for path in track.iterdir()} == FILES
    assert "TTFT P99, ms, critical" in capsys.readouterr().out
    strategy = load_strategy(str(track / "iter1-strategy.yaml"))
    assert space_of(strategy).names == ("token_budget",)
    assert workload_of(strategy).num_requests == 40
    findings = (track / "iter1-findings.md").read_text()
    assert [line[3:] for line in findings.splitlines() if line.startswith("## ")] == list(SECTIONS)
    assert len(Ledger(track).contents().records) == 1
    for action in ("check", "status"):
        assert ledger([action, "--track", "mine"]) == 0
    assert ledger(["render", "--check", "--track", "mine"]) == 0
    problem = load_problem(str(track))
    assert problem.workload == "workload.yaml" and problem.baseline == ARM and not problem.by_design
    baseline = json.loads((track / "baseline.json").read_text())
    assert (track / "problem.md").read_text() == to_markdown(problem, baseline)


def test_the_baseline_is_measured(here: Path) -> None:
    assert init("--quiet", "--seeds", "42,43") == 0
    found = json.loads((here / "tracks" / "mine" / "baseline.json").read_text())
    assert set(found["results"]) == {"seed_42", "seed_43", "mean"}
    tails = [found["results"][name]["ttft_p99_ms"] for name in ("seed_42", "seed_43", "mean")]
    assert tails[0] != tails[1] and tails[2] == pytest.approx((tails[0] + tails[1]) / 2)
    row = next(row for row in found["intervals"] if row["metric"] == "ttft_p99_ms")
    assert row["low"] < row["mean"] < row["high"]
    assert found["targets"]["TTFT P99"].startswith(f"≤ {0.85 * tails[2]:,.1f}, critical ≤ ")
    assert found["config"]["max_num_scheduled_tokens"] == 600


def test_nothing_is_half_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sweeps.ledger.scaffold._write_pages", killed)
        assert init() == 130
    assert list((here / "tracks").iterdir()) == []


def test_existing_folders_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = here / "tracks" / "mine"
    other.mkdir(parents=True)
    (other / "notes.txt").write_text("mine")
    assert init() == 2 and "exists; choose another name" in capsys.readouterr().err
    assert init("--force") == 2 and "is no track" in capsys.readouterr().err
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_force_replaces_a_track_without_rows_only(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("--quiet") == 0 and init("--quiet", "--seeds", "1,2,3", "--force") == 0
    assert load_problem("tracks/mine").seeds == (1, 2, 3)
    words = ["--hypothesis", "h", "--diagnostic", "d", "--strategy", "tiny.yaml"]
    claims = ["--predict", "ttft_p99_ms <= -20%"]
    assert ledger(["plan", "1", "--track", "mine", *words, *claims]) == 0
    before = (here / "tracks" / "mine" / "ledger.jsonl").read_bytes()
    capsys.readouterr()
    assert init("--force") == 2
    assert "has records, which are never removed" in capsys.readouterr().err
    assert (here / "tracks" / "mine" / "ledger.jsonl").read_bytes() == before


def test_refresh_follows_an_edited_problem(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--quiet") == 0
    track = here / "tracks" / "mine"
    kept = {path.name: path.read_bytes() for path in track.iterdir()}
    problem = track / "problem.yaml"
    problem.write_text(problem.read_text().replace("ttft_p99_ms <= -15%", "ttft_p99_ms <= -30%"))
    assert main(["mine", "--refresh"]) == 0
    assert "`ttft_p99_ms <= -30%`" in (track / "problem.md").read_text()
    changed = {path.name for path in track.iterdir() if path.read_bytes() != kept[path.name]}
    assert changed == {"problem.yaml", "problem.md", "baseline.json"}
    assert main(["mine", "--refresh", "--seeds", "1"]) == 2
    assert main(["yours", "--refresh"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "no track is given"),
        (["a/b"], "a name has letters"),
        (["mine", "--workload", "mixd"], "did you mean 'mixed'"),
        (["mine", "--workload", "none.yaml"], "none.yaml"),
        (["mine", "--baseline", "nobody"], "strategy 'nobody' is unknown"),
        (["mine", "--seeds", "a"], "--seeds: 'a' is neither a number of seeds nor a list"),
        (["mine", "--seeds", "1,1"], "a seed is given twice"),
        (["mine", "--problem", "schedulin"], "did you mean 'scheduling'"),
        (["mine", "--rate", "-1"], "rate"),
        (["mine", "--in", "w.yaml"], "is not a folder"),
    ],
)
def test_refusals_write_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    before = sorted(here.rglob("*"))
    assert main(words) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    assert sorted(here.rglob("*")) == before


def test_a_baseline_that_does_not_end_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stuck(*_: Any) -> list[ArmRuns]:
        return [ArmRuns(("COMPLETED", "LIVELOCK", "COMPLETED"), {}, 0, {}, ())]

    monkeypatch.setattr("sweeps.ledger.scaffold.run_arms", stuck)
    assert init() == 2
    assert "ended on seed 43 with LIVELOCK" in capsys.readouterr().err
    assert list((here / "tracks").iterdir()) == []


def test_the_page_of_the_scheduling_problem_is_up_to_date() -> None:
    problem = load_problem("scheduling")
    baseline = json.loads((SCHEDULING / "baseline.json").read_text())
    assert (SCHEDULING / "problem.md").read_text() == to_markdown(problem, baseline)
    assert len(problem.prior_findings) == 11 and len(problem.constraints) == 5
    assert {criterion.protocol for criterion in problem.criteria} == {
        "registered",
        "later",
        "added",
    }


@pytest.mark.golden
def test_the_measured_baseline_is_the_published_one() -> None:
    if not PUBLISHED.is_file():
        pytest.skip("no published baseline beside this checkout")
    published = json.loads(PUBLISHED.read_text())["results"]
    found = json.loads((SCHEDULING / "baseline.json").read_text())["results"]
    for seed in ("seed_42", "seed_43", "seed_44"):
        for name, value in published[seed].items():
            decimals = 0 if name == "throughput_tps" else 1
            if isinstance(value, dict):
                assert {k: round(v, 1) for k, v in found[seed][name].items()} == value
            else:
                assert round(found[seed][name], decimals) == value, (seed, name)
    for name, value in published["mean"].items():
        if name != "note":  # the published means are of rounded values
            tolerance = 0.5 if name == "throughput_tps" else 0.06
            assert found["mean"][name] == pytest.approx(value, abs=tolerance), name


@pytest.mark.golden
def test_the_baseline_comes_out_again() -> None:
    from sweeps.ledger.scaffold import measure_baseline

    again = measure_baseline(load_problem("scheduling"), SCHEDULING)
    found = json.loads((SCHEDULING / "baseline.json").read_text())
    for name in ("results", "intervals", "targets", "config", "workload_hash"):
        assert again[name] == found[name], name
