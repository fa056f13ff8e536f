"""The order of stages, gates that hold for hashes, decisions, and promotions that are cut off anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from blis_jax.files import chain
from sweeps.promote.gates import check, decide, run_all, status_lines
from sweeps.promote.promotion import Finding, GateClosedError
from sweeps.promote.stages import (
    APPROVE,
    EDITED,
    INCOMPLETE,
    REJECT,
    STAGES,
    STALE,
    gate_state,
    require_open,
    run_stage,
    state_of,
)
from sweeps.promote.store import PromotionStore
from tests.support.killed import ROOT
from tests.sweeps.promote import fakes


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PromotionStore:
    fakes.stand_in(monkeypatch)
    begun = PromotionStore(tmp_path / "promotion")
    begun.begin(fakes.IDENTITY)
    return begun


def go_on(store: PromotionStore) -> list[str]:
    said: list[str] = []
    run_all(store, fakes.PROMOTION, fakes.EVIDENCE, said.append)
    return said


def approve(store: PromotionStore, gate: int) -> None:
    decide(store, gate, APPROVE, "A. Reviewer", "read")


def at_gate(store: PromotionStore, gate: int) -> None:
    """Everything before a gate is made and approved."""
    for earlier in range(1, gate + 1):
        with pytest.raises(
            GateClosedError, match=f"gate {earlier} is closed: waits for a decision"
        ):
            go_on(store)
        if earlier < gate:
            approve(store, earlier)


def test_stages_run_up_to_the_first_closed_gate(store: PromotionStore) -> None:
    at_gate(store, 1)
    assert set(fakes.artifacts(store.folder)) == {
        "maps.yaml", "plugins/a.go", "configs/epp.yaml", "gates/gate-1.findings.yaml",
    }  # fmt: skip
    approve(store, 1)
    with pytest.raises(GateClosedError, match="gate 2"):
        go_on(store)
    approve(store, 2)
    with pytest.raises(GateClosedError, match="gate 3"):
        go_on(store)
    approve(store, 3)
    said = go_on(store)
    assert "bundle: 2 files" in said
    assert [line for line in go_on(store) if "up to date" not in line and "gate" not in line] == []


def test_a_stage_behind_a_closed_gate_does_not_run(store: PromotionStore) -> None:
    at_gate(store, 1)
    with pytest.raises(GateClosedError, match="gate 1 is closed"):
        run_stage(store, fakes.PROMOTION, "hypothesise", {})
    with pytest.raises(GateClosedError, match="needs stage hypothesise, which is not made"):
        run_stage(store, fakes.PROMOTION, "tests", {})


@pytest.mark.parametrize("path", ["plugins/a.go", "configs/epp.yaml", "maps.yaml"])
def test_editing_after_approval_blocks_the_next_stage(store: PromotionStore, path: str) -> None:
    at_gate(store, 1)
    approve(store, 1)
    file = store.path(path)
    before = file.read_text()
    file.write_text(before + "# better\n")
    with pytest.raises(GateClosedError, match=f"{path} was changed after A. Reviewer decided"):
        require_open(store, 1)
    with pytest.raises(GateClosedError):
        run_stage(store, fakes.PROMOTION, "hypothesise", {})
    file.write_text(before)
    require_open(store, 1)


def test_an_edited_file_can_be_approved_as_it_is(store: PromotionStore) -> None:
    at_gate(store, 1)
    store.path("configs/epp.yaml").write_text("kind: other\n")
    assert state_of(store, "translate").word == EDITED
    with pytest.raises(GateClosedError, match="no findings for the files as they are"):
        approve(store, 1)
    check(store, fakes.PROMOTION, 1)
    approve(store, 1)
    run_stage(store, fakes.PROMOTION, "hypothesise", {})
    with pytest.raises(ConfigError, match=r"epp\.yaml was edited by hand.*--overwrite"):
        run_stage(store, fakes.PROMOTION, "translate", {})
    run_stage(store, fakes.PROMOTION, "translate", {}, may_overwrite=True)
    assert store.path("configs/epp.yaml").read_text() == "kind: EPP\n"
    assert state_of(store, "hypothesise").word == STALE


def test_a_critical_finding_keeps_the_gate_closed(
    store: PromotionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_gate(store, 1)
    planted = [
        Finding("CRITICAL", "priority-sign", "configs/epp.yaml", "sheddable is above critical")
    ]
    fakes.stand_in(monkeypatch, planted)
    check(store, fakes.PROMOTION, 1)
    with pytest.raises(GateClosedError, match=r"1 CRITICAL finding in gates/gate-1\.findings"):
        approve(store, 1)
    decide(store, 1, REJECT, "A. Reviewer", "the sign")
    assert gate_state(store, 1).detail == "rejected by A. Reviewer: the sign"
    text = store.path("gates/gate-1.findings.yaml").read_text()
    assert "rule: priority-sign" in text


def test_a_decision_is_a_signed_file(store: PromotionStore) -> None:
    at_gate(store, 1)
    for by, reason in (("", "read"), ("A. Reviewer", " ")):
        with pytest.raises(ConfigError, match="is empty"):
            decide(store, 1, APPROVE, by, reason)
    approve(store, 1)
    file = store.path("gates/gate-1.decision.yaml")
    assert "signed_off_by: A. Reviewer" in file.read_text()
    file.write_text(file.read_text().replace("A. Reviewer", "B. Other"))
    assert not gate_state(store, 1).is_open
    assert "not as it was signed" in gate_state(store, 1).detail


def test_a_rejection_closes_what_was_open(store: PromotionStore) -> None:
    at_gate(store, 1)
    approve(store, 1)
    decide(store, 1, REJECT, "B. Other", "a second look")
    with pytest.raises(GateClosedError, match=r"rejected by B\. Other"):
        require_open(store, 1)


def test_the_history_is_chained(store: PromotionStore) -> None:
    at_gate(store, 2)
    kinds = [record["kind"] for record in store.records()]
    assert kinds == [
        "ledger", "began", "made", "began", "made", "checked", "decided", "began", "made", "checked",
    ]  # fmt: skip
    text = store.history.read_text()
    store.history.write_text(text.replace('"by":"A. Reviewer"', '"by":"B. Reviewer"'))
    assert chain.read(store.history).problem
    with pytest.raises(ConfigError, match="is broken"):
        go_on(store)


def test_another_strategy_needs_another_folder(store: PromotionStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="made with different strategy"):
        store.begin(fakes.IDENTITY | {"strategy": "other.yaml"})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not of a promotion"):
        PromotionStore(tmp_path / "full").begin(fakes.IDENTITY)
    with pytest.raises(ConfigError, match="holds no promotion"):
        PromotionStore(tmp_path / "none").identity()


def test_paths_stay_below_the_folder(store: PromotionStore) -> None:
    for name in ("../out.txt", "/etc/out.txt", ""):
        with pytest.raises(ConfigError, match="not a path below"):
            store.path(name)


def test_files_that_a_stage_has_no_more_are_removed(
    store: PromotionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage(store, fakes.PROMOTION, "maps", {})
    made = replace(STAGES["maps"], make=lambda work: {"dictionary.yaml": "rows: 2\n"})
    monkeypatch.setitem(STAGES, "maps", made)
    run_stage(store, fakes.PROMOTION, "maps", {})
    assert list(fakes.artifacts(store.folder)) == ["dictionary.yaml"]


def test_a_stage_that_was_cut_off_says_so(store: PromotionStore) -> None:
    at_gate(store, 1)
    content = store.last("made", stage="maps")
    assert content is not None
    store.append(
        "began",
        {"stage": "maps", "inputs": {}, "options": {}, "outputs": {"maps.yaml": "0", "b": "1"}},
    )
    state = state_of(store, "maps")
    assert (state.word, state.detail) == (INCOMPLETE, "it was cut off, 0 of 2 files are written")
    assert any("maps: incomplete" in line for line in status_lines(store))
    with pytest.raises(GateClosedError, match="stage maps is incomplete"):
        check(store, fakes.PROMOTION, 1)


def test_a_missing_file_is_made_again(store: PromotionStore) -> None:
    at_gate(store, 1)
    store.path("plugins/a.go").unlink()
    assert state_of(store, "translate").word == INCOMPLETE
    with pytest.raises(GateClosedError, match="waits for a decision"):
        go_on(store)
    assert store.path("plugins/a.go").read_text() == "package a\n"


def test_two_promotions_have_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.stand_in(monkeypatch)
    for name in ("one", "two"):
        fakes.finish(tmp_path / name)
    assert fakes.artifacts(tmp_path / "one") == fakes.artifacts(tmp_path / "two")


@pytest.mark.slow
def test_a_promotion_goes_on_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kills" / "start").mkdir(parents=True)
    words = [sys.executable, "-m", "tests.support.killed", str(tmp_path / "kills"), "promote"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(words, check=True, env=environment, cwd=ROOT)
    fakes.stand_in(monkeypatch)
    fakes.finish(tmp_path / "whole")
    whole = fakes.artifacts(tmp_path / "whole")
    copies = [path for path in (tmp_path / "kills").iterdir() if path.name != "start"]
    assert len(copies) > 100
    words_seen = set()
    for copy in copies[::4]:
        store = PromotionStore(copy / "promotion")
        if store.is_begun:
            words_seen |= {state_of(store, name).word for name in STAGES}
        fakes.finish(store.folder)
        assert fakes.artifacts(store.folder) == whole, copy
    assert INCOMPLETE in words_seen


def test_a_gate_lists_what_was_edited_and_what_no_stage_made(store: PromotionStore) -> None:
    at_gate(store, 1)
    assert not check(store, fakes.PROMOTION, 1)
    (store.folder / "configs/epp.yaml").write_text("kind: another\n")
    (store.folder / "plugins/b.go").write_text("package a\n")
    found = {(one.rule, one.path) for one in check(store, fakes.PROMOTION, 1)}
    assert found == {("edited-by-hand", "configs/epp.yaml"), ("not-of-a-stage", "plugins/b.go")}
