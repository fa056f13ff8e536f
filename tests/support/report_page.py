"""What a report page carries, read from its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def embedded(path: Path) -> dict[str, Any]:
    """The JSON that the page draws."""
    found = re.search(
        r'<script type="application/json" id="report-data">(.*?)</script>', path.read_text(), re.S
    )
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def rows(table: dict[str, list[Any]], **where: Any) -> list[dict[str, Any]]:
    """The rows of a table that have these values."""
    names = list(table)
    every = [dict(zip(names, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return [row for row in every if all(row[name] == value for name, value in where.items())]


def row(table: dict[str, list[Any]], **where: Any) -> dict[str, Any]:
    """The only one."""
    (found,) = rows(table, **where)
    return found
