"""`python -m blis_jax.sweep`: strategies on many common seeds, compared per SLO class."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import report_flags, stopping_flags, trace_flags
from blis_jax.commands.flags.cluster_flags import INSTANCES, SLOTS
from blis_jax.commands.flags.seed_options import given_seeds, seed_flags, seeds_of
from blis_jax.commands.flags.shared_options import switches
from blis_jax.commands.flags.stopping_flags import FEWEST_SEEDS
from blis_jax.errors import ConfigError
from blis_jax.files.overwriting import refuse_existing

if TYPE_CHECKING:
    from blis_jax.commands.flags.report_flags import ReportPaths
    from blis_jax.commands.sweep.execution import Done, How
    from blis_jax.commands.sweep.plan import SweepPlan
    from blis_jax.commands.sweep.stopping import Stopped
    from blis_jax.metrics.measure import Measure
    from blis_jax.statistics.compared import Comparison

NAME = "blis_jax.sweep"
DEFAULT_OUTPUT = "out/sweep.zarr"
NUM_SEEDS = 256
CLOCKS = ("int32", "int64", "float64")
MOST_SLOTS = 8192
WIDTH = 132  # columns of a table that is not written to a terminal


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

_COMPARED = (
    Flag("workload", str, "mixed", "NAME", "built-in workload or a .yaml file"),
    Flag("strategy", str, None, "NAME", "built-in strategy or a .yaml file; repeat it, first is "
         "the baseline (default: baseline and it08_opt)", is_repeated=True),
    Flag("set", str, None, "KEY=VALUE", "a setting for all strategies, such as num_instances=4 or "
         "workload.num_requests=500; repeat it", is_repeated=True),
    Flag("grid", str, None, "KEY=VALUES", "a setting with several values: a,b,c or "
         "start:stop:step with the stop; a;b where values have commas; repeat it",
         is_repeated=True),
    INSTANCES._replace(help="YAML or JSON list of groups of instances, for all strategies"),
    Flag("rate", str, None, "R,…", "requests per second, one value or several"),
)  # fmt: skip
_SEEDS = (
    *seed_flags(f"default: {NUM_SEEDS}"),
    Flag(
        "rng",
        _stream,
        "jax",
        "NAME",
        "random stream of the requests; only jax draws many seeds at once",
    ),
)
_MEASURE = (
    Flag("targets", str, None, "CLASS.LIMIT=MS", "SLO target, such as critical.ttft_ms=80, LIMIT "
         "being ttft_ms, tpot_ms or e2e_ms; MS may be none; repeat it (default: TTFT 100 ms for "
         "critical, 250 for standard, 1000 for sheddable)", is_repeated=True),
    Flag("window", str, None, "WARM,COOL", "seconds of arrivals at the start and at the end that "
         "are simulated but not measured (default: the workload's `measure`)"),
)  # fmt: skip
_OUTPUT = (
    Flag("output", str, DEFAULT_OUTPUT, "PATH", "Dataset to write: .zarr, or .nc for NetCDF"),
    Flag("figure", str, None, "PATH", "PNG to write, or none (default: beside the Dataset)"),
    *report_flags.FLAGS,
)
_HOW = (
    Flag("device", cli.one_of("cpu", "gpu"), None, "NAME", "cpu or gpu (default: JAX's choice)"),
    SLOTS,
    Flag("clock", cli.one_of(*CLOCKS), "int32", "NAME", "int32 (35 minutes), int64 or float64"),
)
_SWITCHES = {
    "resume": "keep the finished runs of the output, and make the others",
    "overwrite": "replace an existing output",
    "json": "print the tables as JSON",
    "quiet": "print no table and no progress",
    **switches("no-cache"),
}


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    for title, flags in (
        ("what is compared", _COMPARED),
        ("trace", trace_flags.STUDY_FLAGS),
        ("seeds", _SEEDS),
        ("enough seeds", stopping_flags.FLAGS),
        ("what is measured", _MEASURE),
        ("output", _OUTPUT),
        ("how it runs", _HOW),
    ):
        parser.add_flags(title, flags)
    parser.add_switches("switches", _SWITCHES)
    parser.add_switches("enough seeds", stopping_flags.SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _sweep, arguments)


def _sweep(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = _parser().given(words)
    rule = stopping_flags.rule_of(given)
    plan, measure = _plan(given, FEWEST_SEEDS if rule is not None else NUM_SEEDS)
    if rule is not None:
        stopping_flags.first_seeds(plan.seeds, rule)
    deciding = stopping_flags.names_of(given, plan.spec.slo_classes) if rule is not None else ()
    output, figure = _outputs(given)
    reports = report_flags.paths_of(given)
    clock = given.get("clock", "int32")
    _check_slots(given.get("slots"))
    _check_existing(given, output, figure, plan, measure, clock)
    _choose_device(given.get("device"))
    prepare_backend(use_cache="no_cache" not in given)
    _interrupt_on_termination()
    _note_idle(plan)

    from blis_jax.commands.sweep.execution import How
    from blis_jax.commands.sweep.stopping import run_until

    how = How(
        slots=given.get("slots"),
        clock=clock,
        command=cli.command_text(NAME, words),
    )
    stopped = run_until(plan, measure, how, output, "resume" in given, rule, deciding)
    written = _draw(stopped, measure, how, (output, figure), reports)
    return _report(given, stopped, written)


# --- input ----------------------------------------------------------------------------------------


def _plan(given: Mapping[str, Any], num_seeds: int) -> tuple[SweepPlan, Measure]:
    """What the options ask for, checked without JAX; so many seeds if they do not say."""
    seeds = seeds_of(given, num_seeds, "jax")
    from blis_jax.commands.sweep.plan import DEFAULT_STRATEGIES, make_plan
    from blis_jax.metrics.measure import Measure, read_targets, read_window

    groups = [f"instances={given['instances']}"] if "instances" in given else []
    trace = trace_flags.study_source(given, NAME)
    has_seeds = trace is None or given_seeds(given) is not None
    plan = make_plan(
        workload=given.get("workload", given.get("trace", "mixed")),
        strategies=given.get("strategy", DEFAULT_STRATEGIES),
        settings=(*given.get("set", ()), *groups),
        grid=given.get("grid", ()),
        rates=given.get("rate", ""),
        seeds=seeds if has_seeds else None,
        trace=trace,
    )
    warm_up_s, cool_down_s = read_window(given.get("window"), plan.spec)
    measure = Measure(read_targets(given.get("targets", ())), warm_up_s, cool_down_s)
    for point in plan.points:
        measure.check(point.spec)
    return plan, measure


def _note_idle(plan: SweepPlan) -> None:
    """Say once what is asked for and does nothing."""
    if any(point.config.precise_kv_routing for point in plan.points):
        from blis_jax.engine.mechanism import without_effect

        for line in dict.fromkeys(without_effect(point.config) for point in plan.points):
            if line is not None:
                cli.say(NAME, f"note: {line}")


def _check_slots(slots: int | None) -> None:
    if slots is not None and not 1 <= slots <= MOST_SLOTS:
        raise ConfigError(f"--slots must be between 1 and {MOST_SLOTS}, got {slots}")


def _outputs(given: Mapping[str, Any]) -> tuple[Path, Path | None]:
    output = Path(given.get("output", DEFAULT_OUTPUT))
    if output.suffix not in (".zarr", ".nc"):
        raise ConfigError(f"--output: {str(output)!r} must end in .zarr or .nc")
    if output.suffix == ".nc" and importlib.util.find_spec("h5netcdf") is None:
        raise ConfigError(
            f"--output: {str(output)!r} is NetCDF, which needs the optional group: "
            "pip install 'blis-jax[export]'; or give a name that ends in .zarr"
        )
    figure = cli.figure_path(given, output)
    cli.check_writable(output, is_folder=output.suffix == ".zarr")
    if figure is not None:
        cli.check_writable(figure)
    return output, figure


def _check_existing(
    given: Mapping[str, Any],
    output: Path,
    figure: Path | None,
    plan: SweepPlan,
    measure: Measure,
    clock: str,
) -> None:
    """Refuses to replace what is there, unless asked to or nothing would be lost by it."""
    is_default = "output" not in given and "figure" not in given
    is_kept = is_default and _holds(output, plan, measure, clock)
    refuse_existing(given, {"--output": () if is_kept else (output, figure)}, can_resume=True)


def _holds(output: Path, plan: SweepPlan, measure: Measure, clock: str) -> bool:
    """Whether a Zarr store holds this very sweep from its beginning to its end."""
    from blis_jax.commands.sweep.plan import identity

    try:
        attributes = json.loads((output / "zarr.json").read_text())["attributes"]
        counts = json.loads(attributes["outcome_counts"])
        same = attributes["sweep"] == identity(plan, measure, clock)
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

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


# --- output ---------------------------------------------------------------------------------------


def _num_whole(done: Done) -> int:
    from blis_jax.core.outcome import WHOLE

    outcomes = done.dataset["outcome"].values
    return int(sum((outcomes == int(code)).sum() for code in WHOLE))


def _draw(
    stopped: Stopped,
    measure: Measure,
    how: How,
    files: tuple[Path, Path | None],
    reports: ReportPaths,
) -> list[Path]:
    """The figure and the reports, where there is something to draw; what is written by now."""
    plan, done = stopped.plan, stopped.done
    output, figure = files
    written = [output]
    if done.is_interrupted or not _num_whole(done):
        return written
    if figure is not None:
        from blis_jax.commands.sweep.picture import draw

        with cli.writing(figure):
            draw(done.dataset, figure)
        written.append(figure)
    if reports.is_asked:
        from blis_jax.commands.sweep.study import Swept, write_reports
        from blis_jax.statistics.compared import compare

        comparisons = compare(done.dataset, inference=stopped.inference)
        write_reports(
            Swept(plan, measure, how, done.dataset, comparisons, stopped.inference), reports
        )
    return [*written, *reports.files]


def _report(given: Mapping[str, Any], stopped: Stopped, written: Sequence[Path]) -> int:
    """Tables and sentences; the exit code."""
    plan, done = stopped.plan, stopped.done
    from blis_jax.commands.sweep import report
    from blis_jax.commands.sweep.document import to_document
    from blis_jax.statistics.compared import compare

    comparisons = compare(done.dataset, inference=stopped.inference)
    num_whole, num_runs = _num_whole(done), done.dataset["outcome"].size
    if "json" in given:
        about = {
            "workload": plan.workload,
            "seeds": list(plan.seeds),
            **({"enough_seeds": stopped.words()} if stopped.rule is not None else {}),
            "files": [str(p) for p in written],
        }
        print(
            json.dumps(
                to_document(done.dataset, comparisons, stopped.inference, about), allow_nan=False
            )
        )
    elif "quiet" not in given:
        _print_tables(stopped, comparisons, written)
    if num_whole < num_runs and ("quiet" in given or "json" in given):
        for line in report.check_lines(done.dataset, report.runs_of(plan)):
            cli.say(NAME, line)
    if done.is_interrupted:
        cli.say(
            NAME,
            f"interrupted; {written[0]} has the runs that are done, --resume goes on from there",
        )
        return cli.EXIT_INTERRUPTED
    if not num_whole:
        cli.say(NAME, "no run finished, so there is nothing to compare; see the outcomes")
        return cli.EXIT_UNSUPPORTED
    return 0


def _print_tables(
    stopped: Stopped, comparisons: Sequence[Comparison], written: Sequence[Path]
) -> None:
    from rich.console import Console

    from blis_jax.commands.sweep import report
    from blis_jax.metrics.scalars import PERCENTILES_EXPLAINED
    from blis_jax.statistics.compared import family_sentence

    plan, done, is_anytime = stopped.plan, stopped.done, stopped.inference.is_anytime
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    lines = [
        f"{report.requests_text(plan)} common to all strategies; profile "
        f"{done.dataset.attrs['profile']}.",
        *(f"{one.name}: {one.description}" for one in plan.strategies),
        *stopped.words(),
    ]
    for line in lines:
        console.print(line, markup=False)
    report.show_tables(console, comparisons)
    classes = [str(name) for name in done.dataset["slo_class"].values]
    lines = report.verdict_lines(comparisons)
    lines.append(report.method_line(plan, stopped.inference.method))
    if any(one.reference for one in comparisons):
        lines.append(f"Verdicts: {family_sentence(comparisons, is_anytime)}.")
    lines.append(PERCENTILES_EXPLAINED)
    lines.append(report.target_line(done.dataset.attrs["slo_targets"], classes))
    lines.append(report.window_line(done.dataset.attrs["measure"]))
    lines += report.cost_lines(plan, done.dataset)
    lines += report.check_lines(done.dataset, report.runs_of(plan))
    lines.append(report.time_line(done.timing, done.num_known))
    lines.append(f"Written: {', '.join(map(str, written))}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
