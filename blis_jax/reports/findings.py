"""The results of a command as one document, from which terminal output, page, Markdown and JSON are made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from blis_jax.files.atomic_write import finite
from blis_jax.reports import words

if TYPE_CHECKING:
    from blis_jax.reports.pictures import Picture
    from blis_jax.statistics.intervals import Estimate

Form = Literal["interval", "half", "bare"]


WHOLE = 1000.0  # its decimals, none, are those of a whole number


class Quantity(NamedTuple):
    """A number with its interval, in the form that all outputs show; None for a missing number or end."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""  # behind the number: ` %`, ` ms`
    is_signed: bool = False
    like: float | None = None  # a number whose decimals this one has
    form: Form = "interval"

    @classmethod
    def of(cls, estimate: Estimate, form: Form = "interval", **further: Any) -> Quantity:
        """Return an estimate's mean with its interval."""
        mean, low, high = map(finite, (estimate.mean, estimate.low, estimate.high))
        return cls(mean, low, high, form=form, **further)

    @classmethod
    def whole(cls, number: int) -> Quantity:
        """Return a whole number."""
        return cls(number, like=WHOLE)

    def __str__(self) -> str:
        """Return the text, such as `−75.7 % [−76.1, −75.3]` or, in the form `half`, `302.3 ± 4.3`."""
        text = words.number(self.mean, self.is_signed, self.like) + self.unit
        if self.form == "bare" or self.mean is None or self.low is None:
            return text
        like = self.mean if self.like is None else self.like
        if self.form == "half" and self.is_even:
            assert self.high is not None
            return f"{text} ± {words.number(self.high - self.mean, like=like)}"
        low = words.number(self.low, self.is_signed, like)
        high = words.number(self.high, self.is_signed, like)
        return f"{text} [{low}, {'∞' if high == words.NOTHING else high}]"

    @property
    def is_even(self) -> bool:
        """Return whether the interval is symmetric around the mean; False without an interval."""
        if self.mean is None or self.low is None or self.high is None:
            return False
        return math.isclose(self.high - self.mean, self.mean - self.low, rel_tol=1e-6, abs_tol=1e-9)

    def to_json(self) -> dict[str, Any]:
        """Return the number, its interval if it has one, and its unit, as plain data."""
        ends = {} if self.low is None else {"low": self.low, "high": self.high}
        return {"mean": self.mean, **ends, "unit": self.unit.strip()}


Part = str | Quantity
Cell = str | Quantity


@dataclass(frozen=True)
class Sentence:
    """A text that keeps its numbers as numbers."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, *parts: Part) -> Sentence:
        """Return the sentence that concatenates texts and numbers."""
        return cls(parts)

    def __str__(self) -> str:
        """Return the text."""
        return "".join(map(str, self.parts))

    def to_json(self) -> dict[str, Any]:
        """Return the text and its numbers, in their order."""
        values = [part.to_json() for part in self.parts if isinstance(part, Quantity)]
        return {"text": str(self), "values": values}


@dataclass(frozen=True)
class Answer:
    """The first lines of every output: the cluster, then the five lines of the answer."""

    asked: str
    verdict: tuple[Sentence, ...]  # a sentence for each strategy
    sure: Sentence
    price: Sentence  # runs
    next: str
    time: Sentence | None = None  # seconds; not in files, which are the same after a resumed run
    cluster: str = ""  # what was simulated, see `words.cluster_line`; empty where that is nothing, or many things

    @classmethod
    def of(
        cls,
        asked: str,
        verdict: str | Iterable[str],
        sure: str,
        price: str,
        next: str,
        cluster: str = "",
    ) -> Answer:
        """Return an answer of plain texts, whose numbers are not kept as numbers."""
        verdicts = [verdict] if isinstance(verdict, str) else verdict
        said = tuple(Sentence.of(text) for text in verdicts)
        return cls(asked, said, Sentence.of(sure), Sentence.of(price), next, cluster=cluster)

    def lines(self) -> list[tuple[str, str]]:
        """Return a heading and a text for each line."""
        time = "" if self.time is None else f" {self.time}"
        verdicts = [(("Verdict", "")[at > 0], str(words)) for at, words in enumerate(self.verdict)]
        return [
            *(
                (("Cluster", "")[at > 0], words)
                for at, words in enumerate(self.cluster.splitlines())
            ),
            ("Asked", self.asked),
            *verdicts,
            ("Sure", str(self.sure)),
            ("Price", f"{self.price}{time}"),
            ("Next", self.next),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the sentences and their numbers as plain data, without the time taken."""
        return {
            **({"cluster": self.cluster} if self.cluster else {}),
            "asked": self.asked,
            "verdict": [sentence.to_json() for sentence in self.verdict],
            "sure": self.sure.to_json(),
            "price": self.price.to_json(),
            "next": self.next,
        }


@dataclass(frozen=True)
class Row:
    """A row of a table; without --all only brief rows are shown."""

    cells: tuple[Cell, ...]
    is_brief: bool = True
    place: str = ""  # of a grid, by which a page filters


@dataclass(frozen=True)
class Table:
    """A table; its first `num_keys` columns are keys, which identify a row."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    title: str = ""
    num_keys: int = 1
    name: str = ""  # by which JSON and pages know it
    brief_columns: tuple[int, ...] = ()  # of the short form; () for all

    def brief(self) -> Table:
        """Return the short table: brief rows, brief columns."""
        kept = self.brief_columns or tuple(range(len(self.columns)))
        return Table(
            tuple(self.columns[at] for at in kept),
            tuple(
                Row(tuple(row.cells[at] for at in kept), True, row.place)
                for row in self.rows
                if row.is_brief
            ),
            self.title,
            sum(at < self.num_keys for at in kept),
            self.name,
        )

    def to_json(self) -> dict[str, Any]:
        """Return all rows as plain data."""
        rows = [
            [cell.to_json() if isinstance(cell, Quantity) else cell for cell in row.cells]
            for row in self.rows
        ]
        about = {"name": self.name, "title": self.title, "columns": list(self.columns)}
        return {**about, "rows": rows}


@dataclass(frozen=True)
class Remarks:
    """Sentences below a title; without --all or --explain only brief remarks are shown."""

    lines: tuple[str, ...]
    title: str = ""
    is_brief: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return title and lines."""
        return {"title": self.title, "lines": list(self.lines)}


@dataclass(frozen=True)
class Findings:
    """An answer, then the tables, remarks and pictures that support it, in the order of display."""

    answer: Answer
    sections: Sequence[Table | Remarks] = field(default=())
    pictures: Sequence[Picture] = ()  # the first is the PNG, and opens the page
    place_title: str = "Place in the grid"  # what a choice of a row's place is called

    @property
    def filled(self) -> list[Table | Remarks]:
        """Return the sections that have something to show, in their order."""
        return [
            section
            for section in self.sections
            if (section.rows if isinstance(section, Table) else section.lines)
        ]

    @property
    def tables(self) -> list[Table]:
        """Return the sections that are tables, in their order."""
        return [section for section in self.sections if isinstance(section, Table)]

    def to_json(self) -> dict[str, Any]:
        """Return the whole document as plain data, with all rows."""
        sections: list[Mapping[str, Any]] = [section.to_json() for section in self.sections]
        drawn = [picture.to_json() for picture in self.pictures]
        return {"answer": self.answer.to_json(), "sections": sections, "pictures": drawn}
