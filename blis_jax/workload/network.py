"""What a client sees of its requests beyond the network between it and the cluster.

The simulation ends at the cluster, as the reference's does. A response waits for the prompt to be
sent and one round trip; its last token waits for all tokens to be received too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.workload.spec import NetworkSpec

if TYPE_CHECKING:
    from jaxtyping import Float, Int

BITS_PER_TOKEN = 32


def client_ttft_us(
    ttft_us: Int[np.ndarray, " request"],
    input_len: Int[np.ndarray, " request"],
    network: NetworkSpec,
) -> Float[np.ndarray, " request"]:
    """Time to first token at the client: the cluster's, a round trip and the prompt's transfer."""
    round_trip_us = network.rtt_ms * 1000.0
    return ttft_us + round_trip_us + _transfer_us(input_len, network)


def client_e2e_us(
    e2e_us: Int[np.ndarray, " request"],
    input_len: Int[np.ndarray, " request"],
    output_len: Int[np.ndarray, " request"],
    network: NetworkSpec,
) -> Float[np.ndarray, " request"]:
    """End-to-end latency at the client: that to the first token's way and the output's transfer."""
    return client_ttft_us(e2e_us, input_len, network) + _transfer_us(output_len, network)


def _transfer_us(
    num_tokens: Int[np.ndarray, " request"], network: NetworkSpec
) -> Float[np.ndarray, " request"]:
    if network.bandwidth_mbps <= 0.0:
        return np.zeros(num_tokens.shape)
    bits = num_tokens.astype(np.float64) * BITS_PER_TOKEN
    return bits / (network.bandwidth_mbps * 1e6) * 1e6
