"""`python -m sweeps.robustness ARM ARM…`: which strategy is best in which regime, and how surely."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    FigureOption,
    MeasuredOptions,
    OutputSwitches,
    option,
    outputs,
    stopping_flags,
    switch,
    words,
)
from blis_jax.commands.options.outputs import PageOption
from blis_jax.commands.options.seed_options import DrawnOptions, seeds_option
from blis_jax.commands.options.stopping_flags import EnoughSeedsOptions
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files.atomic_write import sole_writer, write_json, write_text

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.statistics.sequential import StoppingRule
    from sweeps.robustness.output.figure import MapView
    from sweeps.robustness.parts import MapTiming
    from sweeps.robustness.plan import MapPlan, Question
    from sweeps.robustness.workloads import Extent, Shape, TraceShape

NAME = "sweeps.robustness"
DEFAULT_OUTPUT = "out/robustness.zarr"
NUM_SEEDS = 8
MOST_SEEDS = 100  # of a cell where a rule adds seeds; the dataset has room for all of them
_DESCRIPTION = """\
Run strategies in many regimes (rate, burstiness, KV memory, CPU tier, instances, workload shape, cost
of a step) on the same requests. Say which strategy is best where, how sure that is, and where the order of
strategies changes. ARM is [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; the first is what the others are compared with.
Writes a Dataset (.zarr), the recommendations (.json), a table with a row for each cell (.csv), and a map (.png).
"""
_EXAMPLES = """\
examples:
  1,024 regimes of the seven default axes, baseline against the ledger's last optimum:
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published

  two axes in full, three strategies, another objective:
    %(prog)s iter00_baseline iter05_simplified iter08_token_budget@published --design grid \\
      --rate 1000,2000,3000 --total-kv-blocks 2000,3000,5000 --arrival-cv 2 --kv-cpu-blocks 44000 \\
      --num-instances 8 --shape mixed --step-constant 6910.42 --objective 'goodput_rps' --output out/kv.zarr

  rates around that of a trace of your own, in eight windows of it:
    %(prog)s iter00_baseline iter05_simplified --trace trace.jsonl --slo-mix critical:0.3,sheddable:0.7 \\
      --total-kv-blocks 5000 --kv-cpu-blocks 0 --step-constant 6910.42 --output out/trace.zarr

  another question to runs that are there already (nothing is run again):
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published --resume \\
      --constraint 'ttft_p99_ms[standard]<=110%%'

Without --num-requests, requests come for the same time in every cell, so twice the rate means twice the
requests and not half the time. The engine settings of a cell (KV blocks, CPU tier, instances, step
constant) replace those of the arms. A strategy whose runs do not all end, or that drops requests, is
not recommended in that cell; where BLIS's own defects are what fails, ARM:corrected=true runs without
them. After a kill, --resume makes the missing cells.
"""


def _axis(help: str, also: str = "") -> Any:
    return option(str, None, "A,B,…", help, also=also)


class _Axes(CommandOptions, title="axes, values with commas"):
    """Options for the quantities that change from cell to cell; the last spelling is the axis's name."""

    rate: str | None = _axis("requests per second (500 to 3,000)")
    arrival_cv: str | None = _axis(
        "coefficients of variation of the gaps between a client's arrivals (1,2,3.5)"
    )
    total_kv_blocks: str | None = _axis(
        "KV blocks of an instance (2,000 to 132,139)", also="kv-blocks"
    )
    kv_cpu_blocks: str | None = _axis("blocks of an instance's CPU tier, 0 for none (0,2000,44000)")
    num_instances: str | None = _axis("numbers of instances (4,8,16)", also="instances")
    shape: str | None = _axis(
        "workloads: built-in names or .yaml files (mixed,nonorthogonal,asymmetric,multiprefix,multiturn)"
    )
    step_constant: str | None = _axis(
        "fixed cost of a step, beta_0, in us (2000,4000,6910.42…,14000)"
    )
    signal_age: str | None = _axis(
        "us between two looks of the router at load and KV (the strategies' own)"
    )

    def axes(self) -> dict[str, str]:
        """Return the values that are given, by axis."""
        values = {
            "rate": self.rate, "arrival_cv": self.arrival_cv, "kv_blocks": self.total_kv_blocks,
            "kv_cpu_blocks": self.kv_cpu_blocks, "instances": self.num_instances, "shape": self.shape,
            "step_constant": self.step_constant, "signal_age": self.signal_age,
        }  # fmt: skip
        return {axis: text for axis, text in values.items() if text is not None}


class _Design(CommandOptions, title="cells"):
    """Options for the cells to run."""

    design: str = option(
        cli.one_of("sobol", "latin-hypercube", "grid"), "sobol", "NAME",
        "sobol or latin-hypercube: --cells cells, spread evenly; grid: all combinations",
    )  # fmt: skip
    cells: int | None = option(
        cli.whole, None, "N", "cells to run; fewer if the axes have fewer combinations", shown=1024
    )
    random_state: int = option(cli.whole, 0, "N", "seed of the design, the bootstrap and the trees")
    reference: str | None = option(
        str, None, "NAME=VALUE,…",
        "regime whose order of strategies the others are compared with (default: the ledger's, or the nearest "
        "on the axes)",
    )  # fmt: skip


class _Requests(DrawnOptions, title="requests"):
    """Options for the requests of every cell."""

    seeds: str | None = seeds_option(f"the same in every cell; default: {NUM_SEEDS}")
    duration: float | None = option(
        cli.number, None, "S", "seconds in which requests come, in every cell", shown=0.5
    )
    num_requests: int | None = option(
        cli.whole, None, "N", "requests in every cell, whatever the rate, in place of --duration"
    )


class _Verdict(MeasuredOptions, title="verdict"):
    """Options for the objective and the constraints, and for how surely the best is to be found."""

    objective: str = option(
        str, "ttft_p99_ms[critical]", "METRIC", "metric to be best in, with [class] behind it"
    )
    constraint: tuple[str, ...] = option(
        str, (), "TEXT",
        "METRIC<=LIMIT or METRIC>=LIMIT; a LIMIT with % is in % of the first arm; repeat it; none for no "
        "constraint (default: ttft_p99_ms[sheddable]<=200% and tokens_per_sec>=95%)", is_repeated=True,
    )  # fmt: skip
    confidence: float = option(
        cli.number, 0.95, "P", "bootstrap probability that a recommendation needs"
    )
    depth: int = option(cli.whole, 3, "N", "depth of the decision tree")


class _Output(FigureOption, title="output"):
    """Options for the files to write."""

    output: str = option(
        str, DEFAULT_OUTPUT, "PATH", "Dataset to write, .zarr; the others lie beside it"
    )
    map_axes: str = option(str, "kv_blocks,rate", "X,Y", "axes of each heat map")
    map_facets: str = option(
        str, "shape,instances", "COLUMN,ROW", "axes that tell the heat maps apart"
    )
    differences: str | None = option(
        str, None, "PATH", "also write all metrics' paired differences to the first arm, .zarr or .nc",
    )  # fmt: skip


class _Switches(OutputSwitches, title="switches"):
    """The switch that runs every seed in every cell."""

    every_seed: bool = switch(
        "run all seeds even of a strategy that livelocks on the first one (a livelock "
        "takes as long as hundreds of usual runs)"
    )


class RobustnessOptions(
    _Axes, _Design, _Requests, EnoughSeedsOptions, StudyTrace, _Verdict, _Output, PageOption, _Switches, AllSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arms: tuple[str, ...] = words("ARM", "two strategies or more")
    most_seeds: int | None = option(
        cli.whole, None, "N",
        f"the most seeds that --precision and --decide take in a cell (default: {MOST_SEEDS})",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _robustness, arguments)


def _robustness(arguments: Sequence[str] | None) -> int:
    options = RobustnessOptions.read(arguments)
    paths = outputs.outputs_of(options, DEFAULT_OUTPUT, (".zarr",), (".json", ".csv"))
    differences = None
    if options.differences is not None:
        kinds, resume = (".zarr", ".nc"), options.resume
        differences = outputs.output_path(
            options.differences, "--differences", kinds, options.overwrite, resume
        )
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.robustness.output.figure import read_view

    question = _question(options)
    plan = _plan(options, question)
    view = read_view(options.map_axes, options.map_facets, plan.axes)
    with sole_writer(paths.result):
        dataset, timing = _made(options, plan, paths.result, cli.command_text(NAME, arguments))
    return _written(options, dataset, question, view, timing, paths, differences)


# --- input ----------------------------------------------------------------------------------------


def _plan(options: RobustnessOptions, question: Question) -> MapPlan:
    from blis_jax.metrics.measure import read_targets
    from sweeps.robustness import cells
    from sweeps.robustness.plan import make_plan
    from sweeps.robustness.workloads import TraceShape, load_shape, measure_in
    from sweeps.runs.requests import check_count, runs_of, trace_of
    from sweeps.strategies.arms import arms_of

    if len(options.arms) < 2:
        raise ConfigError(
            "fewer than two arms are given; give two or more, such as iter00_baseline "
            "iter08_token_budget@published"
        )
    stopping = _stopping(options)
    trace = trace_of(options, NAME, NUM_SEEDS, ("rate",))
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
    seeds, stream = runs_of(options, NAME, trace, configs, NUM_SEEDS, stopping)
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
        {name: measure_in(shape, targets, options.window) for name, shape in shapes.items()},
        question, is_every_seed_run=options.every_seed, stopping=stopping,
    )  # fmt: skip


def _random_state(options: RobustnessOptions) -> int:
    state = options.random_state
    if not 0 <= state < 2**32:
        raise ConfigError(f"--random-state must be between 0 and {2**32 - 1}, got {state}")
    return state


def _extent(options: RobustnessOptions) -> Extent:
    from sweeps.robustness.workloads import PUBLISHED_DURATION_S, Extent

    if options.num_requests is None:
        usual = options.duration is None
        return Extent(duration_s=PUBLISHED_DURATION_S if usual else options.duration)
    if options.duration is not None:
        raise ConfigError("--num-requests and --duration contradict each other; give one of them")
    return Extent(duration_s=None, num_requests=options.num_requests)


def _stopping(options: RobustnessOptions) -> StoppingRule | None:
    """The rule for stopping; what it looks at is the question itself."""
    if options.has_rule and options.most_seeds is None:
        options = replace(options, most_seeds=MOST_SEEDS)
    return stopping_flags.rule_of(options, options.seeds, options.trace)


def _question(options: RobustnessOptions) -> Question:
    from sweeps.claims.grammar import parse_constraint
    from sweeps.claims.metrics import our_name
    from sweeps.robustness.plan import CONSTRAINTS, Question

    if not 1 <= options.depth <= 10:
        raise ConfigError(f"--depth must be between 1 and 10, got {options.depth}")
    texts = options.constraint or CONSTRAINTS
    limits = () if texts == ("none",) else tuple(map(parse_constraint, texts))
    objective = our_name(options.objective)
    return Question(objective, limits, options.confidence, _random_state(options))


# --- runs -----------------------------------------------------------------------------------------


def _made(
    options: RobustnessOptions, plan: MapPlan, path: Path, command: str
) -> tuple[xr.Dataset, MapTiming]:
    """The map with all of its cells, and how long those took that were missing."""
    from blis_jax.reports.words import cluster_line
    from sweeps.robustness.parts import run_map
    from sweeps.robustness.store import MapStore, empty_dataset, is_done
    from sweeps.runs.drawn import RUNS_PER_PART
    from sweeps.sweep.execution import device_text

    cells_per_part = plan.cells_per_part(RUNS_PER_PART)
    cluster = cluster_line({arm.name: arm.config for arm in plan.arms}, ("num_instances",))
    about = {
        "cluster": cluster,
        "command": command,
        "device": device_text(),
        "design": _design_text(options, plan),
    }
    empty = empty_dataset(plan, about, cells_per_part)
    store = MapStore(path)
    done = is_done(store.begin(empty, options.resume))

    def show(num_done: int, timing: MapTiming) -> None:
        work.show(num_done, _pace(timing))

    mapping = progress.phase("mapping", len(plan.cells), "cells", done=int(done.sum()))
    with cli.resumable(NAME, path), mapping as work:
        timing = run_map(plan, store, done, cells_per_part, show)
    reference = json.dumps(dict(plan.reference))
    return store.load().assign_attrs(reference_cell=reference), timing


def _design_text(options: RobustnessOptions, plan: MapPlan) -> str:
    design = {"name": options.design, "random_state": _random_state(options)}
    return json.dumps(design | {"num_cells": len(plan.cells)})


def _pace(timing: MapTiming) -> str:
    spent = timing.run_s - timing.compile_s
    return f"{1000 * spent / max(timing.num_runs, 1):.0f} ms a run"


# --- output ---------------------------------------------------------------------------------------


def _written(
    options: RobustnessOptions,
    dataset: xr.Dataset,
    question: Question,
    view: MapView,
    timing: MapTiming,
    paths: OutputPaths,
    differences: Path | None,
) -> int:
    """The files and the words; the exit code."""
    from blis_jax.reports import page
    from blis_jax.results.dataset import save
    from sweeps.robustness.output import report
    from sweeps.robustness.output.document import findings_of, provenance_of, title_of, to_document
    from sweeps.robustness.verdict import answer

    with progress.phase("judging cells"):
        verdicts = answer(dataset, question)
        rules = report.recommendation_rules(verdicts, options.depth)
        lines = report.summary_lines(verdicts, rules)
        found = findings_of(verdicts, rules, timing, view)

    def write_page(path: Path) -> None:
        about = provenance_of(dataset, question)
        page.write(found, path, title_of(verdicts), str(dataset.attrs.get("command", "")), about)

    files: outputs.Files = [
            (paths.beside(".json"), lambda path: write_json(path, to_document(verdicts, rules, lines))),
            (paths.beside(".csv"), lambda path: write_text(path, report.cell_table(verdicts).to_csv(index=False))),
            (paths.figure, lambda path: outputs.draw(found.pictures[0], path)),
            (differences, lambda path: save(report.differences(dataset), path)),
            (paths.report, write_page),
    ]  # fmt: skip
    outputs.show(found, lambda: [paths.result, *outputs.write_files(files)], options)
    if bool(verdicts["has_failed"].all()):
        cli.say(NAME, "no strategy finished in any cell; see the outcomes")
        return cli.EXIT_UNSUPPORTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
