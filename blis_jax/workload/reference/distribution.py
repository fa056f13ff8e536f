"""The reference's simple workloads: evenly spaced requests with clamped gaussian lengths, and presets.

They are drawn from a stream of the master seed itself, not from one of the workload subsystem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.reference import go_math
from blis_jax.workload.reference.clients import MOST_TOKENS, NO_SESSION, Request, draw_tokens
from blis_jax.workload.reference.generate import content_arrays
from blis_jax.workload.table import RequestTable, WorkloadNames, from_golden


@dataclass(frozen=True)
class Lengths:
    """A gaussian number of tokens, clamped to [min, max]; min = max draws nothing."""

    mean: int
    stdev: int
    min: int
    max: int

    def sample(self, stream: Stream) -> int:
        """One length, which may be 0."""
        if self.min == self.max:
            return self.min
        drawn = stream.norm_float64() * float(self.stdev) + float(self.mean)
        return int(go_math.round_half_away(max(float(self.min), min(float(self.max), drawn))))


@dataclass(frozen=True)
class Distribution:
    """One source of requests without classes; the defaults are those of the reference's options."""

    rate: float = 1.0  # requests/s
    num_requests: int = 100
    prefix_tokens: int = 0  # shared by all prompts, which it precedes
    prompt: Lengths = Lengths(512, 256, 2, 7000)
    output: Lengths = Lengths(512, 256, 2, 7000)

    def __post_init__(self) -> None:
        if not 0.0 < self.rate < math.inf:
            raise ConfigError(f"--rate must be a finite number above 0, got {self.rate:g}")
        if self.num_requests < 1:
            raise ConfigError(f"--num-requests must be at least 1, got {self.num_requests}")
        if self.prefix_tokens < 0:
            raise ConfigError(f"--prefix-tokens must be at least 0, got {self.prefix_tokens}")
        for name in ("prompt", "output"):
            _check_lengths(f"--{name}-tokens", getattr(self, name))


def _check_lengths(option: str, lengths: Lengths) -> None:
    """The reference's bounds, which hold for the standard deviation too."""
    for field in fields(lengths):
        value = getattr(lengths, field.name)
        path = option if field.name == "mean" else f"{option}-{field.name}"
        if not 0 <= value <= MOST_TOKENS:
            raise ConfigError(f"{path} must be between 0 and {MOST_TOKENS} tokens, got {value}")
        if not lengths.min <= value <= lengths.max:
            raise ConfigError(
                f"{path} is {value}, but mean and stdev must lie between {option}-min "
                f"{lengths.min} and {option}-max {lengths.max}; move the bounds"
            )


PRESETS = {  # the reference's, without their rate and number
    "chatbot": (Lengths(256, 100, 2, 800), Lengths(256, 100, 1, 1024)),
    "contentgen": (Lengths(1024, 150, 10, 2048), Lengths(1024, 200, 10, 2048)),
    "summarization": (Lengths(4096, 500, 100, 8192), Lengths(512, 150, 10, 2048)),
    "multidoc": (Lengths(10240, 1200, 500, 20480), Lengths(1536, 300, 50, 4096)),
}


def preset(name: str, rate: float, num_requests: int) -> Distribution:
    """A preset at a rate in requests/s."""
    prompt, output = PRESETS[name]
    return Distribution(rate, num_requests, prompt=prompt, output=output)


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
    requests: list[Request] = []
    num_tokens, arrival_us = 0, 0
    while len(requests) < distribution.num_requests and arrival_us < (horizon_us or math.inf):
        prompt = draw_tokens(stream, distribution.prompt.sample(stream))
        output = draw_tokens(stream, distribution.output.sample(stream))
        if not len(prefix) + len(prompt):
            raise ConfigError("--prompt-tokens-min 0 drew a prompt without tokens; set at least 1")
        num_tokens += len(prefix) + len(prompt) + len(output)
        if num_tokens > MOST_TOKENS:
            raise ConfigError(
                f"the workload has more than {MOST_TOKENS} tokens, which would not fit in memory; "
                f"lower --num-requests"
            )
        parts = (prefix, prompt) if len(prefix) else (prompt,)
        requests.append(Request(arrival_us, 0, NO_SESSION, 0, parts, output))
        arrival_us += gap_us
    num = len(requests)
    return content_arrays(requests, block_size) | {
        "slo_class": np.zeros(num, np.int8),
        "tenant": np.zeros(num, np.int16),
        "prefix_group": np.full(num, -1, np.int16),
        "streaming": np.zeros(num, np.int8),
        "tenant_names": np.array([""]),
        "prefix_group_names": np.array([], np.str_),
    }
