"""A tensor simulator of multi-instance LLM-serving clusters, equal to BLIS request by request."""

from typing import TYPE_CHECKING

from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.lazy import exports

if TYPE_CHECKING:
    from blis_jax.commands.run.requests import draw_requests
    from blis_jax.metrics.kv import cache_hit_rate
    from blis_jax.metrics.on_device.compiled import figures_of
    from blis_jax.policies import Policies
    from blis_jax.records.record import TTFT_PARTS, RunRecord
    from blis_jax.runs.derivatives import Differentiator, jacobian
    from blis_jax.runs.many_runs import over_params, over_seeds, run_grid, simulate
    from blis_jax.runs.options import Options
    from blis_jax.runs.slopes import grad, metric_slopes
    from blis_jax.traces.read import TraceOptions, read_trace
    from blis_jax.traces.rows import to_table
    from blis_jax.traces.write import write_trace
    from blis_jax.workload.reference import draw as draw_reference_requests
    from blis_jax.workload.spec import load_builtin, load_spec, override

__version__ = "0.1.0"
__all__ = [
    "TTFT_PARTS",
    "ClusterConfig",
    "ConfigError",
    "Differentiator",
    "Options",
    "Policies",
    "RunRecord",
    "TraceOptions",
    "cache_hit_rate",
    "draw_reference_requests",
    "draw_requests",
    "figures_of",
    "grad",
    "jacobian",
    "load_builtin",
    "load_spec",
    "metric_slopes",
    "over_params",
    "over_seeds",
    "override",
    "read_trace",
    "run_grid",
    "simulate",
    "to_table",
    "write_trace",
]
prepare_backend()

# jax takes a second to import; --help and refused input must answer before
__getattr__ = exports(
    "blis_jax",
    {
        "commands.run.requests": ("draw_requests",),
        "runs.derivatives": ("Differentiator", "jacobian"),
        "runs.many_runs": ("over_params", "over_seeds", "run_grid", "simulate"),
        "runs.options": ("Options",),
        "policies": ("Policies",),
        "metrics.kv": ("cache_hit_rate",),
        "metrics.on_device.compiled": ("figures_of",),
        "runs.slopes": ("grad", "metric_slopes"),
        "records.record": ("TTFT_PARTS", "RunRecord"),
        "traces.read": ("TraceOptions", "read_trace"),
        "traces.rows": ("to_table",),
        "traces.write": ("write_trace",),
        "workload.reference": ("draw_reference_requests=draw",),
        "workload.spec": ("load_builtin", "load_spec", "override"),
    },
)
