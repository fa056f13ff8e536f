"""Latencies at the client, by hand."""

import numpy as np

from blis_jax.workload.spec import NetworkSpec
from blis_jax.workload.spec_parts import client_e2e_us, client_ttft_us

TTFT, E2E = np.array([5000, 7000]), np.array([9000, 8000])
INPUT, OUTPUT = np.array([1000, 0]), np.array([250, 500])


def test_a_round_trip_and_the_transfer_of_the_tokens():
    """32 bits a token: 1,000 tokens take 3,200 us at 10 Mbit/s."""
    network = NetworkSpec(rtt_ms=2.0, bandwidth_mbps=10.0)
    assert client_ttft_us(TTFT, INPUT, network).tolist() == [5000 + 2000 + 3200, 7000 + 2000]
    assert client_e2e_us(E2E, INPUT, OUTPUT, network).tolist() == [
        9000 + 2000 + 3200 + 800,
        8000 + 2000 + 1600,
    ]


def test_without_a_bandwidth_transfers_take_no_time():
    network = NetworkSpec(rtt_ms=0.5)
    assert client_ttft_us(TTFT, INPUT, network).tolist() == [5500, 7500]
    assert client_e2e_us(E2E, INPUT, OUTPUT, network).tolist() == [9500, 8500]
