"""Seconds of whole commands until their answer, by what is done: with an empty cache, a filled one, and a further arm.

python -m benchmarks.start                          all commands, table in Markdown on stdout
python -m benchmarks.start --command run --command sweep

Every command runs in new processes and under a clock, which makes the first one a little slower. Each cell has
seconds of wall and, in brackets, of CPU, summed over threads; what compiles in XLA's own threads is only in the CPU
seconds of the whole. XLA is compiling without LLVM, which includes linking; what no column names is in the whole.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.pages import ROOT, print_rows, table_parser

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
ARMS = ("baseline=iter00_baseline", "mine=iter00_baseline:routing_policy=mine.py:fewest_waiting")
POLICY = """
import jax.numpy as jnp
from blis_jax.policies import NoParams, routing_policy


def _least(context, amount):
    return jnp.argmin(jnp.where(context.snapshots.is_active, amount, jnp.inf)).astype(jnp.int32)


@routing_policy(NoParams)
def fewest_waiting(params, state, context):
    return _least(context, context.snapshots.queue_depth), state


@routing_policy(NoParams)
def smallest_batch(params, state, context):
    return _least(context, context.snapshots.batch_size), state
"""
REQUESTS = [
    json.dumps({"arm": f"iter00_baseline:routing_policy=mine.py:{name}", "seeds": list(range(32))})
    for name in ("fewest_waiting", "smallest_batch")
]
# beside the command
FILES = {"mine.py": POLICY, "one.jsonl": REQUESTS[0], "two.jsonl": "\n".join(REQUESTS)}
TRACE = str(ROOT / "examples" / "traces" / "azure.csv")
# a command, and what a further arm adds to it, if there is one; it may also be the whole command
COMMANDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run": (STARTS["start-run"][0], ("--routing-policy", "least-loaded")),
    "august": (STARTS["start-august"][0], ("--routing-policy", "least-loaded")),
    "trace": (
        ("blis_jax.run", *MODEL, "--trace", TRACE, "--num-instances", "2"),
        ("--routing-policy", "least-loaded"),
    ),
    "sweep": (
        (*STARTS["start-sweep"][0], "--strategy", "baseline", "--strategy", "it08_opt"),
        ("--strategy", "iter04_slo_prefill", "--overwrite"),
    ),
    "compare": (
        ("sweeps.compare", "--seeds", "20", *ARMS),
        ("batch=iter00_baseline:routing_policy=mine.py:smallest_batch",),
    ),
    "stream": (
        ("sweeps.evaluate", "one.jsonl", "--jsonl"),
        ("sweeps.evaluate", "two.jsonl", "--jsonl"),
    ),
    "optimize": (
        ("sweeps.optimize", "iter08_token_budget", "--calls", "8", "--output", "found.json"),
        (),
    ),
    "capacity": (
        ("sweeps.capacity", "mixed", "--targets", "critical.ttft_ms=200@99", "--policy", "baseline"),
        ("--policy", "it08_opt"),
    ),
}  # fmt: skip
COLUMNS = (
    "import", "drawing", "preparing", "tracing", "lowering", "XLA", "LLVM", "loading", "keeping", "running",
    "reporting", "whole",
)  # fmt: skip


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


def clocked(words: Sequence[str], folder: Path) -> dict[str, list[float]]:
    """Return seconds of wall and CPU of a command by what was done; programs are kept in the folder."""
    work = Path(tempfile.mkdtemp(dir=folder))
    for file, text in FILES.items():
        (work / file).write_text(text, encoding="utf-8")
    env = users_environment()
    path = os.pathsep.join((os.getcwd(), env.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.clock", str(work / "seconds.json"), *words],
        cwd=work,
        env=env | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr.strip().splitlines()[-1]}")
    seconds: dict[str, list[float]] = json.loads((work / "seconds.json").read_text())
    wall, cpu = seconds.pop("compiling", [0.0, 0.0])
    return seconds | {"XLA": [max(wall - seconds["LLVM"][0], 0.0), cpu]}


def row(name: str, state: str, seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the cells of a row of the table."""
    cells = [name, state]
    for column in COLUMNS:
        wall, cpu = seconds.get(column, (0.0, 0.0))
        cells.append(f"{wall:.1f}" if column == "LLVM" else f"{wall:.1f} ({cpu:.1f})")
    return cells


def main(words: Sequence[str] | None = None) -> int:
    """Print the table, a row as soon as it is measured."""
    parser = table_parser("benchmarks.start", __doc__)
    parser.add_argument("--command", choices=COMMANDS, action="append", help="may be repeated")
    print_rows(("command", "cache", *COLUMNS), _measured(parser.parse_args(words).command))
    return 0


def _measured(names: Sequence[str] | None) -> Iterator[list[str]]:
    for name in names or COMMANDS:
        command, further = COMMANDS[name]
        with tempfile.TemporaryDirectory() as folder:
            for state in ("empty", "filled", *(("filled, one arm more",) if further else ())):
                added = further if further[:1] == command[:1] else (*command, *further)
                started = added if "arm" in state else command
                yield row(name, state, clocked(started, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
