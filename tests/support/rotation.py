"""Which slow tests run when: those near what a landing touches first, as many as fit, and the others in turn.

Of cases that repeat a kind one runs always, the others are slow (`rotating`). A turn is a number that every landing
raises (`tests/data/turn`, `make turn`); twenty turns run every slow test.
"""

from __future__ import annotations

import ast
import itertools
import json
import statistics
import subprocess
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.source_tree import imported_modules, parsed

ROOT = Path(__file__).parents[2]
SECONDS = ROOT / "tests" / "data" / "slow_seconds.json"  # of one test of a kind, as last measured
TURN = ROOT / "tests" / "data" / "turn"
UNMEASURED_S = 60.0  # some take minutes, and CI has an end
MEASURED = ROOT / "out" / "slow_seconds.json"  # what the last test run here proposes


def rotating(values: Iterable[Any], *, always: Collection[Any]) -> list[Any]:
    """The values as parameters of a test; those that are not in `always` are slow."""
    values = list(values)
    missing = [one for one in always if one not in values]
    assert not missing, f"not among the values: {missing}"
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=[] if one in always else pytest.mark.slow,
        )
        for one in values
    ]


def part_of(kinds: Sequence[Hashable], part: int, num_parts: int) -> list[int]:
    """Places of the tests in the K-th of N parts, given what kind each is of; every test is in one part.

    A kind with more tests than there are parts is dealt out in pieces of neighbours, which share what they compile.
    """
    places: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(kinds):
        places.setdefault(kind, []).append(place)
    pieces: list[list[int]] = []
    for of_kind in places.values():
        size = -(-len(of_kind) // num_parts)
        pieces += [of_kind[start : start + size] for start in range(0, len(of_kind), size)]
    return sorted(itertools.chain.from_iterable(pieces[part - 1 :: num_parts]))


def changed_since(revision: str, root: Path = ROOT) -> set[str]:
    """Files that differ from a revision, relative to the root; files that git does not track yet included.

    Raises:
        subprocess.CalledProcessError: git does not know the revision.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    return {*git("diff", "--name-only", revision), *git("ls-files", "-o", "--exclude-standard")}


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def distances(files: Collection[str], root: Path = ROOT) -> dict[str, int]:
    """How many imports lie between each module, tests too, and the nearest changed file.

    A file that is no module counts as the modules of its folder, so a strategy's YAML touches who reads it.
    """
    tree: dict[str, ast.Module] = parsed(root)
    tree |= {
        _module(str(path.relative_to(root))): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((root / "tests").rglob("*.py"))
    }
    importers: dict[str, set[str]] = {}
    for name, module in tree.items():
        for other in imported_modules(module, tree):
            importers.setdefault(other, set()).add(name)
    folders = {str(Path(file).parent) for file in files if not file.endswith(".py")}
    touched = {_module(file) for file in files if file.endswith(".py")}
    touched |= {name for name in tree if name.rpartition(".")[0].replace(".", "/") in folders}
    away = dict.fromkeys(sorted(touched & tree.keys()), 0)
    todo = deque(away)
    while todo:
        name = todo.popleft()
        for other in sorted(importers.get(name, ())):
            if other not in away:
                away[other] = away[name] + 1
                todo.append(other)
    return away


def measured_seconds(path: Path = SECONDS) -> dict[str, float]:
    """Seconds that one test of a kind took when it was last measured; empty without the file."""
    return json.loads(path.read_text()) if path.exists() else {}


class Stopwatch:
    """A pytest plugin that writes the mean seconds of slow tests, by kind, where `make turn` finds them."""

    def __init__(self, path: Path = MEASURED) -> None:
        self.path, self.taken = path, dict[str, list[float]]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and "slow" in report.keywords:
            self.taken.setdefault(report.nodeid.partition("[")[0], []).append(report.duration)

    def pytest_sessionfinish(self) -> None:
        if self.taken:
            means = {kind: round(statistics.mean(all_), 2) for kind, all_ in self.taken.items()}
            self.path.parent.mkdir(exist_ok=True)
            write_seconds(measured_seconds(self.path) | means, self.path)


def write_seconds(seconds: Mapping[str, float], path: Path) -> None:
    """Write measurements sorted by kind, so that a change of one is one line."""
    path.write_text(json.dumps(dict(sorted(seconds.items())), indent=0) + "\n")


def raise_turn(turn: Path = TURN, seconds: Path = SECONDS, measured: Path = MEASURED) -> int:
    """Raise the turn by one and take over what test runs here have measured; return the new turn."""
    new = int(turn.read_text()) + 1
    turn.write_text(f"{new}\n")
    write_seconds(measured_seconds(seconds) | measured_seconds(measured), seconds)
    return new


def nearest(
    kinds: Sequence[str],
    away: Mapping[str, int],
    seconds: Mapping[str, float],
    *,
    most_seconds: float,
    turn: int = 0,
) -> list[int]:
    """Places of the slow tests nearest to a change that fit into so many seconds of CPU.

    `kinds` are node ids without parameters. A kind that no import joins to the change is left out, one without a
    measurement counts as `UNMEASURED_S`. Of a kind that does not fit whole, the next tests in turn run.
    """
    places: dict[str, list[int]] = {}
    for place, kind in enumerate(kinds):
        if _module(kind.partition("::")[0]) in away:
            places.setdefault(kind, []).append(place)
    left = most_seconds
    chosen: list[int] = []
    for kind in sorted(places, key=lambda kind: (away[_module(kind.partition("::")[0])], kind)):
        each = max(seconds.get(kind, UNMEASURED_S), 0.01)
        start = turn % len(places[kind])
        in_turn = places[kind][start:] + places[kind][:start]
        fit = in_turn[: int(left / each)]
        chosen += fit
        left -= len(fit) * each
    return sorted(chosen)


if __name__ == "__main__":
    print(f"turn {raise_turn()}: commit {TURN.relative_to(ROOT)} and {SECONDS.relative_to(ROOT)}")
