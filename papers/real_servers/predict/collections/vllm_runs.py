"""vLLM runs, one row for each figure of each stage: the collection of BLIS's own validation."""

from __future__ import annotations

from collections.abc import Sequence

from blis_jax.errors import ConfigError
from papers.real_servers.predict.scene import (
    AskedCell,
    LoadStage,
    RealServer,
    Row,
    Scene,
    StagedLoad,
    Unit,
    gpu_name,
    share,
    whole,
)

NAME = "vllm_runs"
COLUMNS = ("run", "model", "hardware", "tp", "stage_index", "metric_name")
VALUES = ("actual",)
METRICS = ("ttft_mean", "ttft_p90", "ttft_p99", "itl_mean", "e2e_mean", "e2e_p90", "e2e_p99")
WHOLE_RUN = -1
MAX_NUM_SEQS = 128  # of these servers, which the files do not state
DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_MEMORY_SHARE = 0.9


def units(rows: Sequence[Row]) -> list[Unit]:
    """Return a simulation for the rows of each run; runs of one scene were measured apart."""
    by_run: dict[tuple[str, Scene], list[int]] = {}
    refused = []
    for place, row in enumerate(rows):
        try:
            by_run.setdefault((str(row["run"]), scene_of(row)), []).append(place)
        except ConfigError as error:
            refused.append(Unit((place,), None, problem=str(error)))
    made = [unit for (_, scene), places in by_run.items() for unit in _of_run(rows, places, scene)]
    return made + refused


def scene_of(row: Row) -> Scene:
    """Return the run that a row belongs to: its server and load.

    Raises:
        ConfigError: its workload, GPU or a number is not known.
    """
    _, load = shared_prefix_load(str(row["run"]))
    server = RealServer(
        str(row["model"]),
        gpu_name(row["hardware"]),
        whole(row, "tp"),
        max_num_running_reqs=MAX_NUM_SEQS,
        max_num_scheduled_tokens=whole(row, "max_num_batched_tokens", DEFAULT_BATCHED_TOKENS),
        memory_utilization=share(row, "gpu_mem_util", DEFAULT_MEMORY_SHARE),
    )
    return Scene(server, load)


def _of_run(rows: Sequence[Row], places: Sequence[int], scene: Scene) -> list[Unit]:
    """Return the run with the cells that can be filled, and a unit for each row that asks for something else."""
    cells, refused = [], []
    for place in places:
        try:
            cells.append(_cell(rows[place], place, scene))
        except ConfigError as error:
            refused.append(Unit((place,), None, problem=str(error)))
    made = [Unit(tuple(cell.row for cell in cells), scene, tuple(cells))] if cells else []
    return made + refused


def _cell(row: Row, place: int, scene: Scene) -> AskedCell:
    name, stage = str(row["metric_name"]), whole(row, "stage_index")
    if name not in METRICS:
        raise ConfigError(f"metric_name {name!r} is not predicted; known are {', '.join(METRICS)}")
    number = len(scene.load.stages)  # type: ignore[union-attr]
    if not WHOLE_RUN <= stage < number:
        raise ConfigError(f"stage_index is {stage}, the workload has stages 0 to {number - 1}")
    return AskedCell(place, VALUES[0], name, None if stage == WHOLE_RUN else stage)


# --- its workloads --------------------------------------------------------------------------------


def _load(
    rates: tuple[float, ...], duration_s: float, users: int, prompt: int, output: int
) -> StagedLoad:
    return StagedLoad(tuple(LoadStage(rate, duration_s) for rate in rates), users, prompt, output)


# inference-perf's profiles with shared prefixes; every user sends one prompt again and again. Longer names first.
SHARED_PREFIX = {
    "general-lite": _load((2.5, 6.0), 600, 9 * 5, 100 + 447, 248),
    "reasoning-lite": _load((1.0,), 1200, 23 * 1, 100 + 934, 1448),
    "general": _load((8.0, 20.0), 600, 9 * 5, 100 + 447, 248),
    "codegen": _load((5.0, 10.0), 600, 11 * 4, 100 + 466, 247),
    "roleplay": _load((6.0,), 1200, 10 * 5, 150 + 600, 251),
}


def shared_prefix_load(run: str) -> tuple[str, StagedLoad]:
    """Return the name of the workload that a run's name holds, and its load.

    Raises:
        ConfigError: it holds none that is known.
    """
    lower = run.lower()
    for name, load in SHARED_PREFIX.items():
        if name in lower:
            return name, load
    known = ", ".join(sorted(SHARED_PREFIX))
    raise ConfigError(f"run {run!r} names no known workload; its name must hold one of {known}")
