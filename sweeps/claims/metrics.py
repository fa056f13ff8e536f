"""What searches keep of a run, and the reference's names of metrics."""

from __future__ import annotations

import blis_jax.metrics.further  # noqa: F401  (registers the metrics of searches)
from blis_jax.metrics.metric import Metric, name_in, names_in, split_name
from blis_jax.metrics.scalars import lookup
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
    """Return the registered name of a metric, `[class]` included, that may have the reference's name."""
    base, slo_class = split_name(name)
    return name_in(THEIR_NAMES.get(base, base), slo_class)


def known_metric(name: str) -> Metric:
    """Return the metric of a name in either vocabulary; an error says which there are."""
    metric, _ = lookup(our_name(name))
    return metric


def reported_names(spec: RequestSource) -> tuple[str, ...]:
    """Return what is kept of every run: figures of the run, then of all requests and of each class."""
    return (*OF_RUN, *OF_CLASS, *names_in(OF_CLASS, spec.slo_classes))
