"""Whether a case is the same program on both sides: its text does not depend on how fast a machine is.

Of every case the largest program counts, the one that runs the engine, as it is handed to the compiler.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.against import WORKER, AgainstError, Side

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


def compared(name: str, other: Sequence[str], here: Sequence[str]) -> Programs:
    """Two programs as lines, without locations in the source."""
    there, mine = (Counter(map(_without_numbers, lines)) for lines in (other, here))
    own = (there - mine).total(), (mine - there).total()
    return Programs(name, (len(other), len(here)), own, list(other) == list(here))


def _without_numbers(line: str) -> str:
    return _NUMBER_OF_FUNCTION.sub(r"\1", _VALUE.sub("%", line))


def compare_programs(
    name: str, trees: tuple[Path, Path], data: Path, flags: Mapping[str, str]
) -> Programs:
    """The programs of a case in two trees, the other revision's first."""
    other, here = (_program_of(name, tree, data, flags) for tree in trees)
    return compared(name, other, here)


def _program_of(name: str, tree: Path, data: Path, flags: Mapping[str, str]) -> list[str]:
    command = [sys.executable, "-P", str(WORKER), name, str(data)]
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        dumped = {"JAX_DUMP_IR_TO": folder, "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
        Side(tree, command, {**flags, **dumped}).end()  # its first answer comes after a run
        found = sorted(Path(folder).glob("*.mlir"), key=lambda path: path.stat().st_size)
        if not found:
            raise AgainstError(f"{name}: JAX has put no program into {folder}")
        lines = found[-1].read_text().splitlines()
    return [text for line in lines if (text := _LOCATION.sub("", line))]


def table(revision: str, results: Sequence[Programs]) -> str:
    """The programs as a Markdown table."""
    lines = [
        f"| case | lines at {revision} | lines here | only at {revision} | only here | |",
        "|---|---|---|---|---|---|",
    ]
    for one in results:
        said = "the same, letter for letter" if one.is_same else "changed"
        counts = " | ".join(f"{count:,}" for count in (*one.num_lines, *one.num_own))
        lines.append(f"| `{one.name}` | {counts} | {said} |")
    return "\n".join(lines)
