"""Hypotheses as the evaluator reads them from `hypotheses.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from blis_jax.errors import ConfigError
from sweeps.promote.promotion import Files

NAME = "hypotheses.yaml"
BASELINE, CONTROL, TREATMENT = "baseline", "control", "treatment"
ARMS = (BASELINE, CONTROL, TREATMENT)
LOWER, HIGHER, SAME = "lower", "higher", "same"
MARGIN_PERCENT = 5.0  # of track C


@dataclass(frozen=True)
class ReportMetric:
    """A figure of a report, and which way is better."""

    path: str
    statistic: str
    unit: str
    better: str  # LOWER or HIGHER


@dataclass(frozen=True)
class PromotedHypothesis:
    """One hypothesis; `direction` is what the treatment does to the metric against the baseline."""

    id: str
    track: str  # A, B, C
    statement: str
    metric: ReportMetric
    direction: str  # LOWER, HIGHER, or SAME within the tolerance
    tolerance_percent: float
    arms: tuple[str, ...]
    scene: str  # the folder of its reports
    runs: int  # that are asked for per arm
    whole: Mapping[str, Any]  # as the file has it

    @property
    def subject(self) -> str:
        """The arm that is compared with the baseline: the treatment, or where it is left out the control."""
        return CONTROL if CONTROL in self.arms and TREATMENT not in self.arms else TREATMENT

    @property
    def references(self) -> tuple[str, ...]:
        """What it is compared with."""
        return (BASELINE,) if self.subject == CONTROL else (BASELINE, CONTROL)

    @property
    def is_equivalence(self) -> bool:
        """Whether it says that nothing changes."""
        return self.direction == SAME


def hypotheses_path(files: Files) -> str:
    """The path of the hypotheses among files."""
    for path in files:
        if path.rpartition("/")[2] == NAME:
            return path
    raise ConfigError(f"there is no {NAME}; run the stage hypothesise")


def hypotheses_of(files: Files) -> list[PromotedHypothesis]:
    """All hypotheses.

    Raises:
        ConfigError: the file is not a list of hypotheses, or one lacks what the evaluator needs.
    """
    path = hypotheses_path(files)
    try:
        document = yaml.safe_load(files[path])
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML ({str(error).splitlines()[0]})") from None
    entries = document.get("hypotheses") if isinstance(document, Mapping) else document
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path} lists no hypotheses; make it again with the stage hypothesise")
    found = [_hypothesis(entry, f"{path}[{place}]") for place, entry in enumerate(entries)]
    names = [one.id for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path}: two hypotheses have the id {twice}")
    return found


def _hypothesis(entry: Any, where: str) -> PromotedHypothesis:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} is no mapping; a hypothesis has an id, a track, a metric …")
    metric = _part(entry, "metric", where)
    expected = _part(entry, "expected", where)
    track, better = _text(entry, "track", where), _text(metric, "better", where)
    if track not in ("A", "B", "C"):
        raise ConfigError(f"{where}.track is {track!r}; allowed are A, B and C")
    if better not in (LOWER, HIGHER):
        raise ConfigError(f"{where}.metric.better is {better!r}; allowed are {LOWER} and {HIGHER}")
    direction = _text(expected, "direction", where)
    if direction not in (LOWER, HIGHER, SAME):
        raise ConfigError(
            f"{where}.expected.direction is {direction!r}; allowed are {LOWER}, {HIGHER} and {SAME}"
        )
    return PromotedHypothesis(
        id=_text(entry, "id", where),
        track=track,
        statement=_text(entry, "statement", where),
        metric=ReportMetric(
            _text(metric, "path", where),
            _text(metric, "statistic", where),
            _text(metric, "unit", where),
            better,
        ),
        direction=direction,
        tolerance_percent=float(expected.get("tolerance") or MARGIN_PERCENT),
        arms=tuple(entry.get("arms") or ()),
        scene=scene_name(entry),
        runs=int(entry.get("runs") or 3),
        whole=entry,
    )


def scene_name(entry: Mapping[str, Any]) -> str:
    """The folder of a hypothesis's reports: hypotheses on one workload under one concern share it."""
    return str(entry.get("scene") or entry["id"])


def _part(entry: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = entry.get(name)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where}.{name} is missing or no mapping")
    return found


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    found = entry.get(name)
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{where}: {name} is missing or empty")
    return found
