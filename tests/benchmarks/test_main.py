"""The table of speed: each case is measured by itself."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from benchmarks import __main__ as command


def test_no_case_finds_the_programs_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def run(_words: list[str], env: dict[str, str], **_options: Any) -> Any:
        folders.append(env["JAX_COMPILATION_CACHE_DIR"])
        return subprocess.CompletedProcess([], 0, stdout='{"title": "a case"}\n', stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    for name in ("compile-cold", "single-baseline"):
        assert command.run_case(name) == {"title": "a case"}
    assert len(set(folders)) == 2
