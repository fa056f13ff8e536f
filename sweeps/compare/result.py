"""What commands that set arms side by side have in common: their setting, runs that are kept, their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from sweeps.runs import options as common_options

if TYPE_CHECKING:
    from pathlib import Path

    from blis_jax.commands.flags.report_flags import ReportPaths
    from blis_jax.files.journal import Journal
    from blis_jax.workload.source import RequestSource
    from sweeps.compare.document import ComparedSetting
    from sweeps.runs.options import ArmProgress, Paths
    from sweeps.strategies.arms import Arm

Document = Mapping[str, Any]


def setting_of(
    given: Mapping[str, Any],
    arms: Sequence[Arm],
    command: str,
    usual: Callable[[tuple[str, ...], bool], tuple[str, ...]],
) -> tuple[RequestSource, ComparedSetting]:
    """The requests and what all arms have in common.

    Args:
        given: the options.
        arms: those that are run.
        command: its module, for remarks.
        usual: the metrics if none are given, from the classes and whether one trace is run without windows.
    """
    from sweeps.compare.document import ComparedSetting

    spec, workload, seeds, stream = common_options.requests_for(given, arms, command)
    trace = common_options.trace_in(spec)
    classes = common_options.classes_of(spec)
    classes = () if trace is not None and len(classes) == 1 else classes
    metrics = common_options.metrics_for(given, classes)
    if trace is not None:
        trace.check_classes(metrics or ())
    is_one_trace = trace is not None and trace.num_windows is None
    check_pooled(metrics or (), is_one_trace)
    return spec, ComparedSetting(
        workload=workload,
        num_requests=spec.num_requests,
        classes=classes,
        seeds=seeds,
        stream=stream,
        targets=common_options.targets_for(given, arms),
        metrics=metrics or usual(classes, is_one_trace),
        inference=common_options.inference_of(given),
        trace=trace.about() if trace is not None else None,
        block_s=given.get("block_s"),
    )


def check_pooled(metrics: Sequence[str], is_one_trace: bool) -> None:
    """Refuses to pool the runs of one trace, which all serve the same requests."""
    from blis_jax.metrics.scalars import pooled_latency

    for name in metrics if is_one_trace else ():
        if pooled_latency(name) is not None:
            raise ConfigError(
                f"--metrics: {name} pools the requests of many runs, but a trace has one set of requests; "
                f"give {name.removeprefix('pooled_')}, or --trace-windows"
            )


@contextmanager
def kept_on_interruption(journal: Journal, progress: ArmProgress, command: str) -> Iterator[None]:
    """Says where the finished runs are if the user stops the command; removes the line of progress."""
    try:
        yield
    except KeyboardInterrupt:
        cli.say(command, f"{journal.path} has what was done; --resume goes on from there")
        raise
    finally:
        progress.clear()


class Outputs(NamedTuple):
    """Where a result goes, and what draws, reports and prints it."""

    paths: Paths
    reports: ReportPaths
    draw: Callable[[Document, Path], None]
    write_reports: Callable[[], None]
    show: Callable[[Document], None]


def write_result(
    given: Mapping[str, Any], document: Document, outputs: Outputs, has_figures: bool
) -> list[Path]:
    """Writes and prints a result; without figures only the document. Returns what was written."""
    paths = outputs.paths
    with cli.writing(paths.result):
        write_json(paths.result, document)
    written = [paths.result]
    if paths.figure is not None and has_figures:
        with cli.writing(paths.figure):
            outputs.draw(document, paths.figure)
        written.append(paths.figure)
    if outputs.reports.is_asked and has_figures:
        outputs.write_reports()
        written += outputs.reports.files
    if "quiet" not in given:
        outputs.show(document)
        print(f"Written: {', '.join(map(str, written))}")
    return written
