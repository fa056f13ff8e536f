"""No two public classes of one name, so that a name says which class is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("blis_jax", "sweeps", "surrogate", "papers")
# Each is the word of its own field: an engine's table, a request in a protocol, a page of a trace.
ALIKE = {
    "Answer", "Batch", "Demand", "Grid", "Header", "Network", "Report", "Request", "Row", "Sizes",
    "Window",
}  # fmt: skip


def public_classes() -> dict[str, list[str]]:
    """The modules that define a public class, by its name."""
    found = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_public_classes_have_names_of_their_own() -> None:
    found = public_classes()
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in ALIKE} == {}
    assert set(twice) == ALIKE  # none is excused that need not be
