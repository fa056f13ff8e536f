"""Find the smallest clusters as options of `blis-jax capacity` say: the question, its runs, and the files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.commands.options.seed_options import seeds_of
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_text
from blis_jax.files.journal import Journal
from blis_jax.reports import render
from blis_jax.reports.findings import Remarks
from blis_jax.reports.words import cluster_line
from sweeps.capacity.deciding import (
    Decision,
    ServiceTarget,
    fewest_seeds,
    num_tries,
    read_service_targets,
)
from sweeps.capacity.document import cheapest, findings_of, to_document
from sweeps.capacity.finding import CountedRuns, Finder, InTime, LayoutFamily, Smallest, families
from sweeps.runs.axes import at_each_place
from sweeps.runs.experiment import measure_of
from sweeps.runs.measured import versions
from sweeps.runs.options import USUAL_ARM, check_statistics
from sweeps.runs.requests import (
    StudyRequests,
    check_count,
    list_workloads,
    requests_of,
    workload_for,
)
from sweeps.strategies.arms import Arm, arms_of, as_served, list_names

if TYPE_CHECKING:
    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.metrics.measure import Measure
    from blis_jax.traces.source import TraceSource
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.capacity.__main__ import CapacityOptions


FEWEST_SEEDS = 16
FEWEST_IN_WINDOW, USUAL_IN_WINDOW = 20, 50  # requests
_USUAL_SHARES = (0.99, 0.95, 0.9, 0.8, 0.5)
Starting = Callable[["Smallest"], tuple[list[str], dict[str, Any] | None]]


def size_clusters(
    options: CapacityOptions, paths: OutputPaths, command: str, starting: Starting | None = None
) -> int:
    """Find the smallest cluster of each kind, write the files and print the answer; return the exit code.

    `starting` returns sentences on how to start the best cluster, and the configuration of its router.
    """
    began = time.monotonic()
    question = _question(options)
    setting = {**question.setting, "command": command}
    journal = _journal(question, paths.beside(".jsonl"))
    with cli.resumable(options.command, journal.path), journal.held(options.resume):
        runs = _runs(question, journal)
        answers = [_found(question, runs, arm, family) for arm, family in question.clusters]
        made = runs.num_runs, time.monotonic() - began
        return _written(question, made, answers, setting, paths, options, starting)


# --- input ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """The question of the command, read from the options and checked."""

    requests: StudyRequests
    measure: Measure
    targets: tuple[ServiceTarget, ...]
    arms: tuple[Arm, ...]
    clusters: tuple[tuple[Arm, LayoutFamily], ...]
    confidence: float
    most: int
    is_corrected: bool
    has_prices: bool

    @property
    def cluster(self) -> str:
        """Describe the simulated cluster without its size: the policies' servers, on the GPUs asked for."""
        alone = [
            (arm, family.first)
            for arm, family in self.clusters
            if not (family.second or family.is_split)
        ]
        are_many = len(alone) > len(self.arms)
        configs = {
            f"{arm.name} on {kind.gpu}" if are_many else arm.name: kind.described(arm.config)
            for arm, kind in alone
        }
        changes = {"corrected": True} if self.is_corrected else {}
        served = {name: config.replace(**changes) for name, config in configs.items()}
        return cluster_line(served, ("num_instances",))

    @property
    def setting(self) -> dict[str, Any]:
        """Return the question as plain data, for the result document."""
        return {
            "workload": self.requests.name,
            "seeds": list(self.requests.seeds),
            "stream": self.requests.stream,
            "confidence": self.confidence,
            "max_instances": self.most,
            "is_corrected": self.is_corrected,
            "cluster": self.cluster,
        }


def _question(options: CapacityOptions) -> _Question:
    options = _with_source(options)
    named_arms = arms_of(options.strategy or (USUAL_ARM,), fit=options.coefficients_from)
    arms = at_each_place(named_arms, options.grid)
    is_split = options.roles
    gpus = _gpus(options, arms)
    hardware = gpus, options.model, options.tp, _prices(options.prices)
    requests = _requests(options, arms)
    arms = as_served(arms, requests.trace is not None)
    confidence, most = options.confidence, options.max_instances
    check_statistics(confidence)
    targets = read_service_targets(options.targets, requests.classes)
    requests = _enough(options, requests, targets, (1 - confidence) / num_tries(most))
    return _Question(
        requests=requests.at_least(FEWEST_SEEDS, "to be sure by"),
        measure=measure_of({}, requests.source),
        targets=targets,
        arms=arms,
        clusters=tuple(
            (arm, family) for arm in arms for family in families(*hardware, is_split, arm)
        ),
        confidence=confidence,
        most=most,
        is_corrected=is_split or any(arm.config.corrected for arm in arms),
        has_prices=options.prices is not None,
    )


def _gpus(options: CapacityOptions, arms: Sequence[Arm]) -> tuple[str, ...]:
    if options.gpus is None:
        for name, value in (("model", options.model), ("tp", options.tp)):
            if value is not None:
                raise ConfigError(
                    f"--{name} has no meaning without --gpus; name the GPUs to compare"
                )
    for arm in arms:
        if arm.config.instances and options.gpus is None:
            raise ConfigError(
                f"--strategy {arm.name}: its instances differ, so a number of them does not say which; give --gpus, "
                "or a strategy with num_instances"
            )
        if options.roles and arm.config.hand_over_policy not in ("none", "pools"):
            raise ConfigError(
                f"--roles: {arm.name} has a hand-over policy of its own, {arm.config.hand_over_policy}; leave "
                "--roles out"
            )
    names = tuple(part.strip() for part in (options.gpus or "").split(",") if part.strip())
    if len(set(names)) != len(names):
        raise ConfigError("--gpus: a GPU is named twice; name each once")
    return names


def _prices(text: str | None) -> dict[str, float]:
    prices = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = part.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = 0.0
        if not equals or not 0 < price < float("inf"):
            raise ConfigError(
                f"--prices: {part!r} is not GPU=PRICE with a price above 0, such as H100=3.0"
            )
        prices[name.strip()] = price
    return prices


def _with_source(options: CapacityOptions) -> CapacityOptions:
    """Return the options with the argument WORKLOAD moved to --trace if it names a trace, else to --workload."""
    sources = [
        source for source in (options.source, options.workload, options.trace) if source is not None
    ]
    if not sources:
        raise ConfigError(
            "no workload is given; name a built-in one such as mixed, a .yaml file or a trace"
        )
    if len(sources) > 1:
        raise ConfigError(f"{' and '.join(sources)} are given as what is served; give one of them")
    name = options.source or options.workload
    if name is None:
        return options
    if name in list_names():
        raise ConfigError(
            f"{name} is a strategy, and a workload is needed here; give --strategy {name}"
        )
    is_spec = name in list_workloads() or Path(name).suffix in (".yaml", ".yml")
    is_trace = not is_spec and Path(name).exists()
    return replace(
        options,
        source=None,
        workload=None if is_trace else name,
        trace=name if is_trace else options.trace,
    )


def _requests(options: CapacityOptions, arms: Sequence[Arm]) -> StudyRequests:
    name = options.workload or ""

    def workload() -> tuple[WorkloadSpec, str]:
        spec, said = workload_for(name, (), options.num_requests, "WORKLOAD", options.rate)
        if options.rate is None and spec.aggregate_rate is not None:
            said = f"{name} at {spec.aggregate_rate:g} requests/s"
        return spec, said

    configs = [arm.config for arm in arms]
    return requests_of(options, options.command, workload, configs, options.usual_seeds)


def _enough(
    options: CapacityOptions,
    requests: StudyRequests,
    targets: Sequence[ServiceTarget],
    error: float,
) -> StudyRequests:
    """Return the requests on as many seeds as the strictest target needs; print a remark if the user gave fewer."""
    strictest = max(targets, key=lambda target: target.share)
    wanted, count = int(fewest_seeds(strictest.share, error)), len(requests.seeds)
    trace = requests.trace
    if trace is not None and trace.num_windows is None and options.seeds is None:
        return _in_windows(options.command, requests, trace, strictest, error)
    if wanted <= count:
        return requests
    if count < FEWEST_SEEDS:
        check_count(requests.seeds, wanted, f"for {strictest}", requests.stream)
    if trace is None and not options.has_number:
        return replace(requests, seeds=seeds_of(options, 2 * wanted, requests.stream))
    cli.say(
        options.command,
        f"{strictest}: {count} runs cannot show so large a share in time: at least {wanted} are needed; with fewer, "
        "only clusters that fail can be told",
    )
    return requests


def _in_windows(
    command: str,
    requests: StudyRequests,
    trace: TraceSource,
    strictest: ServiceTarget,
    error: float,
) -> StudyRequests:
    """Return a trace's requests in as many windows as the strictest target needs, up to twice as many of a long
    trace."""
    wanted = int(fewest_seeds(strictest.share, error))
    count = min(max(trace.num_requests // USUAL_IN_WINDOW, wanted), 2 * wanted)
    each = trace.num_requests / count
    if each < FEWEST_IN_WINDOW:
        most = trace.num_requests // FEWEST_IN_WINDOW
        shown = [share for share in _USUAL_SHARES if fewest_seeds(share, error) <= most]
        less = f", or ask for no more than @{100 * shown[0]:g}" if shown else ""
        raise ConfigError(
            f"{strictest}: {count} windows of the trace are needed to be sure of {100 * strictest.share:g} %, and its "
            f"{trace.num_requests} requests are too few to cut so, since a window has {FEWEST_IN_WINDOW} or more: give "
            f"a trace of {count * FEWEST_IN_WINDOW:,} requests or more, or a workload{less}"
        )
    cut = replace(trace, num_windows=count)
    cli.say(command, f"note: the trace is cut into {count} windows of {cut.run_s:.3g} s, {each:.0f} requests each on "
            "average; each begins on an idle cluster (--trace-windows names another number)")  # fmt: skip
    return replace(requests, source=cut, seeds=cut.seeds(None, ()))


# --- runs -----------------------------------------------------------------------------------------


def _journal(question: _Question, path: Path) -> Journal:
    targets = [str(target) for target in question.targets]
    return Journal(path, "capacity", {**question.requests.content(), "targets": targets})


def _runs(question: _Question, journal: Journal) -> CountedRuns:
    in_time = InTime(question.targets, question.measure)
    return CountedRuns(question.requests, in_time, journal)


def _found(question: _Question, runs: CountedRuns, arm: Arm, family: LayoutFamily) -> Smallest:
    finder = Finder(runs, question.confidence, max(question.most, family.least))
    tried = 0

    def show(size: int, decision: Decision) -> None:
        nonlocal tried
        tried += 1
        line.show(tried, f"{size} instances: {decision.answer}")

    with progress.phase(
        f"sizing {arm.name} on {family.name}", finder.num_tries, "clusters"
    ) as line:
        return finder.find(arm, family, question.is_corrected, show)


# --- output ---------------------------------------------------------------------------------------


def _written(
    question: _Question,
    made: tuple[int, float],
    answers: Sequence[Smallest],
    setting: Mapping[str, Any],
    paths: OutputPaths,
    options: CapacityOptions,
    starting: Starting | None,
) -> int:
    """Write the files and print the answer; return the exit code."""
    findings = findings_of(
        answers, question.targets, setting, question.has_prices, made, starting is not None
    )
    best = cheapest(answers)
    lines, router = starting(best) if starting is not None and best is not None else ([], None)
    said = Remarks(tuple(lines), "How it is started", is_brief=True)
    findings = replace(findings, sections=(said, *findings.sections))
    picture = (
        ""
        if paths.figure is None
        else f"\n![Requests in time against instances]({paths.figure.name})\n"
    )
    kept = replace(findings, answer=replace(findings.answer, time=None))
    title = "The smallest cluster that meets the targets"
    document = to_document(answers, question.targets, setting, findings)
    if starting is not None:
        document |= {"start": lines, "router": router}
    text = f"{render.markdown(kept, title)}\n`{setting['command']}`\n{picture}"
    result, *pages = outputs.study_files(
        findings, document, paths, title, setting["command"], versions()
    )
    files: outputs.Files = [
        result,
        (paths.beside(".md"), lambda path: write_text(path, text)),
        *pages,
        (
            paths.beside(".yaml") if router is not None else None,
            lambda path: write_text(path, yaml.safe_dump(router, sort_keys=False)),
        ),
    ]
    outputs.show(findings, lambda: outputs.write_files(files), options)
    return 0 if best is not None else cli.EXIT_UNSUPPORTED
