"""A sweep as a report: its Dataset's numbers, and a few runs made again for details that a Dataset lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands.options.outputs import OutputPaths, write_pages
from blis_jax.core.outcome import WHOLE
from blis_jax.files.atomic_write import finite
from blis_jax.metrics.measure import window_of
from blis_jax.metrics.scalars import PERCENTILES_EXPLAINED
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.arm_pictures import parts_of, timelines_of
from blis_jax.reports.study import (
    Curve,
    MetricChange,
    RunWords,
    SeedValues,
    ShownFigure,
    Study,
    judged,
)
from blis_jax.reports.words import cluster_line, target_line
from blis_jax.runs.many_runs import run_given, run_grid
from blis_jax.statistics.intervals import Estimate
from blis_jax.statistics.pooled import values_of
from blis_jax.traces.source import TraceSource
from blis_jax.workload.spec import WorkloadSpec
from sweeps.compare.report import stopping_lines
from sweeps.runs.drawn import followed_grid
from sweeps.sweep.data import CURVE
from sweeps.sweep.report import (
    COMPARED,
    check_lines,
    cost_lines,
    method_lines,
    remark_lines,
    requests_text,
    runs_of,
    time_sentence,
    window_line,
)

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.records.record import RunRecord
    from blis_jax.runs.driver import Timing
    from sweeps.sweep.execution import How
    from sweeps.sweep.plan import SweepPlan, SweepPoint

MOST_RECORDS = 16  # seeds whose runs are made again


@dataclass(frozen=True)
class Swept:
    """The results of a sweep."""

    plan: SweepPlan
    how: How
    dataset: xr.Dataset
    document: Mapping[str, Any]
    timing: Timing
    num_known: int = 0  # runs taken over from the file


def write_reports(swept: Swept, paths: OutputPaths) -> None:
    """Write the page and the trace that the options ask for."""
    points = _first_points(swept)
    seeds = _whole_seeds(swept)[: MOST_RECORDS if paths.report is not None else 1]
    records = _records(swept, points, seeds)
    configs = {swept.plan.labels(point)[0]: point.config for point in points}
    study, first = study_of(swept), {name: runs[0] for name, runs in records.items() if runs}
    if paths.report is not None:
        study = with_runs(study, swept, records, seeds)
    write_pages(study, first, configs, seeds[0] if seeds else None, paths)


def study_of(swept: Swept) -> Study:
    """Return the report from the Dataset's numbers alone, which suffices for the terminal."""
    plan, dataset = swept.plan, swept.dataset
    runs_are = runs_of(plan)
    names = list(dict.fromkeys(plan.labels(point)[0] for point in plan.points))
    classes = tuple(str(name) for name in dataset["slo_class"].values)
    places = tuple(dict.fromkeys(plan.labels(point)[1] for point in plan.points))
    return Study(
        command=swept.how.command,
        workload=plan.requests.name,
        cluster=cluster_line(
            {arm.name: arm.config for arm in plan.strategies}, [axis.name for axis in plan.axes]
        ),
        strategies=tuple(names),
        descriptions={
            arm.name: arm.strategy.description
            for arm in plan.strategies
            if arm.strategy is not None
        },
        classes=classes,
        seeds=plan.requests.seeds,
        runs=runs_are,
        places=places,
        differences=tuple(map(MetricChange.of_json, swept.document["comparisons"])),
        figures=tuple(_figures(swept.document)),
        **judged(swept.document),
        remarks=(*stopping_lines(swept.document), *remark_lines(dataset, runs_are)),
        limits=target_line(json.loads(dataset.attrs["slo_targets"]), classes[1:]),
        notes=(
            f"{requests_text(plan)} common to all strategies; profile {dataset.attrs['profile']}.",
            *method_lines(plan),
            PERCENTILES_EXPLAINED,
            window_line(dataset.attrs["measure"]),
            *cost_lines(plan, dataset),
        ),
        checks=tuple(check_lines(dataset, runs_are)),
        levels=tuple(dataset["level"].values.tolist()),
        curves=tuple(_curves(swept)),
        class_shares=_class_shares(dataset),
        opens_with="distributions",
        provenance=_provenance(swept, runs_are),
        num_runs=swept.timing.num_rows + swept.num_known,
        time=time_sentence(swept.timing, swept.num_known),
    )


def with_runs(
    study: Study, swept: Swept, records: Mapping[str, Sequence[RunRecord]], seeds: Sequence[int]
) -> Study:
    """Return the report with details of runs; `records`, by strategy, are of the grid's first place and `seeds`."""
    timelines = {name: runs[0] for name, runs in records.items() if runs}
    return replace(
        study,
        values=tuple(_values(swept)),
        parts=parts_of(
            records, study.classes, lambda record: window_of(swept.plan.experiment.measure, record)
        ),
        parts_of=_parts_words(seeds, study.runs),
        timelines=timelines_of(timelines, seeds[0]) if seeds else (),
    )


def _figures(document: Mapping[str, Any]) -> Iterator[ShownFigure]:
    for arm in document["arms"]:
        for slo_class, figures in arm["figures"].items():
            for metric, entry in figures.items():
                value = Estimate.of_json(entry)
                yield ShownFigure(arm["name"], slo_class, metric, value, arm["place"])


def _parts_words(seeds: Sequence[int], runs_are: RunWords) -> str:
    return (
        f"Means over {runs_are.counted(len(seeds))}, whose runs were made again for this page; "
        "the parts add up to the TTFT."
    )


def _at_points(swept: Swept, values: xr.DataArray) -> np.ndarray:
    """Return values `[point, slo_class, seed, …]`, with points in the plan's order."""
    axes = [axis.name for axis in swept.plan.axes]
    ordered = values.transpose("strategy", *axes, "slo_class", "seed", ...).values
    return ordered.reshape(len(swept.plan.points), *ordered.shape[1 + len(axes) :])


def _values(swept: Swept) -> list[SeedValues]:
    classes = [str(name) for name in swept.dataset["slo_class"].values]
    values = []
    for metric in COMPARED:
        columns = _at_points(swept, values_of(swept.dataset, metric))
        for point, of_point in zip(swept.plan.points, columns, strict=True):
            name, place = swept.plan.labels(point)
            values += [
                SeedValues(name, slo_class, metric, tuple(map(finite, row.tolist())), place)
                for slo_class, row in zip(classes, of_point, strict=True)
            ]
    return values


def _curves(swept: Swept) -> Iterator[Curve]:
    """Yield TTFT distributions at the first places of the grid."""
    classes = [str(name) for name in swept.dataset["slo_class"].values]
    columns = _at_points(swept, swept.dataset[CURVE])
    for point, of_point in zip(swept.plan.points, columns, strict=True):
        name, place = swept.plan.labels(point)
        for slo_class, rows in zip(classes, of_point, strict=True):
            whole = rows[np.isfinite(rows).all(axis=1)]
            if len(whole):
                yield Curve.of(name, slo_class, whole, place)


def _class_shares(dataset: xr.Dataset) -> dict[str, float]:
    """Return the share of requests of each class, in %, at the first place of the grid."""
    axes = [dim for dim in dataset["outcome"].dims if dim not in ("strategy", "seed")]
    counts = dataset["num_requests"].isel(dict.fromkeys(axes, 0))
    total = float(counts.sel(slo_class=ALL).sum())
    return {
        str(name): 100 * float(counts.sel(slo_class=name).sum()) / total
        for name in dataset["slo_class"].values
        if total and name != ALL
    }


# --- runs made again ------------------------------------------------------------------------------


def _first_points(swept: Swept) -> list[SweepPoint]:
    """Return one point of each strategy, at the first place of the grid."""
    points: dict[str, SweepPoint] = {}
    for point in swept.plan.points:
        points.setdefault(swept.plan.labels(point)[0], point)
    return list(points.values())


def _whole_seeds(swept: Swept) -> list[int]:
    """Return the seeds on which the runs of every strategy finished at the first place."""
    outcome = swept.dataset["outcome"]
    if not swept.plan.label_by_place:
        outcome = outcome.isel({axis.name: 0 for axis in swept.plan.axes})
    is_whole = np.isin(outcome.transpose(..., "seed").values, [int(code) for code in WHOLE])
    everywhere = np.all(is_whole.reshape(-1, len(swept.plan.requests.seeds)), axis=0).tolist()
    return [
        seed for seed, whole in zip(swept.plan.requests.seeds, everywhere, strict=True) if whole
    ]


def _records(
    swept: Swept, points: Sequence[SweepPoint], seeds: Sequence[int]
) -> dict[str, tuple[RunRecord, ...]]:
    """Make the runs of these points on these seeds again; return their full records."""
    names = [swept.plan.labels(point)[0] for point in points]
    if not seeds:
        return dict.fromkeys(names, ())
    configs, options = [point.config for point in points], swept.how.options()
    trace = swept.plan.requests.source
    if trace.waits:
        served = [(point.config, point.spec) for point in points]
        grid = followed_grid(served, seeds, _itself, options, {})
    elif isinstance(trace, TraceSource):
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
        ", ".join(filter(None, swept.plan.labels(point))): point.fingerprint
        for point in swept.plan.points
    }
    return {
        **{name.replace("_", " "): str(attributes[name]) for name in named if name in attributes},
        "fingerprint of the sweep": str(attributes["sweep"]),
        runs_are.many: ", ".join(map(str, swept.plan.requests.seeds)),
        "fingerprints of the points": fingerprints,
        "settings of the strategies": json.loads(attributes["policies"]),
        "configuration": json.loads(attributes["config"]),
        "workload specification": attributes["spec"],
    }
