"""The runs of a paper in parts: what `--part` of its command writes, and what `merge` has joined of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.journal import Journal
from blis_jax.reports import render
from papers.record.runs import PaperRuns, SettingRuns, SettingSample
from sweeps.runs.parts import FOLDER, make_part, with_output

if TYPE_CHECKING:
    from papers.record.measures import Measurement
    from papers.record.settings import RunSetting
    from sweeps.runs.parts import RunPart

RECORD = "record.jsonl"  # in the folder of --output


class PaperAsk(Protocol):
    """Runs of a paper that are known before its first one."""

    def counts(self) -> Mapping[str, int]:
        """Return the number of runs of each key in the record."""

    def about(self) -> Any:
        """Return all else that the runs' figures depend on, as plain data."""

    def made(
        self, missing: Sequence[tuple[str, int]]
    ) -> Iterator[tuple[str, list[int], list[Any]]]:
        """Yield the missing runs, each given as key and place of its seed: a key, places and their documents."""

    def take(self, documents: Mapping[str, Sequence[Any]]) -> None:
        """Keep all runs, made elsewhere, where the paper looks for them."""


@dataclass(frozen=True)
class SettingsAsk:
    """Settings that a paper runs on seeds."""

    runs: PaperRuns
    settings: Sequence[RunSetting]
    seeds: Sequence[int]
    measurement: Measurement

    def by_key(self) -> dict[str, RunSetting]:
        """Return the settings by key in the record; settings that simulate the same share a key."""
        about = f"{self.runs.stream} {self.measurement.name} {self.seeds[0]}-{self.seeds[-1]}"
        settings = {f"{about} {setting.identity}": setting for setting in reversed(self.settings)}
        return dict(reversed(settings.items()))

    def counts(self) -> Mapping[str, int]:
        """Return how many runs each key has."""
        return dict.fromkeys(self.by_key(), len(self.seeds))

    def about(self) -> Any:
        """Return the figures that are kept."""
        return self.measurement.names

    def made(
        self, missing: Sequence[tuple[str, int]]
    ) -> Iterator[tuple[str, list[int], list[Any]]]:
        """Yield the missing runs, setting by setting."""
        by_key, places = self.by_key(), dict[str, list[int]]()
        for key, place in missing:
            places.setdefault(key, []).append(place)
        keys = sorted((key for key in places if key in by_key), key=lambda key: places[key])
        for places_of_group, alike in itertools.groupby(keys, key=lambda key: places[key]):
            settings = {by_key[key].identity: key for key in alike}
            seeds = [self.seeds[place] for place in places_of_group]
            wanted = [by_key[key] for key in settings.values()]
            batches = self.runs.batches(wanted, seeds, self.measurement)
            for setting, runs in itertools.chain.from_iterable(batches):
                yield (
                    settings[setting.identity],
                    places_of_group,
                    [_document_of(run) for run in runs],
                )

    def take(self, documents: Mapping[str, Sequence[Any]]) -> None:
        """Write each setting's file."""
        for key, setting in self.by_key().items():
            runs = [
                (np.array(values), outcome, broken) for values, outcome, broken in documents[key]
            ]
            sample = SettingSample.of(setting, self.measurement, self.seeds, runs)
            self.runs.keep(sample, self.measurement)


def _document_of(run: SettingRuns) -> list[Any]:
    values, outcome, num_broken = run
    return [values.tolist(), outcome, num_broken]


class PaperOptions(Protocol):
    """Options of a paper's command whose runs may be made in parts."""

    @property
    def command(self) -> str:
        """Return the command's name."""

    def line(self) -> str:
        """Return the command line."""

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""

    def check_part(self, output: str | None) -> None:
        """Refuse a part without a file of its own."""


def make_paper_part(
    options: PaperOptions, part: RunPart, asks: Sequence[PaperAsk], is_fresh: bool = False
) -> int:
    """Make a part of the runs, which goes on where it was stopped unless it `is_fresh`; return the exit code."""
    options_given = options.given()
    options.check_part(options_given.get("output"))
    journal = _journal(options.command, Path(str(options_given["output"])), asks, part)
    cli.check_writable(journal.path)
    if options_given.get("saved"):
        raise ConfigError("--saved simulates nothing; leave one of --part and --saved out")
    owner = {key: ask for ask in reversed(asks) for key in ask.counts()}
    plan = [
        (key, count, 1) for ask in asks for key, count in ask.counts().items() if owner[key] is ask
    ]

    def make(missing: Sequence[tuple[str, int]]) -> Iterator[Any]:
        for ask in asks:
            yield from ask.made([(key, place) for key, place in missing if owner[key] is ask])

    then = with_output(options.line(), FOLDER)
    with journal.held(not is_fresh), cli.resumable(options.command, journal.path):
        made = make_part(journal, part, plan, then, make)
    if not options_given.get("quiet"):
        render.show_answer(part.answer(journal.path, *made))
    return 0


def take_joined(options: PaperOptions, folder: Path, asks: Sequence[PaperAsk]) -> None:
    """Pass the runs that `merge` has joined in `folder` on to `asks`; do nothing if there are none.

    Raises:
        ConfigError: the joined runs are not those of `asks`.
    """
    if not (folder / RECORD).is_file():
        return
    documents: Mapping[str, Any] = dict(_journal(options.command, folder, asks).lines())
    for ask in asks:
        ask.take(documents)


def _journal(
    command: str, folder: Path, asks: Sequence[PaperAsk], part: RunPart | None = None
) -> Journal:
    content = [[dict(ask.counts()), ask.about()] for ask in asks]
    kind = command if part is None else part.kind_of(command)
    return Journal(folder / RECORD, kind, {"runs": content})
