"""`blis-jax`: every command of the package behind one name; and `blis-jax doctor`, what is installed or missing.

An unknown command is an error that proposes the nearest known one.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from blis_jax import __version__, backend, progress
from blis_jax.cluster.config import PROFILE, VARIANTS, ClusterConfig
from blis_jax.commands import cli
from blis_jax.commands.door.catalogue import COMMANDS, GROUPS, Command, actions_of
from blis_jax.commands.lacking import EXTRAS, refuse_command
from blis_jax.commands.options import CommandOptions
from blis_jax.commands.parser import called_as
from blis_jax.errors import ConfigError, closest
from blis_jax.lazy import jax

NAME = "blis-jax"
_HEAD = f"""\
usage: {NAME} COMMAND [options]

A simulator of clusters that serve LLMs, equal to BLIS request by request, for many seeds at once.
"""
_TAIL = f"""\
{NAME} compare vllm llm-d-default answers a first question.
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
    progress.rename(name)
    with called_as(command.module, name):
        return run(rest)


def _named(words: list[str]) -> tuple[Command, list[str]]:
    """Return the command that the words name, and the words after its name."""
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
    """Return lines with the version, and with the BLIS whose results are equal."""
    return [
        f"{NAME} {__version__}",
        f"profile {ClusterConfig().profile}: equal to BLIS as of its revision {PROFILE}, request by request",
        f"variants: {', '.join(VARIANTS)} (--variant); /corrected is without BLIS's defects (--corrected)",
    ]


# --- `blis-jax doctor` ----------------------------------------------------------------------------


MODULE = "blis_jax.commands.door.dispatch"
EXIT_INCOMPLETE = 1  # something that every command needs is missing
_DESCRIPTION = """\
Say what is installed, what is missing for which command, the cores and devices that there are, where
compiled programs are kept, and whether XLA has the options that make it fast. Exit code 1 if something
is missing that every command needs.
"""
_LOOP_OPTION = "xla_cpu_small_while_loop_byte_threshold"


class DoctorOptions(CommandOptions, command=MODULE, description=_DESCRIPTION):
    """Options of the command: none."""


@DoctorOptions.as_main
def doctor(options: DoctorOptions) -> int:
    """Run the command; return its exit code."""
    missing = missing_packages()
    kept = [flags_line(os.environ.get("XLA_FLAGS")), cache_line()]  # before JAX is there
    lines = [*version_lines(), machine_line(), *device_lines(missing), *kept, *group_lines()]
    print("\n".join(lines))
    for name in missing:
        cli.say(MODULE, f"{name} is not installed, and every command needs it; pip install {name}")
    return EXIT_INCOMPLETE if missing else 0


def machine_line() -> str:
    """Return a line with Python, system and cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    of_all = "" if cores == os.cpu_count() else f" of {os.cpu_count()}"
    system = f"{platform.system()} {platform.machine()}"
    return f"Python {platform.python_version()} on {system}, {cores}{of_all} cores"


def device_lines(missing: Sequence[str]) -> list[str]:
    """Return a line with JAX's version and the devices that it finds."""
    if "jax" in missing:
        return []
    try:
        devices = jax.devices()
    except RuntimeError as error:  # JAX_PLATFORMS asks for what is not there
        return [f"JAX {jax.__version__} does not start: {str(error).splitlines()[0]}"]
    names = ", ".join(f"{device.platform} {device.device_kind}" for device in devices)
    return [f"JAX {jax.__version__}, {len(devices)} device{'s' * (len(devices) > 1)}: {names}"]


def flags_line(flags: str | None) -> str:
    """Return a line on whether XLA_FLAGS, given as `flags`, has the option that makes a simulation on a CPU fast."""
    if _LOOP_OPTION in (flags or ""):
        return "XLA's option for long loops: set"
    words = "XLA's option for long loops: not set, so runs on a CPU are about ten times slower"
    if not flags:
        return f"{words}; XLA_FLAGS is empty, which keeps it out: unset XLA_FLAGS"
    return f"{words}; your {backend.EXTRA_OPTIONS} lacks it: add {backend.CPU_OPTIONS} there"


def cache_line() -> str:
    """Return a line with the folder of the compiled programs, their number and their size."""
    folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or backend.cache_folder())
    place = folder
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        return f"compiled programs: not kept, {folder} cannot be written; set JAX_COMPILATION_CACHE_DIR"
    if os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in ("false", "0"):
        return "compiled programs: not kept, as JAX_ENABLE_COMPILATION_CACHE says"
    sizes = list(_sizes(folder))
    files = "file" if len(sizes) == 1 else "files"
    return f"compiled programs: {folder}, {len(sizes)} {files}, {sum(sizes) / 1e6:,.0f} MB"


def _sizes(folder: Path) -> Iterator[int]:
    for file in folder.rglob("*") if folder.is_dir() else ():
        try:
            if file.is_file():
                yield file.stat().st_size
        except OSError:  # another process has just removed it
            continue


def missing_packages() -> list[str]:
    """Return the required packages that are missing; empty if blis-jax itself is not installed as a package."""
    try:
        required = importlib.metadata.requires("blis-jax") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    names = [
        re.split(r"[^A-Za-z0-9._-]", requirement)[0]
        for requirement in required
        if "extra ==" not in requirement
    ]
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def group_lines() -> list[str]:
    """Return a line for each optional group: installed, or what is missing and how to install it."""
    lines = ["optional groups:"]
    for extra in EXTRAS:
        state = "installed"
        if extra.missing:
            names = ", ".join(extra.missing)
            state = f"missing ({names}): pip install 'blis-jax[{extra.name}]'"
        lines.append(f"  {extra.name:<10} for {extra.needed_for}: {state}")
    return lines
