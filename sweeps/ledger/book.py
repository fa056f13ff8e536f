"""A ledger: a folder with `ledger.jsonl` (records), `ledger/` (their large parts) and `ledger.md` (their table)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.commands.options.seed_options import EnoughSeedsOptions, first_seeds, rule_of
from blis_jax.errors import ConfigError, as_option, closest
from blis_jax.files import chain
from blis_jax.files.chain import Contents, Record
from blis_jax.metrics.run_summary import Tails
from blis_jax.statistics.sequential import Look, Seen, look_until_end, rule_words
from sweeps.claims.grammar import REGION
from sweeps.claims.judge import ClaimVerdict
from sweeps.claims.words import VERDICTS
from sweeps.ledger.hypothesis import Hypothesis, StoppingRecord, check_resolution, hypothesis_of
from sweeps.ledger.result import judge_all, measured_from_runs
from sweeps.ledger.trial import ArmRuns, Experiments, run_hypothesis
from sweeps.tracks.problem import FILE, Problem, load_problem

RECORDS, PAGE = "ledger.jsonl", "ledger.md"
HYPOTHESIS, RESULT, NOTE = "hypothesis", "result", "note"
# Values that stand in files beside the ledger, where they are large.
LARGE = frozenset({"figures", "comparison", "predictions", "criteria", "outcomes", "seeds"})
FIRST_PROBLEM = "scheduling"  # of a ledger that does not say
TRACKS = "tracks"  # where the tracks of a project are


@dataclass(frozen=True)
class LedgerRow:
    """A row: one iteration's hypothesis, its result if there is one, and notes."""

    planned: Record
    hypothesis: Hypothesis
    result: Record | None = None
    notes: tuple[Record, ...] = field(default=())

    @property
    def id(self) -> str:
        """Return the row's id, its name in the table."""
        return self.hypothesis.id

    @property
    def resolution(self) -> str | None:
        """Return the latest resolution; None without one."""
        noted = [note["resolution"] for note in self.notes if note.get("resolution")]
        return noted[-1] if noted else None

    @property
    def findings(self) -> tuple[str, ...]:
        """Return the findings of the result, then those of the notes, in order."""
        of_row = [self.result["findings"]] if self.result and self.result.get("findings") else []
        return (*of_row, *(note["findings"] for note in self.notes if note.get("findings")))


class Ledger:
    """The records of one folder."""

    def __init__(self, folder: Path, problem: Problem | None = None) -> None:
        """Open the ledger in a folder; by default its problem is the folder's, else that named by the first record."""
        self.folder = folder
        self.path, self.page = folder / RECORDS, folder / PAGE
        self._problem = problem

    @property
    def problem(self) -> Problem:
        """Return the track's problem: that of the ledger's folder, else the one named by the first record."""
        if self._problem is None:
            if (self.folder / FILE).is_file():
                self._problem = load_problem(str(self.folder))
            else:
                records = chain.read(self.path).records
                name = records[0].get("problem") if records else FIRST_PROBLEM
                self._problem = load_problem(str(name))
        return self._problem

    def contents(self) -> Contents:
        """Read the records from the disk."""
        return chain.read(self.path)

    def rows(self) -> list[LedgerRow]:
        """Return every row, in the order in which hypotheses were written; refuse a broken ledger."""
        contents = self.contents()
        chain.check_sound(self.path, contents)
        return rows_of(contents.records)

    def row(self, name: str) -> LedgerRow:
        """Return the row with this id."""
        return _row(self.rows(), name)

    def begin(self) -> None:
        """Write the first record if there is none."""
        if self.contents().records or self.contents().torn:
            return

        def first(records: Sequence[Record]) -> dict[str, Any]:
            if records:
                raise _AlreadyThereError
            return {"version": chain.VERSION, "problem": self.problem.name}

        with contextlib.suppress(_AlreadyThereError):
            chain.append(self.path, chain.BEGIN, first)

    def plan(self, hypothesis: Hypothesis) -> LedgerRow:
        """Write a hypothesis; its id must be new."""

        def content(records: Sequence[Record]) -> dict[str, Any]:
            """Return the record, unless its id is taken."""
            for row in rows_of(records):
                if row.id == hypothesis.id:
                    raise ConfigError(
                        f"{hypothesis.id} is in the ledger already (record {row.planned['number']}); "
                        "records never change, choose another id"
                    )
            return hypothesis.model_dump(mode="json")

        self.begin()
        return LedgerRow(chain.append(self.path, HYPOTHESIS, content, LARGE), hypothesis)

    def add_result(self, row: LedgerRow, content: Mapping[str, Any]) -> Record:
        """Write the result of a hypothesis that has no result yet."""

        def made(records: Sequence[Record]) -> dict[str, Any]:
            """Return the result record, with the file locked; refuse it if the hypothesis changed or has a result."""
            now = _row(rows_of(records), row.id)
            if now.planned["hash"] != row.planned["hash"]:
                raise ConfigError(f"the hypothesis of {row.id} is not the one that was run")
            if now.result is not None:
                raise ConfigError(
                    f"{row.id} has a result already (record {now.result['number']}); records never "
                    "change, plan a repetition under another id"
                )
            check_verdict(content["verdict"])
            return {"id": row.id, "hypothesis": row.planned["hash"], **content}

        return chain.append(self.path, RESULT, made, LARGE)

    def shorten(self) -> int:
        """Move large parts of the records to files beside the ledger; return the bytes saved in `ledger.jsonl`."""
        return chain.shorten(self.path, LARGE)

    def add_note(self, name: str, content: Mapping[str, Any]) -> Record:
        """Write findings, or a resolution, to a row with a result."""

        def made(records: Sequence[Record]) -> dict[str, Any]:
            """Return the note record, with the file locked; refuse it if the row has no result yet."""
            row = _row(rows_of(records), name)
            if row.result is None:
                raise ConfigError(f"{name} has no result yet; notes are about results")
            if content.get("resolution"):
                check_resolution(content["resolution"], row.result["verdict"])
            return {"id": name, "result": row.result["hash"], **content}

        return chain.append(self.path, NOTE, made)


class _AlreadyThereError(Exception):
    """The error raised when another writer has begun the ledger."""


def check_verdict(verdict: str) -> None:
    """Refuse a word that is no verdict."""
    if verdict not in VERDICTS:
        raise ConfigError(
            f"verdict {verdict!r} is unknown; use one of {', '.join(VERDICTS)}{closest(verdict, VERDICTS)}"
        )


def rows_of(records: Sequence[Record]) -> list[LedgerRow]:
    """Return rows made from records, which must be an unbroken chain."""
    rows: dict[str, LedgerRow] = {}
    for record in records:
        kind = record["kind"]
        if kind == HYPOTHESIS:
            rows[record["id"]] = LedgerRow(record, hypothesis_of(chain.content_of(record)))
        elif kind in (RESULT, NOTE):
            row = rows[record["id"]]
            notes = (*row.notes, record) if kind == NOTE else row.notes
            result = record if kind == RESULT else row.result
            rows[record["id"]] = LedgerRow(row.planned, row.hypothesis, result, notes)
    return list(rows.values())


def _row(rows: Sequence[LedgerRow], name: str) -> LedgerRow:
    for row in rows:
        if row.id == name:
            return row
    names = [row.id for row in rows]
    known = f"; there are {', '.join(names)}" if names else "; it has no rows yet"
    raise ConfigError(f"the ledger has no row {name!r}{known}{closest(name, names)}")


def find_ledger(track: str | None, is_new_allowed: bool = False) -> Ledger:
    """Return the ledger of a track, named or at a folder; without a track, that of the current folder.

    Raises:
        ConfigError: there is no such ledger.
    """
    if track is None:
        ledger = Ledger(Path())
        if not ledger.path.is_file() and not (is_new_allowed and ledger.page.is_file()):
            raise ConfigError(
                f"there is no {RECORDS} in this folder; give --track NAME, begin a track with "
                "blis-jax init NAME, or go to the root of the repository"
            )
        return ledger
    for folder in (Path(track), Path(TRACKS) / track):
        if (folder / FILE).is_file():
            return Ledger(folder)
    here = Ledger(Path())
    if here.path.is_file() and here.problem.name == track:
        return here
    raise ConfigError(
        f"track {track!r} is neither a folder with a {FILE} nor one of {TRACKS}/; begin it with "
        f"blis-jax init {track}"
    )


# --- as many seeds as a hypothesis asks for: arms run on more and more until claims are clear -----


FAILED = "a run failed, so that more seeds decide nothing"


@dataclass(frozen=True)
class EnoughRuns:
    """The runs that were made, the hypothesis on their seeds, and the numbers of seeds at the looks."""

    hypothesis: Hypothesis
    runs: Mapping[str, ArmRuns]
    looks: tuple[int, ...] = ()
    end: str = ""

    def content(self) -> dict[str, Any]:
        """Return the stopping rule and its looks for the record; empty where the number of seeds was fixed."""
        if self.hypothesis.stopping is None:
            return {}
        words = rule_words(self.hypothesis.stopping.rule, self.hypothesis.rule.confidence)
        return {"stopping": {"rule": words, "looks": list(self.looks), "end": self.end}}


def stopping_from(values: Mapping[str, Any], seeds: Sequence[int]) -> StoppingRecord | None:
    """Return the stopping rule that options or an entry of a file give; None if the number of seeds is fixed."""
    rule = rule_of(EnoughSeedsOptions.of(values))
    if rule is None:
        return None
    first_seeds(seeds, rule)
    return StoppingRecord(
        decides=rule.decides, precision=rule.precision, most_seeds=rule.most_seeds
    )


def values_of(stopping: StoppingRecord | None) -> dict[str, Any]:
    """Return a stopping rule as values of a file's entry."""
    if stopping is None:
        return {}
    precision = {} if stopping.precision is None else {"precision": _percent(stopping.precision)}
    decide = {"decide": True} if stopping.decides else {}
    return {**decide, **precision, "most_seeds": stopping.most_seeds}


def options_of(stopping: StoppingRecord | None) -> list[str]:
    """Return a stopping rule as words of a command line."""
    words: list[str] = []
    for name, value in values_of(stopping).items():
        words.append(as_option(name))
        words += [] if value is True else [str(value)]
    return words


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def run_until_enough(hypothesis: Hypothesis, folder: Path, experiments: Experiments) -> EnoughRuns:
    """Run every arm on the seeds of the hypothesis, or on as many seeds as its stopping rule needs."""
    done = EnoughRuns(hypothesis, run_hypothesis(hypothesis, folder, experiments))
    if hypothesis.stopping is None:
        return done
    rule, first = hypothesis.stopping.rule, hypothesis.seeds[0]

    def look_at(count: int) -> Look[EnoughRuns]:
        """Run on `count` seeds in total, and judge the hypothesis on all of them."""
        nonlocal done
        known = done.hypothesis.seeds
        if count > len(known):
            more = range(first + len(known), first + count)
            further = run_hypothesis(hypothesis.on(more), folder, experiments)
            done = EnoughRuns(hypothesis.on((*known, *more)), _joined(done.runs, further))
        judged = judge_all(done.hypothesis, measured_from_runs(done.runs))
        seen = tuple(_seen(judgement) for judgement in judged)
        has_failed = any(judgement.reading is None for judgement in judged)
        return Look(count, done, seen, FAILED if has_failed else rule.end(count, seen))

    looks = look_until_end(rule, len(hypothesis.seeds), look_at)
    counts = tuple(judgement.num_seeds for judgement in looks)
    return dataclasses.replace(done, looks=counts, end=looks[-1].end)


def _seen(judged: ClaimVerdict) -> Seen:
    """Return one claim's look: decided if its interval is wholly in or outside the region, despite single seeds."""
    if judged.reading is None or judged.claim is None:
        return Seen(np.inf, is_decided=False)
    interval, claim = judged.reading.mean, judged.claim
    half = (interval.high - interval.low) / 2
    scale = 100.0 if claim.is_change or claim.shape != REGION else abs(interval.mean)
    return Seen(
        half / scale if np.isfinite(half) and scale else np.inf,
        is_decided=judged.is_clear,
        is_same=half == 0.0,
    )


def _joined(runs: Mapping[str, ArmRuns], more: Mapping[str, ArmRuns]) -> dict[str, ArmRuns]:
    """Return the runs of every arm with further runs appended, in the order of the seeds."""
    return {role: _both(arm, more[role]) for role, arm in runs.items()}


def _both(first: ArmRuns, second: ArmRuns) -> ArmRuns:
    return ArmRuns(
        first.outcomes + second.outcomes,
        {
            name: np.concatenate([values, second.figures[name]])
            for name, values in first.figures.items()
        },
        first.num_broken_invariants + second.num_broken_invariants,
        {name: _tails(tails, second.tails[name]) for name, tails in first.tails.items()},
        first.fates + second.fates,
    )


def _tails(first: Tails, second: Tails) -> Tails:
    columns = (field.name for field in dataclasses.fields(Tails))
    return Tails(
        *(np.concatenate([getattr(first, name), getattr(second, name)]) for name in columns)
    )
