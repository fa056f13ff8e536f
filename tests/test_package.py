"""The package's public names, which are found when they are asked for."""

import ast
import importlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

import blis_jax
import blis_jax.calibrate
from tests.support.allowed import project
from tests.support.public_names import PACKAGES
from tests.support.recorded.reference_data import REPO_ROOT


def test_public_names_stay_what_they_are_once_their_modules_are_imported():
    for _ in range(2):
        for package in PACKAGES:
            for name in package.__all__:
                found = getattr(package, name)
                assert callable(found) or not isinstance(found, types.ModuleType), name
        importlib.import_module("blis_jax.runs.many_runs")
        importlib.import_module("sweeps.evaluate")
    assert callable(blis_jax.simulate)


@pytest.mark.parametrize("package", [*PACKAGES, blis_jax.calibrate])
def test_every_public_name_is_there_and_no_other(package: types.ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nme'"):
        package.nme  # noqa: B018


MOST_BYTES = 25_000_000  # of what a clone checks out


def test_the_checkout_is_small() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPO_ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("it is not a clone")
    files = [REPO_ROOT / name for name in listed.stdout.split("\0") if name]
    assert sum(file.stat().st_size for file in files if file.is_file()) <= MOST_BYTES


SHIPPED = ("blis_jax", "papers", "surrogate", "sweeps")
# what packages of other names are, or bring
ELSEWHERE = {"jaxlib", "orbax", "pil", "pydantic_core", "skopt", "sklearn", "yaml"}


def test_what_ships_imports_what_is_installed_with_it() -> None:
    """Of pyproject.toml's dependencies and extras; developers' tools are for types alone."""
    listed = project()
    extras = {
        name: needed for name, needed in listed["optional-dependencies"].items() if name != "dev"
    }
    named = [re.split(r"[\[>=]", one)[0] for one in sum(extras.values(), listed["dependencies"])]
    known = {name.lower().replace("-", "_") for name in named} | ELSEWHERE
    found = {
        f"{file.relative_to(REPO_ROOT)}: {name}"
        for package in SHIPPED
        for file in (REPO_ROOT / package).rglob("*.py")
        for name in _imported(ast.parse(file.read_text(encoding="utf-8")))
        if name.lower() not in {*known, *SHIPPED, *sys.stdlib_module_names}
    }
    assert not found


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the packages that are imported when a program runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        else:
            yield from _imported(node)


def test_importing_is_cheap() -> None:
    dear = ("jax", "pandas", "xarray")
    code = (
        f"import sys, blis_jax.calibrate; print([name for name in {dear} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
