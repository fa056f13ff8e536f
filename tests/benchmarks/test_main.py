"""The table of speed: each case is measured by itself."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.speed import case


def test_no_case_finds_the_programs_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def run(_words: list[str], env: dict[str, str], **_options: Any) -> Any:
        folders.append(env["JAX_COMPILATION_CACHE_DIR"])
        return subprocess.CompletedProcess([], 0, stdout='{"title": "a case"}\n', stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    for name in ("compile-cold", "single-baseline"):
        assert command.run_case(name) == {"title": "a case"}
    assert len(set(folders)) == 2


def test_a_case_compiles_runs_and_counts_scan_steps() -> None:
    """The cases call the engine's parts themselves, which no command does."""
    row = case.scale(500.0, 40, "forty requests")
    assert row.compile_s > 0 and int(row.run.split(" ms, ")[1].split()[0]) >= 40
