"""The content of a result record: runs, comparison with the baseline, and claims judged by the rule."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.outcome import WHOLE_NAMES
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import finite
from blis_jax.files.content import digest
from blis_jax.metrics.metric import split_name
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.intervals import BY_STUDENT, Estimate, estimate
from blis_jax.statistics.paired import (
    UNCLEAR,
    Difference,
    Pair,
    differences,
    own_verdict,
    verdict_on,
)
from sweeps.claims.grammar import CHANGED, GAP, GAP_OF, REGION, Claim, parse_claim
from sweeps.claims.judge import (
    FIRST_OF_ENOUGH_SEEDS,
    FIRST_OF_FAMILIES,
    FIRST_OF_FURTHER_SEED,
    RELATIVE,
    RULE,
    ClaimVerdict,
    Figures,
    judge,
    judge_along,
    overall,
    read,
    status_of,
)
from sweeps.claims.words import INCONCLUSIVE, REFERENCE_RUNS
from sweeps.ledger.hypothesis import Hypothesis
from sweeps.ledger.trial import (
    BASELINE,
    REFERENCE,
    STRATEGY,
    ArmRuns,
    Experiments,
    arm_record,
    config_of,
    levels_of,
    num_changed,
    spec_of,
    with_pooled,
    workload_hash,
)
from sweeps.strategies.moved import changed
from sweeps.tracks.criteria import CriterionVerdict, Facts, FigurePair, judge_criteria
from sweeps.tracks.problem import MAIN, Criterion, Problem, workload_named

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from sweeps.runs.experiment import Experiment

MEAN = "the mean of the seeds"
ROUNDED = "the mean of the seeds' rounded values"
NO_BASIS = "not reproduced"


def compare_published(
    claims: Sequence[Claim], strategy: Figures, baseline: Figures, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Compare each published figure with the measured mean, and name the reading that reproduces it, if any does."""
    rows = []
    for claim in claims:
        candidates = list(_candidates(claim, strategy, baseline, seeds))
        basis = next((name for name, value in candidates if claim.holds(value)), NO_BASIS)
        mean = candidates[0][1]
        rows.append({"claim": claim.text, "measured": finite(mean), "basis": basis})
    return rows


def _candidates(
    claim: Claim, strategy: Figures, baseline: Figures, seeds: Sequence[int]
) -> Iterator[tuple[str, float]]:
    """Yield possible readings of a published figure, with their values, the plainest first."""
    reading = read(claim, strategy, baseline)
    yield MEAN, reading.mean.mean
    if not claim.is_change:
        rounded = [round(value, _decimals(claim)) for value in reading.per_seed]
        yield ROUNDED, float(np.mean(rounded))
    for seed, value in zip(seeds, reading.per_seed, strict=True):
        yield f"seed {seed} alone", value
    if not claim.is_change or claim.metric in (GAP, CHANGED):
        return
    values, before = strategy[claim.metric], baseline[claim.metric]
    mean = float(np.mean(before))
    for seed, value in zip(seeds, values.tolist(), strict=True):
        yield f"seed {seed} against the baseline's mean", _percent(value, mean)
    whole = split_name(claim.metric)[0]
    if whole != claim.metric and whole in baseline:
        cluster = float(np.mean(baseline[whole]))
        yield "the mean against the baseline's of all classes", _percent(np.mean(values), cluster)


def _decimals(claim: Claim) -> int:
    """Return the number of decimals of the figure as published."""
    match = re.search(r"=\s*[+-]?\d+(?:\.(\d+))?", claim.text)
    return len(match[1] or "") if match else 6


def _percent(value: Any, base: float) -> float:
    return float(100 * (value / base - 1)) if base else float("nan")


def check_published(claims: Sequence[Claim]) -> None:
    """Refuse published claims that state no figure."""
    for claim in claims:
        if claim.shape != "region":
            raise ConfigError(f"published claim {claim.text!r} is no figure; put it into predict")


@dataclass(frozen=True)
class MeasuredArms:
    """The figures and outcomes of a hypothesis's runs, by role of the arm."""

    figures: Mapping[str, Figures]  # the strategy's have CHANGED, against the reference
    outcomes: Mapping[str, tuple[str, ...]]

    @property
    def reference(self) -> Figures:
        """Return the figures that claims compare with: the reference arm's if there is one, else the baseline's."""
        return self.figures.get(REFERENCE, self.figures[BASELINE])


def measured_from_runs(runs: Mapping[str, ArmRuns]) -> MeasuredArms:
    """Return the figures of new runs, with the number of changed requests added."""
    figures = with_pooled(runs)
    changed = num_changed(runs[STRATEGY], runs.get(REFERENCE, runs[BASELINE]))
    figures[STRATEGY] = {**figures[STRATEGY], CHANGED: changed}
    return MeasuredArms(figures, {role: arm.outcomes for role, arm in runs.items()})


def measured_from_record(record: Mapping[str, Any]) -> MeasuredArms:
    """Return the figures and outcomes in a result record."""
    figures = {
        role: {name: np.array(values, float) for name, values in arm["figures"].items()}
        for role, arm in record["runs"].items()
    }
    outcomes = {role: tuple(arm["outcomes"]) for role, arm in record["runs"].items()}
    return MeasuredArms(figures, outcomes)


def runs_content(runs: Mapping[str, ArmRuns], measured: MeasuredArms) -> dict[str, Any]:
    """Return outcomes and figures of every arm and seed, as they are recorded."""
    return {
        role: {
            "outcomes": list(arm.outcomes),
            "broken_invariants": arm.num_broken_invariants,
            "figures": {
                name: [finite(value) for value in values.tolist()]
                for name, values in measured.figures[role].items()
            },
        }
        for role, arm in runs.items()
    }


def conclusions(
    hypothesis: Hypothesis, measured: MeasuredArms, number: int = RULE
) -> dict[str, Any]:
    """Return the conclusions from the figures, without any run: comparison, verdicts, published figures.

    `number` is the judging rule's.
    """
    judged = judge_all(hypothesis, measured, number)
    verdict = overall([judgement.word for judgement in judged])
    return {
        "rule": number,
        "comparison": _comparison(measured, number, hypothesis.rule.is_anytime),
        "predictions": [_prediction(judgement) for judgement in judged],
        "published": compare_published(
            hypothesis.published_claims,
            measured.figures[STRATEGY],
            measured.figures[BASELINE],
            hypothesis.seeds,
        ),
        "verdict": verdict,
        "status": status_of(judged) if judged else verdict,
    }


def judge_all(
    hypothesis: Hypothesis, measured: MeasuredArms, number: int = RULE
) -> list[ClaimVerdict]:
    """Judge every prediction of the hypothesis from the measured arms, by the rule with this number."""
    name, values = levels_of(hypothesis.over)
    num_steps = sum(
        1 if claim.shape == REGION else max(len(values) - 1, 1) for claim in hypothesis.claims
    )
    rule = replace(hypothesis.rule, number=number, num_intervals=num_steps)
    levels = [measured.figures[f"{name}={value}"] for value in values]
    judged = []
    for claim in hypothesis.claims:
        failed = _failed(hypothesis, measured, claim.shape)
        if failed:
            judged.append(ClaimVerdict(claim, INCONCLUSIVE, failed, finer=INCONCLUSIVE))
        elif claim.shape != REGION:
            judged.append(judge_along(claim, rule, levels))
        else:
            strategy = measured.figures[STRATEGY]
            judged.append(judge(claim, rule, strategy, measured.reference))
    return judged


def _failed(hypothesis: Hypothesis, measured: MeasuredArms, shape: str) -> str | None:
    """Return a sentence on the runs that a claim needs but that did not finish; None if there are none."""
    reference = REFERENCE if REFERENCE in measured.figures else BASELINE
    needed = [STRATEGY, reference]
    if shape != REGION:
        needed = [role for role in measured.outcomes if "=" in role]
    for role in needed:
        bad = [name for name in measured.outcomes[role] if name not in WHOLE_NAMES]
        if bad:
            names = ", ".join(dict.fromkeys(bad))
            return f"{len(bad)} of {len(hypothesis.seeds)} runs of the {role} ended with {names}"
    return None


def _prediction(judged: ClaimVerdict) -> dict[str, Any]:
    reading = judged.reading
    mean = Estimate(math.nan, math.nan, math.nan, 0) if reading is None else reading.mean
    return {
        "claim": judged.claim.text if judged.claim else "",
        "interval": _interval(mean),
        "per_seed": [] if reading is None else [finite(value) for value in reading.per_seed],
        "verdict": judged.word,
        "status": judged.finer,
        "reason": judged.reason,
    }


def _comparison(
    measured: MeasuredArms, number: int, is_anytime: bool = False
) -> dict[str, dict[str, Any]]:
    """Return, by class and metric, the mean, the change and the change in % as [mean, low, high].

    The verdicts hold for all metrics and classes at once; under rules 1 and 2 each held for itself.
    """
    strategy, baseline = measured.figures[STRATEGY], measured.figures[BASELINE]
    relative = RELATIVE[number]
    inference = replace(BY_STUDENT, is_anytime=is_anytime)
    comparison: dict[str, dict[str, Any]] = {}
    pairs = {
        name: Pair(baseline[name], values, lookup(name)[0].direction)
        for name, values in strategy.items()
        if name != CHANGED
    }
    together = differences(
        list(pairs.values()), inference, is_guarded=number >= FIRST_OF_FURTHER_SEED
    )
    for (name, pair), change in zip(pairs.items(), together, strict=True):
        metric, slo_class = lookup(name)
        comparison.setdefault(slo_class or "all", {})[metric.name] = {
            "value": _interval(estimate(pair.second, is_anytime=is_anytime)),
            "change": _interval(change.absolute),
            "percent": _interval(relative(*pair.common(), is_anytime=is_anytime)),
            "verdict": _verdict(pair, change, number),
        }
    if all(name in strategy for name in GAP_OF):
        gap = read(parse_claim(f"{GAP} >= 0"), strategy, baseline, relative, is_anytime=is_anytime)
        comparison["all"][GAP] = {"value": _interval(gap.mean)}
    return comparison


def _verdict(pair: Pair, change: Difference, number: int) -> str:
    """Return the verdict on a difference from the baseline, by the rule with this number."""
    if number < FIRST_OF_FAMILIES:
        return own_verdict(pair)
    if number >= FIRST_OF_ENOUGH_SEEDS or change.verdict != UNCLEAR:
        return change.verdict
    is_clear = change.p_adjusted <= 1 - BY_STUDENT.confidence
    return verdict_on(change.absolute.mean, is_clear, pair.direction)


def _interval(value: Estimate) -> list[float | None]:
    """Return mean, low and high with nine digits; the figures from which they follow are recorded exactly."""
    ends = (value.mean, value.low, value.high)
    return [finite(float(f"{end:.9g}")) for end in ends]


# --- criteria -------------------------------------------------------------------------------------


def is_on_problem(hypothesis: Hypothesis, problem: Problem) -> bool:
    """Return whether the track's criteria apply: same workload, and the track's baseline against another arm."""
    if not hypothesis.arms or hypothesis.workload is None:
        return False
    spec = workload_named(problem.workload, problem.folder, problem.rate)
    baseline = arm_record(problem.baseline).hash
    return (
        workload_hash(spec) == hypothesis.workload.hash
        and hypothesis.arms[BASELINE].hash == baseline
        and hypothesis.arms[STRATEGY].hash != baseline
    )


def judge_on_track(
    hypothesis: Hypothesis,
    problem: Problem,
    folder: Path,
    measured: MeasuredArms,
    experiments: Experiments,
    verdict: str,
) -> tuple[CriterionVerdict[Criterion], ...]:
    """Judge the track's criteria, making the runs under other conditions that they need."""
    strategy, baseline = measured.figures[STRATEGY], measured.figures[BASELINE]
    pairs = {MAIN: FigurePair(strategy, baseline)} | _other_pairs(hypothesis, problem, experiments)
    objective = parse_claim(f"{problem.objective} <= 0%")
    changes = read(objective, strategy, baseline).per_seed
    is_known = all(math.isfinite(change) for change in changes)
    same = len({math.copysign(1, change) for change in changes}) == 1 and all(changes)
    facts = Facts(verdict, hypothesis.mechanism, len(hypothesis.seeds), same if is_known else None)
    return judge_criteria(problem, pairs, spec_of(hypothesis, folder).slo_classes, facts)


def conditions_asked(
    hypothesis: Hypothesis, problem: Problem, experiments: Experiments
) -> dict[str, tuple[Experiment, dict[str, ClusterConfig]]]:
    """Return the experiments and configurations that the track's criteria need, by condition and role."""
    stream = "reference" if hypothesis.evidence == REFERENCE_RUNS else "jax"
    configs = {role: config_of(hypothesis.arms[role].settings) for role in (STRATEGY, BASELINE)}
    experiments_of = {}
    for name, condition in problem.conditions.items():
        workload = condition.workload or problem.workload
        rate = condition.rate or (None if condition.workload else problem.rate)
        spec = workload_named(workload, problem.folder, rate)
        experiment = experiments.of(spec, hypothesis.seeds, stream, (), condition.window)
        settings = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in condition.settings.items()
        }
        experiments_of[name] = (
            experiment,
            {role: changed(config, settings) for role, config in configs.items()},
        )
    return experiments_of


def _other_pairs(
    hypothesis: Hypothesis, problem: Problem, experiments: Experiments
) -> dict[str, FigurePair]:
    pairs = {}
    for name, (experiment, configs) in conditions_asked(hypothesis, problem, experiments).items():
        arms = experiments.run(experiment, list(configs.values()))
        figures = with_pooled(dict(zip(configs, arms, strict=True)))
        pairs[name] = FigurePair(figures[STRATEGY], figures[BASELINE])
    return pairs


def judgement_content(judgements: Sequence[CriterionVerdict[Criterion]]) -> list[dict[str, Any]]:
    """Return the verdicts on criteria as mappings, as a record holds them."""
    return [
        {
            "criterion": judgement.criterion.name,
            "class": judgement.slo_class,
            "goal": judgement.criterion.goal or judgement.criterion.text,
            "verdict": judgement.verdict.word,
            "reason": judgement.verdict.reason,
            "value": None if judgement.value is None else _interval(judgement.value),
        }
        for judgement in judgements
    ]


def criteria_hash(problem: Problem) -> str:
    """Return a hash that changes when the criteria do."""
    return digest(problem.criteria_content())
