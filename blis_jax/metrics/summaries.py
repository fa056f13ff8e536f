"""Requests of a run that are measured, whole or by class: latencies, rates, goodput, attainment, parts of TTFT.

Latencies that do not exist are NaN here; only BLIS's own figures (`reference`) are 0 then. With a window [a, b)
of the simulated time, c_i the time at which request i completed and o_i its output tokens:

    counts, latencies and attainment    over the requests that arrive in [a, b)
    requests_per_s                      |{i : a <= c_i < b}| / (b - a)
    output_tokens_per_s                 the sum of o_i over a <= c_i < b, / (b - a)
    goodput_rps                         |{i : a <= c_i < b, i kept its targets}| / (b - a)

Rates count completions in the window, whenever the request arrived: counting arrivals that complete later would measure
the offered load, however slow the cluster is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import namespace, ratio
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError
from blis_jax.metrics.distributions import Sample, itl_sample, mean_ms, percentile_ms, sample_of
from blis_jax.metrics.figures import ended_us
from blis_jax.metrics.metric import ALL as ALL
from blis_jax.metrics.reference import class_code
from blis_jax.records.record import TTFT_PARTS, RunRecord, Status
from blis_jax.workload.table import NEVER_US

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

LATENCIES = ("ttft", "e2e", "tpot", "scheduling_delay")
_COLUMNS = {"ttft": "ttft_us", "e2e": "e2e_us", "scheduling_delay": "sched_delay_us"}
PERCENTS = (50, 90, 95, 99)
LIMITS = ("ttft_ms", "tpot_ms", "e2e_ms")
RATES = ("output_tokens_per_s", "requests_per_s", "goodput_rps")  # of what completed in the window


@dataclass(frozen=True)
class Target:
    """The limits that a request must keep to count as good, in ms; None sets no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that no request could keep."""
        for name in LIMITS:
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ConfigError(f"{name} is {limit}; a target must be above 0 ms, or left out")


@dataclass(frozen=True)
class SloTargets:
    """Targets by class name; a class without its own has `otherwise`, by default none at all."""

    by_class: Mapping[str, Target] = field(default_factory=dict)
    otherwise: Target = Target()

    def __post_init__(self) -> None:
        """Refuse classes that do not exist."""
        for name in self.by_class:
            class_code(name)

    @cached_property
    def limits_us(self) -> Float[np.ndarray, "slo_class limit"]:
        """Return the limits, µs, in the order of LIMITS; infinity for no limit."""
        named = [(class_code(name), target) for name, target in self.by_class.items()]
        by_code = dict(reversed(named))  # the first name of the empty class holds
        targets = [by_code.get(code, self.otherwise) for code in range(len(CLASS_NAMES))]
        rows = [[getattr(target, name) for name in LIMITS] for target in targets]
        return np.nan_to_num(np.array(rows, float) * 1000, nan=np.inf)  # None is NaN


@dataclass(frozen=True)
class Window:
    """The measured span [from_us, until_us): requests that arrive in it, and rates of completions in it.

    Without `until_us` the window ends with the run, the last completion included. A warm-up ends at `from_us`, a
    cool-down begins at `until_us`.
    """

    from_us: int = 0
    until_us: int | None = None

    def __post_init__(self) -> None:
        """Refuse a window that holds no time."""
        if not 0 <= self.from_us < self.end_us:
            raise ConfigError(
                f"the measured window [{self.from_us}, {self.until_us}) µs holds no time; "
                "give 0 <= from_us < until_us"
            )

    @property
    def end_us(self) -> int:
        """Return `until_us`, or a time later than any event if it is None."""
        return NEVER_US if self.until_us is None else self.until_us


@dataclass(frozen=True)
class Selection:
    """The measured requests of one run, or of one class, instance or tenant of it."""

    record: RunRecord
    is_chosen: Bool[np.ndarray, "request"]  # arrived in the window
    is_output: Bool[np.ndarray, "request"]  # completed in the window, whenever it arrived
    is_good: Bool[np.ndarray, "request"]  # completed within all targets of its class
    seconds: float  # what rates are divided by

    def where(self, is_member: Bool[np.ndarray, "request"]) -> Selection:
        """Return the selection restricted to the requests in `is_member`."""
        return Selection(
            self.record,
            self.is_chosen & is_member,
            self.is_output & is_member,
            self.is_good,
            self.seconds,
        )

    @cached_property
    def num_requests(self) -> int:
        """Return the number of chosen requests."""
        return int(np.count_nonzero(self.is_chosen))

    @cached_property
    def is_completed(self) -> Bool[np.ndarray, "request"]:
        """Return which requests are both measured and completed."""
        return self.is_chosen & (self.record.requests.status == Status.COMPLETED)

    @cached_property
    def _counts(self) -> list[int]:
        statuses = self.record.requests.status[self.is_chosen]
        return np.bincount(statuses, minlength=len(Status)).tolist()

    def count(self, status: Status) -> int:
        """Return how many of the measured requests ended with this status."""
        return self._counts[status]

    @cached_property
    def _samples(self) -> dict[str, Sample]:
        return {}

    @cached_property
    def _classes(self) -> dict[int, Selection]:
        return {}

    def sample(self, latency: str) -> Sample:
        """Return the measured requests' latencies, µs; for `itl` all gaps of the run's completed requests."""
        if latency not in self._samples:
            if latency == "itl":
                self._samples[latency] = itl_sample(self.record)
            else:
                values, exists = latencies_us(self.record, latency)
                self._samples[latency] = sample_of(values[exists & self.is_chosen])
        return self._samples[latency]

    def mean_ms(self, latency: str) -> float:
        """Return the mean of a latency, ms; NaN if no request has it."""
        sample = self.sample(latency)
        return mean_ms(sample) if sample.count else math.nan

    def percentile_ms(self, latency: str, percent: float) -> float:
        """Return a percentile of a latency, ms; NaN if no request has it."""
        sample = self.sample(latency)
        return percentile_ms(sample, percent) if sample.count else math.nan

    def of_class(self, code: int) -> Selection:
        """Return the selection of one SLO class, which is cached."""
        if code not in self._classes:
            self._classes[code] = self.where(self.record.requests.slo_class == code)
        return self._classes[code]

    def of_name(self, slo_class: str) -> Selection:
        """Return the selection of one SLO class by its name, or this one for `all`."""
        return self if slo_class == ALL else self.of_class(class_code(slo_class))

    @property
    def num_good(self) -> int:
        """Return how many of the measured requests completed within all targets of their class."""
        return int(np.count_nonzero(self.is_chosen & self.is_good))

    @property
    def attainment(self) -> float:
        """Return the share of good requests; one that was rejected, dropped or unfinished has missed its targets."""
        return ratio(self.num_good, self.num_requests, math.nan)

    def rate(self, name: str) -> float:
        """Return one of RATES; 0 if no time passed."""
        amounts = rate_amounts(self.record, self.is_good)[RATES.index(name)]
        return ratio(int(amounts[self.is_output].sum()), self.seconds)


def select(
    record: RunRecord, targets: SloTargets | None = None, window: Window | None = None
) -> Selection:
    """Return all measured requests of one run."""
    targets, window, requests = targets or SloTargets(), window or Window(), record.requests
    until = ended_us(record) if window.until_us is None else window.until_us
    is_output = _is_within(window, requests.left_us) & (requests.status == Status.COMPLETED)
    return Selection(
        record,
        _is_within(window, requests.arrival_us),
        is_output,
        good_requests(record, targets.limits_us),
        max(until - window.from_us, 0) / 1e6,
    )


def _is_within(window: Window, times_us: Int[np.ndarray, "request"]) -> Bool[np.ndarray, "request"]:
    return (times_us >= window.from_us) & (times_us < window.end_us)


def good_requests(
    record: RunRecord, limits_us: Float[np.ndarray, "slo_class limit"]
) -> Bool[np.ndarray, "request"]:
    """Return which requests completed within every limit of their class; `limits_us` has the order of LIMITS."""
    requests = record.requests
    is_good = requests.status == int(Status.COMPLETED)
    xp, limit_us = namespace(requests.status), limits_us[requests.slo_class]
    times = requests.ttft_us, tpot_us(record), requests.e2e_us
    for column, (name, values) in enumerate(zip(LIMITS, times, strict=True)):
        is_good = is_good & (values <= limit_us[:, column])
        if name != "e2e_ms":  # a first token that was never recorded meets no limit
            is_good = is_good & ((requests.ttft_us >= 0) | xp.isinf(limit_us[:, column]))
    return is_good


def rate_amounts(record: RunRecord, is_good: Bool[np.ndarray, "request"]) -> Sequence[np.ndarray]:
    """Return for each of RATES the amount that a completed request adds to it; tokens include first ones."""
    return record.requests.made_len, namespace(is_good).ones_like(is_good), is_good


def latencies_us(record: RunRecord, latency: str) -> tuple[Any, Bool[np.ndarray, "request"]]:
    """Return a latency by request, µs, and which requests have it, which may include unfinished ones."""
    requests = record.requests
    if latency == "tpot":
        is_completed = requests.status == int(Status.COMPLETED)
        return tpot_us(record), is_completed & (requests.ttft_us >= 0) & (requests.made_len > 1)
    values = getattr(requests, _COLUMNS[latency])
    return values, values >= 0


def tpot_us(record: RunRecord) -> Float[np.ndarray, "request"]:
    """Return (E2E − TTFT) ÷ max(tokens made − 1, 1), µs; 0 without output tokens; junk where not completed.

    A request with fewer than two tokens has no TPOT: `latencies_us` leaves it out.
    """
    requests = record.requests
    xp = namespace(requests.status)
    gaps = requests.after_first_us / xp.maximum(requests.made_len - 1, 1)
    return xp.where(requests.output_len > 0, gaps, 0.0)


def mean_itl_us(record: RunRecord) -> Float[np.ndarray, "request"]:
    """Return the mean inter-token latency that BLIS reports for each request, µs; -1 for uncompleted ones.

    The divisor is the number of output tokens less one, or less two for a request that is cut short. In August the sum
    leaves out what BLIS adds to E2E after the last token; for requests split by pools it includes the latency of the
    first token.
    """
    requests = record.requests
    is_done = requests.status == Status.COMPLETED
    if requests.itl_us is None:
        return np.where(is_done, tpot_us(record), -1.0)
    gaps = requests.itl_us / np.maximum(requests.made_len - 1 - requests.is_cut, 1)
    return np.where(is_done, np.where(requests.output_len > 0, gaps, 0.0), -1.0)


# --- what a time to first token is made of --------------------------------------------------------

# Every view is an average of whole requests, so that its parts add up to the number it explains.

VIEWS = {
    "mean": "all requests with a first token",
    "p99": "the requests around the 99th percentile, weighted as the percentile weights them",
    "tail": "the requests at and above the 99th percentile",
}
PERCENT = 99
# what people are shown, each the sum of some of the parts
GROUPS: Mapping[str, tuple[str, ...]] = {
    "waiting": ("waiting",),
    "preempted service": ("preempted_service",),
    "compute": ("prefill_compute",),
    "chunk overhead": ("chunk_overhead",),
    "fixed": ("admission_delay", "routing_delay", "queueing_time", "output_processing"),
}


def ttft_parts_ms(selection: Selection) -> dict[str, list[float]]:
    """Return for each of `VIEWS` the parts in the order of `TTFT_PARTS`, ms; empty if no request has a first token.

    The parts of `p99` sum to `ttft_p99_ms`: they are interpolated between the same two requests, or, where several
    requests share a TTFT, between their averages.
    """
    requests = selection.record.requests
    chosen = selection.is_chosen & (requests.ttft_us >= 0)
    ttft, parts = requests.ttft_us[chosen], requests.ttft_parts_us[chosen].astype(np.float64)
    if not len(ttft):
        return {}
    low, high, fraction = selection.sample("ttft").neighbours(PERCENT)
    below, above = (parts[ttft == value].mean(axis=0) for value in (low, high))
    tail = ttft >= low + fraction * (high - low)
    views = {
        "mean": parts.mean(axis=0),
        "p99": below + fraction * (above - below),
        "tail": parts[tail].mean(axis=0),
    }
    return {name: (values / 1000).tolist() for name, values in views.items()}


def grouped(parts: Float[np.ndarray, "... part"]) -> dict[str, Float[np.ndarray, "..."]]:
    """Sum parts, given in the order of `TTFT_PARTS`, by the groups of `GROUPS`."""
    places = {name: place for place, name in enumerate(TTFT_PARTS)}
    return {
        group: parts[..., [places[name] for name in names]].sum(axis=-1)
        for group, names in GROUPS.items()
    }
