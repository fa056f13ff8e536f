"""Latency coefficients fitted to a measured run: requests in, coefficients with intervals out."""

from typing import TYPE_CHECKING

from blis_jax.lazy import exports

if TYPE_CHECKING:
    from blis_jax.calibrate.calibration import CalibrationPlan, calibrate, to_document
    from blis_jax.calibrate.posterior import load as load_fit
    from blis_jax.traces.measured.recorded import read_measured
    from blis_jax.traces.measured.run import cluster_values

__all__ = [
    "CalibrationPlan",
    "calibrate",
    "cluster_values",
    "load_fit",
    "read_measured",
    "to_document",
]

__getattr__ = exports(
    "blis_jax.calibrate",
    {
        "calibration": ("CalibrationPlan", "calibrate", "to_document"),
        "blis_jax.traces.measured.recorded": ("read_measured",),
        "posterior": ("load_fit=load",),
        "blis_jax.traces.measured.run": ("cluster_values",),
    },
)
