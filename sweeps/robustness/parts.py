"""Run the cells of a robustness map by the one experiment: cells of one engine shape together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.runs.driver import Timing
from blis_jax.statistics.sequential import Look, Seen, StoppingRule, look_until_all_end
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.cells import Place, config_in
from sweeps.robustness.plan import MapPlan
from sweeps.robustness.store import Unrun, empty_dataset, part_of
from sweeps.robustness.verdict import NONE, answer, values_of
from sweeps.runs.drawn import MOST_BLOCKS, MOST_REQUESTS_KEPT, DrawnRows, part_runner
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import StudyRequests

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.workload.source import RequestSource


class _Entry(NamedTuple):
    """A strategy in a cell, with its runs so far."""

    place: Place
    arm: int
    runs: list[RunSummary]


class MapRunner:
    """Run the cells of a map."""

    def __init__(self, plan: MapPlan) -> None:
        """Take the plan; the first cell of a kind compiles its programs."""
        self.plan = plan
        self.sources: dict[tuple[Any, ...], RequestSource] = {}
        self.timing = Timing()
        self.group: tuple[Any, ...] | None = None
        shape = plan.shapes[plan.reference["shape"]]
        requests = StudyRequests(shape.spec, plan.seeds, plan.stream)
        tables = DrawnRows(plan.stream, MOST_REQUESTS_KEPT)
        self.experiment = Experiment(requests, plan.names, tables=tables)
        self.summaries = {
            name: RunFigures(plan.names, measure.slo_targets(), measure)
            for name, measure in plan.measures.items()
        }

    def run(self, cells: Sequence[Place]) -> list[list[list[RunSummary]]]:
        """Return the runs of some cells in order, by cell, strategy and seed."""
        runs_by_cell: list[list[list[RunSummary]]] = []
        for _, alike in itertools.groupby(cells, self._kind):
            runs_by_cell += self._run_alike(list(alike))
        return runs_by_cell

    def _kind(self, place: Place) -> tuple[Any, ...]:
        """Return a key that is equal for cells whose runs can be made together."""
        return self.plan.engine_group(place), self.plan.measures[place["shape"]]

    def _run_alike(self, cells: Sequence[Place]) -> list[list[list[RunSummary]]]:
        """Run cells of one engine shape that are measured in the same way; return their runs."""
        whole = len(self.plan.first_stage)
        arms = range(len(self.plan.arms))
        cells_entries = [[_Entry(place, arm, []) for arm in arms] for place in cells]
        for count in (whole,) if self.plan.is_every_seed_run else (1, whole):
            self._go_on(itertools.chain.from_iterable(cells_entries), count)
        if self.plan.stopping is not None:
            self._add_seeds(self.plan.stopping, cells_entries)
        return [[entry.runs for entry in entries] for entries in cells_entries]

    def _go_on(self, entries: Iterable[_Entry], count: int) -> None:
        """Run strategies in cells on further seeds, up to `count`; skip strategies that livelocked."""
        by_begin: dict[int, list[_Entry]] = {}
        for entry in entries:
            num_runs = len(entry.runs)
            if self._is_skipped(entry.runs):
                entry.runs.extend([RunSummary(Unrun.SKIPPED)] * (count - num_runs))
            elif num_runs < count:
                by_begin.setdefault(num_runs, []).append(entry)
        for begin, alike in by_begin.items():
            results = self._results(alike, range(begin, count))
            for entry, more in zip(alike, results, strict=True):
                entry.runs.extend(more)

    def _is_skipped(self, runs: Sequence[RunSummary]) -> bool:
        is_first_told = bool(runs) and not self.plan.is_every_seed_run
        return is_first_told and runs[0].outcome == Outcome.LIVELOCK

    def _add_seeds(self, rule: StoppingRule, cells_entries: Sequence[Sequence[_Entry]]) -> None:
        """Add seeds in the cells whose answer is not safe yet; runs on the remaining seeds are marked as spared."""

        def looks_at(counts: Mapping[int, int]) -> dict[int, Look[None]]:
            """Run each cell on the given number of seeds, and look at its answer."""
            looks: dict[int, Look[None]] = {}
            for count in sorted(set(counts.values())):
                cells = [cell for cell in counts if counts[cell] == count]
                asked = [cells_entries[cell] for cell in cells]
                self._go_on(itertools.chain.from_iterable(asked), count)
                places = [entries[0].place for entries in asked]
                runs = [[entry.runs for entry in entries] for entries in asked]
                looks |= zip(cells, look_at(self.plan, places, runs), strict=True)
            return looks

        first = dict.fromkeys(range(len(cells_entries)), len(self.plan.first_stage))
        look_until_all_end(rule, first, looks_at)
        for entry in itertools.chain.from_iterable(cells_entries):
            num_spared = len(self.plan.seeds) - len(entry.runs)
            entry.runs.extend([RunSummary(Unrun.SPARED)] * num_spared)

    def _results(self, entries: Sequence[_Entry], places: range) -> Sequence[Sequence[RunSummary]]:
        """Return the runs of cells' strategies on the seeds at some places of the plan's."""
        place = entries[0].place
        points = [self._point(entry.place, entry.arm) for entry in entries]
        return self._experiment_at(place).summaries(
            [config for config, _ in points],
            self.summaries[place["shape"]],
            places,
            [source for _, source in points],
        )

    def _point(self, place: Place, arm: int) -> tuple[ClusterConfig, RequestSource]:
        """Return a strategy's configuration in a cell, and the cell's requests."""
        key = place["shape"], place["rate"], place["arrival_cv"], place.get("adapter_zipf")
        if key not in self.sources:
            shape = self.plan.shapes[key[0]]
            self.sources[key] = shape.at(key[1], key[2], self.plan.extent, key[3])
        return config_in(self.plan.arms[arm].config, place), self.sources[key]

    def _experiment_at(self, place: Place) -> Experiment:
        """Return the experiment of the cell's engine shape; drop the compiled programs of other shapes."""
        group = self.plan.engine_group(place)
        if group != self.group:
            blocks = [cell["kv_blocks"] for cell in self.plan.cells]  # larger pools seldom run out
            num_blocks = max((count for count in blocks if count <= MOST_BLOCKS), default=1)
            runner = part_runner(num_blocks)
            runner.timing, self.group = self.timing, group
            self.experiment = dataclasses.replace(self.experiment, shared=runner)
            for cell in self.plan.cells:
                if self.plan.engine_group(cell) == group:
                    for arm in range(len(self.plan.arms)):
                        config, source = self._point(cell, arm)
                        runner.expect(self.experiment.rows(config, self.plan.seeds[:1], source))
        return self.experiment

    def pace(self) -> str:
        """Return the mean time of a run so far, as a text."""
        return f"{1000 * self.timing.run_s / max(self.timing.num_rows, 1):.0f} ms a run"


Runs = Sequence[Sequence["RunSummary"]]  # of a cell, by strategy and seed


def look_at(plan: MapPlan, cells: Sequence[Place], runs: Sequence[Runs]) -> list[Look[None]]:
    """Return one look of the stopping rule at each of these cells, all run on the same seeds."""
    assert plan.stopping is not None
    count, end = len(runs[0][0]), plan.stopping.end
    return [Look(count, None, (seen,), end(count, [seen])) for seen in _seen_in(plan, cells, runs)]


def _seen_in(plan: MapPlan, cells: Sequence[Place], runs: Sequence[Runs]) -> list[Seen]:
    """Return what the stopping rule sees in each of these cells, all run on the same seeds."""
    seeds = plan.seeds[: len(runs[0][0])]
    small = dataclasses.replace(plan, cells=tuple(cells), seeds=seeds)
    dataset = empty_dataset(small, {}, len(cells))
    for name, values in part_of(small, runs).items():
        dataset[name].values[...] = values
    verdicts = answer(dataset, plan.question)
    is_safe = _is_safe(verdicts, plan.question.confidence) | _is_same(verdicts, dataset, plan)
    widths = verdicts["change_percent_high"].values - verdicts["change_percent_low"].values
    with np.errstate(invalid="ignore"):
        halves = np.nan_to_num(np.nanmax(widths, axis=1, initial=0.0) / 200, nan=0.0)
    return [
        Seen(float(half), bool(safe), is_same=half == 0.0)
        for half, safe in zip(halves, is_safe, strict=True)
    ]


def _is_safe(verdicts: xr.Dataset, confidence: float) -> np.ndarray:
    """Return in which cells a strategy is recommended, or surely none can be."""
    recommended = verdicts["recommended"].values
    some_within = verdicts["probability_best"].values.sum(axis=1)
    is_none = (recommended == NONE) & (some_within <= 1 - confidence)
    if "is_surely_kept" in verdicts:
        is_broken = (verdicts["is_surely_kept"].values == -1).any(axis=2)
        is_none &= (is_broken | verdicts["has_failed"].values).all(axis=1)
    safe: np.ndarray = is_none | ((recommended != NONE) & (recommended != UNDECIDED))
    return safe


def _is_same(verdicts: xr.Dataset, dataset: xr.Dataset, plan: MapPlan) -> np.ndarray:
    """Return in which cells all strategies that may lead have the same objective as the leader, on every seed."""
    values = values_of(dataset, plan.question.objective)
    may_lead = verdicts["probability_best"].values > 0
    same = np.zeros(len(values), bool)
    for cell, rows in enumerate(values):
        leading = rows[may_lead[cell]]
        same[cell] = len(leading) > 1 and bool((leading == leading[0]).all())
    return same
