"""The linear law of a step's time and its terms, fitted to measured steps, and the laws from sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import LAST
from blis_jax.core.views import Members, StepBatch
from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import Deployment, gpu_description
from blis_jax.latency.model_description import model_description
from blis_jax.latency.registry import SIZED, find
from blis_jax.lazy import jax, pandas
from blis_jax.statistics.intervals import Estimate, relative_change

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
        """Return the number of requests in the batch."""
        return self.prefills + self.decodes

    @property
    def graph_size(self) -> Float[np.ndarray, "step"]:
        """Return the requests of the CUDA graph that a step without prompts runs in."""
        place = np.searchsorted(GRAPH_SIZES, self.decodes)
        return GRAPH_SIZES[np.minimum(place, len(GRAPH_SIZES) - 1)].astype(np.float64)


def read_steps(path: Path) -> list[MeasuredSteps]:
    """Read the runs in a Parquet file of steps, in order of their names.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or a run has too few steps in a row.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give a Parquet file of measured steps")
    try:
        table = pandas.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} is not a Parquet file ({error})") from None
    missing = [column for column in (*COLUMNS.values(), *LABELS) if column not in table.columns]
    if missing:
        raise ConfigError(f"{path} lacks the columns {', '.join(missing)}")
    return [_run_of(str(name), rows) for name, rows in table.groupby("experiment_id")]


def _run_of(name: str, rows: Any) -> MeasuredSteps:
    rows = rows.sort_values(COLUMNS["start_ns"])
    by_name = {key: rows[column].to_numpy(np.float64) for key, column in COLUMNS.items()}
    start = rows[COLUMNS["start_ns"]].to_numpy(np.int64)  # too large for a float64
    period = np.diff(start) / 1e3
    has_next = np.append(np.diff(by_name["number"]) == 1, False)
    has_work = by_name["prefills"] + by_name["decodes"] > 0
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
        context=BLOCK_TOKENS * (by_name["blocks"] - by_name["free"])[kept],
        **{column: by_name[column][kept] for column in columns},
    )


# --- the law ---------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from jaxtyping import Float


NUM_STRETCHES = 20
CONFIDENCE = 0.95  # of all intervals of a table together

Column = Callable[[MeasuredSteps], np.ndarray]

BASE: dict[str, Column] = {
    "per step": lambda steps: np.ones_like(steps.period_us),
    "per new prompt token": lambda steps: steps.new_tokens,
    "per request in decode": lambda steps: steps.decodes,
}
TERMS: dict[str, Column] = {
    "context": lambda steps: steps.context,
    "prefill attention": lambda steps: steps.new_tokens * steps.context / steps.requests,
    "requests in prefill": lambda steps: steps.prefills,
    "a prompt in the step": lambda steps: (steps.prefills > 0).astype(np.float64),
    "CUDA-graph padding": lambda steps: np.where(
        steps.prefills > 0, 0.0, steps.graph_size - steps.decodes
    ),
    "requests that finish": lambda steps: steps.finished,
}


@dataclass(frozen=True)
class LinearLaw:
    """A fit, and its absolute errors on stretches of time that the fit did not see."""

    names: tuple[str, ...]
    coefficients: Float[np.ndarray, "term"]  # µs per unit, of the fit to all steps
    residual_us: Float[np.ndarray, "step"]  # measured less fitted, of the fit to all steps
    errors_us: Float[np.ndarray, "step"]  # absolute, out of sample


def fitted(steps: MeasuredSteps, terms: Sequence[str]) -> LinearLaw:
    """Fit the base law with these terms of `TERMS`, by least squares.

    Its errors are those on `NUM_STRETCHES` stretches of time, each left out of a fit to the others.
    """
    columns = {**BASE, **{name: TERMS[name] for name in terms}}
    matrix = np.column_stack([column(steps) for column in columns.values()])
    errors = np.empty_like(steps.period_us)
    for stretch in np.array_split(np.arange(len(matrix)), NUM_STRETCHES):
        others = np.ones(len(matrix), bool)
        others[stretch] = False
        coefficients = _solved(matrix[others], steps.period_us[others])
        errors[stretch] = np.abs(steps.period_us[stretch] - matrix[stretch] @ coefficients)
    whole = _solved(matrix, steps.period_us)
    residual = steps.period_us - matrix @ whole
    return LinearLaw(tuple(columns), whole, residual, errors)


def _solved(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)
    solution: np.ndarray = np.linalg.lstsq(matrix / scale, wanted, rcond=None)[0]
    return solution / scale


def change(before: LinearLaw, after: LinearLaw, num_intervals: int) -> Estimate:
    """Return the change of the mean absolute error in %, with an interval that holds together with the
    others of its table.

    The stretches of time are its samples, so that steps that follow each other count as one.
    """

    def means(law: LinearLaw) -> np.ndarray:
        return np.array([errors.mean() for errors in np.array_split(law.errors_us, NUM_STRETCHES)])

    confidence = 1 - (1 - CONFIDENCE) / num_intervals
    return relative_change(means(before), means(after), confidence)


def by_quarters(values: np.ndarray, residual: np.ndarray) -> list[float]:
    """Return the mean residual in each quarter of the steps, from the smallest values to the largest, µs.

    Equal values are put in random order, so that the order in time has no effect.
    """
    order = np.lexsort((np.random.default_rng(0).random(len(values)), values))
    return [float(residual[quarter].mean()) for quarter in np.array_split(order, 4)]


# --- laws from sizes ------------------------------------------------------------------------------

GPU = "H100"  # of the servers; the file does not state it
SERVED: Mapping[str, str] = {  # models of the file: shipped descriptions
    "llama-2-70b": "meta-llama/llama-3.1-70b-instruct",  # differs in vocabulary and context alone
    "llama-2-70b-hf": "meta-llama/llama-3.1-70b-instruct",
    "codellama-34b": "codellama/codellama-34b-instruct-hf",
    "Qwen/Qwen3-32B": "qwen/qwen3-32b",
}


def predicted_us(steps: MeasuredSteps, name: str, gpu: str = GPU) -> np.ndarray | None:
    """Return the time of every step by the model `name`, whole µs; None if the served model has no description.

    The file has no single requests: each is given the mean context of its batch, and prompts share the new tokens.
    """
    if steps.model not in SERVED:
        return None
    sizes = find(name).sizes
    assert sizes is not None and name in SIZED
    served = Deployment(
        model_description(SERVED[steps.model]), gpu_description(gpu), tp=steps.tp, dp=1
    )
    vector = np.array(sizes.vector(sizes.beta, served))
    with jax.enable_x64(True):
        times = jax.jit(jax.vmap(find(name).step_time, (None, 0)))(vector, _batches(steps))
    return np.floor(np.asarray(times))


def _batches(steps: MeasuredSteps) -> StepBatch:
    """Return the steps' batches `[step, slot]`, prompts first."""
    slot = np.arange(int(steps.requests.max()))[None, :]
    prefills, requests = steps.prefills[:, None], steps.requests[:, None]
    in_prefill: Any = slot < prefills
    in_step: Any = slot < requests
    context = np.round(steps.context / steps.requests)[:, None]
    share = np.floor(steps.new_tokens / np.maximum(steps.prefills, 1))[:, None]
    rest = steps.new_tokens[:, None] - share * prefills
    new = np.where(in_prefill, share + (slot < rest), in_step)
    progress = np.where(in_step, np.where(in_prefill, np.maximum(context - new, 0), context), 0)

    def whole(values: Any) -> Any:
        return np.broadcast_to(values, in_step.shape).astype(np.int32)

    members = Members(
        in_prefill=in_prefill,
        new_tokens=whole(new),
        progress=whole(progress),
        context=whole(progress + new),
        in_step=in_step,
        in_decode=in_step & ~in_prefill,
        input_len=whole(np.where(in_prefill, np.maximum(context, new), 0)),
        order=whole(np.where(in_step, slot, LAST)),
    )
    return StepBatch(
        whole(steps.new_tokens[:, None])[:, 0], whole(steps.decodes[:, None])[:, 0], members
    )
