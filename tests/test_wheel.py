"""The wheel, built from the source distribution, holds what the commands need, away from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.allowed import ASKED, unanswered
from tests.support.recorded.reference_data import REPO_ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHIPPED = ("blis_jax", "papers", "surrogate", "sweeps", "LICENSE", "README.md", "pyproject.toml")
MOST_BYTES = 4_000_000


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's packages alone; what they depend on is that of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SHIPPED:
        source = REPO_ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / "source" / name, ignore=ignored)
        else:
            shutil.copy(source, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), "source"]
    subprocess.run(built, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    [wheel] = (folder / "dist").glob("*.whl")
    target = folder / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    return target


def test_it_is_small_and_has_the_types(installed: Path) -> None:
    [wheel] = (installed.parent / "dist").glob("*.whl")
    assert wheel.stat().st_size <= MOST_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    assert "blis_jax/py.typed" in names and not any("/tests/" in name for name in names)


@pytest.mark.parametrize("words", ASKED)
def test_commands_answer_without_the_repository(
    installed: Path, tmp_path: Path, words: str
) -> None:
    begin = "import sys, blis_jax; assert blis_jax.__file__.startswith(sys.argv.pop(1)); "
    code = f"{begin}from blis_jax.commands.door.dispatch import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(installed)]
    env = os.environ | {"PYTHONPATH": str(installed)}
    assert not unanswered(command, words, tmp_path, env)
