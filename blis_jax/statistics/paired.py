"""Paired differences over seeds: an interval for each, and one verdict for all of a family at once.

Both strategies serve the same requests, so a difference is taken seed by seed, and the effect of the workload on both
cancels. Many differences, a family, are judged together: p-values (paired t) are adjusted by Holm's method over the
whole family, and the verdicts follow from them. The simultaneous intervals are Bonferroni's, cut at 0 where Holm's
finer steps exclude 0, so that they agree with the verdicts: an interval contains 0 exactly if there is no clear
difference. Single intervals hold for one difference alone. If nothing is random, every seed makes the same run: a
difference is then exact, whatever the number of seeds.

Skewed differences need more, the more of them are compared: a sample may lack the rare seeds of a tail, and the far
tail of Student's t does not allow for that. So a p-value below 5 % takes a further seed against the difference into
account (`skewed`), and the interval of a difference that it leaves open contains 0.

Few seeds give no verdict. If two strategies are alike but differ by much on every seed, now one way and now the other,
n seeds all favour one of them with a chance of 2^(1 - n). Nothing in such seeds tells that from a difference, and the
t-test calls it one: on 3, 4 and 5 seeds it errs in 19, 14 and 8 % of answers about such arms. So a verdict takes as
many seeds as make that chance smaller than the error allowed: 6 at 95 % (`fewest_for_verdict`).

A pooled percentile may depend on a few seeds, for which Student's t is overconfident. So its p-value is the larger of
two. One is that of the numbers of requests above a value common to both arms (`pooled.excess_counts`), with
`EXCESS_AGAINST` of a further seed against the difference. The other is that of the paired t-test with further seeds
against it, each as far from no difference as the farthest one (`number_against`), since few seeds may lack those that
make a tail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.lazy import stats
from blis_jax.metrics.metric import LOWER
from blis_jax.statistics.intervals import (
    BY_STUDENT,
    Estimate,
    Inference,
    estimate,
    interval_of,
    is_constant,
    percent_interval,
    read_number,
    relative_change,
    score_p_value,
    seed_mean,
)
from blis_jax.statistics.pooled import excess_against, excess_score
from blis_jax.statistics.skewed import guarded_p_value

if TYPE_CHECKING:
    from jaxtyping import Float

BETTER, WORSE, UNCLEAR, SAME = "better", "worse", "unclear", "same"
NEITHER = ""  # a direction in which nothing is better
OF_POOLED = (
    "of pooled percentiles the larger p-value of this test, with further seeds against the difference, and of one of "
    "the numbers of requests above a common value"
)
SEEDS_FOR_POOLED = 100  # from which 95 % intervals of a pooled percentile hold by themselves
# of the tests of a pooled percentile; chosen on other seeds than those of the tables that say what they hold
AGAINST, UNTIL, ON_FEW, EXCESS_AGAINST = 2.0, 50, 20, 0.25
ROUNDING = 1e-12


@dataclass(frozen=True)
class Pair:
    """One metric of two strategies by seed; NaN where a seed has none.

    Attributes:
        direction: which values are better, such as LOWER.
        excess: for a pooled percentile, `pooled.excess_counts` over the seeds on which both runs ended; None for other
            metrics.
        is_exact: whether every seed makes the same run of each strategy, so that the difference has no error.
        must_outlive: a verdict takes that the difference alone is clear even with so many further values against it,
            each as large as the largest; of blocks of a trace, which may lack the rare ones that decide.
    """

    first: Float[np.ndarray, "seed"]
    second: Float[np.ndarray, "seed"]
    direction: str = LOWER
    excess: Float[np.ndarray, "value arm pair"] | None = None
    is_exact: bool = False
    must_outlive: float = 0.0

    def common(self) -> tuple[Float[np.ndarray, "pair"], Float[np.ndarray, "pair"]]:
        """Return the values of both strategies on the seeds that both have."""
        both = np.isfinite(self.first) & np.isfinite(self.second)
        return self.first[both], self.second[both]

    def change(self) -> Float[np.ndarray, "pair"]:
        """Return second minus first on the common seeds; 0 for differences of the size of rounding errors."""
        first, second = self.common()
        size = np.maximum(np.abs(first), np.abs(second))
        return np.where(np.abs(second - first) <= ROUNDING * size, 0.0, second - first)

    def p_value(self, is_anytime: bool = False, is_guarded: bool = True) -> float:
        """Return the two-sided p-value of the difference: the chance that equal strategies differ as much."""
        change = self.change()
        if self.is_exact:
            return 0.0 if change.any() else 1.0
        if self.excess is None:
            return p_value(change, is_anytime, is_guarded)
        p = p_value(change, is_anytime)
        if p == 1.0:
            return p
        against = with_some_against(change, number_against(len(change)))
        excess = excess_against(self.excess, bool(change.sum() > 0), EXCESS_AGAINST)
        return max(p, p_value(against, is_anytime), p_of_counts(excess, is_anytime))

    def least_p_adjusted(self, is_anytime: bool = False) -> float:
        """Return the p-value with what the difference must outlive, below which that of a family does not fall."""
        if self.is_exact or not self.must_outlive:
            return 0.0
        return p_value(with_some_against(self.change(), self.must_outlive), is_anytime)


@dataclass(frozen=True)
class Difference:
    """A difference, second minus first. `absolute` and `percent` hold for it alone, the rest for its family."""

    num_pairs: int
    first_mean: float
    second_mean: float
    absolute: Estimate
    percent: Estimate  # of the first's mean
    in_family: Estimate  # as wide as the family makes it
    simultaneous: Estimate  # the same, cut at 0 where Holm's method says so
    simultaneous_percent: Estimate
    p_value: float  # two-sided
    p_adjusted: float
    verdict: str  # BETTER, WORSE, UNCLEAR, or SAME: equal on every seed
    is_exact: bool = False  # every seed makes the same run

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain data, the first strategy as the reference."""
        return {
            "num_pairs": self.num_pairs,
            "reference_mean": self.first_mean,
            "mean": self.second_mean,
            "difference": self.absolute.to_json(),
            "percent": self.percent.to_json(),
            "simultaneous": self.simultaneous.to_json(),
            "simultaneous_percent": self.simultaneous_percent.to_json(),
            "p_value": self.p_value,
            "p_adjusted": self.p_adjusted,
            "verdict": self.verdict,
        }

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> Difference:
        """Return the difference that `to_json` wrote; null becomes NaN.

        `in_family` is set to the simultaneous interval, since an entry has no other.
        """

        def interval(name: str) -> Estimate:
            return Estimate.of_json(entry[name], entry["num_pairs"])

        return cls(
            num_pairs=entry["num_pairs"],
            first_mean=read_number(entry["reference_mean"]),
            second_mean=read_number(entry["mean"]),
            absolute=interval("difference"),
            percent=interval("percent"),
            in_family=interval("simultaneous"),
            simultaneous=interval("simultaneous"),
            simultaneous_percent=interval("simultaneous_percent"),
            p_value=read_number(entry["p_value"]),
            p_adjusted=read_number(entry["p_adjusted"]),
            verdict=entry["verdict"],
        )


def joint_words(inference: Inference) -> str:
    """Return a sentence on how simultaneous intervals are made, which hold for a family and agree with its verdicts."""
    test = "the anytime-valid t-test's" if inference.is_anytime else "Student's t"
    ends = "cut at 0 by Holm's verdict, or widened to it"
    return f"{100 * inference.confidence:g} %; {test} at Bonferroni's level, {ends}"


def difference(
    first: Float[np.ndarray, "seed"], second: Float[np.ndarray, "seed"], direction: str = LOWER
) -> Difference:
    """Return a single difference, a family of its own, with Student's intervals."""
    return differences([Pair(first, second, direction)], BY_STUDENT)[0]


def differences(
    pairs: Sequence[Pair], inference: Inference | None = None, *, is_guarded: bool = True
) -> list[Difference]:
    """Return the differences of a family, judged together.

    `is_guarded`: small p-values allow for a further seed, see `skewed`; not so in the ledger's older records.
    """
    inference = inference or Inference()
    changes = [pair.change() for pair in pairs]
    p_values = np.array([pair.p_value(inference.is_anytime, is_guarded) for pair in pairs])
    least = [pair.least_p_adjusted(inference.is_anytime) for pair in pairs]
    adjusted = np.maximum(holm(p_values), least)
    return [
        _difference(pair, change, inference, float(p), float(p_adjusted), len(pairs))
        for pair, change, p, p_adjusted in zip(pairs, changes, p_values, adjusted, strict=True)
    ]


def _difference(
    pair: Pair,
    change: Float[np.ndarray, "pair"],
    inference: Inference,
    p: float,
    p_adjusted: float,
    size: int,
) -> Difference:
    first, second = pair.common()
    means = [float(values.mean()) if len(values) else math.nan for values in (first, second)]
    absolute = interval_of(seed_mean, [change], inference)
    level = 1 - (1 - inference.confidence) / size
    in_family = estimate(change, level, inference.is_anytime)
    is_clear = p_adjusted <= 1 - inference.confidence and (
        pair.is_exact or len(change) >= fewest_for_verdict(inference.confidence)
    )
    if not len(change):
        verdict = UNCLEAR
    elif not change.any():
        verdict = SAME
    else:
        verdict = verdict_on(absolute.mean, is_clear, pair.direction)
    return Difference(
        num_pairs=len(change),
        first_mean=means[0],
        second_mean=means[1],
        absolute=absolute,
        percent=percent_interval(first, second, inference),
        in_family=in_family,
        simultaneous=agreeing(in_family, is_clear),
        simultaneous_percent=agreeing(
            relative_change(first, second, level, inference.is_anytime), is_clear
        ),
        p_value=p,
        p_adjusted=p_adjusted,
        verdict=verdict,
        is_exact=pair.is_exact,
    )


def own_verdict(pair: Pair) -> str:
    """Judge a difference by its own t interval, without correction for other differences."""
    first, second = pair.common()
    change = second - first
    if len(change) and not change.any():
        return SAME
    change_of_mean = estimate(change)
    return verdict_on(
        change_of_mean.mean, change_of_mean.low > 0 or change_of_mean.high < 0, pair.direction
    )


def verdict_on(change: float, is_clear: bool, direction: str) -> str:
    """Return BETTER or WORSE for a clear change, else UNCLEAR."""
    if not is_clear or direction == NEITHER:
        return UNCLEAR
    return BETTER if (change < 0) == (direction == LOWER) else WORSE


def fewest_for_verdict(confidence: float) -> int:
    """Return the fewest seeds of which all favour one of two equal arms with a chance of at most 1 - confidence."""
    return math.ceil(1 - math.log2(1 - confidence) - ROUNDING)


def can_tell_pooled(num_pairs: int, family: int, confidence: float) -> bool:
    """Return whether a verdict on a pooled percentile is possible, at best: with the same difference on every seed."""
    change = np.ones(num_pairs)
    against = with_some_against(change, number_against(num_pairs)) if num_pairs else change
    return p_value(against) * family <= 1 - confidence


def p_value(
    change: Float[np.ndarray, "pair"], is_anytime: bool = False, is_guarded: bool = False
) -> float:
    """Return the p-value of the paired t-test, or of the sign test for equal differences; 1 for fewer than two.

    `is_guarded`: a small p-value takes a further seed against the difference into account.
    """
    count = len(change)
    if count < 2 or not change.any():
        return 1.0
    if is_constant(change):
        return sign_test(change)
    if is_guarded:
        return guarded_p_value(change, is_anytime)
    score = change.mean() / (change.std(ddof=1) / math.sqrt(count))
    return score_p_value(float(score), count, is_anytime)


def number_against(count: int) -> float:
    """Return how many further, adverse seeds a verdict on `count` seeds must survive.

    `AGAINST` for `ON_FEW` to `UNTIL` seeds; for fewer and for more in inverse proportion to `count`, at least 1.
    """
    return max(AGAINST * ON_FEW / count, min(AGAINST, AGAINST * UNTIL / count), 1.0)


def p_of_counts(excess: Float[np.ndarray, "value arm pair"], is_anytime: bool = False) -> float:
    """Return the p-value of the hypothesis that both arms have one percentile, by the numbers of requests above it."""
    return score_p_value(excess_score(excess), excess.shape[-1] - 1, is_anytime)


def with_some_against(
    change: Float[np.ndarray, "pair"], number: float
) -> Float[np.ndarray, "more"]:
    """Append `number` seeds opposite to the mean, as large as the largest change; return zeros if the mean flips.

    If `number` has a fraction, the last seed has that fraction of the size.
    """
    total = change.sum()
    sizes = [1.0] * int(number) + [number % 1] * (number % 1 > 0)
    against = -np.sign(total) * np.abs(change).max(initial=0.0) * np.array(sizes)
    more = np.append(change, against)
    return more if more.sum() * total > 0 else np.zeros(len(more))


def sign_test(change: Float[np.ndarray, "pair"]) -> float:
    """Return the two-sided p-value of the sign test on the differences."""
    signs = np.sign(change[change != 0])
    if not len(signs):
        return 1.0
    return float(stats.binomtest(int((signs > 0).sum()), len(signs)).pvalue)


def holm(p_values: Float[np.ndarray, "comparison"]) -> Float[np.ndarray, "comparison"]:
    """Adjust p-values by Holm's steps: p of rank k of m counts m − k + 1 times, and never less than before.

    S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979).
    """
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    steps = (count - np.arange(count)) * p_values[order]
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def agreeing(interval: Estimate, is_clear: bool) -> Estimate:
    """Make an interval agree with a verdict: cut it at 0 if the difference is clear, else widen it to contain 0."""
    low, high = interval.low, interval.high
    if not math.isfinite(low):
        return interval
    if not is_clear:
        return replace(interval, low=min(low, 0.0), high=max(high, 0.0))
    if low <= 0 <= high:
        beyond = math.nextafter(0.0, interval.mean)
        low, high = (beyond, high) if interval.mean > 0 else (low, beyond)
    return replace(interval, low=low, high=high)
