"""The tail of the worst instance, as searches and rows of a ledger ask for it."""

from __future__ import annotations

import numpy as np

from blis_jax import simulate
from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.figures import worst_p99_ms
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import SloTargets
from blis_jax.records.record import RunRecord
from blis_jax.workload.reference import draw
from sweeps.runs.requests import load_workload

METRIC = "worst_ttft_p99_ms"


def run() -> RunRecord:
    config = ClusterConfig(num_instances=2, routing_policy="round-robin")
    spec = load_workload("orth").model_copy(update={"num_requests": 40})
    return simulate(config, draw(spec, 42)[0])


def test_it_is_the_largest_of_the_instances_and_the_cluster() -> None:
    record = run()
    times, where = record.requests.ttft_us, record.requests.instance
    is_critical = record.requests.slo_class == class_code("critical")
    found = evaluate(record, [METRIC, f"{METRIC}[critical]"], SloTargets({}))
    for name, chosen in ((METRIC, times >= 0), (f"{METRIC}[critical]", is_critical)):
        groups = [times[chosen], *(times[chosen & (where == place)] for place in range(2))]
        tails = [float(np.percentile(group, 99)) / 1000 for group in groups]
        assert found[name] == max(tails) == worst_p99_ms(record, times, chosen)
    whole = float(np.percentile(times, 99)) / 1000
    assert found[METRIC] > whole  # the twin: not simply the cluster's


def test_without_a_first_token_there_is_none() -> None:
    record = run()
    nobody = np.zeros(len(record.requests.ttft_us), bool)
    assert np.isnan(worst_p99_ms(record, record.requests.ttft_us, nobody))
