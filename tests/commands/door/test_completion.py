"""Completion, from what the commands declare, asked in each shell that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from blis_jax.commands.door.catalogue import COMMANDS, options_of, parsers
from blis_jax.commands.door.declarations import SCRIPTS

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
    "promote sta": "status",
    "promote iter13": "iter13_class_lead",
    "promote iter13_class_lead --tar": "--target",
    "promote gate --out": "--output",
    "compare --output ": "",  # the shell goes on with files
}
ASK_ZSH = """
compdef() { }
_files() { }
compadd() { shift; print -rn -- ${(M)@:#${words[CURRENT]}*} }
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_names() -> None:
    script = SCRIPTS["bash"]() + "".join(
        f"set -- blis-jax {' '.join(repr(word) for word in line.split(' '))}\n{ASK}"
        for line in CASES
    )
    assert answers(["bash"], script) == CASES


def answers(command: list[str], script: str) -> dict[str, str]:
    """What a shell offers for each case, a line each."""
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
    assert not done.stderr
    return dict(zip(CASES, done.stdout.split("\n"), strict=False))


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_commands_options_and_names() -> None:
    script = ASK_ZSH + SCRIPTS["zsh"]()
    for line in CASES:
        words = " ".join(repr(word) for word in ("blis-jax", *line.split(" ")))
        script += f"words=({words}); CURRENT=${{#words}}; _blis_jax; print\n"
    assert answers(["zsh", "-f"], script) == CASES


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_options_and_names() -> None:
    script = SCRIPTS["fish"]()
    for line in CASES:
        script += f"echo (complete -C 'blis-jax {line}' | string replace -r '\\t.*' '')\n"
    found = answers(["fish", "--no-config"], script)
    in_order = {line: " ".join(sorted(words.split())) for line, words in CASES.items()}
    assert found | {"compare --output ": ""} == in_order


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
