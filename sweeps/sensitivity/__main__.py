"""`python -m sweeps.sensitivity STRATEGY`: which parameters matter, for which metric and class."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.flags import trace_flags
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.files.overwriting import refuse_existing
from sweeps.sensitivity.flags import FOLDER, NAME, NUM_SEEDS, parser

if TYPE_CHECKING:
    from blis_jax.files.journal import Journal
    from blis_jax.workload.source import RequestSource
    from sweeps.sensitivity.design import Sizes
    from sweeps.sensitivity.model import MeanPredictor
    from sweeps.sensitivity.regions import Region
    from sweeps.sensitivity.study import SensitivityStudy
    from sweeps.strategies.file import Strategy
    from sweeps.strategies.space import Space

LEAST_SEEDS = 4
FORMAT = 1
OF_CLASS = ("ttft_p99_ms", "e2e_p99_ms")
OF_RUN = ("tokens_per_sec", "reject_rate")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _study, arguments)


@dataclass(frozen=True)
class _Job:
    """What is to be done, checked."""

    given: Mapping[str, Any]
    strategy: Strategy
    space: Space
    spec: RequestSource
    seeds: tuple[int, ...]
    stream: str
    sizes: Sizes
    metrics: tuple[str, ...]
    names: tuple[str, ...]  # metrics and what the score needs
    surrogate: MeanPredictor | None
    folder: Path
    regions: tuple[Region, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models looked at, the simulator first."""
        from sweeps.sensitivity.model import SIMULATOR, SURROGATE

        usual = "both" if self.surrogate is not None else SIMULATOR
        wanted = self.given.get("model", usual)
        return (SIMULATOR, SURROGATE) if wanted == "both" else (wanted,)


def _study(arguments: Sequence[str] | None) -> int:
    given = parser().given(sys.argv[1:] if arguments is None else arguments)
    prepare_backend(use_cache="no_cache" not in given)
    job = _job(given)
    if "plan" in given:
        print(_plan_words(job))
        return 0
    journal = _journal(job)
    _check_folder(job, journal)
    from blis_jax.commands.sweep.execution import device_text

    with journal.held("resume" in given):
        if "resume" not in given:
            shutil.rmtree(job.folder / "dataset.zarr", ignore_errors=True)
        study, failures = _investigated(job, journal)
        return _written(job, study, failures, device_text())


# --- input ----------------------------------------------------------------------------------------


def _job(given: Mapping[str, Any]) -> _Job:
    from sweeps.runs.options import classes_of, metrics_for, trace_in
    from sweeps.search.objectives import Valuation
    from sweeps.sensitivity.design import Sizes
    from sweeps.sensitivity.model import load_surrogate
    from sweeps.sensitivity.regions import regions_of
    from sweeps.strategies.file import list_library, load_strategy
    from sweeps.strategies.space import space_of

    if given.get("strategy") is None:
        raise ConfigError(
            f"no strategy is given; give one of {', '.join(list_library())}, or a .yaml file"
        )
    _check_models(given)
    _check_statistics(given)
    names = ("base", "trajectories", "gradients", "levels", "bases", "pairs", "random_state")
    sizes = Sizes(**{name: given[name] for name in names if name in given})
    sizes.check()
    strategy = load_strategy(given["strategy"])
    space = space_of(strategy)
    if not space.dimensions:
        raise strategy.refuse("parameters", "there are none, so nothing can be sensitive to them")
    spec, seeds, stream = _requests(given, strategy, space)
    classes = classes_of(spec)
    usual = (*(f"{name}[{one}]" for name in OF_CLASS for one in classes), *OF_RUN)
    metrics = metrics_for(given, classes) or usual
    trace = trace_in(spec)
    if trace is not None:
        trace.check_classes((*metrics, *Valuation(strategy).names))
    return _Job(
        given, strategy, space, spec, seeds, stream, sizes, metrics,
        tuple(dict.fromkeys((*metrics, *Valuation(strategy).names))),
        load_surrogate(given["surrogate"]) if "surrogate" in given else None,
        Path(given.get("output", str(Path(FOLDER) / Path(given["strategy"]).stem))),
        regions_of(given.get("within", "best"), space.dimensions),
    )  # fmt: skip


def _requests(
    given: Mapping[str, Any], strategy: Strategy, space: Space
) -> tuple[RequestSource, tuple[int, ...], str]:
    """Where the requests come from, the numbers of the runs, and the stream; a trace comes in windows."""
    from blis_jax.commands.flags.seed_options import given_seeds
    from blis_jax.traces.source import STREAM
    from sweeps.runs.bench import check_seeds, workload_of

    trace = trace_flags.study_source(given, NAME, usual_windows=NUM_SEEDS)
    if trace is not None:
        asked = given_seeds(given, "reference")
        return trace, _enough(trace.seeds(asked, [space.base]), "--trace-windows"), STREAM
    seeds, stream = _seeds(given), given.get("rng", "reference")
    check_seeds(seeds, stream)
    return workload_of(strategy, given.get("num_requests", space.num_requests)), seeds, stream


def _check_models(given: Mapping[str, Any]) -> None:
    if given.get("model", "simulator") != "simulator" and "surrogate" not in given:
        raise ConfigError(
            f"--model: {given['model']} needs a surrogate; give its folder with --surrogate"
        )


def _check_statistics(given: Mapping[str, Any]) -> None:
    confidence, resamples = given.get("confidence", 0.95), given.get("bootstrap", 1000)
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: got {confidence:g}, allowed is 0.5 up to below 1")
    if not 99 <= resamples <= 100_000:
        raise ConfigError(f"--bootstrap: got {resamples}, allowed is 99 to 100000 resamples")


def _seeds(given: Mapping[str, Any]) -> tuple[int, ...]:
    from sweeps.runs.options import seeds_of

    usual = {} if "seeds" in given else {"num_seeds": given.get("num_seeds", NUM_SEEDS)}
    return _enough(seeds_of({**given, **usual}), "--seeds")


def _enough(seeds: tuple[int, ...], option: str) -> tuple[int, ...]:
    if len(seeds) < LEAST_SEEDS:
        raise ConfigError(
            f"{option}: got {len(seeds)}, allowed are {LEAST_SEEDS} or more, since indices are also "
            "taken on halves of them"
        )
    return seeds


def _plan_words(job: _Job) -> str:
    from sweeps.sensitivity.report import plan_words

    count = job.sizes.num_points(len(job.space.dimensions), len(job.regions))
    words = plan_words(count, len(job.seeds), job.sizes)
    return f"{job.strategy.name}, {len(job.space.dimensions)} parameters. {words}"


def _journal(job: _Job) -> Journal:
    """The points that were run: of any design, on these requests and with these metrics."""
    from blis_jax.files.journal import Journal
    from sweeps.runs.bench import targets_of
    from sweeps.search.loop import workload_content

    texts = {"source", "folder", "description", "prior_findings", "deviations", "points", "search"}
    content = job.strategy.model_dump(mode="json", exclude=texts | {"parameter_paths"})
    targets = {name: dict(limits) for name, limits in targets_of(job.strategy).items()}
    parts = {
        "strategy": content, "workload": workload_content(job.spec), "seeds": job.seeds,
        "stream": job.stream, "targets": targets, "metrics": job.names, "format": FORMAT,
    }  # fmt: skip
    return Journal(job.folder / "record.jsonl", "sensitivity", parts)


def _check_folder(job: _Job, journal: Journal) -> None:
    """Refuses to replace results, unless asked to."""
    given, folder = job.given, job.folder
    cli.check_writable(folder, is_folder=True)
    refuse_existing(given, {"--output": (journal.path, folder / "dataset.zarr")}, can_resume=True)


# --- runs -----------------------------------------------------------------------------------------


def _investigated(job: _Job, journal: Journal) -> tuple[SensitivityStudy, dict[str, int]]:
    """The study with all its findings, and the runs that failed."""
    from blis_jax.reports.run_words import run_words
    from sweeps.search.objectives import Valuation
    from sweeps.sensitivity.indices import Resampling
    from sweeps.sensitivity.model import SIMULATOR, Predicted, Simulated
    from sweeps.sensitivity.study import SensitivityStudy, investigate, look_closer, rate

    resampling = Resampling(
        job.given.get("confidence", 0.95), job.given.get("bootstrap", 1000), job.sizes.random_state
    )
    runs = run_words(job.spec.about() if "trace" in job.given else None, len(job.seeds))
    study = SensitivityStudy(
        job.space.dimensions, job.metrics, job.sizes, resampling, runs=runs, regions=job.regions
    )
    valuation, failures = Valuation(job.strategy), dict[str, int]()
    total = job.sizes.num_points(len(job.space.dimensions), len(job.regions))
    work, stage = progress.begin("simulating", total, "points"), {"name": ""}

    def on_stage(name: str) -> None:
        stage["name"] = name

    def on_part(count: int) -> None:
        work.show(min(count, total), stage["name"])

    try:
        for model in job.models:
            if model == SIMULATOR:
                simulated = Simulated(job.space, _bench(job), journal, on_part)
                investigate(study, model, simulated, on_stage)
                rate(study, model, simulated, valuation)
                look_closer(study, model, simulated, on_stage)
                failures = simulated.failures()
            else:
                assert job.surrogate is not None
                predicted = Predicted(job.space, job.surrogate, job.names)
                investigate(study, model, predicted, on_stage)
                if study.scores is None:
                    rate(study, model, predicted, valuation)
                look_closer(study, model, predicted, on_stage)
    except KeyboardInterrupt:
        cli.say(NAME, f"{journal.path} has what was done; --resume goes on from there")
        raise
    finally:
        work.clear()
    return study, failures


def _bench(job: _Job) -> Any:
    from sweeps.runs.bench import Bench, measure_of, targets_of
    from sweeps.sensitivity.model import POINTS_PER_PART

    measure = measure_of(targets_of(job.strategy), job.spec)
    return Bench(job.spec, job.seeds, job.stream, job.names, measure, POINTS_PER_PART)


# --- output ---------------------------------------------------------------------------------------


def _written(job: _Job, study: SensitivityStudy, failures: Mapping[str, int], device: str) -> int:
    """The files and the words; the exit code."""
    from sweeps.sensitivity.report import summary

    folder = job.folder
    first, *_, last = job.seeds
    which = f"seeds {first} to {last}, drawn by {job.stream}"
    if "trace" in job.given:
        which = f"{job.given['trace']}, {study.runs.many} {first} to {last}"
    about = f"{_plan_words(job)} Requests of {which}."
    text = summary(study, f"Sensitivity of {job.strategy.name}", about, failures)
    text = study.runs.in_text(text)
    files = [folder / "dataset.zarr", folder / "summary.md"]
    with cli.writing(folder):
        _save(job, study, files[0], device)
        with replacing(files[1]) as written:
            written.write_text(text, encoding="utf-8")
    if "no_figures" not in job.given:
        with cli.writing(folder):
            files += _drawn(job, study)
    if "quiet" not in job.given:
        print(text)
        print(f"Written: {', '.join(map(str, files))}")
    if not any(found.sobol for found in study.findings.values()):
        cli.say(NAME, "no metric has indices; see the summary for why")
        return cli.EXIT_UNSUPPORTED
    return 0


def _save(job: _Job, study: SensitivityStudy, path: Path, device: str) -> None:
    import yaml

    from blis_jax.cluster.setting_values import all_values
    from blis_jax.results.dataset import Provenance, save
    from sweeps.sensitivity.store import to_dataset

    config = job.space.base
    spec_text = yaml.safe_dump(job.spec.about())
    provenance = Provenance(
        spec_text=spec_text,
        config=all_values(config),
        seeds=job.seeds,
        profile=config.profile,
    )
    about = {
        "strategy": job.strategy.name,
        "random_stream": job.stream,
        "device": device,
        "surrogate": str(job.given.get("surrogate", "")),
    }
    save(to_dataset(study, provenance, about), path)


def _drawn(job: _Job, study: SensitivityStudy) -> list[Path]:
    from sweeps.sensitivity import figure as figures
    from sweeps.sensitivity.model import SIMULATOR, SURROGATE

    strategy = Path(job.strategy.source).stem
    made = []
    for model in study.findings:
        made += figures.draw(study, model, job.folder, strategy)
    if len(study.findings) > 1:
        path = job.folder / "agreement.png"
        if figures.draw_agreement(study, SIMULATOR, SURROGATE, path, strategy):
            made.append(path)
    return made


if __name__ == "__main__":
    sys.exit(main())
