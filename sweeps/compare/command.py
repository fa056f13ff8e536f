"""Compare arms as options of `blis-jax compare` say: make runs or read saved ones, judge them, and write the files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.cluster.revisions import seen_as
from blis_jax.commands import cli
from blis_jax.commands.options import seed_options
from blis_jax.commands.options.outputs import OutputPaths, outputs_of
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import plain
from blis_jax.metrics.metric import names_in
from blis_jax.metrics.scalars import pooled_latency
from blis_jax.progress import phase
from blis_jax.reports.words import joined, last_gaps
from sweeps.compare import result
from sweeps.compare.ablation.inert import features_of, findings, without_each
from sweeps.compare.document import (
    OF_CLASS,
    OF_RUN,
    SURVIVORS,
    CommonSetting,
    Compared,
    default_metrics,
    to_document,
)
from sweeps.compare.judge import check_block
from sweeps.compare.ranking import router_arms
from sweeps.compare.report import EnoughSeeds
from sweeps.compare.result import make_part, setting_of, write_result
from sweeps.compare.study import (
    CoefficientDraws,
    coefficient_section,
    draws_of,
    findings_of,
    write_reports,
)
from sweeps.runs.experiment import Experiment
from sweeps.runs.options import (
    FOLDER,
    NUM_SEEDS,
    USUAL_ARM,
)
from sweeps.runs.requests import requests_of, workload_of_arms
from sweeps.search.objectives import Valuation
from sweeps.strategies.arms import Arm, arms_of
from sweeps.strategies.file import load_strategy
from sweeps.tracks.criteria import success_metrics

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.files.journal import Journal
    from sweeps.compare.__main__ import CompareOptions
    from sweeps.runs.measured import KeptRuns
    from sweeps.strategies.parts import SuccessCriterion


def compare_arms(options: CompareOptions, command: str) -> int:
    """Run the arms, or read their saved runs, and write and print their differences; return the exit code."""
    began = time.monotonic()
    if any(Path(text).suffix in (".zarr", ".nc") for text in options.arms):
        return _compare_saved(options, command, began)
    rule = seed_options.rule_of(options, options.seeds, options.trace)
    options.check_part(options.output, rule)
    arms = _arms(options)
    draws = draws_of(options, options.random_state)
    paths = outputs_of(options, f"{FOLDER}/compare.json", beside=(".jsonl",))
    criteria, configs = _criteria(options.criteria, arms), [arm.config for arm in arms]
    requests = requests_of(
        options,
        options.command,
        lambda: workload_of_arms(options, arms),
        configs,
        NUM_SEEDS,
        rule=rule,
    )
    setting = setting_of(
        options, requests, arms, lambda classes, is_one: default_metrics(classes, configs, is_one)
    )
    check_block(options.block_s, requests.trace)
    enough = None
    if rule is not None:
        deciding = seed_options.deciding_metrics(options.deciding, setting.classes)
        enough = EnoughSeeds(rule, deciding, setting.inference.confidence)
    names = _needed(setting, criteria, () if enough is None else enough.names)
    experiment = Experiment(requests, names, setting.targets)
    journal = experiment.journal(paths.beside(".jsonl"), "comparison", options.part)
    with journal.held(options.resume):
        _note_workloads(options, arms, setting.workload)
        _note_last_gaps(options, arms, experiment)
        if options.part is not None:
            return make_part(
                options, options.part, setting, experiment, journal, _certain(arms, draws)
            )
        ran = _run(options, setting, experiment, journal, arms, criteria, draws, enough)
        with phase("judging differences"):
            document = to_document(ran.setting, ran.compared, is_ranked=options.routers is not None)
        document["num_runs"] = sum(map(len, ran.kept.runs.values()))
        if ran.drawn is not None:
            document["coefficients"] = ran.drawn
        if ran.stopping is not None:
            document["stopping"] = plain(ran.stopping)

        return _written(
            document,
            ran.compared,
            ran.kept.experiment,
            paths,
            options,
            command,
            time.monotonic() - began,
        )


def _compare_saved(options: CompareOptions, command: str, began: float) -> int:
    """Judge the runs of saved sweeps in place of new runs; return the exit code."""
    if options.part is not None:
        raise ConfigError("--part: saved runs are judged and none is made; leave it out")
    sweeps = result.sweeps_of(options, options.arms)
    placed = result.arms_of(sweeps, options.command)
    arms = [arm for _, _, arm in placed]
    criteria = _criteria(options.criteria, arms)
    setting = result.setting_of_sweeps(options, sweeps, arms)
    paths = outputs_of(options, f"{FOLDER}/compare.json", beside=(".jsonl",))
    experiment = result.experiment_of(setting, sweeps[0])
    if paths.timeline is not None and experiment is None:
        raise ConfigError(
            "--timeline: a run of a trace is made again from the trace; name the arms, with --trace"
        )
    names = _needed(setting, criteria, ())
    runs = {sweep.path: sweep.runs(names) for sweep in sweeps}
    compared = [
        Compared(arm, runs[sweep.path][place], (), criteria[arm.name])
        for sweep, place, arm in placed
    ]
    with phase("judging differences"):
        document = to_document(setting, compared)
    document["datasets"] = [str(sweep.path) for sweep in sweeps]

    return _written(
        document, compared, experiment, paths, options, command, time.monotonic() - began
    )


def _arms(options: CompareOptions) -> tuple[Arm, ...]:
    """Return the arms that the options name, or one arm with each named router; all with the options' signals."""
    return tuple(
        dataclasses.replace(arm, config=seen_as(arm.config, options.signals))
        for arm in _named_arms(options)
    )


def _named_arms(options: CompareOptions) -> tuple[Arm, ...]:
    texts = options.arms
    is_real = options.trace is not None
    if options.routers is None:
        if len(texts) < 2:
            raise ConfigError(
                f"two or more arms are needed, the reference first, such as vllm llm-d-default, or --routers all; "
                f"got {len(texts)}"
            )
        return arms_of(texts, options.instances, is_real, options.coefficients_from)
    if len(texts) > 1:
        raise ConfigError(
            f"--routers: {len(texts)} arms are given; give one whose router is replaced, or none"
        )
    (base,) = arms_of(texts or (USUAL_ARM,), options.instances, is_real, options.coefficients_from)
    return router_arms(options.routers, base)


def _criteria(criteria: str | None, arms: Sequence[Arm]) -> dict[str, tuple[SuccessCriterion, ...]]:
    """Return checked success criteria by arm: those of the strategy `criteria` for every arm, or each arm's own."""
    if criteria is not None:
        strategy = load_strategy(criteria)
        if strategy.objectives:
            Valuation(strategy, has_loads=True)
        if not strategy.success_criteria:
            raise ConfigError(f"--criteria: {criteria} has no success criteria")
        return {arm.name: strategy.success_criteria for arm in arms}
    for arm in arms:
        if arm.strategy is not None and arm.strategy.objectives:
            Valuation(arm.strategy, has_loads=True)
    return {arm.name: arm.strategy.success_criteria if arm.strategy else () for arm in arms}


def _needed(
    setting: CommonSetting,
    criteria: Mapping[str, tuple[SuccessCriterion, ...]],
    metrics: Sequence[str],
) -> tuple[str, ...]:
    """Return the metrics of single runs that are compared or judged, and the default ones for later commands."""
    usual = list(names_in(OF_CLASS, setting.classes))
    names = [*OF_CLASS, *OF_RUN, *SURVIVORS, *usual, *setting.metrics, *metrics]
    for of_arm in criteria.values():
        names += success_metrics(of_arm, setting.classes)
    return tuple(name for name in dict.fromkeys(names) if pooled_latency(name) is None)


def _note_workloads(options: CompareOptions, arms: Sequence[Arm], workload: str) -> None:
    """Print a remark where arms made for several workloads are run on one."""
    named = {str(arm.strategy.workload) for arm in arms if arm.strategy is not None}
    is_one = options.workload is not None or options.trace is not None or len(named) < 2
    if not is_one and not options.quiet:
        cli.say(
            options.command,
            f"note: the arms' files name several workloads; all arms run on {workload}",
        )


def _note_last_gaps(options: CompareOptions, arms: Sequence[Arm], experiment: Experiment) -> None:
    """Print a remark where an arm has February's TPOT defect, and outputs are so short that the defect shows."""
    with_it = [arm for arm in arms if not (arm.config.corrected or arm.config.is_august)]
    if with_it and not options.quiet:
        config = with_it[0].config
        source, seed = experiment.requests.source, experiment.seeds[0]
        lengths = experiment.drawn.table(source, seed, config.block_size_in_tokens).output_len
        if (doubled := last_gaps(config, np.asarray(lengths))) is not None:
            cli.say(options.command, f"note: {joined([arm.name for arm in with_it])}: {doubled}")


class _Ran(NamedTuple):
    """The results of a comparison: setting with the seeds used, arms, drawn coefficients, runs, stopping record."""

    setting: CommonSetting
    compared: list[Compared]
    drawn: dict[str, Any] | None
    kept: KeptRuns
    stopping: dict[str, Any] | None


def _run(
    options: CompareOptions,
    setting: CommonSetting,
    experiment: Experiment,
    journal: Journal,
    arms: Sequence[Arm],
    criteria: Mapping[str, tuple[SuccessCriterion, ...]],
    draws: CoefficientDraws | None,
    enough: EnoughSeeds | None,
) -> _Ran:
    """Run every arm on every seed, then without each mechanism that may do nothing, then with drawn coefficients."""
    how = options.inert or ("mechanisms" if options.routers is None else "records")
    has_scorers = how == "scorers"
    count, configs = len(arms), [arm.config for arm in arms]
    if how != "records":
        count += sum(len(list(features_of(config, has_scorers))) for config in configs)
        configs += [config for arm in arms for config in without_each(arm.config, has_scorers)]
    count += len(arms) * len(draws.values) if draws is not None else 0
    classes, is_one = setting.classes, setting.is_one_trace
    with experiment.kept_runs(options.command, journal, count, classes, is_one) as kept:
        kept.prepare(configs)
        kept.make(_certain(arms, draws))
        if enough is None:
            runs, stopping = [kept.of(arm.config, arm.name) for arm in arms], None
        else:
            runs, looks = enough.run(arms, kept)
            stopping = enough.document(arms, looks)
            setting = enough.used(setting, kept.seeds)
        source_of_inert = None if how == "records" else kept
        compared = [
            Compared(
                arm,
                of_arm,
                tuple(findings(arm.config, of_arm, source_of_inert, arm.strategy, has_scorers)),
                criteria[arm.name],
            )
            for arm, of_arm in zip(arms, runs, strict=True)
        ]
        if draws is None:
            return _Ran(setting, compared, None, kept, stopping)
        state = setting.inference.random_state
        section = coefficient_section(draws, arms, kept, setting.metrics, state)
        return _Ran(setting, compared, section, kept, stopping)


def _certain(
    arms: Sequence[Arm], draws: CoefficientDraws | None
) -> list[tuple[ClusterConfig, str]]:
    """Return the named configurations that are always run: the arms, then each arm with each draw of coefficients."""
    of_draws = [] if draws is None else [config for arm in arms for config in draws.configs(arm)]
    return [*((arm.config, arm.name) for arm in arms), *of_draws]


def _written(
    document: dict[str, Any],
    compared: Sequence[Compared],
    experiment: Experiment | None,
    paths: OutputPaths,
    options: CompareOptions,
    command: str,
    seconds: float,
) -> int:
    """Write the files, print the findings, and return the exit code."""

    def write_pages() -> None:
        runs = {
            compared_arm.arm.name: (compared_arm.arm.config, compared_arm.runs)
            for compared_arm in compared
        }
        write_reports(document, runs, experiment, paths, command)

    has_figures = any(
        comparison["difference"]["mean"] is not None for comparison in document["comparisons"]
    )
    lacking = None if has_figures else "on no seed did both the reference and another arm finish"
    return write_result(document, paths, options, findings_of, write_pages, seconds, lacking)
