"""The wheel in an empty environment, with the newest versions that pyproject.toml allows, or the oldest, for one of the
Pythons that it names: its commands, away from the checkout, then golden runs.

python -m tests.support.allowed TURN    the Python of this turn, in an environment of its own under build/

Where that Python or a package index is missing, nothing is shown; that is said and is no failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CLASSIFIER = "Programming Language :: Python :: "
TESTS = ("tests/test_golden.py", "tests/test_golden_2026_08.py", "tests/workload/drawing")
# of the extra for developers; the others check texts, types and pages, which other versions do not change
TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "jaxtyping", "beartype")
# Commands of the wheel, and what must stand in what they print; a promotion waits for a decision at its first gate.
ASKED = {
    "sweep --vmap-seeds 2": "Asked:   Does it08_opt beat baseline",
    "compare iter00_baseline iter08_token_budget --seeds 2": "Verdict:",
    "optimize iter08_token_budget --calls 3 --seeds 2 --output o.json": "Verdict:",
    "capacity mixed --targets all.ttft_ms=2000@80 --seeds 32 --output c.json": "Verdict:",
    "promote iter13_class_lead@found --output p --dry-run": "translate: 27 files",
    "papers": "results; ",
    "calibrate --help": "usage: blis-jax calibrate",
    "papers openevolve --help": "usage: blis-jax papers openevolve",
    "ledger --help": "usage: blis-jax ledger",
}
AT_GATE = 3  # exit code of a promotion that waits
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


def unanswered(command: Sequence[str], words: str, folder: Path, env: Mapping[str, str]) -> str:
    """What a command of `ASKED` printed in an empty folder if it failed or lacks its answer; empty if it did not."""
    done = subprocess.run(
        [*command, *words.split()], cwd=folder, env=env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    is_right = done.returncode == (AT_GATE if words.startswith("promote") else 0)
    return "" if is_right and ASKED[words] in said else f"blis-jax {words}: {said[-2000:]}"


def wrong_commands(place: Path) -> list[str]:
    """What the commands of an installed wheel printed that do not answer, away from the checkout."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        command = [str(place / "bin" / "blis-jax")]
        said = [unanswered(command, words, Path(folder), env) for words in ASKED]
    return [each for each in said if each]


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
    if said := failed([found, "-m", "venv", "--clear", str(place)]):
        return nothing_shown(f"Python {version} makes no environment ({said.splitlines()[-1]})")
    python = str(place / "bin" / "python")
    # what the tests import is compiled when they import it; all packages would take half of the time
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    try:
        if failed([*pip, "--dry-run", "--no-deps", "--ignore-installed", "jax"]):
            return nothing_shown("no package index can be reached")
        if said := failed([sys.executable, "-m", "build", "--outdir", str(place / "dist"), "."]):
            print(f"allowed: the wheel is not built:\n{said[-2000:]}")
            return 1
        wheels = map(str, (place / "dist").glob("*.whl"))
        said = failed([*pip, "--upgrade", "--upgrade-strategy", "eager", *wheels, *pinned])
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
    if wrong := wrong_commands(place):
        print("allowed: commands of the wheel fail:", *wrong, sep="\n")
        return 1
    if said := failed([*pip, *tools(), *pinned]):  # after the commands: tools bring what these lack
        print(f"allowed: the tests' tools do not install:\n{said[-2000:]}")
        return 1
    env = os.environ | {"BLIS_JAX_TEST_PROGRAMS": "quick", "PYTHONPATH": str(ROOT)}
    workers = os.environ.get("WORKERS", "2")
    tests = [python, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", *TESTS]
    return subprocess.run(tests, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
