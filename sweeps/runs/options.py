"""Options and steps that commands share which run points or arms on common seeds and can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import cluster_flags, seed_options, trace_flags
from blis_jax.commands.flags.shared_options import switches
from blis_jax.errors import ConfigError
from blis_jax.files.overwriting import refuse_existing

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.files.journal import Journal
    from blis_jax.statistics.intervals import Inference
    from blis_jax.traces.source import TraceSource
    from blis_jax.workload.source import RequestSource
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.compare.document import ComparedSetting
    from sweeps.runs.measured import KeptRuns
    from sweeps.strategies.arms import Arm

FOLDER = "out"
NUM_SEEDS = 20
INSTANCES = cluster_flags.INSTANCES._replace(
    help="YAML or JSON list of groups of instances, in place of what the strategies have"
)
RNG = Flag(
    "rng",
    cli.one_of("reference", "jax"),
    "reference",
    "NAME",
    "who draws the requests: reference draws those of BLIS, jax those of blis_jax.sweep",
)
REQUESTS = (
    Flag("workload", str, None, "NAME", "built-in workload or .yaml file (default: the arms')"),
    *seed_options.seed_flags(f"default: {NUM_SEEDS}"),
    RNG,
    Flag("num-requests", cli.at_least(1), None, "N", "requests in place of the workload's number"),
    Flag(
        "targets",
        str,
        None,
        "LIST",
        "SLO targets, such as critical.ttft_ms=80,standard.ttft_ms=250 (default: the file's)",
        is_repeated=True,
    ),
)
STATISTICS = (
    Flag("metrics", str, None, "LIST", "metrics to compare, each taken of every class"),
    Flag("confidence", cli.number, 0.95, "P", "confidence of intervals and verdicts"),
    Flag("bootstrap", cli.whole, 9999, "N", "resamples of the seeds, from 15 seeds on"),
    Flag("random-state", cli.at_least(0), 0, "N", "seed of the resampling"),
)
BLOCK = Flag(
    "block-s", cli.number, None, "S", "seconds of the blocks of arrivals that the intervals of one trace "
    "resample (default: by how long differences stay alike)",
)  # fmt: skip
OUTPUT = (
    Flag("output", str, None, "PATH", "result to write, .json"),
    Flag("figure", str, None, "PATH", "PNG to write, or none (default: beside the result)"),
)
SWITCHES = {
    "resume": "continue from the record beside the output",
    "overwrite": "replace an existing output",
    **switches("quiet", "no-cache"),
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
    parser.add_flags("trace", trace_flags.STUDY_FLAGS)
    parser.add_flags("statistics", (*STATISTICS, BLOCK))
    parser.add_flags("output", OUTPUT)
    add_switches(parser)


def add_switches(parser: Parser) -> None:
    """What is the same for every command that writes a result."""
    parser.add_switches("switches", SWITCHES)


def paths_of(given: Mapping[str, Any], stem: str) -> Paths:
    """The output's paths, checked; a result that exists is refused, unless asked for otherwise."""
    result, figure = cli.result_paths(given, Path(FOLDER) / f"{stem}.json")
    paths = Paths(result, result.with_suffix(".jsonl"), figure)
    every = (paths.result, paths.record, paths.figure)
    refuse_existing(given, {"--output": every}, can_resume=True)
    return paths


def seeds_of(given: Mapping[str, Any]) -> tuple[int, ...]:
    """The seeds that the options ask for, or the usual ones; `check_seeds` looks at their range."""
    return seed_options.seeds_of(given, NUM_SEEDS)


def check_statistics(given: Mapping[str, Any]) -> None:
    """Refuses confidences and resamplings that mean nothing."""
    confidence, resamples = given.get("confidence", 0.95), given.get("bootstrap", 9999)
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: got {confidence:g}, allowed is 0.5 up to below 1")
    if not 99 <= resamples <= 1_000_000:
        raise ConfigError(f"--bootstrap: got {resamples}, allowed is 99 to 1000000 resamples")


def inference_of(given: Mapping[str, Any]) -> Inference:
    """Confidence and resampling."""
    from blis_jax.statistics.intervals import Inference

    return Inference(
        given.get("confidence", 0.95), given.get("bootstrap", 9999), given.get("random_state", 0)
    )


def requests_for(
    given: Mapping[str, Any], arms: Sequence[Arm], command: str
) -> tuple[RequestSource, str, tuple[int, ...], str]:
    """Where the requests of all arms come from, its name, the numbers of the runs, and the stream."""
    from blis_jax.traces.source import STREAM
    from sweeps.runs.bench import check_seeds

    trace = trace_flags.study_source(given, command)
    if trace is not None:
        seeds = seeds_of_trace(given, trace, [arm.config for arm in arms], command)
        return trace, given["trace"], seeds, STREAM
    seeds, stream = seeds_of(given), given.get("rng", "reference")
    check_seeds(seeds, stream)
    spec, name = workload_for(given, arms)
    return spec, name, seeds, stream


def trace_in(source: RequestSource) -> TraceSource | None:
    """The source if it is a trace."""
    from blis_jax.traces.source import TraceSource

    return source if isinstance(source, TraceSource) else None


def seeds_of_trace(
    given: Mapping[str, Any],
    trace: TraceSource,
    configs: Sequence[ClusterConfig],
    command: str,
    usual: Sequence[int] = (),
) -> tuple[int, ...]:
    """The numbers of the runs of a trace; what is asked for beyond them is noted."""
    from blis_jax.traces.source import USUAL_SEEDS

    asked = seed_options.given_seeds(given, "reference")
    seeds = trace.seeds(asked, configs, usual or USUAL_SEEDS)
    if asked is not None and len(asked) > len(seeds) and "quiet" not in given:
        cli.say(
            command,
            "note: nothing is drawn from a seed here, neither by the trace nor by a policy; "
            "one run of each strategy is made",
        )
    return seeds


def workload_for(given: Mapping[str, Any], arms: Sequence[Arm]) -> tuple[WorkloadSpec, str]:
    """The workload of all arms and its name: the one given, else that of the first arm with a file."""
    from sweeps.runs.bench import workload_from, workload_of
    from sweeps.strategies.space import space_of

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


def classes_of(spec: RequestSource) -> tuple[str, ...]:
    """The SLO classes of a workload or a trace, the most urgent first."""
    from blis_jax.metrics.measure import CLASSES

    order = [name for name in CLASSES if name != "default"] + ["default"]
    return tuple(name for name in order if name in spec.slo_classes)


def metrics_for(given: Mapping[str, Any], classes: Sequence[str]) -> tuple[str, ...] | None:
    """The metrics that are asked for, without a class of all requests and of each; None if none are."""
    from blis_jax.metrics.scalars import lookup
    from sweeps.runs.metrics import found, our_name

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
    from blis_jax.metrics.measure import DEFAULT_TARGETS, read_targets
    from sweeps.runs.bench import targets_of

    if "targets" in given:
        return read_targets(given["targets"])
    for arm in arms:
        if arm.strategy is not None and arm.strategy.targets is not None:
            return targets_of(arm.strategy)
    return DEFAULT_TARGETS


def journal_of(
    kind: str, paths: Paths, spec: RequestSource, setting: ComparedSetting, names: Sequence[str]
) -> Journal:
    """The record of the runs: of any configurations, on these requests and with these metrics."""
    from blis_jax.files.journal import Journal
    from sweeps.compare.document import FORMAT
    from sweeps.search.loop import workload_content

    targets = {name: dict(limits) for name, limits in setting.targets.items()}
    content = {
        "workload": workload_content(spec), "seeds": setting.seeds, "stream": setting.stream,
        "targets": targets, "metrics": sorted(names), "format": FORMAT,
    }  # fmt: skip
    return Journal(paths.record, kind, content)


def kept_runs(
    setting: ComparedSetting,
    spec: RequestSource,
    names: Sequence[str],
    journal: Journal | None,
    progress: ArmProgress,
) -> KeptRuns:
    """What runs the arms; `names` are all metrics that are needed."""
    from blis_jax.metrics.scalars import pooled_latency
    from sweeps.runs.bench import Bench, measure_of
    from sweeps.runs.measured import KeptRuns, Recorder

    names = [name for name in names if pooled_latency(name) is None]  # those of single runs
    measure = measure_of(setting.targets, spec)
    bench = Bench(spec, setting.seeds, setting.stream, names, measure)
    recorder = Recorder(bench.names, measure, setting.classes, setting.is_one_trace)
    return KeptRuns(bench, recorder, journal, progress.begin)


class ArmProgress:
    """Which configuration is running, of how many."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.line, self.count = progress.begin("simulating", total, "configurations"), 0

    def begin(self, name: str) -> None:
        """Show the next configuration."""
        self.line.show(min(self.count, self.total), name)
        self.count += 1

    def expect(self, more: int) -> None:
        """So many further configurations are to be run."""
        self.total += more
        self.line.total = self.total

    def clear(self) -> None:
        """Remove the line."""
        self.line.clear()
