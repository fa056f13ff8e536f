"""From which age a request of a lower class overtakes one of a higher class: by the settings, and in fact.

By the settings, a request overtakes once its base score, raised by its age beyond its class's grace
period, passes that of a request that has just arrived. In fact, it overtakes when it is scheduled while
the other waits on the same instance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.reference import class_code
from blis_jax.results.records import RunRecord

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

PAIRS = (("sheddable", "critical"), ("standard", "critical"), ("sheddable", "standard"))
NEVER = 2**62


@dataclass(frozen=True)
class Crossover:
    """By the settings; µs, None where no age is enough. `reason` says in words what holds."""

    lower: str
    higher: str
    age_us: float | None  # to pass a request of the higher class that has just arrived
    older_by_us: float | None  # to pass one that is itself beyond its grace period
    reason: str
    is_by_priority: bool = True  # else the scheduler does not look at priorities


def crossovers(config: ClusterConfig) -> tuple[Crossover, ...]:
    """(gap of the base scores) ÷ (age weight) + grace period, for every pair of classes."""
    return tuple(_crossover(config, lower, higher) for lower, higher in PAIRS)


def _crossover(config: ClusterConfig, lower: str, higher: str) -> Crossover:
    def found(age: float | None, reason: str, older_by: float | None = None) -> Crossover:
        return Crossover(lower, higher, age, age if older_by is None else older_by, reason)

    if config.scheduler != "priority-fcfs":
        return _unread(config, lower, higher)
    numbers = _numbers(config)
    weight = numbers.get("age_weight", 0.0)
    if config.priority_policy == "inverted-slo":
        return found(None, "inverted-slo makes younger requests more urgent")
    gap = numbers.get(f"base_{higher}", 0.0) - numbers.get(f"base_{lower}", 0.0)
    words = f"gap {gap:g}, age weight {weight:g} per µs"
    if gap < 0:
        return found(0.0, f"{words}: {lower} requests have the higher base score")
    has_grace = any(numbers.get(f"grace_{name}_us") for name in (lower, higher))
    if gap == 0 and not (has_grace and weight > 0):
        return found(0.0, "the classes have the same base score: older requests go first")
    if weight <= 0:
        return found(None, f"{words}: priorities do not grow with age")
    graces = [numbers.get(f"grace_{name}_us", 0.0) for name in (lower, higher)]
    age = gap / weight + graces[0]
    if config.priority_policy == "load-adaptive":
        words += f", at its full width from a wait queue of {config.load_adaptive_high}"
    return found(age, f"{words}, grace {graces[0] / 1e6:g} s", max(age - graces[1], 0.0))


def _unread(config: ClusterConfig, lower: str, higher: str) -> Crossover:
    age = 0.0 if config.scheduler == "fcfs" else None
    reasons = {
        "fcfs": "fcfs does not look at priorities: older requests go first",
        "sjf": "sjf looks at the prompt's length alone",
        "reverse-priority": "reverse-priority serves the lowest priority first",
    }
    reason = reasons.get(config.scheduler, config.scheduler)
    return Crossover(lower, higher, age, age, reason, is_by_priority=False)


def _numbers(config: ClusterConfig) -> dict[str, float]:
    """The priority policy's numbers, as the engine gets them."""
    from blis_jax.engine.mechanism import params

    policy: Any = params(config).policy.priority
    return {name: float(value) for name, value in vars(policy).items()}


# --- in fact --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overtaking:
    """Of one run, or of several together; ages in µs, None where nothing was seen."""

    num_overtaking: (
        int  # requests of the lower class scheduled while one of the higher class waited
    )
    least_age_us: int | None  # of them at that moment
    least_older_by_us: int | None  # than the one that waited
    num_passed: int  # requests of the lower class that a younger one of the higher class passed
    greatest_passed_age_us: int | None  # of them at that moment


NOTHING = Overtaking(0, None, None, 0, None)
ROWS_AT_A_TIME = 256


def overtaking(record: RunRecord, lower: str, higher: str) -> Overtaking:
    """Who was scheduled first while the other waited, on each instance; only first schedulings count."""
    requests = record.requests
    codes = [class_code(name) for name in (lower, higher)]
    found = [NOTHING]
    for instance in range(len(record.instances.step_count)):
        here = (requests.instance == instance) & (requests.queued_at_us >= 0)
        below, above = (_waits(record, here & (requests.slo_class == code)) for code in codes)
        for at in range(0, len(below.arrival_us), ROWS_AT_A_TIME):
            found.append(_between(below.part(at), above))
    return together(found)


@dataclass(frozen=True)
class _Waits:
    """From the entry into the wait queue to the first scheduling, NEVER if that did not come."""

    arrival_us: Int[np.ndarray, "request"]
    queued_us: Int[np.ndarray, "request"]
    scheduled_us: Int[np.ndarray, "request"]

    def part(self, at: int) -> _Waits:
        """Some of them, as a column."""
        rows = slice(at, at + ROWS_AT_A_TIME)
        return _Waits(
            self.arrival_us[rows, None], self.queued_us[rows, None], self.scheduled_us[rows, None]
        )

    def hold(self, time_us: Int[np.ndarray, "..."]) -> Bool[np.ndarray, "..."]:
        """Whether they wait at a time; not at its ends, where events share a microsecond."""
        return (self.queued_us < time_us) & (time_us < self.scheduled_us)


def _waits(record: RunRecord, chosen: Bool[np.ndarray, "request"]) -> _Waits:
    requests = record.requests
    delay, arrival = requests.first_sched_delay_us[chosen], requests.arrival_us[chosen]
    scheduled = np.where(delay >= 0, arrival + delay, NEVER)
    return _Waits(arrival, requests.queued_at_us[chosen], scheduled)


def _between(below: _Waits, above: _Waits) -> Overtaking:
    """Of the lower class, as a column, against the higher class on the same instance."""
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
    """Of several instances or runs."""
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
