"""Public names stay what they are until a change is meant."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.support.public_names import RECORDED, text


def test_public_names_signatures_and_variables_are_those_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    before, now = RECORDED.read_text(encoding="utf-8").split("\n"), text().split("\n")
    changes = [line for line in difflib.ndiff(before, now) if line[0] in "+-"]
    what = "say it in CHANGELOG.md, then run python -m tests.support.public_names --write"
    assert not changes, "\n".join([what, *changes])
