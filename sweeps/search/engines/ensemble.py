"""Surrogate-guided search: a deep ensemble selects batches by gradient; local Gaussian processes take over.

Over the whole space every member of the ensemble descends by gradient from many starts, and a batch is selected from
the end points by expected improvement over the members. Gaussian processes select likewise from candidates that lie
mostly around the best point so far, in a region that shrinks while nothing better is found (as in TuRBO: Eriksson et
al. 2019); the smaller that region, the larger the processes' part of the batch.
The objective and every constraint's excess are modelled separately: their sum has a kink where a constraint begins
to hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surrogate.fitting import online
from sweeps.search.engines.denoised import fitted_outputs
from sweeps.search.engines.encoding import Encoding, Told, generator, modelled
from sweeps.search.engines.known import (
    BranchedStart,
    KnownPoints,
    Sobol,
    distinct,
    greedy,
    known_of,
)
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space

STARTS = 32  # of each member's way down
SCREENED = 512  # points that the starts are the best of
MOST_EDGE, LEAST_EDGE = 0.5, 2.0**-5  # of the local region, shares of a range
PATIENCE = 2  # batches without progress that halve the region
PROGRESS = 1e-3  # of the best score, below which a batch has brought nothing
LOCAL_POINTS = 96  # that the local processes are fitted to
TRIED = 24  # of them, which a candidate should improve on
CANDIDATES = 1000  # with these a power of two
SHARE_ELSEWHERE, SHARE_DRAWN = 0.15, 0.1  # of them, around other good points and anywhere
ELSEWHERE = 13  # so many points are good, the best one included
OCTAVES = 4.0  # down from the region's edge over which the candidates' distances are spread
DRAWS = 256  # of the local processes, for the expected improvement


class Ensemble:
    """The engine `ensemble`: Sobol points first, then batches from the ensemble and the local processes."""

    def __init__(self, space: Space, search: Search) -> None:
        """Build the features of the space and the first points."""
        self.space, self.search = space, search
        self.encoding = Encoding(space)
        self.first = BranchedStart(self.encoding, Sobol(space, search))

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points: spread ones first, then most from local processes, the rest from the ensemble."""
        if len(told) < self.search.initial:
            return self.first.ask(told, min(count, self.search.initial - len(told)))
        if all(result.has_failed for result in told):
            return self.first.ask(told, count)
        known = known_of(self.encoding, told)
        edge = _edge(told, self.search)
        points = [result.point for result in told]
        num_local = round(count * (0.75 if edge > MOST_EDGE / 2 else 0.875))
        local = self._local(known, edge, num_local) if num_local else []
        chosen = distinct(self.encoding, self.search, local, points, num_local)
        num_wide = count - len(chosen)
        wide = self._wide(known, num_wide) if num_wide else []
        points += chosen
        return chosen + distinct(self.encoding, self.search, wide, points, num_wide)

    def _wide(self, known: KnownPoints, count: int) -> list[np.ndarray]:
        """Return the end points of the members' descents with the largest expected improvement over all members."""
        random = generator(self.search, len(known.features), 1)
        ensemble = online.fit(known.features, known.targets, int(random.integers(2**31)))
        screened = self.encoding.drawn(random, SCREENED)
        steps = random.normal(size=(SCREENED // 4, self.encoding.width)) * 0.1
        screened[: len(steps)] = self.encoding.around(known.centre, steps, random)
        worth = np.asarray(online.merged(online.predict(ensemble, screened), known.errors))
        order = np.argsort(worth, axis=1)[:, :STARTS]
        starts = screened[order]
        ends, _ = online.descend(ensemble, starts, self.encoding.is_free(starts), known.errors)
        candidates = ends.reshape(-1, self.encoding.width)
        values = np.asarray(online.merged(online.predict(ensemble, candidates), known.errors))
        lowest = np.full(len(values), known.goal)
        return [candidates[place] for place in greedy(values, lowest, 3 * count)]

    def _local(self, known: KnownPoints, edge: float, count: int) -> list[np.ndarray]:
        """Return the candidates around the best point with the largest joint expected improvement."""
        random = generator(self.search, len(known.features), 2)
        distance = np.abs(known.features - known.centre).max(axis=1)
        nearest = np.argsort(distance, kind="stable")[:LOCAL_POINTS]
        candidates = self._candidates(known, edge, random)
        outputs = fitted_outputs(
            known.features[nearest], known.targets[nearest], known.errors, known.num_runs[nearest]
        )
        tried = known.features[nearest[:TRIED]]
        scores = outputs.scores(np.concatenate([tried, candidates]), DRAWS, random)
        lowest, hoped = scores[:, : len(tried)].min(axis=1), scores[:, len(tried) :]
        return [candidates[place] for place in greedy(hoped, lowest, 3 * count)]

    def _candidates(
        self, known: KnownPoints, edge: float, random: np.random.Generator
    ) -> np.ndarray:
        """Return candidates: most around the best point, some around other good points and from the whole space."""
        worth = np.asarray(online.merged(known.targets, known.errors))
        order = np.argsort(worth, kind="stable")[:ELSEWHERE]
        others = order[1:] if len(order) > 1 else order
        centres = np.tile(known.centre, (CANDIDATES, 1))
        edges = np.full(CANDIDATES, edge)
        is_other = random.random(CANDIDATES) < SHARE_ELSEWHERE
        centres[is_other] = known.features[random.choice(others, size=is_other.sum())]
        edges[is_other] = MOST_EDGE
        made = self.encoding.around(centres, _steps(centres, edges, random), random)
        is_drawn = random.random(CANDIDATES) < SHARE_DRAWN
        made[is_drawn] = self.encoding.drawn(random, is_drawn.sum())
        return made


def _edge(told: Sequence[Told], search: Search) -> float:
    """Return the edge of the local region after the batches so far: halved without progress, × 1.5 with progress."""
    scores = modelled(told)
    edge, idle = MOST_EDGE, 0
    for at in range(search.initial, len(told), search.batch):
        before, batch = scores[:at].min(), scores[at : at + search.batch].min()
        if batch < before - PROGRESS * abs(before):
            edge, idle = min(edge * 1.5, MOST_EDGE), 0
        else:
            idle += 1
            if idle == PATIENCE:
                edge, idle = edge / 2, 0
        if edge < LEAST_EDGE:
            edge = MOST_EDGE
    return edge


def _steps(centres: np.ndarray, edges: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return steps within boxes, small ones as often as large ones; each moves only some features, as in TuRBO."""
    count, width = centres.shape
    moved = random.random(centres.shape) < 0.5
    moved[np.arange(count), random.integers(width, size=count)] = True
    reach = edges * 2.0 ** -(OCTAVES * random.random(count))
    steps: np.ndarray = (random.random(centres.shape) - 0.5) * reach[:, None] * moved
    return steps
