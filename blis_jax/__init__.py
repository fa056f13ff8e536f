"""A tensor simulator of multi-instance LLM-serving clusters, equal to BLIS request by request."""

from typing import TYPE_CHECKING, Any

from blis_jax.config import ClusterConfig
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.batch import over_params, over_seeds, run_grid
    from blis_jax.device_metrics.run_figures import figures_of
    from blis_jax.policies import Policies
    from blis_jax.records import RunRecord
    from blis_jax.simulation import Options, simulate

__version__ = "0.1.0"
__all__ = [
    "ClusterConfig",
    "ConfigError",
    "Options",
    "Policies",
    "RunRecord",
    "figures_of",
    "over_params",
    "over_seeds",
    "run_grid",
    "simulate",
]
_LAZY = {
    "figures_of": "device_metrics.run_figures",
    "over_params": "batch",
    "over_seeds": "batch",
    "run_grid": "batch",
    "RunRecord": "records",
    "Options": "simulation",
    "Policies": "policies",
    "simulate": "simulation",
}


def __getattr__(name: str) -> Any:
    # jax takes a second to import; --help and refused input must answer before
    if name not in _LAZY:
        raise AttributeError(f"module 'blis_jax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"blis_jax.{_LAZY[name]}"), name)
