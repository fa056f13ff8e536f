"""The measurement on a GPU: it needs none of our libraries, goes on where it was stopped, ends at a wrong bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.golden import committed
from benchmarks.gpu import measure
from benchmarks.gpu.__main__ import PAGE, PROJECTED_LANES
from benchmarks.gpu.measure import GOLDEN, PARTS, Log, fill, projected, table, workload
from blis_jax.workload.drawing.plan import compile_plan
from blis_jax.workload.spec import load_builtin

# all that pyproject.toml names and such a machine has not
BLOCKED = """
import runpy, sys
MISSING = {"pydantic", "pydantic_core", "zarr", "skopt", "sklearn", "SALib", "moocore", "jinja2", "rich",
           "matplotlib", "flax", "optax", "orbax", "threadpoolctl", "pyarrow", "h5py", "h5netcdf"}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
NAME = "scheduling/cov_horizon_lat_s42"


def test_the_workload_read_without_a_checker_is_drawn_as_the_checked_one() -> None:
    read, checked = compile_plan(workload()), compile_plan(load_builtin("mixed"))
    assert (read.shape, read.names) == (checked.shape, checked.names)
    assert jax.tree.structure(read.params) == jax.tree.structure(checked.params)
    pairs = zip(jax.tree.leaves(read.params), jax.tree.leaves(checked.params), strict=True)
    assert all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def test_golden_runs_to_compare_with_are_here() -> None:
    for name in GOLDEN:
        track, run = name.split("/")
        assert (committed() / track / "scenarios" / f"{run}.npz").exists()


def test_a_wrong_bit_ends_it_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "unequal", lambda name: ["ttft_us"])
    words = ["--golden", NAME, "--output", str(tmp_path / "gpu.jsonl")]
    assert measure.main(words) == 1 and measure.main(words) == 1
    assert f"{NAME} is not equal to its record in ttft_us" in capsys.readouterr().err
    assert len(Log(tmp_path / "gpu.jsonl").lines) == 1


def test_what_is_there_is_not_made_again_and_what_failed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made:
        def __init__(self, lanes: int) -> None:
            self.lanes = lanes

        def measured(self, part: str) -> dict[str, object]:
            made.append((self.lanes, part))
            if self.lanes == 4096:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")
            of_whole = {"end_to_end_s": 0.5, "not_whole": 1, "scan_steps": 3648}
            return {"compile_s": 2.0, "bytes": 3e9, "device_s": 0.25} | of_whole

    made: list[tuple[int, str]] = []
    monkeypatch.setattr(measure, "Parts", Made)
    path, forever = tmp_path / "gpu.jsonl", time.monotonic() + 1e6
    assert fill(Log(path), (), (256,), 0.0) == "" and not made
    fill(Log(path), (), (256,), forever)
    fill(Log(path), (), (256, 4096), forever)
    assert made == [(lanes, part) for lanes in (256, 4096) for part in PARTS]
    text = table(Log(path), (), (256, 4096), PAGE.read_text(encoding="utf-8"))
    row = (
        f"| 256 | 512 | {projected(PAGE.read_text(encoding='utf-8'))[256]} | 1,024 | 3,648 | 0.250"
    )
    assert row in text and "|  | 1 runs of these did not come to their end |" in text
    assert "| 4,096 | RESOURCE_EXHAUSTED: out of memory |" in text
    assert {line.count("|") for line in text.splitlines()[2:]} == {12}


def test_the_page_projects_every_number_of_lanes() -> None:
    assert set(projected(PAGE.read_text(encoding="utf-8"))) == set(PROJECTED_LANES)


def test_it_is_imported_without_what_such_a_machine_lacks() -> None:
    """The fast form of the next one: `--help` imports all that it needs."""
    started = [sys.executable, "-c", BLOCKED, "benchmarks.gpu.measure", "--help"]
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(started, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--minutes" in done.stdout, done.stderr


@pytest.mark.slow
def test_it_needs_jax_numpy_yaml_and_xarray_alone(tmp_path: Path) -> None:
    words = ("--golden", NAME, "--lanes", "2", "--output", str(tmp_path / "gpu.jsonl"))

    def measured(minutes: str) -> str:
        started = [sys.executable, "-c", BLOCKED, "benchmarks.gpu.measure", "--minutes", minutes]
        env = os.environ | {"PYTHONPATH": os.getcwd()}
        done = subprocess.run([*started, *words], env=env, capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = measured("8")
    assert "Of 1 golden runs 1 were made and equal" in printed and "| 2 |" in printed
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [line.get("part", "golden") for line in lines] == ["golden", *PARTS]
    assert all(line["device_s"] > 0 and line["bytes"] > 0 for line in lines[1:])
    assert lines[1]["not_whole"] == 0
    assert measured("0") == printed
