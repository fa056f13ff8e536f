"""What a report page carries, read from its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def embedded(path: Path) -> dict[str, Any]:
    """The JSON of the findings that the page shows."""
    found = re.search(
        r'<script type="application/json" id="report-data">(.*?)</script>', path.read_text(), re.S
    )
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def rows(content: dict[str, Any], name: str, **where: Any) -> list[dict[str, Any]]:
    """The rows of a table that have these values, by heading; a verdict has none."""
    (table,) = [one for one in content["sections"] if one.get("name") == name]
    columns = [column or "verdict" for column in table["columns"]]
    pairs = [list(zip(columns, row, strict=True)) for row in table["rows"]]
    every = [dict(reversed(row)) for row in pairs]  # the first of equal headings is a key
    return [row for row in every if all(row[name] == value for name, value in where.items())]


def row(content: dict[str, Any], name: str, **where: Any) -> dict[str, Any]:
    """The only one."""
    (found,) = rows(content, name, **where)
    return found


def marks(content: dict[str, Any], title: str, panel: str, label: str = "") -> list[dict[str, Any]]:
    """The marks of a panel in the picture that has these words in its title."""
    (picture,) = [one for one in content["pictures"] if title in one["title"]]
    (found,) = [one for one in picture["panels"] if one["title"] == panel]
    return [mark for mark in found["marks"] if mark["label"] == label]
