"""Every command of the repository explains itself."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("blis_jax", "sweeps", "surrogate", "papers", "benchmarks")
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if re.search(r"\bParser\(\s*prog=", path.read_text(encoding="utf-8"))
    and "def main(arguments" in path.read_text(encoding="utf-8")
)


def test_the_commands_are_found() -> None:
    assert {"blis_jax.sweep", "sweeps.optimize", "surrogate.coverage"} <= set(COMMANDS)
    assert len(COMMANDS) >= 20


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = importlib.import_module(name).main
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(command(["--help"]))
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m {name.removesuffix('.__main__')} ")
    assert "%(" not in shown and "%%" not in shown
