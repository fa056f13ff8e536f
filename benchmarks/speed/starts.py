"""Whole commands in new processes: what a user waits for, with an empty cache of programs and with a filled one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

MODEL = ("--model", "meta-llama/llama-3.1-8b-instruct")
STARTS: dict[str, tuple[tuple[str, ...], str]] = {
    "start-run": (
        ("blis_jax.run", *MODEL, "--workload-spec", "mixed", "--num-instances", "8"),
        "`blis-jax run` of the mixed workload, 8 instances, as a whole",
    ),
    "start-august": (
        ("blis_jax.run", "--profile", "blis-2026-08", *MODEL, "--rate", "1"),
        "`blis-jax run --profile blis-2026-08 --model M --rate 1`, as a whole",
    ),
    "start-sweep": (
        ("blis_jax.sweep", "--vmap-seeds", "256", "--output", "sweep.zarr"),
        "`blis-jax sweep --vmap-seeds 256`, as a whole",
    ),
}


def users_environment() -> dict[str, str]:
    """Return this process's environment without `XLA_FLAGS` and `PYTHONDONTWRITEBYTECODE`."""
    foreign = ("XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in foreign}


def _seconds(words: tuple[str, ...], folder: str) -> tuple[float, float]:
    """Return wall and CPU seconds of one command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tempfile.mkdtemp(dir=folder),
        env=users_environment()
        | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache", "PYTHONPATH": os.getcwd()},
        check=True,
        capture_output=True,
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def started(name: str) -> dict[str, Any]:
    """Time a command of `STARTS`: once with an empty cache of programs, then the best of three with a filled one."""
    words, title = STARTS[name]
    with tempfile.TemporaryDirectory() as folder:
        cold, cold_cpu = _seconds(words, folder)
        warm, warm_cpu = min(_seconds(words, folder) for _ in range(3))
    return {
        "title": title,
        "compile_s": cold - warm,
        "run": f"{cold:.1f} s cold, {warm:.1f} s warm",
        "unit": f"{cold_cpu:.1f} and {warm_cpu:.1f} s of CPU",
    }
