"""`--report` and `--timeline`, for every command that simulates: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag
from blis_jax.errors import ConfigError
from blis_jax.reports.library import check_installed

REPORT = Flag(
    "report", str, None, "FILE", "HTML page to write: the comparison with charts, in one file "
    "that opens without a network",
)  # fmt: skip
TIMELINE = Flag(
    "timeline", str, None, "FILE", "JSON trace of one run to write (of each strategy), for Perfetto "
    "(ui.perfetto.dev): steps, queues, KV use, spans of each request",
)  # fmt: skip
FLAGS = (REPORT, TIMELINE)


class ReportPaths(NamedTuple):
    """Where the page and the trace go; None if they are not asked for."""

    report: Path | None = None
    timeline: Path | None = None

    @property
    def files(self) -> list[Path]:
        """Those that are asked for."""
        return [path for path in self if path is not None]

    @property
    def is_asked(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.files)


def check_timeline(given: Mapping[str, Any]) -> None:
    """Refuses a trace that Perfetto would not take for one."""
    if "timeline" in given and Path(given["timeline"]).suffix != ".json":
        raise ConfigError(f"--timeline: {given['timeline']!r} must end in .json")


def paths_of(given: Mapping[str, Any]) -> ReportPaths:
    """The checked paths; a file that exists is replaced only with --overwrite or --resume."""
    paths = ReportPaths(
        *(Path(given[name]) if name in given else None for name in ("report", "timeline"))
    )
    if paths.report is not None:
        if paths.report.suffix != ".html":
            raise ConfigError(f"--report: {str(paths.report)!r} must end in .html")
        check_installed("--report")
    check_timeline(given)
    for name, path in paths._asdict().items():
        if path is None:
            continue
        cli.check_writable(path)
        if path.exists() and "overwrite" not in given and "resume" not in given:
            raise ConfigError(f"{path} exists; give --overwrite to replace it, or another --{name}")
    return paths
