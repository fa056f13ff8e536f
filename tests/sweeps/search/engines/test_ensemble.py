"""The surrogate-guided engine, its encoding and the small ensemble it is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from surrogate.fitting import online
from sweeps.search.engines import Told, make
from sweeps.search.engines.encoding import BRANCH_SHARE, SWITCHED, Encoding
from sweeps.search.engines.ensemble import MOST_EDGE, _edge
from sweeps.search.engines.known import LEAST_GAIN, targets_of
from sweeps.search.objectives import Valuation, expected_excess
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import Point, Space
from tests.sweeps.tiny import TINY, budget, run_of, tiny_space

pytestmark = pytest.mark.lenient_promotion  # optax and flax promote implicitly


@pytest.fixture(scope="module")
def space() -> Space:
    return tiny_space()


def hinge(point: Point) -> Told:
    """An objective that falls with the tokens, and a constraint that holds above 1,000 of them."""
    base, tokens, weight = point
    objective = (tokens - 600) / 20 + abs(base - 8) + 5 * (weight - 1)
    excess = 0.5 * (1000 - tokens)
    penalty = max(excess, 0.0)
    return Told(point, objective + penalty, (objective,), penalty, False, (excess,))


def unsure(point: Point) -> Told:
    """The same where the excess is known to 20 tokens only: 25.6 tokens from the limit are best."""
    told = hinge(point)
    penalty = expected_excess(told.excesses[0], 10.0)
    score = told.objectives[0] + penalty
    return told._replace(score=score, penalty=penalty, errors=(10.0,))


def test_points_come_back_from_their_features(space: Space) -> None:
    encoding = Encoding(space)
    free = encoding.is_free(np.zeros(encoding.width))
    assert encoding.width == 4 and free.tolist() == [True, True, False, False]
    for shares in np.random.default_rng(0).random((50, 3)):
        point = space.at(shares)
        back = encoding.point(encoding.features([point])[0])
        assert back[1:] == point[1:] and back[0] == pytest.approx(point[0])
    for dimension, point_value in zip(space.dimensions, space.at((0.3, 0.7, 0.9)), strict=True):
        assert dimension.at(dimension.share(point_value)) == pytest.approx(point_value)


BRANCHED = TINY.replace(
    "objectives:",
    """overrides:
  - {when: {max_num_scheduled_tokens: 600}, settings: {num_instances: 3}}
  - {when: {max_num_scheduled_tokens: 600, slo_base_critical: 5}, settings: {num_instances: 4}}
  - {when: {routing_scorers.queue-depth: 1, slo_base_critical: 500}, settings: {num_instances: 5}}
objectives:""",
)


def test_numbers_that_overrides_name_are_branches() -> None:
    """Each once; not choices, which have features anyway, and not what the range has not."""
    space = tiny_space(BRANCHED)
    encoding = Encoding(space)
    assert encoding.branches == ((1, 600), (0, 5)) and encoding.width == 6
    points = [(7.0, 600, 1), (5, 700, 2), (7.0, 601, 1)]
    features = encoding.features(points)
    assert features[:, 4:].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert [encoding.point(row) for row in features] == [pytest.approx(one) for one in points]
    assert encoding.is_free(features)[:, :2].tolist() == [
        [True, False],
        [False, True],
        [True, True],
    ]


def test_branches_are_entered_and_left(space: Space) -> None:
    encoding, random = Encoding(tiny_space(BRANCHED)), np.random.default_rng(0)
    drawn = encoding.drawn(random, 4000)
    assert drawn[:, 4:].mean(axis=0) == pytest.approx([BRANCH_SHARE] * 2, abs=0.03)
    centre = encoding.features([(7.0, 600, 1)])[0]
    steps = np.full((4000, encoding.width), 0.1)
    around = encoding.around(centre, steps, random)
    is_left = around[:, 4] == 0
    assert is_left.mean() == pytest.approx(SWITCHED, abs=0.03)
    tokens = np.array([encoding.point(row)[1] for row in around])
    assert (tokens[~is_left] == 600).all() and np.ptp(tokens[is_left]) > 1000
    assert around[:, 5].mean() == pytest.approx(SWITCHED, abs=0.03)
    plain = Encoding(space).around(np.zeros(4), np.zeros((50, 4)), random)
    assert plain[:, 2:].max() == 1  # another choice


def test_a_parameter_is_in_one_branch_at_a_time() -> None:
    two = BRANCHED.replace(
        "{max_num_scheduled_tokens: 600, slo_base_critical: 5}", "{max_num_scheduled_tokens: 700}"
    )
    encoding = Encoding(tiny_space(two))
    assert {value for column, value in encoding.branches if column == 1} == {600, 700}
    drawn = encoding.drawn(np.random.default_rng(0), 2000)
    of_tokens = [
        place
        for place, (column, _) in enumerate(encoding.branches, encoding.first_branch)
        if column == 1
    ]
    assert drawn[:, of_tokens].sum(axis=1).max() == 1
    for row in drawn[:200]:
        back = encoding.features([encoding.point(row)])[0]
        assert back[of_tokens].tolist() == row[of_tokens].tolist()


def test_one_point_is_enough_to_go_on_from(space: Space) -> None:
    engine = make(space, budget("ensemble", calls=40, initial=1, batch=3))
    points = engine.ask([hinge(space.at((0.5, 0.5, 0.5)))], 3)
    assert len(set(points)) == 3


def test_some_of_the_first_points_are_in_branches() -> None:
    engine = make(tiny_space(BRANCHED), budget("ensemble", calls=40, initial=16, batch=8))
    points = engine.ask([], 16)
    assert [point[1] for point in points[3::8]] == [600, 600]
    assert [point[0] for point in points[7::8]] == [5, 5]
    told = [Told(point, 1.0) for point in points[:10]]
    assert engine.ask(told, 6) == points[10:]


def test_members_agree_at_points_and_part_away_from_them() -> None:
    random = np.random.default_rng(1)
    features = random.random((60, 2)) * 0.5
    targets = np.stack([np.sin(4 * features[:, 0]), features[:, 1] ** 2], axis=1)
    fitted = online.fit(features, targets, 3)
    there = online.predict(fitted, features)
    error = np.sqrt(np.mean((there.mean(axis=0) - targets) ** 2, axis=0))
    assert (error < 0.1 * targets.std(axis=0)).all()
    away = online.predict(fitted, np.array([[0.95, 0.95]]))
    assert (away.std(axis=0) > 5 * there.std(axis=0).mean(axis=0)).all()


def test_a_fit_is_the_same_with_the_same_seed_and_compiles_once_a_size() -> None:
    random = np.random.default_rng(1)
    features, targets = random.random((40, 2)), random.random((40, 1))
    first = online.predict(online.fit(features, targets, 3), features)
    before = online._fitted._cache_size()
    again = online.predict(online.fit(features, targets, 3), features)
    online.fit(random.random((64, 2)), random.random((64, 1)), 4)
    assert online._fitted._cache_size() == before
    np.testing.assert_array_equal(first, again)
    other = online.predict(online.fit(features, targets, 4), features)
    assert np.abs(first - other).max() > 0


@pytest.mark.slow
def test_the_way_down_ends_lower_and_leaves_choices_alone() -> None:
    random = np.random.default_rng(2)
    features = random.random((64, 3))
    targets = np.square(features[:, :2] - 0.3).sum(axis=1, keepdims=True)
    fitted = online.fit(features, targets, 3)
    starts = np.broadcast_to(features[:32], (online.MEMBERS, 32, 3))
    ends, values = online.descend(
        fitted, starts, np.broadcast_to([True, True, False], starts.shape)
    )
    begun = np.asarray(online.merged(online.predict(fitted, features[:32])))
    assert (values.mean(axis=1) < begun.mean(axis=1)).all()
    np.testing.assert_allclose(ends[..., 2], starts[..., 2], rtol=1e-6)
    assert ends.min() >= 0 and ends.max() <= 1
    assert np.median(np.abs(ends[..., :2] - 0.3)) < 0.15


def test_kept_constraints_add_nothing_to_the_score() -> None:
    outputs = np.array([[1.0, -3.0], [1.0, 0.0], [1.0, 2.0]], np.float32)
    kept, edge, broken = np.asarray(online.merged(outputs))
    assert kept == edge == pytest.approx(1.0, rel=1e-5)
    assert broken == pytest.approx(np.log(np.e + online.EXCESS_SCALE * np.sinh(2.0)), rel=1e-5)


def test_expected_excesses_are_means_over_what_the_true_excess_may_be() -> None:
    """Against a million draws of the true excess, in the engine's compressed units."""
    found, error = np.array([-0.8, -0.1, 0.5]), np.array([0.4], np.float32)
    outputs = np.stack([np.zeros(3), np.arcsinh(found)], axis=1).astype(np.float32)
    draws = found[:, None] + 0.4 * np.random.default_rng(1).normal(size=1_000_000)
    wanted = np.log1p(online.EXCESS_SCALE * np.maximum(draws, 0).mean(axis=1))
    np.testing.assert_allclose(online.merged(outputs, error), wanted, rtol=0.01)
    exact = np.array([1e-3], np.float32)
    np.testing.assert_allclose(online.merged(outputs, exact), online.merged(outputs), atol=1e-4)


def test_targets_keep_the_sign_of_excesses_and_the_order_of_scores(space: Space) -> None:
    told = [hinge(space.at(shares)) for shares in np.random.default_rng(4).random((20, 3))]
    targets, goal, place, errors = targets_of(told)
    assert errors is None
    merged = np.asarray(online.merged(targets.astype(np.float32)))
    assert place == int(np.argmin([one.score for one in told])) == int(merged.argmin())
    assert goal < merged.min()
    assert (np.sign(targets[:, 1]) == np.sign([one.excesses[0] for one in told])).all()
    failed = [*told, Told(told[0].point, 1e6, has_failed=True)]
    assert np.isfinite(targets_of(failed)[0]).all()


def test_the_goal_is_a_little_below_the_best_score(space: Space) -> None:
    """Where the constraint holds, scores are linear in what the logarithms are of."""
    told = [hinge(space.at((share, 0.9, 0.5))) for share in (0.1, 0.5, 0.9)]
    targets, goal, place, _ = targets_of(told)
    lengths, scores = np.expm1(targets[:, 0]), [one.score for one in told]
    slope = (lengths[1] - lengths[0]) / (scores[1] - scores[0])
    wanted = lengths[place] - slope * LEAST_GAIN * scores[place]
    assert goal == pytest.approx(wanted if wanted < 0 else np.log1p(wanted))


def test_the_local_region_shrinks_without_progress(space: Space) -> None:
    search = budget("ensemble")
    point = space.at((0.5, 0.5, 0.5))
    idle = [Told(point, 10.0)] * (search.initial + 4 * search.batch)
    assert _edge(idle, search) == MOST_EDGE / 4
    better = [*idle, *(Told(point, 9.0 - place) for place in range(3))]
    assert _edge(better, search) == MOST_EDGE / 4 * 1.5


def test_constraints_reach_the_engine_with_their_sign() -> None:
    valuation = Valuation(parse_strategy(TINY, "tiny.yaml"))
    names = ("ttft_p99_ms", "ttft_p99_ms[critical]")
    runs = [run_of(**dict.fromkeys(names, 50.0), tokens_per_sec=2e9)]
    worth = valuation.worth(runs)
    assert worth.penalty == 0 and worth.excesses == (pytest.approx(-1.0),)


def best_of_a_search(space: Space, valued: Callable[[Point], Told], calls: int) -> Told:
    """What the engine finds in so many calls."""
    engine = make(space, budget("ensemble", calls=calls, initial=8, batch=8))
    told: list[Told] = []
    while len(told) < calls:
        told += [valued(point) for point in engine.ask(told, 8)]
    return min(told, key=lambda one: one.score)


def test_the_engine_finds_an_edge_that_a_constraint_makes(space: Space) -> None:
    best = best_of_a_search(space, hinge, 40)
    assert best.score < 22.0  # the optimum is 20, at 1,000 tokens; a tenth of the range costs 7
    assert abs(best.point[1] - 1000) < 40 and best.point[2] == 1


@pytest.mark.slow
def test_the_engine_keeps_a_distance_from_an_edge_that_few_seeds_show(space: Space) -> None:
    """The optimum is at 1,025.6 tokens; that of the plain penalty is at 1,000."""
    assert 1010 < best_of_a_search(space, unsure, 64).point[1] < 1045
