"""What a pathwise derivative costs next to the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax

from blis_jax.cluster.config import ClusterConfig
from blis_jax.engine.loop import beginning_of
from blis_jax.policies.seeds import FIXED
from blis_jax.runs.derivatives import Differentiator
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.workload.spec import load_builtin
from sweeps.runs.drawn import table_of


def speed(num_turns: int = 40) -> str:
    """Time a run and its derivatives, warm, and say what reverse mode would have to keep."""
    config = ClusterConfig(num_instances=8, routing_policy="weighted")
    table = table_of(load_builtin("mixed"), 42, 16, "reference")
    names = ("beta0", "beta1", "beta2", "alpha0", "alpha1", "alpha2", "arrival_scale")
    jobs: dict[str, Callable[[], Any]] = {"one run": lambda: simulate(config, table)}
    for count in (1, 3, 7):
        differentiate = Differentiator(names[:count])
        jobs[f"with {count} direction{'s' * (count > 1)}"] = lambda one=differentiate: one.run(
            config, table
        )
    first, best = {}, dict.fromkeys(jobs, math.inf)
    for name, job in jobs.items():
        start = time.perf_counter()
        job()
        first[name] = time.perf_counter() - start
    for _ in range(num_turns):  # by turns, so that a busy moment of the machine falls on all
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - start)
    lines = [
        f"{name}: {1e3 * best[name]:.1f} ms warm, {best[name] / best['one run']:.2f} times the run, "
        f"first call {first[name]:.1f} s"
        for name in jobs
    ]
    run = GivenRun(Row(config, table, FIXED), Options(clock="float64"))
    shape = run.sizes.shape
    with jax.enable_x64(True):
        start = beginning_of(shape, run.functions)
        _, state = jax.eval_shape(start, *run.inputs(shape))
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    steps = simulate(config, table).num_iterations
    lines.append(
        f"reverse mode: {steps} scan steps with a carry of {num_bytes / 1e6:.2f} MB; with checkpoints "
        f"every {math.isqrt(steps)} steps {2 * math.isqrt(steps) * num_bytes / 1e6:.0f} MB, and each step "
        "made twice before its own reversal"
    )
    return "\n".join(lines)
