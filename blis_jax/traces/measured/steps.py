"""Measured engine steps as a table: what each step's batch contained, and how long the step took.

Known inputs are a table (CSV, Parquet) with the columns of `COLUMNS`, Dynamo's forward-pass metrics
(`fpm_metrics_detail.csv` with `vllm_metadata.json` beside it), folders of such files, one per deployment, and the lines
that vLLM logs with `--enable-logging-iteration-details`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError, closest
from blis_jax.files.input_files import check_regular, open_text, read_json
from blis_jax.latency.step_law import StepSums
from blis_jax.lazy import pandas
from blis_jax.traces.columns import need_pyarrow
from blis_jax.traces.delimited import read_header, read_table

DYNAMO, METADATA = "fpm_metrics_detail.csv", "vllm_metadata.json"
LATENCY, STEP = "latency_ms", "step"
COLUMNS: Mapping[
    str, float | None
] = {  # columns of numbers, and the value if a column is missing; None: needed
    LATENCY: None,
    "sum_prefill_tokens": None,
    "num_decode_requests": None,
    "num_prefill_requests": 1.0,  # in steps that have tokens of prompts
    "sum_prefill_kv_tokens": 0.0,
    "sum_decode_kv_tokens": 0.0,
    "var_decode_kv_tokens": 0.0,
}
NAMED_ALIKE = {"counter_id": STEP}  # of Dynamo
OF_STEPS = ("num_decode_requests", "sum_prefill_tokens")  # columns that no other file has
USUAL_MS = (0.2, 3000.0)  # median step of an engine: beyond it are seconds or microseconds
PHASES = ("decode", "prefill", "mixed")
_LOGGED = re.compile(
    r"Iteration\((?P<step>\d+)\): (?P<num_prefill_requests>\d+) context requests, (?P<sum_prefill_tokens>\d+) context "
    r"tokens, (?P<num_decode_requests>\d+) generation requests, \d+ generation tokens, iteration elapsed time: "
    r"(?P<latency_ms>[0-9.]+) ms"
)
_RANK = re.compile(r"EngineCore_DP(\d+)")


class MeasuredEngine(NamedTuple):
    """The engine that ran the steps: its model and how the model is spread over GPUs."""

    model: str
    tp: int = 1
    dp: int = 1
    ep: int = 1  # GPUs that share the experts; 1: no expert parallelism

    def __str__(self) -> str:
        """Return the engine as text, such as `Qwen/Qwen3-32B, TP 2`."""
        further = [f"DP {self.dp}"] * (self.dp > 1) + [f"EP {self.ep}"] * (self.ep > 1)
        return ", ".join([self.model or "unnamed model", f"TP {self.tp}", *further])


@dataclass(frozen=True)
class EngineSteps:
    """The steps of one deployment, ordered by number or by file; `rows` has their row numbers in the file."""

    run: str
    engine: MeasuredEngine
    rows: np.ndarray
    sequence: np.ndarray  # a number for each worker and rank: only steps of one follow each other
    number: np.ndarray  # of the step: steps in a row have numbers in a row
    sums: StepSums
    ms: np.ndarray

    def __len__(self) -> int:
        return len(self.ms)

    @property
    def phase(self) -> np.ndarray:
        """Return the index in `PHASES` of each step."""
        has_prompt, has_decode = self.sums.prompt_tokens > 0, self.sums.decodes > 0
        return np.where(has_prompt, np.where(has_decode, 2, 1), 0)

    def part(self, chosen: np.ndarray) -> EngineSteps:
        """Return the steps that a mask or positions select."""
        sums = StepSums(*(values[chosen] for values in self.sums))
        arrays = {
            name: getattr(self, name)[chosen] for name in ("rows", "sequence", "number", "ms")
        }
        return dataclasses.replace(self, sums=sums, **arrays)


class StepFile(NamedTuple):
    """All deployments of a file or folder, and the file's rows unchanged."""

    runs: tuple[EngineSteps, ...]
    table: pandas.DataFrame
    notes: tuple[str, ...]


def holds_steps(path: Path) -> bool:
    """Return whether a file or folder has measured steps, not requests."""
    if path.is_dir():
        return next(path.rglob(DYNAMO), None) is not None
    if path.suffix == ".parquet":
        return True
    if not path.is_file():
        return False
    if path.suffix in (".csv", ".gz", ".tsv"):
        names = read_header(path).names
        known = sum(name in names for name in _needed())
        return known == len(_needed()) or (known > 0 and any(name in names for name in OF_STEPS))
    return path.suffix in (".log", ".txt") and bool(_logged(path, most=1))


def read_steps(path: Path, engine: Mapping[str, str | int] | None = None) -> StepFile:
    """Return the measured steps in a file or folder.

    Args:
        path: a table, a log, or a folder of Dynamo's files.
        engine: values of `model`, `tp`, `dp`, `ep` that replace those of the files.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or has an impossible value.
    """
    if path.is_dir():
        files = sorted(path.rglob(DYNAMO))
        named = {file: str(file.parent.relative_to(path)) for file in files}
        tables = [
            _table(file).assign(run=path.name if run == "." else run) for file, run in named.items()
        ]
        table = pandas.concat(tables, ignore_index=True)
    else:
        table = _table(path)
    if not len(table):
        raise ConfigError(f"{path} has no steps; record a load on the engine first")
    settled = table.assign(**(engine or {}))
    for name, usual in (("run", path.stem), *MeasuredEngine("")._asdict().items()):
        if name not in settled:
            settled[name] = usual
    numbers = {name: _numbers(path, settled, name) for name in COLUMNS}
    runs, left = [], 0
    for name, rows in settled.groupby("run", sort=False).indices.items():
        steps = _run_of(path, str(name), settled, rows, numbers)
        runs.append(steps)
        left += len(rows) - len(steps)
    notes = (
        [f"{left} rows have no request in the batch, or no time; they are not looked at"]
        if left
        else []
    )
    notes += [
        f"run {steps.run} has numbers of steps more than once; if these are several deployments or workers, give "
        "each a run or a worker_id of its own"
        for steps in runs
        if len(np.unique(np.stack([steps.sequence, steps.number]), axis=1).T) < len(steps)
    ]
    if np.all(numbers["sum_decode_kv_tokens"] == 0):
        notes.append(
            "the file does not say how long contexts are, so nothing is told of reading the KV cache"
        )
    return StepFile(tuple(runs), table, tuple(notes))


def _run_of(
    path: Path,
    name: str,
    table: pandas.DataFrame,
    rows: np.ndarray,
    numbers: Mapping[str, np.ndarray],
) -> EngineSteps:
    values = {column: numbers[column][rows] for column in COLUMNS}
    steps_of_run = table.iloc[rows]
    engines = steps_of_run[list(MeasuredEngine._fields)].drop_duplicates()
    if len(engines) > 1:
        raise ConfigError(
            f"{path}: run {name} has {len(engines)} different sets of model, tp, dp and ep; give each a run of its own"
        )
    first = engines.iloc[0]
    try:
        engine = MeasuredEngine(
            str(first["model"]), *(int(first[degree]) for degree in ("tp", "dp", "ep"))
        )
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: run {name}: tp, dp and ep must be whole numbers") from None
    if min(engine[1:]) < 1:
        raise ConfigError(f"{path}: run {name}: tp, dp and ep must be at least 1")
    who = [column for column in ("worker_id", "dp_rank") if column in steps_of_run]
    sequence = (
        steps_of_run.groupby(who, sort=False).ngroup().to_numpy()
        if who
        else np.zeros(len(steps_of_run), int)
    )
    number = np.arange(len(steps_of_run))
    if STEP in steps_of_run:
        number = _numbers(path, steps_of_run, STEP, rows)
    prompts = np.where(values["sum_prefill_tokens"] > 0, values["num_prefill_requests"], 0.0)
    sums = StepSums(
        prompts=prompts,
        prompt_tokens=values["sum_prefill_tokens"],
        cached_tokens=values["sum_prefill_kv_tokens"],
        decodes=values["num_decode_requests"],
        context=values["sum_decode_kv_tokens"],
        spread=np.sqrt(values["var_decode_kv_tokens"]),
    )
    ms = values[LATENCY]
    steps = EngineSteps(name, engine, np.asarray(rows), sequence, number, sums, ms)
    steps = steps.part(_in_order(steps))
    ms, sums = steps.ms, steps.sums
    steps = steps.part((ms > 0) & (sums.prompt_tokens + sums.decodes > 0))
    _refuse_other_units(path, steps)
    return steps


def _in_order(steps: EngineSteps) -> np.ndarray:
    """Return the positions that order each worker's steps: as in the file or, if numbers go back in it, by number."""
    goes_back = (np.diff(steps.number) < 0) & (np.diff(steps.sequence) == 0)
    places = np.arange(len(steps))
    return np.lexsort((places, steps.number)) if goes_back.any() else places


def _refuse_other_units(path: Path, steps: EngineSteps) -> None:
    middle, (least, most) = float(np.median(steps.ms)) if len(steps) else 1.0, USUAL_MS
    if middle < least or middle > most:
        likely = "seconds: multiply them by 1000" if middle < least else "µs: divide them by 1000"
        raise ConfigError(
            f"{path}: run {steps.run}: the median of {LATENCY} is {middle:.3g}, where engines take {least:g} to "
            f"{most:g} ms for a step; if these are {likely}"
        )


def _numbers(
    path: Path, table: pandas.DataFrame, name: str, rows: np.ndarray | None = None
) -> np.ndarray:
    """Return a column as numbers; `rows` has the row numbers in the file if `table` is only a part of it."""
    if name not in table:
        usual = COLUMNS[name]
        if usual is None:
            near = closest(name, tuple(map(str, table.columns)))
            raise ConfigError(
                f"{path} has no column {name}; needed are {', '.join(_needed())}{near}"
            )
        return np.full(len(table), usual)
    values: np.ndarray = pandas.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
    is_count = name.startswith("num_")
    is_good = np.isfinite(values) & (values >= 0) & (~is_count | (values == np.floor(values)))
    if not is_good.all():
        row = int(np.argmin(is_good))
        said, place = str(table[name].iloc[row]), row if rows is None else int(rows[row])
        number = "a whole number" if is_count else "a number"
        raise ConfigError(
            f"{path}, row {place + 1}: {name} is {said or 'empty'}; give {number} of at least 0"
        )
    return values


def _needed() -> list[str]:
    return [name for name, usual in COLUMNS.items() if usual is None]


def _table(path: Path) -> Any:
    """Return the rows of one file, with the engine that the files beside it describe."""
    if path.suffix == ".parquet":
        need_pyarrow(path)
        try:
            table = pandas.read_parquet(check_regular(path))
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist; give a file of measured steps") from None
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"{path} is not a Parquet file ({error}); give a table of steps"
            ) from None
    elif path.suffix in (".log", ".txt"):
        table = pandas.DataFrame(_logged(path))
    else:
        table = read_table(path)
    alike = {
        theirs: ours
        for theirs, ours in NAMED_ALIKE.items()
        if theirs in table and ours not in table
    }
    table = table.rename(columns=alike)
    beside = path.parent / METADATA
    return (
        table.assign(**_of_metadata(beside)) if path.name == DYNAMO and beside.is_file() else table
    )


def _logged(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    with open_text(path) as file:
        for line in file:
            if match := _LOGGED.search(line):
                rank = _RANK.search(line)
                further = {STEP: int(match[STEP]), "dp_rank": rank[1] if rank else "0"}
                steps.append({**match.groupdict(), **further})
                if most is not None and len(steps) >= most:
                    break
    return steps


def _of_metadata(path: Path) -> dict[str, Any]:
    """Return model, tp, dp and ep stated in Dynamo's `vllm_metadata.json`."""
    document = read_json(path, "the vllm_metadata.json that Dynamo wrote")
    try:
        effective, requested = document["effective_config"], document["requested"]
        tp = int(effective["parallel_config.tensor_parallel_size"])
        dp = int(effective["parallel_config.data_parallel_size"])
        words = [*requested.get("engine_args", ())]
        has_experts = "--enable-expert-parallel" in words
        model = str(requested["deployment_config"]["model"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} does not state the engine ({error!r}); give --model, --tp, --dp and --ep and move it away"
        ) from None
    return {"model": model, "tp": tp, "dp": dp, "ep": tp * dp if has_experts else 1}
