"""The measured vLLM runs: scenes, figures, and mean steps to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from blis_jax.errors import ConfigError
from papers.real_servers.predict.collections.vllm_runs import COLUMNS, shared_prefix_load, units
from papers.real_servers.predict.scene import AskedCell, Scene, StagedLoad
from papers.real_servers.predict.simulation import deployment_of
from papers.real_servers.step_fit import MeanStep

ESTIMATES = {
    "blis-trained-physics": "BLIS trained-physics",
    "blis-evolved": "BLIS evolved",
    "blis-roofline": "BLIS roofline",
    "aiconfigurator-estimate": "AIConfigurator",
    "llm-optimizer-estimate": "LLM-Optimizer",
    "vidur": "Vidur",
}
LAST_BLOCK = 8  # tokens of a prompt that is in the cache but for its last block, on average


@dataclass(frozen=True)
class VllmRun:
    """A run of a server."""

    name: str
    model: str
    workload: str
    hardware: str
    scene: Scene
    cells: Mapping[tuple[str, int | None], AskedCell]  # by figure and stage
    measured: Mapping[AskedCell, float]  # ms
    published: Mapping[str, Mapping[AskedCell, float]]  # by the simulator's column


def read_runs(path: Path) -> list[VllmRun]:
    """Read the runs of a file, in order of their names.

    Raises:
        ConfigError: there is no such file, it lacks a column, or a run cannot be simulated.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give a file of measured vLLM runs with --data")
    table = pandas.read_csv(path)
    missing = [name for name in (*COLUMNS, "actual") if name not in table.columns]
    if missing:
        raise ConfigError(f"{path} lacks the columns {', '.join(missing)}")
    rows: list[dict[str, Any]] = table.to_dict("records")
    runs = []
    for unit in units(rows):
        if unit.scene is None:
            raise ConfigError(f"{path}: {unit.problem}")
        first = rows[unit.rows[0]]
        known_estimates = [name for name in ESTIMATES if name in table.columns]
        runs.append(
            VllmRun(
                str(first["run"]),
                str(first["model"]),
                shared_prefix_load(str(first["run"]))[0],
                unit.scene.server.hardware,
                unit.scene,
                {(cell.figure, cell.stage): cell for cell in unit.cells},
                {cell: float(rows[cell.row]["actual"]) for cell in unit.cells},
                {
                    name: {
                        cell: float(rows[cell.row][name])
                        for cell in unit.cells
                        if rows[cell.row][name] == rows[cell.row][name]
                    }
                    for name in known_estimates
                },
            )
        )
    return sorted(runs, key=lambda run: run.name)


def mean_steps(runs: Sequence[VllmRun]) -> list[MeanStep]:
    """Return every stage of every run as the mean step of its server, by Little's law."""
    steps = []
    for run in runs:
        load = run.scene.load
        assert isinstance(load, StagedLoad)
        for number, stage in enumerate(load.stages):
            values = {
                name: run.measured[run.cells[name, number]] for name in ("itl_mean", "e2e_mean")
            }
            decodes = stage.rate * values["e2e_mean"] / 1e3
            prompts = stage.rate * values["itl_mean"] / 1e3
            steps.append(
                MeanStep(
                    run.name,
                    deployment_of(run.scene.server),
                    1e3 * values["itl_mean"],
                    decodes,
                    decodes * (load.prompt + load.output / 2),
                    prompts,
                    LAST_BLOCK,
                    LAST_BLOCK * load.prompt,
                )
            )
    return steps


def shortened(scene: Scene, most_s: float) -> Scene:
    """Cut the scene's stages to at most `most_s` seconds."""
    load = scene.load
    assert isinstance(load, StagedLoad)
    stages = tuple(
        replace(stage, duration_s=min(stage.duration_s, most_s)) for stage in load.stages
    )
    return replace(scene, load=replace(load, stages=stages))


def warm(scene: Scene, arrival_s: np.ndarray) -> np.ndarray:
    """Return whether each request arrives after every user has sent its prompt once, `[request]`."""
    load = scene.load
    assert isinstance(load, StagedLoad)
    return arrival_s >= load.num_users / load.stages[0].rate
