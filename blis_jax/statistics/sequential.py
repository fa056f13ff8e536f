"""How many seeds are enough: rules that look at the seeds so far and say whether to go on.

Whoever looks after every batch and stops at the first difference will find one, though there is none. `Decide`
therefore judges by tests that hold however often one looks (an anytime-valid t-test): the p-value is 1 ÷ E with

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from blis_jax.statistics.intervals import CONFIDENCE, Inference
from blis_jax.statistics.paired import SAME, UNCLEAR, Difference, Pair, differences

FEWEST_SEEDS = 20  # of the first stage
MOST_SEEDS = 640
GROWTH = 1.5  # from one look to the next
DECIDED, PRECISE, SPENT, GOES_ON = "decided", "precise", "budget spent", ""


class Seen(NamedTuple):
    """What a rule must know of one figure that it looks at."""

    half_width: float  # of the interval that holds for all that is looked at, as a share of the reference's mean
    is_decided: bool
    is_same: bool = False  # on every seed


@dataclass(frozen=True)
class StoppingRule:
    """When to stop; with both, as soon as every difference is decided or known precisely."""

    decides: bool = False  # verdicts must be safe
    precision: float | None = (
        None  # half-width of the intervals, as a share of the reference's mean
    )
    most_seeds: int = MOST_SEEDS

    def inference(self, confidence: float = CONFIDENCE) -> Inference:
        """How the differences that it looks at are judged, then and in the end."""
        return Inference(confidence, num_resamples=0, is_anytime=self.decides)

    def next_count(self, count: int, looked_at: Sequence[Seen]) -> int:
        """How many seeds the next look has; by the spread so far where a precision is wanted."""
        wanted = math.ceil(GROWTH * count)
        if self.precision is not None and not self.decides:
            most = max((one.half_width for one in looked_at), default=0.0)
            needed = count * (most / self.precision) ** 2 if math.isfinite(most) else math.inf
            wanted = math.ceil(min(max(needed, count * 1.1), 2 * count))
        return min(wanted, self.most_seeds)

    def end(self, count: int, looked_at: Sequence[Seen]) -> str:
        """Why to stop after so many seeds; nothing to go on."""
        precise = [self._is_precise(one) for one in looked_at]
        decided = [self.decides and one.is_decided for one in looked_at]
        if all(map(any, zip(precise, decided, strict=True))):
            return DECIDED if self.decides and all(decided) else PRECISE
        return SPENT if count >= self.most_seeds else GOES_ON

    def _is_precise(self, one: Seen) -> bool:
        return self.precision is not None and (one.is_same or one.half_width <= self.precision)


def _seen(one: Difference) -> Seen:
    return Seen(_half_width(one), one.verdict != UNCLEAR, one.verdict == SAME)


def _half_width(one: Difference) -> float:
    interval = one.in_family
    if not one.first_mean or not math.isfinite(interval.high - interval.low):
        return math.inf
    return (interval.high - interval.low) / 2 / abs(one.first_mean)


@dataclass(frozen=True)
class Look:
    """What was seen after so many seeds."""

    num_seeds: int
    differences: tuple[Difference, ...]
    end: str

    @property
    def seen(self) -> tuple[Seen, ...]:
        """The differences as the rule sees them."""
        return tuple(map(_seen, self.differences))


def look(pairs: Sequence[Pair], rule: StoppingRule, confidence: float = CONFIDENCE) -> Look:
    """The differences that the rule asks for, judged together, and whether they are enough."""
    found = differences(pairs, rule.inference(confidence))
    count = max((len(pair.first) for pair in pairs), default=0)
    return Look(count, tuple(found), rule.end(count, list(map(_seen, found))))


def rule_words(rule: StoppingRule, confidence: float = CONFIDENCE) -> str:
    """The rule in one sentence."""
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
