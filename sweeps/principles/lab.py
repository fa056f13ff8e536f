"""Runs the arms of entries on common seeds, once each; says why an arm cannot be run, or not be compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.workload.spec import (
    WorkloadSpec,
)
from sweeps.principles.catalogue import (
    Catalogue,
    Entry,
    PrincipleClaim,
    WorkloadChoice,
    missing,
    workload_named,
)
from sweeps.principles.figures import figures_of, reported_names
from sweeps.runs.experiment import Experiment
from sweeps.strategies.file import converted
from sweeps.strategies.moved import changed, is_setting

if TYPE_CHECKING:
    from blis_jax.metrics.run_summary import RunSummary
    from blis_jax.runs.driver import Runner

FOLDER = "workloads"


@dataclass(frozen=True)
class LabArm:
    """A configuration and its workload, or the reason why there is none."""

    name: str
    config: ClusterConfig | None
    spec: WorkloadSpec
    choice: WorkloadChoice
    missing: str = ""


def arm_of(catalogue: Catalogue, entry: Entry, name: str) -> LabArm:
    """Return one arm of an entry, with a reason if it cannot be run."""
    choice = entry.workload_of(name)
    settings = catalogue.settings_of(entry, name)
    reason = missing(settings)
    try:
        spec = workload_named(choice)
        values = {key: converted(key, value) for key, value in settings.items() if is_setting(key)}
        if spec.horizon:  # requests and the run end together, as with BLIS's --horizon
            values["horizon"] = min(values.get("horizon", spec.horizon), spec.horizon)
        config = None if reason else changed(ClusterConfig(), values)
    except ConfigError as error:
        raise ConfigError(f"{entry.source}: {entry.id}: arms.{name}: {error}") from None
    return LabArm(name, config, spec, choice, reason)


class Lab:
    """Runs arms on the seeds of one stream; what was run is kept."""

    def __init__(self, stream: str, names: Collection[str]) -> None:
        """`stream` draws the requests, `names` are the figures of every run."""
        self.stream, self.names = stream, tuple(dict.fromkeys(names))
        self.runs: dict[tuple[str, str, tuple[int, ...]], tuple[RunSummary, ...]] = {}
        self.experiments: dict[tuple[str, tuple[int, ...]], Experiment] = {}
        self.runners: dict[tuple[str, int], Runner] = {}

    def measure(
        self, arms: Sequence[LabArm], seeds: tuple[int, ...], whole: Collection[str] = ()
    ) -> None:
        """Run the arms that have not been run on these seeds; `whole` names those compared whole."""
        groups: dict[tuple[str, bool], dict[ClusterConfig, LabArm]] = {}
        for arm in arms:
            is_whole = arm.name in whole
            if arm.config is not None and not self._has(arm, seeds, is_whole):
                groups.setdefault((_text_of(arm.spec), is_whole), {})[arm.config] = arm
        for (text, is_whole), members in groups.items():
            self._run(text, is_whole, members, seeds)

    def _run(
        self,
        text: str,
        is_whole: bool,
        members: dict[ClusterConfig, LabArm],
        seeds: tuple[int, ...],
    ) -> None:
        first = next(iter(members.values()))
        names = tuple(dict.fromkeys((*self.names, *reported_names(first.spec))))
        made = self._experiment(text, first, seeds).summaries(
            list(members), lambda record: figures_of(record, names, is_whole)
        )
        for config, runs in zip(members, made, strict=True):
            self.runs[text, repr(config), seeds] = runs

    def _has(self, arm: LabArm, seeds: tuple[int, ...], is_whole: bool) -> bool:
        runs = self.runs.get(self._key(arm, seeds))
        if runs is None:
            return False
        return not is_whole or all(run.lives is not None for run in runs if run.is_whole)

    def of(self, arm: LabArm, seeds: tuple[int, ...]) -> tuple[RunSummary, ...]:
        """Return the runs of an arm, one per seed."""
        return self.runs[self._key(arm, seeds)]

    def _key(self, arm: LabArm, seeds: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
        return _text_of(arm.spec), repr(arm.config), seeds

    def _experiment(self, text: str, arm: LabArm, seeds: tuple[int, ...]) -> Experiment:
        if (text, seeds) not in self.experiments:
            # sizes of one workload's programs are alike, so that they are compiled once
            sizes = arm.choice.name, arm.spec.num_requests
            shared = self.runners.get(sizes)
            experiment = Experiment.on(arm.spec, seeds, self.stream, shared=shared)
            self.runners[sizes] = experiment.runner
            self.experiments[text, seeds] = experiment
        return self.experiments[text, seeds]


def _text_of(spec: WorkloadSpec) -> str:
    return json.dumps(spec.model_dump(mode="json"), sort_keys=True)


PAIRS = ("gain_change", "change_share")  # compare within pairs, and then the pairs
COLUMNS = ("least_regret",)  # compare within every column


def check_fair(entry: Entry, arms: Mapping[str, LabArm]) -> None:
    """Refuse an entry that compares runs of unequal size.

    What is compared directly has the same number of requests and the same horizon; where the rate or
    the number of instances differs, and between pairs, arrivals last as long.
    """
    for claim in entry.claims:
        for group in _direct(claim):
            for one, other in combinations((arms[name] for name in group), 2):
                _demand(entry, one, other, _size(one) == _size(other), "requests or horizon")
                _demand(entry, one, other, _duration(one) == _duration(other), "duration")
        if claim.kind in PAIRS:
            first, second = arms[claim.of[0]], arms[claim.to[0]]
            _demand(entry, first, second, _duration(first) == _duration(second), "duration")


def _direct(claim: PrincipleClaim) -> list[Sequence[str]]:
    if claim.kind in PAIRS:
        return [claim.of, claim.to]
    return list(claim.of) if claim.kind in COLUMNS else [claim.arms()]


def _size(arm: LabArm) -> tuple[int, int]:
    return arm.spec.num_requests, arm.spec.horizon


def _duration(arm: LabArm) -> Any:
    """Return how long requests arrive, s."""
    if arm.spec.horizon:
        return arm.spec.horizon / 1e6
    return round(arm.spec.num_requests / (arm.spec.aggregate_rate or 1.0), 9)


def _demand(entry: Entry, one: LabArm, other: LabArm, is_equal: bool, what: str) -> None:
    if not is_equal:
        raise ConfigError(
            f"{entry.source}: {entry.id}: arms {one.name} and {other.name} are compared, but differ "
            f"in {what}; give both the same"
        )
