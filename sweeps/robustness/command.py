"""Make the map that options of `blis-jax robustness` describe: its plan, its cells, and the findings."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options import (
    outputs,
    seed_options,
)
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files.atomic_write import sole_writer, write_json, write_text
from blis_jax.metrics.measure import Measure, read_targets, read_window
from blis_jax.reports import page, render
from blis_jax.reports.words import cluster_line
from blis_jax.results.dataset import save
from blis_jax.runs.driver import Timing
from sweeps.claims.grammar import our_name, parse_constraint
from sweeps.robustness import cells, report
from sweeps.robustness.document import findings_of, provenance_of, title_of, to_document
from sweeps.robustness.figure import MapView, read_view
from sweeps.robustness.parts import MapRunner
from sweeps.robustness.plan import (
    CONSTRAINTS,
    PUBLISHED_DURATION_S,
    Extent,
    MapPlan,
    Question,
    Shape,
    TraceShape,
    load_shape,
    make_plan,
)
from sweeps.robustness.store import MapStore, empty_dataset, is_done, part_of
from sweeps.robustness.verdict import answer
from sweeps.runs import drawn
from sweeps.runs.requests import check_count, runs_of, trace_of
from sweeps.strategies.arms import arms_of
from sweeps.sweep.execution import device_text

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.statistics.sequential import StoppingRule
    from sweeps.robustness.__main__ import RobustnessOptions


def map_regimes(
    options: RobustnessOptions, paths: OutputPaths, differences: Path | None, command: str
) -> int:
    """Run strategies in all cells, judge them, and write and print the findings; return the exit code."""
    question = _question(options)
    plan = _plan(options, question)
    view = read_view(options.map_axes, options.map_facets, plan.axes)
    with sole_writer(paths.result):
        dataset, timing = _made(options, plan, paths.result, command)
    if options.part is not None:
        total = len(plan.cells)
        said = options.part.answer(paths.result, len(options.part.of(total)), total, "cells")
        if not options.quiet:
            render.show_answer(said)
        return 0
    return _written(options, dataset, question, view, timing, paths, differences)


# --- input ----------------------------------------------------------------------------------------


def _plan(options: RobustnessOptions, question: Question) -> MapPlan:
    if len(options.arms) < 2:
        raise ConfigError(
            "fewer than two arms are given; give two or more, such as vllm llm-d-default"
        )
    stopping = _stopping(options)
    trace = trace_of(options, options.command, options.usual_seeds, ("rate",), follows=False)
    axes = (
        cells.make_axes(options.axes())
        if trace is None
        else cells.trace_axes(options.axes(), trace)
    )
    reference = cells.reference_place(axes, options.reference or "")
    names = next(axis for axis in axes if axis.name == "shape").values
    shapes: dict[str, Shape | TraceShape]
    shapes = {name: TraceShape(name, trace) if trace else load_shape(name) for name in names}
    arms = arms_of(options.arms, is_real=trace is not None)
    configs = [arm.config for arm in arms]
    seeds, stream = runs_of(options, options.command, trace, configs, options.usual_seeds, stopping)
    check_count(seeds, 2, "to have a spread to judge by", stream)
    targets = read_targets(options.targets)
    size = cells.grid_size(axes)
    count = cells.DEFAULT_CELLS if options.cells is None else options.cells
    if size < (options.cells or 0) and options.design != "grid":
        text = f"the axes have only {size} combinations; all of them are run"
        warnings.warn(ConfigWarning(text), stacklevel=2)
    return make_plan(
        arms, axes,
        cells.make_cells(axes, options.design, count, _random_state(options), reference),
        reference, shapes, _extent(options), seeds, stream,
        {name: Measure(targets, *read_window(options.window, of.spec)) for name, of in shapes.items()},
        question, is_every_seed_run=options.every_seed, stopping=stopping,
    )  # fmt: skip


def _random_state(options: RobustnessOptions) -> int:
    state = options.random_state
    if not 0 <= state < 2**32:
        raise ConfigError(f"--random-state must be between 0 and {2**32 - 1}, got {state}")
    return state


def _extent(options: RobustnessOptions) -> Extent:
    if options.num_requests is None:
        usual = options.duration is None
        return Extent(duration_s=PUBLISHED_DURATION_S if usual else options.duration)
    if options.duration is not None:
        raise ConfigError("--num-requests and --duration contradict each other; give one of them")
    return Extent(duration_s=None, num_requests=options.num_requests)


def _stopping(options: RobustnessOptions) -> StoppingRule | None:
    """Return the stopping rule of the options; None without one."""
    if options.has_rule and options.most_seeds is None:
        options = replace(options, most_seeds=options.usual_most_seeds)
    return seed_options.rule_of(options, options.seeds, options.trace)


def _question(options: RobustnessOptions) -> Question:
    if not 1 <= options.depth <= 10:
        raise ConfigError(f"--depth must be between 1 and 10, got {options.depth}")
    texts = options.constraint or CONSTRAINTS
    limits = () if texts == ("none",) else tuple(map(parse_constraint, texts))
    objective = our_name(options.objective)
    return Question(objective, limits, options.confidence, _random_state(options))


# --- runs -----------------------------------------------------------------------------------------


def _made(
    options: RobustnessOptions, plan: MapPlan, path: Path, command: str
) -> tuple[xr.Dataset, Timing]:
    """Return the map with all cells run, and the time that the missing cells took."""
    cells_per_part = plan.cells_per_part(drawn.RUNS_PER_PART)
    sizes = next(axis.values for axis in plan.axes if axis.name == "instances")
    configs = {arm.name: arm.config for arm in plan.arms}
    if len(sizes) == 1:
        configs = {name: one.replace(num_instances=sizes[0]) for name, one in configs.items()}
    cluster = cluster_line(configs, ("num_instances",) * (len(sizes) > 1))
    about = {
        "cluster": cluster,
        "command": command,
        "device": device_text(),
        "design": _design_text(options, plan),
    }
    cells_left = np.ones(len(plan.cells), int)
    if options.part is not None:
        about |= options.part.attributes(("cell",))
        cells_left[options.part.is_outside(len(plan.cells))] = 0
    empty = empty_dataset(plan, about, cells_per_part)
    num_own, store, runner = int(cells_left.sum()), MapStore(path), MapRunner(plan)
    cells_left[is_done(store.begin(empty, options.resume))] = 0

    def make(cells: range) -> dict[str, np.ndarray]:
        return part_of(plan, runner.run(plan.cells[cells.start : cells.stop]))

    began, num_done = time.perf_counter(), num_own - int(cells_left.sum())
    mapping = progress.phase("mapping", num_own, "cells", done=num_done)
    with cli.resumable(options.command, path), mapping as work:
        store.fill(make, cells_left, cells_per_part, work, runner.pace)
    reference = json.dumps(dict(plan.reference))
    timing = Timing(run_s=time.perf_counter() - began, num_rows=runner.timing.num_rows)
    return store.load().assign_attrs(reference_cell=reference), timing


def _design_text(options: RobustnessOptions, plan: MapPlan) -> str:
    design = {"name": options.design, "random_state": _random_state(options)}
    return json.dumps(design | {"num_cells": len(plan.cells)})


# --- output ---------------------------------------------------------------------------------------


def _written(
    options: RobustnessOptions,
    dataset: xr.Dataset,
    question: Question,
    view: MapView,
    timing: Timing,
    paths: OutputPaths,
    differences: Path | None,
) -> int:
    """Write the files, print the findings, and return the exit code."""
    with progress.phase("judging cells"):
        verdicts = answer(dataset, question)
        rules = report.recommendation_rules(verdicts, options.depth)
        lines = report.summary_lines(verdicts, rules)
        findings = findings_of(verdicts, rules, timing, view)

    def write_page(path: Path) -> None:
        about = provenance_of(dataset, question)
        page.write(findings, path, title_of(verdicts), str(dataset.attrs.get("command", "")), about)

    files: outputs.Files = [
            (paths.beside(".json"), lambda path: write_json(path, to_document(verdicts, rules, lines))),
            (paths.beside(".csv"), lambda path: write_text(path, report.cell_table(verdicts).to_csv(index=False))),
            (paths.figure, lambda path: outputs.draw(findings.pictures[0], path)),
            (differences, lambda path: save(report.differences(dataset), path)),
            (paths.report, write_page),
    ]  # fmt: skip
    outputs.show(findings, lambda: [paths.result, *outputs.write_files(files)], options)
    if bool(verdicts["has_failed"].all()):
        cli.say(options.command, "no strategy finished in any cell; see the outcomes")
        return cli.EXIT_UNSUPPORTED
    return 0
