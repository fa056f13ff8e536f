"""Search over strategies and the record of it: optimisation, comparison, robustness, ledger.

Experiment runs configurations on common requests; `arm_of` reads a configuration from the words of a command, and
`load_workload` the requests by their name. `evaluate_strategy` answers the request of an optimiser, and
`smoothed_gradients` says how a metric changes with numbers that act through decisions. All else is for commands.
"""

from typing import TYPE_CHECKING

from blis_jax.lazy import exports

if TYPE_CHECKING:
    from sweeps.evaluate import evaluate as evaluate_strategy
    from sweeps.runs.experiment import Experiment
    from sweeps.runs.requests import load_workload
    from sweeps.sensitivity.smoothed import Perturbed, smoothed_gradients
    from sweeps.strategies.arms import Arm, arm_of

__all__ = [
    "Arm",
    "Experiment",
    "Perturbed",
    "arm_of",
    "evaluate_strategy",
    "load_workload",
    "smoothed_gradients",
]

__getattr__ = exports(
    "sweeps",
    {
        "evaluate": ("evaluate_strategy=evaluate",),
        "runs.experiment": ("Experiment",),
        "runs.requests": ("load_workload",),
        "sensitivity.smoothed": ("Perturbed", "smoothed_gradients"),
        "strategies.arms": ("Arm", "arm_of"),
    },
)
