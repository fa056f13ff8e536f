"""`python -m sweeps.promote`: one sentence for what cannot be used, exit codes, and the way from gate to gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.evolve.go.reader import policy_of
from sweeps.evolve.go.source import read
from sweeps.promote.__main__ import main
from sweeps.promote.promotion import Finding
from tests.support.evolve.programs import whole
from tests.sweeps.promote import fakes

STRATEGY = """
name: mine
mechanism: {{num_instances: 4, routing_policy: "{router}"}}
objectives: [{{metric: e2e_mean_ms, direction: min}}]
workload: mixed
seeds: [42, 43, 44]
"""
DRY = ["--dry-run", "--seeds", "3", "--survival-seeds", "6"]


@pytest.fixture
def with_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.stand_in(monkeypatch)


def words(folder: Path, *more: str) -> list[str]:
    return [*more, "--output", str(folder)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "no strategy is given"),
        (["iter13_class_leed"], "strategy 'iter13_class_leed' is unknown"),
        (["iter13_class_lead@find"], "point 'find' is unknown"),
        (["iter05_simplified", "--target", "llm-d-router"], "is not NAME@VERSION"),
        (["iter05_simplified", "--baseline", "iter0"], "strategy 'iter0' is unknown"),
        (["iter05_simplified", "--dry-run", "--reports", "x"], "give one of them"),
        (["iter05_simplified", "--reports", "nowhere"], "nowhere is not a folder"),
        (["iter05_simplified", "--seeds", "4"], "--seeds are those of --dry-run; give that too"),
        (["iter05_simplified", "--survival-seeds", "1"], "--survival-seeds"),
        (
            ["approve", "4", "--by", "A <a@b.org>", "--reason", "B"],
            "gate '4' is unknown; give 1, 2 or 3",
        ),
        (["approve"], "no gate is given"),
        (["approve", "1", "--by", "A"], "--reason is missing"),
        (["reject", "1", "--by", "A <a@b.org>", "--reason", "B"], "holds no promotion"),
        (["status"], "holds no promotion"),
        (
            ["validate", "iter05_simplified"],
            "give --reports DIR with benchmark reports, or --dry-run",
        ),
        (["maps", "status"], "status is an action; write it first"),
        (["survival"], "no strategy is given"),
        (
            ["survival", "iter05_simplified", "--concerns", "mixed-gpus,start-upp"],
            "concern 'start-upp' is no row of Map C; did you mean 'start-up'",
        ),
    ],
)
def test_what_cannot_be_used_ends_in_one_sentence(
    given: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--output", str(tmp_path / "out")] if given[:1] != ["survival"] else []
    assert main([*given, *more]) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1


def test_a_router_that_was_read_statement_by_statement_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")
    go = tmp_path / "sorted.go"
    go.write_text(whole("labelled"))
    (tmp_path / "mine.py").write_text(policy_of(read(go)))
    strategy = tmp_path / "mine.yaml"
    strategy.write_text(STRATEGY.format(router=f"{tmp_path}/mine.py:route"))
    assert main([str(strategy), *DRY, *words(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert (
        "read from Go statement by statement" in said and "score every snapshot by itself" in said
    )
    assert "stage" not in said and not [*(tmp_path / "out").glob("*")]


@pytest.mark.usefixtures("with_fakes")
def test_from_gate_to_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    for gate in ("1", "2", "3"):
        assert main(words(folder, "iter05_simplified", *DRY)) == 3
        assert f"gate {gate} is closed: waits for a decision" in capsys.readouterr().err
        assert main(words(folder, "status")) == 0
        assert f"gate {gate}: closed, waits for a decision" in capsys.readouterr().out
        decision = ["--by", "A. Reviewer <a@example.org>", "--reason", "read"]
        assert main(words(folder, "approve", gate, *decision)) == 0
    assert main(words(folder, "iter05_simplified", *DRY)) == 0
    assert "Done:" in capsys.readouterr().out
    assert main(words(folder, "iter05_simplified", *DRY)) == 0
    capsys.readouterr()
    assert main(words(folder, "--dry-run", "--seeds", "4", "--survival-seeds", "6")) == 3
    said = capsys.readouterr()
    assert "validate: 2 files" in said.err
    assert (
        "gate 3 is closed: evidence/one.txt was changed after A. Reviewer <a@example.org> decided"
        in said.err
    )


@pytest.mark.usefixtures("with_fakes")
def test_stages_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert main(words(folder, "maps", "iter05_simplified")) == 0
    said = capsys.readouterr().out
    assert said.startswith("Asked:") and said.endswith(f"\n\n{folder}/maps.yaml\n")
    assert main(words(folder, "hypothesise")) == 3
    assert "needs stage translate, which is not made" in capsys.readouterr().err
    assert main(words(folder, "gate", "1")) == 3
    assert "stage translate is not made" in capsys.readouterr().err
    assert main(words(folder, "translate")) == 0
    assert main(words(folder, "hypothesise")) == 3
    assert "gate 1 is closed: no findings yet" in capsys.readouterr().err
    assert main(words(folder, "gate", "1")) == 3
    assert "gate 1 is closed: waits for a decision" in capsys.readouterr().out
    assert main(words(folder, "approve", "1", "--by", "A <a@b.org>", "--reason", "B")) == 0
    assert main(words(folder, "gate", "1")) == 0
    assert main(words(folder, "hypothesise")) == 0
    assert main(words(folder, "maps", "iter06_sjf")) == 2
    assert "was made with different strategy" in capsys.readouterr().err


@pytest.mark.usefixtures("with_fakes")
def test_a_critical_finding_cannot_be_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = [Finding("CRITICAL", "unknown-field", "configs/epp.yaml", "wieght is unknown")]
    fakes.stand_in(monkeypatch, planted)
    folder = tmp_path / "out"
    assert main(words(folder, "iter05_simplified", *DRY)) == 3
    said = capsys.readouterr().err
    assert "CRITICAL unknown-field: configs/epp.yaml: wieght is unknown" in said
    assert "put its CRITICAL findings right and call this command again" in said
    assert main(words(folder, "status")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mend what is CRITICAL in" in said and "gates/gate-1.findings.yaml and make" in said
    assert main(words(folder, "approve", "1", "--by", "A <a@b.org>", "--reason", "B")) == 3
    assert "stays closed: 1 CRITICAL finding" in capsys.readouterr().err


@pytest.mark.usefixtures("with_fakes")
def test_a_real_promotion_needs_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    for gate in ("1", "2"):
        assert main(words(folder, "iter05_simplified")) == 3
        assert main(words(folder, "approve", gate, "--by", "A <a@b.org>", "--reason", "B")) == 0
    capsys.readouterr()
    assert main(words(folder, "iter05_simplified")) == 2
    assert "give --reports DIR with benchmark reports, or --dry-run" in capsys.readouterr().err
    (tmp_path / "reports" / "mixed" / "baseline").mkdir(parents=True)
    (tmp_path / "reports" / "mixed" / "baseline" / "1.yaml").write_text("version: '0.2'\n")
    assert main(words(folder, "iter05_simplified", "--reports", str(tmp_path / "reports"))) == 3
    assert "gate 3 is closed" in capsys.readouterr().err


@pytest.mark.lenient_promotion
@pytest.mark.usefixtures("with_fakes")
def test_a_policy_file_that_changed_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.recorded.reference_data import REPO_ROOT

    for name in ("calm.py", "calm.yaml"):
        text = (REPO_ROOT / "examples" / "policies" / name).read_text()
        (tmp_path / name).write_text(text)
    strategy = str(tmp_path / "calm.yaml")
    assert main(words(tmp_path / "out", "maps", strategy)) == 0
    assert main(words(tmp_path / "out", "maps", strategy)) == 0
    policy = tmp_path / "calm.py"
    policy.write_text(policy.read_text().replace("2.0", "3.0"))
    capsys.readouterr()
    assert main(words(tmp_path / "out", "maps", strategy)) == 2
    assert "was made with different content" in capsys.readouterr().err


@pytest.mark.usefixtures("with_fakes")
def test_status_names_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    for strategy, stage, step in (
        (["iter05_simplified"], "maps", "make it: blis-jax promote translate"),
        ([], "translate", "look through it: blis-jax promote gate 1"),
    ):
        assert main(words(folder, stage, *strategy)) == 0
        capsys.readouterr()
        assert main(words(folder, "status")) == 0
        assert step in " ".join(capsys.readouterr().out.split())
