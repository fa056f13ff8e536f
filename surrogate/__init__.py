"""Learned stand-ins for the simulator: features, models, fitting, calibrated intervals.

Surrogate predicts the metrics of points with intervals, for the seeds of its dataset; `predict_any` for any seeds,
from `covariates_of_seeds` or `baseline_on_seeds`. All else is for commands.
"""

from typing import TYPE_CHECKING

from blis_jax.lazy import exports

if TYPE_CHECKING:
    from surrogate.levels.predict import baseline_on_seeds, covariates_of_seeds, predict_any
    from surrogate.predictor import Surrogate

__all__ = ["Surrogate", "baseline_on_seeds", "covariates_of_seeds", "predict_any"]

__getattr__ = exports(
    "surrogate",
    {
        "levels.predict": ("baseline_on_seeds", "covariates_of_seeds", "predict_any"),
        "predictor": ("Surrogate",),
    },
)
