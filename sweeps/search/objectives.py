"""The worth of a point: its objectives, the penalties of its constraints, and its score.

Scores are minimised. A point with an unfinished run, or without a value of a metric that is needed, is a failure: its
score is the strategy's `failure_score`, and its worth names the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from moocore import hypervolume as volume_of
from moocore import is_nondominated

from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.metric import HIGHER
from blis_jax.metrics.run_summary import RunSummary
from sweeps.claims.grammar import known_metric, our_name
from sweeps.runs.measured import NO_FIGURE
from sweeps.strategies.file import Strategy
from sweeps.strategies.parts import Constraint

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Metrics = Mapping[str, float]
AT = " at "  # between a metric and the further load that it is measured at


Runs = tuple[RunSummary, ...]  # of one configuration, one a seed


@dataclass(frozen=True)
class Worth:
    """`score` = weighted objectives + penalties; `objectives` are minimised, so maxima are negated."""

    score: float
    objectives: tuple[float, ...]
    penalties: Mapping[str, float]  # by metric, mean over the seeds
    failures: tuple[str, ...] = ()  # outcomes that make it a failure
    excesses: tuple[
        float, ...
    ] = ()  # by constraint, weighted, of the means; negative where it is kept
    errors: tuple[float, ...] = ()  # standard errors of these, where penalties are expected ones
    spreads: tuple[float, ...] = ()  # the same standard errors, whatever the penalties are

    @property
    def is_feasible(self) -> bool:
        """Return whether the runs finished and keep all constraints; an expected penalty is never 0."""
        if self.failures:
            return False
        return max(self.excesses) <= 0 if self.errors else self.penalty == 0

    @property
    def penalty(self) -> float:
        """Return the sum of all penalties."""
        return sum(self.penalties.values())


@dataclass(frozen=True)
class Goal:
    """One objective: the registered metric, its sign (+1 to minimise, −1 to maximise), and its weight."""

    metric: str
    sign: float
    weight: float


class Valuation:
    """Score the runs of a point by a strategy's objectives."""

    def __init__(self, strategy: Strategy, has_loads: bool = False) -> None:
        """Take the strategy, and check all metric names; `has_loads`: every run has the metrics of all loads."""
        if strategy.loads and not has_loads:
            raise strategy.refuse(
                "loads", "only blis-jax optimize runs a point on several loads; leave them out here"
            )
        if not strategy.objectives:
            raise strategy.refuse(
                "objectives", "there are none; say what is wanted, such as [{metric: ttft_p99_ms}]"
            )
        self.strategy = strategy
        self.goals: list[Goal] = []
        for place, objective in enumerate(strategy.objectives):
            metric = _metric(strategy, f"objectives[{place}]", objective.metric, objective.at)
            direction = known_metric(plain_name(metric)).direction == HIGHER
            is_max = objective.direction == "max" if objective.direction else direction
            self.goals.append(Goal(metric, -1.0 if is_max else 1.0, objective.weight))
        self.limits = [
            _metric(strategy, f"constraints[{place}]", constraint.metric, constraint.at)
            for place, constraint in enumerate(strategy.constraints)
        ]
        self.criteria = [
            _metric(strategy, f"success_criteria[{place}]", criterion.metric)
            for place, criterion in enumerate(strategy.success_criteria)
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """Return every metric that is needed on the strategy's workload."""
        return self.names_at("")

    def names_at(self, load: str) -> tuple[str, ...]:
        """Return every metric that is needed on one of the loads."""
        wanted = [goal.metric for goal in self.goals] + self.limits + self.criteria
        parts = [name.partition(AT) for name in dict.fromkeys(wanted)]
        return tuple(name for name, _, place in parts if place == load)

    def worth(self, runs: Sequence[RunSummary]) -> Worth:
        """Return the worth of one point from its runs."""
        failures = [run.outcome.name for run in runs if not run.is_whole]
        wanted = [goal.metric for goal in self.goals] + self.limits
        if not failures and any(math.isnan(run.metrics[name]) for run in runs for name in wanted):
            failures = [NO_FIGURE]
        if failures:
            score = self.strategy.search.failure_score
            return Worth(score, (), {}, tuple(dict.fromkeys(failures)))
        per_seed = [run.metrics for run in runs]
        means = _mean(per_seed, wanted)
        constraints = list(zip(self.limits, self.strategy.constraints, strict=True))
        excesses = tuple(
            constraint.weight * constraint.claim.excess(means[name])
            for name, constraint in constraints
        )
        spreads = tuple(
            constraint.weight * standard_error([run[name] for run in per_seed])
            for name, constraint in constraints
        )
        errors: tuple[float, ...] = ()
        if self.strategy.penalties == "expected":
            errors = spreads
            amounts = [expected_excess(*pair) for pair in zip(excesses, errors, strict=True)]
        else:
            bases = per_seed if self.strategy.penalties == "each-seed" else [means]
            amounts = [
                constraint.weight * _mean_excess([basis[name] for basis in bases], constraint)
                for name, constraint in constraints
            ]
        penalties: dict[str, float] = {}
        for (name, _), amount in zip(constraints, amounts, strict=True):
            penalties[name] = penalties.get(name, 0.0) + amount
        objectives = tuple(goal.sign * means[goal.metric] for goal in self.goals)
        weighted = [goal.weight * value for goal, value in zip(self.goals, objectives, strict=True)]
        score = sum(weighted) + sum(penalties.values())
        return Worth(
            score, objectives, penalties, excesses=excesses, errors=errors, spreads=spreads
        )

    def slopes(self, worth: Worth) -> dict[str, float]:
        """Return the change of the expected score per unit of each metric's mean; the worth must not be a failure."""
        slope_by_metric = {goal.metric: 0.0 for goal in self.goals}
        for goal in self.goals:
            slope_by_metric[goal.metric] += goal.sign * goal.weight
        limits = zip(
            self.limits, self.strategy.constraints, worth.excesses, worth.spreads, strict=True
        )
        for name, constraint, excess, spread in limits:
            z = excess / spread if spread else math.copysign(math.inf, excess)
            share = (1 + math.erf(z / math.sqrt(2))) / 2  # of the possible true excesses that count
            sign = 1.0 if constraint.direction == "min" else -1.0
            slope_by_metric[name] = (
                slope_by_metric.get(name, 0.0) + sign * constraint.weight * share
            )
        return slope_by_metric


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean over seeds; 0 for a single seed, which has no spread."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def expected_excess(excess: float, error: float) -> float:
    """Return the expected positive part of a true excess that is normally distributed around the measured excess."""
    if error == 0:
        return max(excess, 0.0)
    z = excess / error
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return excess * (1 + math.erf(z / math.sqrt(2))) / 2 + error * density


def plain_name(name: str) -> str:
    """Return a metric's name without the load, if the name has one."""
    return name.partition(AT)[0]


def _metric(strategy: Strategy, path: str, name: str, at: str | None = None) -> str:
    try:
        known_metric(name)
    except ConfigError as error:
        raise strategy.refuse(f"{path}.metric", str(error)) from None
    if at is None:
        return our_name(name)
    if at not in strategy.loads:
        raise strategy.refuse(
            f"{path}.at", f"there is no load {at!r}{closest(at, list(strategy.loads))}"
        )
    return our_name(name) + AT + at


def _mean(runs: Sequence[Metrics], names: Sequence[str]) -> dict[str, float]:
    return {name: float(np.mean([run[name] for run in runs])) for name in names}


def _mean_excess(values: Sequence[float], limit: Constraint) -> float:
    """Return the mean distance by which values exceed a limit; values within the limit count as 0."""
    return float(np.mean([max(limit.claim.excess(value), 0.0) for value in values]))


def nondominated(objectives: Float[np.ndarray, "point goal"]) -> Bool[np.ndarray, "point"]:
    """Return which points no other point dominates, all objectives being minimised; of equal points the first."""
    if not len(objectives):
        return np.zeros(0, bool)
    mask: Bool[np.ndarray, "point"] = is_nondominated(np.asarray(objectives, float))
    return mask


def reference_point(objectives: Float[np.ndarray, "point goal"]) -> Float[np.ndarray, "goal"]:
    """Return the worst value of each objective `[goal]`, the reference for the hypervolumes of a search."""
    worst: Float[np.ndarray, "goal"] = np.max(objectives, axis=0)
    return worst


def hypervolume(
    objectives: Float[np.ndarray, "point goal"], reference: Sequence[float] | np.ndarray
) -> float:
    """Return the volume between the points and the reference, in the product of the objectives' units."""
    if not len(objectives):
        return 0.0
    return float(volume_of(np.asarray(objectives, float), ref=np.asarray(reference, float)))
