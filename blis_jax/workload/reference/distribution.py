"""Requests of the reference's simple workloads without classes.

The first revision draws them from a stream of the master seed itself; the revision of August 2026 draws them as a
specification with one client.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import ValidationError

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import sentence
from blis_jax.workload.distribution import Distribution, GaussianLengths
from blis_jax.workload.go_math import round_half_away, to_int64
from blis_jax.workload.go_random import Stream
from blis_jax.workload.reference.arrays import content_arrays, golden_arrays, names_of
from blis_jax.workload.reference.clients import MOST_TOKENS, draw_tokens
from blis_jax.workload.reference.requests import DrawnRequest
from blis_jax.workload.revised_spec import RevisedWorkload
from blis_jax.workload.source import FIRST_REVISION
from blis_jax.workload.table import RequestTable, WorkloadNames, from_golden

TIMEOUT_US = 300_000_000  # of every request of a simple workload, unless --timeout says otherwise


def draw_distribution(
    distribution: Distribution,
    seed: int,
    horizon_us: int | None = None,
    block_size: int = 16,
    revision: str = FIRST_REVISION,
) -> tuple[RequestTable, WorkloadNames]:
    """Return the reference's requests for a seed; requests arrive before the horizon."""
    if revision == FIRST_REVISION:
        arrays = distribution_arrays(distribution, seed, horizon_us, block_size)
        return from_golden(arrays), WorkloadNames(tenant_names=("",))
    spec = as_spec(distribution, horizon_us)
    arrays = golden_arrays(spec, seed, block_size, TIMEOUT_US)
    return from_golden(arrays), names_of(arrays)


def as_spec(
    distribution: Distribution,
    horizon_us: int | None = None,
    concurrency: int = 0,
    think_time_us: int = 0,
) -> RevisedWorkload:
    """Return the workload as a specification, as the revision of August 2026 writes it.

    With `concurrency`, this number of users replaces the rate; each user thinks for `think_time_us`.
    """
    pace: dict[str, Any] = {"rate_fraction": 1.0}
    if concurrency:
        pace = {"concurrency": concurrency, "think_time_us": think_time_us}
    if distribution.prefix_tokens:
        pace |= {"prefix_group": "shared", "prefix_length": distribution.prefix_tokens}
    client = {
        "id": "distribution",
        "arrival": {"process": "constant"},
        "input_distribution": _law(distribution.prompt),
        "output_distribution": _law(distribution.output),
    }
    try:
        return RevisedWorkload(
            version="2",
            category="language",
            aggregate_rate=0.0 if concurrency else distribution.rate,
            num_requests=distribution.num_requests,
            horizon=horizon_us or 0,
            clients=(client | pace,),  # type: ignore[arg-type]  # pydantic makes a client of it
        )
    except ValidationError as error:  # a number that only fits an option
        raise ConfigError(sentence(error, RevisedWorkload.law_types)) from None


def _law(lengths: GaussianLengths) -> dict[str, Any]:
    params = {"mean": lengths.mean, "std_dev": lengths.stdev}
    return {"type": "gaussian", "params": params | {"min": lengths.min, "max": lengths.max}}


def distribution_arrays(
    distribution: Distribution, seed: int, horizon_us: int | None = None, block_size: int = 16
) -> dict[str, np.ndarray]:
    """Return the first revision's requests in the golden format, as recorded workload files hold them."""
    stream = Stream(seed)
    prefix = draw_tokens(stream, distribution.prefix_tokens)
    gap_us = to_int64(1 / (distribution.rate / 1e6))
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
        requests.append(DrawnRequest(arrival_us, 0, parts, output))
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
    """Return one drawn length, which may be 0; equal bounds use no draw."""
    if lengths.min == lengths.max:
        return lengths.min
    drawn = stream.norm_float64() * float(lengths.stdev) + float(lengths.mean)
    return int(round_half_away(max(float(lengths.min), min(float(lengths.max), drawn))))
