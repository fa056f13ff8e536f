"""Clusters of more instances than the reference's experiments had, against the oracle."""

import pytest

from blis_jax.core.outcome import WHOLE
from blis_jax.runs.options import Options
from tests.support.scenes import Prompt, differences, flags, run_both, workload_of

NUM_INSTANCES = 80
SETTINGS = {
    "counts alone": {
        "routing_policy": "weighted",
        "routing_scorers": "prefix-affinity:1,queue-depth:2",
    },
    "block by block": {"routing_policy": "least-loaded", "total_kv_blocks": 30, "kv_cpu_blocks": 8},
}


def prompts():
    """Bursts that reach every instance, with prefixes that several of them hold."""
    for index in range(240):
        arrival_us = index // 120 * 5_000 + index * 37 % 900
        yield Prompt(
            arrival_us,
            input_len=20 + index * 13 % 100,
            output_len=1 + index * 7 % 20,
            slo_class=index % 4,
            group=index % 7,
            prefix_len=48,
        )


@pytest.mark.lenient_promotion
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(one, marks=pytest.mark.slow if place else (), id=name)
        for place, (name, one) in enumerate(SETTINGS.items())
    ],
)
def test_eighty_instances_equal_the_oracle(settings):
    coefficients = {"alpha_coeffs": [100.0, 1.0, 10.0], "beta_coeffs": [3000.0, 10.0, 5.0]}
    chosen = flags(num_instances=NUM_INSTANCES, **coefficients, **settings)
    model = "block-level" if "kv_cpu_blocks" in settings else "auto"
    record, expected = run_both(workload_of(list(prompts())), chosen, Options(kv_model=model))
    assert record.outcome in WHOLE
    assert not differences(record, expected)
    assert set(record.requests.instance.tolist()) == set(range(NUM_INSTANCES))
