"""Rows of the table of derivatives, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.engine.loop import beginning_of
from blis_jax.errors import ConfigError
from blis_jax.policies.seeds import FIXED
from blis_jax.runs.derivatives.times import Differentiator
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.statistics.intervals import normal_quantile
from blis_jax.workload.spec import load_builtin
from papers.pages import csv_of
from surrogate.predictor import Surrogate
from sweeps.runs.drawn import table_of
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of


@dataclass(frozen=True)
class Line:
    """One pair of a parameter and a metric; derivatives per unit of the parameter."""

    case: str
    clock: str
    kind: str  # pathwise, smoothed, or surrogate
    parameter: str
    metric: str
    estimate: float
    estimate_error: float  # standard error
    difference: float  # the central one
    difference_low: float  # 95 %
    difference_high: float
    relative: float  # estimate ÷ difference - 1
    relative_error: float  # standard error, from the same seeds where both have them
    share_changed: float  # of the runs whose decisions differ between the two sides
    num_seeds: int
    verdict: str


def as_csv(lines: Sequence[Line]) -> str:
    """Write all figures as CSV, six digits."""
    rows = [
        {name: f"{v:.6g}" if isinstance(v, float) else v for name, v in asdict(line).items()}
        for line in lines
    ]
    return csv_of(rows, list(Line.__dataclass_fields__))


def from_csv(text: str) -> list[Line]:
    """Read the rows of a file that `as_csv` wrote."""
    kinds = {"float": float, "int": int, "str": str}
    fields = Line.__dataclass_fields__
    return [
        Line(**{name: kinds[str(fields[name].type)](value) for name, value in row.items()})
        for row in csv.DictReader(io.StringIO(text))
    ]


def table(lines: Sequence[Line]) -> str:
    """Write a Markdown table; derivatives per unit of the parameter (µs, µs per token, 1, tokens, …)."""
    heads = ("case", "parameter", "metric", "estimate ± s.e.", "central difference, 95 %")
    heads += ("relative ± s.e.", "runs changed", "")
    rows = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for line in lines:
        clock = "" if line.clock == "int32" else f", {line.clock} clock"
        cells = (
            f"{line.case}{clock}",
            f"{line.kind} {line.parameter}",
            line.metric,
            f"{line.estimate:.4g} ± {line.estimate_error:.1g}",
            f"{line.difference:.4g} [{line.difference_low:.4g}, {line.difference_high:.4g}]",
            f"{100 * line.relative:+.2f} % ± {100 * line.relative_error:.2f}",
            f"{100 * line.share_changed:.1f} %",
            line.verdict,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows).replace(" ± nan", "").replace("nan %", "–")


# --- the gradient of a fitted surrogate of iteration 8's space -----------------------------------


STRATEGY, POINT = "iter08_token_budget", "published"
INSIDE = {"max_tokens": 1536, "prefill_crit": 256}  # the published ones lie at their bounds
HALF_WIDTHS = {"max_tokens": 128, "prefill_crit": 48}
METRICS = ("ttft_p99_ms[critical]", "ttft_p99_ms[sheddable]", "tokens_per_sec")
CASE, NUM_ALONG = "iteration 8", 33


def surrogate_lines(folder: Path, seeds: Sequence[int]) -> list[Line]:
    """Return one row for every parameter and metric; `seeds` are the simulator's, of the JAX stream."""
    surrogate = Surrogate.load(folder)
    strategy = load_strategy(STRATEGY)
    space = space_of(strategy)
    if set(surrogate.names) != set(space.names):
        raise ConfigError(
            f"{folder} has the inputs {', '.join(surrogate.names)}; give a surrogate of {STRATEGY}"
        )
    names = [name for name in METRICS if name in surrogate.outputs]
    point = dict(strategy.points[POINT]) | INSIDE
    experiment = Experiment.on(workload_of(strategy), seeds, "jax", names)

    def along(point: dict[str, float], parameter: str) -> np.ndarray:
        """Return points over the reach of a parameter's difference."""
        reach = HALF_WIDTHS[parameter] * np.linspace(-1, 1, NUM_ALONG)
        array = np.tile([float(point[name]) for name in surrogate.names], (NUM_ALONG, 1))
        array[:, surrogate.names.index(parameter)] += reach
        return array

    lines = []
    for parameter, half in HALF_WIDTHS.items():
        sides = experiment.run(
            [
                space.config_with(point | {parameter: point[parameter] + sign * half})
                for sign in (1, -1)
            ]
        )
        for name in names:
            # the mean slope over the reach of the difference, so that curvature is not called bias
            up, down = (np.array([run.metrics[name] for run in side]) for side in sides)
            place = surrogate.names.index(parameter)
            slope = float(surrogate.gradient(along(point, parameter), name)[:, place].mean())
            lines.append(_line(parameter, name, slope, (up - down) / (2 * half)))
    return lines


def _line(parameter: str, metric: str, slope: float, by_seed: np.ndarray) -> Line:
    mean, error = float(by_seed.mean()), float(by_seed.std(ddof=1) / math.sqrt(len(by_seed)))
    half = normal_quantile() * error
    low, high = mean - half, mean + half
    verdict = "surrogate: within the interval" if low <= slope <= high else "bias: of the fit"
    return Line(
        CASE,
        "int32",
        "surrogate",
        parameter,
        metric,
        slope,
        math.nan,
        mean,
        low,
        high,
        slope / mean - 1 if mean else math.nan,
        error / abs(mean) if mean else math.nan,
        math.nan,
        len(by_seed),
        verdict,
    )


# --- what a pathwise derivative costs next to the run --------------------------------------------


def speed(num_turns: int = 40) -> str:
    """Time a run and its derivatives, compiled before, and say how much reverse mode would have to store."""
    config = ClusterConfig(num_instances=8, routing_policy="weighted")
    table = table_of(load_builtin("mixed"), 42, 16, "reference")
    names = ("beta0", "beta1", "beta2", "alpha0", "alpha1", "alpha2", "arrival_scale")
    jobs: dict[str, Callable[[], Any]] = {"one run": lambda: simulate(config, table)}
    for count in (1, 3, 7):
        differentiate = Differentiator(names[:count])
        jobs[f"with {count} direction{'s' * (count > 1)}"] = lambda differentiated=differentiate: (
            differentiated.run(config, table)
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
