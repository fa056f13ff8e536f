"""The reference's simple workloads: evenly spaced requests with clamped gaussian lengths; presets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.workload.spec_parts import ClientSpec

DISTRIBUTION_SEED = 42  # of the reference, if none is given
MOST_REQUESTS = 2**22
# a client sends, or begins sessions, no more often than this many times num_requests
CAP_PER_REQUEST = 2
DEFAULT_PREFIX_LENGTH = 50  # tokens, the reference's default
LEAST_GAMMA_SHAPE = 0.01  # the reference's: a cv of 10
NO_REQUEST = (
    "clients: none of them ever sends a request, and no horizon ends the workload; BLIS would not "
    "end either; open a window, allow a round, or give a horizon"
)


def refuse_endless(num_requests: int, horizon_us: float) -> None:
    """Refuse a workload without an end, with neither a number of requests nor a horizon; 0 is no limit."""
    if not num_requests and not horizon_us:
        raise ConfigError(
            "num_requests: neither a number of requests nor a horizon ends the workload; "
            "give num_requests or horizon"
        )


def is_gamma_too_bursty(cv: float | None) -> bool:
    """Return whether the reference draws exponential gaps instead of a gamma law with this coefficient of variation."""
    return cv is not None and 1.0 / (cv * cv) < LEAST_GAMMA_SHAPE


def prefix_lengths(clients: Iterable[ClientSpec]) -> dict[str, int]:
    """Return the prefix tokens of each prefix group, taken from the group's first client."""
    lengths: dict[str, int] = {}
    for client in clients:
        if client.prefix_group:
            lengths.setdefault(client.prefix_group, client.prefix_length or DEFAULT_PREFIX_LENGTH)
    return lengths


@dataclass(frozen=True)
class GaussianLengths:
    """A gaussian number of tokens, clamped to [min, max]; min = max draws nothing."""

    mean: int
    stdev: int
    min: int
    max: int

    @classmethod
    def of(
        cls, numbers: Mapping[str, int], kind: str, usual: GaussianLengths | None = None
    ) -> GaussianLengths:
        """Return the lengths of `kind`, prompt or output, from numbers under BLIS's names, such as `prompt_tokens_min`.

        `usual` supplies the values that `numbers` lacks.
        """
        usual = usual or cls(0, 0, 0, 0)
        ends = {field.name: f"_{field.name}" for field in fields(cls)} | {"mean": ""}
        return cls(
            **{
                name: numbers.get(f"{kind}_tokens{end}", getattr(usual, name))
                for name, end in ends.items()
            }
        )

    @property
    def drawn_mean(self) -> float:
        """Return the mean of the clamped lengths, which differs from `mean`."""
        if self.stdev == 0 or self.min == self.max:
            return float(min(max(self.mean, self.min), self.max))
        low, high = ((end - self.mean) / self.stdev for end in (self.min, self.max))
        inside = _below(high) - _below(low)
        part = self.mean * inside + self.stdev * (_density(low) - _density(high))
        return self.min * _below(low) + part + self.max * (1 - _below(high))


def _below(score: float) -> float:
    return math.erfc(-score / math.sqrt(2)) / 2


def _density(score: float) -> float:
    return math.exp(-score * score / 2) / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Distribution:
    """A workload with one source of requests and without classes; the defaults are those of the reference's options."""

    rate: float = 1.0  # requests/s
    num_requests: int = 100
    prefix_tokens: int = 0  # shared by all prompts, which it precedes
    prompt: GaussianLengths = GaussianLengths(512, 256, 2, 7000)
    output: GaussianLengths = GaussianLengths(512, 256, 2, 7000)

    def __post_init__(self) -> None:
        if not 0.0 < self.rate < math.inf:
            at_once = "; for requests that come all at once give a large one, such as 1e6"
            raise ConfigError(
                f"--rate must be a finite number above 0, got {self.rate:g}{at_once * math.isinf(self.rate)}"
            )
        if not 1 <= self.num_requests <= MOST_REQUESTS:
            raise ConfigError(
                f"--num-requests must be between 1 and {MOST_REQUESTS}, got {self.num_requests}"
            )
        if self.prefix_tokens < 0:
            raise ConfigError(f"--prefix-tokens must be at least 0, got {self.prefix_tokens}")
        for name in ("prompt", "output"):
            self._check_lengths(f"--{name}-tokens", getattr(self, name))

    def _check_lengths(self, option: str, lengths: GaussianLengths) -> None:
        _check_lengths(option, lengths)


@dataclass(frozen=True)
class RevisedDistribution(Distribution):
    """A `Distribution` under August's rules: lengths are at least 1 token, and a deviation of 0 makes them constant."""

    def _check_lengths(self, option: str, lengths: GaussianLengths) -> None:
        for end in ("min", "max"):
            if getattr(lengths, end) < 1:
                raise ConfigError(f"{option}-{end} must be at least 1, got {getattr(lengths, end)}")
        is_constant = lengths.stdev == 0
        _check_lengths(option, replace(lengths, stdev=lengths.mean) if is_constant else lengths)


def _check_lengths(option: str, lengths: GaussianLengths) -> None:
    """Refuse lengths out of the reference's bounds, which also apply to the standard deviation."""
    for field in fields(lengths):
        value = getattr(lengths, field.name)
        path = option if field.name == "mean" else f"{option}-{field.name}"
        if value < 0:
            raise ConfigError(f"{path} must be at least 0 tokens, got {value}")
        if not lengths.min <= value <= lengths.max:
            raise ConfigError(
                f"{path} is {value}, but mean and stdev must lie between {option}-min "
                f"{lengths.min} and {option}-max {lengths.max}; move the bounds"
            )


PRESETS = {  # the reference's, without their rate and number
    "chatbot": (GaussianLengths(256, 100, 2, 800), GaussianLengths(256, 100, 1, 1024)),
    "contentgen": (GaussianLengths(1024, 150, 10, 2048), GaussianLengths(1024, 200, 10, 2048)),
    "summarization": (GaussianLengths(4096, 500, 100, 8192), GaussianLengths(512, 150, 10, 2048)),
    "multidoc": (GaussianLengths(10240, 1200, 500, 20480), GaussianLengths(1536, 300, 50, 4096)),
}


def preset(name: str, rate: float, num_requests: int) -> Distribution:
    """Return a preset at a rate in requests/s."""
    prompt, output = PRESETS[name]
    return Distribution(rate, num_requests, prompt=prompt, output=output)
