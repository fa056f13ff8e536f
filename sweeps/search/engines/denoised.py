"""Search of noisy results: Gaussian processes smooth the chance of points away, and choose and recommend by that.

The objective and every constraint's excess have a process each, and a constraint counts by the amount that is expected
beyond it, given its standard error over the seeds. Candidates lie around the points that are best by the processes,
at all scales, then around the best of these candidates. Half of a batch are those with the lowest expected score; the
others improve most, in expectation, on tried points as the processes have them, not as they happened to turn out
(noisy expected improvement: Letham et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sweeps.search.engines.encoding import Encoding, Told, first_of, generator
from sweeps.search.engines.known import BranchedStart, Sobol, distinct, greedy, known_of
from sweeps.search.engines.smooth_model import SmoothOutputs, fitted_outputs
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space

MOST_POINTS = 256  # that a process is fitted to, those nearest to the best one
CENTRES = 6  # points around which candidates lie, the best ones
CANDIDATES = 768  # in the first round, and half as many in the second one
SHARE_DRAWN = 0.1  # of them, anywhere
REFINED = 24  # candidates of the first round around which those of the second one lie
EDGE, OCTAVES = 0.5, 5.0  # largest box around a centre, and how many times it is halved at the most
HOPE = 0.2  # quantile of the draws by which a candidate of the first round is hopeful
APART = 0.03  # share of a range by which the surest points of a batch differ in some feature
DRAWS = 256


class Denoised:
    """Sobol points to begin with, then batches by noisy expected improvement."""

    def __init__(self, space: Space, search: Search) -> None:
        """For a space."""
        self.space, self.search = space, search
        self.encoding = Encoding(space)
        self.first = BranchedStart(self.encoding, Sobol(space, search))
        self.last: tuple[tuple[Told, ...], Modelled] | None = None

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points: spread ones first, then half of them where the model is lowest, half
        where it hopes most.
        """
        if len(told) < self.search.initial:
            return self.first.ask(told, min(count, self.search.initial - len(told)))
        if all(one.has_failed for one in told):
            return self.first.ask(told, count)
        random = generator(self.search, len(told), 1)
        model = self._model(told)
        candidates = self._candidates(model, random)
        tried = model.features[model.order[: CENTRES * 4]]
        values = model.outputs.scores(np.concatenate([tried, candidates]), DRAWS, random)
        lowest, hoped = values[:, : len(tried)].min(axis=1), values[:, len(tried) :]
        order = np.argsort(hoped.mean(axis=0), kind="stable")
        sure = apart(candidates, order, count // 2)
        lowest = np.minimum(lowest, hoped[:, sure].min(axis=1, initial=np.inf))
        hopeful = greedy(hoped, lowest, 3 * count)
        proposed = [candidates[place] for place in (*sure, *hopeful)]
        return distinct(self.encoding, self.search, proposed, [one.point for one in told], count)

    def ranked(self, told: Sequence[Told]) -> list[int]:
        """Return the places of the tried points that are best by the processes, which are fitted to at
        most MOST_POINTS.
        """
        return ranked(told, self._model(told))

    def _model(self, told: Sequence[Told]) -> Modelled:
        """Return the processes; a batch and the recommendation before it have the same, so the last ones are kept."""
        if self.last is None or self.last[0] != tuple(told):
            self.last = tuple(told), modelled_of(self.encoding, told)
        return self.last[1]

    def _candidates(self, model: Modelled, random: np.random.Generator) -> np.ndarray:
        """Features `[candidate, feature]`: around the best points and anywhere, then around the best of these."""
        centres = model.features[model.order[:CENTRES]]
        places = np.minimum(random.geometric(0.4, CANDIDATES) - 1, len(centres) - 1)
        first = self.around(centres[places], random)
        is_drawn = random.random(CANDIDATES) < SHARE_DRAWN
        first[is_drawn] = self.encoding.drawn(random, is_drawn.sum())
        values = model.outputs.scores(first, DRAWS, random)
        by = np.stack([np.quantile(values, HOPE, axis=0), values.mean(axis=0)])
        ways = np.argsort(by, axis=1, kind="stable")[:, : REFINED // 2]
        best = first[ways.ravel()]
        second = self.around(best[random.integers(len(best), size=CANDIDATES // 2)], random)
        return np.concatenate([first, second])

    def around(self, centres: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return features a step from a centre each, of any scale and in any number of features."""
        count, width = centres.shape
        moved = random.random(centres.shape) < random.random((count, 1))
        moved[np.arange(count), random.integers(width, size=count)] = True
        reach = EDGE * 2.0 ** -(OCTAVES * random.random(count))
        steps = 2.0 * (random.random(centres.shape) - 0.5) * reach[:, None] * moved
        return self.encoding.around(centres, steps, random)


def recommended(encoding: Encoding, told: Sequence[Told], num_runs: int = 0) -> int:
    """Return the place of the point that the processes call best, whichever engine tried it; 0 if all points failed.

    A point with `num_runs` runs or more is taken if there is one.
    """
    if all(one.has_failed for one in told):
        return 0
    return first_of(ranked(told, modelled_of(encoding, told)), told, num_runs)


def ranked(told: Sequence[Told], model: Modelled) -> list[int]:
    """Return the places of the points of a model that did not fail, those with the lowest expected scores first."""
    places = model.places[model.order].tolist()
    return [place for place in places if not told[place].has_failed]


class Modelled(NamedTuple):
    """Points that were tried, and the processes that are fitted to them."""

    features: np.ndarray  # [point, feature]
    outputs: SmoothOutputs
    places: np.ndarray  # [point], of these points in the search
    order: np.ndarray  # [point], best ones by the processes first


def modelled_of(encoding: Encoding, told: Sequence[Told]) -> Modelled:
    """Return processes fitted to points that were tried, and these points by their expected merged scores."""
    if not any(point.errors for point in told):
        told = [point._replace(errors=point.spreads) for point in told]
    known = known_of(encoding, told)
    distance = np.abs(known.features - known.centre).max(axis=1)
    num_runs = known.num_runs
    if num_runs.min() < num_runs.max():  # what is best of the points with all runs is asked for
        distance[num_runs == num_runs.max()] = -1.0
    nearest = np.argsort(distance, kind="stable")[:MOST_POINTS]
    features = known.features[nearest]
    outputs = fitted_outputs(features, known.targets[nearest], known.errors, num_runs[nearest])
    scores = outputs.scores(features, DRAWS, np.random.default_rng(0)).mean(axis=0)
    return Modelled(features, outputs, nearest, np.argsort(scores, kind="stable"))


def apart(features: np.ndarray, order: np.ndarray, count: int) -> list[int]:
    """Return the first places of an order whose features `[point, feature]` differ from each other."""
    chosen: list[int] = []
    for place in order.tolist():
        if len(chosen) == count:
            break
        differences = np.abs(features[chosen] - features[place]).max(axis=1, initial=0.0)
        if (differences >= APART).all():
            chosen.append(place)
    return chosen
