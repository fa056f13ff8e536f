"""vLLM deployments at several concurrencies: closed loops with fixed lengths, mean TTFT and TPOT in a row."""

from __future__ import annotations

from collections.abc import Sequence

from blis_jax.errors import ConfigError
from blis_jax.predict.scene import ClosedLoad, RealServer, Scene
from blis_jax.predict.units import AskedCell, Row, Unit, gpu_name, whole

NAME = "inferencex"
COLUMNS = ("model_path", "system", "precision", "isl", "osl", "tp_size", "concurrency")
VALUES = ("silicon_ttft_ms", "silicon_tpot_ms")
FIGURES = {"silicon_ttft_ms": "ttft_mean", "silicon_tpot_ms": "tpot_mean"}
SUFFIX = {"fp16": "", "bf16": "", "fp8": "-fp8", "fp4": "-w4a16", "int4": "-w4a16"}
MAX_NUM_SEQS = 1024
BATCHED_TOKENS = 8192
ROUNDS = 4
MEMORY_SHARE = 0.9


def units(rows: Sequence[Row]) -> list[Unit]:
    """One simulation for each row."""
    found = []
    for place, row in enumerate(rows):
        try:
            cells = tuple(AskedCell(place, column, name) for column, name in FIGURES.items())
            found.append(Unit((place,), scene_of(row), cells))
        except ConfigError as error:
            found.append(Unit((place,), None, problem=str(error)))
    return found


def scene_of(row: Row) -> Scene:
    """The deployment of a row and its load.

    Raises:
        ConfigError: its GPU, precision or layout is not known.
    """
    precision = str(row["precision"])
    if precision not in SUFFIX:
        raise ConfigError(f"precision {precision!r} is not known; use one of {', '.join(SUFFIX)}")
    if (stages := whole(row, "pp_size", 1)) != 1:
        raise ConfigError(f"pp_size is {stages}; pipelines of several stages are not simulated")
    concurrency = whole(row, "concurrency")
    server = RealServer(
        named(str(row["model_path"]), precision),
        gpu_name(row["system"]),
        whole(row, "tp_size"),
        max_num_running_reqs=max(concurrency, MAX_NUM_SEQS),
        max_num_scheduled_tokens=BATCHED_TOKENS,
        memory_utilization=MEMORY_SHARE,
        data_parallel=whole(row, "attention_dp_size", 1),
    )
    return Scene(server, ClosedLoad(concurrency, whole(row, "isl"), whole(row, "osl"), ROUNDS))


def named(model: str, precision: str) -> str:
    """The model's name with the precision of its weights."""
    base = model.lower().removesuffix("-fp8").removesuffix("-fp4")
    return base + SUFFIX[precision]
