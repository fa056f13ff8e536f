"""vLLM runs, one row for each figure of each stage: the collection of BLIS's own validation."""

from __future__ import annotations

from collections.abc import Sequence

from blis_jax.errors import ConfigError
from blis_jax.predict.collections.workloads import shared_prefix_load
from blis_jax.predict.scene import RealServer, Scene
from blis_jax.predict.units import AskedCell, Row, Unit, gpu_name, share, whole

NAME = "vllm_runs"
COLUMNS = ("run", "model", "hardware", "tp", "stage_index", "metric_name")
VALUES = ("actual",)
METRICS = ("ttft_mean", "ttft_p90", "ttft_p99", "itl_mean", "e2e_mean", "e2e_p90", "e2e_p99")
WHOLE_RUN = -1
MAX_NUM_SEQS = 128  # of these servers, which the files do not state
DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_MEMORY_SHARE = 0.9


def units(rows: Sequence[Row]) -> list[Unit]:
    """One simulation for the rows of equal runs."""
    by_scene: dict[Scene, list[int]] = {}
    refused = []
    for place, row in enumerate(rows):
        try:
            by_scene.setdefault(scene_of(row), []).append(place)
        except ConfigError as error:
            refused.append(Unit((place,), None, problem=str(error)))
    made = [one for scene, places in by_scene.items() for one in _of_run(rows, places, scene)]
    return made + refused


def scene_of(row: Row) -> Scene:
    """The run that a row belongs to.

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
    """The run with the cells that can be filled, and a unit for each row that asks for something else."""
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
