"""The criteria of a track, judged: each for its class, from measured figures, with its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.intervals import Estimate
from sweeps.strategies.file import Strategy
from sweeps.tracks.claims import CHANGED, GAP, Claim, Figures, read
from sweeps.tracks.problem import MAIN, Criterion, Problem, TrackConstraint
from sweeps.tracks.verdicts import CONFIRMED, FEWEST_SEEDS

MET, MISSED, UNCLEAR = "met", "missed", "unclear"
NOT_MEASURED, FOR_PEOPLE = "not measured", "for people to judge"
ALL = "all"


@dataclass(frozen=True)
class FigurePair:
    """Both arms on the same seeds."""

    strategy: Figures
    baseline: Figures


@dataclass(frozen=True)
class Facts:
    """What a judgement needs besides figures; None where nobody said."""

    verdict: str | None = None  # on the row's hypothesis
    mechanism: str | None = None
    num_seeds: int = 0
    same_direction: bool | None = None  # on every seed, of the objective


@dataclass(frozen=True)
class Judgement:
    """The verdict on one criterion, for one class."""

    criterion: str
    slo_class: str  # `all` for all requests, and for figures of the run
    goal: str
    verdict: str
    reason: str
    value: Estimate | None = None  # or the change in %, as the goal is put

    def line(self) -> str:
        """For people."""
        return line_of(self.criterion, self.slo_class, self.goal, self.verdict, self.reason)


def line_of(criterion: str, slo_class: str, goal: str, verdict: str, reason: str) -> str:
    """A judgement for people, the verdict first."""
    where = "" if slo_class == ALL else f" [{slo_class}]"
    return f"{verdict:<12} {criterion}{where}: {goal}; {reason}"


def judge(
    problem: Problem, pairs: Mapping[str, FigurePair], classes: Sequence[str], facts: Facts
) -> tuple[Judgement, ...]:
    """Every criterion on what was measured under each condition; `main` must be among them."""
    found: list[Judgement] = []
    for criterion in problem.criteria:
        if criterion.claim is None:
            found.append(_judged_by_facts(criterion, facts))
            continue
        for slo_class, claim in by_class(criterion, classes):
            found.append(_judged(criterion, slo_class, claim, pairs))
    return tuple(found)


def by_class(criterion: Criterion, classes: Sequence[str]) -> list[tuple[str, Claim]]:
    """The claim for all requests and, if wanted, for every class."""
    claim = criterion.claim
    assert claim is not None
    own = claim.metric.partition("[")[2].rstrip("]") or ALL
    found = [(own, claim)]
    if not criterion.each_class or claim.metric in (GAP, CHANGED):
        return found
    if lookup(claim.metric)[0].has_classes:
        found += [
            (name, dataclasses.replace(claim, metric=f"{claim.metric}[{name}]")) for name in classes
        ]
    return found


def metrics_of(problem: Problem, classes: Sequence[str]) -> tuple[str, ...]:
    """Every registered metric that the criteria need."""
    names = [
        name
        for criterion in problem.criteria
        if criterion.claim is not None
        for _, claim in by_class(criterion, classes)
        for name in claim.names
    ]
    return tuple(dict.fromkeys(names))


def broken_constraints(
    problem: Problem, config: ClusterConfig, strategy: Strategy | None
) -> list[str]:
    """The constraints that a strategy breaks, of those that can be checked."""
    return [
        f"{constraint.text} ({reason})"
        for constraint in problem.constraints
        if (reason := _reason(constraint, config, strategy)) is not None
    ]


def _reason(
    constraint: TrackConstraint, config: ClusterConfig, strategy: Strategy | None
) -> str | None:
    if constraint.needs == "parameters" and (strategy is None or not strategy.parameters):
        return "the strategy has no parameters"
    for name, bounds in constraint.settings.items():
        value = getattr(config, name)
        is_below = bounds.min is not None and value < bounds.min
        is_above = bounds.max is not None and value > bounds.max
        if is_below or is_above or (bounds.equals is not None and value != bounds.equals):
            return f"{name} is {value}"
    return None


def _judged(
    criterion: Criterion, slo_class: str, claim: Claim, pairs: Mapping[str, FigurePair]
) -> Judgement:
    def judgement(verdict: str, reason: str, value: Estimate | None = None) -> Judgement:
        return Judgement(criterion.name, slo_class, criterion.goal or "", verdict, reason, value)

    where = "" if criterion.condition == MAIN else f" under {criterion.condition}"
    pair, main = pairs.get(criterion.condition), pairs.get(MAIN)
    if pair is None or (criterion.against == "itself" and main is None):
        return judgement(NOT_MEASURED, f"nothing was run{where}")
    reference = pair.baseline
    if criterion.against == "itself" and main is not None:
        reference = main.strategy
    reading = read(claim, pair.strategy, reference)
    num_missing = sum(not math.isfinite(value) for value in reading.per_seed)
    if num_missing or not reading.per_seed:
        count = len(reading.per_seed)
        return judgement(NOT_MEASURED, f"{num_missing} of {count} seeds have no figure{where}")
    unit = " %" if claim.is_change else ""
    mean = reading.mean
    figure = f"{mean.mean:.4g}{unit} [{mean.low:.4g}, {mean.high:.4g}]{where}"
    if len(reading.per_seed) < FEWEST_SEEDS:
        return judgement(UNCLEAR, f"{figure}, from {len(reading.per_seed)} seeds", mean)
    if claim.holds_all(mean):
        return judgement(MET, figure, mean)
    return judgement(MISSED if claim.excludes(mean) else UNCLEAR, figure, mean)


def _judged_by_facts(criterion: Criterion, facts: Facts) -> Judgement:
    verdict, reason = FOR_PEOPLE, criterion.text
    if criterion.needs == "seeds":
        is_met = facts.num_seeds >= FEWEST_SEEDS and facts.same_direction
        verdict = NOT_MEASURED if facts.same_direction is None else MET if is_met else MISSED
        words = "the same" if facts.same_direction else "not the same"
        reason = f"{facts.num_seeds} seeds, {words} direction on each"
    elif criterion.needs == "verdict" and facts.verdict is not None:
        verdict = MET if facts.verdict == CONFIRMED else MISSED
        reason = f"its hypothesis is {facts.verdict}"
    elif criterion.needs == "mechanism" and facts.mechanism is not None:
        verdict = MET if facts.mechanism.strip() else MISSED
        reason = facts.mechanism.strip() or "no mechanism is given"
    elif criterion.needs == "sensitivity":
        verdict, reason = NOT_MEASURED, "needs runs over the ranges of the parameters"
    return Judgement(criterion.name, ALL, criterion.text, verdict, reason)
