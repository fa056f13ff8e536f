"""Completion, from what the commands declare: bash's is run, the others are looked at."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from blis_jax.commands.door.catalogue import COMMANDS
from blis_jax.commands.door.completion import SCRIPTS
from blis_jax.commands.door.declarations import options_of, parsers

ASK = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _blis_jax; echo "${COMPREPLY[*]}"
"""
CASES = {
    "sw": "sweep",
    "ledger re": "render replay",
    "sweep --no-c": "--no-cache",
    "sweep --device ": "cpu gpu",
    "compare --rng ": "reference jax",
    "sweep --workload mul": "multiprefix multiturn multiturn_heavy",
    "optimize iter08_t": "iter08_token_budget",
    "ledger add --evidence j": "judge",
    "surrogate train --ou": "--output",
    "completion z": "zsh",
    "compare --output ": "",  # bash goes on with files
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_names() -> None:
    script = SCRIPTS["bash"]() + "".join(
        f"set -- blis-jax {' '.join(repr(word) for word in line.split(' '))}\n{ASK}"
        for line in CASES
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert dict(zip(CASES, done.stdout.split("\n"), strict=False)) == CASES and not done.stderr


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_command_and_option_is_there(shell: str) -> None:
    script = SCRIPTS[shell]()
    for name in COMMANDS:
        assert re.search(rf"[\" ]{name.split()[-1]}[\" ;]", script), name
    for name, parser in parsers().items():
        for option in options_of(parser):
            word = next(text for text in option.option_strings if text.startswith("--"))
            written = f"-l {word[2:]}" if shell == "fish" else word
            assert re.search(rf"{written}[ \"]", script), (name, word)
    if shell == "fish":  # quotes of a description do not end it
        assert all(line.replace("\\'", "").count("'") % 2 == 0 for line in script.splitlines())
