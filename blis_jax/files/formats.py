"""Formats of the written files: a kind's number rises when an earlier reader would misread a present file."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

from blis_jax.errors import ConfigError


class Format(NamedTuple):
    """The present format of a kind of file."""

    number: int
    file: str  # description, and ending of its name
    written_by: str


FORMATS = {
    "dataset": Format(2, "runs × seeds or requests, `.zarr` or `.nc`", "sweep, run, dataset, robustness, sensitivity"),
    "comparison": Format(1, "a result, `.json`", "compare"),
    "ablation": Format(1, "a result, `.json`", "ablate"),
    "selection": Format(1, "a result, `.json`", "select"),
    "limits": Format(1, "a result, `.json`", "limits"),
    "curve": Format(1, "a result, `.json`", "curve"),
    "capacity": Format(1, "a result, `.json`", "capacity"),
    "evolve check": Format(1, "a result, `.json`", "evolve check"),
    "calibration": Format(1, "a fit to a measured run, `.json`", "calibrate"),
    "step law": Format(1, "a fit to measured steps, `.json`", "calibrate"),
    "surrogate": Format(2, "a folder with `about.json` and weights", "surrogate.train"),
    "ledger": Format(1, "a chain of records, `.jsonl`, its figures beside it", "ledger, promote"),
    "journal": Format(3, "finished parts of a command that can go on, `.jsonl`", "every command with --resume"),
    "evaluation": Format(1, "a line of standard input or output", "evaluate --jsonl"),
    "whole run": Format(1, "tables of one run, `.npz`", "`figures_of` with a store"),
    "kept runs": Format(1, "figures of a paper's runs, `.json`", "papers"),
}  # fmt: skip


def number_of(kind: str) -> int:
    """Return the number of the present format, which is written into files of a kind."""
    return FORMATS[kind].number


def refuse_newer(number: object, kind: str, source: str) -> None:
    """Refuse a file whose format is later than the present one.

    Raises:
        ConfigError: the format is later.
    """
    if isinstance(number, Integral) and int(number) > number_of(kind):
        raise ConfigError(
            f"{source} is a {kind} of format {number}, and this version of blis_jax reads formats up to "
            f"{number_of(kind)}; install the version that wrote it, or a later one"
        )


def table() -> str:
    """Return the formats as a table in Markdown."""
    lines = ["| kind | format | file | written by |", "|---|---|---|---|"]
    for kind, each in FORMATS.items():
        lines.append(f"| {kind} | {each.number} | {each.file} | {each.written_by} |")
    return "\n".join(lines)
