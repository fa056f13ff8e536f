"""Parts of a command's runs, made separately and joined again: `--part I/N` and `blis-jax merge`.

A part is the Dataset or the journal of the whole work, filled only with the part's own runs.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import lazy
from blis_jax.commands.help import spellings
from blis_jax.errors import ConfigError, shortened
from blis_jax.files import manifest
from blis_jax.files.atomic_write import refuse_other_work
from blis_jax.files.journal import Journal
from blis_jax.reports.findings import Answer

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.results import dataset as datasets
    from blis_jax.runs import tasks
    from sweeps.runs import saved_sweep
else:  # they load JAX
    datasets = lazy.Module("blis_jax.results.dataset")
    tasks = lazy.Module("blis_jax.runs.tasks")
    saved_sweep = lazy.Module("sweeps.runs.saved_sweep")

MOST_PARTS = 100_000
PART, DIMS, MADE_BY = "part", "part_dims", "made_by"  # attributes of a part
PLAN = "runs"  # of a part's journal, as its first line has it
THEN = "then"  # the command that is to follow a merge, in which these stand for paths
MERGED, FOLDER, RESULT = "@MERGED", "@FOLDER", "@RESULT"
OF_THE_MAKING = (PART, DIMS, MADE_BY, "command", "created", "device")  # may differ between parts
NOT_RUN = -1
_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True)
class RunPart:
    """One of `count` parts; `number` counts from 1."""

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> RunPart:
        """Return the part that a text such as 1/4 gives.

        Raises:
            ArgumentTypeError: the text gives no part.
        """
        match = _TEXT.fullmatch(text)
        number, count = map(int, match.groups()) if match else (0, 0)
        if not 1 <= number <= count <= MOST_PARTS:
            raise argparse.ArgumentTypeError(
                f"got {shortened(text)}, allowed is I/N with I from 1 to N, such as 1/4"
            )
        return cls(number, count)

    def __str__(self) -> str:
        """Return the part as text, such as 1/4."""
        return f"{self.number}/{self.count}"

    def of(self, total: int) -> range:
        """Return the indices of the part's runs (or groups of runs) among `total`.

        Raises:
            ConfigError: there are fewer of them than parts.
        """
        if total < self.count:
            raise ConfigError(f"--part: {self} of {total} runs; give at most {total} parts")
        return range((self.number - 1) * total // self.count, self.number * total // self.count)

    def is_outside(self, total: int) -> np.ndarray:
        """Return which of `total` runs do not belong to the part, `[run]`."""
        outside = np.ones(total, bool)
        outside[self.of(total)] = False
        return outside

    def attributes(self, dims: Sequence[str]) -> dict[str, str]:
        """Return the Dataset attributes that mark a part, whose runs are counted over the dims `dims`."""
        return {
            PART: str(self), DIMS: json.dumps(list(dims)), MADE_BY: json.dumps(tasks.identity()),
        }  # fmt: skip

    def kind_of(self, kind: str) -> str:
        """Return the kind of the part's journal, for work of this kind."""
        return f"{kind}, {PART} {self}"

    def answer(self, path: Path, num_runs: int, total: int, what: str = "runs") -> Answer:
        """Return the sentence that a command prints after making the part."""
        return Answer.of(
            f"Part {self.number} of {self.count} of these runs?",
            f"Written: {path}",
            "the undivided command makes the same runs, byte for byte.",
            f"{num_runs} of {total} {what}.",
            f"blis-jax merge with all {self.count} parts, such as {path}",
        )


def check_numbers(parts: Mapping[Path, RunPart], num_given: int) -> None:
    """Refuse parts of several divisions, repeated parts, and missing parts.

    Raises:
        ConfigError: the parts are not exactly those of one division.
    """
    first, *others = parts
    if len(parts) < num_given:
        raise ConfigError("a part is given twice; give each once")
    for path in others:
        if parts[path].count != parts[first].count:
            raise ConfigError(
                f"{path} is part {parts[path]} and {first} is part {parts[first]}; give the parts of one division"
            )
    by_number: dict[int, Path] = {}
    for path, part in parts.items():
        if part.number in by_number:
            raise ConfigError(
                f"{by_number[part.number]} and {path} are both part {part}; give each part once"
            )
        by_number[part.number] = path
    count = parts[first].count
    lacking = [number for number in range(1, count + 1) if number not in by_number]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ConfigError(f"part {lacking[0]}/{count}{more} is not given; give all {count} parts")


def check_makers(made_by: Mapping[Path, Mapping[str, str]]) -> None:
    """Refuse parts made by another version or on another type of machine than the first.

    Raises:
        ConfigError: a part was made differently.
    """
    first, *others = made_by
    for path in others:
        names = (*made_by[first], *made_by[path])
        other = [
            name
            for name in dict.fromkeys(names)
            if made_by[path].get(name) != made_by[first].get(name)
        ]
        if other:
            raise ConfigError(
                f"{path} was made with another {', '.join(other)} than {first}, and figures could differ in a last "
                "bit; make all parts with one installation, on machines of one type"
            )


def _foreign(first: Path) -> str:
    return f"it is no part of the runs of {first}"


def _unfinished(path: Path, num_lacking: int, num_own: int) -> ConfigError:
    return ConfigError(f"{path} lacks {num_lacking} of its {num_own} runs; finish it with --resume")


# --- Datasets -------------------------------------------------------------------------------------


def join_datasets(paths: Sequence[Path], output: Path) -> tuple[int, str]:
    """Write the Dataset joined from all parts; return its number of runs, and the command to continue with.

    Raises:
        ConfigError: a part is missing, repeated, unfinished or of other work, or a file is no part.
    """
    loaded = {path: datasets.load_or_refuse(path, "make that part again") for path in paths}
    for path, dataset in loaded.items():
        if PART not in dataset.attrs:
            raise ConfigError(f"{path} is no part; give what --part wrote")
    parts = {path: RunPart.read(str(dataset.attrs[PART])) for path, dataset in loaded.items()}
    check_numbers(parts, len(paths))
    first = paths[0]
    for path in paths[1:]:
        _refuse_foreign(path, loaded[path], first, loaded[first])
    check_makers({path: json.loads(dataset.attrs[MADE_BY]) for path, dataset in loaded.items()})
    joined = loaded[first].copy(deep=True)
    for path, dataset in loaded.items():
        _take(joined, path, dataset, parts[path])
    attributes = {
        name: of for name, of in joined.attrs.items() if name not in (PART, DIMS, MADE_BY)
    }
    command = with_output(str(attributes.get("command", "")), output)
    joined.attrs = attributes | {"command": command} | saved_sweep.totals_of(joined)
    filled: Sequence[str] = ()
    if first.is_dir() and (record := manifest.read(first)) is not None:
        filled = record.filled
    for name in joined.variables:  # as the undivided command writes them
        chunks = joined[name].encoding.get("chunks")
        joined[name].encoding = {"chunks": chunks} if name in filled and chunks else {}
    datasets.save(joined, output, filled)
    return joined["outcome"].size, command


def with_output(command: str, output: Path | str) -> str:
    """Return a command line with --output replaced."""
    words = shlex.split(command)
    for option in (f"--{name}" for name in spellings("output")):
        if option in words[:-1]:
            words[words.index(option) + 1] = str(output)
        start = f"{option}="
        words = [f"{start}{output}" if word.startswith(start) else word for word in words]
    return shlex.join(words)


def _split_variables(dataset: xr.Dataset) -> tuple[list[str], int]:
    """Return the variables that hold runs, and the number of their leading dims over which runs are counted."""
    dims = tuple(json.loads(dataset.attrs[DIMS]))
    names = [str(name) for name, of in dataset.variables.items() if of.dims[: len(dims)] == dims]
    return names, len(dims)


def _refuse_foreign(path: Path, dataset: xr.Dataset, first: Path, of_first: xr.Dataset) -> None:
    is_there, wanted = (
        {name: value for name, value in each.attrs.items() if name not in OF_THE_MAKING}
        for each in (dataset, of_first)
    )
    summed = saved_sweep.totals_of(of_first)
    for attributes in (is_there, wanted):
        attributes.update(dict.fromkeys(summed))
    refuse_other_work(path, is_there, wanted, _foreign(first))
    names, _ = _split_variables(of_first)
    others = [name for name in of_first.variables if name not in names]
    for name in others:
        if name not in dataset.variables or not dataset[name].equals(of_first[name]):
            raise ConfigError(f"{path} has other values of {name}; {_foreign(first)}")


def _take(joined: xr.Dataset, path: Path, dataset: xr.Dataset, part: RunPart) -> None:
    """Copy a part's own runs into the joined Dataset."""
    names, num_dims = _split_variables(dataset)
    shape = dataset["outcome"].shape[:num_dims]
    places = part.of(int(np.prod(shape)))
    rows = slice(places.start, places.stop)
    outcomes = dataset["outcome"].values.reshape(-1, *dataset["outcome"].shape[num_dims:])[rows]
    num_lacking = int((outcomes == NOT_RUN).sum())
    if num_lacking:
        raise _unfinished(path, num_lacking, outcomes.size)
    for name in names:
        into, values = joined[name].values, dataset[name].values
        flat = into.reshape(-1, *into.shape[num_dims:])
        flat[rows] = values.reshape(flat.shape)[rows]
        joined[name].values = flat.reshape(into.shape)


# --- journals -------------------------------------------------------------------------------------


Key = str | int  # of runs that stand in one line; a joined line begins with it where it is a text
# keys in order, their runs, and how often these stand in the joined line
Plan = Sequence[tuple[Key, int, int]]
Make = Callable[[Sequence[tuple[Any, int]]], Iterable[tuple[Key, list[int], list[Any]]]]


def make_part(
    journal: Journal, part: RunPart, plan: Plan, then: str, make: Make
) -> tuple[int, int]:
    """Make the part's own runs that its journal lacks, and write them there; return the numbers of its own and of all
    runs.

    Args:
        journal: the part's journal, with the part's kind.
        part: the part to make.
        plan: all runs.
        then: the command that judges the joined runs; `MERGED` stands for the joined journal, `FOLDER` for its folder,
            and `RESULT` for a .json beside it.
        make: makes runs, identified by key and place; yields keys, places and the kept results, call by call.

    Raises:
        ConfigError: there are fewer runs than parts, or the journal is of a part of other runs, or of another machine.
    """
    places = [(key, place) for key, count, _ in plan for place in range(count)]
    places_of_part, lines = [places[at] for at in part.of(len(places))], journal.lines()
    first: dict[str, Any] = {
        PLAN: [list(run) for run in plan],
        MADE_BY: tasks.identity(),
        THEN: then,
    }
    if lines:
        before, now = ({PLAN: line[PLAN], **line[MADE_BY]} for line in (lines[0], first))
        refuse_other_work(journal.path, before, now)
    else:
        journal.append(first)
    done = {(key, place) for key, of_call, _ in lines[1:] for place in of_call}
    for line in make([place for place in places_of_part if place not in done]):
        journal.append(line)
    return len(places_of_part), len(places)


def join_journals(paths: Sequence[Path], output: Path) -> tuple[int, str]:
    """Write the journal joined from all parts; return its number of runs, and the command to continue with.

    Raises:
        ConfigError: a part is missing, repeated, unfinished or of other work, or a file is no part.
    """
    journals = {path: Journal.of_file(path) for path in paths}
    parts, kinds = {}, {}
    for path, journal in journals.items():
        kind, _, text = journal.kind.rpartition(f", {PART} ")
        if not kind:
            raise ConfigError(f"{path} is no part; give what --part wrote")
        kinds[path], parts[path] = kind, RunPart.read(text)
    check_numbers(parts, len(paths))
    first, lines = paths[0], {path: journal.lines() for path, journal in journals.items()}
    for path in paths:
        if not lines[path]:
            raise ConfigError(f"{path} has no runs; finish it with --resume")
    plan = lines[first][0][PLAN]
    for path in paths[1:]:
        content, wanted = (
            {"work": kinds[path_of_journal], **journals[path_of_journal].content}
            for path_of_journal in (path, first)
        )
        refuse_other_work(path, content, wanted, _foreign(first))
        if lines[path][0][PLAN] != plan:
            raise ConfigError(f"{path} was made with different runs; {_foreign(first)}")
    check_makers({path: lines[path][0][MADE_BY] for path in paths})
    runs: dict[Key, dict[int, Any]] = {key: {} for key, _, _ in plan}
    for path in paths:
        _take_lines(path, lines[path][1:], parts[path], plan, runs)
    whole = [
        (key, [runs[key][place] for place in range(count)] * copies) for key, count, copies in plan
    ]
    entries = [[key, runs] if isinstance(key, str) else runs for key, runs in whole]
    journals[first].under(output, kinds[first]).rewrite(entries)
    return sum(len(runs) for _, runs in whole), _following(lines[first][0][THEN], output)


def _following(then: str, output: Path) -> str:
    beside = {MERGED: output, FOLDER: output.parent, RESULT: output.with_suffix(".json")}
    for name, path in beside.items():
        then = then.replace(name, shlex.quote(str(path)))
    return then


def _take_lines(
    path: Path,
    lines: Sequence[Any],
    part: RunPart,
    plan: Sequence[Sequence[Any]],
    runs: dict[Key, dict[int, Any]],
) -> None:
    """Copy a part's own runs from its journal lines into `runs`."""
    places = [(key, place) for key, count, _ in plan for place in range(count)]
    places_of_part = [places[at] for at in part.of(len(places))]
    known = {
        (key, place): run
        for key, seeds, of_call in lines
        for place, run in zip(seeds, of_call, strict=True)
    }
    num_lacking = sum(place not in known for place in places_of_part)
    if num_lacking:
        raise _unfinished(path, num_lacking, len(places_of_part))
    for key, place in places_of_part:
        runs[key][place] = known[key, place]
