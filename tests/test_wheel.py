"""The wheel, built from the source distribution, holds what the commands need, away from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.recorded.reference_data import REPO_ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHIPPED = ("blis_jax", "papers", "surrogate", "sweeps", "LICENSE", "README.md", "pyproject.toml")
MOST_BYTES = 4_000_000
ASKED = {  # what must stand in what they print; a promotion waits for a decision at its first gate
    "sweep --vmap-seeds 2": "Asked:   Does it08_opt beat baseline",
    "compare iter00_baseline iter08_token_budget --seeds 2": "Verdict:",
    "optimize iter08_token_budget --calls 3 --seeds 2 --output o.json": "Verdict:",
    "capacity mixed --targets all.ttft_ms=2000@80 --seeds 32 --output c.json": "Verdict:",
    "promote iter13_class_lead@found --output p --dry-run": "translate: 27 files",
    "calibrate --help": "usage: blis-jax calibrate",
    "papers openevolve --help": "usage: blis-jax papers openevolve",
    "ledger --help": "usage: blis-jax ledger",
}


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
    done = subprocess.run(
        [sys.executable, "-c", code, str(installed), *words.split()],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == (3 if words.startswith("promote") else 0) and ASKED[words] in said, (
        said
    )
