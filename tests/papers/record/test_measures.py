"""Parts of TTFT by class, and of all requests together."""

from __future__ import annotations

import numpy as np

from blis_jax import simulate
from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.metric import ALL
from blis_jax.records.record import TTFT_PARTS
from blis_jax.workload.reference import draw
from papers.record.measures import CLASSES, ttft_parts
from sweeps.runs.requests import load_workload


def test_the_parts_of_all_requests_add_up_to_their_mean_ttft() -> None:
    spec = load_workload("orth").model_copy(update={"num_requests": 40})
    config = ClusterConfig(num_instances=2, routing_policy="round-robin")
    record = simulate(config, draw(spec, 42)[0])
    whole, by_class = ttft_parts((ALL,)), ttft_parts()
    assert whole.names[0] == f"{ALL}/{ALL}/{TTFT_PARTS[0]}"
    assert whole.name != by_class.name  # kept apart
    everything = whole.of(record)[: len(TTFT_PARTS)].sum()
    assert np.isclose(everything, record.requests.ttft_us.mean() / 1000)
    parts = by_class.of(record).reshape(len(CLASSES), 2, len(TTFT_PARTS))[:, 0].sum(axis=1)
    assert parts.min() < everything < parts.max()  # the twin: no class stands for all
