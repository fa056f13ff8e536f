"""`python -m blis_jax.sweep`: strategies on many common seeds, compared per SLO class."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import (
    FigureOption,
    MeasuredOptions,
    OutputSwitches,
    option,
    outputs,
    stopping_flags,
    switch,
)
from blis_jax.commands.options.cluster_flags import InstancesOption, SlotsOption
from blis_jax.commands.options.outputs import ReportOptions
from blis_jax.commands.options.seed_options import SeedOptions, seeds_option
from blis_jax.commands.options.stopping_flags import DecidingOptions
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.core.outcome import WHOLE
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.reports.pictures import Picture
    from blis_jax.statistics.sequential import StoppingRule
    from sweeps.sweep.execution import How, Stopped
    from sweeps.sweep.plan import SweepPlan
    from sweeps.sweep.study import Swept

NAME = "blis_jax.sweep"
DEFAULT_OUTPUT = "out/sweep.zarr"
NUM_SEEDS = 256
CLOCKS = ("int32", "int64", "float64")


def _stream(text: str) -> str:
    if text == "reference":
        raise argparse.ArgumentTypeError(
            "many seeds are drawn by the JAX generator; for the requests that BLIS draws from one "
            "seed use python -m blis_jax.run --seed N"
        )
    return cli.one_of("jax")(text)


_DESCRIPTION = """\
Run strategies on the same seeds of a workload and compare them per SLO class: means with 95 %
intervals, differences paired by seed, goodput, outcomes. Without options: the ledger's baseline
and its best published strategy on 256 seeds of the `mixed` workload. Writes a Dataset and a figure.
"""
_EXAMPLES = """\
examples:
  the default comparison:
    %(prog)s --seeds 256

  a strategy of your own against the baseline, on other seeds:
    %(prog)s --strategy baseline --strategy mine.yaml --first-seed 1000 --seeds 64

  a grid over two settings of one strategy (they share one compilation):
    %(prog)s --strategy it08_opt --grid slo_age_weight=1e-5,1e-4 \\
      --grid max_num_scheduled_tokens=512:2048:256 --seeds 64 --output out/grid.zarr

  arrival rates, and a workload of your own:
    %(prog)s --workload mine.yaml --rate 1000,1500,2000 --output out/rates.zarr

exit codes: 0 done; 2 input that cannot be used, nothing was written; 3 no run finished (the
outcomes say why); 130 interrupted, what was done is saved and --resume goes on from there.
Requests are drawn by the JAX generator (--rng jax): a seed gives the same requests every time and
to every strategy, but not those that BLIS draws from that seed; blis_jax.run draws those.
"""


class _Compared(InstancesOption, title="what is compared"):
    """Strategies and their settings."""

    workload: str | None = option(
        str, None, "NAME", "built-in workload or a .yaml file", shown="mixed"
    )
    strategy: tuple[str, ...] = option(
        str, (), "ARM",
        "[LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; repeat it, first is the baseline (default: baseline and it08_opt)",
        is_repeated=True,
    )  # fmt: skip
    set: tuple[str, ...] = option(
        str, (), "KEY=VALUE",
        "a setting for all strategies, such as num_instances=4 or workload.num_requests=500; repeat it",
        is_repeated=True,
    )  # fmt: skip
    grid: tuple[str, ...] = option(
        str, (), "KEY=VALUES",
        "a setting with several values: a,b,c or start:stop:step with the stop; a;b where values have commas; "
        "repeat it", is_repeated=True,
    )  # fmt: skip
    rate: str | None = option(str, None, "R,…", "requests per second, one value or several")


class _Seeds(SeedOptions, title="seeds"):
    """Options for the seeds, and for the random stream of the requests."""

    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    rng: str | None = option(
        _stream, None, "NAME", "random stream of the requests; only jax draws many seeds at once", shown="jax",
    )  # fmt: skip

    @property
    def stream(self) -> str:
        """Return who draws requests from the seeds."""
        return "jax"


class _Output(FigureOption, ReportOptions, title="output"):
    """The option for the Dataset, beside those of figures and the report."""

    output: str | None = option(
        str, None, "PATH", "Dataset to write: .zarr, or .nc for NetCDF", shown=DEFAULT_OUTPUT
    )


class _How(SlotsOption, title="engine"):
    """The device and its programs."""

    device: str | None = option(
        cli.one_of("cpu", "gpu"), None, "NAME", "cpu or gpu (default: JAX's choice)"
    )
    clock: str = option(
        cli.one_of(*CLOCKS), "int32", "NAME", "int32 (35 minutes), int64 or float64"
    )


class _Switches(OutputSwitches, title="switches"):
    """Switches for the form of the report."""

    all: bool = switch()
    json: bool = switch("print everything as JSON")


class SweepOptions(
    _Compared, StudyTrace, _Seeds, DecidingOptions, MeasuredOptions, _Output, _How, _Switches,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _sweep, arguments)


def _sweep(arguments: Sequence[str] | None) -> int:
    options = SweepOptions.read(arguments)
    rule = stopping_flags.rule_of(options, options.seeds, options.trace)
    plan = _plan(options, rule)
    classes = plan.requests.source.slo_classes
    deciding = () if rule is None else stopping_flags.names_of(options.deciding, classes)
    paths = _outputs(options, plan)
    _choose_device(options.device)
    prepare_backend(use_cache=not options.no_cache)
    _interrupt_on_termination()
    _note_idle(plan)

    from sweeps.sweep.execution import How, run_until

    how = How(slots=options.slots, clock=options.clock, command=cli.command_text(NAME, arguments))
    stopped = run_until(plan, how, paths.result, options.resume, rule, deciding)
    swept = _swept(stopped, how)
    return _report(options, swept, stopped, paths)


# --- input ----------------------------------------------------------------------------------------


def _plan(options: SweepOptions, rule: StoppingRule | None) -> SweepPlan:
    """Return what the options ask for, checked without JAX."""
    from blis_jax.metrics.measure import read_targets
    from sweeps.runs.requests import runs_of, trace_of
    from sweeps.sweep.plan import DEFAULT_STRATEGIES, make_plan

    groups = [] if options.instances is None else [f"instances={options.instances}"]
    trace = trace_of(options, NAME)

    def seeds(configs: Sequence[ClusterConfig]) -> Sequence[int]:
        return runs_of(options, NAME, trace, configs, NUM_SEEDS, rule)[0]

    return make_plan(
        workload=options.workload or options.trace or "mixed",
        strategies=options.strategy or DEFAULT_STRATEGIES,
        settings=(*options.set, *groups),
        grid=options.grid,
        rates=options.rate or "",
        seeds=seeds,
        trace=trace,
        targets=read_targets(options.targets),
        window=options.window,
    )


def _note_idle(plan: SweepPlan) -> None:
    """Say once what is asked for and does nothing."""
    if any(point.config.precise_kv_routing for point in plan.points):
        from blis_jax.engine.mechanism import without_effect

        for line in dict.fromkeys(without_effect(point.config) for point in plan.points):
            if line is not None:
                cli.say(NAME, f"note: {line}")


def _outputs(options: SweepOptions, plan: SweepPlan) -> OutputPaths:
    """Return the checked paths; the usual ones may hold this very sweep, of which nothing would be lost."""
    is_default = options.output is None and options.figure is None
    paths = outputs.outputs_of(
        options,
        DEFAULT_OUTPUT,
        (".zarr", ".nc"),
        is_kept=lambda path: is_default and _holds(path, plan, options.clock),
    )
    if paths.result.suffix == ".nc" and importlib.util.find_spec("h5netcdf") is None:
        raise ConfigError(
            f"--output: {str(paths.result)!r} is NetCDF, which needs the optional group: "
            "pip install 'blis-jax[export]'; or give a name that ends in .zarr"
        )
    return paths


def _holds(output: Path, plan: SweepPlan, clock: str) -> bool:
    """Whether a Zarr store holds this very sweep from its beginning to its end."""
    from sweeps.sweep.plan import identity

    try:
        attributes = json.loads((output / "zarr.json").read_text())["attributes"]
        counts = json.loads(attributes["outcome_counts"])
        same = attributes["sweep"] == identity(plan, clock)
        return same and "not_run" not in counts
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _choose_device(device: str | None) -> None:
    """JAX looks at this variable when it starts."""
    if device is not None and "jax" not in sys.modules:
        os.environ["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda"}[device]


def _interrupt_on_termination() -> None:
    """A termination signal ends the command as Ctrl-C does: what was done is saved."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    is_ours = not cli.is_called_from_python.get()
    if is_ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


# --- output ---------------------------------------------------------------------------------------


def _swept(stopped: Stopped, how: How) -> Swept:
    from blis_jax.statistics.compared import compare
    from sweeps.sweep.study import Swept

    done, inference = stopped.done, stopped.inference
    comparisons = compare(done.dataset, inference=inference)
    made = done.timing, done.num_known, tuple(stopped.words())
    return Swept(stopped.plan, how, done.dataset, comparisons, inference, *made)


def _num_whole(swept: Swept) -> int:
    outcomes = swept.dataset["outcome"].values
    return int(sum((outcomes == int(code)).sum() for code in WHOLE))


def _draw(
    swept: Swept, drawn: Sequence[Picture], is_interrupted: bool, paths: OutputPaths
) -> list[Path]:
    """The figure and the reports, where there is something to draw; what is written by now."""
    written = [paths.result]
    if is_interrupted or not _num_whole(swept):
        return written
    figure = paths.figure if drawn else None
    written += outputs.write_files([(figure, lambda path: outputs.draw(drawn[0], path))])
    if paths.pages:
        from sweeps.sweep.study import write_reports

        write_reports(swept, paths)
    return [*written, *paths.pages]


def _report(options: SweepOptions, swept: Swept, stopped: Stopped, paths: OutputPaths) -> int:
    """The findings in the form that is asked for; the exit code."""
    from blis_jax.reports.differences import findings
    from sweeps.sweep import report
    from sweeps.sweep.study import study_of

    found = findings(study_of(swept))
    num_whole, num_runs = _num_whole(swept), swept.dataset["outcome"].size

    def write() -> list[Path]:
        return _draw(swept, found.pictures, stopped.done.is_interrupted, paths)

    if options.json:
        about = {
            "answer": found.answer.to_json(),
            "picture": found.pictures[0].to_json() if found.pictures else None,
            "workload": swept.plan.requests.name,
            "seeds": list(swept.plan.requests.seeds),
            **({"enough_seeds": stopped.words()} if stopped.rule is not None else {}),
            "files": [str(path) for path in write()],
        }
        print(json.dumps(report.to_document(swept, about), allow_nan=False))
    else:
        outputs.show(found, write, options)
    if num_whole < num_runs and (options.quiet or options.json):
        runs_are = report.runs_of(swept.plan)
        for line in (
            *report.remark_lines(swept.dataset, runs_are),
            *report.check_lines(swept.dataset, runs_are),
        ):
            cli.say(NAME, line)
    if stopped.done.is_interrupted:
        cli.say(
            NAME,
            f"interrupted; {paths.result} has the runs that are done, --resume goes on from there",
        )
        return cli.EXIT_INTERRUPTED
    if not num_whole:
        cli.say(NAME, "no run finished, so there is nothing to compare; see the outcomes")
        return cli.EXIT_UNSUPPORTED
    return 0
