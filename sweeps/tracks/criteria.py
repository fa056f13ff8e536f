"""Verdicts on criteria: those of a track, with reasons, and the success criteria of strategy files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.metric import ALL, name_in, split_name
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.intervals import Estimate, Inference
from sweeps.claims.grammar import CHANGED, GAP, Claim
from sweeps.claims.judge import ByInterval, ByMean, ClaimVerdict, Figures, judge
from sweeps.claims.words import CONFIRMED, FOR_PEOPLE, MET, MISSED, NOT_MEASURED
from sweeps.runs.measured import metric_values, pair_of
from sweeps.strategies.file import Strategy
from sweeps.strategies.parts import SuccessCriterion
from sweeps.tracks.problem import MAIN, Criterion, Problem, TrackConstraint

SEEDS_OF_THE_RECORD = (
    3  # whose criterion of one direction is a count of seeds, not a verdict on chance
)


@dataclass(frozen=True)
class FigurePair:
    """The figures of both arms on the same seeds."""

    strategy: Figures
    baseline: Figures


@dataclass(frozen=True)
class Facts:
    """Facts other than figures that a judgement needs; None for unknown ones."""

    verdict: str | None = None  # on the row's hypothesis
    mechanism: str | None = None
    num_seeds: int = 0
    same_direction: bool | None = None  # on every seed, of the objective


Kind = TypeVar("Kind", Criterion, SuccessCriterion)


@dataclass(frozen=True)
class CriterionVerdict(Generic[Kind]):
    """The verdict on a criterion, for one class.

    Attributes:
        criterion: the criterion, of a track or of a strategy file.
        slo_class: the class; `all` for all requests, and for metrics of the run.
        is_asked: whether the criterion names this class.
    """

    criterion: Kind
    slo_class: str
    verdict: ClaimVerdict
    is_asked: bool = True

    @property
    def value(self) -> Estimate | None:
        """Return the measured value, or the change in % if the goal is a change; None where it was not measured."""
        reading = self.verdict.reading
        return None if reading is None or self.verdict.word == NOT_MEASURED else reading.mean


def line_of(criterion: str, slo_class: str, goal: str, verdict: str, reason: str) -> str:
    """Return a verdict as a line of text, the verdict first."""
    where = "" if slo_class == ALL else f" [{slo_class}]"
    return f"{verdict:<12} {criterion}{where}: {goal}; {reason}"


def judge_criteria(
    problem: Problem, pairs: Mapping[str, FigurePair], classes: Sequence[str], facts: Facts
) -> tuple[CriterionVerdict[Criterion], ...]:
    """Judge every criterion on the figures measured under each condition, which must include `main`."""
    verdicts: list[CriterionVerdict[Criterion]] = []
    for criterion in problem.criteria:
        if criterion.claim is None:
            verdicts.append(CriterionVerdict(criterion, ALL, _by_facts(criterion, facts)))
            continue
        for slo_class, claim in by_class(criterion, classes):
            verdicts.append(
                CriterionVerdict(criterion, slo_class, _measured(criterion, claim, pairs))
            )
    return tuple(verdicts)


def by_class(criterion: Criterion, classes: Sequence[str]) -> list[tuple[str, Claim]]:
    """Return by class the criterion's claim: for all requests and, if the criterion asks for that, for every class."""
    claim = criterion.claim
    assert claim is not None
    forms = [(split_name(claim.metric)[1] or ALL, claim)]
    if not criterion.each_class or claim.metric in (GAP, CHANGED):
        return forms
    if lookup(claim.metric)[0].has_classes:
        forms += [
            (name, dataclasses.replace(claim, metric=name_in(claim.metric, name)))
            for name in classes
        ]
    return forms


def metrics_of(problem: Problem, classes: Sequence[str]) -> tuple[str, ...]:
    """Return every registered metric that the criteria need."""
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
    """Return the constraints that a strategy breaks, among those that can be checked."""
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
        if bounds.broken(value) is not None:
            return f"{name} is {value}"
    return None


def _measured(criterion: Criterion, claim: Claim, pairs: Mapping[str, FigurePair]) -> ClaimVerdict:
    where = "" if criterion.condition == MAIN else f" under {criterion.condition}"
    pair, main = pairs.get(criterion.condition), pairs.get(MAIN)
    if pair is None or (criterion.against == "itself" and main is None):
        return ClaimVerdict(claim, NOT_MEASURED, f"nothing was run{where}")
    is_itself = criterion.against == "itself" and main is not None
    reference = main.strategy if is_itself and main is not None else pair.baseline
    return judge(claim, ByInterval(where=where), pair.strategy, reference)


def _by_facts(criterion: Criterion, facts: Facts) -> ClaimVerdict:
    word, reason = FOR_PEOPLE, criterion.text
    if criterion.needs == "seeds":
        is_met = facts.num_seeds >= SEEDS_OF_THE_RECORD and facts.same_direction
        word = NOT_MEASURED if facts.same_direction is None else MET if is_met else MISSED
        words = "the same" if facts.same_direction else "not the same"
        reason = f"{facts.num_seeds} seeds, {words} direction on each"
    elif criterion.needs == "verdict" and facts.verdict is not None:
        word = MET if facts.verdict == CONFIRMED else MISSED
        reason = f"its hypothesis is {facts.verdict}"
    elif criterion.needs == "mechanism" and facts.mechanism is not None:
        word = MET if facts.mechanism.strip() else MISSED
        reason = facts.mechanism.strip() or "no mechanism is given"
    elif criterion.needs == "sensitivity":
        word, reason = NOT_MEASURED, "needs runs over the ranges of the parameters"
    return ClaimVerdict(None, word, reason)


# --- success criteria of strategy files -----------------------------------------------------------


def success_metrics(
    criteria: Sequence[SuccessCriterion], classes: Sequence[str]
) -> tuple[str, ...]:
    """Return the metrics that are needed to judge success criteria."""
    forms = [form for criterion in criteria for form in _forms(criterion, classes)]
    return tuple(dict.fromkeys(claim.metric for _, claim in forms))


def judge_success(
    criteria: Sequence[SuccessCriterion],
    classes: Sequence[str],
    runs: Sequence[RunSummary],
    reference: Sequence[RunSummary],
    inference: Inference,
) -> list[CriterionVerdict[SuccessCriterion]]:
    """Judge every criterion for every class; intervals hold for all of them at once (Bonferroni).

    The first verdict on each criterion is for the class that the file names.
    """
    forms = [
        (criterion, at, *form)
        for criterion in criteria
        for at, form in enumerate(_forms(criterion, classes))
    ]
    rule = ByMean(1 - (1 - inference.confidence) / max(len(forms), 1))
    verdicts = []
    for criterion, at, slo_class, claim in forms:
        if claim.is_change:
            pair = pair_of(reference, runs, claim.metric)
            figures, before = {claim.metric: pair.second}, {claim.metric: pair.first}
        else:
            figures, before = {claim.metric: metric_values(runs, claim.metric)}, {}
        verdict = judge(claim, rule, figures, before)
        verdicts.append(CriterionVerdict(criterion, slo_class, verdict, at == 0))
    return verdicts


def _forms(criterion: SuccessCriterion, classes: Sequence[str]) -> list[tuple[str, Claim]]:
    """Return the claim by class, beginning with the class that the file names."""
    claim = criterion.claim
    metric, slo_class = lookup(claim.metric)
    forms = [(slo_class or ALL, claim)]
    if metric.has_classes:
        forms += [
            (name, dataclasses.replace(claim, metric=name_in(metric.name, name)))
            for name in (ALL, *classes)
            if name != (slo_class or ALL)
        ]
    return forms
