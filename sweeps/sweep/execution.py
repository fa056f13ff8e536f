"""Run a sweep's plan: progress, partial results saved, rows of an earlier sweep reused."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from blis_jax import progress
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands import cli
from blis_jax.commands.options import (
    outputs,
    seed_options,
)
from blis_jax.commands.store import Store
from blis_jax.core.outcome import WHOLE
from blis_jax.engine.mechanism import without_effect
from blis_jax.errors import ConfigError, refusing_damage
from blis_jax.files.atomic_write import plain
from blis_jax.lazy import ahead
from blis_jax.lazy import xarray as xr
from blis_jax.reports import render
from blis_jax.reports.differences import findings
from blis_jax.results.schema import SWEEP
from blis_jax.runs.driver import Timing
from blis_jax.runs.many_runs import run_given, run_grid
from blis_jax.runs.options import Options, default_form, num_workers
from blis_jax.statistics.intervals import BY_STUDENT, CONFIDENCE, Inference
from blis_jax.statistics.paired import Difference
from blis_jax.statistics.sequential import Look, StoppingRule, look, look_until_end
from blis_jax.traces.source import TraceSource
from blis_jax.workload.spec import WorkloadSpec
from sweeps.compare.report import INTERRUPTED, stopping_json, stopping_lines
from sweeps.runs.drawn import followed_grid
from sweeps.sweep import report
from sweeps.sweep.data import NOT_RUN, Summarizer, fill_from, known_rows, to_dataset
from sweeps.sweep.plan import SweepPlan, identity
from sweeps.sweep.report import PointMetric, pairs_of, to_document
from sweeps.sweep.study import Swept, study_of, write_reports

if TYPE_CHECKING:
    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.reports.pictures import Picture
    from sweeps.runs.parts import RunPart
    from sweeps.sweep.command import SweepOptions

CHECKPOINT_S = 30.0  # least time between two saves of partial results
CHECKPOINT_SHARE = 20.0  # and at least so many times as long as a save takes


@dataclass(frozen=True)
class How:
    """The options of execution, which do not change results."""

    slots: int | None = None
    clock: str = "int32"
    command: str = ""  # the command line, for the record
    part: RunPart | None = None

    def options(self) -> Options:
        """Return the engine's options on the machine at hand."""
        return Options(
            num_slots=self.slots, clock=self.clock, form=default_form(), resolve_ties=False
        )

    def texts(self) -> dict[str, str]:
        """Return the attributes on how the runs of a Dataset were made."""
        return {"clock": self.clock, "command": self.command, "device": device_text()}


@dataclass(frozen=True)
class Done:
    """A sweep's result; an interrupted sweep has rows that were not run."""

    dataset: xr.Dataset
    timing: Timing
    num_known: int  # rows taken over from the file
    is_interrupted: bool = False


def device_text() -> str:
    """Return the name of the machine in words.

    Raises:
        ConfigError: JAX finds no device of the requested platform.
    """
    try:
        device = jax.devices()[0]
    except (RuntimeError, AssertionError):  # JAX asserts where a platform is not installed at all
        wanted = os.environ.get("JAX_PLATFORMS", "")
        raise ConfigError(
            f"JAX finds no device of platform {wanted!r} here; leave --device out or give cpu "
            "(GPUs need pip install 'blis-jax[gpu]')"
        ) from None
    if device.platform == "cpu":
        return f"cpu {platform.machine()}, {num_workers()} workers"
    return f"{device.platform} {device.device_kind}"


class _Keeper:
    """Keep a sweep's table, and save it from time to time."""

    def __init__(
        self,
        plan: SweepPlan,
        summarizer: Summarizer,
        table: np.ndarray,
        about: Mapping[str, str],
        store: SweepStore,
    ) -> None:
        self.plan, self.summarizer, self.about, self.store = plan, summarizer, about, store
        self.table = table
        self.pause_s, self.saved = CHECKPOINT_S, time.monotonic()

    def keep(self, point: int, seed: int, row: np.ndarray) -> None:
        """Store the metrics of a run in the table; save the table if it is time."""
        self.table[point, seed] = row
        ahead("xarray", "zarr", "scipy.special", "matplotlib.figure")  # of the report
        if time.monotonic() - self.saved > self.pause_s:
            start = time.monotonic()
            self.save()
            self.saved = time.monotonic()
            self.pause_s = max(CHECKPOINT_S, CHECKPOINT_SHARE * (self.saved - start))

    def dataset(self) -> xr.Dataset:
        """Return the table so far as a Dataset."""
        return to_dataset(self.plan, self.summarizer, self.table, self.about)

    def save(self) -> xr.Dataset:
        """Write the table so far; return it as a Dataset."""
        dataset = self.dataset()
        self.store.save(dataset)
        return dataset


class SweepStore(Store):
    """The store of a sweep, which is always saved as a whole."""

    kind, wanted = SWEEP, "a sweep, or --overwrite to make one there"
    decisive: ClassVar = {
        "package_version": "version of blis_jax",
        "jax_version": "version of JAX",
        "profile": "profile",
        "slo_targets": "--targets",
        "measure": "--window",
        "clock": "--clock",
    }


def run_sweep(plan: SweepPlan, how: How, path: Path, is_resumed: bool) -> Done:
    """Run the missing rows and save them; on an interruption, save the rows done so far."""
    summarizer = Summarizer((point.spec for point in plan.points), plan.experiment.measure)
    about = how.texts() | {"sweep": identity(plan, how.clock)}
    outside = np.zeros(len(plan.points) * len(plan.requests.seeds), bool)
    if how.part is not None:
        about |= how.part.attributes(("strategy", *(axis.name for axis in plan.axes), "seed"))
        outside = how.part.is_outside(len(outside))
    table = summarizer.empty((len(plan.points), len(plan.requests.seeds)))
    store = SweepStore(path, "blis_jax.sweep")
    if is_resumed and path.exists():
        with refusing_damage(path, "give --overwrite"):
            saved = store.load()
            store.refuse_other(saved, to_dataset(plan, summarizer, table, about))
            table = fill_from(saved, plan, summarizer, path)
    keeper = _Keeper(plan, summarizer, table, about, store)
    known = known_rows(table)
    timing = Timing()
    num_known, num_own = len(known), int((~outside).sum())
    num_missing = num_own - num_known
    is_interrupted = False
    try:
        if num_missing:
            with progress.phase("simulating", num_own, done=num_known):
                places = map(int, np.flatnonzero(outside))
                others = {
                    place: table[place] for place in (divmod(at, table.shape[1]) for at in places)
                }
                options: Any = {"known": known | others, "on_row": keeper.keep}
                timing = _run(plan, summarizer, how.options(), options)
    except KeyboardInterrupt:
        is_interrupted = True
    except BaseException:
        if int((table["outcome"] != NOT_RUN).sum()) > num_known:
            keeper.save()
        raise
    num_done = int((table["outcome"] != NOT_RUN).sum())
    if num_done == 0:
        raise KeyboardInterrupt
    return Done(keeper.save(), timing, num_known, is_interrupted)


def _run(plan: SweepPlan, summarizer: Summarizer, how: Options, more: Mapping[str, Any]) -> Timing:
    """Run every point on drawn requests, or on those of a trace."""
    configs: list[ClusterConfig] = [point.config for point in plan.points]
    if plan.requests.stream == "reference" or plan.requests.source.waits:
        points = [(point.config, point.spec) for point in plan.points]
        return followed_grid(points, plan.requests.seeds, summarizer, how, **more).timing
    if isinstance(plan.requests.source, TraceSource):
        more = {**more, "placed": plan.requests.source.placed}
        return run_given(
            configs, plan.requests.source.table, plan.requests.seeds, summarizer, how, **more
        ).timing
    specs = [point.spec for point in plan.points if isinstance(point.spec, WorkloadSpec)]
    return run_grid(configs, specs, plan.requests.seeds, summarizer, how, **more).timing


# --- a sweep on as many seeds as a rule asks for --------------------------------------------------


@dataclass(frozen=True)
class Stopped:
    """A sweep, the plan with the seeds used, the inference, the stopping rule, and its looks."""

    plan: SweepPlan
    done: Done
    inference: Inference = BY_STUDENT
    rule: StoppingRule | None = None
    judged: Sequence[PointMetric] = ()
    looks: Sequence[Look[tuple[Difference, ...]]] = ()

    def document(self) -> dict[str, Any]:
        """Return the stopping rule and its looks as plain data; empty if the number of seeds was given."""
        if self.rule is None or not self.looks:
            return {}
        points = (self.plan.labels(self.plan.points[of.point]) for of in self.judged)
        labels = [" at ".join(filter(None, label)) for label in points]
        compared = [(label, of.metric) for label, of in zip(labels, self.judged, strict=True)]
        return {"stopping": stopping_json(self.rule, CONFIDENCE, compared, self.looks)}


def run_until(
    plan: SweepPlan,
    how: How,
    output: Path,
    is_resumed: bool,
    rule: StoppingRule | None,
    names: Sequence[str],
) -> Stopped:
    """Run the sweep on more and more seeds until the rule is met; on the plan's seeds if there is no rule.

    Raises:
        ConfigError: a rule is given, but there is one point only.
    """
    if rule is None:
        return Stopped(plan, run_sweep(plan, how, output, is_resumed))
    if len(plan.points) < 2:
        raise ConfigError(
            "--precision and --decide look at differences, but there is one strategy at one place; give another"
        )
    num_kept = _kept(output) if is_resumed else 0
    stopped: Stopped | None = None

    def look_at(count: int) -> Look[tuple[Difference, ...]]:
        """Run the sweep on `count` seeds, and judge its differences."""
        nonlocal stopped
        longer = _longer(plan, max(count, num_kept))
        done = run_sweep(longer, how, output, is_resumed or stopped is not None)
        pairs = pairs_of(longer, done.dataset.isel(seed=slice(0, count)), names)
        stopped = Stopped(longer, done, rule.inference(CONFIDENCE), rule, tuple(pairs))
        seen = look(list(pairs.values()), rule)
        if done.is_interrupted:
            return dataclasses.replace(seen, end=INTERRUPTED)
        return look_at(num_kept) if seen.end and count < num_kept else seen

    looks = look_until_end(rule, len(plan.requests.seeds), look_at)
    assert stopped is not None
    return dataclasses.replace(stopped, looks=looks)


def _longer(plan: SweepPlan, count: int) -> SweepPlan:
    first = plan.requests.seeds[0]
    return plan.on(range(first, first + count))


def _kept(output: Path) -> int:
    """Return the number of seeds that an earlier call reached."""
    try:
        attributes = json.loads((output / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        return len(json.loads(attributes["seeds"]))
    except (OSError, ValueError, KeyError):
        return 0


def sweep_and_report(
    options: SweepOptions,
    plan: SweepPlan,
    rule: StoppingRule | None,
    paths: OutputPaths,
    command: str,
) -> int:
    """Make the runs of a plan, and write and print the results; return the exit code."""
    classes = plan.requests.source.slo_classes
    deciding = () if rule is None else seed_options.deciding_metrics(options.deciding, classes)
    _note_idle(options.command, plan)
    how = How(options.slots, options.clock, command, options.part)
    stopped = run_until(plan, how, paths.result, options.resume, rule, deciding)
    if options.part is not None and not stopped.done.is_interrupted:
        total = stopped.done.dataset["outcome"].size
        num_own = len(options.part.of(total))
        if not options.quiet:
            render.show_answer(options.part.answer(paths.result, num_own, total))
        return 0
    return _report(options, _swept(stopped, how), stopped, paths)


def _note_idle(command: str, plan: SweepPlan) -> None:
    """Print a note on options that have no effect, once for each."""
    if any(point.config.precise_kv_routing for point in plan.points):
        for line in dict.fromkeys(without_effect(point.config) for point in plan.points):
            if line is not None:
                cli.say(command, f"note: {line}")


# --- output ---------------------------------------------------------------------------------------


def _swept(stopped: Stopped, how: How) -> Swept:
    done = stopped.done
    document = to_document(stopped.plan, done.dataset, stopped.inference) | stopped.document()
    return Swept(stopped.plan, how, done.dataset, document, done.timing, done.num_known)


def _num_whole(swept: Swept) -> int:
    outcomes = swept.dataset["outcome"].values
    return int(sum((outcomes == int(code)).sum() for code in WHOLE))


def _draw(
    swept: Swept, drawn: Sequence[Picture], is_interrupted: bool, paths: OutputPaths
) -> list[Path]:
    """Write the figure and the reports, if there is something to draw; return the paths written so far."""
    written = [paths.result]
    if is_interrupted or not _num_whole(swept):
        return written
    figure = paths.figure if drawn else None
    written += outputs.write_files([(figure, lambda path: outputs.draw(drawn[0], path))])
    if paths.pages:
        write_reports(swept, paths)
    return [*written, *paths.pages]


def _report(options: SweepOptions, swept: Swept, stopped: Stopped, paths: OutputPaths) -> int:
    """Print the findings in the requested form; return the exit code."""
    document = findings(study_of(swept))
    num_whole, num_runs = _num_whole(swept), swept.dataset["outcome"].size

    def write() -> list[Path]:
        return _draw(swept, document.pictures, stopped.done.is_interrupted, paths)

    if options.json:
        about = {
            "answer": document.answer.to_json(),
            "picture": document.pictures[0].to_json() if document.pictures else None,
            "workload": swept.plan.requests.name,
            "seeds": list(swept.plan.requests.seeds),
            **(
                {"enough_seeds": stopping_lines(swept.document)} if stopped.rule is not None else {}
            ),
            "files": [str(path) for path in write()],
        }
        print(json.dumps(plain({**about, **swept.document}), allow_nan=False))
    else:
        outputs.show(document, write, options)
    if num_whole < num_runs and (options.quiet or options.json):
        runs_are = report.runs_of(swept.plan)
        for line in (
            *report.remark_lines(swept.dataset, runs_are),
            *report.check_lines(swept.dataset, runs_are),
        ):
            cli.say(options.command, line)
    if stopped.done.is_interrupted:
        cli.say(
            options.command,
            f"interrupted; {paths.result} has the runs that are done, --resume goes on from there",
        )
        return cli.EXIT_INTERRUPTED
    if not num_whole:
        cli.say(
            options.command, "no run finished, so there is nothing to compare; see the outcomes"
        )
        return cli.EXIT_UNSUPPORTED
    return 0
