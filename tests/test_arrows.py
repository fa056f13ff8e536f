"""Imports between the folders of blis_jax: no new circle, and each one that is opened leaves the list for good."""

from __future__ import annotations

from pathlib import Path

from benchmarks.house.imports import between_folders, folder_of, imports, inside, parsed

EDGES = imports(inside(parsed(Path(__file__).parents[1]), "blis_jax"))
FOLDERS = between_folders(EDGES)
# Pairs of folders that import each other still; the way down comes first.
BOTH_WAYS = {
    ("engine", "memory"),  # memory changes the engine's state
    ("cluster", "policies"),  # a configuration checks the names of its policies
    ("cluster", "latency"),  # and asks step laws for sizes
    ("metrics", "results"),  # datasets hold figures, figures read records
}


def test_no_new_pair_of_folders_imports_each_other() -> None:
    found = {
        tuple(sorted((folder, other)))
        for folder, others in FOLDERS.items()
        for other in others
        if folder in FOLDERS.get(other, ())
    }
    assert found == {tuple(sorted(pair)) for pair in BOTH_WAYS}


def test_the_core_imports_nothing_of_ours() -> None:
    outside = {
        (name, other)
        for name, others in EDGES.items()
        if folder_of(name) == "core"
        for other in others
        if folder_of(other) != "core"
    }
    assert {other for _, other in outside} <= {"blis_jax", "blis_jax.lazy", "blis_jax.errors"}
