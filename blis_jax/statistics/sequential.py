"""How many seeds are enough to distinguish two systems, or to choose the best of several.

A study that looks after every batch of seeds and stops at the first difference will find one even if there is none. The
option --decide therefore judges by tests that hold however often one looks (an anytime-valid t-test): the p-value is 1
÷ E with

    E = √r · ((1 + t²/ν) ÷ (1 + r t²/ν))^((ν + 1) / 2),    r = 1 ÷ (1 + n τ²),  ν = n - 1,

of the paired t statistic t of n seeds. E is the likelihood of t if the effect in standard deviations is drawn from
N(0, τ²), over that of no effect; without a difference it is a martingale of mean 1, so that it ever exceeds 1 ÷ α
with a probability of α at most (Ville). Exact for normal differences. See J. N. Rouder et al., Bayesian t tests for
accepting and rejecting the null hypothesis, Psychon. Bull. Rev. 16 (2009) for E, and M. F. Pérez-Ortiz et al.,
E-statistics, group invariance and anytime-valid testing, Ann. Statist. 52 (2024) for why one may stop at any time.

`Precision` stops as soon as Student's interval is narrow enough (Y. S. Chow and H. Robbins, On the asymptotic theory
of fixed-width sequential confidence intervals, Ann. Math. Statist. 36, 1965), not before a first stage. The rule looks
at the spread alone, not at the difference, so the usual interval is kept;
`benchmarks.coverage.verdicts.sequential` has the measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import CONFIDENCE, Inference
from blis_jax.statistics.paired import SAME, UNCLEAR, Difference, Pair, differences

if TYPE_CHECKING:
    from jaxtyping import Float

Found = TypeVar("Found")
Key = TypeVar("Key", bound=Hashable)
MOST_SEEDS = 640
GROWTH = 1.5  # from one look to the next
DECIDED, PRECISE, SPENT, GOES_ON = "decided", "precise", "budget spent", ""


class Seen(NamedTuple):
    """The properties of a difference that a stopping rule uses."""

    half_width: float  # of the interval that holds for all that is looked at, as a share of the reference's mean
    is_decided: bool
    is_same: bool = False  # on every seed


@dataclass(frozen=True)
class StoppingRule:
    """The conditions for stopping; with both, seeds are added until every difference is decided or precise."""

    decides: bool = False  # verdicts must be safe
    # half-width of the intervals, as a share of the reference's mean
    precision: float | None = None
    most_seeds: int = MOST_SEEDS

    def inference(self, confidence: float = CONFIDENCE) -> Inference:
        """Return the inference for the differences, the same at every look and in the final result."""
        return Inference(confidence, num_resamples=0, is_anytime=self.decides)

    def next_count(self, count: int, looked_at: Sequence[Seen]) -> int:
        """Return the number of seeds of the next look; for a precision it is estimated from the spread so far."""
        wanted = math.ceil(GROWTH * count)
        if self.precision is not None and not self.decides:
            most = max((seen.half_width for seen in looked_at), default=0.0)
            needed = count * (most / self.precision) ** 2 if math.isfinite(most) else math.inf
            wanted = math.ceil(min(max(needed, count * 1.1), 2 * count))
        return min(wanted, self.most_seeds)

    def end(self, count: int, looked_at: Sequence[Seen]) -> str:
        """Return the reason to stop after `count` seeds; an empty text to go on."""
        precise = [self._is_precise(seen) for seen in looked_at]
        decided = [self.decides and seen.is_decided for seen in looked_at]
        if all(map(any, zip(precise, decided, strict=True))):
            return DECIDED if self.decides and all(decided) else PRECISE
        return SPENT if count >= self.most_seeds else GOES_ON

    def _is_precise(self, seen: Seen) -> bool:
        return self.precision is not None and bool(
            seen.is_same or seen.half_width <= self.precision
        )


def _seen(difference: Difference) -> Seen:
    return Seen(_half_width(difference), difference.verdict != UNCLEAR, difference.verdict == SAME)


def _half_width(difference: Difference) -> float:
    interval = difference.in_family
    if not difference.first_mean or not math.isfinite(interval.high - interval.low):
        return math.inf
    return (interval.high - interval.low) / 2 / abs(difference.first_mean)


@dataclass(frozen=True)
class Look(Generic[Found]):
    """The results of a look after `num_seeds` seeds.

    Attributes:
        found: the results, such as differences.
        seen: the properties of the results that a stopping rule uses.
        end: the reason why this is the last look; GOES_ON if another follows.
    """

    num_seeds: int
    found: Found
    seen: tuple[Seen, ...] = ()
    end: str = GOES_ON


def look(
    pairs: Sequence[Pair], rule: StoppingRule, confidence: float = CONFIDENCE
) -> Look[tuple[Difference, ...]]:
    """Return the differences of the pairs, judged together by the rule, and whether the rule stops there."""
    intervals = tuple(differences(pairs, rule.inference(confidence)))
    count = max((len(pair.first) for pair in pairs), default=0)
    seen = tuple(map(_seen, intervals))
    return Look(count, intervals, seen, rule.end(count, seen))


class Schedule(Protocol):
    """A schedule of looks: after how many seeds each is made."""

    def next_count(self, count: int, looked_at: Sequence[Seen]) -> int:
        """Return the number of seeds of the look that follows the look on `count` seeds."""


@dataclass(frozen=True)
class FixedCounts:
    """A schedule of looks after fixed numbers of seeds, whatever the results."""

    counts: tuple[int, ...]

    def next_count(self, count: int, looked_at: Sequence[Seen]) -> int:
        """Return the number that follows `count` in `counts`."""
        return self.counts[self.counts.index(count) + 1]


def look_until_all_end(
    schedule: Schedule,
    first: Mapping[Key, int],
    look_at: Callable[[Mapping[Key, int]], Mapping[Key, Look[Found]]],
) -> dict[Key, list[Look[Found]]]:
    """Answer several questions with more and more seeds, each until one of its looks is the last; return all looks.

    `first` is the number of seeds of each question's first look; `look_at` is called with the numbers of seeds of the
    questions still open.
    """
    looks: dict[Key, list[Look[Found]]] = {key: [] for key in first}
    counts = dict(first)
    while counts:
        now = look_at(counts)
        for key, look in now.items():
            looks[key].append(look)
        counts = {
            key: schedule.next_count(look.num_seeds, look.seen)
            for key, look in now.items()
            if not look.end
        }
    return looks


def look_until_end(
    schedule: Schedule, first: int, look_at: Callable[[int], Look[Found]]
) -> list[Look[Found]]:
    """Answer one question with more and more seeds until a look is the last; return all looks."""
    looks = look_until_all_end(schedule, {"": first}, lambda counts: {"": look_at(counts[""])})
    return looks[""]


def rule_words(rule: StoppingRule, confidence: float = CONFIDENCE) -> str:
    """Return the rule in one sentence."""
    percent = None if rule.precision is None else f"±{100 * rule.precision:g} %"
    level = f"{100 * confidence:g} %"
    if rule.decides:
        text = (
            f"seeds were added until every verdict was safe{f' or known to {percent}' if percent else ''}; "
            f"tests and intervals hold at {level} however often one looks (anytime-valid t-test)"
        )
    else:
        text = (
            f"seeds were added until intervals of {level} were within {percent} of the reference's mean "
            "(Chow and Robbins)"
        )
    return f"{text}; at most {rule.most_seeds} seeds"


# --- the best of several: Kim's and Nelson's procedure --------------------------------------------

# All systems are observed on the same seeds, a few at a time. After r seeds a system is out if the sum of what it is
# worse by than another one exceeds
#
#     W(r) = max(0, (h² S² ÷ δ - δ r) ÷ 2),   h² = (n - 1) ((2 α ÷ (k - 1))^(-2 ÷ (n - 1)) - 1),
#
# with S² the variance of their differences over the first n seeds, k systems, and δ the indifference zone. With a
# probability of at least 1 - α the one that is left is the best, if that one is better than all others by δ or more;
# else it is within δ of the best with the same probability, as far as is known. Exact for normal differences, whatever
# the seeds have in common. S.-H. Kim and B. L. Nelson, A fully sequential procedure for indifference-zone selection in
# simulation, ACM TOMACS 11 (2001).
#
# Constraints are judged the same way, each system by itself, with half of α (S. Andradóttir and S.-H. Kim, Fully
# sequential procedures for comparing constrained systems via simulation, Naval Res. Logist. 57, 2010): a system whose
# mean keeps a constraint by its tolerance or more is taken, one that misses it by as much is not, and between them
# either will do. The probabilities of error of all constraints and systems add up to that half.

KEPT, MISSED, OPEN = "kept", "missed", "open"


@dataclass(frozen=True)
class Slack:
    """The margin by which a constraint is kept on each seed, negative if it is missed.

    A mean margin beyond `tolerance` must be judged correctly.
    """

    values: Float[np.ndarray, "seed"]
    tolerance: float


def spread_factor(num_first: int, error: float) -> float:
    """Return h², with which the boundary of one comparison, checked after every seed, errs with chance `error`."""
    return (num_first - 1) * ((2 * error) ** (-2 / (num_first - 1)) - 1)


def boundary(variance: float, zone: float, factor: float, count: int) -> float:
    """Return W: how far from 0 a sum of differences must be after `count` seeds to rule a system out."""
    return max(0.0, (factor * variance / zone - zone * count) / 2)


@dataclass(frozen=True)
class WhatIsLeft:
    """The systems still in the choice, and those ruled out, after a number of seeds."""

    feasible: tuple[str, ...]  # KEPT, MISSED or OPEN, by system
    left: tuple[int, ...]  # systems that may be the best; one if the procedure has come to its end
    out_by: tuple[int | None, ...]  # which system showed that one is not the best

    @property
    def is_over(self) -> bool:
        """Return whether the choice is made: the best system is known, or no system is left."""
        return OPEN not in self.feasible and len(self.left) <= 1


class Finalists:
    """The procedure; at every look, call `look` with the values of all seeds so far."""

    def __init__(self, num_systems: int, num_first: int, zone: float, error: float) -> None:
        """Set up the choice; `zone` is δ in the unit of the values, of which smaller is better; `error` is α."""
        if num_systems < 2 or num_first < 3 or zone <= 0 or not 0 < error < 0.5:
            raise ConfigError(
                f"a selection needs two systems or more, three seeds or more, a zone above 0 and an error below "
                f"0.5; got {num_systems}, {num_first}, {zone:g}, {error:g}"
            )
        self.num_systems, self.num_first, self.zone, self.error = (
            num_systems, num_first, zone, error,
        )  # fmt: skip
        self.feasible = [OPEN] * num_systems
        self.out_by: list[int | None] = [None] * num_systems

    def look(
        self, values: Sequence[Float[np.ndarray, "seed"]], slacks: Sequence[Sequence[Slack]]
    ) -> WhatIsLeft:
        """Return which systems are left after the seeds so far; systems that are out may have fewer values.

        `slacks` has the constraints of each system, equally many for all.
        """
        num_constraints = len(slacks[0]) if slacks else 0
        error = self.error / 2 if num_constraints else self.error
        self._judge_constraints(slacks, error, num_constraints)
        feasible = [at for at, verdict in enumerate(self.feasible) if verdict == KEPT]
        for system in feasible:
            for other in feasible:
                if self.out_by[system] is None and self.out_by[other] is None and system != other:
                    self._compare(values, system, other, error)
        left = tuple(
            at
            for at in range(self.num_systems)
            if self.feasible[at] != MISSED and self.out_by[at] is None
        )
        return WhatIsLeft(tuple(self.feasible), left, tuple(self.out_by))

    def _compare(
        self, values: Sequence[Float[np.ndarray, "seed"]], system: int, other: int, error: float
    ) -> None:
        worse = values[system] - values[other]
        factor = spread_factor(self.num_first, error / (self.num_systems - 1))
        variance = float(worse[: self.num_first].var(ddof=1))
        if float(worse.sum()) > boundary(variance, self.zone, factor, len(worse)):
            self.out_by[system] = other

    def _judge_constraints(
        self, slacks: Sequence[Sequence[Slack]], error: float, count: int
    ) -> None:
        if not count:
            self.feasible = [KEPT if verdict == OPEN else verdict for verdict in self.feasible]
            return
        factor = spread_factor(self.num_first, error / (self.num_systems * count))
        for at, of_system in enumerate(slacks):
            if self.feasible[at] == OPEN and self.out_by[at] is None:
                verdicts = [self._verdict(slack, factor) for slack in of_system]
                if MISSED in verdicts:
                    self.feasible[at] = MISSED
                elif OPEN not in verdicts:
                    self.feasible[at] = KEPT

    def _verdict(self, slack: Slack, factor: float) -> str:
        variance = float(slack.values[: self.num_first].var(ddof=1))
        limit = boundary(variance, slack.tolerance, factor, len(slack.values))
        total = float(slack.values.sum())
        if abs(total) < limit:
            return OPEN
        return KEPT if total >= 0 else MISSED
