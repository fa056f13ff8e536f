"""What every search engine must do, and what each is for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from sweeps.optimize import OptimizeOptions
from sweeps.search.engines import ENGINES, GONE, Told, make
from sweeps.search.engines.encoding import modelled
from sweeps.search.objectives import hypervolume
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space
from tests.sweeps.tiny import TINY, budget, tiny_space

MARKS = {"ensemble": [pytest.mark.lenient_promotion]}  # flax and optax promote implicitly
EVERY = [pytest.param(name, marks=MARKS.get(name, [])) for name in ENGINES]


@pytest.fixture(scope="module")
def space() -> Space:
    return tiny_space()


def told(point: Point) -> Told:
    """A made-up landscape, with a part of it that fails."""
    base, tokens, weight = point
    if base > 17:
        return Told(point, 1e6, has_failed=True)
    objectives = (abs(base - 8) * weight, abs(tokens - 900) / 100)
    return Told(point, sum(objectives), objectives)


def batches_of(space: Space, engine: str) -> list[list[Point]]:
    """Twelve points, or fewer, of one engine that lives through the whole search."""
    one, batches, points = make(space, budget(engine)), [], list[Point]()
    while len(points) < 12:
        asked = one.ask([told(point) for point in points], min(3, 12 - len(points)))
        if not asked:
            break
        batches.append(asked)
        points += asked
    return batches


def searched(space: Space, engine: str) -> list[Point]:
    return [point for batch in batches_of(space, engine) for point in batch]


@pytest.mark.parametrize("engine", EVERY)
def test_points_are_in_the_space_and_plain(space: Space, engine: str) -> None:
    points = searched(space, engine)
    assert 8 <= len(points) <= 12
    for base, tokens, weight in points:
        assert isinstance(base, float) and 5 <= base <= 20
        assert isinstance(tokens, int) and 600 <= tokens <= 2048
        assert weight in (1, 2)
    assert json.loads(json.dumps(points)) == [list(point) for point in points]
    assert len(set(points)) > 5


@pytest.mark.parametrize("engine", EVERY)
def test_a_new_engine_goes_on_where_another_stopped(space: Space, engine: str) -> None:
    batches = batches_of(space, engine)
    history = [told(point) for batch in batches[:-1] for point in batch]
    assert make(space, budget(engine)).ask(history, len(batches[-1])) == batches[-1]


@pytest.mark.parametrize("engine", EVERY)
def test_failures_alone_do_not_stop_an_engine(space: Space, engine: str) -> None:
    points = make(space, budget(engine)).ask([], 3)
    failures = [Told(point, 1e6, has_failed=True) for point in points]
    failures = (failures * 2)[:4]
    assert make(space, budget(engine)).ask(failures, 2)


@pytest.mark.parametrize("engine", ["denoised", "random", "sobol", "gp_minimize"])
def test_another_random_state_is_another_search(space: Space, engine: str) -> None:
    first = make(space, budget(engine)).ask([], 2)
    assert make(space, budget(engine, random_state=7)).ask([], 2) != first


def test_a_model_beats_chance(space: Space) -> None:
    def best(engine: str) -> float:
        return min(told(point).score for point in searched(space, engine))

    assert best("gp_minimize") < best("random")


@pytest.mark.parametrize("random_state", [1, 2, 3])
def test_pareto_covers_a_front_that_is_known(space: Space, random_state: int) -> None:
    """The front is a line from (0, 1) to (1, 0): of the half below the corner (1, 1) most is dominated."""
    low, high = space.dimensions[0], space.dimensions[1]

    def told_of(point: Point) -> Told:
        along, aside = low.share(point[0]), 2 * abs(high.share(point[1]) - 0.3) + point[2] - 1
        objectives = (along + aside, 1 - along + aside)
        return Told(point, sum(objectives), objectives)

    def dominated(engine: str) -> float:
        one, tries = make(space, budget(engine, random_state=random_state)), list[Told]()
        while len(tries) < 32:
            tries += [told_of(point) for point in one.ask(tries, 8)]
        return hypervolume(np.array([one.objectives for one in tries]), (1.0, 1.0))

    assert dominated("pareto") > max(0.35, 1.3 * dominated("sobol"))


def test_the_help_names_every_engine() -> None:
    (option,) = (kind for kind in OptimizeOptions.parser()._actions if kind.dest == "engine")
    names = str(option.help).partition(" (")[0].replace(" or ", ", ").split(", ")
    assert sorted(names) == sorted(ENGINES)


def test_grid_has_both_ends_and_every_category(space: Space) -> None:
    points = searched(space, "grid")
    assert len(points) == 12  # 3 × 2 × 2
    assert {5.0, 20.0} <= {point[0] for point in points}
    assert {point[1] for point in points} == {600, 2048}
    assert {point[2] for point in points} == {1, 2}
    with pytest.raises(ConfigError, match=r"search\.calls: a grid over the categories"):
        make(space, budget("grid", calls=1))


def test_unknown_engines_and_empty_spaces_are_refused(space: Space) -> None:
    with pytest.raises(
        ConfigError, match=r"search\.engine: 'sobel' is unknown.*did you mean 'sobol'"
    ):
        make(space, budget("sobel"))
    with pytest.raises(ConfigError, match="parameters: there are none"):
        make(tiny_space("{name: a, objectives: [{metric: e2e_p99_ms}]}"), budget("grid"))


def test_models_see_failures_a_little_above_the_worst() -> None:
    tries = [Told((0,), 1.0), Told((1,), 1e6, has_failed=True), Told((2,), 5.0)]
    np.testing.assert_allclose(modelled(tries), [1.0, 7.5, 5.0])
    assert modelled([tries[1]]).tolist() == [0.0]


@pytest.mark.parametrize("engine", GONE)
def test_an_engine_that_left_is_refused_with_the_one_to_use(space: Space, engine: str) -> None:
    problem = rf"search\.engine: '{engine}' has left blis_jax.*cannot be resumed.*denoised"
    with pytest.raises(ConfigError, match=problem):
        make(space, budget(engine))
    assert engine not in ENGINES and Search().engine in ENGINES


def test_a_search_begins_at_the_points_that_the_file_names() -> None:
    """Then come those of the engine, which are told of them."""
    point = (
        "{slo_base_critical: 7.0, max_num_scheduled_tokens: 700, routing_scorers.queue-depth: 2}"
    )
    space = tiny_space(TINY + f"points: {{known: {point}, half: {{slo_base_critical: 8.0}}}}")
    engine = make(space, budget("random").model_copy(update={"start": ("known",)}))
    known = (7.0, 700, 2)
    assert engine.ask([], 3) == [known]
    told = [Told(known, 1.0)]
    assert engine.ask(told, 3) == make(space, budget("random")).ask(told, 3)
    for start, problem in (("half", "give max_num_scheduled_tokens too"), ("knwon", "'known'")):
        with pytest.raises(ConfigError, match=problem):
            make(space, budget("random").model_copy(update={"start": (start,)}))
