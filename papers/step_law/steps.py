"""Measured engine steps: what was in the batch, and how long it was until the next step began."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK_TOKENS = 16  # vLLM's default, which the file does not state
GRAPH_SIZES = np.array([1, 2, 4, *range(8, 513, 8)])  # batches that vLLM's CUDA graphs are made for
TAIL = 0.01  # of the longest periods, left out: the server did something else besides
LEAST_STEPS = 100
COLUMNS = {
    "number": "step.id",
    "start_ns": "step.ts_start_ns",
    "duration_us": "step.duration_us",
    "prefills": "batch.num_prefill_reqs",
    "decodes": "batch.num_decode_reqs",
    "new_tokens": "batch.prefill_tokens",
    "finished": "batch.num_finished",
    "blocks": "kv.blocks_total_gpu",
    "free": "kv.blocks_free_gpu",
}
LABELS = ("experiment_id", "model", "workload", "tp")


@dataclass(frozen=True)
class MeasuredSteps:
    """Steps of one server whose next step was recorded too, in order; all arrays are float64."""

    name: str
    model: str
    workload: str
    tp: int
    num_recorded: int
    num_left_out: int  # longest periods
    period_us: Float[np.ndarray, "step"]  # from the start of the step to that of the next one
    duration_us: Float[np.ndarray, "step"]  # as the file has it
    new_tokens: Float[np.ndarray, "step"]  # of prompts
    prefills: Float[np.ndarray, "step"]  # requests
    decodes: Float[np.ndarray, "step"]
    finished: Float[np.ndarray, "step"]
    context: Float[np.ndarray, "step"]  # tokens that fit into the KV blocks in use

    @property
    def requests(self) -> Float[np.ndarray, "step"]:
        """Requests in the batch."""
        return self.prefills + self.decodes

    @property
    def graph_size(self) -> Float[np.ndarray, "step"]:
        """Requests of the CUDA graph that a step without prompts runs in."""
        place = np.searchsorted(GRAPH_SIZES, self.decodes)
        return GRAPH_SIZES[np.minimum(place, len(GRAPH_SIZES) - 1)].astype(np.float64)


def read_steps(path: Path) -> list[MeasuredSteps]:
    """The runs in a Parquet file of steps, in order of their names.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or a run has too few steps in a row.
    """
    import pandas

    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give a Parquet file of measured steps")
    try:
        table = pandas.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} is not a Parquet file ({error})") from None
    missing = [one for one in (*COLUMNS.values(), *LABELS) if one not in table.columns]
    if missing:
        raise ConfigError(f"{path} lacks the columns {', '.join(missing)}")
    return [_run_of(str(name), rows) for name, rows in table.groupby("experiment_id")]


def _run_of(name: str, rows: Any) -> MeasuredSteps:
    rows = rows.sort_values(COLUMNS["start_ns"])
    found = {key: rows[column].to_numpy(np.float64) for key, column in COLUMNS.items()}
    start = rows[COLUMNS["start_ns"]].to_numpy(np.int64)  # too large for a float64
    period = np.diff(start) / 1e3
    has_next = np.append(np.diff(found["number"]) == 1, False)
    has_work = found["prefills"] + found["decodes"] > 0
    chosen = np.flatnonzero(has_next & has_work)
    if len(chosen) < LEAST_STEPS:
        raise ConfigError(f"{name}: {len(chosen)} steps in a row, {LEAST_STEPS} are needed")
    kept = chosen[period[chosen] <= np.quantile(period[chosen], 1 - TAIL)]
    columns = ("duration_us", "new_tokens", "prefills", "decodes", "finished")
    first = rows.iloc[0]
    return MeasuredSteps(
        name=name,
        model=str(first["model"]),
        workload=str(first["workload"]),
        tp=int(first["tp"]),
        num_recorded=len(rows),
        num_left_out=len(chosen) - len(kept),
        period_us=period[kept],
        context=BLOCK_TOKENS * (found["blocks"] - found["free"])[kept],
        **{column: found[column][kept] for column in columns},
    )
