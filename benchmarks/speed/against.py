"""This tree beside another revision: the same cases, turn by turn, in one process of each side.

The other revision is checked out into a temporary worktree. Each side has a worker of its own that compiles once
and then answers; the sides take turns, so that what disturbs the machine disturbs both. How fast a process is depends
by some 5 % on where its memory lies, so a case is measured in several pairs of fresh workers, and the interval is over
these pairs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from blis_jax.reports.render import table_text
from blis_jax.statistics.intervals import half_width

REPO = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")


class AgainstError(Exception):
    """The comparison cannot be made; the text says why in one sentence."""


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(REPO), *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise AgainstError(f"git {words[0]} failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()


def commit_of(revision: str) -> str:
    """Return the full hash of a revision.

    Raises:
        AgainstError: there is no such revision.
    """
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}")
    except (AgainstError, IndexError):
        raise AgainstError(
            f"--against: {revision!r} is no revision of {REPO.name}; give a commit, branch or tag"
        ) from None


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check the commit out into a temporary worktree, gone when the block ends, however it ends."""
    with tempfile.TemporaryDirectory(prefix="against-") as folder:
        tree = Path(folder) / "tree"
        try:
            _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
            yield tree
        finally:  # interrupted in its making, it may be known to git or not
            remove = ["git", "-C", str(REPO), "worktree", "remove", "--force", str(tree)]
            subprocess.run(remove, capture_output=True, check=False)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block at a termination signal as at Ctrl-C, so that nothing is left behind."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Side:
    """A worker with one revision's package on its path."""

    def __init__(self, tree: Path, command: Sequence[str], flags: Mapping[str, str]) -> None:
        """Start the worker; its first answer says what a repetition is."""
        environment = os.environ | dict(flags) | {"PYTHONPATH": str(tree)}
        environment.pop("XLA_FLAGS", None)  # each revision sets its own as it is imported
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=tree,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which ends the worker
        )
        try:
            self.about = self._answer()
            package = Path(self.about["package"]).resolve()
            if package != tree.resolve():
                raise AgainstError(f"the worker imported blis_jax from {package} instead of {tree}")
        except BaseException:
            self.end()
            raise

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()
            raise AgainstError(said[-1] if said else "the worker ended without a word")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, what: str) -> dict[str, Any]:
        """Ask for one repetition, or one more compilation."""
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End the worker at once."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()


@dataclass(frozen=True)
class Pairs:
    """Seconds `[pair of workers, repetition]` of the other revision and of this tree, measured in turns."""

    other_s: Float[np.ndarray, "workers repetition"]
    here_s: Float[np.ndarray, "workers repetition"]

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Return how many times as fast this tree is: geometric mean over the pairs of workers, 95 % Student interval.

        Of the repetitions of one pair of workers the median counts.
        """
        logs = np.log(np.median(self.other_s / self.here_s, axis=1))
        middle, half = float(np.mean(logs)), half_width(logs)
        return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))

    def joined(self, later: Pairs) -> Pairs:
        """Return the pairs of both measurements, those of `later` below."""
        return Pairs(
            np.concatenate([self.other_s, later.other_s]),
            np.concatenate([self.here_s, later.here_s]),
        )


@dataclass(frozen=True)
class Comparison:
    """One case on both sides."""

    name: str
    work: int
    unit: str
    run: Pairs
    compile: Pairs | None

    def to_json(self) -> dict[str, Any]:
        """Return everything measured, and the ratios."""
        parts = {"run": self.run} | ({"compile": self.compile} if self.compile else {})
        measured: dict[str, Any] = {"work": self.work, "unit": self.unit}
        for part, pairs in parts.items():
            ratio, low, high = pairs.ratio
            measured[part] = {
                "other_s": pairs.other_s.tolist(),
                "here_s": pairs.here_s.tolist(),
                "ratio": ratio,
                "interval": [low, high],
            }
        return measured


def _in_turns(sides: tuple[Side, Side], what: str, times: int) -> list[tuple[Any, Any]]:
    """Ask both sides in turn, and return their answers in pairs; the side that begins changes from pair to pair."""
    pairs = []
    for number in range(times):
        first = number % 2
        answers = {place: sides[place].ask(what) for place in (first, 1 - first)}
        pairs.append((answers[0], answers[1]))
    return pairs


def _pairs(answers: Sequence[tuple[Any, Any]], field: str) -> Pairs | None:
    values = [(other[field], here[field]) for other, here in answers]
    if not values or any(value is None for pair in values for value in pair):
        return None
    other, here = np.asarray(values, float).T
    return Pairs(other[None], here[None])


def compare(name: str, sides: tuple[Side, Side], repetitions: int, compilations: int) -> Comparison:
    """Compare a case on both sides, first warm, then compiled anew."""
    about = sides[1].about
    if sides[0].about["work"] != about["work"]:
        works = [f"{side.about['work']} {side.about['unit']}" for side in sides]
        raise AgainstError(f"{name}: a repetition is {works[0]} there and {works[1]} here")
    runs = _in_turns(sides, "run", repetitions)
    compiled = _pairs(_in_turns(sides, "compile", compilations), "compile_s")
    measured = _pairs(runs, "run_s")
    assert measured is not None
    return Comparison(name, about["work"], about["unit"], measured, compiled)


def compare_case(
    name: str,
    trees: tuple[Path, Path],
    data: Path,
    flags: Mapping[str, str],
    counts: tuple[int, int],
) -> Comparison:
    """Compare the case in one pair of fresh workers, which end with it."""
    command = [sys.executable, "-P", str(WORKER), name, str(data)]
    with ExitStack() as ends:
        sides = []
        for tree in trees:
            try:
                side = Side(tree, command, flags)
            except AgainstError as error:
                where = "here" if tree == trees[1] else "at the other revision"
                raise AgainstError(f"{name} does not run {where}: {error}") from None
            ends.callback(side.end)
            sides.append(side)
        return compare(name, (sides[0], sides[1]), *counts)


def compare_case_again(
    name: str,
    trees: tuple[Path, Path],
    data: Path,
    flags: Mapping[str, str],
    counts: tuple[int, int, int],
) -> Comparison:
    """Compare the case in several pairs of fresh workers; `counts`: pairs of workers, repetitions, compilations."""
    comparisons = [compare_case(name, trees, data, flags, counts[1:]) for _ in range(counts[0])]
    both = functools.reduce(Pairs.joined, [comparison.run for comparison in comparisons])
    parts = [comparison.compile for comparison in comparisons if comparison.compile is not None]
    compiled = functools.reduce(Pairs.joined, parts) if len(parts) == len(comparisons) else None
    return dataclasses.replace(comparisons[0], run=both, compile=compiled)


def document(revision: str, commit: str, results: Sequence[Comparison]) -> dict[str, Any]:
    """Return what `--output` writes: both sides, and every repetition."""
    here = {"commit": _git("rev-parse", "HEAD"), "is_changed": bool(_git("status", "--porcelain"))}
    cases = {comparison.name: comparison.to_json() for comparison in results}
    return {"against": {"revision": revision, "commit": commit}, "here": here, "cases": cases}


def _cells(pairs: Pairs | None) -> tuple[str, ...]:
    if pairs is None:
        return "-", "-", "-"
    ratio, low, high = pairs.ratio
    other, here = float(np.median(pairs.other_s)), float(np.median(pairs.here_s))
    return _seconds(other), _seconds(here), f"{ratio:.3f} [{low:.3f}, {high:.3f}]"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def table(revision: str, results: Sequence[Comparison]) -> str:
    """Write the comparisons as a Markdown table."""
    head = (
        "case", f"run at {revision}", "run here", "times as fast", "here",
        f"compile at {revision}", "compile here", "times as fast",
    )  # fmt: skip
    rows = []
    for result in results:
        rate = f"{result.work / float(np.median(result.run.here_s)):,.0f} {result.unit}/s"
        rows.append((result.name, *_cells(result.run), rate, *_cells(result.compile)))
    return table_text(head, rows)


# --- whether a case is the same program on both sides --------------------------------------------


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


def program_table(revision: str, results: Sequence[Programs]) -> str:
    """Write the programs as a Markdown table."""
    head = [f"{what} {where}" for what in ("lines", "only") for where in (f"at {revision}", "here")]
    rows = []
    for programs in results:
        said = "the same, letter for letter" if programs.is_same else "changed"
        counts = (f"{count:,}" for count in (*programs.num_lines, *programs.num_own))
        rows.append((f"`{programs.name}`", *counts, said, *map("{:,}".format, programs.num_calls)))
    return table_text(("case", *head, "", f"calls at {revision}", "calls here"), rows)
