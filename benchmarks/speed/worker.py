"""One revision's side of a comparison: makes a case ready, then runs it once whenever it is asked.

`benchmarks.speed.against` starts this file as a script, with the package of any revision on the path. It therefore
imports nothing of `benchmarks`, and of `blis_jax` only what users call and what outlives changes of the engine:
`simulate`, `run_grid`, the sweep's runner, configurations, workloads and traces.

One JSON line comes back for every line read: `run` and `compile` give seconds, `count` gives calls of
Python functions. The end of the input ends it.
"""

from __future__ import annotations

import contextlib
import cProfile
import dataclasses
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import blis_jax
from blis_jax import ClusterConfig, Options, run_grid, simulate
from blis_jax.traces.read import read_trace
from blis_jax.traces.rows import to_table

# what reads workloads needs pydantic, which a machine with a GPU may lack: it is imported where it is used
REFERENCE = "blis_jax.workload.reference"
BASELINE: dict[str, Any] = {
    "num_instances": 8,
    "long_prefill_token_threshold": 256,
    "routing_policy": "weighted",
    "kv_cpu_blocks": 44_000,
}
BEST: dict[str, Any] = BASELINE | {
    "scheduler": "priority-fcfs",
    "priority_policy": "slo-tiered",
    "slo_base_critical": 12.9382,
    "slo_base_sheddable": 2.7803,
    "slo_age_weight": 9.83659e-05,
    "slo_threshold_sheddable": 500_000,
    "max_num_scheduled_tokens": 962,
    "slo_prefill": True,
    "slo_prefill_critical": 508,
    "slo_prefill_sheddable": 256,
}
# enough memory that no block is used twice: beyond that the block-level model takes over
ENOUGH: dict[str, Any] = {"total_kv_blocks": 4_000_000, "kv_cpu_blocks": 0}
AMPLE: dict[str, Any] = BASELINE | ENOUGH
PRESSED: dict[str, Any] = BASELINE | {"total_kv_blocks": 5000, "kv_cpu_blocks": 0}
# clusters whose requests move on, start again, or wait at the gateway
LEAST_LOADED: dict[str, Any] = BASELINE | {"routing_policy": "least-loaded", "kv_cpu_blocks": 0}
POOLS: dict[str, Any] = LEAST_LOADED | {
    "hand_over_policy": "pools",
    "instances": ({"count": 2, "role": "prefill"}, {"count": 6, "role": "decode"}),
}
FAILING: dict[str, Any] = LEAST_LOADED | {
    "cluster_policy": "outages",
    "outages_mtbf_s": 10.0,
    "outages_mttr_s": 0.5,
    "outages_start_up_s": 0.1,
    "outages_running": 1,
}
QUEUED: dict[str, Any] = LEAST_LOADED | {
    "flow_control": True,
    "saturation_detector": "concurrency",
    "max_concurrency": 16,
}
LONG_RATE, LONG_COUNTS = 120.0, (4_000, 16_000, 64_000)  # requests a second, and requests
CLUSTERS = {"pools": POOLS, "outages": FAILING, "flow-control": QUEUED}
# who feeds the router's index: its own decisions, or the instances' caches
ROUTED: dict[str, Any] = PRESSED | {
    "routing_policy": "weighted",
    "routing_scorers": "prefix-affinity:4,queue-depth:3",
    "total_kv_blocks": 2000,
}
ROUTED_PRECISELY: dict[str, Any] = ROUTED | {"precise_kv_routing": True}
# the routing track's bursts, and the strategy that the track found
BURSTS = str(Path(__file__).parents[2] / "sweeps" / "workloads" / "orth_gamma2.yaml")
OF_BURSTS: dict[str, Any] = {"aggregate_rate": 2000.0, "num_requests": 2000}
COMPOUND: dict[str, Any] = {
    "num_instances": 8,
    "routing_policy": "weighted",
    "routing_scorers": "prefix-affinity:4,queue-depth:3",
    "admission_policy": "slo-gated",
    "scheduler": "priority-fcfs",
    "priority_policy": "slo-class",
}
# the later revision's rules, with the step law that it takes for a model
AUGUST: dict[str, Any] = {"revision": "blis-2026-08", "model": "meta-llama/llama-3.1-8b-instruct"}
AUGUST_WEIGHTED: dict[str, Any] = AUGUST | {"num_instances": 8, "routing_policy": "weighted"}
# prompts of which the cache holds two, and a CPU tier that all of them pass through
LONG_PROMPTS = str(Path(__file__).parent / "long_prompts.yaml")
TIERED: dict[str, Any] = {
    "revision": "blis-2026-08",
    "model": "qwen/qwen3-32b",
    "hardware": "H100",
    "tp": 1,
    "total_kv_blocks": 2204,
    "kv_cpu_blocks": 2048,
}
BLIS_DEFAULTS = "defaults"  # 100 requests at rate 1, as BLIS draws them where nothing is asked for
SEEDS = 256
ONE_FUNCTION = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000000000"
LEAST_S = 0.25  # a repetition makes so many runs that it takes at least this long
MOONCAKE = "mooncake_fast25/conversation_trace.jsonl"
AZURE_CONV = "azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
AZURE_CODE = "azure_llm_2023/AzureLLMInferenceTrace_code.csv"
# the trace's own blocks, and as much memory as 132,139 blocks of 16 tokens
OF_512: dict[str, Any] = {"block_size_in_tokens": 512, "total_kv_blocks": 132_139 // 32}


class Seconds(NamedTuple):
    """The times of one repetition."""

    run_s: float
    compile_s: float | None = None  # where the case can tell: hardly any if it was compiled before


class Case(NamedTuple):
    """A case that is ready to run."""

    work: int
    unit: str  # of the work: runs or requests
    run: Callable[[], Seconds]  # one repetition
    compiles: bool = True  # the repetition compiles something if nothing compiled is left
    once: Callable[[], Any] | None = None  # of which a repetition makes several


def _first_of(*names: str) -> Any:
    """The first of the modules that this revision has; later ones are its homes in earlier revisions."""
    for name in names[:-1]:
        with contextlib.suppress(ImportError):
            return import_module(name)
    return import_module(names[-1])


def _workload(name: str, **changes: Any) -> Any:
    if name == BLIS_DEFAULTS:
        # lengths had a folder of their own
        home = _first_of("blis_jax.workload.distribution", "blis_jax.workload.lengths.distribution")
        return import_module(f"{REFERENCE}.distribution").as_spec(home.Distribution(), None)
    specs = import_module("blis_jax.workload.spec")
    spec = specs.load_spec(name) if name.endswith(".yaml") else specs.load_builtin(name)
    return specs.override(spec, **changes) if changes else spec


def _on_cores(cores: int | None) -> None:
    if cores is not None:
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))


def seeds(config: Mapping[str, Any], cores: int | None = None, *, in_call: bool = False) -> Case:
    """Make the case of 256 seeds drawn, simulated and summarised by one number; with `in_call` the
    compiled call forms it.
    """

    def of_record(record: Any) -> float:
        return float(np.percentile(record.requests.ttft_us, 99))

    _on_cores(cores)

    def run() -> Seconds:
        """Return the seconds for all seeds, from keys to one number (µs of TTFT) per run; compiling apart."""
        grid = run_grid(
            [ClusterConfig(**config)],
            _workload("mixed"),
            range(SEEDS),
            blis_jax.figures_of(["ttft_p99_ms"]) if in_call else of_record,
            Options(resolve_ties=False),
        )
        return Seconds(grid.timing.run_s, grid.timing.compile_s)

    return Case(SEEDS, "runs", run)


def sweep() -> Case:
    """Make the case of 256 seeds of the baseline from seed to the saved Dataset, as the sweep command makes it."""
    # blis_jax had the command, and no folder of metrics
    execution = _first_of("sweeps.sweep.execution", "blis_jax.commands.sweep.execution")
    planning = _first_of("sweeps.sweep.plan", "blis_jax.commands.sweep.plan")
    measure = _first_of("blis_jax.metrics.measure", "blis_jax.commands.sweep.measure")
    plan = planning.make_plan(strategies=["baseline"], seeds=range(SEEDS))
    # earlier revisions show progress unless they are told not to
    is_told = "is_shown" in {field.name for field in dataclasses.fields(execution.How)}
    how = execution.How(**({"is_shown": False} if is_told else {}))
    # and measure what they are told to, which the plan says now
    measured = (
        (measure.Measure(),)
        if "measure" in inspect.signature(execution.run_sweep).parameters
        else ()
    )

    def run() -> Seconds:
        """Return the seconds for running and saving all seeds, and those for compiling."""
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            path = Path(folder) / "sweep.zarr"
            timing = execution.run_sweep(plan, *measured, how, path, False).timing
            seconds = time.perf_counter() - start
        return Seconds(seconds - timing.compile_s, timing.compile_s)

    return Case(SEEDS, "runs", run)


def lanes(count: int = 16) -> Case:
    """Make the case of a few runs in the form for GPUs."""

    def run() -> Seconds:
        """Return the seconds for all lanes, from keys to the name of each outcome; compiling apart."""
        options = Options(form="lanes", resolve_ties=False, num_slots=192)
        grid = run_grid(
            [ClusterConfig(**BASELINE)],
            _workload("mixed"),
            range(count),
            lambda record: record.outcome.name,
            options,
        )
        return Seconds(grid.timing.run_s, grid.timing.compile_s)

    return Case(count, "runs", run)


def _repeated(work: int, unit: str, once: Callable[[], Any]) -> Case:
    """Return a case that repeats `once` for `LEAST_S` seconds; the shortest call counts."""

    def run() -> Seconds:
        """Return the seconds of the shortest call, after compiling."""
        times: list[float] = []
        while sum(times) < LEAST_S:
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
        return Seconds(min(times))

    return Case(work, unit, run, once=once)


def single(
    config: Mapping[str, Any], workload: str = "mixed", unit: str = "runs", **changes: Any
) -> Case:
    """Make the case of one run on the reference's requests of seed 0, from the request table to the record."""
    table, _ = import_module(REFERENCE).draw(_workload(workload, **changes), 0)
    cluster, options = ClusterConfig(**config), Options(resolve_ties=False)
    record = simulate(cluster, table, options)
    if record.outcome.name != "COMPLETED":
        raise SystemExit(f"the run ended with {record.outcome.name}")
    work = 1 if unit == "runs" else len(record.requests.instance)
    return _repeated(work, unit, lambda: simulate(cluster, table, options))


def trace(data: Path, file: str, routing: str, instances: int = 8, **changes: Any) -> Case:
    """Make the case of a recorded trace, with ties put in the reference's order."""
    if not (data / file).is_file():
        raise SystemExit(f"{data / file} is not there; put the recorded traces beside the checkout")
    config = ClusterConfig(num_instances=instances, routing_policy=routing, **changes)
    table, _ = to_table(read_trace(data / file).rows, block_size=config.block_size_in_tokens)
    record = simulate(config, table)
    work = int((record.requests.instance >= 0).sum())
    return _repeated(work, "requests", lambda: simulate(config, table))


def reference_requests() -> Case:
    """Make the case of the reference's requests of seed after seed, drawn on the host."""
    spec = _workload("mixed")
    draw = import_module(REFERENCE).draw
    case = _repeated(spec.num_requests, "requests", lambda: draw(spec, 1))
    return case._replace(compiles=False)


CASES: dict[str, Callable[[Path], Case]] = {
    "single-baseline": lambda _: single(BASELINE),
    "single-it08_opt": lambda _: single(BEST),
    "seeds-256-one-core": lambda _: seeds(BASELINE, 1),
    "seeds-256-all-cores": lambda _: seeds(BASELINE),
    "seeds-256-figures": lambda _: seeds(BASELINE, in_call=True),
    "seeds-256-it08_opt": lambda _: seeds(BEST),
    "sweep-256": lambda _: sweep(),
    "sustainable-1000": lambda _: single(
        AMPLE, unit="requests", aggregate_rate=500.0, num_requests=1000
    ),
    "sustainable-10000": lambda _: single(
        AMPLE, unit="requests", aggregate_rate=500.0, num_requests=10_000
    ),
    "sustainable-100000": lambda _: single(
        AMPLE, unit="requests", aggregate_rate=500.0, num_requests=100_000
    ),
    "overloaded-1000": lambda _: single(
        AMPLE, unit="requests", aggregate_rate=2000.0, num_requests=1000
    ),
    "overloaded-10000": lambda _: single(
        AMPLE, unit="requests", aggregate_rate=2000.0, num_requests=10_000
    ),
    "pressure-5000": lambda _: single(PRESSED),
    "pressure-5000-cpu": lambda _: single(PRESSED | {"kv_cpu_blocks": 44_000}),
    "pressure-2000": lambda _: single(PRESSED | {"total_kv_blocks": 2000}),
    "index-of-routings": lambda _: single(ROUTED, "multiprefix"),
    "index-of-caches": lambda _: single(ROUTED_PRECISELY, "multiprefix"),
    **{name: lambda _, of=of: single(of) for name, of in CLUSTERS.items()},
    **{
        f"{name}-{count}": lambda _, of=of, count=count: single(
            of | ENOUGH, unit="requests", aggregate_rate=LONG_RATE, num_requests=count
        )
        for name, of in CLUSTERS.items()
        for count in LONG_COUNTS
    },
    "bursts-2000": lambda _: single(COMPOUND, BURSTS, **OF_BURSTS),
    "august-default": lambda _: single(AUGUST, BLIS_DEFAULTS),
    "august-weighted": lambda _: single(AUGUST_WEIGHTED),
    "august-long-prompts": lambda _: single(TIERED, LONG_PROMPTS, unit="requests"),
    "multi-turn": lambda _: single(BASELINE, "multiturn"),
    "multi-turn-pressure": lambda _: single(PRESSED | {"total_kv_blocks": 4000}, "multiturn"),
    "reference-requests": lambda _: reference_requests(),
    "mooncake-8": lambda data: trace(data, MOONCAKE, "weighted"),
    "mooncake-8-least-loaded": lambda data: trace(data, MOONCAKE, "least-loaded"),
    "mooncake-8-round-robin": lambda data: trace(data, MOONCAKE, "round-robin"),
    "mooncake-8-round-robin-512": lambda data: trace(data, MOONCAKE, "round-robin", **OF_512),
    "mooncake-64": lambda data: trace(data, MOONCAKE, "weighted", 64),
    "azure-conv": lambda data: trace(data, AZURE_CONV, "weighted"),
    "azure-code": lambda data: trace(data, AZURE_CODE, "weighted"),
    "form-lanes": lambda _: lanes(),
}


def compiled_again(case: Case) -> Seconds:
    """Run the case after all programs are dropped; if the case does not time compiling, take the excess over a warm
    run.
    """
    warm = case.run()
    if not case.compiles:
        return Seconds(warm.run_s)
    jax.clear_caches()
    start = time.perf_counter()
    again = case.run()  # a compilation takes longer than LEAST_S, so this is one call
    if again.compile_s is not None:
        return again
    return Seconds(warm.run_s, time.perf_counter() - start - warm.run_s)


def num_calls(case: Case) -> int:
    """Count the calls of Python functions, built-in ones included, in the least of three warm repetitions."""
    counts = []
    for _ in range(3):
        profile = cProfile.Profile()
        profile.runcall(case.once or case.run)
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    return min(counts)


def serve(name: str, data: Path) -> None:
    """Answer on stdout until the input ends; whatever else prints goes to stderr."""
    with os.fdopen(os.dup(1), "w") as answers, contextlib.redirect_stdout(sys.stderr):
        os.environ.setdefault("XLA_FLAGS", ONE_FUNCTION)  # revisions whose import set nothing

        def answer(**told: Any) -> None:
            print(json.dumps(told), file=answers, flush=True)

        case = CASES[name](data)
        case.run()
        answer(work=case.work, unit=case.unit, package=str(Path(blis_jax.__file__).parent.parent))
        for line in sys.stdin:
            if line.strip() == "count":
                answer(calls=num_calls(case))
                continue
            seconds = case.run() if line.strip() == "run" else compiled_again(case)
            answer(run_s=seconds.run_s, compile_s=seconds.compile_s)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
