"""Whether a case is the same program on both sides, with as many calls around it, however fast a machine is.

Of every case the largest program counts, the one that runs the engine, as it is handed to the compiler.
What Python does around it is counted in calls of functions, in the thread that asks for the run.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.speed.against import WORKER, AgainstError, Side
from blis_jax.reports.render import table_text

_LOCATION = re.compile(r" ?loc\(.*\)$|^#loc.*$")
_VALUE = re.compile(r"%\w+(#\d+)?(:\d+)?")
_NUMBER_OF_FUNCTION = re.compile(r"(@[A-Za-z_]+?)(_\d+)?\b")


@dataclass(frozen=True)
class Programs:
    """A case's programs, the other revision's first."""

    name: str
    num_lines: tuple[int, int]
    num_own: tuple[int, int]  # lines that the other side lacks, whatever the numbers of values
    is_same: bool  # letter for letter
    num_calls: tuple[int, int]  # of Python functions in a warm run


class Found(NamedTuple):
    """A case on one side: its program as lines, without locations in the source, and Python's calls around it."""

    lines: Sequence[str]
    num_calls: int = 0


def compared(name: str, at_revision: Found, at_home: Found) -> Programs:
    """Compare two sides of a case."""
    other, here = at_revision.lines, at_home.lines
    there, lines_here = (Counter(map(_without_numbers, lines)) for lines in (other, here))
    num_own = (there - lines_here).total(), (lines_here - there).total()
    is_same, counts = list(other) == list(here), (at_revision.num_calls, at_home.num_calls)
    return Programs(name, (len(other), len(here)), num_own, is_same, counts)


def _without_numbers(line: str) -> str:
    return _NUMBER_OF_FUNCTION.sub(r"\1", _VALUE.sub("%", line))


def compare_programs(
    name: str, trees: tuple[Path, Path], data: Path, flags: Mapping[str, str]
) -> Programs:
    """Compare the programs of a case in two trees, the other revision's first."""
    return compared(name, *(_found(name, tree, data, flags) for tree in trees))


def _found(name: str, tree: Path, data: Path, flags: Mapping[str, str]) -> Found:
    command = [sys.executable, "-P", str(WORKER), name, str(data)]
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        dumped = {"JAX_DUMP_IR_TO": folder, "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
        side = Side(tree, command, {**flags, **dumped})  # its first answer comes after a run
        try:
            num_calls = side.ask("count")["calls"]
        finally:
            side.end()
        files = sorted(Path(folder).glob("*.mlir"), key=lambda path: path.stat().st_size)
        if not files:
            raise AgainstError(f"{name}: JAX has put no program into {folder}")
        lines = files[-1].read_text().splitlines()
    return Found([text for line in lines if (text := _LOCATION.sub("", line))], num_calls)


def table(revision: str, results: Sequence[Programs]) -> str:
    """Write the programs as a Markdown table."""
    head = [f"{what} {where}" for what in ("lines", "only") for where in (f"at {revision}", "here")]
    rows = []
    for programs in results:
        said = "the same, letter for letter" if programs.is_same else "changed"
        counts = (f"{count:,}" for count in (*programs.num_lines, *programs.num_own))
        rows.append((f"`{programs.name}`", *counts, said, *map("{:,}".format, programs.num_calls)))
    return table_text(("case", *head, "", f"calls at {revision}", "calls here"), rows)
