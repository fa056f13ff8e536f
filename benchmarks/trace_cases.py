"""Benchmark cases on recorded traces, which lie beside the repository and are not part of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.config import ClusterConfig
from blis_jax.simulation import Options, simulate
from blis_jax.traces.read import read_trace
from blis_jax.traces.to_table import to_table
from blis_jax.workload.table import RequestTable

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
MOONCAKE = "mooncake_fast25/conversation_trace.jsonl"
AZURE_CONV = "azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
AZURE_CODE = "azure_llm_2023/AzureLLMInferenceTrace_code.csv"
LEAST_LOADED = "least-loaded"
# name: (file, instances, routing policy, runs side by side)
TRACES: dict[str, tuple[str, int, str, int]] = {
    "mooncake-8": (MOONCAKE, 8, "weighted", 1),
    "mooncake-8-least-loaded": (MOONCAKE, 8, LEAST_LOADED, 1),
    "mooncake-64": (MOONCAKE, 64, "weighted", 1),
    "azure-conv": (AZURE_CONV, 8, "weighted", 1),
    "azure-conv-two": (AZURE_CONV, 8, "weighted", 2),
    "azure-code": (AZURE_CODE, 8, "weighted", 1),
}
TITLES = {MOONCAKE: "Mooncake conversation", AZURE_CONV: "Azure chat", AZURE_CODE: "Azure code"}


def _read(file: str) -> tuple[RequestTable, float]:
    path = DATA / file
    if not path.is_file():
        raise SystemExit(f"{path} is not there; put the recorded traces beside the repository")
    start = time.perf_counter()
    table, _ = to_table(read_trace(path).rows, block_size=16)
    return table, time.perf_counter() - start


def trace(name: str, window: int | None = None, repeats: int = 3) -> dict[str, Any]:
    """Whole simulated runs of a trace, ties put in the reference's order and records made on the host.

    Compilation is what the first run takes longer than the best of the others.
    """
    file, instances, policy, beside = TRACES[name]
    table, read_s = _read(file)
    config = ClusterConfig(num_instances=instances, routing_policy=policy)
    options = Options(window=window)
    times = []
    with ThreadPoolExecutor(beside) as pool:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            records = list(pool.map(lambda _: simulate(config, table, options), range(beside)))
            times.append(time.perf_counter() - start)
    seconds, record = min(times[1:]), records[0]
    count = int(np.sum(record.requests.instance >= 0))
    words = f"{instances} instances, {policy}" + (", two runs at once" if beside == 2 else "")
    return {
        "title": f"{TITLES[file]}, {count:,} requests, {words}",
        "compile_s": times[0] - seconds,
        "run": f"{seconds:.2f} s, {record.num_iterations} scan steps ({record.kv_model})",
        "unit": f"{beside * count / seconds:,.0f} requests/s; read in {read_s:.2f} s",
    }
