"""The summary kept of a run in place of its record: its outcome, its metrics by name, and further parts on request."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.metrics.reference import class_code, is_of_class
from blis_jax.metrics.scalars import POOLED_LATENCIES
from blis_jax.metrics.summaries import ALL, LATENCIES, Selection, latencies_us, select
from blis_jax.records.record import RequestRecords, RunRecord, Status

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from blis_jax.metrics.summaries import SloTargets, Window

GOOD, REJECTED = "good", "rejected"
OF_LIVES = (  # what two runs must have in common, request by request, to be the same
    "admitted",
    "instance",
    "status",
    "queued_at_us",
    "first_sched_delay_us",
    "sched_delay_us",
    "ttft_us",
    "e2e_us",
    "left_us",
    "preemptions",
    "cached_tokens_first_sched",
)


@dataclass(frozen=True)
class RequestFigures:
    """The measured requests of one run, one list for each column; NaN where a request lacks a latency."""

    arrival_us: Sequence[int]
    slo_class: Sequence[int]
    values: Mapping[str, Sequence[float]]  # ms by latency; 1 or 0 for GOOD and REJECTED

    def __len__(self) -> int:
        return len(self.arrival_us)

    def placed(
        self,
        places: Int[np.ndarray, "request"],
        arrival_us: Int[np.ndarray, "all"],
        slo_class: Int[np.ndarray, "all"],
    ) -> RequestFigures:
        """Return the figures spread over all requests of a trace: figures at `places`, NaN at the others."""

        def spread(values: Sequence[float]) -> list[float]:
            column = np.full(len(arrival_us), np.nan)
            column[places] = values
            return column.tolist()

        values = {name: spread(column) for name, column in self.values.items()}
        return RequestFigures(arrival_us.tolist(), slo_class.tolist(), values)

    def arrivals(self) -> Int[np.ndarray, "request"]:
        """Return the times of arrival, µs."""
        return np.asarray(self.arrival_us, np.int64)

    def column(self, name: str, slo_class: str | None) -> Float[np.ndarray, "request"]:
        """Return a column, with NaN for requests outside the SLO class."""
        values = np.asarray(self.values[name], np.float64)
        return np.where(is_of_class(np.asarray(self.slo_class), slo_class), values, np.nan)


@dataclass(frozen=True)
class RunSummary:
    """The kept part of a run; a run that did not come to its end has no figures."""

    outcome: IntEnum  # an `Outcome`, or why a study did without the run
    metrics: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)  # of the cheap invariants
    tails: Mapping[str, Mapping[str, Kept]] = field(default_factory=dict)  # see `kept_tails`
    ttft_parts: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    ttft_curve_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by class
    overtaking: Mapping[str, Overtaking] = field(default_factory=dict)  # by `lower>higher`
    acted: Mapping[str, int] = field(default_factory=dict)  # how often a mechanism did something
    fingerprint: str = ""  # equal for runs in which every request had the same life
    requests: RequestFigures | None = None  # where those of one trace are resampled
    lives: Int[np.ndarray, "request fact"] | None = None  # where requests are compared one by one
    record: RunRecord | None = None  # where the whole run was asked for
    stored: str = ""  # the file with the whole run, where a store was given

    @property
    def is_whole(self) -> bool:
        """Return whether the run came to its end."""
        return self.outcome in WHOLE

    @property
    def num_broken_invariants(self) -> int:
        """Return the number of breaches of all invariants together."""
        return sum(self.violations.values())

    def value(self, name: str) -> float:
        """Return a metric by its name; NaN if the run has none."""
        return self.metrics.get(name, math.nan)

    def beside(self, other: RunSummary, mark: str) -> RunSummary:
        """Return a summary with both runs' metrics, the other's names with `mark` added; none unless both ended."""
        metrics: dict[str, float] = {}
        if self.is_whole and other.is_whole:
            metrics = {**self.metrics}
            metrics |= {f"{name}{mark}": value for name, value in other.metrics.items()}
        outcome = other.outcome if self.is_whole else self.outcome
        return RunSummary(outcome, metrics, Counter(self.violations) + Counter(other.violations))

    def document(self) -> dict[str, Any]:
        """Return the summary as plain data for a file; the record, its file and the lives are left out."""
        kept = dataclasses.replace(self, lives=None, record=None, stored="")
        written = {name: value for name, value in dataclasses.asdict(kept).items() if value}
        return written | {"outcome": self.outcome.name}


def read_summary(document: Mapping[str, Any]) -> RunSummary:
    """Return the summary in a document; documents of earlier versions have only the number of violations."""
    fields = {**document, "outcome": Outcome[document["outcome"]]}
    num_broken = fields.pop("num_broken_invariants", 0)
    if num_broken:
        fields["violations"] = {"any": num_broken}
    passed = fields.get("overtaking", {})
    fields["overtaking"] = {name: Overtaking(**numbers) for name, numbers in passed.items()}
    if fields.get("requests"):
        fields["requests"] = RequestFigures(**fields["requests"])
    return RunSummary(**fields)


def request_figures(record: RunRecord, targets: SloTargets, window: Window) -> RequestFigures:
    """Return latencies and outcome of each request that arrives in the window."""
    requests, chosen = record.requests, select(record, targets, window)
    kept = chosen.is_chosen
    values = {}
    for name in LATENCIES:
        times, exists = latencies_us(record, name)
        values[name] = np.where(exists, times, np.nan)[kept] / 1000
    values[GOOD] = chosen.is_good[kept].astype(np.float64)
    values[REJECTED] = (requests.status == Status.REJECTED)[kept].astype(np.float64)
    return RequestFigures(
        requests.arrival_us[kept].tolist(),
        requests.slo_class[kept].tolist(),
        {name: column.tolist() for name, column in values.items()},
    )


def lives_of(record: RunRecord, facts: Sequence[str] = ()) -> Int[np.ndarray, "request fact"]:
    """Return the columns `facts` of the requests, by default all, stacked; -1 for a column that the run lacks."""
    requests = record.requests
    missing = np.full(len(requests.arrival_us), -1)
    names = facts or [column.name for column in dataclasses.fields(RequestRecords)]
    columns = [getattr(requests, name) for name in names]
    return np.column_stack([np.asarray(missing if c is None else c, np.int64) for c in columns])


def share_differing(first: RunSummary, second: RunSummary) -> float:
    """Return the share of requests whose `lives` differ between two runs; NaN unless both summaries have them."""
    if first.lives is None or second.lives is None:
        return math.nan
    return float((first.lives != second.lives).any(axis=1).mean())


def fingerprint(record: RunRecord) -> str:
    """Return a hash of the requests' records, equal for runs in which each request had the same times and places."""
    digest = hashlib.sha256()
    for name in OF_LIVES:
        digest.update(np.ascontiguousarray(getattr(record.requests, name), np.int64).tobytes())
    return digest.hexdigest()[:16]


# --- latencies that the runs of many seeds can be pooled by ---------------------------------------

# The 32 largest are kept one by one, then every tenth part further down. So the number of a run's requests above any
# value is known exactly up to 32, and beyond to a tenth of it at most; `statistics.pooled` pools runs.

NUM_EXACT, GROWTH, NUM_RANKS = 32, 1.1, 96
# a list where the run ended just now, an array where it was read
Kept = (
    Sequence[int] | np.ndarray
)  # the number of requests, then the kept latencies in µs, the largest first


def _ranks() -> tuple[int, ...]:
    ranks = list(range(NUM_EXACT))
    while len(ranks) < NUM_RANKS:
        ranks.append(max(ranks[-1] + 1, round((ranks[-1] + 1) * GROWTH) - 1))
    return tuple(ranks)


RANKS = _ranks()  # of the kept latencies, 0 for the largest; the last one is about 14,000


@dataclass(frozen=True)
class Tails:
    """The kept latencies of one group of requests in several runs: their number, and the largest at `RANKS`."""

    count: Int[np.ndarray, "run"]  # requests with this latency; -1 for a run that did not end
    top_us: Float[np.ndarray, "run rank"]  # by RANKS; NaN where there are fewer


def tails_of_runs(kept: Sequence[Kept | None]) -> Tails:
    """Stack the results of `kept_of`, `[run, rank]`; a run that did not end, given as None, has count −1 and NaN."""
    count = np.full(len(kept), -1, np.int64)
    top_us = np.full((len(kept), NUM_RANKS), np.nan)
    for run, tail in enumerate(kept):
        if tail is not None:
            count[run] = tail[0]
            top_us[run, : len(tail) - 1] = tail[1:]
    return Tails(count, top_us)


def kept_of(values_us: Int[np.ndarray, "value"]) -> list[int]:
    """Return the number of latencies, then those at `RANKS`, greatest first, µs; `values_us` is ascending."""
    ranks = [rank for rank in RANKS if rank < len(values_us)]
    return [len(values_us), *values_us[::-1][ranks].astype(np.int64).tolist()]


def kept_tails(everything: Selection, classes: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """Return `kept_of` the measured requests' latencies, by latency, then by class, `all` included."""
    kept: dict[str, dict[str, list[int]]] = {name: {} for name in POOLED_LATENCIES}
    for slo_class in (ALL, *classes):
        chosen = everything.of_name(slo_class)
        for name in POOLED_LATENCIES:
            kept[name][slo_class] = kept_of(chosen.sample(name).values)
    return kept


# --- who was scheduled first while another class waited -------------------------------------------


PAIRS = (("sheddable", "critical"), ("standard", "critical"), ("sheddable", "standard"))
NEVER = 2**62


@dataclass(frozen=True)
class Overtaking:
    """Figures of overtaking in one or several runs; ages in µs, None if no request overtook or was passed."""

    # requests of the lower class scheduled while one of the higher class waited
    num_overtaking: int
    least_age_us: int | None  # of them at that moment
    least_older_by_us: int | None  # than the one that waited
    num_passed: int  # requests of the lower class that a younger one of the higher class passed
    greatest_passed_age_us: int | None  # of them at that moment


NOTHING = Overtaking(0, None, None, 0, None)
ROWS_AT_A_TIME = 256


def overtaking(record: RunRecord, lower: str, higher: str) -> Overtaking:
    """Count requests of one class first scheduled while one of the other class waited on the same instance."""
    requests = record.requests
    codes = [class_code(name) for name in (lower, higher)]
    counts = [NOTHING]
    for instance in range(len(record.instances.step_count)):
        here = (requests.instance == instance) & (requests.queued_at_us >= 0)
        below, above = (_waits(record, here & (requests.slo_class == code)) for code in codes)
        for at in range(0, len(below.arrival_us), ROWS_AT_A_TIME):
            counts.append(_between(below.part(at), above))
    return together(counts)


@dataclass(frozen=True)
class _Waits:
    """The waits of requests, from the entry into the wait queue to the first scheduling; NEVER if not scheduled."""

    arrival_us: Int[np.ndarray, "request *column"]
    queued_us: Int[np.ndarray, "request *column"]
    scheduled_us: Int[np.ndarray, "request *column"]

    def part(self, at: int) -> _Waits:
        """Return the waits of one block of requests, as columns."""
        rows = slice(at, at + ROWS_AT_A_TIME)
        return _Waits(
            self.arrival_us[rows, None], self.queued_us[rows, None], self.scheduled_us[rows, None]
        )

    def hold(self, time_us: Int[np.ndarray, "..."]) -> Bool[np.ndarray, "..."]:
        """Return whether each request waits at `time_us`, ends excluded, where events share a microsecond."""
        return (self.queued_us < time_us) & (time_us < self.scheduled_us)


def _waits(record: RunRecord, chosen: Bool[np.ndarray, "request"]) -> _Waits:
    requests = record.requests
    delay, arrival = requests.first_sched_delay_us[chosen], requests.arrival_us[chosen]
    scheduled = np.where(delay >= 0, arrival + delay, NEVER)
    return _Waits(arrival, requests.queued_at_us[chosen], scheduled)


def _between(below: _Waits, above: _Waits) -> Overtaking:
    """Count overtaking between requests of the lower class, as a column, and the higher class on one instance."""
    overtakes = above.hold(below.scheduled_us)
    is_younger = above.arrival_us > below.arrival_us
    passed = below.hold(above.scheduled_us) & is_younger
    ages = np.broadcast_to(below.scheduled_us - below.arrival_us, overtakes.shape)[overtakes]
    older_by = (above.arrival_us - below.arrival_us)[overtakes]
    passed_ages = (above.scheduled_us - below.arrival_us)[passed]
    return Overtaking(
        int(overtakes.any(axis=1).sum()),
        int(ages.min()) if len(ages) else None,
        int(older_by.min()) if len(older_by) else None,
        int(passed.any(axis=1).sum()),
        int(passed_ages.max()) if len(passed_ages) else None,
    )


def together(parts: Iterable[Overtaking]) -> Overtaking:
    """Add up the overtaking of several instances or runs."""
    parts = list(parts)

    def least(name: str) -> int | None:
        return min(
            (v for v in (getattr(part, name) for part in parts) if v is not None), default=None
        )

    greatest = [part.greatest_passed_age_us for part in parts]
    return Overtaking(
        sum(part.num_overtaking for part in parts),
        least("least_age_us"),
        least("least_older_by_us"),
        sum(part.num_passed for part in parts),
        max((value for value in greatest if value is not None), default=None),
    )
