"""A tensor simulator of multi-instance LLM-serving clusters, equal to BLIS request by request."""

from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.engine.runner.many_runs import over_params, over_seeds, run_grid
    from blis_jax.engine.runner.simulation import Options, simulate
    from blis_jax.policies import Policies
    from blis_jax.results.metrics.on_device.run_figures import figures_of
    from blis_jax.results.records import RunRecord

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
prepare_backend()

_LAZY = {
    "figures_of": "results.metrics.on_device.run_figures",
    "over_params": "engine.runner.many_runs",
    "over_seeds": "engine.runner.many_runs",
    "run_grid": "engine.runner.many_runs",
    "RunRecord": "results.records",
    "Options": "engine.runner.simulation",
    "Policies": "policies",
    "simulate": "engine.runner.simulation",
}


def __getattr__(name: str) -> Any:
    # jax takes a second to import; --help and refused input must answer before
    if name not in _LAZY:
        raise AttributeError(f"module 'blis_jax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"blis_jax.{_LAZY[name]}"), name)
