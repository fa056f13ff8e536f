"""What the checks gave, for people: a table, and how often they agree with the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

DIFFERS = "≠"
WIDTH = 150


def print_table(checks: Sequence[Mapping[str, Any]], file: TextIO) -> None:
    """A table of id, statement, the catalogue's verdict, ours, and the figures."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=file, width=None if file.isatty() else WIDTH, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("statement", ratio=3)
    table.add_column("catalogue", min_width=9, ratio=1)
    table.add_column("here", min_width=9, ratio=1)
    table.add_column("figures", ratio=6)
    for check in checks:
        here = check["verdict"] if check["agrees"] else f"{DIFFERS} {check['verdict']}"
        lines = _figures(check["claims"])
        if check["remark"]:
            lines.append(f"Remark: {check['remark']}")
        figures = "\n".join(lines)
        row = (check["id"], check["statement"], check["recorded_verdict"], here, figures)
        table.add_row(*(text.replace("[", r"\[") for text in row), end_section=True)
    console.print(table)


def _figures(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a claim; those that could not be run for one reason together."""
    lines = [f"· {claim['text']}" for claim in claims if "value" in claim]
    reasons = [claim["reason"] for claim in claims if "value" not in claim]
    for reason in dict.fromkeys(reasons):
        lines.append(f"· {reasons.count(reason)} of {len(claims)} claims not run: {reason}")
    return lines


def summary(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many of each verdict, and where the catalogue says otherwise."""
    verdicts = [check["verdict"] for check in checks]
    counts = [f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)]
    differing = [check["id"] for check in checks if not check["agrees"]]
    lines = [f"{len(checks)} checked: {', '.join(counts)}."]
    if differing:
        lines.append(f"{DIFFERS} differs from the catalogue: {', '.join(differing)}.")
    elif checks:
        lines.append("All as in the catalogue.")
    return lines


def listing(entries: Sequence[Any]) -> list[str]:
    """Every entry with its verdict in the catalogue and its statement."""
    return [f"{entry.id:6} {entry.verdict:16} {entry.statement}" for entry in entries]
