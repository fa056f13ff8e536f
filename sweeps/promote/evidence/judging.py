"""The rule by which benchmark reports confirm or refute a hypothesis.

Three arms: the baseline, the control (the new plugin with the baseline's behaviour) and the treatment. Runs with the
same name served the same requests, so differences are taken run by run.

1. Preconditions. The arms have reports of six or more common runs, no file is malformed, every figure exists in a
   unit that can be converted, the stacks differ, the requested load was really sent; failures, offered load and lengths
   of prompts and answers agree between arms. Otherwise the verdict is inconclusive, with the reason.
2. A direction (tracks A and B), by the 95 % intervals of the mean paired difference, adjusted for the number of
   hypotheses (Holm). All in the expected direction, against baseline and control: confirmed. Opposite to baseline:
   refuted. Equal to the baseline in every run: refuted, as nothing changed. Otherwise inconclusive.
3. Equivalence (track C): two one-sided tests of the change in %, each at 5 %. Both reject: confirmed. Worse than the
   tolerance by such a test: refuted. Better than the tolerance: confirmed with nuance, as nothing became worse.
   Otherwise inconclusive.
4. Where requests are shed, failures differ. If every failure is an answer 429 or 500 (the target's director answers
   an admitter's denial with 500), and reports have a row for each request, a latency counts only together with the
   share of requests served in time: the 95 % interval of that share's change must lie above −1 percentage point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import closest
from blis_jax.metrics.metric import HIGHER as HIGHER_IS_BETTER
from blis_jax.metrics.metric import LOWER as LOWER_IS_BETTER
from blis_jax.statistics.intervals import BY_STUDENT, estimate, relative_change
from blis_jax.statistics.paired import BETTER, SAME, WORSE, Difference, Pair, differences
from sweeps.claims.grammar import Claim
from sweeps.claims.judge import ClaimReading, ClaimVerdict, DecidingRule, judge_reading
from sweeps.claims.words import CONFIRMED, INCONCLUSIVE, REFUTED, WITH_NUANCE
from sweeps.promote.evidence.hypotheses import LOWER, TransferHypothesis
from sweeps.promote.evidence.reports import GOODPUT
from sweeps.promote.evidence.runs import FEWEST_RUNS, ArmRuns, Precondition, SceneRuns, agreement
from sweeps.promote.promotion import ARMS, BASELINE, CONTROL, Evidence

if TYPE_CHECKING:
    from jaxtyping import Float

    Values = Float[np.ndarray, "run"]

TEST_LEVEL = 0.05  # of each of the two one-sided tests
NO_OVERHEAD = (
    "not simulated yet: the simulator has no plugin path, so only a cluster can tell what it costs"
)
MOST_LOST = 0.01  # of the share of requests served in time, where a latency is to count


@dataclass(frozen=True)
class ArmChange:
    """Hold the difference between two arms, run by run.

    Attributes:
        reading: the change from the first arm to the second, in %.
        num_as_expected: the number of runs whose change is as the hypothesis expects.
    """

    first_mean: float
    second_mean: float
    reading: ClaimReading
    num_as_expected: int

    @property
    def words(self) -> str:
        """Return in words the number of runs whose change is as expected."""
        return (
            f"{self.num_as_expected} of {len(self.reading.per_seed)} runs in the expected direction"
        )


@dataclass(frozen=True)
class TransferFinding:
    """Hold the verdict on one hypothesis."""

    hypothesis: TransferHypothesis
    verdict: ClaimVerdict
    evidence: Evidence
    problem: str = ""  # of the precondition that failed
    changes: Mapping[str, ArmChange] = field(default_factory=dict)  # by `second - first`
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Measured:
    """Hold the measured figures for one hypothesis, by arm, in the order of the common runs."""

    hypothesis: TransferHypothesis
    values: Mapping[str, Values]
    goodput: Mapping[str, Values]  # empty where nothing is shed
    limits: str  # what in time means
    run_ids: tuple[str, ...]
    evidence: Evidence

    @property
    def references(self) -> tuple[str, ...]:
        """Return the arms that have runs and are compared with the subject."""
        return tuple(arm for arm in self.hypothesis.references if arm in self.values)

    @property
    def subject(self) -> str:
        """Return the arm that is compared with the references."""
        return self.hypothesis.subject


def judge(
    hypotheses: Sequence[TransferHypothesis],
    scenes: Mapping[str, SceneRuns],
    ttft_targets_ms: Mapping[str, float],
    absent: Mapping[str, str] | None = None,
) -> list[TransferFinding]:
    """Return the verdicts on all hypotheses of a promotion; tests of directions are adjusted together as one family.

    Args:
        hypotheses: the hypotheses to judge.
        scenes: the runs of each scene, by arm.
        ttft_targets_ms: by class, the TTFT within which a request counts as served in time, where requests are shed.
        absent: by a hypothesis's id, the reason why its scene has no reports.
    """
    measured: list[_Measured] = []
    findings: dict[str, TransferFinding] = {}
    for hypothesis in hypotheses:
        why = (absent or {}).get(hypothesis.id, "")
        read = _measured(hypothesis, scenes, ttft_targets_ms, why)
        if isinstance(read, TransferFinding):
            findings[hypothesis.id] = read
        else:
            measured.append(read)
    directed = [figures for figures in measured if not figures.hypothesis.is_equivalence]
    pairs = [_pair(figures, first) for figures in directed for first in figures.references]
    answers = iter(differences(pairs, BY_STUDENT))
    for each in directed:
        by_arm = {first: next(answers) for first in each.references}
        findings[each.hypothesis.id] = _directed(each, by_arm)
    for each in measured:
        if each.hypothesis.is_equivalence:
            findings[each.hypothesis.id] = _equivalent(each)
    return [findings[hypothesis.id] for hypothesis in hypotheses]


# --- what is read ---------------------------------------------------------------------------------


def runs_of(hypothesis: TransferHypothesis, scenes: Mapping[str, SceneRuns]) -> SceneRuns:
    """Return the runs by arm of a hypothesis's scene; where it has none, those of the simulation in its place."""
    other = scenes.get(hypothesis.simulated_scene, {})
    runs = (run for of_arm in other.values() for run in of_arm.values())
    stands_in = all(run.evidence == "simulated" for run in runs)
    return scenes.get(hypothesis.scene) or (other if stands_in else {})


def _measured(
    hypothesis: TransferHypothesis,
    scenes: Mapping[str, SceneRuns],
    targets: Mapping[str, float],
    absent: str,
) -> _Measured | TransferFinding:
    runs, wanted = runs_of(hypothesis, scenes), hypothesis.arms or ARMS
    arms = [arm for arm in ARMS if arm in runs and arm in (BASELINE, *wanted)]
    everything = [run for arm in arms for run in runs[arm].values()]
    ids = tuple(dict.fromkeys(uid for run in everything for uid in run.uids))
    is_simulated = any(run.evidence == "simulated" for run in everything)
    evidence: Evidence = "simulated" if is_simulated or not everything else "measured"

    def without(problem: str, reason: str) -> TransferFinding:
        verdict = ClaimVerdict(hypothesis.claim, INCONCLUSIVE, reason, finer=INCONCLUSIVE)
        return TransferFinding(hypothesis, verdict, evidence, problem, {}, ids)

    if is_simulated and hypothesis.subject == CONTROL:
        return without("no overhead", NO_OVERHEAD)
    for arm in dict.fromkeys((BASELINE, hypothesis.subject, *hypothesis.arms)):
        if not runs.get(arm):
            return without("missing arm", absent or _lacking_reports(hypothesis, arm, scenes))
    names = sorted(set.intersection(*(set(runs[arm]) for arm in arms)))
    values: dict[str, list[float]] = {arm: [] for arm in arms}
    metric = hypothesis.metric
    for arm in arms:
        for name in names:
            reading = runs[arm][name].figure(metric.path, metric.statistic, metric.unit, targets)
            if not reading.is_there:
                return without(reading.problem, f"{arm}, run {name}: {reading.reason}")
            values[arm].append(reading.value)
    common = {arm: {name: runs[arm][name] for name in names} for arm in arms}
    if len(names) < FEWEST_RUNS:
        count = f"{len(names)} run{'s' * (len(names) != 1)} per arm"
        return without("too few runs", f"{count}, but {FEWEST_RUNS} are needed for a verdict")
    is_goodput = metric.path.endswith(f".{GOODPUT}")
    rate = hypothesis.workload.rate * hypothesis.knobs.get("rate_factor", 1)
    broken = agreement(common, hypothesis.subject, rate, is_goodput=is_goodput)
    if isinstance(broken, Precondition):
        return without(broken.problem, broken.reason)
    arrays = {arm: np.array(of_arm) for arm, of_arm in values.items()}
    shed = {arm: _goodput(common[arm], targets) for arm in arms} if broken else {}
    limits = ", ".join(f"{name} {limit:g} ms" for name, limit in targets.items())
    return _Measured(hypothesis, arrays, shed, f"TTFT within {limits}", ids, evidence)


def _lacking_reports(
    hypothesis: TransferHypothesis, arm: str, scenes: Mapping[str, SceneRuns]
) -> str:
    """Return a sentence: which reports of a scene are missing, their right place, and a folder with a similar name."""
    scene = hypothesis.scene
    if scene not in scenes:
        return (
            f"there are no reports of scene {scene}{closest(scene, list(scenes))}; run its profile on every arm, and "
            f"put the reports below {scene}/ARM/RUN/"
        )
    others = [name for name in scenes[scene] if name not in ARMS]
    return (
        f"scene {scene} has no reports of arm {arm}{closest(arm, others)}; run its profile on this arm, and put the "
        f"reports below {scene}/{arm}/RUN/"
    )


def _goodput(runs: ArmRuns, targets: Mapping[str, float]) -> Values:
    readings = [
        run.figure(f"summary.{GOODPUT}", "mean", "fraction", targets) for run in runs.values()
    ]
    return np.array([reading.value for reading in readings])


def _pair(measured: _Measured, first: str) -> Pair:
    """Return the subject's values paired with those of the arm `first`; the expected direction counts as better."""
    is_lower = measured.hypothesis.direction == LOWER
    return Pair(
        measured.values[first],
        measured.values[measured.subject],
        LOWER_IS_BETTER if is_lower else HIGHER_IS_BETTER,
    )


def _change(measured: _Measured, first: str, second: str, confidence: float) -> ArmChange:
    before, after = measured.values[first], measured.values[second]
    change = np.divide(after - before, np.abs(before), out=np.zeros_like(after), where=before != 0)
    per_run = tuple((100 * change).tolist())
    reading = ClaimReading(per_run, relative_change(before, after, confidence))
    num_as_expected = sum(map(measured.hypothesis.claim.holds, per_run))
    return ArmChange(float(before.mean()), float(after.mean()), reading, num_as_expected)


def _changes(measured: _Measured, confidence: float) -> dict[str, ArmChange]:
    pairs = [(first, measured.subject) for first in measured.references]
    if CONTROL in measured.references:
        pairs.append((BASELINE, CONTROL))
    return {
        f"{second} - {first}": _change(measured, first, second, confidence)
        for first, second in pairs
    }


def _found(
    measured: _Measured, changes: Mapping[str, ArmChange], rule: DecidingRule
) -> TransferFinding:
    main = changes[f"{measured.subject} - {BASELINE}"]
    verdict = judge_reading(measured.hypothesis.claim, rule, main.reading)
    return TransferFinding(
        measured.hypothesis, verdict, measured.evidence, "", changes, measured.run_ids
    )


# --- a direction ----------------------------------------------------------------------------------


def _directed(measured: _Measured, by_arm: Mapping[str, Difference]) -> TransferFinding:
    changes = _changes(measured, BY_STUDENT.confidence)
    words = {arm: difference.verdict for arm, difference in by_arm.items()}
    main = changes[f"{measured.subject} - {BASELINE}"]
    return _found(measured, changes, ByDirection(measured, words, main.words))


@dataclass(frozen=True)
class ByDirection:
    """Confirm a direction by the verdicts on the differences from every reference arm."""

    measured: _Measured
    words: Mapping[str, str]  # the verdicts, by arm
    many: str  # in how many runs the change is as expected

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return confirmed, refuted or inconclusive, the finer word, and the reason."""
        word, finer, reason = self._by_differences(claim, reading)
        goodput = self.measured.goodput
        if word != CONFIRMED or not goodput:
            return word, finer, reason
        before, after = goodput[BASELINE], goodput[self.measured.subject]
        served = f"requests served in time {before.mean():.1%} → {after.mean():.1%} ({self.measured.limits})"
        if not estimate(after - before).low > -MOST_LOST:
            lost = f"{reason}; but {served}: who is shed does not show in a latency"
            return INCONCLUSIVE, INCONCLUSIVE, lost
        return word, finer, f"{reason}; {served}"

    def _by_differences(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        direction, against = self.measured.hypothesis.direction, " and ".join(self.words)
        if set(self.words.values()) == {BETTER}:
            finer = CONFIRMED if all(map(claim.holds, reading.per_seed)) else WITH_NUANCE
            return CONFIRMED, finer, f"{direction} than {against}, {self.many}"
        word = self.words[BASELINE]
        if word == SAME:
            return REFUTED, REFUTED, "equal to the baseline in every run, so nothing changed"
        if word == WORSE:
            reason = f"the other way than expected against the baseline, {self.many}"
            return REFUTED, REFUTED, reason
        if word == BETTER:
            reason = f"{direction} than the baseline, but not than the control: the plugin path changed it"
            return INCONCLUSIVE, INCONCLUSIVE, f"{reason}; {self.many}"
        reason = f"the interval of the difference, adjusted for the number of hypotheses, holds 0; {self.many}"
        return INCONCLUSIVE, INCONCLUSIVE, reason


# --- equivalence ----------------------------------------------------------------------------------


def _equivalent(measured: _Measured) -> TransferFinding:
    """Judge by two one-sided tests, using the interval at twice the level of the tests."""
    changes = _changes(measured, 1 - 2 * TEST_LEVEL)
    return _found(measured, changes, ByTwoTests(measured.hypothesis.metric.better == LOWER))


@dataclass(frozen=True)
class ByTwoTests:
    """Confirm that nothing changed if the interval of the change lies within the tolerance."""

    is_lower_better: bool

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return confirmed, refuted or inconclusive, the finer word, and the reason."""
        percent, limit = reading.mean, claim.high
        ends = (
            (percent.high, percent.low) if self.is_lower_better else (-percent.low, -percent.high)
        )
        worst, best = ends
        far = f"change {percent.mean:+.2f} % [{percent.low:+.2f}, {percent.high:+.2f}] (90 %)"
        if not np.isfinite([percent.low, percent.high]).all():
            return INCONCLUSIVE, INCONCLUSIVE, f"{far}: no interval"
        if worst < limit and best > -limit:
            return CONFIRMED, CONFIRMED, f"{far}, within ±{limit:g} %"
        if best > limit:
            return REFUTED, REFUTED, f"{far}, worse by more than {limit:g} %"
        if worst < -limit:
            reason = f"{far}, better by more than {limit:g} %: not equal, but nothing became worse"
            return CONFIRMED, WITH_NUANCE, reason
        if worst < limit:
            reason = f"{far}: not worse by {limit:g} %, perhaps better by more than that"
            return CONFIRMED, WITH_NUANCE, reason
        return INCONCLUSIVE, INCONCLUSIVE, f"{far}: across the edge of ±{limit:g} %"
