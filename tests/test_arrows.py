"""Imports point down: no circle between folders or modules, none to a layer above, none inside a function."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.source_tree import (
    between_folders,
    circles,
    folder_of,
    imports,
    inner_imports,
    inside,
    nodes,
    parsed,
)

TREE = parsed(Path(__file__).parents[1])
EDGES = imports(TREE)
OURS = imports(inside(TREE, "blis_jax"))
SWEEPS = imports(inside(TREE, "sweeps"))
FOLDERS = between_folders(OURS)

# Each may import those before it, of modules on the top floor of blis_jax all.
LAYERS = (
    "core", "files", "latency", "workload", "policies", "cluster", "tables", "prefix_index", "memory", "engine",
    "records", "metrics", "results", "statistics", "traces", "runs", "reports", "calibrate", "commands",
)  # fmt: skip
PACKAGES = ("blis_jax", "surrogate", "sweeps", "papers", "benchmarks")
POLICIES = "sweeps.strategies.policies"  # whose modules strategy files and options name


def test_every_folder_has_a_layer() -> None:
    assert set(FOLDERS) == set(LAYERS)


def test_folders_import_only_layers_below() -> None:
    up = {
        (folder, other)
        for folder, others in FOLDERS.items()
        for other in others
        if LAYERS.index(other) > LAYERS.index(folder)
    }
    assert up == set()


def test_packages_import_only_packages_below() -> None:
    up = {
        (name, other)
        for name, others in EDGES.items()
        for other in others
        if PACKAGES.index(other.split(".")[0]) > PACKAGES.index(name.split(".")[0])
    }
    assert up == set()


def test_no_modules_of_any_package_import_each_other_in_a_circle() -> None:
    assert circles(EDGES) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folders_of_a_package_import_each_other_in_a_circle(package: str) -> None:
    assert circles(between_folders(imports(inside(TREE, package)))) == []


def test_every_module_of_sweeps_is_imported_named_or_a_command() -> None:
    used = set().union(*EDGES.values())
    texts = {
        text.value
        for module in TREE.values()
        for text in nodes(module, ast.Constant)
        if isinstance(text.value, str)
    }
    unused = [
        name
        for name in SWEEPS
        if name not in used | texts
        and not any(other.startswith(f"{name}.") for other in SWEEPS)
        and not name.startswith(f"{POLICIES}.")
        and "__main__" not in (name.split(".")[-1], *_names_compared(TREE[name]))
    ]
    assert unused == []


def _names_compared(module: ast.Module) -> list[object]:
    """Return the texts of `if __name__ == "__main__"` on the top floor of a module."""
    tests = [node.test for node in module.body if isinstance(node, ast.If)]
    return [text.value for test in tests for text in nodes(test, ast.Constant)]


def test_the_core_imports_nothing_of_ours() -> None:
    outside = {
        other
        for name, others in OURS.items()
        if folder_of(name) == "core"
        for other in others
        if folder_of(other) != "core"
    }
    assert outside <= {"blis_jax", "blis_jax.lazy", "blis_jax.errors"}


def test_imports_stand_at_the_top_but_in_what_declares_a_command() -> None:
    found = {
        name: len(inner_imports(module))
        for name, module in inside(TREE, "blis_jax").items()
        if inner_imports(module) and folder_of(name) != "commands" and not name.endswith("__main__")
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import a", 0),
        ("def f():\n    import a\n    from b import c\n", 2),
        ("class A:\n    def f(self):\n        if self:\n            import a\n", 1),
        (
            "async def f():\n    def g():\n        import a\n",
            1,
        ),  # once, though two functions have it
    ],
)
def test_an_import_inside_a_function_would_be_seen(text: str, count: int) -> None:
    assert len(inner_imports(ast.parse(text))) == count


def test_a_circle_would_be_seen_through_a_function() -> None:
    tree = {
        "blis_jax.a.b": ast.parse("def f():\n    from blis_jax.c import d\n"),
        "blis_jax.c.d": ast.parse("import blis_jax.a.b\n"),
    }
    edges = imports(tree)
    assert circles(edges) == [{"blis_jax.a.b", "blis_jax.c.d"}]
    assert circles(between_folders(edges)) == [{"a", "c"}]
