"""What every command of the repository does: it explains itself, and is ready before JAX starts."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from papers.calibration.__main__ import DATA

ROOT = Path(__file__).parents[2]
PACKAGES = ("blis_jax", "sweeps", "surrogate", "papers", "benchmarks")
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path != ROOT / "blis_jax" / "__main__.py"  # the door to the others
    and re.search(
        r"\bParser\(\s*prog=|\brun_command\(|\.as_main$|import main$|^main = COMMANDS",
        path.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    and '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)


def test_the_commands_are_found() -> None:
    by_module = {"blis_jax.sweep", "sweeps.optimize", "surrogate.coverage"}
    assert by_module | {"sweeps.capacity.__main__", "sweeps.dataset.__main__"} <= set(COMMANDS)
    assert len(COMMANDS) >= 40


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = importlib.import_module(name).main
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(command(["--help"]))
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m {name.removesuffix('.__main__')} ")
    assert "%(" not in shown and "%%" not in shown


# --- the backend ----------------------------------------------------------------------------------

PREPARES = {
    "blis_jax.calibrate": "examples/measured_run --output {}/fit.json",
    "papers.real_servers.predict": "examples/predict/runs.csv --output {}/predicted.csv",
    "blis_jax.run": "--model meta-llama/llama-3.1-8b-instruct --workload-spec mixed",
    "blis_jax.sweep": "--vmap-seeds 2 --output {}/sweep.zarr",
    "benchmarks.coverage.calibration": "",
    "benchmarks.derivatives": "--cases apart",
    "benchmarks.derivatives.sawtooth": "",
    "benchmarks.search": "--output {}",
    "papers.calibration": "--output {}",
    "papers.corrected": "--output {}",
    "papers.openevolve": "--output {}",
    "papers.sensitivity": "--output {}",
    "papers.routing_evolution": "--output {}",
    "papers.strategy_evolution": "--output {}",
    "papers.real_servers": "",
    "papers.step_law": "",
    "papers.two_tracks": "--output {}",
    "sweeps.ablate": "iter08_token_budget@published --against iter00_baseline --output {}/a.json",
    "sweeps.capacity": "mixed --targets all.ttft_ms=200 --output {}/c.json",
    "sweeps.curve": "vllm --output {}/curve.json",
    "sweeps.recommend": "meta-llama/llama-3.1-8b-instruct H100 --targets all.ttft_ms=200 --output {}/r.json",
    "sweeps.compare": "iter00_baseline iter08_token_budget --output {}/c.json",
    "sweeps.dataset": "iter08_token_budget --out {}/d.zarr",
    "sweeps.evaluate": "",
    "sweeps.evolve.check": "tests/support/evolve/__init__.py examples/evolve/task.yaml --output {}/c.json",
    "sweeps.evolve.read": "examples/evolve/routing.go --output {}/mine.py",
    "sweeps.evolve.search": "examples/evolve/task.yaml --programs 3 --output {}/found.py",
    "sweeps.gradient": "iter08_token_budget@published --perturb max_num_scheduled_tokens=64",
    "sweeps.init": "mine --in {}",
    "sweeps.ledger": "replay 5",
    "sweeps.optimize": "iter08_token_budget --output {}/o.json",
    "sweeps.principles": "--output {}",
    "sweeps.promote": "iter13_class_lead@found --output {}/p --dry-run",
    "sweeps.review": "--output {}",
    "sweeps.robustness": "a=iter00_baseline b=iter08_token_budget --output {}/r.zarr",
    "sweeps.limits": "iter00_baseline iter08_token_budget --limits critical=0 --output {}/l.json",
    "sweeps.select": "iter00_baseline iter08_token_budget --indifference 1 --output {}/s.json",
    "sweeps.sensitivity": "iter08_token_budget --output {}",
}
WATCHED = """
import runpy, sys
from blis_jax import backend

def seen(**_):
    print("late" if "jax" in sys.modules else "in time")
    raise SystemExit(0)

backend.prepare_backend = seen
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def test_commands_that_prepare_the_backend_are_watched() -> None:
    found = {
        name.removesuffix(".__main__")
        for name in COMMANDS
        if " prepare_backend("
        in inspect.getsource(inspect.getmodule(importlib.import_module(name).main))
    }
    assert len(found) >= 15 and found <= set(PREPARES)


@pytest.mark.parametrize("name", PREPARES)
def test_the_backend_is_prepared_before_jax_is_imported(name: str, tmp_path: Path) -> None:
    """Later, the cache of compiled programs is not used, and XLA's flags may not count."""
    if name == "papers.calibration" and not DATA.is_dir():
        pytest.skip(f"{DATA} is not here")
    if name == "sweeps.evolve.read":
        pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, name, *PREPARES[name].format(tmp_path).split()],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split("\n")[0] == "in time", done.stdout + done.stderr
