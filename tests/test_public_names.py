"""Public names stay what they are until a change is meant."""

from __future__ import annotations

import difflib
import subprocess
import sys

from tests.support.public_names import RECORDED
from tests.support.recorded.reference_data import REPO_ROOT


def test_public_names_signatures_and_variables_are_those_recorded() -> None:
    """In a process of its own: tests run with shapes checked, which changes signatures."""
    words = [sys.executable, "-m", "tests.support.public_names"]
    said = subprocess.run(words, cwd=REPO_ROOT, capture_output=True, text=True, check=True).stdout
    before, now = RECORDED.read_text(encoding="utf-8").split("\n"), said.split("\n")
    changes = [line for line in difflib.ndiff(before, now) if line[0] in "+-"]
    what = "say it in CHANGELOG.md, then run python -m tests.support.public_names --write"
    assert not changes, "\n".join([what, *changes])
