"""`python -m sweeps.capacity WORKLOAD`: the smallest cluster that meets its service targets, and how surely."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    FigureOption,
    OutputSwitches,
    option,
    outputs,
    switch,
    word,
)
from blis_jax.commands.options.outputs import PageOption
from blis_jax.commands.options.seed_options import CountedRequests, seeds_of, seeds_option
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json, write_text
from blis_jax.files.chain import Journal
from sweeps.capacity.layouts import families
from sweeps.runs.options import FOLDER, USUAL_ARM, check_statistics

if TYPE_CHECKING:
    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.metrics.measure import Measure
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.capacity.deciding import ServiceTarget
    from sweeps.capacity.finding import CountedRuns, Smallest
    from sweeps.capacity.layouts import LayoutFamily
    from sweeps.runs.requests import StudyRequests
    from sweeps.strategies.arms import Arm

NAME = "sweeps.capacity"
DEFAULT_OUTPUT = f"{FOLDER}/capacity.json"
NUM_SEEDS = 1024
MOST_INSTANCES = 64

_DESCRIPTION = """\
Find the smallest cluster that meets service targets. WORKLOAD is a built-in name, a .yaml file or a recorded
trace. Sizes are tried by halving. Each is simulated on more and more common seeds until it is clear whether it
meets every target, or the seeds are used up. Writes the answer (.json), a page (.md), and a figure (.png).
"""
_EXAMPLES = """\
examples:
  how many instances does the mixed workload need, and what does a better policy save?
    %(prog)s mixed --targets critical.ttft_ms=200@99 \\
      --policy iter00_baseline --policy iter13_class_lead@found

  which GPUs, alone or mixed, at which price?
    %(prog)s mixed --targets all.e2e_ms=10000@95 \\
      --gpus H100,A100-80 --prices H100=3.0,A100-80=1.6

  are pools for prefill and decode cheaper?
    %(prog)s mixed --targets critical.ttft_ms=200@99,all.tpot_ms=30@95 --roles

  which token budget, and which router?
    %(prog)s mixed --targets critical.ttft_ms=200@99 --policy llm-d-default \
      --grid max_num_batched_tokens=2048,8192 --grid routing_policy=weighted,least-loaded

  a trace, in twenty windows:
    %(prog)s trace.jsonl --trace-windows 20 --targets all.ttft_ms=500@95

A request that is rejected, dropped or not finished has missed its targets. A layout with more instances is taken to do
no worse than one with fewer.
"""
FEWEST_SEEDS = 16


class _Asked(CommandOptions, title="question"):
    """Options for the targets, and for how surely they must be met."""

    targets: tuple[str, ...] = option(
        str, (), "LIST",
        "CLASS.LIMIT=MS[@PERCENT], several with commas: PERCENT of the class's requests keep LIMIT (ttft_ms, "
        "tpot_ms or e2e_ms); PERCENT is 99 if left out, CLASS may be all", is_repeated=True,
    )  # fmt: skip
    policy: tuple[str, ...] = option(
        str, (), "ARM", f"[LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; repeat it (default: {USUAL_ARM})",
        is_repeated=True,
    )  # fmt: skip
    grid: tuple[str, ...] = option(
        str, (), "KEY=VALUES", "a setting that is asked about, too, such as max_num_batched_tokens=2048,8192 or "
        "routing_policy=weighted,round-robin: an answer for each value of each policy; repeat it", is_repeated=True,
    )  # fmt: skip
    confidence: float = option(
        cli.number, 0.95, "P", "of the whole answer, of each policy and kind of cluster"
    )
    max_instances: int = option(cli.at_least(1), MOST_INSTANCES, "N", "largest cluster to try")


class _Clusters(CommandOptions, title="clusters"):
    """Options for the clusters to try."""

    gpus: str | None = option(
        str, None, "A,B,…",
        "GPUs to compare, with the fitted coefficients of --model on each; also every two of them mixed "
        "(default: the policy's own instances)",
    )  # fmt: skip
    model: str | None = option(str, None, "NAME", "model of --gpus (default: the policy's)")
    tp: int | None = option(
        cli.at_least(1),
        None,
        "N",
        "tensor parallelism of --gpus (default: the policy's; of another --model its own)",
    )
    prices: str | None = option(
        str, None, "LIST", "price of a GPU-hour, such as H100=3.0,A100-80=1.6 (default: 1 each)"
    )


class _Requests(CountedRequests, title="requests"):
    """Options for the requests that every cluster serves."""

    seeds: str | None = seeds_option(
        f"how many may be used at most; default: {NUM_SEEDS}, or what shares near 100 % need"
    )
    rate: float | None = option(
        cli.number, None, "R", "requests per second in place of the workload's"
    )


class _Switches(OutputSwitches, title="switches"):
    """The switch for trying split roles as well."""

    roles: bool = switch(
        "also split every cluster into pools for prefill and decode; all layouts are then simulated without "
        "BLIS's defects, by which steps of one instance overlap"
    )


class CapacityOptions(
    _Asked, _Clusters, _Requests, StudyTrace, FigureOption, PageOption, _Switches, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    workload: str | None = word("WORKLOAD", "workload or trace")
    trace: str | None = None  # stands in the place of the workload
    output: str = option(
        str, DEFAULT_OUTPUT, "PATH", "answer to write, .json; a page with its tables lies beside it, .md",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _capacity, arguments)


def _capacity(arguments: Sequence[str] | None) -> int:
    options = CapacityOptions.read(arguments)
    paths = outputs.outputs_of(options, DEFAULT_OUTPUT, beside=(".jsonl", ".md"))
    prepare_backend(use_cache=not options.no_cache)
    question = _question(options)
    setting = {**question.setting, "command": cli.command_text(NAME, arguments)}
    journal = _journal(question, paths.beside(".jsonl"))
    with cli.resumable(NAME, journal.path), journal.held(options.resume):
        runs = _runs(question, journal)
        answers = [_found(question, runs, arm, family) for arm, family in question.clusters]
        return _written(question, runs, answers, setting, paths, options)


# --- input ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """Hold what is asked, read and checked."""

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
        """Describe what is simulated but for its size: the policies' servers, on the GPUs that are asked for."""
        from blis_jax.reports.words import cluster_line

        alone = [(arm, one.first) for arm, one in self.clusters if not (one.second or one.is_split)]
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
        """Return the question as the document has it."""
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
    from sweeps.capacity.deciding import num_tries, read_service_targets
    from sweeps.runs.axes import at_each_place
    from sweeps.runs.experiment import measure_of
    from sweeps.strategies.arms import arms_of, as_served

    arms = at_each_place(arms_of(options.policy or (USUAL_ARM,)), options.grid)
    is_split = options.roles
    gpus = _gpus(options, arms)
    hardware = gpus, options.model, options.tp, _prices(options.prices)
    requests = _requests(options, arms).at_least(FEWEST_SEEDS, "to be sure by")
    arms = as_served(arms, requests.trace is not None)
    confidence, most = options.confidence, options.max_instances
    check_statistics(confidence)
    measure = measure_of({}, requests.source)
    targets = read_service_targets(options.targets, requests.classes)
    return _Question(
        requests=_enough(options, requests, targets, (1 - confidence) / num_tries(most)),
        measure=measure,
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
                f"--policy {arm.name}: its instances differ, so a number of them does not say which; give --gpus, "
                "or a policy with num_instances"
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


def _requests(options: CapacityOptions, arms: Sequence[Arm]) -> StudyRequests:
    from sweeps.runs.requests import requests_of, workload_for
    from sweeps.runs.workloads import list_workloads

    name = options.workload
    if name is None:
        raise ConfigError(
            "no workload is given; name a built-in one such as mixed, a .yaml file or a trace"
        )
    is_file = Path(name).suffix in (".yaml", ".yml")
    if name not in list_workloads() and not is_file and Path(name).exists():
        options = replace(options, workload=None, trace=name)

    def workload() -> tuple[WorkloadSpec, str]:
        spec, _ = workload_for(name, (), options.num_requests, "WORKLOAD", options.rate)
        return spec, name

    configs = [arm.config for arm in arms]
    return requests_of(options, NAME, workload, configs, NUM_SEEDS)


def _enough(
    options: CapacityOptions,
    requests: StudyRequests,
    targets: Sequence[ServiceTarget],
    error: float,
) -> StudyRequests:
    """Return the requests on as many seeds as the strictest target needs; say so where the given ones are too few."""
    from sweeps.capacity.deciding import fewest_seeds

    strictest = max(targets, key=lambda target: target.share)
    wanted, count = fewest_seeds(strictest.share, error), len(requests.seeds)
    if wanted <= count:
        return requests
    if math.isfinite(wanted) and requests.trace is None and not options.has_number:
        return replace(requests, seeds=seeds_of(options, 2 * int(wanted), requests.stream))
    needed = (
        "no number of runs shows that all requests are in time; ask for less than 100 %"
        if math.isinf(wanted)
        else f"at least {wanted:.0f} are needed; with fewer, only clusters that fail can be told"
    )
    cli.say(NAME, f"{strictest}: {count} runs cannot show so large a share in time: {needed}")
    return requests


# --- runs -----------------------------------------------------------------------------------------


def _journal(question: _Question, path: Path) -> Journal:
    targets = [str(target) for target in question.targets]
    return Journal(path, "capacity", {**question.requests.content(), "targets": targets})


def _runs(question: _Question, journal: Journal) -> CountedRuns:
    from sweeps.capacity.finding import CountedRuns, InTime

    in_time = InTime(question.targets, question.measure)
    return CountedRuns(question.requests, in_time, journal)


def _found(question: _Question, runs: CountedRuns, arm: Arm, family: LayoutFamily) -> Smallest:
    from sweeps.capacity.deciding import Decision
    from sweeps.capacity.finding import Finder

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
    runs: CountedRuns,
    found: Sequence[Smallest],
    setting: Mapping[str, Any],
    paths: OutputPaths,
    options: CapacityOptions,
) -> int:
    """The files and the words; the exit code."""
    from blis_jax.reports import page, render
    from sweeps.capacity.document import cheapest, findings_of, to_document
    from sweeps.runs.measured import versions

    findings = findings_of(found, question.targets, setting, question.has_prices, runs.num_runs)
    picture = (
        ""
        if paths.figure is None
        else f"\n![Requests in time against instances]({paths.figure.name})\n"
    )
    kept = replace(findings, answer=replace(findings.answer, time=None))
    title = "The smallest cluster that meets the targets"
    document = to_document(found, question.targets, setting, findings)
    text = f"{render.markdown(kept, title)}\n`{setting['command']}`\n{picture}"
    files: outputs.Files = [
        (paths.result, lambda path: write_json(path, document)),
        (paths.beside(".md"), lambda path: write_text(path, text)),
        (paths.figure, lambda path: outputs.draw(findings.pictures[0], path)),
        (paths.report, lambda path: page.write(kept, path, title, setting["command"], versions())),
    ]
    outputs.show(findings, lambda: outputs.write_files(files), options)
    return 0 if cheapest(found) is not None else cli.EXIT_UNSUPPORTED


if __name__ == "__main__":
    sys.exit(main())
