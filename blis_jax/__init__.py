"""A tensor simulator of multi-instance LLM-serving clusters, equal to BLIS request by request.

Ask a question: compare, capacity, recommend, curve, sweep, select, ablate, robustness, optimize, sensitivity, gradient,
calibrate_server, make_dataset, train_surrogate and predict_by_surrogate take what their command takes, and return a
StudyResult: print it, or call its `to_dataframe()`, `to_dataset()`, `plot()`. list_names says which models, GPUs,
servers, workloads, metrics and policies there are.

    result = blis_jax.compare("vllm", "llm-d-default", workload="mixed", seeds=20)

Simulate: ClusterConfig, load_builtin or load_spec or read_trace; then simulate, over_seeds, over_params or run_grid.
Differentiate: jacobian, metric_slopes, grad. Each has a `help()`.
"""

from typing import TYPE_CHECKING

from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.lazy import exports

if TYPE_CHECKING:
    from collections.abc import Callable

    from blis_jax.commands.door.functions import StudyResult, list_names
    from blis_jax.commands.run.requests import draw_requests
    from blis_jax.metrics.compiled import figures_of
    from blis_jax.metrics.kv import cache_hit_rate
    from blis_jax.policies import Policies
    from blis_jax.records.record import TTFT_PARTS, RunRecord
    from blis_jax.results.dataset import summaries_to_dataset
    from blis_jax.runs.derivatives.slopes import grad, metric_slopes
    from blis_jax.runs.derivatives.times import Differentiator, jacobian
    from blis_jax.runs.many_runs import over_params, over_seeds, run_grid, simulate
    from blis_jax.runs.options import Options
    from blis_jax.traces.read import TraceOptions, read_trace
    from blis_jax.traces.rows import to_table
    from blis_jax.traces.write import write_trace
    from blis_jax.workload.reference import draw as draw_reference_requests
    from blis_jax.workload.spec import load_builtin, load_spec, override

    Study = Callable[..., StudyResult]
    ablate: Study
    calibrate_server: Study
    capacity: Study
    compare: Study
    curve: Study
    gradient: Study
    make_dataset: Study
    optimize: Study
    predict_by_surrogate: Study
    recommend: Study
    robustness: Study
    select: Study
    sensitivity: Study
    sweep: Study
    train_surrogate: Study

__version__ = "1.0.0"
__all__ = [
    "TTFT_PARTS",
    "ClusterConfig",
    "ConfigError",
    "Differentiator",
    "Options",
    "Policies",
    "RunRecord",
    "StudyResult",
    "TraceOptions",
    "ablate",
    "cache_hit_rate",
    "calibrate_server",
    "capacity",
    "compare",
    "curve",
    "draw_reference_requests",
    "draw_requests",
    "figures_of",
    "grad",
    "gradient",
    "jacobian",
    "list_names",
    "load_builtin",
    "load_spec",
    "make_dataset",
    "metric_slopes",
    "optimize",
    "over_params",
    "over_seeds",
    "override",
    "predict_by_surrogate",
    "read_trace",
    "recommend",
    "robustness",
    "run_grid",
    "select",
    "sensitivity",
    "simulate",
    "summaries_to_dataset",
    "sweep",
    "to_table",
    "train_surrogate",
    "write_trace",
]
prepare_backend()

# jax takes a second to import; --help and refused input must answer before
__getattr__ = exports(
    "blis_jax",
    {
        "commands.door.functions": (
            "StudyResult", "ablate", "calibrate_server", "capacity", "compare", "curve", "gradient", "list_names",
            "make_dataset", "optimize", "predict_by_surrogate", "recommend", "robustness", "select", "sensitivity",
            "sweep", "train_surrogate",
        ),
        "commands.run.requests": ("draw_requests",),
        "runs.derivatives.times": ("Differentiator", "jacobian"),
        "runs.many_runs": ("over_params", "over_seeds", "run_grid", "simulate"),
        "runs.options": ("Options",),
        "policies": ("Policies",),
        "metrics.kv": ("cache_hit_rate",),
        "metrics.compiled": ("figures_of",),
        "runs.derivatives.slopes": ("grad", "metric_slopes"),
        "results.dataset": ("summaries_to_dataset",),
        "records.record": ("TTFT_PARTS", "RunRecord"),
        "traces.read": ("TraceOptions", "read_trace"),
        "traces.rows": ("to_table",),
        "traces.write": ("write_trace",),
        "workload.reference": ("draw_reference_requests=draw",),
        "workload.spec": ("load_builtin", "load_spec", "override"),
    },
)  # fmt: skip


def __dir__() -> list[str]:
    return sorted([*__all__, "policies", *(name for name in globals() if name.startswith("__"))])
