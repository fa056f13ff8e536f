"""Runs of settings on seeds: simulated once, kept in one file a setting, and read back from there."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from blis_jax import __version__, progress
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.files.formats import number_of
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options, default_form, num_workers
from papers.record.measures import Measurement
from papers.record.settings import RunSetting
from sweeps.runs.experiment import Experiment

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord
    from blis_jax.runs.runs import Row

FORMAT = number_of("kept runs")
PLAIN_MS, CHATS_MS, PRESSED_MS = 3.5, 8.0, 15.0  # a run of 1,000 requests on two free cores
COMPILE_S = 5.0  # a mechanism; from the cache of compiled programs a fifth of that
LEAST_ROWS = 64  # a batch, so that calls have one size whatever the number of seeds
FEW_SEEDS = 8  # up to which settings of all sizes share programs


SettingRuns = tuple[np.ndarray, int, int]  # of a run: figures, outcome, broken invariants


@dataclass(frozen=True)
class SettingSample:
    """One setting's runs: a row a seed, a column a figure; NaN where a run did not come to its end."""

    setting: RunSetting
    names: tuple[str, ...]
    seeds: np.ndarray
    values: np.ndarray
    outcomes: np.ndarray
    num_broken: int  # invariants that did not hold, in all runs

    @classmethod
    def of(
        cls,
        setting: RunSetting,
        measurement: Measurement,
        seeds: Sequence[int],
        runs: Sequence[SettingRuns],
    ) -> SettingSample:
        """Return the runs of a setting, one a seed."""
        return cls(
            setting,
            measurement.names,
            np.array(seeds, np.int64),
            np.stack([values for values, _, _ in runs]),
            np.array([outcome for _, outcome, _ in runs], np.int8),
            sum(broken for _, _, broken in runs),
        )

    def column(self, name: str) -> np.ndarray:
        """Return one figure of every seed."""
        return np.asarray(self.values[:, self.names.index(name)])

    def at(self, seeds: Sequence[int]) -> SettingSample:
        """Return the runs of some seeds, in their order."""
        place = {int(seed): row for row, seed in enumerate(self.seeds)}
        return self.rows([place[seed] for seed in seeds])

    def rows(self, rows: slice | list[int] | np.ndarray) -> SettingSample:
        """Return some of the runs."""
        seeds, values, outcomes = (part[rows] for part in (self.seeds, self.values, self.outcomes))
        return replace(self, seeds=seeds, values=values, outcomes=outcomes)

    def with_others(self, other: SettingSample) -> SettingSample:
        """Return these runs and the other's on further seeds."""
        is_new = ~np.isin(other.seeds, self.seeds)
        further = other.rows(is_new)
        return replace(
            self,
            seeds=np.concatenate([self.seeds, further.seeds]),
            values=np.concatenate([self.values, further.values]),
            outcomes=np.concatenate([self.outcomes, further.outcomes]),
            num_broken=self.num_broken + other.num_broken,
        )

    @property
    def outcome_counts(self) -> dict[str, int]:
        """Count the runs that ended in each way."""
        codes, counts = np.unique(self.outcomes, return_counts=True)
        return {
            Outcome(code).name: int(count)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        }


@dataclass(frozen=True)
class Measured:
    """Computes what is kept of a run from its record; it can be sent to another machine."""

    measurement: Measurement

    def __call__(self, record: RunRecord) -> SettingRuns:
        """Return figures, outcome and broken invariants of one run."""
        broken = sum(record.invariant_failures.values())
        return self.measurement.of(record), int(record.outcome), broken


class PaperRuns:
    """Simulates runs that are not kept yet; every setting is written as soon as its seeds are done."""

    def __init__(self, folder: Path, stream: str, is_fresh: bool = False) -> None:
        """`stream` draws the requests, `reference` or `jax`; with `is_fresh`, kept runs are ignored."""
        self.folder, self.stream, self.is_fresh = folder, stream, is_fresh
        self.made: set[Path] = set()

    def get(
        self,
        settings: Iterable[RunSetting],
        seeds: Sequence[int],
        measurement: Measurement,
        what: str = "simulating",
    ) -> dict[str, SettingSample]:
        """Return the samples of these settings by name; those that simulate the same are made once.

        The progress of what is simulated is shown under the name `what`.
        """
        settings = list(settings)
        if missing := self.missing(settings, seeds, measurement):
            with progress.phase(what, len(missing), "settings") as work:
                for batch in self.batches(missing, seeds, measurement, work.show):
                    for setting, runs in batch:
                        self.keep(SettingSample.of(setting, measurement, seeds, runs), measurement)
        return {s.name: self._kept(s, measurement).at(seeds) for s in settings}

    def batches(
        self,
        settings: Sequence[RunSetting],
        seeds: Sequence[int],
        measurement: Measurement,
        show: Callable[[int, str], object] = lambda done, what: None,
    ) -> Iterator[list[tuple[RunSetting, list[SettingRuns]]]]:
        """Run settings on seeds; yield batches of settings with their runs, unkept. `show` gets the number done."""
        settings = in_order(settings)
        work = _Work(settings, seeds, self.stream, measurement)
        for at in range(0, len(settings), work.settings_per_batch):
            batch = settings[at : at + work.settings_per_batch]
            show(at, batch[0].name)
            yield work.run(batch)

    def missing(
        self, settings: Iterable[RunSetting], seeds: Sequence[int], measurement: Measurement
    ) -> list[RunSetting]:
        """Return the settings to simulate, each once, workload by workload, those with the largest tables first."""
        wanted = {setting.identity: setting for setting in reversed(list(settings))}
        wanted = {
            identity: setting
            for identity, setting in wanted.items()
            if not self._has(setting, seeds, measurement)
        }
        return in_order(wanted.values())

    def path(self, setting: RunSetting, measurement: Measurement) -> Path:
        """Return where a setting's runs are kept."""
        return self.folder / f"{self.stream}-{measurement.name}" / f"{setting.identity}.npz"

    def _kept(self, setting: RunSetting, measurement: Measurement) -> SettingSample:
        sample = self._read(setting, measurement)
        if sample is None:
            raise ConfigError(
                f"{self.path(setting, measurement)} was changed while it was needed; run the command again"
            )
        return sample

    def _has(self, setting: RunSetting, seeds: Sequence[int], measurement: Measurement) -> bool:
        if self.is_fresh and self.path(setting, measurement) not in self.made:
            return False
        sample = self._read(setting, measurement)
        return sample is not None and set(seeds) <= set(sample.seeds.tolist())

    def _read(self, setting: RunSetting, measurement: Measurement) -> SettingSample | None:
        path = self.path(setting, measurement)
        if not path.is_file():
            return None
        try:
            # of a damaged archive numpy would leave the file open
            with np.load(io.BytesIO(path.read_bytes())) as kept:
                made_by = int(kept["format"]), str(kept["version"])
                if made_by != (FORMAT, __version__) or tuple(kept["names"]) != measurement.names:
                    return None
                fields = kept["seeds"], kept["values"], kept["outcomes"], int(kept["num_broken"])
                return SettingSample(setting, measurement.names, *fields)
        except (
            OSError,
            EOFError,
            ValueError,
            KeyError,
            BadZipFile,
        ):  # not one of ours, or damaged: made again
            return None

    def keep(self, sample: SettingSample, measurement: Measurement) -> None:
        """Write the runs of a setting; runs on other seeds that are in its file stay."""
        path = self.path(sample.setting, measurement)
        kept = None if self.is_fresh else self._read(sample.setting, measurement)
        if kept is not None:  # other seeds stay
            sample = sample.with_others(kept)
        with replacing(path) as written, written.open("wb") as file:
            np.savez_compressed(
                file,
                format=FORMAT,
                version=__version__,
                name=sample.setting.name,
                names=np.array(sample.names),
                seeds=sample.seeds,
                values=sample.values,
                outcomes=sample.outcomes,
                num_broken=sample.num_broken,
            )
        self.made.add(path)


def in_order(settings: Iterable[RunSetting]) -> list[RunSetting]:
    """Return settings workload by workload, those that need the largest tables first."""
    return sorted(settings, key=lambda setting: (*_requests_key(setting), *_within(setting)))


class _Work:
    """Settings on seeds: requests are drawn once a workload, and programs serve all settings of about one size."""

    def __init__(
        self,
        settings: Sequence[RunSetting],
        seeds: Sequence[int],
        stream: str,
        measurement: Measurement,
    ) -> None:
        """`settings` is all that will be run."""
        self.seeds, self.stream, self.measurement = tuple(seeds), stream, measurement
        # few seeds: several settings at a time, so that mechanisms compile side by side
        self.settings_per_batch = -(-LEAST_ROWS // len(self.seeds))
        self.is_small = len(self.seeds) <= FEW_SEEDS
        self.runners: dict[int, Runner] = {}
        self.experiments: dict[tuple[Any, ...], Experiment] = {}
        if (
            self.is_small
        ):  # one program a mechanism: to compile one takes longer than all of its runs
            for setting in settings:
                self._runner(setting).expect(self._rows(setting))

    def run(self, batch: Sequence[RunSetting]) -> list[tuple[RunSetting, list[SettingRuns]]]:
        """Run all seeds of some settings."""

        if not self.is_small:  # other requests are not needed any more
            wanted = {_requests_key(setting) for setting in batch} & self.experiments.keys()
            self.experiments = {key: self.experiments[key] for key in wanted}
        made: list[tuple[RunSetting, list[SettingRuns]]] = []
        for _, alike in groupby(batch, key=self._size):
            group = list(alike)
            rows = [row for setting in group for row in self._rows(setting)]
            measured_rows = iter(self._runner(group[0]).run(rows, Measured(self.measurement)))
            made += [(setting, list(islice(measured_rows, len(self.seeds)))) for setting in group]
        return made

    def _size(self, setting: RunSetting) -> int:
        return 0 if self.is_small else _size(setting)

    def _runner(self, setting: RunSetting) -> Runner:
        size, form = self._size(setting), default_form()
        if size not in self.runners:
            is_by_setting = self.is_small and form == "rows"  # a call has the runs of one setting
            each = num_workers() if is_by_setting else self.settings_per_batch
            self.runners[size] = Runner(Options(form=form), len(self.seeds) * each)
        return self.runners[size]

    def _rows(self, setting: RunSetting) -> list[Row]:
        key = _requests_key(setting)
        if key not in self.experiments:
            runner = self._runner(setting)
            self.experiments[key] = Experiment.on(
                setting.spec, self.seeds, self.stream, shared=runner
            )
        return self.experiments[key].rows(setting.config)


def estimated_s(missing: Sequence[RunSetting], num_seeds: int) -> float:
    """Estimate roughly how long the settings take on two busy cores, in s, compilations included."""
    total = 0.0
    for setting in missing:
        per_run = PRESSED_MS if setting.is_pressed else PLAIN_MS
        if setting.has_chats:
            per_run = CHATS_MS
        size = setting.num_requests / 1000
        total += num_seeds * per_run * size / 1000
    is_small = num_seeds <= FEW_SEEDS
    kinds = {(s.is_pressed, 0 if is_small else _size(s), _mechanism(s)) for s in missing}
    return total + COMPILE_S * len(kinds)


def _requests_key(setting: RunSetting) -> tuple[Any, ...]:
    # the largest tables first: sizes only grow, and each growth compiles again
    return -_size(setting), -setting.num_requests, setting.choice.model_dump_json()


def _size(setting: RunSetting) -> int:
    """Settings of one number share programs: twice as many requests an instance have the next one."""
    return round(setting.num_requests / setting.config.num_instances).bit_length()


def _within(setting: RunSetting) -> tuple[Any, ...]:
    config = setting.config
    sizes = -config.num_instances, -config.total_kv_blocks
    return setting.is_pressed, _mechanism(setting), *sizes, setting.name


def _mechanism(setting: RunSetting) -> tuple[Any, ...]:
    config = setting.config
    scorers = tuple(name for name, _ in config.scorers())
    return (
        config.admission_policy,
        config.routing_policy,
        scorers,
        config.priority_policy,
        config.scheduler,
        config.slo_preemption,
        config.corrected,
    )


def elapsed(start: float) -> str:
    """Write minutes and seconds since a time."""
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    return f"{minutes} min {seconds:02d} s"
