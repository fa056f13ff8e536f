"""One benchmark case in this process; prints one line of JSON."""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.speed import worker
from benchmarks.speed.trace_cases import TRACES, Timed, trace
from benchmarks.start import STARTS, started
from blis_jax import figures_of
from blis_jax.cluster.config import ClusterConfig
from blis_jax.engine.loop import beginning_of
from blis_jax.records.from_tables import run_record
from blis_jax.runs.calls import Call, Group, execute, ran
from blis_jax.runs.driver import Runner
from blis_jax.runs.many_runs import drawn_runs, run_grid
from blis_jax.runs.options import Options
from blis_jax.runs.runs import Point
from blis_jax.workload import reference
from blis_jax.workload.spec import load_builtin, override
from blis_jax.workload.spec_parts import WorkloadSpec
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.search import loop
from sweeps.search.engines import make
from sweeps.search.loop import runs_at, search
from sweeps.search.objectives import Valuation
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of

BASELINE, BEST = ClusterConfig(**worker.BASELINE), ClusterConfig(**worker.BEST)
SEEDS = worker.SEEDS


def peak_mb() -> float:
    """Return the largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def best_of(repeats: int, call: Callable[[], Any]) -> float:
    """Return the shortest wall time of several calls, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def call_of(
    config: ClusterConfig, spec: WorkloadSpec, rows: int, form: str = "rows", **changes: Any
) -> Call:
    """Return a call that draws and runs the first `rows` seeds; `changes` are fields of `Options`."""
    options = Options(form=form, resolve_ties=False, **changes)
    runs = drawn_runs([Point(config, spec)], range(rows), options)
    return Call(Group(runs[0]), runs, rows)


def compiled_in(call: Call) -> float:
    """Return the seconds to compile a call."""
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as compilers:
        for compiled in call.begin_compiling(compilers, {}):
            compiled.result()
    return time.perf_counter() - start


def device_time(call: Call, repeats: int) -> tuple[float, float]:
    """Return the seconds of compiling, and the best seconds of a call with its draws and without host work."""
    compile_s = compiled_in(call)
    with jax.enable_x64(True):
        arguments = call.arguments(call.given())

        def run() -> None:
            jax.block_until_ready(ran(call, arguments))

        run()
        return compile_s, best_of(repeats, run)


def single(config: ClusterConfig, title: str, form: str = "rows", rows: int = 1) -> Timed:
    """Time one run."""
    call = call_of(config, load_builtin("mixed"), rows, form, num_slots=192)
    compile_s, seconds = device_time(call, 15 if form == "rows" else 2)
    per_run = seconds / rows
    return Timed(title, compile_s, f"{per_run * 1e3:.2f} ms a run", f"{1 / per_run:.0f} runs/s")


def seeds(config: ClusterConfig, title: str, cores: int | None, *, in_call: bool = False) -> Timed:
    """Time 256 seeds drawn, simulated and turned into records on the host; with `in_call` into one figure per run."""
    if cores is not None:
        os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:cores]))
    options = Options(resolve_ties=False)
    spec = load_builtin("mixed")

    def p99(record: Any) -> float:
        return float(np.percentile(record.requests.ttft_us, 99))

    summarize: Any = figures_of(["ttft_p99_ms"]) if in_call else p99
    grids = [run_grid([config], spec, range(SEEDS), summarize, options) for _ in range(3)]
    seconds = min(grid.timing.run_s for grid in grids)
    return Timed(
        title, grids[0].timing.compile_s, f"{seconds:.2f} s", f"{SEEDS / seconds:.0f} runs/s"
    )


def swept(title: str) -> Timed:
    """Time a sweep from seed to the saved Dataset, as the sweep command makes it."""
    case = worker.sweep()
    times = [case.run() for _ in range(3)]
    seconds = min(seconds_of.run_s for seconds_of in times)
    return Timed(title, times[0].compile_s, f"{seconds:.2f} s", f"{case.work / seconds:.0f} runs/s")


def scale(
    rate: float, count: int, title: str, num_instances: int = 8, policy: str = "weighted"
) -> Timed:
    """Time one run, and the cost of a request; `rate` (requests/s) is for eight instances, and scales with their
    number.
    """
    of_all = rate * num_instances / 8
    spec = override(load_builtin("mixed"), aggregate_rate=of_all, num_requests=count)
    # in the burst nearly all requests are in the system at once
    slots = None if rate < 1000 else max(256, count // 8 * 9 // 8)
    changes = {"num_instances": num_instances, "routing_policy": policy}
    config = ClusterConfig(**worker.AMPLE | changes)
    call = call_of(config, spec, 1, num_slots=slots)
    compile_s, seconds = device_time(call, 5)
    record = run_record(execute(call).look(0))
    if record.outcome.name != "COMPLETED":
        raise SystemExit(f"{title} ended with {record.outcome.name}")
    return Timed(
        title,
        compile_s,
        f"{seconds * 1e3:.1f} ms, {record.num_iterations} scan steps",
        f"{seconds / count * 1e6:.2f} µs a request",
    )


def under_pressure(
    window: int | None,
    config: ClusterConfig,
    workload: str,
    title: str,
    kv_model: str = "block-level",
) -> Timed:
    """Time one run made with one memory model, and measure the state that it carries."""
    (run,) = call_of(config, load_builtin(workload), 1, kv_model=kv_model, window=window).runs
    runner = Runner(run.sizes.options)
    record = runner.alone(run)
    call = Call(Group(run), [run], 1)
    _, seconds = device_time(call, 15)
    if record.outcome.name != "COMPLETED" or record.kv_model != kv_model:
        raise SystemExit(f"{title} ended with {record.outcome.name}")
    shape = call.group.shape
    with jax.enable_x64(True):
        start = beginning_of(shape, run.functions)
        _, state = jax.eval_shape(start, *run.inputs(shape))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    preempted = int(record.instances.preemption_count.sum())
    return Timed(
        title,
        runner.timing.compile_s,
        f"{seconds * 1e3:.1f} ms, {record.num_iterations} scan steps",
        f"{preempted} preemptions, state {size / 1e6:.1f} MB",
    )


def of_cluster(name: str) -> Timed:
    """Time one run of a cluster whose requests move or wait at the gateway, and count how many do."""
    kind, _, count = name.rpartition("-") if name not in CLUSTERS else (name, "", "")
    title, load, settings = CLUSTERS[kind], dict[str, Any](), worker.CLUSTERS[kind]
    if count:
        settings = settings | worker.ENOUGH
        load = {"aggregate_rate": worker.LONG_RATE, "num_requests": int(count)}
        title = f"{title}, {worker.LONG_RATE:g} req/s"
    spec = override(load_builtin("mixed"), **load)
    (run,) = call_of(ClusterConfig(**settings), spec, 1).runs
    runner = Runner(run.sizes.options)
    record = runner.alone(run)  # with tables that are large enough
    _, seconds = device_time(Call(Group(run), [run], 1), 5 if count else 15)
    if record.outcome.name != "COMPLETED":
        raise SystemExit(f"{title} ended with {record.outcome.name}")
    requests, waits = record.requests, record.requests.gateway_wait_us
    counts = {
        "hand-overs": int(requests.hand_overs.sum()),
        "failures": int(record.instances.times_down.sum()),
        "restarts": int(requests.restarts.sum()),
        "waits at the gateway": 0 if waits is None else int((waits > 0).sum()),
    }
    said = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    return Timed(
        f"{title}, {spec.num_requests:,} requests",
        runner.timing.compile_s,
        f"{seconds * 1e3:.2f} ms, {record.num_iterations} scan steps",
        f"{seconds / spec.num_requests * 1e6:.2f} µs a request; {said}" if count else said,
    )


CLUSTERS = {
    "pools": "one run, 2 prefill and 6 decode instances",
    "outages": "one run, instances that fail every 10 s",
    "flow-control": "one run behind the gateway's queue",
}

PRESSED = ClusterConfig(**worker.PRESSED)
PRESSURE: dict[str, tuple[Any, ...]] = {
    "pressure-5000": (PRESSED, "mixed", "one run, 5,000 blocks an instance, no CPU tier"),
    "pressure-5000-cpu": (
        PRESSED.replace(kv_cpu_blocks=44_000),
        "mixed",
        "the same with a CPU tier",
    ),
    "pressure-2000": (
        PRESSED.replace(total_kv_blocks=2000),
        "mixed",
        "one run, 2,000 blocks an instance",
    ),
    "index-of-routings": (
        ClusterConfig(**worker.ROUTED),
        "multiprefix",
        "2,000 blocks, prefix affinity, index fed by routings",
    ),
    "index-of-caches": (
        ClusterConfig(**worker.ROUTED_PRECISELY),
        "multiprefix",
        "the same, index fed by the caches (precise KV routing)",
    ),
    "multi-turn": (BASELINE, "multiturn", "one run, conversations, enough blocks", "no-eviction"),
    "multi-turn-pressure": (
        PRESSED.replace(total_kv_blocks=4000),
        "multiturn",
        "conversations, 4,000 blocks an instance",
    ),
}


ONE_CORE = {
    "bursts-2000": "one run, 2,000 requests in bursts, record included, one core",
    "august-default": "blis-2026-08: 100 requests at rate 1, 1 instance, record included, one core",
    "august-weighted": "blis-2026-08: mixed, 8 instances, weighted, record included, one core",
    "august-long-prompts": "blis-2026-08: 300 prompts, most of 16,000 tokens, 2,204 blocks and a CPU tier, one core",
}


def on_one_core(name: str, title: str) -> Timed:
    """Time one run from its requests to its record, on one core."""
    os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:1]))
    start = time.perf_counter()
    case = worker.CASES[name](Path())
    compile_s = time.perf_counter() - start
    seconds = min(case.run().run_s for _ in range(5))
    return Timed(title, compile_s, f"{seconds * 1e3:.2f} ms", f"{1 / seconds:.0f} runs/s")


def reference_requests(workload: str) -> Timed:
    """Time the requests of the reference for one seed after another, on the host."""
    spec = load_builtin(workload)
    start = time.perf_counter()
    reference.draw(spec, 0)
    first_s = time.perf_counter() - start
    some_seed = itertools.count(1)
    seconds = best_of(9, lambda: reference.draw(spec, next(some_seed)))
    return Timed(
        f"the reference's {spec.num_requests:,} requests of {workload}, drawn on the host",
        0.0,
        f"{seconds * 1e3:.0f} ms, {first_s * 1e3:.0f} ms the first time",
        f"{seconds / spec.num_requests * 1e6:.0f} µs a request",
    )


def search_of(strategy: str) -> Timed:
    """Time a search of the library from its first call to its last, compiled before."""
    space = space_of(load_strategy(strategy))
    budget, valuation = space.strategy.search, Valuation(space.strategy)
    spec, seeds = workload_of(space.strategy), space.strategy.seeds
    experiment = Experiment.on(
        spec, seeds, "reference", valuation.names, configs_per_batch=budget.batch
    )
    start = time.perf_counter()
    experiment.run([space.base])
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    best = loop.best_of(search(make(space, budget), valuation, runs_at(space, experiment)))
    seconds = time.perf_counter() - start
    assert best is not None
    return Timed(
        f"search {strategy}, {budget.calls} calls × {len(seeds)} seeds, {budget.engine}",
        compile_s,
        f"{seconds:.1f} s",
        f"best score {best.worth.score:.2f} ms",
    )


def compile_cold() -> Timed:
    """Time the compilation of generator and engine for the baseline, nothing cached."""
    return Timed(
        "compile, cold",
        compiled_in(call_of(BASELINE, load_builtin("mixed"), 16)),
        "-",
        "generator and engine in one program",
    )


def compile_cached() -> Timed:
    """Time the compilation of the same program from the persistent cache, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        code = (
            "import time, jax\n"
            f"jax.config.update('jax_compilation_cache_dir', {folder!r})\n"
            "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
            "jax.config.update('jax_persistent_cache_min_entry_size_bytes', 0)\n"
            "from benchmarks.speed.case import BASELINE, call_of, compiled_in, load_builtin\n"
            "print(compiled_in(call_of(BASELINE, load_builtin('mixed'), 16)))\n"
        )
        words = [sys.executable, "-c", code]
        times = [float(subprocess.check_output(words, text=True)) for _ in range(2)]
    return Timed(
        "compile, from the persistent cache",
        times[1],
        "-",
        f"{times[0]:.1f} s when the cache was filled",
    )


def measure(name: str, window: int | None = None) -> Timed:
    """Time the case of that name; `window` is for those at block level."""
    if name in TRACES:
        return trace(name, window)
    if name in STARTS:
        return Timed(**started(name))
    if name in ONE_CORE:
        return on_one_core(name, ONE_CORE[name])
    if name in PRESSURE:
        return under_pressure(window, *PRESSURE[name])
    if name in CLUSTERS or name.rpartition("-")[0] in CLUSTERS:
        return of_cluster(name)
    if name.startswith("sustainable-"):
        count = int(name.partition("-")[2])
        return scale(500.0, count, f"one run, 500 req/s, {count:,} requests")
    if name.startswith("instances-"):
        number, _, policy = name.removeprefix("instances-").partition("-")
        num, policy = int(number), policy or "weighted"
        title = f"one run, {num:,} instances, {policy}, 62.5 req/s each, 10,000 requests"
        return scale(500.0, 10_000, title, num, policy)
    if name.startswith("overloaded-"):
        count = int(name.partition("-")[2])
        return scale(2000.0, count, f"one run, 2,000 req/s, {count:,} requests")
    cases: dict[str, Callable[[], Timed]] = {
        "single-baseline": lambda: single(BASELINE, "one run, baseline, 1,000 requests"),
        "single-it08_opt": lambda: single(BEST, "one run, it08_opt, 1,000 requests"),
        "seeds-256-one-core": lambda: seeds(BASELINE, "256 seeds, baseline, one core", 1),
        "seeds-256-all-cores": lambda: seeds(BASELINE, "256 seeds, baseline, all cores", None),
        "seeds-256-figures": lambda: seeds(
            BASELINE, "256 seeds, baseline, figures from the call, all cores", None, in_call=True
        ),
        "seeds-256-it08_opt": lambda: seeds(BEST, "256 seeds, it08_opt, all cores", None),
        "sweep-256": lambda: swept("256 seeds, baseline, all cores, from seed to saved dataset"),
        "reference-requests": lambda: reference_requests("mixed"),
        "search-40-calls": lambda: search_of("iter08_token_budget"),
        "search-joint": lambda: search_of("joint_all_layers"),
        "compile-cold": compile_cold,
        "compile-cached": compile_cached,
        "form-thunks": lambda: single(BASELINE, "form: branches, XLA's default executor"),
        "form-thunks-one-thread": lambda: single(
            BASELINE, "form: branches, default executor, one thread"
        ),
        "form-lanes": lambda: single(
            BASELINE, "form: 16 lanes in one masked loop, per run", "lanes", 16
        ),
    }
    return cases[name]()


if __name__ == "__main__":
    result = measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
    print(json.dumps(result._asdict() | {"peak_mb": peak_mb()}))
