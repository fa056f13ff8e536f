"""Predictions for seeds outside the pool: from their requests, or from the baseline simulated on them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from blis_jax.cluster.setting_values import config_of_values
from blis_jax.commands.run.requests import draw_requests
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.metrics import further  # noqa: F401  (registers metrics that datasets have)
from blis_jax.metrics.compiled import figures_of
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure
from blis_jax.runs.many_runs import run_given
from blis_jax.runs.options import Options, default_form
from blis_jax.workload import reference
from blis_jax.workload.source import until_horizon
from blis_jax.workload.spec import WorkloadSpec, parse_spec
from surrogate.columns import factors_by_region
from surrogate.data import FAILED
from surrogate.fitting.network import features
from surrogate.levels.model import (
    COVARIATES,
    GIVEN,
    KINDS,
    LEVEL,
    SIMULATED,
    UNKNOWN,
    Levels,
    covariates,
    key,
    least_held,
)

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.metrics.run_summary import RunSummary
    from blis_jax.workload.table import RequestTable
    from surrogate.predictor import Surrogate


NUM_SEEDS = 32  # of a mean over seeds that nobody names
FARTHEST = 6.0  # sd over seeds that the mean of a covariate may be off
BLOCK_SIZE = 16  # by which contents are cut; no covariate depends on it


class LevelParts:
    """Mean, sd and features of some points, which predictions for other seeds are made of; `[point, output]` in the
    outputs' units.
    """

    def __init__(self, surrogate: Surrogate, inputs: np.ndarray) -> None:
        standard = surrogate.standard(inputs)
        is_log, _, width = (np.asarray(array) for array in surrogate.scales.arrays())
        self.mean = surrogate.raw(standard.mean).astype(float)
        slope = np.where(is_log, self.mean, 1.0) * width
        self.fixed = slope * surrogate.calibration.sigma(standard)
        self.run_sd = slope * np.asarray(standard.aleatoric, float)
        seen = features(surrogate.columns, jnp.asarray(inputs, jnp.float32))
        self.phi = np.concatenate([np.ones((len(inputs), 1)), np.asarray(seen, float)], axis=1)
        assert surrogate.regions is not None
        self.region = surrogate.regions.of(inputs, self.mean).astype(int)


def levels_of(surrogate: Surrogate) -> Levels:
    """Return the levels of a surrogate, by which it predicts for seeds outside its pool.

    Raises:
        ConfigError: the surrogate has no levels.
    """
    if surrogate.levels is None:
        raise ConfigError(
            "this surrogate knows only its pool of seeds; train it with --seeds-data DATA, the .zarr of "
            "sweeps.dataset --own-seeds"
        )
    return surrogate.levels


def covariates_of_seeds(
    surrogate: Surrogate, seeds: Sequence[int], spec: WorkloadSpec | None = None
) -> np.ndarray:
    """Return the covariates of seeds `[seed, covariate]`; requests are drawn, nothing is simulated.

    The workload is the dataset's, or `spec`.
    """
    levels = levels_of(surrogate)
    draw, spec = drawing(levels), workload_of(levels, spec)
    return np.array(
        [covariates(draw(spec, seed, BLOCK_SIZE)[0], levels.rate_rps) for seed in seeds]
    )


def workload_of(levels: Levels, spec: WorkloadSpec | None = None) -> WorkloadSpec:
    """Return `spec` or, if it is None, the dataset's workload."""
    return parse_spec(levels.workload, "workload") if spec is None else spec


def drawing(levels: Levels) -> Callable[[WorkloadSpec, int, int], tuple[RequestTable, Any]]:
    """Return the function that draws the requests of a workload and a seed, cut into blocks of a given size."""
    return draw_requests if levels.stream == "jax" else reference.draw


def predict_any(
    surrogate: Surrogate,
    points: Any,
    confidence: float = 0.9,
    given: np.ndarray | None = None,
    num_seeds: int = NUM_SEEDS,
    baseline: np.ndarray | None = None,
) -> xr.Dataset:
    """Predict means over seeds outside the pool, and differences from the baseline on the same seeds.

    Args:
        surrogate: one that was trained with `--seeds-data`.
        points: `[point, parameter]`, or mappings.
        confidence: of the intervals.
        given: what the requests of the seeds are like, `[seed, covariate]`, of `covariates_of_seeds`; without it
            the seeds are unknown.
        num_seeds: the number of unknown seeds. Above 32 seeds the scores are those of 32.
        baseline: the baseline's runs on the seeds that are given, `[seed, output]`, of
            `surrogate.levels.predict.baseline_on_seeds`; without it they are predicted.

    Returns:
        `mean`, `low`, `high`; `difference`, `difference_low`, `difference_high`; `baseline`, its mean; each
        `[point, output]` in the output's unit; `least_held`, the share of points that lie in their intervals if all
        are on one set of such seeds, at least that on nine sets of ten. The attribute `seeds` says what was known of
        the seeds: their requests (`given`), the baseline's runs too (`simulated`), or nothing (`unknown`).

    Raises:
        ConfigError: the surrogate knows only its pool, or has no scores for a simulated baseline;
            an argument is out of range, or the lengths do not agree.
    """
    _check(confidence, num_seeds)
    levels, inputs = levels_of(surrogate), surrogate.inputs(points)
    mode = UNKNOWN if given is None else GIVEN if baseline is None else SIMULATED
    count = num_seeds if given is None else len(given)
    level, runs = levels.typical, None
    if baseline is not None:
        runs = _checked(surrogate, given, baseline)
    if given is not None:
        level = levels.standard(given, runs).mean(axis=0)
    _warn_if_far(level[: len(COVARIATES)])
    on_seeds = None if runs is None else runs.mean(axis=0)
    parts = LevelParts(surrogate, inputs)
    predictions = predicted(surrogate, parts, level, mode, count, confidence, on_seeds)
    dataset = xr.Dataset(
        {
            name: (("point", "output"), _of_all_outputs(surrogate, name, values))
            for name, values in predictions.items()
        },
        {"output": list(surrogate.outputs)},
    )
    dataset.coords["unit"] = ("output", list(surrogate.units))
    dataset.attrs = {
        "confidence": confidence,
        "num_seeds": count,
        "seeds": mode,
        "baseline": levels.baseline,
    }
    return dataset


def _check(confidence: float, num_seeds: int) -> None:
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence: got {confidence:g}, allowed is between 0 and 1")
    if num_seeds < 1:
        raise ConfigError(f"num_seeds: got {num_seeds}, allowed is 1 or more")


def _of_all_outputs(surrogate: Surrogate, name: str, values: np.ndarray) -> np.ndarray:
    """Return values of all outputs from `[point, learned output]`; constants have their value, or differ by 0."""
    is_constant = ~surrogate.scales.is_learned
    whole = np.zeros((len(values), len(surrogate.outputs)))
    whole[:, ~is_constant] = values
    if name == "least_held":
        whole[:, is_constant] = 1.0
    elif not name.startswith("difference"):
        whole[:, is_constant] = [
            entry.center for entry in surrogate.scales.entries if entry.is_constant
        ]
    return whole


def _checked(
    surrogate: Surrogate, covariates: np.ndarray | None, baseline: np.ndarray
) -> np.ndarray:
    """Return the baseline's learned outputs, `[seed, output]`, after checking them."""
    if covariates is None or baseline.shape != (len(covariates), len(surrogate.outputs)):
        raise ConfigError(
            f"baseline: got {list(baseline.shape)} values, allowed is [seed, output], {len(surrogate.outputs)} "
            "outputs of each seed that is given"
        )
    if SIMULATED not in levels_of(surrogate).modes:
        raise ConfigError(
            "this surrogate does not know how runs go with those of the baseline; train it again, or leave the "
            "baseline's runs out"
        )
    return np.asarray(baseline[:, surrogate.scales.is_learned], float)


def _warn_if_far(level: np.ndarray) -> None:
    """Warn where requests are unlike those that levels were learned from."""
    at = int(np.abs(level).argmax())
    if abs(level[at]) > FARTHEST:
        warnings.warn(
            f"the requests of these seeds are unlike those that the surrogate was fitted to: "
            f"{COVARIATES[at]} is {level[at]:+.0f} standard deviations off; do not trust their level",
            ConfigWarning,
            stacklevel=3,
        )


def means(
    surrogate: Surrogate,
    parts: LevelParts,
    level: np.ndarray,
    mode: str,
    baseline: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted means, and the baseline's, which are predicted too unless given, `[point, output]` each."""
    levels = levels_of(surrogate)
    low, high = surrogate.learned_bounds()
    mean = parts.mean + parts.run_sd * levels.shift(parts.phi, level, mode)
    mean = np.clip(mean, low, high)
    if baseline is None:
        baseline = np.clip(levels.baseline_at(level), low, high)
    return mean, np.broadcast_to(baseline, mean.shape)


def predicted(
    surrogate: Surrogate,
    parts: LevelParts,
    level: np.ndarray,
    mode: str,
    count: int,
    confidence: float,
    baseline: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Predict the learned outputs with intervals; `level` is a result of `Levels.standard`, for all points or for each.

    `baseline` are the means of its runs on these seeds, where it was simulated.
    """
    levels = levels_of(surrogate)
    low, high = surrogate.learned_bounds()
    mean, baseline = means(surrogate, parts, level, mode, baseline)
    columns = {"mean": mean, "difference": mean - baseline, "baseline": baseline}
    shared = levels.shared(mode, parts.fixed, parts.run_sd, count)
    columns["least_held"] = least_held(shared, confidence)
    for kind, name in zip(KINDS, ("mean", "difference"), strict=True):
        scores = levels.scores[key(mode, kind, levels.rung(count))]
        reach = factors_by_region(scores, levels.region, confidence)[parts.region]
        half = reach * levels.sigma(mode, kind, parts.fixed, parts.run_sd, count)
        ends = columns[name] - half, columns[name] + half
        if kind == LEVEL:
            columns["low"], columns["high"] = (np.clip(end, low, high) for end in ends)
        else:
            columns["difference_low"], columns["difference_high"] = ends
    return columns


# --- the baseline on given seeds ------------------------------------------------------------------

OTHERWISE = "predict from the requests of the seeds alone (--level requests)"


def baseline_config(surrogate: Surrogate) -> ClusterConfig:
    """Return the baseline's cluster.

    Raises:
        ConfigError: the surrogate has no baseline, or one of its policies is not registered here.
    """
    levels = levels_of(surrogate)
    if SIMULATED not in levels.modes or not levels.settings:
        raise ConfigError(
            f"this surrogate does not know the settings of its baseline; train it again, or {OTHERWISE}"
        )
    try:
        return config_of_values(levels.settings)
    except ConfigError as error:
        raise ConfigError(
            f"baseline {levels.baseline} cannot be simulated here ({error}); {OTHERWISE}"
        ) from None


def baseline_on_seeds(
    surrogate: Surrogate, seeds: Sequence[int], spec: WorkloadSpec | None = None
) -> np.ndarray:
    """Simulate the baseline on seeds, one run each, as the dataset's were made.

    Args:
        surrogate: one that was trained with `--seeds-data`.
        seeds: whole numbers that its stream of requests has.
        spec: the workload, the dataset's if None.

    Returns:
        What the surrogate predicts, of every run, `[seed, output]` in the outputs' units.

    Raises:
        ConfigError: the baseline cannot be simulated here, a run does not come to its end, or a run has no figure
            for an output.
    """
    levels = levels_of(surrogate)
    spec = workload_of(levels, spec)
    config = until_horizon(baseline_config(surrogate), spec)
    measure, draw = _measure(levels, spec), drawing(levels)

    def table_of(seed: int, block_size: int) -> RequestTable:
        """Return the requests of one run."""
        return draw(spec, seed, block_size)[0]

    names = [name for name in surrogate.outputs if name != FAILED]
    summarize = figures_of(names, measure.slo_targets(), measure)
    options = Options(form=default_form())
    (runs,) = run_given([config], table_of, seeds, summarize, options).rows
    each = zip(seeds, runs, strict=True)
    return np.array([_outputs(surrogate, seed, run) for seed, run in each])


def _measure(levels: Levels, spec: WorkloadSpec) -> Measure:
    """Return how runs are measured, as the dataset's runs were."""
    targets = {
        name: {limit: ms for limit, ms in limits.items() if ms is not None}
        for name, limits in (levels.targets or DEFAULT_TARGETS).items()
    }
    measure = Measure(targets, spec.measure.warm_up_s, spec.measure.cool_down_s)
    measure.check(spec)
    return measure


def _outputs(surrogate: Surrogate, seed: int, run: RunSummary) -> list[float]:
    """Return one run's value of every output of the surrogate."""
    where = f"seed {seed}: baseline {levels_of(surrogate).baseline}"
    if not run.metrics:
        raise ConfigError(
            f"{where} does not come to its end ({run.outcome.name}); leave out this seed, or {OTHERWISE}"
        )
    values = [float(run.metrics.get(name, 0.0)) for name in surrogate.outputs]  # 0: it did not fail
    for name, value in zip(surrogate.outputs, values, strict=True):
        if math.isnan(value):
            raise ConfigError(f"{where} has no {name}; leave out this seed, or {OTHERWISE}")
    return values
