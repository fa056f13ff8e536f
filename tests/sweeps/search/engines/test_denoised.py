"""The engine that smooths the chance of points away: what it recommends, and how it searches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeps.search.engines import Started, Told, make, recommended
from sweeps.search.engines.denoised import Denoised, _loss, fitted
from sweeps.search.engines.encoding import Encoding
from sweeps.search.engines.known import greedy
from sweeps.strategies.space import Point, Space
from tests.sweeps.tiny import budget, tiny_space


@pytest.fixture(scope="module")
def space() -> Space:
    return tiny_space()


def expected(point: Point) -> float:
    """Least at a base of 8 and 900 tokens."""
    base, tokens, weight = point
    return 70.0 + 0.1 * (base - 8) ** 2 + (tokens - 900) ** 2 / 2e4 + 2 * (weight - 1)


def noisy(points: list[Point], seed: int) -> list[Told]:
    """Expected scores with a standard error of 1."""
    random = np.random.default_rng(seed)
    return [Told(point, expected(point) + random.normal()) for point in points]


def limited(point: Point, spread: float = 0.0) -> Told:
    """Falls with the tokens by 0.02 each; at least 1,000 are wanted, at a weight of 0.5."""
    base, tokens, weight = point
    objective = 50 + (tokens - 600) / 50 + abs(base - 8) + 5 * (weight - 1)
    excess = 0.5 * (1000 - tokens)
    penalty = max(excess, 0.0)
    return Told(
        point, objective + penalty, (objective,), penalty, excesses=(excess,), spreads=(spread,)
    )


def test_what_is_recommended_is_better_than_the_luckiest_point(space: Space) -> None:
    """The regret over 12 sets of 60 points, each with chance of 1."""
    encoding = Encoding(space)
    random = np.random.default_rng(3)
    by_model, by_luck = [], []
    for seed in range(12):
        told = noisy([encoding.point(one) for one in encoding.drawn(random, 60)], seed)
        worth = np.array([expected(one.point) for one in told])
        by_model.append(worth[Denoised(space, budget("denoised")).ranked(told)[0]] - worth.min())
        by_luck.append(worth[np.argmin([one.score for one in told])] - worth.min())
    assert np.mean(by_model) < 0.6 * np.mean(by_luck)


def test_a_limit_that_is_known_by_a_few_seeds_only_is_kept_at_a_distance(space: Space) -> None:
    points: list[Point] = [(8.0, tokens, 1) for tokens in range(940, 1100, 4)]
    engine = Denoised(space, budget("denoised"))
    sure, unsure = (
        points[engine.ranked([limited(point, spread) for point in points])[0]][1]
        for spread in (0.0, 20.0)
    )
    assert abs(sure - 1000) <= 4 and unsure >= 1020


def test_many_runs_count_for_more_than_few(space: Space) -> None:
    """30 points with one run each, whose chance is large, and three with 64 runs: the best of these is the best one."""
    encoding, truth = Encoding(space), []
    for seed in range(6):
        points = [encoding.point(one) for one in encoding.drawn(np.random.default_rng(seed), 33)]
        chance = np.random.default_rng([seed, 1]).normal(size=33)
        runs = [1] * 30 + [64] * 3
        told = [
            Told(point, expected(point) + 4.0 * far / math.sqrt(count), num_runs=count)
            for point, far, count in zip(points, chance, runs, strict=True)
        ]
        same = [one._replace(num_runs=1) for one in told]
        worth = [
            expected(points[Denoised(space, budget("denoised")).ranked(of)[0]])
            for of in (told, same)
        ]
        truth.append(worth)
    with_runs, without = np.mean(truth, axis=0)
    assert with_runs < without


def test_a_point_with_so_many_runs_is_recommended_if_there_is_one(space: Space) -> None:
    told = [limited((8.0, tokens, 1)) for tokens in range(900, 1200, 20)]
    told[2] = told[2]._replace(num_runs=16)
    engine = make(space, budget("denoised"))
    assert recommended(engine, told, 16) == 2 != recommended(engine, told)
    assert recommended(engine, told, 17) == recommended(engine, told)


def test_failures_are_never_recommended(space: Space) -> None:
    told = [limited((8.0, tokens, 1)) for tokens in range(900, 1200, 20)]
    told = [Told(one.point, 1e6, has_failed=True) if one.point[1] < 1060 else one for one in told]
    assert told[Denoised(space, budget("denoised")).ranked(told)[0]].point[1] >= 1060


def test_engines_recommend_or_leave_it_to_the_scores(space: Space) -> None:
    told = [limited((8.0, tokens, 1)) for tokens in range(900, 1200, 20)]
    engine = make(space, budget("denoised"))
    place = recommended(engine, told)
    assert place is not None and recommended(Started(engine, []), told) == place
    assert recommended(make(space, budget("sobol")), told) is None
    failed = [one._replace(has_failed=True) for one in told]
    assert recommended(engine, failed) is None


def test_it_searches_better_than_sobol_points(space: Space) -> None:
    """The expected score of the end of 32 points, mean over three random states."""
    worth: dict[str, list[float]] = {"denoised": [], "sobol": []}
    for name, found in worth.items():
        for state in range(3):
            engine = make(space, budget(name, initial=8, calls=32, batch=8, random_state=state))
            told: list[Told] = []
            while len(told) < 32:
                told += noisy(engine.ask(told, 8), 100 * state + len(told))
            place = recommended(engine, told)
            found.append(
                expected(told[place or 0].point)
                if place is not None
                else min(expected(one.point) for one in told)
            )
    assert np.mean(worth["denoised"]) < np.mean(worth["sobol"])


def test_a_batch_is_put_together_by_what_each_point_adds() -> None:
    """The second candidate repeats the first; the third improves on the other draw."""
    values = np.array([[0.0, 0.0, 3.0], [3.0, 3.0, 1.0]])
    assert greedy(values, np.array([2.0, 2.0]), 2) == [0, 2]


NOISE = 0.2


def truth(features: np.ndarray) -> np.ndarray:
    """Two of twelve features matter."""
    found: np.ndarray = np.sin(3.0 * features[:, 0]) + features[:, 1] ** 2
    return found


@pytest.fixture(scope="module")
def known() -> tuple[np.ndarray, np.ndarray]:
    """Features and noisy results of 120 points."""
    random = np.random.default_rng(1)
    features = random.random((120, 12))
    return features, truth(features) + NOISE * random.normal(size=120)


@pytest.mark.parametrize("most", [1.0, 64.0])
def test_the_gradient_is_that_of_the_loss(
    known: tuple[np.ndarray, np.ndarray], most: float
) -> None:
    features, results = known
    noisiness = np.linspace(1.0, most, len(results))
    wanted = (results - results.mean()) / results.std()
    logs = np.linspace(-0.5, 0.8, 14)
    _, gradient = _loss(logs, features, wanted, noisiness)
    step = 1e-5
    steps = step * np.eye(14)
    moved = [
        sum(sign * _loss(logs + sign * one, features, wanted, noisiness)[0] for sign in (1.0, -1.0))
        / step
        / 2
        for one in steps
    ]
    assert gradient == pytest.approx(np.array(moved), rel=1e-5, abs=1e-6)


def test_the_mean_is_nearer_to_the_truth_than_the_results(
    known: tuple[np.ndarray, np.ndarray],
) -> None:
    features, results = known
    model = fitted(features, results)
    errors = model.mean(features) - truth(features)
    assert np.sqrt(np.mean(errors**2)) < 0.6 * NOISE
    assert np.sqrt(model.noise) * model.spread == pytest.approx(NOISE, rel=0.25)
    assert (model.lengths[2:] > 3 * model.lengths[:2].max()).all()  # the others do not matter


def test_results_with_less_noise_count_for_more() -> None:
    """Half of the results have a tenth of the noise: told so, the mean is nearer to the truth than without."""
    random = np.random.default_rng(5)
    features = random.random((120, 3))
    noisiness = np.where(np.arange(120) % 2 == 0, 1.0, 0.01)
    results = truth(features) + np.sqrt(noisiness) * random.normal(size=120)
    told, not_told = (fitted(features, results, given) for given in (noisiness, None))
    errors = [np.square(one.mean(features) - truth(features)).mean() for one in (told, not_told)]
    assert errors[0] < 0.5 * errors[1]


def test_without_noise_results_are_known_where_they_were_tried() -> None:
    features = np.random.default_rng(2).random((60, 3))
    model = fitted(features, truth(features))
    assert model.mean(features) == pytest.approx(truth(features), abs=0.02)


def test_draws_have_the_mean_and_are_wide_where_nothing_is_known(
    known: tuple[np.ndarray, np.ndarray],
) -> None:
    """The mean of 4,000 draws is within five standard errors; a corner far out is less known."""
    features, results = known
    model = fitted(features, results)
    places = np.concatenate([features[:5], np.full((1, 12), 3.0)])
    drawn = model.draws(places, 4000, np.random.default_rng(0))
    spreads = drawn.std(axis=0)
    assert (np.abs(drawn.mean(axis=0) - model.mean(places)) < 5 * spreads / np.sqrt(4000)).all()
    assert (spreads[:5] < 0.6 * NOISE).all() and spreads[5] > 3 * spreads[:5].max()
