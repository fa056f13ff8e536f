"""Per-class, per-instance and per-tenant summaries: latencies, rates, goodput, SLO attainment.

Latencies that do not exist are NaN here; only the reference's own figures say 0. With a window [a, b)
of the simulated time, c_i the time at which request i completed and o_i its output tokens:

    counts, latencies and attainment    over the requests that arrive in [a, b)
    requests_per_s                      |{i : a <= c_i < b}| / (b - a)
    output_tokens_per_s                 the sum of o_i over a <= c_i < b, / (b - a)
    goodput_rps                         |{i : a <= c_i < b, i kept its targets}| / (b - a)

Rates count completions, whenever the request arrived: what arrives in the window and completes at some
time says what was offered, however slow the cluster is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.distributions import Sample, mean_ms, percentile_ms, sample_of
from blis_jax.metrics.reference import (
    CLASS_NAMES,
    class_code,
    ended_us,
    recorded,
)
from blis_jax.results.records import COUNTED, RunRecord, Status
from blis_jax.results.step_records import itl_sample

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

LATENCIES = ("ttft", "e2e", "tpot", "scheduling_delay")
PERCENTS = (50, 90, 95, 99)
ALL = "all"


@dataclass(frozen=True)
class Target:
    """What a request must keep within to count as good; None asks for nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        """Refuses limits that no request could keep."""
        for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ConfigError(f"{name} is {limit}; a target must be above 0 ms, or left out")


@dataclass(frozen=True)
class SloTargets:
    """Targets by class name; a class without its own has `otherwise`, by default none at all."""

    by_class: Mapping[str, Target] = field(default_factory=dict)
    otherwise: Target = Target()

    def __post_init__(self) -> None:
        """Refuses classes that do not exist."""
        for name in self.by_class:
            class_code(name)

    def of_code(self, code: int) -> Target:
        """The target of one class."""
        for name, target in self.by_class.items():
            if class_code(name) == code:
                return target
        return self.otherwise


@dataclass(frozen=True)
class Window:
    """What is measured: requests that arrive in [from_us, until_us), and rates of what completes in it.

    Without `until_us` it ends with the run, the last completion included. A warm-up ends at `from_us`,
    a cool-down begins at `until_us`.
    """

    from_us: int = 0
    until_us: int | None = None

    def __post_init__(self) -> None:
        """Refuses a window that holds no time."""
        if self.from_us < 0 or (self.until_us is not None and self.until_us <= self.from_us):
            raise ConfigError(
                f"the measured window [{self.from_us}, {self.until_us}) µs holds no time; "
                "give 0 <= from_us < until_us"
            )


@dataclass(frozen=True)
class Selection:
    """The measured requests of one run, or of one class, instance or tenant of it."""

    record: RunRecord
    is_chosen: Bool[np.ndarray, "request"]  # arrived in the window
    is_output: Bool[np.ndarray, "request"]  # completed in the window, whenever it arrived
    is_good: Bool[np.ndarray, "request"]  # completed within all targets of its class
    seconds: float  # what rates are divided by

    def where(self, is_member: Bool[np.ndarray, "request"]) -> Selection:
        """The part of it that belongs to one group."""
        return Selection(
            self.record,
            self.is_chosen & is_member,
            self.is_output & is_member,
            self.is_good,
            self.seconds,
        )

    @cached_property
    def num_requests(self) -> int:
        """How many requests it holds."""
        return int(np.count_nonzero(self.is_chosen))

    @cached_property
    def is_completed(self) -> Bool[np.ndarray, "request"]:
        """Which of all requests are in it and completed."""
        return self.is_chosen & (self.record.requests.status == Status.COMPLETED)

    def count(self, status: Status) -> int:
        """How many of its requests ended that way."""
        return int(np.count_nonzero(self.is_chosen & (self.record.requests.status == status)))

    @cached_property
    def ttft(self) -> Sample:
        """Times to first token in µs, of unfinished requests too."""
        return sample_of(recorded(self.record.requests.ttft_us, self.is_chosen))

    @cached_property
    def e2e(self) -> Sample:
        """End-to-end latencies in µs, of completed requests."""
        return sample_of(recorded(self.record.requests.e2e_us, self.is_chosen))

    @cached_property
    def tpot(self) -> Sample:
        """Times per output token in µs, of completed requests with a first token."""
        has_tpot = self.is_completed & (self.record.requests.ttft_us >= 0)
        return sample_of(tpot_us(self.record)[has_tpot])

    @cached_property
    def scheduling_delay(self) -> Sample:
        """Scheduling delays in µs, of unfinished requests too."""
        return sample_of(recorded(self.record.requests.sched_delay_us, self.is_chosen))

    @cached_property
    def itl(self) -> Sample:
        """Inter-token latencies in µs of every completed request of the run, measured or not."""
        return itl_sample(self.record)

    @property
    def num_good(self) -> int:
        """How many of its requests kept all targets of their class."""
        return int(np.count_nonzero(self.is_chosen & self.is_good))

    @property
    def attainment(self) -> float:
        """Good ÷ all: a request rejected, dropped or unfinished has missed its targets."""
        return self.num_good / self.num_requests if self.num_requests else float("nan")

    @property
    def requests_per_s(self) -> float:
        """Requests that completed in the window ÷ its length."""
        return self._per_second(int(np.count_nonzero(self.is_output)))

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens, first ones included, of requests that completed in the window ÷ its length."""
        return self._per_second(int(self.record.requests.output_len[self.is_output].sum()))

    @property
    def goodput_rps(self) -> float:
        """Requests that completed in the window within their targets ÷ its length."""
        return self._per_second(int(np.count_nonzero(self.is_output & self.is_good)))

    def _per_second(self, amount: float) -> float:
        return float(amount / self.seconds) if self.seconds > 0 else 0.0


def select(
    record: RunRecord,
    targets: SloTargets | None = None,
    window: Window | None = None,
) -> Selection:
    """All measured requests of one run."""
    window = Window() if window is None else window
    requests = record.requests
    until = ended_us(record) if window.until_us is None else window.until_us
    is_output = _is_within(window, requests.left_us) & (requests.status == Status.COMPLETED)
    return Selection(
        record,
        _is_within(window, requests.arrival_us),
        is_output,
        good_requests(record, targets),
        max(until - window.from_us, 0) / 1e6,
    )


def _is_within(window: Window, times_us: Int[np.ndarray, "request"]) -> Bool[np.ndarray, "request"]:
    is_late_enough: np.ndarray = times_us >= window.from_us
    return (
        is_late_enough if window.until_us is None else is_late_enough & (times_us < window.until_us)
    )


def good_requests(
    record: RunRecord, targets: SloTargets | None = None
) -> Bool[np.ndarray, "request"]:
    """Which requests completed within every target of their class."""
    requests = record.requests
    is_good = requests.status == Status.COMPLETED
    if targets is None:
        return is_good
    by_code = [targets.of_code(code) for code in range(len(CLASS_NAMES))]
    times = {
        "ttft_ms": requests.ttft_us,
        "tpot_ms": tpot_us(record),
        "e2e_ms": requests.e2e_us,
    }
    for name, values in times.items():
        limits = [getattr(target, name) for target in by_code]
        if any(limit is not None for limit in limits):
            limits_us = np.array([np.inf if limit is None else limit * 1000 for limit in limits])
            limit_us = limits_us[requests.slo_class]
            is_good = is_good & (values <= limit_us)
            if name != "e2e_ms":  # a first token that was never recorded meets no limit
                is_good &= (requests.ttft_us >= 0) | np.isinf(limit_us)
    return is_good


def tpot_us(record: RunRecord) -> Float[np.ndarray, "request"]:
    """(E2E - TTFT) ÷ max(output_len - 1, 1); 0 without output tokens; junk where not completed."""
    requests = record.requests
    decode_us = requests.e2e_us - np.maximum(requests.ttft_us, 0)
    gaps = decode_us / np.maximum(requests.output_len - 1, 1)
    return np.where(requests.output_len > 0, gaps, 0.0)


def mean_itl_us(record: RunRecord) -> Float[np.ndarray, "request"]:
    """The mean inter-token latency that BLIS reports of each request, -1 of those that did not complete.

    It divides by the number of output tokens but the first. In August the sum leaves out what is added to E2E behind
    the last token, and of requests that pools have split it has the latency of the first token.
    """
    requests = record.requests
    is_done = requests.status == Status.COMPLETED
    if requests.itl_us is None:
        return np.where(is_done, tpot_us(record), -1.0)
    gaps = requests.itl_us / np.maximum(requests.output_len - 1, 1)
    return np.where(is_done, np.where(requests.output_len > 0, gaps, 0.0), -1.0)


def summary(selection: Selection) -> dict[str, float]:
    """Counts, latencies, rates, goodput and attainment of one selection."""
    figures: dict[str, float] = {
        "num_requests": selection.num_requests,
        **{name: selection.count(status) for name, status in COUNTED.items()},
    }
    for latency in LATENCIES:
        sample: Sample = getattr(selection, latency)
        is_empty = sample.count == 0
        figures[f"{latency}_mean_ms"] = float("nan") if is_empty else mean_ms(sample)
        for percent in PERCENTS:
            value = float("nan") if is_empty else percentile_ms(sample, percent)
            figures[f"{latency}_p{percent}_ms"] = value
    figures["output_tokens_per_s"] = selection.output_tokens_per_s
    figures["requests_per_s"] = selection.requests_per_s
    figures["goodput_rps"] = selection.goodput_rps
    figures["attainment"] = selection.attainment
    return figures


Summaries = dict[str, dict[str, float]]


def class_summary(
    record: RunRecord, targets: SloTargets | None = None, window: Window | None = None
) -> Summaries:
    """The summary of `all` measured requests, and of every SLO class among them."""
    return _grouped(record, record.requests.slo_class, CLASS_NAMES, targets, window)


def _grouped(
    record: RunRecord,
    group: Int[np.ndarray, "request"],
    names: Sequence[str],
    targets: SloTargets | None,
    window: Window | None,
) -> Summaries:
    everything = select(record, targets, window)
    summaries = {ALL: summary(everything)}
    for code in np.unique(group[everything.is_chosen | everything.is_output]).tolist():
        if code >= 0:
            summaries[names[code]] = summary(everything.where(group == code))
    return summaries
