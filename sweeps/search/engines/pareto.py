"""Several objectives at once: processes of every objective, and a new random weighting of them for every point.

This is scalarisation (ParEGO: Knowles 2006; with a process for each objective: Paria et al. 2020): each point improves
most, in expectation, on an augmented Chebyshev sum of the objectives, scaled to what has been seen, so that the points
of a batch spread along the front.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from sweeps.search.engines.denoised import DRAWS, Denoised, fitted
from sweeps.search.engines.encoding import Told, generator, modelled
from sweeps.search.engines.known import distinct, greedy
from sweeps.search.objectives import nondominated
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space

AUGMENTATION = 0.05  # share of the plain sum, which tells weakly dominated points apart; Knowles'
CANDIDATES = 512
SHARE_DRAWN = 0.25  # of them, anywhere; the others lie around points of the front


class Pareto:
    """Sobol points to begin with, then one point for each of several random weightings of the objectives."""

    def __init__(self, space: Space, search: Search) -> None:
        """Make the engine; its first points and its steps around points are those of `denoised`."""
        self.search, self.single = search, Denoised(space, search)

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points."""
        if len(told) < self.search.initial or all(point.has_failed for point in told):
            return self.single.ask(told, count)
        random, encoding = generator(self.search, len(told), 1), self.single.encoding
        features, costs = encoding.features([point.point for point in told]), _costs(told)
        front = features[nondominated(costs)]
        centres = front[random.integers(len(front), size=CANDIDATES)]
        candidates = self.single.around(centres, random)
        num_drawn = int(SHARE_DRAWN * CANDIDATES)
        candidates[:num_drawn] = encoding.drawn(random, num_drawn)
        places = np.concatenate([features, candidates])
        with threadpool_limits(1):  # the same bits on any number of cores
            draws = [fitted(features, cost).draws(places, DRAWS, random) for cost in costs.T]
        chosen = [_best(draws, len(told), random) for _ in range(3 * count)]
        proposed = [candidates[place] for place in dict.fromkeys(chosen)]
        return distinct(encoding, self.search, proposed, [point.point for point in told], count)


def _costs(told: Sequence[Told]) -> np.ndarray:
    """Return objectives with the penalty `[point, objective]`, in ranges of what has been seen; low is good."""
    whole = [point for point in told if not point.has_failed]
    seen = np.array([point.objectives for point in whole])
    low = seen.min(axis=0)
    span = np.maximum(seen.max(axis=0) - low, 1e-12)
    columns = [
        [
            np.inf
            if point.has_failed
            else (point.objectives[place] - low[place]) / span[place] + point.penalty / span[0]
            for point in told
        ]
        for place in range(len(low))
    ]
    return np.stack([modelled(told, column) for column in columns], axis=-1)


def _best(draws: Sequence[np.ndarray], num_tried: int, random: np.random.Generator) -> int:
    """Return the candidate that improves most on the tried points, by draws `[draw, point]`, tried points first."""
    weights = random.dirichlet(np.ones(len(draws)))
    parts = weights[:, None, None] * np.array(draws)
    values = parts.max(axis=0) + AUGMENTATION * parts.sum(axis=0)
    return greedy(values[:, num_tried:], values[:, :num_tried].min(axis=1), 1)[0]
