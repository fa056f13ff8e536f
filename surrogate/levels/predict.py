"""Predictions for seeds outside the pool: means, and differences from the baseline, with intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from blis_jax.errors import ConfigError, ConfigWarning
from surrogate.fitting.conformal import factors_by_region
from surrogate.fitting.features import features
from surrogate.levels.covariates import COVARIATES, covariates
from surrogate.levels.model import (
    DIFFERENCE,
    GIVEN,
    KINDS,
    LEVEL,
    SIMULATED,
    UNKNOWN,
    Levels,
    key,
)

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable
    from surrogate.predictor import Surrogate

NUM_SEEDS = 32  # of a mean over seeds that nobody names
FARTHEST = 6.0  # sd over seeds that the mean of a covariate may be off
BLOCK_SIZE = 16  # by which contents are cut; no covariate depends on it


class Parts:
    """What is needed of the learned outputs at some points, in their units, `[point, output]` each."""

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
    """What is known of seeds; refuses a surrogate that knows nothing of them."""
    if surrogate.levels is None:
        raise ConfigError(
            "this surrogate knows only its pool of seeds; train it with --seeds-data DATA, the .zarr of "
            "sweeps.dataset --own-seeds"
        )
    return surrogate.levels


def covariates_of_seeds(
    surrogate: Surrogate, seeds: Sequence[int], spec: WorkloadSpec | None = None
) -> np.ndarray:
    """The covariates of seeds `[seed, covariate]`; requests are drawn, nothing is simulated.

    The workload is the dataset's, or `spec`.
    """
    levels = levels_of(surrogate)
    draw, spec = drawing(levels), workload_of(levels, spec)
    return np.array(
        [covariates(draw(spec, seed, BLOCK_SIZE)[0], levels.rate_rps) for seed in seeds]
    )


def workload_of(levels: Levels, spec: WorkloadSpec | None = None) -> WorkloadSpec:
    """The workload that is meant: `spec`, or else the dataset's."""
    from blis_jax.workload.spec import parse_spec

    return parse_spec(levels.workload, "workload") if spec is None else spec


def drawing(levels: Levels) -> Callable[[WorkloadSpec, int, int], tuple[RequestTable, Any]]:
    """Who draws the requests of a workload and a seed, contents cut into blocks of a size."""
    if levels.stream == "jax":
        from blis_jax.commands.run.requests import draw_requests as draw
    else:
        from blis_jax.workload.reference import draw
    return draw


def predict_any(
    surrogate: Surrogate,
    points: Any,
    confidence: float = 0.9,
    given: np.ndarray | None = None,
    num_seeds: int = NUM_SEEDS,
    baseline: np.ndarray | None = None,
) -> xr.Dataset:
    """Means over seeds outside the pool, and differences from the baseline on the same seeds.

    Args:
        surrogate: one that was trained with `--seeds-data`.
        points: `[point, parameter]`, or mappings.
        confidence: of the intervals.
        given: what the requests of the seeds are like, `[seed, covariate]`, of `covariates_of_seeds`; without it
            the mean is over seeds that nobody knows.
        num_seeds: how many of these. Above 32 seeds the scores are those of 32.
        baseline: the baseline's runs on the seeds that are given, `[seed, output]`, of
            `surrogate.levels.simulate.baseline_on_seeds`; without it they are predicted.

    Returns:
        `mean`, `low`, `high`; `difference`, `difference_low`, `difference_high`; `baseline`, its mean; each
        `[point, output]` in the output's unit. The attribute `seeds` says what was known of them: their requests
        (`given`), the baseline's runs too (`simulated`), or nothing (`unknown`).

    Raises:
        ConfigError: the surrogate knows only its pool, or does not know how runs go with those of the baseline;
            an argument is out of range, or the lengths do not agree.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence: got {confidence:g}, allowed is between 0 and 1")
    if num_seeds < 1:
        raise ConfigError(f"num_seeds: got {num_seeds}, allowed is 1 or more")
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
    parts = Parts(surrogate, inputs)
    found = predicted(surrogate, parts, level, mode, count, confidence, on_seeds)
    dataset = xr.Dataset(
        {
            name: (("point", "output"), _of_all_outputs(surrogate, name, values))
            for name, values in found.items()
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


def _of_all_outputs(surrogate: Surrogate, name: str, values: np.ndarray) -> np.ndarray:
    """Values `[point, learned output]` among those of all outputs; a constant output has its own, or differs by 0."""
    is_constant = ~surrogate.scales.is_learned
    whole = np.zeros((len(values), len(surrogate.outputs)))
    whole[:, ~is_constant] = values
    if not name.startswith("difference"):
        whole[:, is_constant] = [one.center for one in surrogate.scales.entries if one.is_constant]
    return whole


def _checked(surrogate: Surrogate, given: np.ndarray | None, baseline: np.ndarray) -> np.ndarray:
    """The baseline's learned outputs, `[seed, output]`."""
    if given is None or baseline.shape != (len(given), len(surrogate.outputs)):
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
    """Says so where requests are unlike those that levels were learned from."""
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
    parts: Parts,
    level: np.ndarray,
    mode: str,
    baseline: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted means, and the baseline's, which are predicted too unless given, `[point, output]` each."""
    levels = levels_of(surrogate)
    low, high = surrogate.learned_bounds()
    mean = parts.mean + parts.run_sd * levels.shift(parts.phi, level, mode)
    mean = np.clip(mean, low, high)
    if baseline is None:
        baseline = np.clip(levels.baseline_at(level), low, high)
    return mean, np.broadcast_to(baseline, mean.shape)


def predicted(
    surrogate: Surrogate,
    parts: Parts,
    level: np.ndarray,
    mode: str,
    count: int,
    confidence: float,
    baseline: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The same of the learned outputs; `level` is what `Levels.standard` gives, for all points or for each.

    `baseline` are the means of its runs on these seeds, where it was simulated.
    """
    levels = levels_of(surrogate)
    low, high = surrogate.learned_bounds()
    mean, baseline = means(surrogate, parts, level, mode, baseline)
    found = {"mean": mean, "difference": mean - baseline, "baseline": baseline}
    for kind, name in zip(KINDS, ("mean", "difference"), strict=True):
        scores = levels.scores[key(mode, kind, levels.rung(count))]
        reach = factors_by_region(scores, levels.region, confidence)[parts.region]
        half = reach * levels.sigma(mode, kind, parts.fixed, parts.run_sd, count)
        ends = found[name] - half, found[name] + half
        if kind == LEVEL:
            found["low"], found["high"] = (np.clip(end, low, high) for end in ends)
        else:
            found["difference_low"], found["difference_high"] = ends
    return found


__all__ = ["DIFFERENCE", "Parts", "covariates_of_seeds", "predict_any", "predicted"]
