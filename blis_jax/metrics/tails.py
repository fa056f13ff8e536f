"""What is kept of a run's latencies so that the runs of many seeds can be pooled: their number and the largest ones.

The 32 largest are kept one by one, then every tenth part further down. So the number of a run's requests above any
value is known exactly up to 32, and beyond to a tenth of it at most; `statistics.pooled` pools runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.reference import class_code
from blis_jax.metrics.scalars import POOLED_LATENCIES
from blis_jax.metrics.summaries import ALL, Selection

if TYPE_CHECKING:
    from jaxtyping import Float, Int

NUM_EXACT, GROWTH, NUM_RANKS = 32, 1.1, 96
Kept = Sequence[int]  # the number of requests, then the kept latencies in µs, the largest first


def _ranks() -> tuple[int, ...]:
    ranks = list(range(NUM_EXACT))
    while len(ranks) < NUM_RANKS:
        ranks.append(max(ranks[-1] + 1, round((ranks[-1] + 1) * GROWTH) - 1))
    return tuple(ranks)


RANKS = _ranks()  # of the kept latencies, 0 for the largest; the last one is about 14,000


@dataclass(frozen=True)
class Tails:
    """The latencies of one group of requests in several runs, as far as they are kept."""

    count: Int[np.ndarray, "run"]  # requests with this latency; -1 for a run that did not end
    top_us: Float[np.ndarray, "run rank"]  # by RANKS; NaN where there are fewer


def tails_of_runs(kept: Sequence[Kept | None]) -> Tails:
    """Of what `kept_of` gave for each run; None for a run that did not end."""
    count = np.full(len(kept), -1, np.int64)
    top_us = np.full((len(kept), NUM_RANKS), np.nan)
    for run, one in enumerate(kept):
        if one is not None:
            count[run] = one[0]
            top_us[run, : len(one) - 1] = one[1:]
    return Tails(count, top_us)


def kept_of(values_us: Int[np.ndarray, "value"]) -> list[int]:
    """Of latencies in ascending order."""
    ranks = [rank for rank in RANKS if rank < len(values_us)]
    return [len(values_us), *values_us[::-1][ranks].astype(np.int64).tolist()]


def kept_tails(everything: Selection, classes: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """By latency, then by class and for all requests, from the measured requests of a run."""
    found: dict[str, dict[str, list[int]]] = {name: {} for name in POOLED_LATENCIES}
    for slo_class in (ALL, *classes):
        chosen = everything
        if slo_class != ALL:
            chosen = everything.where(everything.record.requests.slo_class == class_code(slo_class))
        for name in POOLED_LATENCIES:
            found[name][slo_class] = kept_of(getattr(chosen, name).values)
    return found
