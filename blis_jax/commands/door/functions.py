"""Commands as Python functions: `blis_jax.compare("vllm", "llm-d-default", seeds=20)` returns a StudyResult."""

from __future__ import annotations

import argparse
import contextlib
import functools
import html
import inspect
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax import lazy
from blis_jax.commands import cli
from blis_jax.commands.door.catalogue import COMMANDS, Command, options_of
from blis_jax.commands.parser import Parser, called_as, declared, is_kept_whole
from blis_jax.errors import ConfigError, choices
from blis_jax.lazy import pandas, xarray
from blis_jax.reports import render
from blis_jax.reports.findings import WHOLE, Cell, Findings, Quantity, Table

if TYPE_CHECKING:
    from blis_jax.reports import drawing
    from blis_jax.results import dataset
else:  # matplotlib, and JAX with xarray
    drawing = lazy.Module("blis_jax.reports.drawing")
    dataset = lazy.Module("blis_jax.results.dataset")


class _Question(NamedTuple):
    """A command that can be called from Python."""

    command: str  # the words behind `blis-jax`
    # of a result that is only read back; without one the command writes to its usual place
    ending: str = ""


QUESTIONS = {
    "ablate": _Question("ablate", ".json"),
    "calibrate_server": _Question("calibrate", ".json"),
    "capacity": _Question("capacity", ".json"),
    "compare": _Question("compare", ".json"),
    "curve": _Question("curve", ".json"),
    "gradient": _Question("gradient", ".json"),
    "make_dataset": _Question("dataset"),
    "optimize": _Question("optimize", ".json"),
    "predict_by_surrogate": _Question("surrogate predict", ".zarr"),
    "recommend": _Question("recommend", ".json"),
    "robustness": _Question("robustness", ".zarr"),
    "select": _Question("select", ".json"),
    "sensitivity": _Question("sensitivity", "/"),
    "sweep": _Question("sweep", ".zarr"),
    "train_surrogate": _Question("surrogate train"),
}
LISTS = ("models", "gpus", "strategies", "workloads", "metrics", "policies")  # of `list_names`
# what Python does without
_OF_TERMINALS = (
    "--quiet",
    "--all",
    "--explain",
    "--json",
    "--help",
    "--help-all",
)
_UNASKED = {"--figure": "none", "--no-figures": True}  # pictures are drawn by `plot`


@dataclass(frozen=True)
class StudyResult:
    """The results of a study: sentences, tables and pictures.

    Attributes:
        findings: the answer, the tables and the pictures, from which every output is made.
        document: the result file, with every figure; empty where the command writes none.
        dataset: the runs as an xarray Dataset with units; None if the command keeps none.
        text: what the command printed besides.
    """

    findings: Findings
    document: Mapping[str, Any] = field(default_factory=dict)
    dataset: Any = None
    text: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict in a sentence."""
        return " ".join(map(str, self.findings.answer.verdict))

    @property
    def tables(self) -> dict[str, Table]:
        """Return the tables that have rows, by name."""
        filled = [table for table in self.findings.tables if table.rows]
        return {
            section.name or section.title or f"table {at}": section
            for at, section in enumerate(filled)
        }

    @property
    def pictures(self) -> list[str]:
        """Return the titles of the pictures, in the order of `plot`'s `number`."""
        return [picture.title for picture in self.findings.pictures]

    def to_dataframe(self, table: str | None = None) -> pandas.DataFrame:
        """Return the named table, or the first one, as a pandas DataFrame.

        A column of numbers with intervals is followed by the columns `… low` and `… high`; `attrs["units"]` has the
        units by column.

        Raises:
            ConfigError: there is no such table.
        """
        return _frame(self._table(table))

    def to_dataset(self, table: str | None = None) -> xarray.Dataset:
        """Return the runs as an xarray Dataset, or a table if one is named or the command keeps no runs.

        A table's key columns become coordinates, its other columns variables `[row]` with `units` and `long_name`.

        Raises:
            ConfigError: there is no such table.
        """
        if table is None and self.dataset is not None:
            return self.dataset
        chosen = self._table(table)
        frame = _frame(chosen)
        made = xarray.Dataset({name: ("row", frame[name]) for name in frame})
        for name in frame:
            made[name].attrs["long_name"] = name
            if unit := frame.attrs["units"].get(name):
                made[name].attrs["units"] = unit
        made.attrs["answer"] = self.verdict
        return made.set_coords(list(frame)[: chosen.num_keys])

    def plot(self, number: int = 0) -> drawing.NotebookFigure:
        """Return the picture of a number, counted from 0, as a matplotlib Figure.

        Raises:
            ConfigError: there is no such picture.
        """
        if not 0 <= number < len(self.findings.pictures):
            many = len(self.findings.pictures)
            there = f"{many}, from 0" if many else "none; to_dataframe() has its numbers"
            raise ConfigError(f"picture {number} is not there; this result has {there}")
        return drawing.shown(self.findings.pictures[number])

    def __str__(self) -> str:
        """Return the text that the command prints."""
        return render.text(self.findings)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the answer, the short tables and the first picture for a notebook."""
        shown = [render.answer_html(self.findings.answer)]
        for name, table in self.tables.items():
            brief = table.brief()
            if brief.rows:
                shown.append(f"<p>{html.escape(table.title or name)}</p>{render.table_html(brief)}")
        shown += [drawing.svg(picture) for picture in self.findings.pictures[:1]]
        return "\n".join(shown)

    def _table(self, name: str | None) -> Table:
        tables = self.tables
        if not tables:
            raise ConfigError("this result has no table; print it for what was found")
        if name is None:
            return next(iter(tables.values()))
        if name not in tables:
            raise ConfigError(f"table {name!r}: {choices(name, list(tables))}")
        return tables[name]


# in a heading or a title
UNIT = re.compile(r"(?:^|, |\bin | )(ms|µs|s|%|1/s|tokens/s(?: per \w+)?|requests/s)(?=[,:) ]|$)")


def _frame(table: Table) -> pandas.DataFrame:
    """Return the table as a data frame, with numeric cells as floats and units in `attrs`."""
    columns: dict[str, list[Any]] = {}
    units: dict[str, str] = {}
    has_row_units = not {"metric", "unit"}.isdisjoint(table.columns)
    for at, heading in enumerate(table.columns):
        name, cells = (
            heading or ("verdict" if at else "rank"),
            [row.cells[at] for row in table.rows],
        )
        numbers = [cell for cell in cells if isinstance(cell, Quantity)]
        made = {
            name: [_value(cell, "mean") for cell in cells]
            if numbers
            else _texts(cells, at < table.num_keys)
        }
        if any(cell.low is not None for cell in numbers):
            made |= {
                f"{name} {end}": [_value(cell, end) for cell in cells] for end in ("low", "high")
            }
        if numbers:
            units |= dict.fromkeys(made, _unit(heading, numbers, table.title, has_row_units))
        columns |= made
        if name == "metric" and "unit" not in table.columns:  # `TTFT mean, ms`
            columns["unit"] = [
                str(cell).rpartition(", ")[2] if ", " in str(cell) else "" for cell in cells
            ]
    frame = pandas.DataFrame(columns)
    frame.attrs["units"] = units
    return frame


def _unit(heading: str, numbers: Sequence[Quantity], title: str, has_row_units: bool) -> str:
    """Return the unit of a column: the first found of its numbers, its heading, its rows, the title; else 1."""
    of_cells = {cell.unit.strip() for cell in numbers} - {""}
    if len(of_cells) == 1:
        return of_cells.pop()
    if named := UNIT.search(heading.partition(" [")[0]):
        return named[1]
    if has_row_units and not all(cell.like == WHOLE for cell in numbers):
        return "that of `unit`"
    named = UNIT.search(title)
    return named[1] if named else "1"


def _texts(cells: Sequence[Cell], are_keys: bool) -> list[Any]:
    """Convert texts to floats if all of them are numbers and they are not keys of rows."""
    with contextlib.suppress(ValueError):
        return list(map(str if are_keys else float, map(str, cells)))
    return list(map(str, cells))


def _value(cell: Cell, end: str) -> float | None:
    value: float | None = getattr(cell, end) if isinstance(cell, Quantity) else None
    return value


# --- functions ------------------------------------------------------------------------------------


@functools.cache
def function_of(name: str) -> Callable[..., StudyResult]:
    """Return a Python function that runs a command; its signature and help list the command's options."""
    command = COMMANDS[QUESTIONS[name].command]
    words = f"blis-jax {command.name}"
    with called_as(command.module, words):
        parser = declared(command.main())
    known = {_name_of(option): option for option in options_of(parser)}
    known = {
        key: option
        for key, option in known.items()
        if not {*_OF_TERMINALS} & {*option.option_strings}
    }

    def ask(*words: str, **options: Any) -> StudyResult:
        for key in options:
            if key not in known:
                raise ConfigError(f"{name}() has no option {key!r}; {choices(key, list(known))}")
        return _asked(name, [*map(str, words), *_words(options, known)], options, known)

    parameters = [inspect.Parameter("words", inspect.Parameter.VAR_POSITIONAL, annotation=str)]
    parameters += [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in known
    ]
    ask.__name__ = ask.__qualname__ = name
    ask.__module__ = "blis_jax"
    ask.__doc__ = _help(parser, words, known)
    ask.__signature__ = inspect.Signature(parameters, return_annotation=StudyResult)  # type: ignore[attr-defined]
    return ask


def _name_of(option: argparse.Action) -> str:
    """Return the keyword argument for an option: its name, with an underscore after a Python keyword."""
    name = option.option_strings[-1 if option.dest == "help" else 0].lstrip("-").replace("-", "_")
    return f"{name}_" if name == "from" else name


def _help(parser: Parser, words: str, known: Mapping[str, argparse.Action]) -> str:
    about = " ".join((parser.description or "").split())
    lines = [about, "", f"The same as `{words}`; options:", ""]
    lines += [
        f"    {key}: {(option.help or '').replace('%%', '%')}" for key, option in known.items()
    ]
    lines += ["", "Returns:", "    What was found, a `StudyResult`.", "", "Raises:"]
    return "\n".join([*lines, "    ConfigError: something that is asked for cannot be done."])


def _words(options: Mapping[str, Any], known: Mapping[str, argparse.Action]) -> Iterator[str]:
    """Yield the command line for keyword arguments; lists are joined by commas, or repeat a repeatable option."""
    for key, value in options.items():
        option, spelled = known[key], known[key].option_strings[0]
        if value is None or value is False:
            continue
        if value is True:
            yield spelled
        elif isinstance(value, str) or not isinstance(value, Sequence | range):
            yield f"{spelled}={_text(value)}"
        elif is_kept_whole(option):
            yield from (f"{spelled}={_text(element)}" for element in value)
        else:
            yield f"{spelled}={','.join(map(_text, value))}"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={element}" for key, element in value.items())
    return str(value)


def _asked(
    name: str, words: list[str], options: Mapping[str, Any], known: Mapping[str, argparse.Action]
) -> StudyResult:
    """Run the command in this process and return its results; its errors are raised."""
    question = QUESTIONS[name]
    command = COMMANDS[question.command]
    for spelled, value in _UNASKED.items():
        if (key := spelled.lstrip("-").replace("-", "_")) in known and key not in options:
            words += [spelled] if value is True else [f"{spelled}={value}"]
    with tempfile.TemporaryDirectory() as folder:
        output = options.get("output")
        if output is None and question.ending:
            output = str(Path(folder, f"result{question.ending.rstrip('/')}"))
            words.append(f"--output={output}")
        found, printed = _findings_of(command, words)
        if found is None:
            raise ConfigError(f"{name}() found nothing; it printed: {printed}")
        # files in the folder are gone when the caller reads of them
        text = "\n".join(line for line in printed.splitlines() if folder not in line)
        return StudyResult(found, *_read_back(output), text.strip())


def _findings_of(command: Command, words: Sequence[str]) -> tuple[Findings | None, str]:
    """Return what a command that runs in this process found last, and what it printed besides."""
    printed = io.StringIO()
    with (
        called_as(command.module, f"blis-jax {command.name}"),
        cli.called_from_python(),
        render.taken() as findings,
        contextlib.redirect_stdout(printed),
    ):
        command.main()(words)
    return (findings[-1] if findings else None), printed.getvalue().strip()


def list_names(kind: str, text: str = "") -> StudyResult:
    """List the names of a kind, with a line on each, as `blis-jax models` and the other lists do.

    Args:
        kind: models, gpus, strategies, workloads, metrics or policies.
        text: names whose line, or whose group, has this text; the empty text has all.

    Returns:
        A `StudyResult`, whose `to_dataframe()` has a row for each name.

    Raises:
        ConfigError: there is no such kind, or no line has the text.
    """
    if kind not in LISTS:
        raise ConfigError(f"list_names({kind!r}): {choices(kind, LISTS)}")
    found, _ = _findings_of(COMMANDS[kind], [text] if text else [])
    assert found is not None
    return StudyResult(found)


def _read_back(output: str | Path | None) -> tuple[dict[str, Any], Any]:
    """Return the document and the dataset that a command has written."""
    if output is None:
        return {}, None
    path = Path(output)
    if path.suffix == ".json" and path.exists():
        return json.loads(path.read_text(encoding="utf-8")), None
    store = path if path.suffix in (".zarr", ".nc") else path / "dataset.zarr"
    if not store.exists():
        return {}, None
    return {}, dataset.load(store).load()


def __getattr__(name: str) -> Callable[..., StudyResult]:
    if name not in QUESTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function_of(name)
