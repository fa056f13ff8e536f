"""vLLM deployments at several concurrencies: closed loops with fixed lengths, mean TTFT and TPOT in a row."""

from __future__ import annotations

from collections.abc import Sequence

from blis_jax.errors import ConfigError
from papers.real_servers.predict.scene import (
    ClosedLoad,
    RealServer,
    Row,
    Scene,
    Unit,
    gpu_name,
    unit_for_each,
    whole,
)

NAME = "inferencex"
COLUMNS = ("model_path", "system", "precision", "isl", "osl", "tp_size", "concurrency")
VALUES = ("silicon_ttft_ms", "silicon_tpot_ms")
FIGURES = {"silicon_ttft_ms": "ttft_mean", "silicon_tpot_ms": "tpot_mean"}
SUFFIX = {
    "": "",
    "nan": "",
    "fp16": "",
    "bf16": "",
    "fp8": "-fp8",
    "fp4": "-w4a16",
    "int4": "-w4a16",
}
MAX_NUM_SEQS = 1024
BATCHED_TOKENS = 8192
SHORTEST = 0.8  # share of the given lengths from which lengths are drawn
MEMORY_SHARE = 0.9
KV_BYTES = 1.0  # these servers keep the KV cache in FP8, but for weights of 16 bits


def units(rows: Sequence[Row]) -> list[Unit]:
    """Return one simulation for each row."""
    return unit_for_each(rows, scene_of, FIGURES)


def scene_of(row: Row) -> Scene:
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
        memory_utilization=MEMORY_SHARE,
        kv_bytes=KV_BYTES if SUFFIX[precision] else 0.0,
        data_parallel=data_parallel,
        variant=f"{row.get('backend_version', '')} experts on {experts}",
    )
    load = ClosedLoad(concurrency, whole(row, "isl"), whole(row, "osl"), shortest=SHORTEST)
    return Scene(server, load)


def sharing(row: Row) -> tuple[int, int, int]:
    """Return TP and copies of attention, and on how many GPUs experts lie apart.

    Where the file says how many copies of attention there are, its TP counts the GPUs of all of them. Where it does
    not, the GPUs that share the experts say it.

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
