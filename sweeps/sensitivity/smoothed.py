"""Smoothed gradients, for parameters that act through decisions: thresholds, weights, bases, budgets.

A metric jumps where a decision flips, so its derivative is 0 or does not exist. Its mean over perturbed parameters is
smooth, and so is the gradient of that mean: points are perturbed by σ·z and -σ·z (antithetic pairs, z normal),
every point runs on the same requests (common random numbers), and the pairs' differences are fitted by least
squares to 2σ·z, which is Stein's estimator freed of the variance of z². Whole-numbered parameters are rounded
only for the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.named_policies import is_policy_number, number_of
from blis_jax.cluster.router import weights_of
from blis_jax.commands.options import outputs
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.metrics.scalars import lookup
from blis_jax.policies.their_names import SETTINGS
from blis_jax.reports.findings import Answer, Findings, Quantity, Row, Table
from blis_jax.reports.words import cluster_line
from blis_jax.statistics.intervals import CONFIDENCE, normal_quantile
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import requests_of, workload_of_arms
from sweeps.strategies.arms import arms_of, with_settings
from sweeps.strategies.space import SCORERS

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Float

    from blis_jax.metrics.run_summary import RunSummary
    from blis_jax.records.record import RunRecord
    from sweeps.gradient import GradientOptions


LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-math.sqrt(3), math.sqrt(3), shape),
}


@dataclass(frozen=True)
class Perturbed:
    """A parameter and the size of its perturbations."""

    target: str  # a setting, or routing_scorers.NAME
    width: float  # σ, in the parameter's unit, or of its logarithm
    is_log: bool = False

    def __post_init__(self) -> None:
        """Refuse a parameter that cannot be perturbed."""
        setting, dot, _ = self.target.partition(".")
        kind = FIELDS[setting].type if setting in FIELDS else None
        if is_policy_number(self.target):
            kind = "float"
        if not (dot and setting == SCORERS) and kind not in ("int", "float"):
            raise ConfigError(
                f"{self.target!r} cannot be perturbed; give a numeric setting or {SCORERS}.NAME"
            )
        if not (math.isfinite(self.width) and self.width > 0):
            raise ConfigError(f"{self.target}: width must be above 0, got {self.width:g}")

    def centre(self, config: ClusterConfig) -> float:
        """Return the parameter's current value, in the unit of its width.

        Raises:
            ConfigError: the mechanism has no such scorer.
        """
        setting, dot, scorer = self.target.partition(".")
        if is_policy_number(self.target):
            value = float(config.value(self.target))
            return self._coordinate(value)
        weights = weights_of(config.scorers())
        if dot and scorer not in weights:
            has = ", ".join(weights) or "none"
            raise ConfigError(f"{self.target}: the mechanism has no such scorer; it has {has}")
        return self._coordinate(float(weights[scorer] if dot else getattr(config, setting)))

    def _coordinate(self, value: float) -> float:
        if self.is_log and value <= 0:
            raise ConfigError(f"{self.target}: {value:g} has no logarithm; perturb it as it is")
        return math.log(value) if self.is_log else value

    def simulated(self, coordinate: float, config: ClusterConfig) -> float:
        """Return the value for the simulator; rounded where the configuration takes whole numbers only."""
        value = math.exp(coordinate) if self.is_log else coordinate
        if is_policy_number(self.target):
            declared = number_of(config, self.target)
            return round(value) if declared is not None and declared.is_whole else value
        is_whole = "." not in self.target and FIELDS[self.target].type == "int"
        return round(value) if is_whole else value


@dataclass(frozen=True)
class SmoothedGradient:
    """The gradient of one metric's smoothed mean over seeds, per unit of each (transformed) parameter."""

    metric: str
    parameters: tuple[Perturbed, ...]
    gradient: Float[np.ndarray, "parameter"]
    variance_of_seeds: Float[np.ndarray, "parameter"]  # of the estimate, from the seeds at hand
    variance_of_draws: Float[np.ndarray, "parameter"]  # of the estimate, from the perturbations
    value: float  # mean over the perturbed points: the smoothed metric
    num_pairs: int
    num_seeds: int
    share_changed: float  # of the pairs' runs whose decisions differ between the two sides

    @property
    def standard_error(self) -> Float[np.ndarray, "parameter"]:
        """Return the gradient's standard error `[parameter]`, from seeds and perturbations together."""
        return np.sqrt(self.variance_of_seeds + self.variance_of_draws)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper ends of the intervals `[parameter]`, by the normal approximation."""
        half = normal_quantile(confidence) * self.standard_error
        return self.gradient - half, self.gradient + half


def smoothed_gradients(
    experiment: Experiment,
    config: ClusterConfig,
    parameters: Sequence[Perturbed],
    num_pairs: int = 16,
    random_state: int = 0,
    law: str = "normal",
) -> dict[str, SmoothedGradient]:
    """Estimate the smoothed gradient of each of the experiment's metrics at a configuration.

    All 2·`num_pairs` points run on all of the experiment's seeds in its compiled calls. With several parameters
    every pair perturbs all of them at once.
    """
    draws = _draws(len(parameters), num_pairs, random_state, law)
    configs = [perturbed(config, parameters, sign * draw) for draw in draws for sign in (1.0, -1.0)]
    figures = experiment.result
    runs = experiment.summaries(configs, lambda record: (figures(record), decisions(record)))
    results = [[result for result, _ in of_point] for of_point in runs]
    _check_whole(results)
    paths = [[path for _, path in of_point] for of_point in runs]
    changed = [
        decided != other
        for ahead, back in zip(paths[::2], paths[1::2], strict=True)
        for decided, other in zip(ahead, back, strict=True)
    ]
    share = sum(changed) / len(changed)
    return {
        name: _fitted(name, parameters, draws, _values(results, name), share)
        for name in experiment.names
    }


def perturbed(
    config: ClusterConfig, parameters: Sequence[Perturbed], draw: Float[np.ndarray, "parameter"]
) -> ClusterConfig:
    """Return the configuration moved by `draw` widths; refuse values that are not allowed."""
    settings = {
        parameter.target: parameter.simulated(
            parameter.centre(config) + parameter.width * float(z), config
        )
        for parameter, z in zip(parameters, draw, strict=True)
    }
    return with_settings("a perturbed point (a smaller width may help)", config, settings)


def decisions(record: RunRecord) -> int:
    """Return a hash of the instance and the steps of every request; it is equal where no decision differs."""
    requests = record.requests
    columns = (requests.instance, requests.scheduled_step_idx, requests.finished_step_idx)
    return hash(b"".join(np.ascontiguousarray(column, np.int64).tobytes() for column in columns))


def fit_pairs(
    draws: Float[np.ndarray, "pair parameter"],
    widths: Float[np.ndarray, "parameter"],
    differences: Float[np.ndarray, "pair seed"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradient, with its variances from seeds and from draws; `differences` are f(+) − f(−).

    The fit is linear in the differences, so each seed has a gradient of its own, and the gradients' spread gives the
    variance from seeds. The variance from draws is that of the least-squares fit, robust to unequal residuals (HC1).
    """
    num_pairs, num_parameters = draws.shape
    steps = 2.0 * draws * widths[None, :]
    solver = np.linalg.pinv(steps)  # parameter, pair
    by_seed = solver @ differences
    gradient = by_seed.mean(axis=1)
    num_seeds = differences.shape[1]
    of_seeds = (
        by_seed.var(axis=1, ddof=1) / num_seeds if num_seeds > 1 else np.full_like(gradient, np.nan)
    )
    residual = differences.mean(axis=1) - steps @ gradient
    freedom = max(num_pairs - num_parameters, 1)
    of_draws = (solver**2 @ residual**2) * num_pairs / freedom
    return gradient, of_seeds, of_draws


def _draws(num_parameters: int, num_pairs: int, random_state: int, law: str) -> np.ndarray:
    if not num_parameters:
        raise ConfigError("no parameter to perturb was given; give at least one")
    if num_pairs <= num_parameters:
        raise ConfigError(
            f"{num_pairs} pairs cannot tell {num_parameters} parameters and their spread; "
            f"give at least {num_parameters + 1}"
        )
    if law not in LAWS:
        raise ConfigError(f"law {law!r} is unknown; use {' or '.join(LAWS)}")
    return LAWS[law](np.random.default_rng(random_state), (num_pairs, num_parameters))


def _check_whole(results: Sequence[Sequence[RunSummary]]) -> None:
    failed = sorted(
        {run.outcome.name for of_point in results for run in of_point if not run.is_whole}
    )
    if failed:
        raise ConfigError(
            f"a perturbed point has runs that did not finish ({', '.join(failed)}); "
            "choose another point or smaller widths"
        )


def _values(results: Sequence[Sequence[RunSummary]], name: str) -> np.ndarray:
    """Return the metric `[point, seed]`, for the seeds on which every point has a value."""

    def value(metrics: Mapping[str, float]) -> float:
        return float(metrics[name])

    values = np.array([[value(run.metrics) for run in of_point] for of_point in results])
    return values[:, np.isfinite(values).all(axis=0)]


def _fitted(
    name: str, parameters: Sequence[Perturbed], draws: np.ndarray, values: np.ndarray, share: float
) -> SmoothedGradient:
    if not values.shape[1]:
        raise ConfigError(f"{name}: no seed has it at every perturbed point")
    widths = np.array([parameter.width for parameter in parameters])
    gradient, of_seeds, of_draws = fit_pairs(draws, widths, values[::2] - values[1::2])
    return SmoothedGradient(
        metric=name,
        parameters=tuple(parameters),
        gradient=gradient,
        variance_of_seeds=of_seeds,
        variance_of_draws=of_draws,
        value=float(values.mean()),
        num_pairs=len(draws),
        num_seeds=values.shape[1],
        share_changed=share,
    )


def take_gradients(
    options: GradientOptions,
    arm_text: str,
    widths: Sequence[tuple[str, float, bool]],
    output: Path | None,
) -> int:
    """Estimate the gradients that the options ask for, and write and print these; return the exit code."""
    is_real = options.trace is not None
    (arm,) = arms_of([arm_text], options.instances, is_real, options.coefficients_from)
    parameters = [
        Perturbed(SETTINGS.get(name, name), width, is_log) for name, width, is_log in widths
    ]
    for parameter in parameters:
        parameter.centre(arm.config)
    metrics = options.metrics.split(",")
    for metric in metrics:
        lookup(metric)
    requests = requests_of(
        options,
        options.command,
        lambda: workload_of_arms(options, [arm]),
        [arm.config],
        options.usual_seeds,
    ).at_least(2, "to have a spread")
    experiment = Experiment(requests, tuple(metrics), configs_per_batch=2 * options.pairs)
    gradients = smoothed_gradients(
        experiment, arm.config, parameters, options.pairs, options.random_state, options.law
    )
    files: outputs.Files = [
        (output, lambda path: write_json(path, document(arm.name, requests.seeds, gradients)))
    ]
    cluster = cluster_line({arm.name: arm.config})
    told = replace(answer(arm.name, requests.seeds, gradients), cluster=cluster)
    findings = Findings(told, [table(gradients)])
    outputs.show(findings, lambda: outputs.write_files(files), options)
    return 0


def _unit(parameter: Perturbed) -> str:
    return f"log {parameter.target}" if parameter.is_log else parameter.target


def table(gradients: Mapping[str, SmoothedGradient]) -> Table:
    """Return a row for each metric and setting: the slope, in the metric's unit per unit of the setting."""
    columns = (
        "metric", "per unit of", "unit", "gradient [95 %]", "s.e. by seeds", "s.e. by draws", "σ", "runs changed",
    )  # fmt: skip
    rows = [
        Row(
            (
                name,
                _unit(parameter),
                lookup(name)[0].unit,
                Quantity(float(slope.gradient[at]), float(low[at]), float(high[at])),
                Quantity(float(slope.variance_of_seeds[at] ** 0.5)),
                Quantity(float(slope.variance_of_draws[at] ** 0.5)),
                Quantity(parameter.width, unit=" of the setting"),
                Quantity(100 * slope.share_changed, unit=" %"),
            )
        )
        for name, slope in gradients.items()
        for low, high in [slope.interval()]
        for at, parameter in enumerate(slope.parameters)
    ]
    return Table(columns, tuple(rows), num_keys=3, name="gradients", brief_columns=(0, 1, 2, 3, 7))


def answer(arm: str, seeds: Sequence[int], gradients: Mapping[str, SmoothedGradient]) -> Answer:
    """Return the answer: the slopes that differ from 0, and the number of runs."""
    slopes = [
        (f"{name} per {_unit(parameter)}", slope.gradient[at], slope.standard_error[at])
        for name, slope in gradients.items()
        for at, parameter in enumerate(slope.parameters)
    ]
    told = [f"{name} {value:.4g}" for name, value, error in slopes if abs(value) > 2 * error]
    pairs = max((slope.num_pairs for slope in gradients.values()), default=0)
    return Answer.of(
        f"How do metrics of {arm} change with its settings?",
        "; ".join(told) if told else "no slope is told from 0.",
        f"slopes above two standard errors; {len(told)} of {len(slopes)}, each judged by itself.",
        f"{2 * pairs * len(seeds)} runs: {pairs} pairs of draws on {len(seeds)} seeds.",
        "more --pairs or --seeds narrow the errors."
        if len(told) < len(slopes)
        else "blis-jax optimize searches for better settings.",
    )


def document(
    arm: str, seeds: Sequence[int], gradients: Mapping[str, SmoothedGradient]
) -> dict[str, Any]:
    """Return all results as plain data, for other programs."""
    return {
        "arm": arm,
        "seeds": list(seeds),
        "gradients": [
            {
                "metric": name,
                "setting": parameter.target,
                "is_log": parameter.is_log,
                "width": parameter.width,
                "gradient": float(slope.gradient[place]),
                "standard_error": float(slope.standard_error[place]),
                "variance_of_seeds": float(slope.variance_of_seeds[place]),
                "variance_of_draws": float(slope.variance_of_draws[place]),
                "smoothed_value": slope.value,
                "num_pairs": slope.num_pairs,
                "num_seeds": slope.num_seeds,
                "share_changed": slope.share_changed,
            }
            for name, slope in gradients.items()
            for place, parameter in enumerate(slope.parameters)
        ],
    }
