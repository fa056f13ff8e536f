"""Search of noisy results: Gaussian processes smooth the noise of points; their smoothed scores select and recommend
points.

The objective and every constraint's excess have a process each, and a constraint counts by its expected excess, given
the standard error over the seeds. Candidates lie around the points that are best by the processes, at all scales, then
around the best of these candidates. Half of a batch are the candidates with the lowest expected score; the other half
have the largest expected improvement on the smoothed scores of tried points, not on their measured scores (noisy
expected improvement: Letham et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from surrogate.fitting import online
from sweeps.search.engines.encoding import Encoding, Told, first_of, generator, modelled
from sweeps.search.engines.known import BranchedStart, Sobol, distinct, greedy, known_of
from sweeps.search.objectives import nondominated
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
    """The engine `denoised`: Sobol points first, then batches by noisy expected improvement."""

    def __init__(self, space: Space, search: Search) -> None:
        """Build the engine for a space."""
        self.space, self.search = space, search
        self.encoding = Encoding(space)
        self.first = BranchedStart(self.encoding, Sobol(space, search))
        self.last: tuple[tuple[Told, ...], Modelled] | None = None

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points: spread ones first; later half by lowest expected score, half by improvement."""
        if len(told) < self.search.initial:
            return self.first.ask(told, min(count, self.search.initial - len(told)))
        if all(point.has_failed for point in told):
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
        return distinct(
            self.encoding, self.search, proposed, [point.point for point in told], count
        )

    def ranked(self, told: Sequence[Told]) -> list[int]:
        """Return the indices of tried points, the best by the processes (of at most MOST_POINTS) first."""
        return ranked(told, self._model(told))

    def _model(self, told: Sequence[Told]) -> Modelled:
        """Return the fitted processes, cached because a batch and the recommendation before it use the same."""
        if self.last is None or self.last[0] != tuple(told):
            self.last = tuple(told), modelled_of(self.encoding, told)
        return self.last[1]

    def _candidates(self, model: Modelled, random: np.random.Generator) -> np.ndarray:
        """Return features `[candidate, feature]`: around the best points, anywhere, and around the best of both."""
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
        """Return features one random step from each centre, of any scale and in any number of features."""
        count, width = centres.shape
        moved = random.random(centres.shape) < random.random((count, 1))
        moved[np.arange(count), random.integers(width, size=count)] = True
        reach = EDGE * 2.0 ** -(OCTAVES * random.random(count))
        steps = 2.0 * (random.random(centres.shape) - 0.5) * reach[:, None] * moved
        return self.encoding.around(centres, steps, random)


def recommended(encoding: Encoding, told: Sequence[Told], num_runs: int = 0) -> int:
    """Return the index of the point with the lowest smoothed score, whichever engine tried it; 0 if all points failed.

    A point with at least `num_runs` runs is preferred, if there is one.
    """
    if all(point.has_failed for point in told):
        return 0
    return first_of(ranked(told, modelled_of(encoding, told)), told, num_runs)


def ranked(told: Sequence[Told], model: Modelled) -> list[int]:
    """Return the indices of a model's points that did not fail, the lowest expected score first."""
    places = model.places[model.order].tolist()
    return [place for place in places if not told[place].has_failed]


class Modelled(NamedTuple):
    """Tried points, and the processes fitted to them."""

    features: np.ndarray  # [point, feature]
    outputs: SmoothOutputs
    places: np.ndarray  # [point], of these points in the search
    order: np.ndarray  # [point], best ones by the processes first


def modelled_of(encoding: Encoding, told: Sequence[Told]) -> Modelled:
    """Return the processes fitted to tried points, and these points ordered by expected merged score."""
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
    """Return the first `count` indices of an order whose features `[point, feature]` differ from each other."""
    chosen: list[int] = []
    for place in order.tolist():
        if len(chosen) == count:
            break
        differences = np.abs(features[chosen] - features[place]).max(axis=1, initial=0.0)
        if (differences >= APART).all():
            chosen.append(place)
    return chosen


# of log lengths: half of log features is added to the first
LENGTH_PRIOR = (
    math.sqrt(2.0),
    math.sqrt(3.0),
)
NOISE_PRIOR = (-3.0, 1.0)  # of the logarithm of the noise's share of the variance
SCALE_PRIOR = (0.0, 1.0)  # of the logarithm of the smooth part's
BOUNDS = ((math.log(0.02), math.log(50.0)), (math.log(1e-5), 1.0), (math.log(0.02), math.log(50.0)))
STEPS = 60  # of the search for the most probable parameters
JITTER = 1e-8


class SmoothModel(NamedTuple):
    """A fitted Gaussian process; results are `centre + spread × process`."""

    features: np.ndarray  # [point, feature]
    lengths: np.ndarray  # [feature]
    scale: float  # variance of the smooth part
    noise: float  # variance of the noise
    root: np.ndarray  # [point, point], lower Cholesky factor of the points' covariance
    weights: np.ndarray  # [point]
    centre: float
    spread: float

    def mean(self, features: np.ndarray) -> np.ndarray:
        """Return expected results `[candidate]`, without noise, at features `[candidate, feature]`."""
        cross = self.scale * _shape(_distances(features, self.features, self.lengths))
        expected: np.ndarray = self.centre + self.spread * (cross @ self.weights)
        return expected

    def draws(self, features: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """Return joint draws `[draw, candidate]` of results, without noise, at features `[candidate, feature]`."""
        cross = self.scale * _shape(_distances(features, self.features, self.lengths))
        solved = solve_triangular(self.root, cross.T, lower=True, check_finite=False)
        prior = self.scale * _shape(_distances(features, features, self.lengths))
        covariance = prior - solved.T @ solved
        covariance[np.diag_indices_from(covariance)] += 1e-5 * self.scale
        root = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        drawn = cross @ self.weights + random.normal(size=(count, len(features))) @ root.T
        results: np.ndarray = self.centre + self.spread * drawn
        return results


def fitted(
    features: np.ndarray, results: np.ndarray, noisiness: np.ndarray | None = None
) -> SmoothModel:
    """Fit the process with the most probable parameters to results `[point]` at features `[point, feature]`.

    `noisiness` `[point]` is the variance of each point's noise ÷ the learnt noise variance; by default all are 1.
    """
    centre, spread = float(results.mean()), max(float(results.std()), 1e-9)
    wanted = (results - centre) / spread
    width = features.shape[1]
    noisiness = np.ones(len(results)) if noisiness is None else noisiness
    start = np.full(width + 2, math.log(0.5) + 0.5 * math.log(width))
    start[-2:] = NOISE_PRIOR[0], SCALE_PRIOR[0]
    bounds = [BOUNDS[0]] * width + list(BOUNDS[1:])
    with threadpool_limits(1):  # more threads are slower at this size
        fit = minimize(
            _loss, np.clip(start, *np.array(bounds).T), (features, wanted, noisiness), "L-BFGS-B",
            jac=True, bounds=bounds, options={"maxiter": STEPS},
        )  # fmt: skip
        lengths, (noise, scale) = np.exp(fit.x[:-2]), np.exp(fit.x[-2:])
        covariance = scale * _shape(_distances(features, features, lengths))
        covariance[np.diag_indices_from(covariance)] += noise * noisiness + JITTER
        root = cholesky(covariance, lower=True, check_finite=False)
        weights = cho_solve((root, True), wanted, check_finite=False)
    return SmoothModel(features, lengths, float(scale), float(noise), root, weights, centre, spread)


class SmoothOutputs(NamedTuple):
    """A process for each output of `KnownPoints.targets`; an output that is equal at all points is a constant."""

    processes: tuple[SmoothModel | float, ...]
    errors: np.ndarray | None  # [excess], see `KnownPoints`

    def scores(self, features: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """Return merged scores `[draw, candidate]` of `count` joint draws at features `[candidate, feature]`."""
        with threadpool_limits(1):  # the same bits on any number of cores
            drawn = [
                np.full((count, len(features)), process)
                if isinstance(process, float)
                else process.draws(features, count, random)
                for process in self.processes
            ]
        padded = 1 << (len(features) - 1).bit_length()  # few shapes, since each is compiled
        outputs = np.zeros((count, padded, len(drawn)), np.float32)
        outputs[:, : len(features)] = np.stack(drawn, axis=-1)
        return np.asarray(online.merged(outputs, self.errors))[:, : len(features)]


def fitted_outputs(
    features: np.ndarray, targets: np.ndarray, errors: np.ndarray | None, num_runs: np.ndarray
) -> SmoothOutputs:
    """Return the processes fitted to targets `[point, output]`; points with fewer runs `[point]` have more noise."""
    noisiness = np.median(num_runs) / num_runs
    return SmoothOutputs(
        tuple(
            float(column[0]) if np.ptp(column) < 1e-9 else fitted(features, column, noisiness)
            for column in targets.T
        ),
        errors,
    )


def _loss(
    logs: np.ndarray, features: np.ndarray, wanted: np.ndarray, noisiness: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return minus the log posterior of log lengths, log noise and log scale, and its gradient."""
    lengths, (noise, scale) = np.exp(logs[:-2]), np.exp(logs[-2:])
    count, width = features.shape
    distances = _distances(features, features, lengths)
    smooth = scale * _shape(distances)
    covariance = smooth.copy()
    covariance[np.diag_indices(count)] += noise * noisiness + JITTER
    root = cholesky(covariance, lower=True, check_finite=False)
    inverse = cho_solve((root, True), np.eye(count), check_finite=False)
    weights = inverse @ wanted
    loss = 0.5 * float(wanted @ weights) + float(np.log(root.diagonal()).sum())
    slopes = np.outer(weights, weights) - inverse  # -2 times the loss's, by covariance
    apart = math.sqrt(5.0) * distances
    pulls = slopes * (5.0 / 3.0 * scale) * (1.0 + apart) * np.exp(-apart)
    scaled = features / lengths
    squares = 2 * pulls.sum(axis=1) @ scaled**2 - 2 * ((pulls @ scaled) * scaled).sum(axis=0)
    gradient = np.empty(width + 2)
    gradient[:-2] = -0.5 * squares
    gradient[-2] = -0.5 * noise * float((slopes.diagonal() * noisiness).sum())
    gradient[-1] = -0.5 * float((slopes * smooth).sum())
    middles = np.full(width + 2, LENGTH_PRIOR[0] + 0.5 * math.log(width))
    sizes = np.full(width + 2, LENGTH_PRIOR[1])
    middles[-2:], sizes[-2:] = (NOISE_PRIOR[0], SCALE_PRIOR[0]), (NOISE_PRIOR[1], SCALE_PRIOR[1])
    away = (logs - middles) / sizes
    return loss + 0.5 * float(away @ away), gradient + away / sizes


def _distances(ours: np.ndarray, theirs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return distances `[our, their]` in units of the lengths."""
    first, second = ours / lengths, theirs / lengths
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    distances: np.ndarray = np.sqrt(np.maximum(squares, 0.0))
    return distances


def _shape(distances: np.ndarray) -> np.ndarray:
    """Return the Matérn covariance (5/2) at distances in units of the lengths."""
    apart = math.sqrt(5.0) * distances
    shape: np.ndarray = (1.0 + apart + apart * apart / 3.0) * np.exp(-apart)
    return shape


# --- several objectives at once ------------------------------------------------------------------
# Processes of every objective, and a new random weighting of them for every point. This is scalarisation (ParEGO:
# Knowles 2006; with a process for each objective: Paria et al. 2020): each point improves most, in expectation, on an
# augmented Chebyshev sum of the objectives, scaled to what has been seen, so that a batch spreads along the front.


AUGMENTATION = 0.05  # share of the plain sum, which tells weakly dominated points apart; Knowles'
NUM_CANDIDATES = 512
SHARE_ANYWHERE = 0.25  # of them, anywhere; the others lie around points of the front


class Pareto:
    """The engine `pareto`: Sobol points first, then one point for each of several random weightings of objectives."""

    def __init__(self, space: Space, search: Search) -> None:
        """Make the engine; its first points, and its steps around points, are those of `denoised`."""
        self.search, self.single = search, Denoised(space, search)

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points."""
        if len(told) < self.search.initial or all(point.has_failed for point in told):
            return self.single.ask(told, count)
        random, encoding = generator(self.search, len(told), 1), self.single.encoding
        features, costs = encoding.features([point.point for point in told]), _costs(told)
        front = features[nondominated(costs)]
        centres = front[random.integers(len(front), size=NUM_CANDIDATES)]
        candidates = self.single.around(centres, random)
        num_drawn = int(SHARE_ANYWHERE * NUM_CANDIDATES)
        candidates[:num_drawn] = encoding.drawn(random, num_drawn)
        places = np.concatenate([features, candidates])
        with threadpool_limits(1):  # the same bits on any number of cores
            draws = [fitted(features, cost).draws(places, DRAWS, random) for cost in costs.T]
        chosen = [_best(draws, len(told), random) for _ in range(3 * count)]
        proposed = [candidates[place] for place in dict.fromkeys(chosen)]
        return distinct(encoding, self.search, proposed, [point.point for point in told], count)


def _costs(told: Sequence[Told]) -> np.ndarray:
    """Return objectives plus penalty `[point, objective]`, in units of the observed ranges; low is good."""
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
    """Return the candidate that improves most on the tried points, by draws `[draw, point]` with tried points first."""
    weights = random.dirichlet(np.ones(len(draws)))
    parts = weights[:, None, None] * np.array(draws)
    values = parts.max(axis=0) + AUGMENTATION * parts.sum(axis=0)
    return greedy(values[:, num_tried:], values[:, :num_tried].min(axis=1), 1)[0]
