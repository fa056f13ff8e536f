"""Claims computed from samples: one number of the mean over seeds, or an estimate with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from papers.record.claims import GAP, LIVELOCKS, AnyClaim, PublishedClaim, StatementCondition
from papers.record.runs import SettingSample
from sweeps.claims.words import LOST, MISSING

TAIL = "ttft_p99_ms"
SPREAD = (2.5, 97.5)  # percent
LEAST_TRIPLES = 40
Samples = Mapping[str, SettingSample]


def column(sample: SettingSample, of: str) -> np.ndarray:
    """Return a metric of every seed, NaN where the run did not come to its end."""
    if of == LIVELOCKS:
        return (sample.outcomes == Outcome.LIVELOCK).astype(float)
    return sample.column(of)


def not_computed(claim: AnyClaim, missing: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the word and the reason if no figure of a claim can be computed; None if one can.

    `missing` says by setting which mechanism is lacking.
    """
    if claim.lost:
        return LOST, claim.lost
    lacking = dict.fromkeys(missing[name] for name in claim.settings if name in missing)
    return (MISSING, "; ".join(lacking)) if lacking else None


@dataclass(frozen=True)
class ClaimRuns:
    """A claim with the runs that its figure is made of; values and base have one number a seed."""

    claim: PublishedClaim
    at: SettingSample
    against: SettingSample | None = None
    plus: SettingSample | None = None

    @property
    def samples(self) -> list[SettingSample]:
        """Return all runs of the claim."""
        return [sample for sample in (self.at, self.against, self.plus) if sample is not None]

    def on(self, seeds: Sequence[int]) -> ClaimRuns:
        """Return the same runs on some of the seeds."""
        return self._each(lambda sample: sample.at(seeds))

    def rows(self, rows: slice) -> ClaimRuns:
        """Return the same runs on some of the seeds, by index."""
        return self._each(lambda sample: sample.rows(rows))

    def _each(self, part: Callable[[SettingSample], SettingSample]) -> ClaimRuns:
        against = None if self.against is None else part(self.against)
        return ClaimRuns(
            self.claim, part(self.at), against, None if self.plus is None else part(self.plus)
        )

    def values(self, of: str = "") -> np.ndarray:
        """Return the claimed metric by seed, or another metric `of` the same setting, in the metric's unit."""
        if self.claim.of == GAP:
            return self.at.column(f"{TAIL}[sheddable]")
        values_at = self.at.column(of or self.claim.of)
        if self.plus is None or self.claim.plus is None:
            return values_at
        return values_at + self.plus.column(self.claim.plus.of)

    def base(self, of: str = "") -> np.ndarray | None:
        """Return the values to compare with; None if the claim compares with nothing."""
        if self.claim.of == GAP:
            return self.at.column(f"{TAIL}[critical]")
        return None if self.against is None else self.against.column(of or self.claim.of)


def runs_of(claim: PublishedClaim, samples: Samples) -> ClaimRuns:
    """Return the runs that a claim needs."""
    against = None if claim.against is None else samples[claim.against]
    plus = None if claim.plus is None else samples[claim.plus.at]
    return ClaimRuns(claim, samples[claim.at], against, plus)


def mean_value(runs: ClaimRuns, of: str = "", base_of: str = "") -> float:
    """Compute the claim's figure from means over the seeds; NaN if a run has no figures.

    `of` and `base_of` are metrics in place of the claim's own.
    """
    value, base = float(runs.values(of).mean()), runs.base(base_of or of)
    if base is None:
        return value * (100 if runs.claim.is_share else 1)
    ratio = value / float(base.mean())
    return 100 * (ratio - 1) if runs.claim.is_change else ratio


def three_seed_range(runs: ClaimRuns) -> tuple[float, float]:
    """Return the range that holds the figure in 95 of 100 experiments with three seeds each; NaN for too few seeds."""
    triples = [slice(first, first + 3) for first in range(0, len(runs.at.seeds) - 2, 3)]
    values = [mean_value(runs.rows(triple)) for triple in triples]
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < LEAST_TRIPLES:
        return math.nan, math.nan
    low, high = np.percentile(finite, SPREAD)
    return float(low), float(high)


def interval(runs: ClaimRuns) -> Estimate:
    """Compute the claim's figure with its interval, over the seeds on which all runs came to their end."""
    values, base = runs.values(), runs.base()
    if base is None:
        scale = 100.0 if runs.claim.is_share else 1.0
        return estimate(values).through(lambda value: scale * value)
    change = difference(base, values).percent
    return change if runs.claim.is_change else change.through(lambda value: 0.01 * value + 1.0)


@dataclass(frozen=True)
class SeedChange:
    """A change in percent of one setting's metric against another's, in a condition about two changes."""

    by_seed: np.ndarray
    of_means: float


def changes(
    condition: StatementCondition, samples: Samples, seeds: Sequence[int] | None = None
) -> tuple[SeedChange, SeedChange]:
    """Return the two changes that a condition compares, in % by seed, over all seeds of the samples or
    the given ones.
    """

    def change(at: str, against: str) -> SeedChange:
        """Return the change of one setting against another."""
        sample, base = samples[at], samples[against]
        if seeds is not None:
            sample, base = sample.at(seeds), base.at(seeds)
        values, others = column(sample, condition.of), column(base, condition.of)
        means = float(values.mean()) / float(others.mean())
        return SeedChange(100 * (values / others - 1), 100 * (means - 1))

    assert condition.against is not None and condition.to_against is not None
    return change(condition.at, condition.against), change(str(condition.to), condition.to_against)
