"""What the headers of packages and modules say of files and imports, held against the tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.source_tree import imports, inside, parsed

ROOT = Path(__file__).parents[1]
TREE = parsed(ROOT)
EDGES = imports(TREE)
FILES = {
    str(path.relative_to(ROOT)) for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts
}


def named_files(module: ast.Module) -> Iterator[str]:
    """Python files that docstrings of a module name in backticks."""
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from re.findall(r"`([a-z_/]+\.py)`", ast.get_docstring(node) or "")


def test_every_file_that_a_docstring_names_is_there() -> None:
    missing = {
        (name, file)
        for name, module in TREE.items()
        for file in named_files(module)
        if not any(f"/{path}".endswith(f"/{file}") for path in FILES)
    }
    assert missing == set()


def outside(package: str, *allowed: str) -> set[tuple[str, str]]:
    """Imports from a package of ours to modules that neither belong to it nor are allowed."""
    homes = package, *allowed
    return {
        (name, other)
        for name in inside(TREE, package)
        for other in EDGES[name]
        if other != "blis_jax" and not any(f"{other}.".startswith(f"{home}.") for home in homes)
    }


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("blis_jax.core.revision_rules", ("blis_jax.lazy",)),
        ("blis_jax.core.kinds", ()),
        ("blis_jax.core.pytrees", ("blis_jax.lazy",)),
        (
            "blis_jax.core.types",
            (
                "blis_jax.core.revision_rules",
                "blis_jax.core.kinds",
                "blis_jax.core.pytrees",
                "blis_jax.lazy",
            ),
        ),
    ],
)
def test_modules_that_say_they_import_nothing_do_so(package: str, allowed: tuple[str, ...]) -> None:
    assert outside(package, *allowed) == set()


def test_the_engine_imports_no_results_metrics_and_commands() -> None:
    above = ("blis_jax.records", "blis_jax.results", "blis_jax.metrics", "blis_jax.commands")
    found = {(name, other) for name, other in outside("blis_jax.engine") if other.startswith(above)}
    assert found == set()


def test_a_missing_file_would_be_seen() -> None:
    assert list(named_files(ast.parse('"""See `steps/begin.py`."""'))) == ["steps/begin.py"]
