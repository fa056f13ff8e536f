"""llm-d clusters in a closed loop: layouts of equal instances at several concurrencies, all figures in a row."""

from __future__ import annotations

import re
from collections.abc import Sequence

from blis_jax.errors import ConfigError
from blis_jax.predict.scene import ClosedLoad, RealServer, Scene
from blis_jax.predict.units import AskedCell, Row, Unit, gpu_name, whole

NAME = "llmd_runs"
COLUMNS = ("model", "hw", "arch", "config", "isl", "osl", "conc")
VALUES = ("req_s", "tok_s", "ttft_mean", "ttft_p50", "tpot", "e2e_mean", "e2e_p50")
FIGURES = {name: name for name in VALUES} | {"tpot": "tpot_mean"}
MAX_NUM_SEQS = 128
BATCHED_TOKENS = 8192
ROUNDS = 4
MEMORY_SHARE = 0.93  # with it, as many requests fit as these servers held
_EQUAL = re.compile(r"(\d+) TP(\d+)")


def units(rows: Sequence[Row]) -> list[Unit]:
    """One simulation for each row."""
    found = []
    for place, row in enumerate(rows):
        try:
            scene = scene_of(row)
        except ConfigError as error:
            found.append(Unit((place,), None, problem=str(error)))
            continue
        cells = tuple(AskedCell(place, column, name) for column, name in FIGURES.items())
        found.append(Unit((place,), scene, cells))
    return found


def scene_of(row: Row) -> Scene:
    """The cluster of a row and its load.

    Raises:
        ConfigError: its layout or GPU is not known.
    """
    layout = _EQUAL.fullmatch(str(row["config"]).strip())
    if str(row["arch"]) != "aggregated" or layout is None:
        raise ConfigError(
            f"layout {row['config']!r} ({row['arch']}) is not predicted; only aggregated layouts such "
            "as '4 TP2' are"
        )
    server = RealServer(
        str(row["model"]) if "/" in str(row["model"]) else f"meta-llama/{row['model']}",
        gpu_name(row["hw"]),
        int(layout[2]),
        int(layout[1]),
        max_num_running_reqs=MAX_NUM_SEQS,
        max_num_scheduled_tokens=BATCHED_TOKENS,
        memory_utilization=MEMORY_SHARE,
    )
    load = ClosedLoad(whole(row, "conc"), whole(row, "isl"), whole(row, "osl"), ROUNDS)
    return Scene(server, load)
