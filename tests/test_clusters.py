"""The examples for clusters: each is short, keeps its scheduler's schema, and asks for what our commands take."""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

import blis_jax
from sweeps.merge import MergeOptions
from sweeps.runs.parts import RunPart
from sweeps.sweep.command import SweepOptions

FOLDER = Path(__file__).parents[1] / "examples" / "clusters"


def of(required: str, **fields: Any) -> dict[str, Any]:
    """An object that has these fields and no others."""
    closed = {"type": "object", "properties": fields, "additionalProperties": False}
    return closed | {"required": required.split()}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
QUANTITY = {"type": ["string", "number"]}
LIST_OF_TEXTS = {"type": "array", "items": TEXT}
CONTAINER = of(
    "name image", name=TEXT, image=TEXT, workingDir=TEXT, command=LIST_OF_TEXTS, args=LIST_OF_TEXTS,
    resources=of("", requests={"type": "object", "additionalProperties": QUANTITY},
                 limits={"type": "object", "additionalProperties": QUANTITY}),
    volumeMounts={"type": "array", "items": of("name mountPath", name=TEXT, mountPath=TEXT)},
)  # fmt: skip
POD = of(
    "containers", restartPolicy={"enum": ["Never", "OnFailure"]},
    containers={"type": "array", "minItems": 1, "items": CONTAINER},
    volumes={"type": "array", "items": of(
        "name", name=TEXT, persistentVolumeClaim=of("claimName", claimName=TEXT))},
)  # fmt: skip
# what batch/v1 says of the fields of a Job; per-index retries need an indexed Job whose pods are not restarted
JOB = of(
    "apiVersion kind metadata spec", apiVersion={"const": "batch/v1"}, kind={"const": "Job"},
    metadata=of("name", name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}),
    spec=of("template completionMode completions", completionMode={"const": "Indexed"}, completions=COUNT,
            parallelism=COUNT, backoffLimitPerIndex=COUNT, template=of("spec", spec=POD)),
)  # fmt: skip


def said(words: str | list[str], folder: Path, **environ: str) -> list[list[str]]:
    """Return what a script calls `blis-jax` and `sbatch` with, the command first."""
    for name in ("blis-jax", "sbatch"):
        stub = folder / name
        stub.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" "" >> "{folder}/said"\n')
        stub.chmod(0o755)
    given = os.environ | environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(words, cwd=folder, env=given, check=True)
    return [call.splitlines() for call in (folder / "said").read_text().split("\n\n") if call]


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30


def test_the_page_shows_examples_whole() -> None:
    """A formatter takes the mark of a snippet in a block of Python for a comparison."""
    page = (FOLDER.parents[1] / "docs" / "how-to" / "many-machines.md").read_text(encoding="utf-8")
    shown = [line.split('"')[1] for line in page.splitlines() if line.startswith("--8<-- ")]
    assert shown == ["examples/clusters/on_slurm.py", "examples/clusters/parts.yaml"]
    assert all(f"examples/clusters/{path.name}" in page for path in FOLDER.iterdir())


def test_each_index_of_the_job_makes_its_part(tmp_path: Path) -> None:
    job = yaml.safe_load((FOLDER / "parts.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(job, JOB)
    spec = job["spec"]
    pod = spec["template"]["spec"]
    container, count = pod["containers"][0], spec["completions"]
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pod["volumes"]
    }
    words = [*container["command"], *container["args"]]
    for index in range(count):
        *_, (_, command, *rest) = said(words, tmp_path, JOB_COMPLETION_INDEX=str(index))
        options = SweepOptions.read(rest)
        assert command == "sweep" and options.part == RunPart(index + 1, count)
        assert options.resume and options.output == f"part-{index}.zarr"


def test_the_array_makes_its_parts_and_joins_them(tmp_path: Path) -> None:
    count = 3
    for number in range(1, count + 1):
        task = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": str(count)}
        said(["bash", str(FOLDER / "parts.sbatch")], tmp_path, SLURM_ARRAY_JOB_ID="7", **task)
    calls = (tmp_path / "said").read_text().split("\n\n")
    joining, *sweeps = [call.splitlines() for call in calls if call]
    parts = [SweepOptions.read(words[2:]) for words in sweeps]
    assert [one.part for one in parts] == [RunPart(number, count) for number in (1, 2, 3)]
    assert joining[:2] == ["sbatch", "--dependency=afterok:7"]
    _, name, *words = shlex.split(joining[-1])
    options = MergeOptions.read(words)
    assert name == "merge" and options.output == "out/parts/all.zarr"
    assert all(Path(str(one.output)).match(options.parts[0]) for one in parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module", "kind"),
    [
        ("on_slurm", "dask_jobqueue", "SLURMCluster"),
        ("on_kubernetes", "dask_kubernetes.operator", "KubeCluster"),
    ],
)
def test_dask_clusters_of_others_make_the_runs(
    name: str, module: str, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    distributed = pytest.importorskip(
        "distributed", reason="the extra `distributed` is not installed"
    )

    class Local(distributed.LocalCluster):  # type: ignore[name-defined,misc]
        def __init__(self, **given: Any) -> None:
            assert given
            super().__init__(n_workers=1, threads_per_worker=1, dashboard_address=None)

        def scale(self, jobs: int) -> None:
            assert jobs > 1

    stand_in = ModuleType(module)
    setattr(stand_in, kind, Local)
    for at in range(module.count(".") + 1):
        monkeypatch.setitem(sys.modules, module.rsplit(".", at)[0], stand_in)
    real, few = (
        blis_jax.run_grid,
        blis_jax.override(blis_jax.load_builtin("mixed"), num_requests=30),
    )

    def some(configs: Any, _: Any, seeds: Any, figures: Any) -> Any:
        return real(configs, few, seeds[:2], figures)

    monkeypatch.setattr(blis_jax, "run_grid", some)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert "ttft_p99_ms" in capsys.readouterr().out
