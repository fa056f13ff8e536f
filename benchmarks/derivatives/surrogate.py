"""The gradient of a fitted surrogate of iteration 8's space, beside central differences of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.derivatives.table import Line
from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import normal_quantile
from surrogate.predictor import Surrogate
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of

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
