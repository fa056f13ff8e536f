"""Make the study that options of `blis-jax sensitivity` describe: its designs, its runs, and its files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from blis_jax import progress
from blis_jax.cluster.setting_values import all_values
from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import refuse_existing, write_text
from blis_jax.metrics.metric import name_in
from blis_jax.reports import render
from blis_jax.reports.study import run_words
from blis_jax.reports.words import cluster_line
from blis_jax.results.dataset import Provenance, save
from sweeps.runs.experiment import Experiment, metrics_for, targets_of
from sweeps.runs.options import check_statistics
from sweeps.runs.parts import FOLDER, make_part, with_output
from sweeps.runs.requests import StudyRequests, requests_of, workload_for
from sweeps.search.objectives import Valuation
from sweeps.sensitivity.effects import Region, regions_of
from sweeps.sensitivity.indices import Resampling
from sweeps.sensitivity.model import (
    POINTS_PER_PART,
    SIMULATOR,
    SURROGATE,
    Entry,
    MeanPredictor,
    Predicted,
    Simulated,
    Sizes,
    batches_of,
    entries_of,
    load_surrogate,
)
from sweeps.sensitivity.report import findings_of, plan_words
from sweeps.sensitivity.store import to_dataset
from sweeps.sensitivity.study import SensitivityStudy, first_designs, investigate, look_closer, rate
from sweeps.strategies.space import Space, space_of
from sweeps.sweep.execution import device_text

if TYPE_CHECKING:
    from blis_jax.files.journal import Journal
    from sweeps.runs.parts import RunPart
    from sweeps.sensitivity.__main__ import SensitivityOptions
    from sweeps.strategies.file import Strategy


LEAST_SEEDS = 4
OF_CLASS = ("ttft_p99_ms", "e2e_p99_ms")
OF_RUN = ("tokens_per_sec", "reject_rate")


@dataclass(frozen=True)
class _Job:
    """The work that the options ask for, checked."""

    options: SensitivityOptions
    strategy: Strategy
    space: Space
    experiment: Experiment  # keeps the metrics and what the score needs
    sizes: Sizes
    metrics: tuple[str, ...]
    surrogate: MeanPredictor | None
    folder: Path
    regions: tuple[Region, ...] = ()

    @property
    def requests(self) -> StudyRequests:
        """Return the requests that every point serves."""
        return self.experiment.requests

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that are studied, the simulator first."""
        usual = "both" if self.surrogate is not None else SIMULATOR
        wanted = self.options.model or usual
        return (SIMULATOR, SURROGATE) if wanted == "both" else (wanted,)


def study_parameters(options: SensitivityOptions) -> int:
    """Make the study that the options describe, and write and print the findings; return the exit code."""
    job = _job(options)
    if options.plan:
        print(_plan_words(job))
        return 0
    journal = _journal(job)
    _check_folder(job, journal)
    if options.part is not None:
        return _made_part(job, journal, options.part)
    with journal.held(options.resume):
        if not options.resume:
            shutil.rmtree(job.folder / "dataset.zarr", ignore_errors=True)
        study, failures = _investigated(job, journal)
        return _written(job, study, failures, device_text())


def _made_part(job: _Job, journal: Journal, part: RunPart) -> int:
    """Run a part of the points of the designs that depend on no run; return the exit code."""
    batches = batches_of(job.space, first_designs(_study_of(job)))
    plan = [(number, len(points), 1) for number, points in enumerate(batches)]
    total = sum(map(len, batches))
    simulating = progress.phase("simulating", len(part.of(total)), "points")

    def make(missing: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int], list[Entry]]]:
        for number, of_number in itertools.groupby(missing, lambda missing_run: missing_run[0]):
            places = [place for _, place in of_number]
            points = [batches[number][place] for place in places]
            yield number, places, entries_of(job.space, job.experiment, points)
            work.advance(len(points))

    then = f"{with_output(job.options.line(), FOLDER)} --resume"
    resumable = cli.resumable(job.options.command, journal.path)
    with journal.held(job.options.resume), resumable, simulating as work:
        made = make_part(journal, part, plan, then, make)
    if not job.options.quiet:
        render.show_answer(part.answer(journal.path, *made, "points of the first designs"))
    return 0


# --- input ----------------------------------------------------------------------------------------


def _job(options: SensitivityOptions) -> _Job:
    strategy = options.load()
    if options.model not in (None, "simulator") and options.surrogate is None:
        raise ConfigError(
            f"--model: {options.model} needs a surrogate; give its folder with --surrogate"
        )
    options.check_part(options.output)
    if options.part is not None and options.model == SURROGATE:
        raise ConfigError("--part: a surrogate makes no runs; leave one of --part and --model out")
    check_statistics(options.confidence, options.bootstrap, 100_000)
    sizes = Sizes(
        options.base, options.trajectories, options.gradients, options.levels, options.bases,
        options.pairs, random_state=options.random_state,
    )  # fmt: skip
    sizes.check()
    space = space_of(strategy).served(options.trace is not None)
    if not space.dimensions:
        raise strategy.refuse("parameters", "there are none, so nothing can be sensitive to them")
    requests = requests_of(
        options,
        options.command,
        lambda: workload_for(options.workload, [strategy], options.num_requests, rate=options.rate),
        [space.base],
        options.usual_seeds,
        usual_windows=options.usual_seeds,
    ).at_least(LEAST_SEEDS, "for indices, which are also taken on halves of them")
    classes = requests.classes
    usual = (*(name_in(name, slo_class) for name in OF_CLASS for slo_class in classes), *OF_RUN)
    metrics = metrics_for(options.metrics, classes) or usual
    names = tuple(dict.fromkeys((*metrics, *Valuation(strategy).names)))
    if requests.trace is not None:
        requests.trace.check_classes(names)
    experiment = Experiment(
        requests, names, targets_of(strategy), configs_per_batch=POINTS_PER_PART
    )
    return _Job(
        options, strategy, space, experiment, sizes, metrics,
        load_surrogate(options.surrogate) if options.surrogate is not None else None,
        Path(f"{options.folder}/{options.stem}" if options.output is None else options.output),
        regions_of(options.within, space.dimensions),
    )  # fmt: skip


def _plan_words(job: _Job) -> str:
    count = job.sizes.num_points(len(job.space.dimensions), len(job.regions))
    words = plan_words(count, len(job.requests.seeds), job.sizes)
    return f"{job.strategy.name}, {len(job.space.dimensions)} parameters. {words}"


def _most_runs(job: _Job) -> int:
    """Return the most runs that the designs need; points that two designs share count twice."""
    return job.sizes.num_points(len(job.space.dimensions), len(job.regions)) * len(
        job.requests.seeds
    )


def _journal(job: _Job) -> Journal:
    """Return the journal of the points of all designs, run on these requests and with these metrics."""
    texts = {"source", "folder", "description", "prior_findings", "deviations", "points", "search"}
    content = job.strategy.model_dump(mode="json", exclude=texts | {"parameter_paths"})
    path, names = job.folder / "record.jsonl", job.experiment.names
    if job.requests.trace is not None:
        content["profile"] = job.space.base.profile
    part = job.options.part
    return job.experiment.journal(path, "sensitivity", part, strategy=content, metrics=names)


def _check_folder(job: _Job, journal: Journal) -> None:
    """Refuse to replace results unless the options ask for that."""
    options, folder = job.options, job.folder
    cli.check_writable(folder, is_folder=True)
    files = journal.path, folder / "dataset.zarr"
    refuse_existing({"--output": files}, options.overwrite, options.resume)


# --- runs -----------------------------------------------------------------------------------------


def _study_of(job: _Job) -> SensitivityStudy:
    """Return the study without findings."""
    resampling = Resampling(job.options.confidence, job.options.bootstrap, job.sizes.random_state)
    trace = job.requests.trace
    runs = run_words(trace.about() if trace is not None else None, len(job.requests.seeds))
    return SensitivityStudy(
        job.space.dimensions, job.metrics, job.sizes, resampling, runs=runs, regions=job.regions
    )


def _investigated(job: _Job, journal: Journal) -> tuple[SensitivityStudy, dict[str, int]]:
    """Return the study with all its findings, and the numbers of runs that failed."""
    study = _study_of(job)
    valuation, failures = Valuation(job.strategy), dict[str, int]()
    total = job.sizes.num_points(len(job.space.dimensions), len(job.regions))
    stage = {"name": ""}

    def on_stage(name: str) -> None:
        stage["name"] = name

    def on_part(count: int) -> None:
        work.show(min(count, total), stage["name"])

    simulating = progress.phase("simulating", total, "points")
    with cli.resumable(job.options.command, journal.path), simulating as work:
        for model in job.models:
            response: Simulated | Predicted
            if model == SIMULATOR:
                response = Simulated(job.space, job.experiment, journal, on_part)
            else:
                assert job.surrogate is not None
                response = Predicted(job.space, job.surrogate, job.experiment.names)
            investigate(study, model, response, on_stage)
            if study.scores is None:
                rate(study, model, response, valuation)
            look_closer(study, model, response, on_stage)
            if isinstance(response, Simulated):
                failures = response.failures()
    return study, failures


# --- output ---------------------------------------------------------------------------------------


def _written(job: _Job, study: SensitivityStudy, failures: Mapping[str, int], device: str) -> int:
    """Write the files, print the findings, and return the exit code."""
    folder = job.folder
    first, *_, last = job.requests.seeds
    which = f"seeds {first} to {last}, drawn by {job.requests.stream}"
    if job.options.trace is not None:
        which = f"{job.options.trace}, {study.runs.many} {first} to {last}"
    about = f"{_plan_words(job)} Requests of {which}."
    findings = findings_of(
        study, job.strategy.name, failures, _most_runs(job), about,
        cluster_line({job.strategy.name: job.space.base}, job.space.settings),
    )  # fmt: skip

    def write() -> list[Path]:
        """Write dataset, summary and pictures; return their paths."""
        files = [folder / "dataset.zarr", folder / "summary.md"]
        with cli.writing(folder):
            _save(job, study, files[0], device)
            write_text(files[1], render.markdown(findings, f"Sensitivity of {job.strategy.name}"))
            for picture in () if job.options.no_figures else findings.pictures:
                files.append(folder / f"{picture.name}.png")
                outputs.draw(picture, files[-1])
        return files

    outputs.show(findings, write, job.options)
    if not any(indices.sobol for indices in study.findings.values()):
        cli.say(job.options.command, "no metric has indices; see the summary for why")
        return cli.EXIT_UNSUPPORTED
    return 0


def _save(job: _Job, study: SensitivityStudy, path: Path, device: str) -> None:
    config = job.space.base
    spec_text = yaml.safe_dump(job.requests.source.about())
    provenance = Provenance(
        spec_text=spec_text,
        config=all_values(config),
        seeds=job.requests.seeds,
        profile=config.profile,
    )
    about = {
        "strategy": job.strategy.name,
        "random_stream": job.requests.stream,
        "device": device,
        "surrogate": job.options.surrogate or "",
    }
    save(to_dataset(study, provenance, about), path)
