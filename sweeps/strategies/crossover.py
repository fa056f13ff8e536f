"""The age at which a request of a lower class overtakes one of a higher class, by a configuration's settings alone.

The lower request overtakes once its base score, raised by its age beyond its class's grace period, passes the base
score of a new request of the higher class. `metrics.run_summary` records actual overtaking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.engine.mechanism import params
from blis_jax.metrics.run_summary import PAIRS


@dataclass(frozen=True)
class Crossover:
    """The age, µs, at which the lower class passes the higher by the settings; None, with a `reason`, if no age
    does."""

    lower: str
    higher: str
    age_us: float | None  # to pass a request of the higher class that has just arrived
    older_by_us: float | None  # to pass one that is itself beyond its grace period
    reason: str
    is_by_priority: bool = True  # else the scheduler does not look at priorities

    @property
    def age_s(self) -> float:
        """Return the age, s; infinite where no age is enough."""
        return math.inf if self.age_us is None else self.age_us / 1e6


def crossovers(config: ClusterConfig) -> tuple[Crossover, ...]:
    """Return the crossover of every pair of classes."""
    return tuple(crossover(config, lower, higher) for lower, higher in PAIRS)


def crossover(config: ClusterConfig, lower: str, higher: str) -> Crossover:
    """Return the age at which the lower class passes the higher: gap of the base scores ÷ age weight + grace period."""

    def after(age: float | None, reason: str, older_by: float | None = None) -> Crossover:
        return Crossover(lower, higher, age, age if older_by is None else older_by, reason)

    if config.scheduler != "priority-fcfs":
        return _unread(config, lower, higher)
    numbers = _numbers(config)
    weight = numbers.get("age_weight", 0.0)
    if config.priority_policy == "inverted-slo":
        return after(None, "inverted-slo makes younger requests more urgent")
    gap = numbers.get(f"base_{higher}", 0.0) - numbers.get(f"base_{lower}", 0.0)
    words = f"gap {gap:g}, age weight {weight:g} per µs"
    if gap < 0:
        return after(0.0, f"{words}: {lower} requests have the higher base score")
    has_grace = any(numbers.get(f"grace_{name}_us") for name in (lower, higher))
    if gap == 0 and not (has_grace and weight > 0):
        return after(0.0, "the classes have the same base score: older requests go first")
    if weight <= 0:
        return after(None, f"{words}: priorities do not grow with age")
    graces = [numbers.get(f"grace_{name}_us", 0.0) for name in (lower, higher)]
    age = gap / weight + graces[0]
    if config.priority_policy == "load-adaptive":
        words += f", at its full width from a wait queue of {config.load_adaptive_high}"
    return after(age, f"{words}, grace {graces[0] / 1e6:g} s", max(age - graces[1], 0.0))


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
    """Return the priority policy's numbers, as the engine receives them."""
    policy: Any = params(config).policy.priority
    return {name: float(value) for name, value in vars(policy).items()}
