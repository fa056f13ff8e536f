"""`blis-jax`: every command of the package behind one name; what it does not know it asks back about."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blis_jax import __version__
from blis_jax.cluster.config import PROFILE, VARIANTS, ClusterConfig
from blis_jax.commands import cli, display
from blis_jax.commands.door.catalogue import COMMANDS, GROUPS, Command, actions_of
from blis_jax.commands.lacking import refuse_command
from blis_jax.commands.parser import called_as
from blis_jax.errors import ConfigError, closest

NAME = "blis-jax"
_HEAD = f"""\
usage: {NAME} COMMAND [options]

A simulator of clusters that serve LLMs, equal to BLIS request by request, for many seeds at once.
"""
_TAIL = f"""\
{NAME} COMMAND --help     a command's options, with examples
{NAME} --version          version and profile, which says which BLIS it equals
python -m blis_jax COMMAND does the same.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first words name; return its exit code."""
    return cli.run_command(NAME, _dispatch, arguments)


def _dispatch(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(overview(), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print("\n".join(version_lines()))
        return 0
    command, rest = _named(words)
    run = command.main()
    name = f"{NAME} {command.name}"
    display.rename(name)
    with called_as(command.module, name):
        return run(rest)


def _named(words: list[str]) -> tuple[Command, list[str]]:
    """The command and the words behind its name."""
    first, *rest = words
    if first in COMMANDS and not (rest and f"{first} {rest[0]}" in COMMANDS):
        return COMMANDS[first], rest
    actions = actions_of(first)
    if not actions:
        refuse_command(first)
        firsts = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
        kind = "option" if first.startswith("-") else "command"
        raise ConfigError(
            f"unknown {kind} {first[:60]!r}{closest(first, firsts) or f'; {NAME} --help lists them'}"
        )
    if rest and rest[0] in actions:
        return COMMANDS[f"{first} {rest[0]}"], rest[1:]
    if rest and rest[0] not in ("-h", "--help"):
        raise ConfigError(
            f"{first} {rest[0][:60]!r} is unknown; use one of {', '.join(actions)}"
            f"{closest(rest[0], actions)}"
        )
    raise ConfigError(
        f"{first}: say what to do; use one of {', '.join(actions)}, each has a --help"
    )


def overview() -> str:
    """List the commands in groups, one line each."""
    width = max(len(name) for name in COMMANDS) + 2
    lines = [_HEAD]
    for title, commands in GROUPS:
        lines += [
            f"{title}:",
            *(f"  {command.name:<{width}}{command.about}" for command in commands),
            "",
        ]
    return "\n".join([*lines, _TAIL])


def version_lines() -> list[str]:
    """Say the version, and which BLIS the results equal."""
    return [
        f"{NAME} {__version__}",
        f"profile {ClusterConfig().profile}: equal to BLIS as of its revision {PROFILE}, request by request",
        f"variants: {', '.join(VARIANTS)} (--variant); /corrected is without BLIS's defects (--corrected)",
    ]
