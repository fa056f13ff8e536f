"""`blis-jax`: one name for every command, answers at once, and asks back about what it does not know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from blis_jax.commands.door.catalogue import COMMANDS
from blis_jax.commands.door.dispatch import main, overview
from blis_jax.commands.parser import as_called
from tests.commands.test_commands import COMMANDS as MODULES

ROOT = Path(__file__).parents[3]


def test_the_list_has_every_command_of_the_package() -> None:
    behind = {command.module for command in COMMANDS.values()}
    modules = {name.removesuffix(".__main__") for name in MODULES if "benchmarks" not in name}
    scripts = {name for name in modules if ".figures." in name}  # of one figure, named on its page
    assert modules - scripts <= behind
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.about)}$", overview(), re.MULTILINE)


def test_the_list_is_what_no_words_and_help_print(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["help"]):
        assert main(words) == 0 and capsys.readouterr().out == overview()


@pytest.mark.parametrize(
    ("words", "code", "stream", "expected"),
    [
        (["swep"], 2, "err", "blis-jax: error: unknown command 'swep'; did you mean 'sweep'?"),
        (["--versoin"], 2, "err", "blis-jax: error: unknown option '--versoin'"),
        (["zzz"], 2, "err", "unknown command 'zzz'; blis-jax --help lists them"),
        (["surrogate"], 2, "err", "surrogate: say what to do; use one of train, predict,"),
        (["surrogate", "trian"], 2, "err", "did you mean 'train'?"),
        (["sweep", "--workloads", "m"], 2, "err", "blis-jax sweep: error: unknown option"),
        (["ledger", "ad"], 2, "err", "blis-jax ledger: error: action 'ad' is unknown;"),
        (["completion", "fishy"], 2, "err", "did you mean 'fish'?"),
    ],
)
def test_what_it_does_not_know_ends_in_one_sentence(
    words: list[str], code: int, stream: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    printed = capsys.readouterr()
    assert expected in getattr(printed, stream) and printed.err.count("\n") == 1
    assert as_called("blis_jax.sweep") == "blis_jax.sweep"  # only inside


@pytest.mark.parametrize(
    "words", [["sweep"], ["compare"], ["ledger", "add"], ["surrogate", "predict"], ["policies"]]
)
def test_usage_shows_how_the_command_was_called(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in ([*words, "--help"], ["help", *words]):
        with pytest.raises(SystemExit) as ended:
            main(asked)
        assert ended.value.code in (0, None)
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: blis-jax {' '.join(words)} ")
        assert "python -m" not in shown.split("examples:")[0]


def test_the_console_script_is_this_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"blis-jax": "blis_jax.commands.door.dispatch:main"}


WATCHED = """
import sys
from blis_jax.commands.door.dispatch import main
try:
    main(sys.argv[1:])
finally:
    print("JAX" if "jax" in sys.modules else "without JAX")
"""


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["completion", "bash"], ["options"]])
def test_help_and_completion_come_without_jax(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *words],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("without JAX\n")
    if words == ["--version"]:
        assert re.match(r"blis-jax \d+\.\d+\.\d+\nprofile blis-2026-02/scheduling: ", done.stdout)


def test_python_m_is_the_same_door() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blis_jax", "ledger", "status", "--null-limit", "0"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "blis-jax ledger: error: --null-limit must be at least 1, got 0\n"
