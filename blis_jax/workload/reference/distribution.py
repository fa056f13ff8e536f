"""Requests of the reference's simple workloads.

They are drawn from a stream of the master seed itself, not from one of the workload subsystem.
"""

from __future__ import annotations

import math

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.lengths.distribution import Distribution, GaussianLengths
from blis_jax.workload.reference import go_math
from blis_jax.workload.reference.clients import MOST_TOKENS, NO_SESSION, DrawnRequest, draw_tokens
from blis_jax.workload.reference.generate import content_arrays
from blis_jax.workload.table import RequestTable, WorkloadNames, from_golden


def draw_distribution(
    distribution: Distribution, seed: int, horizon_us: int | None = None, block_size: int = 16
) -> tuple[RequestTable, WorkloadNames]:
    """The reference's requests for a seed; they begin before the horizon."""
    arrays = distribution_arrays(distribution, seed, horizon_us, block_size)
    return from_golden(arrays), WorkloadNames(tenant_names=("",))


def distribution_arrays(
    distribution: Distribution, seed: int, horizon_us: int | None = None, block_size: int = 16
) -> dict[str, np.ndarray]:
    """The same requests in the golden format, as recorded workload files hold them."""
    stream = Stream(seed)
    prefix = draw_tokens(stream, distribution.prefix_tokens)
    gap_us = go_math.to_int64(1 / (distribution.rate / 1e6))
    if gap_us < 0:
        raise ConfigError(f"--rate {distribution.rate:g} is too low for the clock; raise it")
    requests: list[DrawnRequest] = []
    num_tokens, arrival_us = 0, 0
    while len(requests) < distribution.num_requests and arrival_us < (horizon_us or math.inf):
        prompt = draw_tokens(stream, _length(distribution.prompt, stream))
        output = draw_tokens(stream, _length(distribution.output, stream))
        if not len(prefix) + len(prompt):
            raise ConfigError("--prompt-tokens-min 0 drew a prompt without tokens; set at least 1")
        num_tokens += len(prefix) + len(prompt) + len(output)
        if num_tokens > MOST_TOKENS:
            raise ConfigError(
                f"the workload has more than {MOST_TOKENS} tokens, which would not fit in memory; "
                f"lower --num-requests"
            )
        parts = (prefix, prompt) if len(prefix) else (prompt,)
        requests.append(DrawnRequest(arrival_us, 0, NO_SESSION, 0, parts, output))
        arrival_us += gap_us
    num = len(requests)
    return content_arrays(requests, block_size) | {
        "slo_class": np.zeros(num, np.int8),
        "tenant": np.zeros(num, np.int32),
        "prefix_group": np.full(num, -1, np.int32),
        "streaming": np.zeros(num, np.int8),
        "tenant_names": np.array([""]),
        "prefix_group_names": np.array([], np.str_),
    }


def _length(lengths: GaussianLengths, stream: Stream) -> int:
    """One length, which may be 0; equal bounds draw nothing."""
    if lengths.min == lengths.max:
        return lengths.min
    drawn = stream.norm_float64() * float(lengths.stdev) + float(lengths.mean)
    return int(go_math.round_half_away(max(float(lengths.min), min(float(lengths.max), drawn))))
