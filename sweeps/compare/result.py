"""Shared parts of commands that compare arms: the common setting, of new runs or of saved sweeps, and the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.errors import ConfigError, as_option, refusing_damage
from blis_jax.metrics.measure import check_served
from blis_jax.metrics.scalars import pooled_latency
from blis_jax.reports import render
from blis_jax.results.dataset import FORMATS, load_kind, refuse_unlike
from blis_jax.results.schema import SWEEP
from blis_jax.traces.source import STREAM
from blis_jax.workload.spec import parse_spec
from sweeps.compare.document import CommonSetting, default_metrics
from sweeps.runs.experiment import Experiment, metrics_for, targets_for
from sweeps.runs.options import ComparisonOptions, inference_of
from sweeps.runs.parts import RESULT, with_output
from sweeps.runs.requests import StudyRequests
from sweeps.runs.saved_sweep import SavedSweep
from sweeps.strategies.arms import Arm

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.files.journal import Journal
    from blis_jax.reports.findings import Findings
    from sweeps.runs.parts import RunPart


Document = Mapping[str, Any]


def setting_of(
    options: ComparisonOptions,
    requests: StudyRequests,
    arms: Sequence[Arm],
    usual: Callable[[tuple[str, ...], bool], tuple[str, ...]],
) -> CommonSetting:
    """Return the setting that all arms have in common.

    Args:
        options: the command's options.
        requests: the requests that all arms serve.
        arms: the arms to run.
        usual: returns the default metrics from the classes and whether one trace is run without windows.
    """
    trace, classes = requests.trace, requests.classes
    check_served(options.targets, classes)
    targets = targets_for(options.targets, arms)
    targets = {name: targets.get(name, {}) for name in classes}
    classes = () if trace is not None and len(classes) == 1 else classes
    metrics = metrics_for(options.metrics, classes)
    if trace is not None:
        trace.check_classes(metrics or ())
    is_one_trace = trace is not None and trace.num_windows is None
    check_pooled(metrics or (), is_one_trace)
    return CommonSetting(
        workload=requests.name,
        num_requests=requests.source.num_requests,
        classes=classes,
        seeds=requests.seeds,
        stream=requests.stream,
        targets=targets,
        metrics=metrics or usual(classes, is_one_trace),
        inference=inference_of(options),
        trace=trace.about() if trace is not None else None,
        block_s=options.block_s,
    )


def check_pooled(metrics: Sequence[str], is_one_trace: bool) -> None:
    """Refuse to pool the runs of one trace, because all of them serve the same requests."""
    for name in metrics if is_one_trace else ():
        if pooled_latency(name) is not None:
            raise ConfigError(
                f"--metrics: {name} pools the requests of many runs, but a trace has one set of requests; "
                f"give {name.removeprefix('pooled_')}, or --trace-windows"
            )


def write_result(
    document: dict[str, Any],
    paths: OutputPaths,
    options: ComparisonOptions,
    findings_of: Callable[..., Findings],
    write_reports: Callable[[], None],
    seconds: float,
    lacking: str | None,
) -> int:
    """Write and print a result that took `seconds` to make; return the exit code.

    `lacking` names the missing runs where there are no figures; then only the document is written.
    """
    has_figures = lacking is None
    findings = findings_of(document, seconds)
    document["answer"] = findings_of(document).answer.to_json()

    def write() -> Sequence[Path]:
        """Write the result, its figure and its pages; return their paths."""
        result, figure, _ = outputs.study_files(findings, document, paths)
        written = outputs.write_files([result, figure] if has_figures else [result])
        if not has_figures or not paths.pages:
            return written
        write_reports()
        return [*written, *paths.pages]

    outputs.show(findings, write, options)
    if has_figures:
        return 0
    cli.say(options.command, f"{lacking}; see the outcomes in the result")
    return cli.EXIT_UNSUPPORTED


# --- saved sweeps: the runs of their Datasets in place of fresh ones ------------------------------

WANTED = "a Dataset of blis-jax sweep"
USED = {  # options that say how runs are judged and shown, not how they are made
    "arms", "criteria", "metrics", "confidence", "bootstrap", "random_state", "output", "figure", "report",
    "timeline", "overwrite", "quiet", "all", "no_cache",
}  # fmt: skip


def sweeps_of(options: ComparisonOptions, texts: Sequence[str]) -> tuple[SavedSweep, ...]:
    """Return the Datasets at the paths in `texts`; all must be of the same requests.

    Raises:
        ConfigError: an arm or an option asks for new runs, or a Dataset is damaged, is no sweep's, or is of other
            requests.
    """
    for text in texts:
        if Path(text).suffix not in FORMATS:
            raise ConfigError(
                f"{text!r} is an arm to run beside a Dataset of runs; give Datasets alone, or arms alone"
            )
    for name in options.given():
        if name not in USED:
            raise ConfigError(
                f"{as_option(name)} says how arms are run, but {texts[0]} has its runs; leave it out, "
                "or name the arms"
            )
    sweeps = tuple(SavedSweep(Path(text), load_kind(text, SWEEP, WANTED)) for text in texts)
    refuse_unlike([sweep.path for sweep in sweeps], [sweep.dataset for sweep in sweeps])
    return sweeps


def setting_of_sweeps(
    options: ComparisonOptions, sweeps: Sequence[SavedSweep], arms: Sequence[Arm]
) -> CommonSetting:
    """Return the setting that the arms of saved sweeps have in common."""
    first = sweeps[0]
    attributes, classes = first.dataset.attrs, first.classes
    is_trace = attributes["random_stream"] == STREAM
    about: Mapping[str, Any] = yaml.safe_load(attributes["spec"])
    if is_trace and about["windows"] is None:
        raise ConfigError(
            f"{first.path} was made from one trace, and a Dataset does not keep the requests that such a comparison "
            "resamples; sweep with --trace-windows, or compare with --trace"
        )
    classes = () if is_trace and len(classes) == 1 else classes
    metrics = metrics_for(options.metrics, classes)
    names = metrics or default_metrics(classes, [arm.config for arm in arms])
    lacking = [name for name in names if not all(_has(sweep, name) for sweep in sweeps)]
    if metrics and lacking:
        raise ConfigError(
            f"--metrics: {first.path} does not contain {lacking[0]}; leave it out, or name the arms to run them"
        )
    return CommonSetting(
        workload=attributes["workload"],
        num_requests=about.get("num_requests"),
        classes=classes,
        seeds=first.seeds,
        stream=STREAM if is_trace else "jax",
        targets=json.loads(attributes["slo_targets"]),
        metrics=tuple(name for name in names if name not in lacking),
        inference=inference_of(options),
        trace=about if is_trace else None,
    )


def _has(sweep: SavedSweep, name: str) -> bool:
    latency = pooled_latency(name)
    if latency is not None:
        return f"{latency}_top_us" in sweep.dataset
    return sweep.column(name) is not None


def arms_of(sweeps: Sequence[SavedSweep], command: str) -> list[tuple[SavedSweep, int, Arm]]:
    """Return the arms of all Datasets, each with its Dataset and its place there; an arm found in two Datasets is
    listed once.

    Raises:
        ConfigError: there is only one arm, or two different arms have one name.
    """
    arm_by_name: dict[str, tuple[SavedSweep, int, Arm]] = {}
    fingerprints: dict[str, str] = {}
    for sweep in sweeps:
        with refusing_damage(sweep.path, "sweep again"):
            arms = sweep.arms()
        for place, (arm, fingerprint) in enumerate(arms):
            if fingerprints.setdefault(arm.name, fingerprint) != fingerprint:
                raise ConfigError(
                    f"{sweep.path} and {arm_by_name[arm.name][0].path} have different arms named {arm.name!r}; "
                    "rename one strategy and sweep it again"
                )
            if arm.name in arm_by_name:
                cli.say(
                    command,
                    f"note: {sweep.path} has {arm.name} too; the runs of the first are taken",
                )
            else:
                arm_by_name[arm.name] = sweep, place, arm
    if len(arm_by_name) < 2:
        raise ConfigError(
            f"{sweeps[0].path} has one arm, {next(iter(arm_by_name))}, and nothing to compare it with; give another "
            "sweep of the same requests beside it"
        )
    return list(arm_by_name.values())


def experiment_of(setting: CommonSetting, sweep: SavedSweep) -> Experiment | None:
    """Return the experiment that repeats a saved sweep's run, for the report page; None if that needs a trace."""
    if setting.trace is not None:
        return None
    spec = parse_spec(sweep.dataset.attrs["spec"], str(sweep.path), None)
    return Experiment.on(spec, setting.seeds, setting.stream, targets=setting.targets)


def make_part(
    options: ComparisonOptions,
    part: RunPart,
    setting: CommonSetting,
    experiment: Experiment,
    journal: Journal,
    wanted: Sequence[tuple[ClusterConfig, str]],
) -> int:
    """Make one part of the runs of the named configurations, and print a summary; return the exit code."""
    classes, is_one = setting.classes, setting.is_one_trace
    with experiment.kept_runs(options.command, journal, len(wanted), classes, is_one) as kept:
        kept.prepare([config for config, _ in wanted])
        then = f"{with_output(options.line(), RESULT)} --resume"
        num_own, total = kept.make_part(part, wanted, then)
    if not options.quiet:
        render.show_answer(part.answer(journal.path, num_own, total))
    return 0
