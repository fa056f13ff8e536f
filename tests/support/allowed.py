"""Golden runs on the newest versions that pyproject.toml allows, or the oldest, for one of the Pythons that it names.

python -m tests.support.allowed TURN    the Python of this turn, in an environment of its own under build/

Where that Python or a package index is missing, nothing is shown; that is said and is no failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CLASSIFIER = "Programming Language :: Python :: "
TESTS = ("tests/test_golden.py", "tests/test_golden_2026_08.py", "tests/workload/drawing")
# of the extra for developers; the others check texts, types and pages, which other versions do not change
TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "jaxtyping", "beartype")
MOST_S = 600  # of installing: CI has an end
# of the versions that are told
TOLD = ("jax", "numpy", "scipy", "pandas", "xarray", "zarr", "pydantic")


def project() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    said: dict[str, Any] = document["project"]
    return said


def tools() -> list[str]:
    """The requirements of the tests that are made here, of those of developers."""
    required = project()["optional-dependencies"]["dev"]
    return [one for one in required if one.partition(">=")[0] in TOOLS]


def lowest() -> list[str]:
    """The oldest version of every dependency, as a requirement."""
    return [each.replace(">=", "==") for each in project()["dependencies"]]


def pythons() -> list[str]:
    """The versions of Python that the project says it runs on, such as 3.12."""
    classifiers = project()["classifiers"]
    found = [each.removeprefix(CLASSIFIER) for each in classifiers if each.startswith(CLASSIFIER)]
    return [version for version in found if "." in version]


def interpreter(version: str) -> str | None:
    """The path of a Python of this version; None without one."""
    ask = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    env = os.environ | {"PYENV_VERSION": version}  # for who keeps several with pyenv
    try:
        return subprocess.run(ask, env=env, capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None


def failed(words: Sequence[str]) -> str:
    """What a command printed if it failed; empty if it did not."""
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=MOST_S
    )
    return (done.stdout + done.stderr or "it failed") if done.returncode else ""


def nothing_shown(why: str) -> int:
    """Say that nothing is shown; the exit code."""
    print(f"allowed: {why}; nothing is shown about other versions", flush=True)
    return 0


def main(turn: int, folder: Path = ROOT / "build" / "allowed") -> int:
    """Install the newest versions for this turn's Python, at odd turns the oldest, and run the tests.

    Returns:
        The exit code of the tests.
    """
    version = pythons()[turn % len(pythons())]
    end, pinned = ("oldest", lowest()) if turn % 2 else ("newest", [])
    if (found := interpreter(version)) is None:
        return nothing_shown(f"Python {version} is not on this machine")
    place = folder / f"{version}-{end}"
    if said := failed([found, "-m", "venv", str(place)]):
        return nothing_shown(f"Python {version} makes no environment ({said.splitlines()[-1]})")
    python = str(place / "bin" / "python")
    # what the tests import is compiled when they import it; all packages would take half of the time
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    try:
        if failed([*pip, "--dry-run", "--no-deps", "--ignore-installed", "jax"]):
            return nothing_shown("no package index can be reached")
        said = failed(
            [*pip, "--upgrade", "--upgrade-strategy", "eager", "-e", ".", *pinned, *tools()]
        )
    except subprocess.TimeoutExpired:
        return nothing_shown(f"the package index takes more than {MOST_S} s")
    if said:
        print(
            f"allowed: the {end} dependencies do not install on Python {version}:\n{said[-2000:]}"
        )
        return 1
    versions = f"from importlib.metadata import version as v; print(*(f'{{n}} {{v(n)}}' for n in {TOLD}), sep=', ')"
    print(f"allowed: Python {version}, {end} dependencies", flush=True)
    subprocess.run([python, "-c", versions], check=True)
    env = os.environ | {"BLIS_JAX_TEST_PROGRAMS": "quick", "PYTHONPATH": str(ROOT)}
    workers = os.environ.get("WORKERS", "2")
    tests = [python, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", *TESTS]
    return subprocess.run(tests, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
