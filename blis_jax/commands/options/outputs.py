"""The files that a command writes: `--output`, `--figure`, `--report`, `--timeline`, checked before any run."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from blis_jax import lazy
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import refuse_existing, write_json

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.records.record import RunRecord
    from blis_jax.reports import drawing, page, perfetto, render
    from blis_jax.reports.findings import Findings
    from blis_jax.reports.pictures import Picture
    from blis_jax.reports.study import Study
else:  # drawing loads matplotlib, for which no answer waits
    drawing = lazy.Module("blis_jax.reports.drawing")
    page = lazy.Module("blis_jax.reports.page")
    perfetto = lazy.Module("blis_jax.reports.perfetto")
    render = lazy.Module("blis_jax.reports.render")

File = tuple[Path | None, Callable[[Path], object]]
Files = Iterable[File]


def timeline_option() -> Any:
    """Declare `--timeline`."""
    return option(
        str, None, "FILE", "trace of one run of each strategy to write, for ui.perfetto.dev",
    )  # fmt: skip


class PageOption(CommandOptions, title="report"):
    """A page with the comparison."""

    report: str | None = option(
        str, None, "FILE",
        "HTML page to write, with charts; it opens without a network",
    )  # fmt: skip


class ReportOptions(PageOption, title="report"):
    """A page with the comparison, and a trace of one run."""

    timeline: str | None = timeline_option()


@dataclass(frozen=True)
class OutputPaths:
    """The paths of a command's files; None for a file that is not written."""

    result: Path
    figure: Path | None = None
    report: Path | None = None
    timeline: Path | None = None

    @property
    def pages(self) -> list[Path]:
        """Return the paths of the page and the timeline, without None."""
        return [path for path in (self.report, self.timeline) if path is not None]

    def beside(self, ending: str) -> Path:
        """Return the result's path with another ending."""
        return self.result.with_suffix(ending)


def outputs_of(
    options: CommandOptions,
    usual: str | Path,
    kinds: Sequence[str] = (".json",),
    beside: Sequence[str] = (),
    is_kept: Callable[[Path], bool] | None = None,
) -> OutputPaths:
    """Return the paths of a command's files, checked.

    Args:
        options: the command's options: `overwrite`, and any of `output`, `figure`, `report`, `timeline`, `resume`.
        usual: the path of the result if `--output` is not given.
        kinds: endings that the result may have; .zarr is a folder.
        beside: endings of further files beside the result.
        is_kept: whether an existing file already holds the command's result.

    Raises:
        ConfigError: a path has another ending, cannot be written, or exists and may not be replaced.
    """
    named = vars(options)
    overwrite, resume = named["overwrite"], named.get("resume")
    output = named.get("output")
    result = with_ending(usual if output is None else output, "--output", kinds)
    if output is None and not overwrite and not (is_kept and is_kept(result)):
        result, wanted = _free_place(result, (result.suffix, *beside, ".png"), bool(resume)), result
        if result != wanted and not resume:
            cli.note_at_end(f"{wanted} holds another result; this one goes to {result}")
    figure = figure_path(named["figure"], result) if "figure" in named else None
    files = (result, *(result.with_suffix(ending) for ending in beside), figure)
    for path in files:
        if path is not None:
            cli.check_writable(path, is_folder=path.suffix == ".zarr")
    if is_kept is None or not is_kept(result):
        refuse_existing({"--output": files}, overwrite, resume)
    report = page_path(named.get("report"), overwrite or bool(resume))
    timeline = named.get("timeline")
    if timeline is not None:
        timeline = output_path(timeline, "--timeline", (".json",), overwrite or bool(resume))
    return OutputPaths(result, figure, report, timeline)


def _free_place(usual: Path, endings: Sequence[str], resume: bool) -> Path:
    """Return the first free path among `usual` and its numbered variants; with `resume` the last one in use."""
    place = before = usual
    for number in itertools.count(2):
        if not any(os.path.lexists(place.with_suffix(ending)) for ending in endings):
            return before if resume else place
        before, place = place, usual.with_name(f"{usual.stem}-{number}{usual.suffix}")
    raise AssertionError  # there is always a further number


def output_path(
    path: str | Path, name: str, kinds: Sequence[str], overwrite: bool, resume: bool | None = None
) -> Path:
    """Return the path given for the option `name`, checked like the paths of `outputs_of`."""
    checked = with_ending(path, name, kinds)
    cli.check_writable(checked, is_folder=checked.suffix == ".zarr")
    refuse_existing({name: checked}, overwrite, resume)
    return checked


def page_path(report: str | None, may_replace: bool) -> Path | None:
    """Return the path of the page for `--report`; None if no page is asked for."""
    if report is None:
        return None
    return output_path(report, "--report", (".html",), may_replace)


def figure_path(figure: str | None, result: Path) -> Path | None:
    """Return the path of the figure: `--figure`, a .png, or the result's name with .png; None for `--figure none`."""
    if figure == "none":
        return None
    path = result.with_suffix(".png") if figure is None else Path(figure)
    if path.suffix != ".png":
        raise ConfigError(f"--figure: {figure or str(path)!r} must end in .png, or be none")
    return path


def with_ending(path: str | Path, name: str, kinds: Sequence[str]) -> Path:
    """Return the path of the option `name`; refuse it if its ending is not in `kinds`, unless `kinds` is empty."""
    checked = Path(path)
    if kinds and checked.suffix not in kinds:
        raise ConfigError(f"{name}: {str(checked)!r} must end in {' or '.join(kinds)}")
    return checked


def write_files(files: Files) -> list[Path]:
    """Write each file by its function; return those whose path is not None."""
    written = []
    for path, write in files:
        if path is not None:
            with cli.writing(path):
                write(path)
            written.append(path)
    return written


def study_files(
    findings: Findings,
    document: Mapping[str, Any],
    paths: OutputPaths,
    title: str = "",
    command: str = "",
    provenance: Mapping[str, Any] = MappingProxyType({}),
) -> list[File]:
    """Return the files of a study: its document, its first picture if it has one, and its page.

    The page states the command that reproduces it, but not the time taken, so that equal results give equal pages.
    """
    timeless = replace(findings, answer=replace(findings.answer, time=None))
    figure = paths.figure if findings.pictures else None
    return [
        (paths.result, lambda path: write_json(path, document)),
        (figure, lambda path: draw(findings.pictures[0], path)),
        (paths.report, lambda path: page.write(timeless, path, title, command, provenance)),
    ]


def write_pages(
    study: Study,
    records: Mapping[str, RunRecord],
    configs: Mapping[str, ClusterConfig],
    seed: int | None,
    paths: OutputPaths,
    findings: Findings | None = None,
) -> None:
    """Write the page of a study and the timeline of one run of each strategy, if `paths` has them.

    Args:
        study: the comparison.
        records: the run of each strategy, for the timeline.
        configs: the cluster of each strategy.
        seed: the seed of the records; None if requests are not drawn from a seed.
        paths: the paths of the files.
        findings: the findings on the page; None means those of `study`.
    """
    if paths.report is not None:
        with cli.writing(paths.report):
            page.write_study(study, paths.report, findings)
    if paths.timeline is not None:
        runs = [
            perfetto.TracedRun(name, record, configs[name].block_size_in_tokens)
            for name, record in records.items()
        ]
        about = {"command": study.command, "seed": "none" if seed is None else str(seed)}
        with cli.writing(paths.timeline):
            perfetto.write_trace(runs, paths.timeline, about)


def draw(picture: Picture, path: Path) -> None:
    """Write a picture as a PNG; matplotlib is imported only now."""
    drawing.save(picture, path)


def show(findings: Findings, write: Callable[[], Sequence[Path]], options: CommandOptions) -> None:
    """Print findings, then write files and name them; print nothing if the options are `--quiet`.

    The answer is printed first, since pictures take longer. Files are written even if printing fails.
    """
    named = vars(options)
    try:
        if not named.get("quiet"):
            render.show(findings, named.get("all", False), named.get("explain", False))
            sys.stdout.flush()
    finally:
        files = write()
    if files and not named.get("quiet"):
        print(f"Written: {', '.join(map(str, files))}")
