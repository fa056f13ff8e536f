"""`python -m sweeps.sensitivity STRATEGY`: which parameters matter, for which metric and class."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import cli
from blis_jax.atomic_write import replacing
from blis_jax.backend import prepare_backend
from blis_jax.cli import Flag, Parser
from blis_jax.errors import ConfigError
from sweeps.common_options import RNG

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.journal import Journal
    from sweeps.sensitivity_design import Sizes
    from sweeps.sensitivity_model import MeanPredictor
    from sweeps.sensitivity_study import Study
    from sweeps.space import Space
    from sweeps.strategy_file import Strategy

NAME = "sweeps.sensitivity"
FOLDER = "out/sensitivity"
NUM_SEEDS, LEAST_SEEDS = 8, 4
FORMAT = 1
OF_CLASS = ("ttft_p99_ms", "e2e_p99_ms")
OF_RUN = ("tokens_per_sec", "reject_rate")

_DESCRIPTION = """\
Say which parameters of a strategy matter, for every metric and class: Sobol indices with bootstrap
intervals, Morris screening, derivative-based measures, effects of one and of two parameters, and
where the best points are; on the simulator, on a surrogate, or on both with a comparison. STRATEGY
is a name of the library (sweeps/strategies) or the path of a .yaml file.
"""
_EXAMPLES = """\
examples:
  the space of the ledger's iteration 8, on 8 common seeds:
    %(prog)s iter08_token_budget

  how much that would simulate:
    %(prog)s iter08_token_budget --plan

  a strategy of your own, more rows, two metrics for every class:
    %(prog)s mine.yaml --base 512 --metrics ttft_p99_ms,tpot_mean_ms --output out/mine

  simulator and surrogate side by side:
    %(prog)s iter08_token_budget --surrogate out/surrogate
"""
_WHAT = (
    Flag("metrics", str, None, "LIST", "metrics, each taken of every class (default: see below)"),
    Flag("surrogate", str, None, "FOLDER", "a surrogate to look at as well"),
    Flag(
        "model",
        cli.one_of("simulator", "surrogate", "both"),
        None,
        "NAME",
        "simulator, surrogate or both (default: both if a surrogate is given)",
    ),
)
_SIZES = (
    Flag("base", cli.whole, 128, "N", "rows of the Saltelli design, a power of two"),
    Flag("trajectories", cli.whole, 20, "N", "of Morris"),
    Flag("gradients", cli.whole, 64, "N", "points that derivatives are taken at"),
    Flag("levels", cli.whole, 9, "N", "of a parameter in its effect"),
    Flag("bases", cli.whole, 16, "N", "points that an effect is averaged over"),
    Flag("pairs", cli.whole, 3, "N", "pairs of parameters with a map"),
    Flag("random-state", cli.whole, 0, "N", "seed of designs and resampling"),
    Flag("confidence", cli.number, 0.95, "P", "of intervals"),
    Flag("bootstrap", cli.whole, 1000, "N", "resamples of the rows"),
)
_REQUESTS = (
    Flag("seeds", str, None, "A,B,…", "seeds of the requests"),
    Flag("num-seeds", cli.whole, NUM_SEEDS, "N", "so many seeds instead, one after the other"),
    Flag("first-seed", cli.whole, 42, "N", "the first of them"),
    Flag("num-requests", cli.at_least(1), None, "N", "requests in place of the workload's number"),
    RNG,
)
_OUTPUT = (Flag("output", str, None, "FOLDER", f"results (default: {FOLDER}/STRATEGY)"),)
_SWITCHES = {
    "plan": "say how much would be simulated, and stop",
    "resume": "go on from the record in the output folder, also with larger designs",
    "overwrite": "replace an existing output",
    "no-figures": "draw no figures",
    "quiet": "print nothing but errors",
    "no-cache": "compile again instead of using programs kept from earlier runs",
}


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("strategy", metavar="STRATEGY", nargs="?", help="name or path")
    usual = "TTFT P99 and E2E P99 of every class, throughput, reject rate"
    what = tuple(flag._replace(help=flag.help.replace("see below", usual)) for flag in _WHAT)
    parser.add_flags("what", what)
    parser.add_flags("sizes", _SIZES)
    parser.add_flags("requests", _REQUESTS)
    parser.add_flags("output", _OUTPUT)
    parser.add_switches("switches", _SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _study, arguments)


@dataclass(frozen=True)
class _Job:
    """What is to be done, checked."""

    given: Mapping[str, Any]
    strategy: Strategy
    space: Space
    spec: WorkloadSpec
    seeds: tuple[int, ...]
    stream: str
    sizes: Sizes
    metrics: tuple[str, ...]
    names: tuple[str, ...]  # metrics and what the score needs
    surrogate: MeanPredictor | None
    folder: Path

    @property
    def models(self) -> tuple[str, ...]:
        """The models looked at, the simulator first."""
        from sweeps.sensitivity_model import SIMULATOR, SURROGATE

        usual = "both" if self.surrogate is not None else SIMULATOR
        wanted = self.given.get("model", usual)
        return (SIMULATOR, SURROGATE) if wanted == "both" else (wanted,)


def _study(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    prepare_backend(use_cache="no_cache" not in given)
    job = _job(given)
    if "plan" in given:
        print(_plan_words(job))
        return 0
    journal = _journal(job)
    _check_folder(job, journal)
    with cli.writing(job.folder):
        job.folder.mkdir(parents=True, exist_ok=True)
    from blis_jax.sweep_run import device_text

    study, failures = _investigated(job, journal)
    return _written(job, study, failures, device_text())


# --- input ----------------------------------------------------------------------------------------


def _job(given: Mapping[str, Any]) -> _Job:
    from sweeps.bench import check_seeds, workload_of
    from sweeps.common_options import classes_of, metrics_for
    from sweeps.objectives import Valuation
    from sweeps.sensitivity_design import Sizes
    from sweeps.sensitivity_model import load_surrogate
    from sweeps.space import space_of
    from sweeps.strategy_file import list_library, load_strategy

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
    spec = workload_of(strategy, given.get("num_requests", space.num_requests))
    seeds, stream = _seeds(given), given.get("rng", "reference")
    check_seeds(seeds, stream)
    classes = classes_of(spec)
    usual = (*(f"{name}[{one}]" for name in OF_CLASS for one in classes), *OF_RUN)
    metrics = metrics_for(given, classes) or usual
    return _Job(
        given, strategy, space, spec, seeds, stream, sizes, metrics,
        tuple(dict.fromkeys((*metrics, *Valuation(strategy).names))),
        load_surrogate(given["surrogate"]) if "surrogate" in given else None,
        Path(given.get("output", str(Path(FOLDER) / Path(given["strategy"]).stem))),
    )  # fmt: skip


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
    from sweeps.common_options import seeds_of

    usual = {} if "seeds" in given else {"num_seeds": given.get("num_seeds", NUM_SEEDS)}
    seeds = seeds_of({**given, **usual})
    if len(seeds) < LEAST_SEEDS:
        raise ConfigError(
            f"--seeds: got {len(seeds)}, allowed are {LEAST_SEEDS} or more, since indices are also "
            "taken on halves of them"
        )
    return seeds


def _plan_words(job: _Job) -> str:
    from sweeps.sensitivity_report import plan_words

    count = job.sizes.num_points(len(job.space.dimensions))
    words = plan_words(count, len(job.seeds), job.sizes)
    return f"{job.strategy.name}, {len(job.space.dimensions)} parameters. {words}"


def _journal(job: _Job) -> Journal:
    """The points that were run: of any design, on these requests and with these metrics."""
    from sweeps.bench import targets_of
    from sweeps.journal import Journal
    from sweeps.search import identity_of, workload_content

    texts = {"source", "folder", "description", "prior_findings", "deviations", "points", "search"}
    content = job.strategy.model_dump(mode="json", exclude=texts | {"parameter_paths"})
    targets = {name: dict(limits) for name, limits in targets_of(job.strategy).items()}
    parts = [content, workload_content(job.spec), job.seeds, job.stream, targets]
    what = "strategy, workload, seeds, stream or metrics"
    identity = identity_of([*parts, job.names, FORMAT])
    return Journal(job.folder / "record.jsonl", identity, "sensitivity", what)


def _check_folder(job: _Job, journal: Journal) -> None:
    """Refuses to replace results, unless asked to."""
    given, folder = job.given, job.folder
    cli.check_writable(folder, is_folder=True)
    if "overwrite" in given and "resume" in given:
        raise ConfigError("--overwrite and --resume contradict each other; give one of them")
    if "resume" in given:
        journal.lines()
    elif "overwrite" in given:
        journal.path.unlink(missing_ok=True)
        shutil.rmtree(folder / "dataset.zarr", ignore_errors=True)
    elif journal.path.exists() or (folder / "dataset.zarr").exists():
        raise ConfigError(
            f"{folder} has results; give --resume to go on from them, --overwrite to replace them, or "
            "another --output"
        )


# --- runs -----------------------------------------------------------------------------------------


def _investigated(job: _Job, journal: Journal) -> tuple[Study, dict[str, int]]:
    """The study with all its findings, and the runs that failed."""
    from sweeps.objectives import Valuation
    from sweeps.sensitivity_indices import Resampling
    from sweeps.sensitivity_model import SIMULATOR, Predicted, Simulated
    from sweeps.sensitivity_study import Study, investigate, rate

    resampling = Resampling(
        job.given.get("confidence", 0.95), job.given.get("bootstrap", 1000), job.sizes.random_state
    )
    study = Study(job.space.dimensions, job.metrics, job.sizes, resampling)
    valuation, failures = Valuation(job.strategy), dict[str, int]()
    total = job.sizes.num_points(len(job.space.dimensions))
    progress, stage = cli.Progress(total), {"name": ""}

    def on_stage(name: str) -> None:
        stage["name"] = name

    def on_part(count: int) -> None:
        if "quiet" not in job.given:
            progress.show(min(count, total), f"points; {stage['name']}")

    try:
        for model in job.models:
            if model == SIMULATOR:
                simulated = Simulated(job.space, _bench(job), journal, on_part)
                investigate(study, model, simulated, on_stage)
                rate(study, model, simulated, valuation)
                failures = simulated.failures()
            else:
                assert job.surrogate is not None
                predicted = Predicted(job.space, job.surrogate, job.names)
                investigate(study, model, predicted, on_stage)
                if study.scores is None:
                    rate(study, model, predicted, valuation)
    except KeyboardInterrupt:
        cli.say(NAME, f"{journal.path} has what was done; --resume goes on from there")
        raise
    finally:
        progress.clear()
    return study, failures


def _bench(job: _Job) -> Any:
    from sweeps.bench import Bench, measure_of, targets_of
    from sweeps.sensitivity_model import POINTS_PER_PART

    measure = measure_of(targets_of(job.strategy), job.spec)
    return Bench(job.spec, job.seeds, job.stream, job.names, measure, POINTS_PER_PART)


# --- output ---------------------------------------------------------------------------------------


def _written(job: _Job, study: Study, failures: Mapping[str, int], device: str) -> int:
    """The files and the words; the exit code."""
    from sweeps.sensitivity_report import summary

    folder = job.folder
    first, *_, last = job.seeds
    run_words = f"{_plan_words(job)} Requests of seeds {first} to {last}, drawn by {job.stream}."
    text = summary(study, f"Sensitivity of {job.strategy.name}", run_words, failures)
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


def _save(job: _Job, study: Study, path: Path, device: str) -> None:
    import yaml

    from blis_jax.results import Provenance, save
    from blis_jax.setting_values import all_values
    from sweeps.sensitivity_store import to_dataset

    config = job.space.base
    spec_text = yaml.safe_dump(job.spec.model_dump(mode="json", exclude_defaults=True))
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


def _drawn(job: _Job, study: Study) -> list[Path]:
    from sweeps import sensitivity_figure as figures
    from sweeps.sensitivity_model import SIMULATOR, SURROGATE

    title = f"Sensitivity of {job.strategy.name}"
    made = []
    for model in study.findings:
        words = title + (", surrogate" if model == SURROGATE else "")
        made += figures.draw(study, model, job.folder, words)
    if len(study.findings) > 1:
        path = job.folder / "agreement.png"
        if figures.draw_agreement(study, SIMULATOR, SURROGATE, path, title):
            made.append(path)
    return made


if __name__ == "__main__":
    sys.exit(main())
