"""A stopped validation or survival page loses nothing: what was simulated is in a journal, and is not made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.files.journal import Journal
from blis_jax.progress import Board, Phase
from sweeps.promote.__main__ import main
from sweeps.promote.evidence import survival
from sweeps.promote.evidence.survival import EvidenceParts, journaled

GIVEN = ["iter13_class_lead@found", "--seeds", "3", "--num-requests", "40"]
FEW = ["--concerns", "mixed-gpus,prefix-block-64"]


def test_a_part_is_made_once_and_a_resumed_one_never(tmp_path: Path) -> None:
    path, content = tmp_path / "x.jsonl", {"seeds": [1]}
    made: list[str] = []

    def make(name: str) -> list[Any]:
        made.append(name)
        return [name, float("nan")]

    with pytest.raises(KeyboardInterrupt), journaled("x", "work", path, content, False) as parts:
        for name in ("a", "a", "b"):
            parts.of(name, lambda name=name: make(name))
        raise KeyboardInterrupt
    with journaled("x", "work", path, content, True) as parts:
        assert [parts.of(name, lambda name=name: make(name))[0] for name in "abc"] == list("abc")
    assert made == ["a", "b", "c"]
    assert not path.exists()  # all is done


def test_a_journal_of_other_work_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    begun = journaled("x", "work", path, {"seeds": [1]}, False)
    with pytest.raises(KeyboardInterrupt), begun as parts:
        parts.of("a", lambda: 1)  # without a finished part no journal is left
        raise KeyboardInterrupt
    with pytest.raises(ConfigError, match="seeds"), journaled("x", "work", path, {"seeds": [2]}, True):  # fmt: skip
        pass


def test_steps_are_counted_and_those_of_the_journal_say_nothing_of_the_pace() -> None:
    now = 0.0
    board = Board(lambda: now)
    shown = Phase(board, "stage validate", None, "runs")
    parts = EvidenceParts(shown)
    parts.kept["a"] = 1
    parts.expect(4, "scenes")
    with parts.step("a"):
        parts.of("a", lambda: 2)
    with parts.step("b"):
        now = 30.0
        parts.of("b", lambda: 2)
    assert shown.counted(now) == "2 of 4 scenes, 30 s each, 60 s left"


@pytest.mark.slow
def test_a_stopped_page_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append, run = Journal.append, survival.SeedRuns._made
    configs: list[ClusterConfig] = []

    def stopped(self: Journal, entry: object) -> None:
        append(self, entry)
        raise KeyboardInterrupt

    def counted(self: Any, drawn: str, spec: Any, config: ClusterConfig) -> Any:
        configs.append(config)
        return run(self, drawn, spec, config)

    monkeypatch.setattr(survival.SeedRuns, "_made", counted)
    whole, cut = tmp_path / "whole.md", tmp_path / "cut.md"
    assert main(["survival", *GIVEN, *FEW, "--output", str(whole)]) == 0
    num_whole = len(configs)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", stopped)
        assert main(["survival", *GIVEN, *FEW, "--output", str(cut)]) == 130
    assert "cut.jsonl has what was done; --resume goes on from there" in capsys.readouterr().err
    assert main(["survival", *GIVEN, *FEW, "--output", str(cut), "--resume"]) == 0
    assert len(configs) == 2 * num_whole  # none twice
    first, again = (json.loads(path.with_suffix(".json").read_text()) for path in (whole, cut))
    assert first == again
