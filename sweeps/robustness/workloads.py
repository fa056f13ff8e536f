"""The workload of a cell: a shape at the cell's rate and burstiness, for as long as in every cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.metrics.measure import Measure, read_window
from blis_jax.traces.source import TraceSource
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.runs.workloads import workload_from

PUBLISHED_DURATION_S = 0.5  # 1,000 requests at 2,000 a second
MOST_REQUESTS = 1_000_000


@dataclass(frozen=True)
class Extent:
    """The extent of the requests: a duration, or a number whatever the rate; one of both."""

    duration_s: float | None = PUBLISHED_DURATION_S
    num_requests: int | None = None

    def __post_init__(self) -> None:
        """Refuses what holds no request."""
        if self.num_requests is not None and not 1 <= self.num_requests <= MOST_REQUESTS:
            raise ConfigError(
                f"--num-requests must be between 1 and {MOST_REQUESTS}, got {self.num_requests}"
            )
        if self.duration_s is not None and not 0 < self.duration_s <= 1e6:
            raise ConfigError(
                f"--duration must be above 0 and at most 1e6 s, got {self.duration_s:g}"
            )

    def at(self, rate: float) -> tuple[int, float]:
        """Return the requests and seconds at a rate.

        Raises:
            ConfigError: the number of requests is not allowed.
        """
        if self.num_requests is not None:
            return self.num_requests, self.num_requests / rate
        assert self.duration_s is not None
        count = round(rate * self.duration_s)
        if not 1 <= count <= MOST_REQUESTS:
            raise ConfigError(
                f"a rate of {rate:g}/s for {self.duration_s:g} s makes {count} requests, allowed "
                f"are 1 to {MOST_REQUESTS}; change --duration or --rate"
            )
        return count, self.duration_s


@dataclass(frozen=True)
class Shape:
    """A workload whose rate, burstiness and extent the cells decide."""

    name: str
    spec: WorkloadSpec

    @property
    def has_sessions(self) -> bool:
        """Return whether some client's requests come in rounds."""
        return any(client.multi_turn for client in self.spec.clients)

    def at(self, rate: float, cv: float, extent: Extent) -> WorkloadSpec:
        """Return the workload at `rate` requests per second, whose gaps have the coefficient of variation `cv`.

        Gaps are gamma, or Weibull where the shape has them. Rounds follow each other at most so
        far apart that all fit in; fewer conversations begin, so that requests come at the rate.
        """
        num_requests, duration_s = extent.at(rate)
        document = self.spec.model_dump()
        rounds = []
        for client in document["clients"]:
            is_weibull = client["arrival"]["process"] == "weibull"
            client["arrival"] = {"process": "weibull" if is_weibull else "gamma", "cv": cv}
            rounds.append(_squeezed(client, duration_s))
        fractions = [client.rate_fraction for client in self.spec.clients]
        per_arrival = sum(f * r for f, r in zip(fractions, rounds, strict=True)) / sum(fractions)
        return override(
            self.spec,
            clients=document["clients"],
            aggregate_rate=rate / per_arrival,
            num_requests=num_requests,
        )

    def longest_think_s(self) -> float:
        """Return the longest time between two rounds, in s; 0 without conversations."""
        turns = [client.multi_turn for client in self.spec.clients]
        return max((turn.think_time_us / 1e6 for turn in turns if turn), default=0.0)


def _squeezed(client: dict[str, Any], duration_s: float) -> float:
    """Return requests within the duration for each one that begins a conversation; shortens think times."""
    turns = (client.get("reasoning") or {}).get("multi_turn")
    if not turns:
        return 1.0
    most_us = int(duration_s * 1e6 / turns["max_rounds"])
    turns["think_time_us"] = min(turns["think_time_us"], most_us)
    share = turns["think_time_us"] / (duration_s * 1e6)
    return sum(1 - index * share for index in range(turns["max_rounds"]))


@dataclass(frozen=True)
class TraceShape:
    """A trace whose pace the cells decide; everything else is as recorded."""

    name: str
    spec: TraceSource

    @property
    def has_sessions(self) -> bool:
        """Return whether prompts share contents."""
        return self.spec.is_sharing

    def at(self, rate: float, cv: float, extent: Extent) -> TraceSource:
        """Return the trace at `rate` requests per second on average; burstiness and extent stay its own."""
        return self.spec.at_rate(rate)


def load_shape(name: str) -> Shape:
    """Load a workload, by its name or from a .yaml file, as a shape.

    Raises:
        ConfigError: the workload has no clients whose rate could be set.
    """
    spec = workload_from(name, "--shape")
    if not spec.clients or spec.servegen_data or spec.inference_perf:
        raise ConfigError(
            f"--shape: {name} has no clients of its own, so its rate cannot be set; give a workload "
            "with clients"
        )
    return Shape(name, spec)


def measure_in(
    shape: Shape | TraceShape, targets: Mapping[str, Mapping[str, float]], window: str | None
) -> Measure:
    """Return what is measured of a shape's runs: the window given, or else the workload's own."""
    return Measure(targets, *read_window(window, shape.spec))
