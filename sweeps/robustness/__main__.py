"""`python -m sweeps.robustness ARM ARM…`: which strategy is best in which regime, and how surely."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.flags import report_flags, stopping_flags, trace_flags
from blis_jax.commands.flags.seed_options import given_seeds, seeds_of
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files.atomic_write import replacing, write_json
from blis_jax.files.overwriting import refuse_existing
from blis_jax.files.process_lock import sole_writer
from sweeps.robustness.flags import AXES, DEFAULT_OUTPUT, MOST_SEEDS, NAME, NUM_SEEDS, parser

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.metrics.measure import Measure
    from blis_jax.statistics.sequential import StoppingRule
    from blis_jax.traces.source import TraceSource
    from sweeps.robustness.cells import MapAxis
    from sweeps.robustness.output.figure import View
    from sweeps.robustness.parts import MapTiming
    from sweeps.robustness.plan import MapPlan
    from sweeps.robustness.question import Question
    from sweeps.robustness.workloads import Extent, Shape, TraceShape
    from sweeps.strategies.arms import Arm


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _robustness, arguments)


def _robustness(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = parser().given(words)
    paths, report = _paths(given), report_flags.paths_of(given).report
    study = _study(given)
    prepare_backend(use_cache="no_cache" not in given)

    from sweeps.robustness.output.figure import read_view

    question = _question(given)
    facets = given.get("map_facets", "shape,instances")
    view = read_view(given.get("map_axes", "kv_blocks,rate"), facets, study.axes)
    plan = _plan(given, study, question)
    with sole_writer(paths.store):
        dataset, timing = _made(given, plan, paths.store, cli.command_text(NAME, words))
    return _written(given, dataset, question, view, timing, paths, report)


# --- input ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Paths:
    store: Path
    document: Path
    table: Path
    figure: Path | None
    differences: Path | None


def _paths(given: Mapping[str, Any]) -> _Paths:
    store = Path(given.get("output", DEFAULT_OUTPUT))
    if store.suffix != ".zarr":
        raise ConfigError(f"--output: {str(store)!r} must end in .zarr")
    figure = cli.figure_path(given, store)
    differences = Path(given["differences"]) if "differences" in given else None
    if differences is not None and differences.suffix not in (".zarr", ".nc"):
        raise ConfigError(f"--differences: {str(differences)!r} must end in .zarr or .nc")
    paths = _Paths(
        store, store.with_suffix(".json"), store.with_suffix(".csv"), figure, differences
    )
    every = (paths.store, paths.document, paths.table, paths.figure, paths.differences)
    for path in every:
        if path is not None:
            cli.check_writable(path, is_folder=path.suffix == ".zarr")
    refuse_existing(given, {"--output": every}, can_resume=True)
    return paths


@dataclass(frozen=True)
class _Study:
    """What is read and checked before JAX starts."""

    arms: tuple[Arm, ...]
    axes: tuple[MapAxis, ...]
    reference: dict[str, Any]
    cells: list[dict[str, Any]]
    shapes: dict[str, Shape | TraceShape]
    extent: Extent
    seeds: tuple[int, ...]
    stream: str
    measures: dict[str, Measure]
    stopping: StoppingRule | None


def _study(given: Mapping[str, Any]) -> _Study:
    from blis_jax.metrics.measure import read_targets
    from blis_jax.traces.source import STREAM
    from sweeps.robustness.cells import (
        DEFAULT_CELLS,
        make_axes,
        make_cells,
        reference_place,
        trace_axes,
    )
    from sweeps.robustness.workloads import TraceShape, load_shape, measure_in
    from sweeps.strategies.arms import arms_of

    if len(given.get("arms") or ()) < 2:
        raise ConfigError(
            "fewer than two arms are given; give two or more, such as iter00_baseline "
            "iter08_token_budget@published"
        )
    stopping = _stopping(given)
    trace = trace_flags.study_source(given, NAME, NUM_SEEDS, allowed=("rate",))
    spelled = ((name.split("/")[0], name.split("/")[-1]) for name in map(_underscored, AXES))
    texts = {axis: given[option] for option, axis in spelled if option in given}
    axes = make_axes(texts) if trace is None else trace_axes(texts, trace)
    reference = reference_place(axes, given.get("reference", ""))
    names = next(axis for axis in axes if axis.name == "shape").values
    shapes: dict[str, Shape | TraceShape]
    shapes = {name: TraceShape(name, trace) if trace else load_shape(name) for name in names}
    arms = arms_of(given["arms"])
    targets = read_targets(given.get("targets", ()))
    return _Study(
        arms=arms,
        axes=axes,
        reference=reference,
        cells=make_cells(
            axes, given.get("design", "sobol"), given.get("cells", DEFAULT_CELLS),
            _random_state(given), reference,
        ),
        shapes=shapes,
        extent=_extent(given),
        seeds=_seeds(given, stopping) if trace is None else _seeds_of(given, trace, arms),
        stream=given.get("rng", "reference") if trace is None else STREAM,
        measures={
            name: measure_in(shape, targets, given.get("window")) for name, shape in shapes.items()
        },
        stopping=stopping,
    )  # fmt: skip


def _underscored(name: str) -> str:
    return name.replace("-", "_")


def _random_state(given: Mapping[str, Any]) -> int:
    state: int = given.get("random_state", 0)
    if not 0 <= state < 2**32:
        raise ConfigError(f"--random-state must be between 0 and {2**32 - 1}, got {state}")
    return state


def _extent(given: Mapping[str, Any]) -> Extent:
    from sweeps.robustness.workloads import PUBLISHED_DURATION_S, Extent

    if "num_requests" not in given:
        return Extent(duration_s=given.get("duration", PUBLISHED_DURATION_S))
    if "duration" in given:
        raise ConfigError("--num-requests and --duration contradict each other; give one of them")
    return Extent(duration_s=None, num_requests=given["num_requests"])


def _stopping(given: Mapping[str, Any]) -> StoppingRule | None:
    """The rule for stopping; what it looks at is the question itself."""
    is_asked = "decide" in given or "precision" in given
    return stopping_flags.rule_of({"most_seeds": MOST_SEEDS, **given} if is_asked else given)


def _seeds(given: Mapping[str, Any], stopping: StoppingRule | None) -> tuple[int, ...]:
    if stopping is not None:
        first = seeds_of(given, stopping_flags.FEWEST_SEEDS)
        return stopping_flags.first_seeds(first, stopping)
    seeds = seeds_of(given, NUM_SEEDS)
    if len(seeds) < 2:
        raise ConfigError("--seeds: one seed has no spread to judge by; give two or more")
    return seeds


def _seeds_of(given: Mapping[str, Any], trace: TraceSource, arms: Sequence[Arm]) -> tuple[int, ...]:
    """The runs of a trace: its windows, or the seeds asked for where something is drawn."""
    asked = given_seeds(given, "reference")
    seeds = trace.seeds(asked, [arm.config for arm in arms])
    if len(seeds) < 2:
        raise ConfigError(
            "--seeds: nothing is drawn here from a seed, and one run has no spread to judge by; give "
            "--trace-windows instead"
        )
    return seeds


def _question(given: Mapping[str, Any]) -> Question:
    from sweeps.robustness.question import CONSTRAINTS, OBJECTIVE, Question, read_constraint
    from sweeps.runs.metrics import our_name

    depth = given.get("depth", 3)
    if not 1 <= depth <= 10:
        raise ConfigError(f"--depth must be between 1 and 10, got {depth}")
    texts = tuple(given.get("constraint", CONSTRAINTS))
    limits = () if texts == ("none",) else tuple(map(read_constraint, texts))
    objective = our_name(given.get("objective", OBJECTIVE))
    return Question(objective, limits, given.get("confidence", 0.95), _random_state(given))


def _plan(given: Mapping[str, Any], study: _Study, question: Question) -> MapPlan:
    from sweeps.robustness.cells import DEFAULT_CELLS, grid_size
    from sweeps.robustness.plan import make_plan
    from sweeps.runs.bench import check_seeds

    check_seeds(study.seeds, study.stream)
    wanted = given.get("cells", DEFAULT_CELLS)
    if "cells" in given and grid_size(study.axes) < wanted and given.get("design") != "grid":
        text = f"the axes have only {grid_size(study.axes)} combinations; all of them are run"
        warnings.warn(ConfigWarning(text), stacklevel=2)
    return make_plan(
        study.arms, study.axes, study.cells, study.reference, study.shapes, study.extent,
        study.seeds, study.stream, study.measures, question,
        is_every_seed_run="every_seed" in given, stopping=study.stopping,
    )  # fmt: skip


# --- runs -----------------------------------------------------------------------------------------


def _made(
    given: Mapping[str, Any], plan: MapPlan, path: Path, command: str
) -> tuple[xr.Dataset, MapTiming]:
    """The map with all of its cells, and how long those took that were missing."""
    from blis_jax.commands.sweep.execution import device_text
    from sweeps.robustness.parts import run_map
    from sweeps.robustness.store import MapStore, empty_dataset, is_done
    from sweeps.runs.part_runs import RUNS_PER_PART

    cells_per_part = plan.cells_per_part(RUNS_PER_PART)
    about = {"command": command, "device": device_text(), "design": _design_text(given, plan)}
    empty = empty_dataset(plan, about, cells_per_part)
    store = MapStore(path)
    done = is_done(store.begin(empty, "resume" in given))
    work = progress.begin("mapping", len(plan.cells), "cells", done=int(done.sum()))

    def show(num_done: int, timing: MapTiming) -> None:
        work.show(num_done, _pace(timing))

    try:
        timing = run_map(plan, store, done, cells_per_part, show)
    except KeyboardInterrupt:
        cli.say(NAME, f"{path} has what was done; --resume goes on from there")
        raise
    finally:
        work.clear()
    reference = json.dumps(dict(plan.reference))
    return store.load().assign_attrs(reference_cell=reference), timing


def _design_text(given: Mapping[str, Any], plan: MapPlan) -> str:
    design = {"name": given.get("design", "sobol"), "random_state": _random_state(given)}
    return json.dumps(design | {"num_cells": len(plan.cells)})


def _pace(timing: MapTiming) -> str:
    spent = timing.run_s - timing.compile_s
    return f"{1000 * spent / max(timing.num_runs, 1):.0f} ms a run"


# --- output ---------------------------------------------------------------------------------------


def _written(
    given: Mapping[str, Any],
    dataset: xr.Dataset,
    question: Question,
    view: View,
    timing: MapTiming,
    paths: _Paths,
    page: Path | None,
) -> int:
    """The files and the words; the exit code."""
    from blis_jax.results.dataset import save
    from sweeps.robustness.output import report
    from sweeps.robustness.output.document import to_document
    from sweeps.robustness.verdict import answer

    with progress.phase("judging cells"):
        verdicts = answer(dataset, question)
        rules = report.recommendation_rules(verdicts, given.get("depth", 3))
        lines = report.summary_lines(verdicts, rules)
    with cli.writing(paths.document):
        write_json(paths.document, to_document(verdicts, rules, lines))
    with cli.writing(paths.table), replacing(paths.table) as written:
        report.cell_table(verdicts).to_csv(written, index=False)
    files = [paths.store, paths.document, paths.table]
    if paths.figure is not None:
        from sweeps.robustness.output.figure import draw

        with cli.writing(paths.figure):
            draw(verdicts, view, paths.figure)
        files.append(paths.figure)
    if paths.differences is not None:
        with cli.writing(paths.differences):
            save(report.differences(dataset), paths.differences)
        files.append(paths.differences)
    if page is not None:
        from sweeps.reports.robustness import write_report

        write_report(dataset, verdicts, question, lines, page)
        files.append(page)
    if "quiet" not in given:
        from sweeps.robustness.output.words import runs_of

        for line in (*lines, *report.axis_lines(verdicts)):
            print(runs_of(verdicts.attrs, verdicts.sizes["seed"]).in_text(line))
        if timing.num_runs:
            print(
                f"{timing.num_runs:,} runs in {timing.run_s:.0f} s, {timing.compile_s:.0f} s of them in calls "
                "that compiled."
            )
        print(f"Written: {', '.join(map(str, files))}")
    if bool(verdicts["has_failed"].all()):
        cli.say(NAME, "no strategy finished in any cell; see the outcomes")
        return cli.EXIT_UNSUPPORTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
