"""Predictions for seeds outside the pool: means, and differences from the baseline, with intervals."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
    UNKNOWN,
    Levels,
    key,
)

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec
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
    from blis_jax.workload.spec import parse_spec

    levels = levels_of(surrogate)
    spec = parse_spec(levels.workload, "workload") if spec is None else spec
    if levels.stream == "jax":
        from blis_jax.commands.run.requests import draw_requests as draw
    else:
        from blis_jax.workload.reference import draw
    return np.array(
        [covariates(draw(spec, seed, BLOCK_SIZE)[0], levels.rate_rps) for seed in seeds]
    )


def predict_any(
    surrogate: Surrogate,
    points: Any,
    confidence: float = 0.9,
    given: np.ndarray | None = None,
    num_seeds: int = NUM_SEEDS,
) -> xr.Dataset:
    """Means over seeds outside the pool, and differences from the baseline on the same seeds.

    `given[seed, covariate]` are those of the seeds that are meant; without it the mean is over
    `num_seeds` that nobody knows. `mean`, `low`, `high`; `difference`, `difference_low`,
    `difference_high`; `baseline`, what is predicted of it. Above 32 seeds the scores are those of 32.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence: got {confidence:g}, allowed is between 0 and 1")
    if num_seeds < 1:
        raise ConfigError(f"num_seeds: got {num_seeds}, allowed is 1 or more")
    levels, inputs = levels_of(surrogate), surrogate.inputs(points)
    mode = UNKNOWN if given is None else GIVEN
    count = num_seeds if given is None else len(given)
    level = levels.typical if given is None else levels.standard(given).mean(axis=0)
    _warn_if_far(level)
    found = predicted(surrogate, Parts(surrogate, inputs), level, mode, count, confidence)
    dataset = xr.Dataset(coords={"output": list(surrogate.outputs)})
    is_constant = ~surrogate.scales.is_learned
    for name, values in found.items():
        whole = np.zeros((len(inputs), len(surrogate.outputs)))
        whole[:, ~is_constant] = values
        if not name.startswith("difference"):
            whole[:, is_constant] = [
                one.center for one in surrogate.scales.entries if one.is_constant
            ]
        dataset[name] = (("point", "output"), whole)
    dataset.coords["unit"] = ("output", list(surrogate.units))
    dataset.attrs = {
        "confidence": confidence,
        "num_seeds": count,
        "seeds": mode,
        "baseline": levels.baseline,
    }
    return dataset


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


def predicted(
    surrogate: Surrogate, parts: Parts, level: np.ndarray, mode: str, count: int, confidence: float
) -> dict[str, np.ndarray]:
    """The same of the learned outputs; `level[covariate]` or `[point, covariate]`."""
    levels = levels_of(surrogate)
    low, high = surrogate.learned_bounds()
    mean = parts.mean + parts.run_sd * levels.shift(parts.phi, level)
    mean = np.clip(mean, low, high)
    baseline = np.broadcast_to(np.clip(levels.baseline_at(level), low, high), mean.shape)
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
