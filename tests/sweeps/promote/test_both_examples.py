"""The two promotions of docs/how-to/promote.md, from file to pull request, at a small size."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from sweeps.promote.__main__ import main
from sweeps.promote.bundle import BODY, MANIFEST, PATCH
from sweeps.promote.evidence import survival, tracks
from sweeps.promote.evidence.concerns import TARGET_PROFILE, Concern, concerns
from sweeps.promote.evidence.hypotheses import inventory
from sweeps.promote.golang.target import load
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.promote.fakes import artifacts, minimal_runner
from tests.sweeps.promote.promotions import IMAGE

pytestmark = pytest.mark.lenient_promotion  # the example adds a weight to counts
PAGE = REPO_ROOT / "docs" / "how-to" / "promote.md"
TARGET = "llm-d-router@0.10.0"
SMALL = [
    "--dry-run",
    "--seeds",
    "8",
    "--survival-seeds",
    "6",
    "--num-requests",
    "300",
    "--image",
    IMAGE,
]
STRATEGIES = ("iter13_class_lead@found", "examples/policies/calm.yaml")
WINNER = "papers/openevolve/winner.yaml"  # a router that a program search found
SMALLER = {WINNER: {"300": "100"}}  # of requests


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few scenes and one concern, so that few programs are compiled."""
    alike = [one.model_copy(update={"shape": "sanity"}) for one in inventory().scenarios]
    few = inventory().model_copy(update={"scenarios": tuple(alike)})
    monkeypatch.setattr(tracks, "inventory", lambda: few)
    monkeypatch.setattr(tracks, "saturation_rate", lambda *given: 1000.0)

    def chosen() -> Iterator[Concern]:
        for one in concerns():
            is_left_out = one.name not in ("mixed-gpus", TARGET_PROFILE)
            yield (
                Concern(one.name, one.gap, one.title, "left out of this test")
                if is_left_out
                else one
            )

    kept = tuple(chosen())
    monkeypatch.setattr(survival, "concerns", lambda: kept)
    by_name = {one.name: one for one in kept}
    monkeypatch.setattr("sweeps.promote.evidence.concerns.concern_named", by_name.__getitem__)


def promoted(strategy: str, folder: Path) -> dict[str, str]:
    """Every file of a promotion whose gates are all approved."""
    sizes = SMALLER.get(strategy, {})
    words = [strategy, *(sizes.get(one, one) for one in SMALL), "--output", str(folder)]
    for gate in ("1", "2", "3"):
        assert main(words) == 3
        decision = ["--by", "A. Reviewer <a@example.org>", "--reason", "a test"]
        decision += ["--without-go"] * (gate == "1")
        code = main(["approve", gate, "--output", str(folder), *decision])
        if code == 3:  # a small run may show no gain; then the gate stays closed
            return artifacts(folder)
    assert main(words) == 0
    return artifacts(folder)


@pytest.fixture(scope="module")
def promotions(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], tuple[Path, dict[str, str]]]]:
    """Each promotion once."""
    made: dict[str, tuple[Path, dict[str, str]]] = {}
    with pytest.MonkeyPatch.context() as patched:
        small(patched)
        patched.chdir(REPO_ROOT)

        def of(strategy: str) -> tuple[Path, dict[str, str]]:
            if strategy not in made:
                folder = tmp_path_factory.mktemp("promotion") / "out"
                made[strategy] = folder, promoted(strategy, folder)
            return made[strategy]

        yield of


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [*STRATEGIES, WINNER])
def test_from_file_to_pull_request(
    strategy: str, promotions: Callable[[str], tuple[Path, dict[str, str]]], tmp_path: Path
) -> None:
    _, files = promotions(strategy)
    manifest, body = yaml.safe_load(files[MANIFEST]), files[BODY]
    verdicts = yaml.safe_load(files["evidence/verdicts.yaml"])["verdicts"]
    assert {one["track"] for one in verdicts} == {"A", "B", "C"}
    assert {one["evidence"] for one in verdicts} == {"simulated"}
    confirmed = [one["id"] for one in verdicts if one["verdict"] == "confirmed"]
    assert f"{len(confirmed)} of {len(verdicts)} hypotheses are confirmed" in body
    assert any(name.startswith("A-") for name in confirmed)
    in_reports = {uid for ids in manifest["runs"].values() for uid in ids}
    assert all(f"uid: {uid}" in "".join(files.values()) for uid in sorted(in_reports)[:20])
    tree = tmp_path / "router"
    (tree / "cmd/epp/runner").mkdir(parents=True)
    (tree / "cmd/epp/runner/runner.go").write_text(minimal_runner(load(TARGET)))
    (tmp_path / "change.patch").write_text(files[PATCH])
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    subprocess.run(["git", "apply", "--check", "../change.patch"], cwd=tree, check=True)


@pytest.mark.slow
def test_two_runs_have_the_same_bytes(
    promotions: Callable[[str], tuple[Path, dict[str, str]]], tmp_path: Path
) -> None:
    _, files = promotions(STRATEGIES[1])
    assert promoted(STRATEGIES[1], tmp_path / "again") == files


@pytest.mark.slow
def test_the_page_shows_what_is_generated(
    promotions: Callable[[str], tuple[Path, dict[str, str]]],
) -> None:
    """Every block with a title is a part of that file; blocks of evidence are of the full size."""
    files = promotions(STRATEGIES[1])[1] | promotions(STRATEGIES[0])[1]
    blocks = re.findall(
        r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE.read_text(encoding="utf-8"), re.M | re.S
    )
    generated = [(path, text) for path, text in blocks if path.startswith(("go/", "configs/"))]
    assert len(generated) >= 4
    for path, text in generated:
        assert text in files[path], path
    assert (
        dict(blocks)["examples/policies/calm.py"]
        in (REPO_ROOT / "examples/policies/calm.py").read_text()
    )
