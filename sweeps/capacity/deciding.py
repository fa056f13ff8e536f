"""Service targets, and whether a cluster meets them: looks at more and more seeds until that is clear.

A run `i` has `n_i` requests of a target's class, of which `g_i` are in time (keep the target's limit); the share in
time is `E[g] / E[n]`, and it is at least `q` where the mean of `g_i - q n_i` is not negative. Each look takes a bound
of that mean that allows for its skewness. The allowed error is divided among the looks (Bonferroni) and, since one
target alone is enough for a cluster to fail, among the targets where that is decided.

No bound of a mean sees runs that did not occur: of clusters in which one run in twenty is bad, one in five has no bad
run among 32. How many runs may be worse than all that were seen is bounded by the binomial distribution (C. J. Clopper,
E. S. Pearson, Biometrika 26, 1934); such a run is taken to have half its requests in time, or as many as the worst run
that was seen if these are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands.values import number_within
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError
from blis_jax.metrics.measure import split_target, target_texts
from blis_jax.metrics.summaries import ALL, SloTargets, Target
from blis_jax.statistics.intervals import Estimate
from blis_jax.statistics.skewed import skewed_bounds
from sweeps.claims.grammar import bound
from sweeps.claims.words import FAILS, MEETS, OPEN

if TYPE_CHECKING:
    from jaxtyping import Float

USUAL_PERCENT = 99.0


@dataclass(frozen=True)
class ServiceTarget:
    """A target: at least `share` of the requests of one class, or of all requests, keep a latency limit."""

    slo_class: str  # or ALL
    figure: str  # one of LIMITS
    limit_ms: float
    share: float  # 0 to 1

    def __str__(self) -> str:
        return f"{self.slo_class}.{self.figure}={self.limit_ms:g}@{100 * self.share:g}"

    @property
    def words(self) -> str:
        """Return the target as a phrase of a sentence."""
        who = "all requests" if self.slo_class == ALL else f"{self.slo_class} requests"
        return f"{100 * self.share:g} % of {who} keep their {self.limit_name} within {self.limit_ms:g} ms"

    @property
    def limit_name(self) -> str:
        """Return the limit's name, such as TTFT."""
        return self.figure.removesuffix("_ms").upper()

    def as_slo(self) -> SloTargets:
        """Return the limit as an SLO target that applies to every class; the caller selects the requests that count."""
        limits: dict[str, Any] = {self.figure: self.limit_ms}
        return SloTargets(otherwise=Target(**limits))


def read_service_targets(
    texts: Sequence[str], classes: Collection[str]
) -> tuple[ServiceTarget, ...]:
    """Read targets given as `CLASS.LIMIT=MS[@PERCENT]`, separated by commas; `classes` are the SLO classes of the
    workload.

    Raises:
        ConfigError: a target has another form, or asks for something impossible.
    """
    parts = target_texts(texts)
    if not parts:
        raise ConfigError(
            "--targets: none is given; say what the cluster must keep, such as critical.ttft_ms=200@99"
        )
    targets = tuple(_target(part, classes) for part in parts)
    places = [(target.slo_class, target.figure, target.share) for target in targets]
    for target, place in zip(targets, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(
                f"--targets: {target.slo_class}.{target.figure} is given twice for {100 * target.share:g} %; keep one"
            )
    return targets


def _target(text: str, classes: Collection[str]) -> ServiceTarget:
    slo_class, figure, value = split_target(
        text, (ALL, *CLASS_NAMES), "CLASS.LIMIT=MS[@PERCENT]", "critical.ttft_ms=200@99"
    )
    if slo_class not in (ALL, *classes):
        raise ConfigError(
            f"--targets: no request is of class {slo_class!r} here; there are {', '.join(classes)}, or use all"
        )
    limit, at, percent = value.partition("@")
    label = f"--targets: {text!r}"
    share = number_within(label, percent.removesuffix("%")) / 100 if at else USUAL_PERCENT / 100
    if not 0 < share < 1:
        raise ConfigError(
            f"--targets: {text!r} asks for {percent} %; a share above 0 and below 100 % can be told "
            "from runs, such as @99"
        )
    limit_ms = number_within(label, limit.removesuffix("ms"))
    if not limit_ms > 0:
        raise ConfigError(f"--targets: {text!r} has a limit of {limit} ms; it must be above 0")
    return ServiceTarget(slo_class, figure, limit_ms, share)


FIRST_LOOK = 32  # seeds; the number doubles from look to look
UNSEEN = 0.5  # share in time of a run that is worse than all that were seen


@dataclass(frozen=True)
class Decision:
    """What the runs so far say about one cluster.

    Attributes:
        answer: MEETS, FAILS or OPEN.
        attained: for each target the share of requests in time, with the bounds of the last look that decide about one
            target.
        reaches: whether every target is reached in the runs that were made, whatever further runs would show.
    """

    answer: str
    num_seeds: int
    attained: tuple[Estimate, ...]
    reaches: bool = False


def looks(num_seeds: int) -> tuple[int, ...]:
    """Return the numbers of seeds after which results are looked at: 32, 64, … and `num_seeds`."""
    counts, count = [], FIRST_LOOK
    while count < num_seeds:
        counts.append(count)
        count *= 2
    return (*counts, num_seeds)


def num_tries(most: int) -> int:
    """Return the most cluster sizes tried, the largest being `most`: sizes found by doubling, then by bisection."""
    return 2 * most.bit_length()


def unseen_share(num_seeds: int, error: float) -> float:
    """Bound the share of all runs that are worse than every run of a sample; wrong with a probability of `error`."""
    return float(-np.expm1(np.log(error) / num_seeds))


def fewest_seeds(share: float, error: float) -> float:
    """Return the fewest runs that can prove a share in time, if every request of every run is in time.

    The error is divided among the looks that `looks` lists. For a share of 1 the result is infinite: no number of runs
    proves that all requests are in time.
    """
    most_unseen = min((1 - share) / (1 - UNSEEN), 1 - 1e-9)
    if most_unseen <= 0:
        return math.inf
    count = FIRST_LOOK
    while unseen_share(count, error / len(looks(count)) / 2) > most_unseen:
        count *= 2
    return count


def _lower_mean(excess: Float[np.ndarray, "seed"], unseen_excess: float, error: float) -> float:
    """Return a lower bound of the mean that allows for runs worse than those that occurred."""
    unseen = unseen_share(len(excess), error / 2)
    seen = skewed_bounds(excess, error / 2)[0]
    return (1 - unseen) * seen + unseen * min(float(excess.min()), unseen_excess)


def decide(
    num_good: Float[np.ndarray, "seed target"],
    num_requests: Float[np.ndarray, "seed target"],
    shares: Sequence[float],
    error: float,
    num_looks: int,
) -> Decision:
    """Return the decision about one cluster after one look.

    Args:
        num_good: requests in time, by run and target.
        num_requests: all requests that count for a target, by run and target.
        shares: the share in time that each target asks for, 0 to 1.
        error: probability that any of the looks is wrong.
        num_looks: how many looks there are at most.
    """
    each, num_targets = error / num_looks, num_good.shape[1]
    attained = tuple(
        _attained(good, total, each, each / num_targets)
        for good, total in zip(num_good.T, num_requests.T, strict=True)
    )
    truths = [
        bound("attainment", "max", share).truth(of)
        for share, of in zip(shares, attained, strict=True)
    ]
    answer = MEETS if all(truths) else FAILS if False in truths else OPEN
    reaches = all(of.mean >= share for share, of in zip(shares, attained, strict=True))
    return Decision(answer, len(num_good), attained, reaches)


def _attained(
    good: Float[np.ndarray, "seed"],
    total: Float[np.ndarray, "seed"],
    error_below: float,
    error_above: float,
) -> Estimate:
    """Return the share in time (sum ÷ sum), with the smallest and the largest share that the runs do not refute."""
    if not total.sum():
        return Estimate(math.nan, math.nan, math.nan, len(good))
    share = float(good.sum() / total.sum())

    def is_shown(least: float) -> bool:
        unseen = (UNSEEN - least) * float(total.mean())
        return _lower_mean(good - least * total, unseen, error_below) >= 0

    def is_possible(most: float) -> bool:
        return skewed_bounds(good - most * total, error_above)[1] >= 0

    low = share if is_shown(share) else _edge(is_shown, 0.0, share)
    high = 1.0 if is_possible(1.0) else _edge(is_possible, share, 1.0)
    return Estimate(share, low, high, len(good))


def _edge(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return, to 1e-9, the largest share in `low` to `high` for which `holds` is true; above that share it is false."""
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
