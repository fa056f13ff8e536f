"""What searches keep of a run, and the reference's names of metrics."""

from __future__ import annotations

from blis_jax.metrics.further import worst_p99_ms  # which registers its metrics
from blis_jax.metrics.scalars import Metric, lookup
from blis_jax.workload.source import RequestSource

# names in the reference's search script, and ours
THEIR_NAMES = {
    "throughput_tps": "tokens_per_sec",
    "completed": "num_completed",
    "dropped": "num_dropped",
    "preemptions": "num_preemptions",
}
OF_RUN = (
    "tokens_per_sec",
    "output_tokens_per_s",
    "requests_per_s",
    "class_fairness",
    "num_dropped",
    "num_preemptions",
    "cache_hit_rate",
)
OF_CLASS = (
    "ttft_mean_ms",
    "ttft_p99_ms",
    "e2e_mean_ms",
    "e2e_p99_ms",
    "goodput_rps",
    "slo_miss_rate",
    "reject_rate",
)


def our_name(name: str) -> str:
    """The registered name of a metric, `[class]` included, that may have the reference's name."""
    base, bracket, rest = name.partition("[")
    return THEIR_NAMES.get(base, base) + bracket + rest


def found(name: str) -> Metric:
    """The metric of a name in either vocabulary; an error says which there are."""
    metric, _ = lookup(our_name(name))
    return metric


def reported_names(spec: RequestSource) -> tuple[str, ...]:
    """What is kept of every run: figures of the run, then of all requests and of each class."""
    by_class = [f"{name}[{slo_class}]" for slo_class in spec.slo_classes for name in OF_CLASS]
    return (*OF_RUN, *OF_CLASS, *by_class)


__all__ = [
    "OF_CLASS",
    "OF_RUN",
    "THEIR_NAMES",
    "found",
    "our_name",
    "reported_names",
    "worst_p99_ms",
]
