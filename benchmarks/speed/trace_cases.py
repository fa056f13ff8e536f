"""Benchmark cases on recorded traces, which lie beside the repository and are not part of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.speed.worker import AZURE_CODE, AZURE_CONV, MOONCAKE, OF_512
from blis_jax.cluster.config import ClusterConfig
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.traces.read import read_trace
from blis_jax.traces.rows import to_table
from blis_jax.workload.table import RequestTable

REPO = Path(__file__).resolve().parents[2]
LEAST_LOADED, ROUND_ROBIN = "least-loaded", "round-robin"
# name: (file, instances, routing policy, runs side by side, further settings)
TRACES: dict[str, tuple[str, int, str, int, dict[str, Any]]] = {
    "mooncake-8": (MOONCAKE, 8, "weighted", 1, {}),
    "mooncake-8-least-loaded": (MOONCAKE, 8, LEAST_LOADED, 1, {}),
    "mooncake-8-round-robin": (MOONCAKE, 8, ROUND_ROBIN, 1, {}),
    "mooncake-8-round-robin-512": (MOONCAKE, 8, ROUND_ROBIN, 1, OF_512),
    "mooncake-64": (MOONCAKE, 64, "weighted", 1, {}),
    "azure-conv": (AZURE_CONV, 8, "weighted", 1, {}),
    "azure-conv-two": (AZURE_CONV, 8, "weighted", 2, {}),
    "azure-code": (AZURE_CODE, 8, "weighted", 1, {}),
}
TITLES = {MOONCAKE: "Mooncake conversation", AZURE_CONV: "Azure chat", AZURE_CODE: "Azure code"}


class Timed(NamedTuple):
    """A case's title, seconds of compiling, run and unit, in words except for the seconds."""

    title: str
    compile_s: float
    run: str
    unit: str  # of what a run is made of


def data_folder() -> Path:
    """Return where recorded traces lie: beside the checkout, or beside the one that a worktree belongs to."""
    beside = REPO.parent / "shared" / "data"
    link = REPO / ".git"
    if beside.is_dir() or not link.is_file():
        return beside
    of_worktree = Path(link.read_text().partition("gitdir:")[2].strip())
    return of_worktree.parents[3] / "shared" / "data"  # main/.git/worktrees/NAME


def _read(file: str, block_size: int) -> tuple[RequestTable, float]:
    path = data_folder() / file
    if not path.is_file():
        raise SystemExit(f"{path} is not there; put the recorded traces beside the repository")
    start = time.perf_counter()
    table, _ = to_table(read_trace(path).rows, block_size)
    return table, time.perf_counter() - start


def trace(name: str, window: int | None = None, repeats: int = 3) -> Timed:
    """Time whole simulated runs of a trace, ties put in the reference's order and records made on the host.

    The seconds of compiling are those of the first run less those of the best other run.
    """
    file, instances, policy, beside, changes = TRACES[name]
    config = ClusterConfig(num_instances=instances, routing_policy=policy, **changes)
    table, read_s = _read(file, config.block_size_in_tokens)
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
    words += ", blocks of 512 tokens" if changes == OF_512 else ""
    return Timed(
        f"{TITLES[file]}, {count:,} requests, {words}",
        times[0] - seconds,
        f"{seconds:.2f} s, {record.num_iterations} scan steps ({record.kv_model})",
        f"{beside * count / seconds:,.0f} requests/s; read in {read_s:.2f} s",
    )
