"""What commands that set arms side by side have in common: their setting and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.metrics.scalars import pooled_latency
from sweeps.compare.document import CommonSetting
from sweeps.runs.experiment import metrics_for, targets_for
from sweeps.runs.options import ComparisonOptions, inference_of
from sweeps.runs.requests import StudyRequests

if TYPE_CHECKING:
    from pathlib import Path

    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.reports.findings import Findings
    from sweeps.strategies.arms import Arm

Document = Mapping[str, Any]


def setting_of(
    options: ComparisonOptions,
    requests: StudyRequests,
    arms: Sequence[Arm],
    usual: Callable[[tuple[str, ...], bool], tuple[str, ...]],
) -> CommonSetting:
    """Return what all arms have in common.

    Args:
        options: what is asked for.
        requests: what all arms serve.
        arms: those that are run.
        usual: makes the metrics if none are given, from the classes and whether one trace is run without windows.
    """
    trace, classes = requests.trace, requests.classes
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
        targets=targets_for(options.targets, arms),
        metrics=metrics or usual(classes, is_one_trace),
        inference=inference_of(options),
        trace=trace.about() if trace is not None else None,
        block_s=options.block_s,
    )


def check_pooled(metrics: Sequence[str], is_one_trace: bool) -> None:
    """Refuse to pool the runs of one trace, which all serve the same requests."""
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
    """Write and print a result that took so many seconds; return the exit code.

    `lacking` says what is missing of runs where there are no figures; then the document alone is written.
    """
    has_figures = lacking is None
    found = findings_of(document, seconds)
    document["answer"] = findings_of(document).answer.to_json()
    figure = paths.figure if has_figures and found.pictures else None

    def write() -> Sequence[Path]:
        """Write the result, its figure and its pages; return their paths."""
        files: outputs.Files = [
            (paths.result, lambda path: write_json(path, document)),
            (figure, lambda path: outputs.draw(found.pictures[0], path)),
        ]
        written = outputs.write_files(files)
        if not has_figures or not paths.pages:
            return written
        write_reports()
        return [*written, *paths.pages]

    outputs.show(found, write, options)
    if has_figures:
        return 0
    cli.say(options.command, f"{lacking}; see the outcomes in the result")
    return cli.EXIT_UNSUPPORTED
