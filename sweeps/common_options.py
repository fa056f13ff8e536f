"""Options and steps that commands share which run points or arms on common seeds and can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import cli, cluster_flags
from blis_jax.cli import Flag, Parser
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.arms import Arm
    from sweeps.comparison import Setting
    from sweeps.journal import Journal
    from sweeps.measured import KeptRuns
    from sweeps.paired import Inference

FOLDER = "out"
FIRST_SEED, NUM_SEEDS = 42, 20
INSTANCES = cluster_flags.INSTANCES._replace(
    help="YAML or JSON list of groups of instances, in place of what the strategies have"
)
RNG = Flag(
    "rng",
    cli.one_of("reference", "jax"),
    "reference",
    "NAME",
    "who draws the requests: reference as BLIS does, or jax as blis_jax.sweep does",
)
REQUESTS = (
    Flag("workload", str, None, "NAME", "built-in workload or .yaml file (default: the arms')"),
    Flag("seeds", str, None, "A,B,…", "seeds of the requests"),
    Flag("num-seeds", cli.whole, NUM_SEEDS, "N", "so many seeds instead, one after the other"),
    Flag("first-seed", cli.whole, FIRST_SEED, "N", "the first of them"),
    RNG,
    Flag("num-requests", cli.at_least(1), None, "N", "requests in place of the workload's number"),
    Flag(
        "targets",
        str,
        None,
        "LIST",
        "SLO targets, such as critical.ttft_ms=80,standard.ttft_ms=250 (default: the file's)",
    ),
)
STATISTICS = (
    Flag("metrics", str, None, "LIST", "metrics to compare, each taken of every class"),
    Flag("confidence", cli.number, 0.95, "P", "of intervals and verdicts"),
    Flag("bootstrap", cli.whole, 9999, "N", "resamples of the seeds, from 15 seeds on"),
    Flag("random-state", cli.at_least(0), 0, "N", "seed of the resampling"),
)
OUTPUT = (
    Flag("output", str, None, "PATH", "result to write, .json"),
    Flag("figure", str, None, "PATH", "PNG to write, or none (default: beside the result)"),
)
SWITCHES = {
    "resume": "go on from the record that lies beside the output",
    "overwrite": "replace an existing output",
    "quiet": "print nothing but errors",
    "no-cache": "compile again instead of using programs kept from earlier runs",
}


@dataclass(frozen=True)
class Paths:
    """Where the result, the record of the runs and the figure go."""

    result: Path
    record: Path
    figure: Path | None


def add_common(parser: Parser) -> None:
    """Options on instances, requests, statistics and output."""
    parser.add_flags("cluster", (INSTANCES,))
    parser.add_flags("requests", REQUESTS)
    parser.add_flags("statistics", STATISTICS)
    parser.add_flags("output", OUTPUT)
    add_switches(parser)


def add_switches(parser: Parser) -> None:
    """What is the same for every command that writes a result."""
    parser.add_switches("switches", SWITCHES)


def paths_of(given: Mapping[str, Any], stem: str) -> Paths:
    """The output's paths, checked."""
    result, figure = cli.result_paths(given, Path(FOLDER) / f"{stem}.json")
    return Paths(result, result.with_suffix(".jsonl"), figure)


def check_existing(given: Mapping[str, Any], paths: Paths, journal: Journal) -> None:
    """Refuses to replace a result, unless asked to; a record to go on from must be of these runs."""
    if "overwrite" in given and "resume" in given:
        raise ConfigError("--overwrite and --resume contradict each other; give one of them")
    if "resume" in given:
        journal.lines()
        return
    if "overwrite" in given:
        paths.record.unlink(missing_ok=True)
        return
    for path in (paths.record, paths.result, paths.figure):
        if path is not None and path.exists():
            raise ConfigError(
                f"{path} exists; give --resume to go on from it, --overwrite to replace it, or "
                "another --output"
            )


def read_seeds(text: str) -> tuple[int, ...]:
    """The seeds in `A,B,…`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--seeds: {text!r} is not a list of whole numbers such as 42,43,44"
        ) from None


def seeds_of(given: Mapping[str, Any]) -> tuple[int, ...]:
    """The seeds; `check_seeds` looks at their range."""
    if "seeds" in given:
        for other in ("num_seeds", "first_seed"):
            if other in given:
                name = other.replace("_", "-")
                raise ConfigError(f"--{name}: --seeds is given too; give one of them")
        return read_seeds(given["seeds"])
    count, first = given.get("num_seeds", NUM_SEEDS), given.get("first_seed", FIRST_SEED)
    if not 1 <= count <= 100_000:
        raise ConfigError(f"--num-seeds: got {count}, allowed is 1 to 100000")
    return tuple(range(first, first + count))


def check_statistics(given: Mapping[str, Any]) -> None:
    """Refuses confidences and resamplings that mean nothing."""
    confidence, resamples = given.get("confidence", 0.95), given.get("bootstrap", 9999)
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: got {confidence:g}, allowed is 0.5 up to below 1")
    if not 99 <= resamples <= 1_000_000:
        raise ConfigError(f"--bootstrap: got {resamples}, allowed is 99 to 1000000 resamples")


def inference_of(given: Mapping[str, Any]) -> Inference:
    """Confidence and resampling."""
    from sweeps.paired import Inference

    return Inference(
        given.get("confidence", 0.95), given.get("bootstrap", 9999), given.get("random_state", 0)
    )


def workload_for(given: Mapping[str, Any], arms: Sequence[Arm]) -> tuple[WorkloadSpec, str]:
    """The workload of all arms and its name: the one given, else that of the first arm with a file."""
    from sweeps.bench import workload_from, workload_of
    from sweeps.space import space_of

    count = given.get("num_requests")
    if "workload" in given:
        return workload_from(given["workload"], "--workload", num_requests=count), given["workload"]
    strategies = [arm.strategy for arm in arms if arm.strategy is not None]
    if not strategies:
        return workload_from("mixed", num_requests=count), "mixed"
    first = strategies[0]
    name = first.workload if isinstance(first.workload, str) else f"that of {first.name}"
    spec = workload_of(first, count or space_of(first).num_requests)
    return spec, name


def classes_of(spec: WorkloadSpec) -> tuple[str, ...]:
    """The SLO classes of a workload, the most urgent first."""
    from blis_jax.sweep_measure import CLASSES

    present = {client.slo_class or "default" for client in spec.clients}
    order = [name for name in CLASSES if name != "default"] + ["default"]
    return tuple(name for name in order if name in present)


def metrics_for(given: Mapping[str, Any], classes: Sequence[str]) -> tuple[str, ...] | None:
    """The metrics that are asked for, without a class of all requests and of each; None if none are."""
    from blis_jax.scalar_metrics import lookup
    from sweeps.metrics import found, our_name

    if "metrics" not in given:
        return None
    names: list[str] = []
    for text in given["metrics"].split(","):
        try:
            metric = found(text.strip())
        except ConfigError as error:
            raise ConfigError(f"--metrics: {error}") from None
        name = our_name(text.strip())
        names.append(name)
        if metric.has_classes and lookup(name)[1] is None:
            names += [f"{name}[{slo_class}]" for slo_class in classes]
    return tuple(dict.fromkeys(names))


def targets_for(given: Mapping[str, Any], arms: Sequence[Arm]) -> Mapping[str, Mapping[str, float]]:
    """The SLO targets that are given, else those of the first arm whose file has some."""
    from blis_jax.sweep_measure import DEFAULT_TARGETS, read_targets
    from sweeps.bench import targets_of

    if "targets" in given:
        return read_targets([part for part in given["targets"].split(",") if part.strip()])
    for arm in arms:
        if arm.strategy is not None and arm.strategy.targets is not None:
            return targets_of(arm.strategy)
    return DEFAULT_TARGETS


def journal_of(
    kind: str, paths: Paths, spec: WorkloadSpec, setting: Setting, names: Sequence[str]
) -> Journal:
    """The record of the runs: of any configurations, on these requests and with these metrics."""
    from sweeps.comparison import FORMAT
    from sweeps.journal import Journal
    from sweeps.search import identity_of, workload_content

    targets = {name: dict(limits) for name, limits in setting.targets.items()}
    content = [workload_content(spec), setting.seeds, setting.stream, targets]
    identity = identity_of([*content, sorted(names), FORMAT])
    return Journal(paths.record, identity, kind, "workload, seeds, stream, targets or metrics")


def kept_runs(
    setting: Setting,
    spec: WorkloadSpec,
    names: Sequence[str],
    journal: Journal | None,
    progress: Progress,
) -> KeptRuns:
    """What runs the arms; `names` are all metrics that are needed."""
    from sweeps.bench import Bench, measure_of
    from sweeps.measured import KeptRuns, Recorder

    measure = measure_of(setting.targets, spec)
    bench = Bench(spec, setting.seeds, setting.stream, names, measure)
    recorder = Recorder(bench.names, measure, setting.classes)
    return KeptRuns(bench, recorder, journal, progress.begin)


class Progress:
    """Which configuration is running, of how many."""

    def __init__(self, total: int) -> None:
        self.line, self.count = cli.Progress(total), 0

    def begin(self, name: str) -> None:
        """Show the next configuration."""
        self.count += 1
        self.line.show(min(self.count, self.line.total), name)

    def clear(self) -> None:
        """Remove the line."""
        self.line.clear()
