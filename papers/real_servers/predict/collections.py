"""Collections of measured runs: which columns a file has, what each row asks for, and the load behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from blis_jax.errors import ConfigError
from blis_jax.latency.model_description import shipped_models
from papers.real_servers.predict.scene import (
    AskedCell,
    ClosedLoad,
    LoadStage,
    RealServer,
    Row,
    Scene,
    ServerPool,
    StagedLoad,
    Unit,
    gpu_name,
    share,
    unit_for_each,
    whole,
)

BATCHED_TOKENS = 8192  # of servers whose files do not state it, as the other numbers here
MAX_NUM_SEQS = 1024


class Collection(NamedTuple):
    """A form of file."""

    name: str
    columns: tuple[str, ...]  # by which it is recognised; values to predict are not among them
    values: tuple[str, ...]  # columns that predictions fill
    # rows that cannot be predicted come with the reason
    units: Callable[[Sequence[Row]], list[Unit]]


def _of_rows(
    name: str, columns: Sequence[str], scene_of: Callable[[Row], Scene], figures: Mapping[str, str]
) -> Collection:
    """Return a collection whose rows are a simulation each; `figures` are the columns that it fills."""
    units = partial(unit_for_each, scene_of=scene_of, figures=figures)
    return Collection(name, tuple(columns), tuple(figures), units)


# --- vLLM runs, one row for each figure of each stage: the collection of BLIS's own validation -----


METRICS = ("ttft_mean", "ttft_p90", "ttft_p99", "itl_mean", "e2e_mean", "e2e_p90", "e2e_p99")
WHOLE_RUN = -1
VLLM_SEQS, VLLM_BATCHED_TOKENS, VLLM_MEMORY_SHARE = 128, 2048, 0.9


def vllm_units(rows: Sequence[Row]) -> list[Unit]:
    """Return a unit for each run, whose rows one simulation answers; runs with equal scenes stay apart."""
    by_run: dict[tuple[str, Scene], list[int]] = {}
    refused = []
    for place, row in enumerate(rows):
        try:
            by_run.setdefault((str(row["run"]), vllm_scene(row)), []).append(place)
        except ConfigError as error:
            refused.append(Unit((place,), None, problem=str(error)))
    made = [unit for (_, scene), places in by_run.items() for unit in _of_run(rows, places, scene)]
    return made + refused


def vllm_scene(row: Row) -> Scene:
    """Return the run that a row belongs to: its server and load.

    Raises:
        ConfigError: its workload, GPU or a number is not known.
    """
    _, load = shared_prefix_load(str(row["run"]))
    server = RealServer(
        str(row["model"]),
        gpu_name(row["hardware"]),
        whole(row, "tp"),
        max_num_running_reqs=VLLM_SEQS,
        max_num_scheduled_tokens=whole(row, "max_num_batched_tokens", VLLM_BATCHED_TOKENS),
        memory_utilization=share(row, "gpu_mem_util", VLLM_MEMORY_SHARE),
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
    return AskedCell(place, VLLM_RUNS.values[0], name, None if stage == WHOLE_RUN else stage)


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
        ConfigError: the name holds no known workload.
    """
    lower = run.lower()
    for name, load in SHARED_PREFIX.items():
        if name in lower:
            return name, load
    known = ", ".join(sorted(SHARED_PREFIX))
    raise ConfigError(f"run {run!r} names no known workload; its name must hold one of {known}")


VLLM_RUNS = Collection(
    "vllm_runs", ("run", "model", "hardware", "tp", "stage_index", "metric_name"), ("actual",), vllm_units,
)  # fmt: skip


# --- llm-d clusters in a closed loop: layouts at several concurrencies, all figures in a row -------


LLMD_MEMORY_SHARE = 0.93  # with it, as many requests fit as these servers held
_EQUAL = re.compile(r"(\d{1,4}) TP(\d{1,4})")
_POOLS = re.compile(r"\d+: (\d{1,4})P-TP(\d{1,4}) (\d{1,4})D-TP(\d{1,4})")


def llmd_scene(row: Row) -> Scene:
    """Return the cluster of a row and its load.

    Raises:
        ConfigError: its layout or GPU is not known.
    """
    tp, number, pools = layout_of(str(row["config"]).strip(), str(row["arch"]))
    server = RealServer(
        full_name(str(row["model"])),
        gpu_name(row["hw"]),
        tp,
        number,
        max_num_running_reqs=MAX_NUM_SEQS,
        max_num_scheduled_tokens=BATCHED_TOKENS,
        memory_utilization=LLMD_MEMORY_SHARE,
        pools=pools,
    )
    # the benchmark sends its first prompt before it begins; the router finds the same instance again, or there is one
    is_cached = bool(pools) or number == 1
    load = ClosedLoad(
        whole(row, "conc"), whole(row, "isl"), whole(row, "osl"), first_is_cached=is_cached
    )
    return Scene(server, load)


def full_name(model: str) -> str:
    """Return the model's name with its owner: the shipped model's of this name, else `meta-llama`."""
    if "/" in model:
        return model
    owners = [shipped.rpartition("/") for shipped in shipped_models()]
    known_owners = [owner for owner, _, name in owners if name == model.lower()]
    return f"{known_owners[0] if known_owners else 'meta-llama'}/{model}"


def layout_of(text: str, arch: str) -> tuple[int, int, tuple[ServerPool, ...]]:
    """Return TP, number of instances and pools of a layout, such as `4 TP2` and `3: 2P-TP4 1D-TP8`.

    Raises:
        ConfigError: it is not of these forms.
    """
    if (equal := _EQUAL.fullmatch(text)) and arch == "aggregated":
        return int(equal[2]), int(equal[1]), ()
    if (split := _POOLS.fullmatch(text)) and arch == "disaggregated":
        pools = (
            ServerPool("prefill", int(split[1]), int(split[2])),
            ServerPool("decode", int(split[3]), int(split[4])),
        )
        return int(split[4]), int(split[1]) + int(split[3]), pools
    raise ConfigError(
        f"layout {text!r} ({arch}) is not known; use '4 TP2' with aggregated, and "
        "'3: 2P-TP4 1D-TP8' with disaggregated"
    )


LLMD_FIGURES = ("req_s", "tok_s", "ttft_mean", "ttft_p50", "tpot", "e2e_mean", "e2e_p50")
LLMD_RUNS = _of_rows(
    "llmd_runs",
    ("model", "hw", "arch", "config", "isl", "osl", "conc"),
    llmd_scene,
    {name: name for name in LLMD_FIGURES} | {"tpot": "tpot_mean"},
)


# --- vLLM deployments at several concurrencies: fixed lengths, mean TTFT and TPOT in a row ----------


SUFFIX = {
    "": "",
    "nan": "",
    "fp16": "",
    "bf16": "",
    "fp8": "-fp8",
    "fp4": "-w4a16",
    "int4": "-w4a16",
}
SHORTEST = 0.8  # share of the given lengths from which lengths are drawn
INFERENCEX_MEMORY_SHARE = 0.9
KV_BYTES = 1.0  # these servers keep the KV cache in FP8, but for weights of 16 bits


def inferencex_scene(row: Row) -> Scene:
    """Return the deployment of a row and its load.

    Raises:
        ConfigError: its GPU, precision or layout is not known.
    """
    precision = str(row["precision"])
    if precision not in SUFFIX:
        raise ConfigError(
            f"precision {precision!r} is not known; use one of {', '.join(list(SUFFIX)[2:])}"
        )
    if (stages := whole(row, "pp_size", 1)) != 1:
        raise ConfigError(f"pp_size is {stages}; pipelines of several stages are not simulated")
    concurrency = whole(row, "concurrency")
    tp, data_parallel, experts = sharing(row)
    server = RealServer(
        named(str(row["model_path"]), precision),
        gpu_name(row["system"]),
        tp,
        max_num_running_reqs=max(concurrency, MAX_NUM_SEQS),
        max_num_scheduled_tokens=BATCHED_TOKENS,
        memory_utilization=INFERENCEX_MEMORY_SHARE,
        kv_bytes=KV_BYTES if SUFFIX[precision] else 0.0,
        data_parallel=data_parallel,
        variant=f"{row.get('backend_version', '')} experts on {experts}",
    )
    load = ClosedLoad(concurrency, whole(row, "isl"), whole(row, "osl"), shortest=SHORTEST)
    return Scene(server, load)


def sharing(row: Row) -> tuple[int, int, int]:
    """Return TP, the number of copies of attention, and over how many GPUs the experts are spread.

    Where the file has the number of copies, its TP counts the GPUs of all copies. Elsewhere the number follows from the
    GPUs that share the experts.

    Raises:
        ConfigError: a number cannot be read, or the copies do not share the GPUs evenly.
    """
    tp, copies = whole(row, "tp_size"), whole(row, "attention_dp_size", 0)
    apart = whole(row, "moe_ep_size", 1)
    if copies == 0:
        return tp, max(whole(row, "moe_tp_size", tp) * apart // max(tp, 1), 1), apart
    if tp % copies:
        raise ConfigError(f"attention_dp_size is {copies}, it must divide tp_size, {tp}")
    return tp // copies, copies, max(apart // copies, 1)


def named(model: str, precision: str) -> str:
    """Return the model's name with the precision of its weights."""
    base = model.lower().removesuffix("-fp8").removesuffix("-fp4")
    return base + SUFFIX[precision]


INFERENCEX = _of_rows(
    "inferencex",
    ("model_path", "system", "precision", "isl", "osl", "tp_size", "concurrency"),
    inferencex_scene,
    {"silicon_ttft_ms": "ttft_mean", "silicon_tpot_ms": "tpot_mean"},
)
COLLECTIONS = {each.name: each for each in (VLLM_RUNS, LLMD_RUNS, INFERENCEX)}
