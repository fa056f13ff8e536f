"""A sweep as a report: its Dataset's numbers, and a few of its runs again for what a Dataset does not keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands.flags.report_flags import ReportPaths
from blis_jax.commands.sweep.data import CURVE
from blis_jax.commands.sweep.plan import WORKLOAD_PREFIX
from blis_jax.commands.sweep.report import (
    check_lines,
    place_text,
    runs_of,
    target_line,
    window_line,
)
from blis_jax.core.outcome import WHOLE
from blis_jax.metrics.measure import window_of
from blis_jax.metrics.scalars import lookup
from blis_jax.reports import study as reports
from blis_jax.reports.run_words import SEEDS, RunWords
from blis_jax.reports.runs import parts_of, timelines_of
from blis_jax.reports.study import (
    CURVE_LEVELS,
    Curves,
    SeedValues,
    Study,
    every_kth,
    finite,
    shown_interval,
)
from blis_jax.reports.words import joined
from blis_jax.statistics.compared import Comparison, family_sentence, values_of
from blis_jax.statistics.intervals import Inference
from blis_jax.statistics.paired import joint_words
from blis_jax.traces.source import TraceSource

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.commands.sweep.execution import How
    from blis_jax.commands.sweep.plan import SweepPlan, SweepPoint
    from blis_jax.metrics.measure import Measure
    from blis_jax.results.records import RunRecord

MOST_RECORDS = 16  # seeds whose runs are made again


@dataclass(frozen=True)
class Swept:
    """What a sweep gave."""

    plan: SweepPlan
    measure: Measure
    how: How
    dataset: xr.Dataset
    comparisons: Sequence[Comparison]
    inference: Inference  # that these were judged by

    @property
    def label_by_place(self) -> bool:
        """Whether the places of the grid are what is compared, for want of a second strategy."""
        return len(self.plan.strategies) == 1 and len(self.plan.points) > 1

    def labels(self, point: SweepPoint | Comparison) -> tuple[str, str]:
        """What a point is called, and its place in the grid."""
        where = place_text(point.place)
        return (where, "") if self.label_by_place else (point.strategy, where)


def write_reports(swept: Swept, paths: ReportPaths) -> None:
    """The page and the trace, as far as they are asked for."""
    from blis_jax.commands import cli

    points = _first_points(swept)
    seeds = _whole_seeds(swept)[: MOST_RECORDS if paths.report is not None else 1]
    records = _records(swept, points, seeds)
    if paths.report is not None:
        from blis_jax.reports.page import write

        with cli.writing(paths.report):
            write(study_of(swept, records, seeds), paths.report)
    if paths.timeline is not None:
        from blis_jax.reports.perfetto import TracedRun, write_trace

        runs = [
            TracedRun(swept.labels(point)[0], of[0], point.config.block_size_in_tokens)
            for point, of in zip(points, records.values(), strict=True)
            if of
        ]
        about = {"command": swept.how.command, "seed": str(seeds[0]) if seeds else "none"}
        with cli.writing(paths.timeline):
            write_trace(runs, paths.timeline, about)


def study_of(
    swept: Swept, records: Mapping[str, Sequence[RunRecord]], seeds: Sequence[int]
) -> Study:
    """The report; `records` are of the first place and of these seeds, by strategy."""
    plan, dataset = swept.plan, swept.dataset
    runs_are = runs_of(plan)
    names = list(dict.fromkeys(swept.labels(point)[0] for point in plan.points))
    classes = tuple(str(name) for name in dataset["slo_class"].values)
    timelines = {name: runs[0] for name, runs in records.items() if runs}
    return Study(
        command=swept.how.command,
        workload=plan.workload,
        strategies=tuple(names),
        lead=_lead(swept, names),
        descriptions={one.name: one.description for one in plan.strategies},
        classes=classes,
        seeds=plan.seeds,
        runs=runs_are,
        places=tuple(dict.fromkeys(swept.labels(point)[1] for point in plan.points)),
        differences=tuple(
            found for comparison in swept.comparisons for found in _differences(swept, comparison)
        ),
        intervals=swept.inference.method,
        joint=joint_words(swept.inference),
        verdicts=f"Verdicts: {family_sentence(swept.comparisons, swept.inference.is_anytime)}.",
        values=tuple(_values(swept)),
        levels=CURVE_LEVELS,
        curves=tuple(_curves(swept)),
        parts=parts_of(records, classes, lambda record: window_of(swept.measure, record)),
        parts_of=_parts_words(seeds, runs_are),
        timelines=timelines_of(timelines, seeds[0]) if seeds else (),
        notes=(
            target_line(dataset.attrs["slo_targets"], classes),
            window_line(dataset.attrs["measure"]),
        ),
        checks=tuple(line.strip() for line in check_lines(dataset, runs_are)),
        provenance=_provenance(swept, runs_are),
    )


def _lead(swept: Swept, names: Sequence[str]) -> str:
    """Where places of a grid are compared that differ in the workload, requests are not the same."""
    is_workload = any(axis.name.startswith(WORKLOAD_PREFIX) for axis in swept.plan.axes)
    if not (swept.label_by_place and is_workload):
        return ""
    return (
        f"This page compares {joined(names[1:])} with {names[0]} under the strategy "
        f"{swept.plan.strategies[0].name} on the workload “{swept.plan.workload}”, simulated with "
        f"{SEEDS.listed(swept.plan.seeds)}. On each seed, the requests of all of them are drawn from "
        "the same random numbers."
    )


def _parts_words(seeds: Sequence[int], runs_are: RunWords) -> str:
    return (
        f"Means over {runs_are.counted(len(seeds))}, whose runs were made again for this page; "
        "the parts add up to the TTFT."
    )


def _differences(swept: Swept, comparison: Comparison) -> list[reports.ShownDifference]:
    if comparison.reference is None:
        return []
    first = next(
        one for one in swept.comparisons
        if one.reference is None and (swept.label_by_place or one.place == comparison.place)
    )  # fmt: skip
    name, place = swept.labels(comparison)
    found = []
    for slo_class, figures in comparison.figures.items():
        for before, after in zip(first.figures[slo_class], figures, strict=True):
            change = after.difference
            if change is None:
                continue
            found.append(
                reports.ShownDifference(
                    strategy=name,
                    reference=swept.labels(first)[0],
                    slo_class=slo_class,
                    metric=after.metric,
                    unit=after.unit,
                    better=lookup(after.metric)[0].direction,
                    reference_mean=finite([before.value.mean])[0],
                    mean=finite([after.value.mean])[0],
                    absolute=shown_interval(change.absolute),
                    percent=shown_interval(change.percent),
                    num_pairs=change.num_pairs,
                    verdict=change.verdict,
                    place=place,
                    joint_percent=shown_interval(change.simultaneous_percent),
                )
            )
    return found


def _at_points(swept: Swept, values: xr.DataArray) -> np.ndarray:
    """`[point, slo_class, seed, …]`, points in the plan's order."""
    axes = [axis.name for axis in swept.plan.axes]
    ordered = values.transpose("strategy", *axes, "slo_class", "seed", ...).values
    return ordered.reshape(len(swept.plan.points), *ordered.shape[1 + len(axes) :])


def _values(swept: Swept) -> list[SeedValues]:
    metrics = [figure.metric for figure in next(iter(swept.comparisons[0].figures.values()))]
    classes = [str(name) for name in swept.dataset["slo_class"].values]
    found = []
    for metric in metrics:
        columns = _at_points(swept, values_of(swept.dataset, metric))
        for point, of_point in zip(swept.plan.points, columns, strict=True):
            name, place = swept.labels(point)
            found += [
                SeedValues(name, slo_class, metric, finite(row.tolist()), place)
                for slo_class, row in zip(classes, of_point, strict=True)
            ]
    return found


def _curves(swept: Swept) -> list[Curves]:
    classes = [str(name) for name in swept.dataset["slo_class"].values]
    points, num_seeds = swept.plan.points, len(swept.plan.seeds)
    step = every_kth(num_seeds, len(points) * len(classes) * len(CURVE_LEVELS))
    kept = swept.dataset[CURVE].sel(level=list(CURVE_LEVELS), method="nearest")
    columns = _at_points(swept, kept)
    found = []
    for point, of_point in zip(points, columns, strict=True):
        name, place = swept.labels(point)
        for slo_class, rows in zip(classes, of_point, strict=True):
            known = {
                at: rows[at] for at in range(0, num_seeds, step) if np.isfinite(rows[at]).all()
            }
            if known:
                found.append(Curves(name, slo_class, known, place))
    return found


# --- runs made again ------------------------------------------------------------------------------


def _first_points(swept: Swept) -> list[SweepPoint]:
    """One a strategy, at the first place of the grid."""
    points: dict[str, SweepPoint] = {}
    for point in swept.plan.points:
        points.setdefault(swept.labels(point)[0], point)
    return list(points.values())


def _whole_seeds(swept: Swept) -> list[int]:
    """Seeds on which every strategy came to its end at the first place."""
    outcome = swept.dataset["outcome"]
    if not swept.label_by_place:
        outcome = outcome.isel({axis.name: 0 for axis in swept.plan.axes})
    is_whole = np.isin(outcome.transpose(..., "seed").values, [int(code) for code in WHOLE])
    everywhere = np.all(is_whole.reshape(-1, len(swept.plan.seeds)), axis=0).tolist()
    return [seed for seed, whole in zip(swept.plan.seeds, everywhere, strict=True) if whole]


def _records(
    swept: Swept, points: Sequence[SweepPoint], seeds: Sequence[int]
) -> dict[str, tuple[RunRecord, ...]]:
    """The runs of these points on these seeds again, whole."""
    from blis_jax.runs.many_runs import run_given, run_grid
    from blis_jax.workload.spec import WorkloadSpec

    names = [swept.labels(point)[0] for point in points]
    if not seeds:
        return dict.fromkeys(names, ())
    configs, options = [point.config for point in points], swept.how.options()
    trace = swept.plan.spec
    if isinstance(trace, TraceSource):
        grid = run_given(configs, trace.table, seeds, _itself, options)
    else:
        specs = [point.spec for point in points if isinstance(point.spec, WorkloadSpec)]
        grid = run_grid(configs, specs, seeds, _itself, options)
    return dict(zip(names, grid.rows, strict=True))


def _itself(record: RunRecord) -> RunRecord:
    return record


def _provenance(swept: Swept, runs_are: RunWords) -> dict[str, Any]:
    attributes = swept.dataset.attrs
    named = ("package_version", "jax_version", "profile", "device", "clock", "created",
             "random_stream", "workload")  # fmt: skip
    fingerprints = {
        ", ".join(filter(None, swept.labels(point))): point.fingerprint
        for point in swept.plan.points
    }
    return {
        **{name.replace("_", " "): str(attributes[name]) for name in named if name in attributes},
        "fingerprint of the sweep": str(attributes["sweep"]),
        runs_are.many: ", ".join(map(str, swept.plan.seeds)),
        "fingerprints of the points": fingerprints,
        "settings of the strategies": json.loads(attributes["policies"]),
        "configuration": json.loads(attributes["config"]),
        "workload specification": attributes["spec"],
    }
