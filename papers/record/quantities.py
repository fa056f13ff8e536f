"""Claims computed from samples: one number of the mean over seeds, or an estimate with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from blis_jax.engine.types import Outcome
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from papers.record.claims import GAP, LIVELOCKS, REJECTED, PublishedClaim
from papers.record.runs import SettingSample

TAIL = "ttft_p99_ms"
SPREAD = (2.5, 97.5)  # percent
LEAST_TRIPLES = 40
Samples = Mapping[str, SettingSample]


def column(sample: SettingSample, of: str) -> np.ndarray:
    """A metric of every seed, NaN where the run did not come to its end."""
    if of == LIVELOCKS:
        return (sample.outcomes == Outcome.LIVELOCK).astype(float)
    return sample.column(of)


def mean_value(
    claim: PublishedClaim, sample: SettingSample, base: SettingSample | None, base_of: str = ""
) -> float:
    """The claim's figure from means over the seeds of a sample, and of another one to compare with.

    `base_of` is the metric of the other one, if it is not the claim's. NaN if a run has no figures.
    """

    def value(of: str) -> float:
        return float(sample.column(of).mean())

    if claim.of == GAP:
        return value(f"{TAIL}[sheddable]") / value(f"{TAIL}[critical]")
    if claim.is_change and base is not None:
        return 100 * (value(claim.of) / float(base.column(base_of or claim.of).mean()) - 1)
    return value(claim.of) * (100 if claim.of == REJECTED else 1)


def three_seed_range(
    claim: PublishedClaim, sample: SettingSample, base: SettingSample | None
) -> tuple[float, float]:
    """Where the figure lies in 95 of 100 experiments with three seeds each; NaN for too few seeds."""
    triples = [slice(first, first + 3) for first in range(0, len(sample.seeds) - 2, 3)]
    values = [
        mean_value(claim, sample.rows(triple), None if base is None else base.rows(triple))
        for triple in triples
    ]
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < LEAST_TRIPLES:
        return math.nan, math.nan
    low, high = np.percentile(finite, SPREAD)
    return float(low), float(high)


def interval(claim: PublishedClaim, sample: SettingSample, base: SettingSample | None) -> Estimate:
    """The claim's figure with its interval, over the seeds on which all runs came to their end."""
    if claim.of == GAP:
        ratio = difference(sample.column(f"{TAIL}[critical]"), sample.column(f"{TAIL}[sheddable]"))
        return _moved(ratio.percent, 0.01, 1.0)
    if claim.is_change and base is not None:
        return difference(base.column(claim.of), sample.column(claim.of)).percent
    return _moved(estimate(sample.column(claim.of)), 100.0 if claim.of == REJECTED else 1.0, 0.0)


def _moved(found: Estimate, scale: float, offset: float) -> Estimate:
    return Estimate(
        scale * found.mean + offset,
        scale * found.low + offset,
        scale * found.high + offset,
        found.num_seeds,
    )
