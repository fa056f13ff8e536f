"""How the benchmark commands hand over their tables: on stdout, and between the markers of a page."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Put the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`; the rest of the page stays.

    Raises:
        SystemExit: the page lacks a marker.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise SystemExit(f"{page} has no {begin} followed by {end}; put both where the table goes")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def hand_over(text: str, page: Path | None, name: str) -> int:
    """Print the table and write it into the page, if one is given; the exit code."""
    print(text)
    if page is not None:
        write_between_markers(page, name, text)
    return 0


def refuse(sentence: str) -> int:
    """Say why the command does nothing; the exit code."""
    print(sentence, file=sys.stderr)
    return 2
