"""The rate at which a simulated cluster saturates."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.workload.spec import WorkloadSpec, override, parse_spec
from sweeps.promote.evidence.origins import lengths, saturation_rate, tokens_of_request
from sweeps.runs.experiment import Experiment

SPEC = """
version: '2'
category: language
aggregate_rate: 10.0
num_requests: 40
clients:
- id: a
  slo_class: critical
  rate_fraction: 1.0
  arrival: {process: poisson}
  input_distribution: {type: constant, params: {value: 128}}
  output_distribution: {type: exponential, params: {mean: 32}}
"""
SMALL = ClusterConfig(max_num_running_reqs=16, max_num_scheduled_tokens=512)


def spec() -> WorkloadSpec:
    return parse_spec(SPEC)


def mean_ttft_s(config: ClusterConfig, rate: float) -> float:
    """Of the last quarter of 160 requests: large where the queue grows."""
    experiment = Experiment.on(
        override(spec(), num_requests=160, aggregate_rate=rate), (1, 2), "jax"
    )
    ((first, second),) = experiment.summaries(
        [config], lambda run: float(np.mean(run.requests.ttft_us[-40:])) / 1e6
    )
    return (first + second) / 2


def test_below_the_rate_queues_stay_short_and_above_they_grow() -> None:
    rate = saturation_rate(SMALL, spec(), (42,))
    below, above = (mean_ttft_s(SMALL, share * rate) for share in (0.6, 1.8))
    assert below < 0.1 < above


def test_instances_add_up_and_the_workload_s_own_rate_does_not_count() -> None:
    rate = saturation_rate(SMALL, spec(), (42,))
    assert saturation_rate(SMALL.replace(num_instances=3), spec(), (42,)) == pytest.approx(
        3 * rate, rel=0.01
    )
    assert saturation_rate(SMALL, override(spec(), aggregate_rate=99.0), (42,)) == rate


def test_what_is_turned_away_is_not_capacity() -> None:
    gated = SMALL.replace(admission_policy="reject-all", kv_cpu_blocks=100)
    assert saturation_rate(gated, spec(), (42,)) == saturation_rate(SMALL, spec(), (42,))


def test_slower_instances_count_as_they_are() -> None:
    slow = [2 * value for value in SMALL.beta_coeffs]
    groups = [{"count": 1}, {"count": 1, "beta_coeffs": slow}]
    mixed = SMALL.replace(instances=tuple(groups))
    rate = saturation_rate(SMALL, spec(), (42,))
    assert 1.3 * rate < saturation_rate(mixed, spec(), (42,)) < 1.8 * rate


def test_lengths_of_clients_are_mixed_by_rate() -> None:
    text = SPEC + SPEC.partition("clients:\n")[2].replace("id: a", "id: b").replace(
        "value: 128", "value: 384"
    )
    two = parse_spec(text)
    assert lengths(two, "input_distribution") == {
        "mean": 256.0,
        "std_dev": 128.0,
        "min": 128,
        "max": 384,
    }
    assert tokens_of_request(two) == pytest.approx(256 + 32)
