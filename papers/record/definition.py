"""A published record: where its claims, settings, data and pictures are, and what is kept of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from papers.record.claims import CLAIMS_FILE, AnyClaim, parse_claims
from papers.record.settings import Groups, RunSetting, named, parse_groups, parse_settings

if TYPE_CHECKING:
    from papers.record.figures import PaperFigure
    from papers.record.measures import Measurement

SETTINGS_FILE = "settings.yaml"


@dataclass(frozen=True, eq=False)
class PaperRecord:
    """A record that is reproduced by one package below `papers`."""

    package: str  # such as papers.strategy_evolution
    title: str  # in the middle of a sentence: the scheduling record
    seeds: tuple[int, ...]  # on which its numbers were published
    measurement: Measurement
    first_reference_seed: int = 42  # of many seeds drawn as the reference draws
    # a second metric for each of its own, shown beside it under a heading
    beside: Mapping[str, str] = field(default_factory=dict)
    beside_heading: str = ""
    remarks: tuple[str, ...] = ()  # paragraphs above its tables
    figure_example: str = ""

    @property
    def name(self) -> str:
        """Return the last part of the package's name."""
        return self.package.rpartition(".")[2]

    @property
    def output(self) -> str:
        """Return the usual folder of results."""
        return f"out/{self.name}"

    @property
    def folder(self) -> Path:
        """Return the folder of the paper's package, with its data files."""
        return Path(str(files(self.package)))

    @cached_property
    def settings(self) -> Mapping[str, RunSetting]:
        """Return every setting by name."""
        return parse_settings(self._text(SETTINGS_FILE), f"{self.name}/{SETTINGS_FILE}")

    @cached_property
    def groups(self) -> Groups:
        """Return the groups that settings are made of."""
        return parse_groups(self._text(SETTINGS_FILE), f"{self.name}/{SETTINGS_FILE}")

    @cached_property
    def claims(self) -> tuple[AnyClaim, ...]:
        """Return every claim, in the record's order."""
        return parse_claims(self._text(CLAIMS_FILE), f"{self.name}/{CLAIMS_FILE}", self.settings)

    @property
    def figures(self) -> tuple[PaperFigure, ...]:
        """Return the record's figures."""
        figures: tuple[PaperFigure, ...] = import_module(f"{self.package}.figures").FIGURES
        return figures

    def runnable(self, claims: Iterable[AnyClaim]) -> list[RunSetting]:
        """Return the settings of claims whose mechanisms all exist, each once."""
        settings = named(self.settings, (name for claim in claims for name in claim.settings))
        return [setting for setting in settings if not setting.missing]

    def _text(self, file: str) -> str:
        return (self.folder / file).read_text(encoding="utf-8")
