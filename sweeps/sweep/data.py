"""A sweep's runs as one labelled Dataset: rows from compiled figures or records, the file, and resuming from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import yaml

from blis_jax.cluster.setting_values import all_values
from blis_jax.core.outcome import WHOLE
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError
from blis_jax.lazy import xarray as xr
from blis_jax.metrics.compiled import VIOLATIONS, CompiledSummary, Report
from blis_jax.metrics.distributions import EVERYBODY
from blis_jax.metrics.lane import LaneSelection, MeasureNumbers, measure_numbers
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.run_summary import NUM_RANKS, RANKS, kept_tails
from blis_jax.metrics.scalars import POOLED_LATENCIES, metrics_of, summary_of
from blis_jax.metrics.summaries import ALL, LATENCIES, PERCENTS, Selection, select
from blis_jax.records.record import COUNTED, RunRecord
from blis_jax.results.dataset import RUN_METRICS
from blis_jax.results.schema import NOT_RUN as NOT_RUN
from blis_jax.results.schema import SWEEP, Provenance, new_dataset, outcome_attributes, unit_of
from blis_jax.workload.source import RequestSource
from blis_jax.workload.spec import WorkloadSpec
from sweeps.runs.saved_sweep import totals_of
from sweeps.strategies.arms import settings_anywhere
from sweeps.sweep.plan import SweepPlan


@dataclass(frozen=True)
class SweepFigures:
    """The metrics of a run by Dataset variable: over all requests, and over the classes of `codes`."""

    codes: tuple[int, ...]
    levels: tuple[float, ...]  # of the TTFT distribution
    curve: str  # its name

    latencies = LATENCIES

    @property
    def groups(self) -> tuple[int, ...]:
        """Return the code of all requests, then the codes of the classes."""
        return EVERYBODY, *self.codes

    def __call__(self, selection: LaneSelection) -> dict[str, Any]:
        """Return the metrics of one lane; a group without requests has NaN, except for counts."""
        figures = dict(selection.counts) | {"attainment": selection.attainment}
        is_there = (figures["num_requests"] > 0) | (selection.rates["requests_per_s"] > 0)
        is_there = is_there.at[selection.place(EVERYBODY)].set(True)
        for name, values in selection.rates.items():
            figures[name] = jnp.where(is_there, values, jnp.nan)
        for row, latency in enumerate(LATENCIES):
            figures[f"{latency}_mean_ms"] = selection.means_ms[row]
            figures[f"{latency}_ms"] = selection.percentiles_ms[row]
        ttft = selection.ranked.of([LATENCIES.index("ttft")])
        figures[self.curve] = ttft.quantiles_ms(self.levels)[0].astype(jnp.float32)
        for latency in POOLED_LATENCIES:
            ranked = selection.ranked.of([LATENCIES.index(latency)])
            figures[f"{latency}_count"] = ranked.counts[0]
            figures[f"{latency}_top_us"] = ranked.largest_us(RANKS)[0].astype(jnp.float32)
        for name in RUN_METRICS:
            figures[name] = selection.figure(name)
        figures["itl_ms"], figures["itl_mean_ms"] = selection.itl_ms
        return figures


RATES = ("output_tokens_per_s", "requests_per_s", "goodput_rps", "attainment")
COUNTS = ("num_requests", *COUNTED)
RUN_COUNTS = ("num_iterations", "num_open_ties", "num_repairs")
ITL = ("itl_mean_ms", *(f"itl_p{percent}_ms" for percent in PERCENTS))
INVARIANTS = VIOLATIONS
# Levels of the TTFT distribution that is kept of every run; finer where the tail is.
LEVELS = np.round(np.concatenate([np.arange(0, 0.98, 0.02), [0.98, 0.985, 0.99, 0.995, 1]]), 3)
CURVE = "ttft_distribution_ms"


class Summarizer(CompiledSummary[np.ndarray]):
    """Make an entry of the sweep's table from each run, by figures of the compiled call or by a record."""

    fewest_rows = 4096  # its many figures take 7 s of CPU to compile, which saves 1.4 ms a run

    def __init__(self, specs: Iterable[RequestSource], measure: Measure) -> None:
        codes = sorted({class_code(name) for spec in specs for name in spec.slo_classes})
        self.classes = (ALL, *(CLASS_NAMES[code] for code in codes))
        self.codes, self.measure = codes, measure
        self.targets = measure.slo_targets()

    @property
    def compute(self) -> SweepFigures:
        """Return the computation of the metrics of all requests, and of the classes that the workloads have."""
        return SweepFigures(tuple(self.codes), tuple(LEVELS.tolist()), CURVE)

    @cached_property
    def numbers(self) -> MeasureNumbers:
        """Return the measure's window and targets as inputs of the compiled call."""
        return measure_numbers(self.targets, self.measure)

    def of_reports(self, report: Report, num_repairs: int | Sequence[int]) -> np.ndarray:
        """Return one entry per row; an unfinished run has no metrics."""
        table = self.empty(report.outcome.shape)
        table["outcome"] = report.outcome
        table["num_iterations"], table["num_open_ties"] = (
            report.num_iterations,
            report.num_open_ties,
        )
        table["num_repairs"] = num_repairs
        is_whole = np.isin(report.outcome, WHOLE)
        for name, values in report.figures.items():
            table[name][is_whole] = values[is_whole]
        table["invariant_violations"][is_whole] = report.violations[is_whole]
        return table

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of an entry: one field per variable of the Dataset."""
        of_class, of_quantile = (len(self.classes),), (len(self.classes), len(PERCENTS))
        fields: list[Any] = [(name, "f8", of_class) for name in (*COUNTS, *RATES)]
        for latency in LATENCIES:
            fields.append((f"{latency}_mean_ms", "f8", of_class))
            fields.append((f"{latency}_ms", "f8", of_quantile))
        fields += [(name, "f8") for name in (*RUN_METRICS, "itl_mean_ms")]
        fields.append(("itl_ms", "f8", (len(PERCENTS),)))
        fields.append((CURVE, "f4", (len(self.classes), len(LEVELS))))
        for latency in POOLED_LATENCIES:
            fields.append((f"{latency}_count", "i8", of_class))
            fields.append((f"{latency}_top_us", "f4", (len(self.classes), NUM_RANKS)))
        fields += [(name, "i8") for name in RUN_COUNTS]
        fields += [("invariant_violations", "i8", (len(INVARIANTS),)), ("outcome", "i1")]
        return np.dtype(fields)

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return entries of runs that have not been made: NaN, and the code of a run not made."""
        table = np.zeros(shape, self.dtype)
        for name in self.dtype.names or ():
            if self.dtype[name].base.kind == "f":
                table[name] = np.nan
        table["outcome"] = NOT_RUN
        return table

    def __call__(self, record: RunRecord) -> np.ndarray:
        """Return the entry of one run; an unfinished run has no metrics."""
        row = self.empty(())
        row["outcome"] = record.outcome
        for name in RUN_COUNTS:
            row[name] = getattr(record, name)
        if record.outcome not in WHOLE:
            return row
        measured = select(record, self.targets, window_of(self.measure, record))
        summaries = summary_of(measured)
        for place, slo_class in enumerate(self.classes):
            if slo_class in summaries:
                self._add_class(row, place, summaries[slo_class])
            else:
                for name in COUNTS:
                    row[name][place] = 0
        numbers = metrics_of(measured, (*RUN_METRICS, *ITL))
        for name in (*RUN_METRICS, "itl_mean_ms"):
            row[name] = numbers[name]
        row["itl_ms"] = [numbers[name] for name in ITL[1:]]
        self._add_curves(row, measured)
        self._add_tails(row, measured)
        counts = record.invariant_failures
        row["invariant_violations"] = [counts.get(name, 0) for name in INVARIANTS]
        return row

    def _add_class(self, row: np.ndarray, place: int, summary: Mapping[str, float]) -> None:
        for name in (*COUNTS, *RATES):
            row[name][place] = summary[name]
        for latency in LATENCIES:
            row[f"{latency}_mean_ms"][place] = summary[f"{latency}_mean_ms"]
            quantiles = [summary[f"{latency}_p{percent}_ms"] for percent in PERCENTS]
            row[f"{latency}_ms"][place] = quantiles

    def _add_curves(self, row: np.ndarray, measured: Selection) -> None:
        for place, code in enumerate((None, *self.codes)):
            chosen = measured
            if code is not None:
                chosen = measured.of_class(code)
            ttft = chosen.sample("ttft")
            if ttft.count:
                row[CURVE][place] = np.quantile(ttft.values / 1000, LEVELS)

    def _add_tails(self, row: np.ndarray, measured: Selection) -> None:
        kept = kept_tails(measured, self.classes[1:])
        for latency, by_class in kept.items():
            for place, slo_class in enumerate(self.classes):
                count, *top_us = by_class[slo_class]
                row[f"{latency}_count"][place] = count
                row[f"{latency}_top_us"][place, : len(top_us)] = top_us


# --- dataset --------------------------------------------------------------------------------------


def to_dataset(
    plan: SweepPlan, summarizer: Summarizer, table: np.ndarray, about: Mapping[str, str]
) -> xr.Dataset:
    """Return a Dataset over strategies, axes and seeds from the table `[point, seed]`.

    `about` has further attributes on how the runs were made.
    """
    dims = ("strategy", *(axis.name for axis in plan.axes), "seed")
    points = plan.points
    coords: dict[str, Any] = {"strategy": [strategy.name for strategy in plan.strategies]}
    coords |= {axis.name: [_label(value) for value in axis.values] for axis in plan.axes}
    coords["seed"] = list(plan.requests.seeds)
    coords |= {"slo_class": list(summarizer.classes), "invariant": list(INVARIANTS)}
    coords |= {"rank": list(RANKS)}
    coords |= {"quantile": [percent / 100 for percent in PERCENTS], "level": LEVELS}
    further = _about(plan, summarizer, table) | dict(about)
    dataset = new_dataset(SWEEP, _provenance(plan), coords, further)
    fingerprints = np.array([point.fingerprint for point in points]).reshape(plan.shape[:-1])
    dataset.coords["fingerprint"] = (dims[:-1], fingerprints)
    for name in summarizer.dtype.names or ():
        values = table[name]
        values = values.reshape(*plan.shape, *values.shape[2:])
        dataset[name] = ((*dims, *_inner_dims(name)), values, {"units": unit_of(name)})
    dataset["outcome"].attrs = outcome_attributes(not_run=NOT_RUN)
    return dataset.set_coords("outcome")


def _label(value: object) -> Any:
    return ",".join(f"{number:g}" for number in value) if isinstance(value, tuple) else value


def _inner_dims(name: str) -> tuple[str, ...]:
    if name == CURVE:
        return ("slo_class", "level")
    if name == "itl_ms":
        return ("quantile",)
    if name in {f"{latency}_ms" for latency in LATENCIES}:
        return ("slo_class", "quantile")
    if name in {f"{latency}_top_us" for latency in POOLED_LATENCIES}:
        return ("slo_class", "rank")
    counts = {f"{latency}_count" for latency in POOLED_LATENCIES}
    if name in {*COUNTS, *RATES, *counts} or name in {
        f"{latency}_mean_ms" for latency in LATENCIES
    }:
        return ("slo_class",)
    return ("invariant",) if name == "invariant_violations" else ()


def _provenance(plan: SweepPlan) -> Provenance:
    profiles = sorted({point.config.profile for point in plan.points})
    document = plan.requests.source.about()
    return Provenance(
        spec_text=yaml.safe_dump(document, sort_keys=False),
        policies={
            strategy.name: settings_anywhere(strategy.config) for strategy in plan.strategies
        },
        config={strategy.name: all_values(strategy.config) for strategy in plan.strategies},
        seeds=plan.requests.seeds,
        profile=" ".join(profiles),
    )


def _about(plan: SweepPlan, summarizer: Summarizer, table: np.ndarray) -> dict[str, Any]:
    is_drawn = isinstance(plan.requests.source, WorkloadSpec)
    return {
        **summarizer.measure.texts(),
        "workload": plan.requests.name,
        "random_stream": (
            "jax (requests drawn by blis_jax, not the reference's)" if is_drawn else "recorded"
        ),
        "grid": json.dumps({axis.name: list(axis.values) for axis in plan.axes}),
        **totals_of(table),
    }


def fill_from(
    dataset: xr.Dataset, plan: SweepPlan, summarizer: Summarizer, source: Path
) -> np.ndarray:
    """Return the plan's table filled with the rows of a saved sweep.

    Raises:
        ConfigError: the saved sweep has rows that would be lost, or lacks a column.
    """
    place = {point.fingerprint: index for index, point in enumerate(plan.points)}
    seed_place = {seed: index for index, seed in enumerate(plan.requests.seeds)}
    fingerprints = dataset["fingerprint"].values.reshape(-1).astype(str).tolist()
    seeds = dataset["seed"].values.tolist()
    lost = [name for name in fingerprints if name not in place]
    if lost or any(seed not in seed_place for seed in seeds):
        what = f"{len(lost)} points" if lost else "seeds"
        raise ConfigError(
            f"{source} has {what} that this sweep lacks and that would be lost; "
            "give --overwrite or another --output"
        )
    table = summarizer.empty((len(plan.points), len(plan.requests.seeds)))
    rows = np.array([place[name] for name in fingerprints])[:, None]
    columns = np.array([seed_place[seed] for seed in seeds])[None, :]
    for name in summarizer.dtype.names or ():
        if name not in dataset:
            raise ConfigError(
                f"{source} has no {name}: an earlier version wrote it; give --overwrite or another --output"
            )
        values = dataset[name].values
        inner = values.shape[values.ndim - len(_inner_dims(name)) :]
        table[name][rows, columns] = values.reshape(len(fingerprints), len(seeds), *inner)
    return table


def known_rows(table: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Return the rows that have been run, by (point, seed), in the form that `run_grid` takes."""
    points, seeds = np.nonzero(table["outcome"] != NOT_RUN)
    return {
        (point, seed): table[point, seed]
        for point, seed in zip(points.tolist(), seeds.tolist(), strict=True)
    }
