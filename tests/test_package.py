"""The package's public names, which are found when they are asked for."""

import importlib
import subprocess
import sys
import types

import pytest

import blis_jax
import blis_jax.calibrate
from tests.support.recorded.reference_data import REPO_ROOT


def test_public_names_stay_what_they_are_once_their_modules_are_imported():
    for _ in range(2):
        for name in blis_jax.__all__:
            assert not isinstance(getattr(blis_jax, name), types.ModuleType), name
    importlib.import_module("blis_jax.runs.many_runs")
    assert callable(blis_jax.simulate)


@pytest.mark.parametrize("package", [blis_jax, blis_jax.calibrate])
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


def test_importing_is_cheap() -> None:
    dear = ("jax", "pandas", "xarray")
    code = (
        f"import sys, blis_jax.calibrate; print([name for name in {dear} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
