"""Rungs: most points run on a few seeds, the best one on all of them, and the budget counts runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from sweeps.search.command import SearchFrame, to_document
from sweeps.search.engines import Told, make, recommended
from sweeps.search.loop import (
    LARGEST_SHARE,
    PointRuns,
    Race,
    SearchRecord,
    best_of,
    most_runs,
    search,
)
from sweeps.search.objectives import Runs, Valuation
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import Point, Space, space_of
from tests.sweeps.tiny import TINY, run_of

NUM_SEEDS = 16
RACED = TINY.replace("seeds: [42, 43]", f"seeds: {list(range(NUM_SEEDS))}").replace(
    "search: {engine: random, calls: 5, initial: 3, batch: 2}",
    "search: {engine: random, calls: 10, initial: 4, batch: 4, rungs: [2, 4]}",
)


class Simulator:
    """A point's figure is its first parameter, what its seed does to all points, and chance of its own."""

    def __init__(self, chance: float = 0.0, stages: int = 999) -> None:
        self.chance, self.stages, self.num_runs = chance, stages, 0

    def __call__(self, points: Sequence[Point], places: range) -> list[Runs]:
        if not self.stages:
            raise KeyboardInterrupt
        self.stages -= 1
        self.num_runs += len(points) * len(places)
        return [tuple(self._run(point, place) for place in places) for point in points]

    def _run(self, point: Point, place: int) -> object:
        own = np.random.default_rng([round(1e6 * point[0]), place]).normal() * self.chance
        common = np.random.default_rng(place).normal() * 5
        value = float(point[0] + own + common)
        figures = {"ttft_p99_ms[critical]": value, "tokens_per_sec": 1.0, "ttft_p99_ms": 1.0}
        return run_of(**figures)


@pytest.fixture(scope="module")
def space() -> Space:
    return space_of(parse_strategy(RACED, "raced.yaml"))


def raced(space: Space, simulator: Simulator, record: SearchRecord | None = None) -> list[object]:
    engine = make(space, space.strategy.search)
    return list(search(engine, Valuation(space.strategy), simulator, record))


def test_the_budget_counts_runs_and_the_best_point_has_them_all(space: Space) -> None:
    simulator = Simulator(chance=1.0)
    tried = raced(space, simulator)
    numbers = [len(one.runs) for one in tried]
    assert sum(numbers) == simulator.num_runs <= 10 * NUM_SEEDS
    assert 10 * NUM_SEEDS - simulator.num_runs < 2  # less than a point needs
    assert set(numbers) == {2, 4, NUM_SEEDS} and numbers.count(2) > len(tried) / 2
    best = best_of(tried)
    assert best is not None and len(best.runs) == NUM_SEEDS
    dropped = [one.point[0] for one in tried if len(one.runs) == 2]
    assert best.point[0] < np.quantile(dropped, 0.2)


def test_seeds_that_a_point_lacks_are_judged_by_what_they_do_to_others(space: Space) -> None:
    """Without chance of their own, points on two seeds get exactly the scores that they have on all."""
    tried = raced(space, Simulator())
    whole = Simulator()([one.point for one in tried], range(NUM_SEEDS))
    valuation = Valuation(space.strategy)
    assert len({len(one.runs) for one in tried}) > 1
    scores = [one.worth.score for one in tried]
    assert scores == pytest.approx([valuation.worth(runs).score for runs in whole], rel=1e-9)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_resumed_equals_unkilled(space: Space, tmp_path: Path, stages: int) -> None:
    unkilled = raced(space, Simulator(chance=1.0))
    record = SearchRecord(tmp_path / "search.jsonl", {"seeds": 1})
    with pytest.raises(KeyboardInterrupt):
        raced(space, Simulator(chance=1.0, stages=stages), record)
    assert raced(space, Simulator(chance=1.0), record) == unkilled
    assert raced(space, Simulator(stages=0), record) == unkilled


def test_who_goes_on(space: Space) -> None:
    """Five points on two seeds: the best and one that may be better go on, a failure and far ones do not."""
    race, simulator = Race(Valuation(space.strategy), NUM_SEEDS), Simulator(chance=0.5)
    points: list[Point] = [(6.0 + far, 700, 1) for far in (0.0, 0.05, 8.0, 9.0)]
    runs = simulator(points, range(2))
    failed = tuple(run.__class__(Outcome.LIVELOCK) for run in runs[0])
    race.add([PointRuns(*one) for one in zip(points, runs, strict=True)])
    race.add([PointRuns((5.0, 700, 1), failed)])
    tried = race.tried()
    stage, best = race.climb(tried, make(space, space.strategy.search)), best_of(tried)
    assert stage is not None and stage.places == range(2, 4) and best is not None
    assert stage.points[0] == best.point and set(stage.points) <= set(points[:2])
    assert best_of([]) is None


class LowestScore:
    """An engine that recommends the lowest score, and asks for points ever nearer to the best."""

    def __init__(self, told_of: list[int] | None = None) -> None:
        self.told_of = told_of if told_of is not None else []

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        return [(20.0 - 0.1 * (len(told) + place), 700, 1) for place in range(count)]

    def ranked(self, told: Sequence[Told]) -> list[int]:
        self.told_of.append(len(told))
        return sorted(range(len(told)), key=lambda place: told[place].score)


def test_an_engine_that_recommends_says_who_goes_on(space: Space) -> None:
    """No rung takes more than its share of the runs before the end; there the recommended point gets all runs."""
    stages: list[tuple[int, range, int | None]] = []
    race = Race(Valuation(space.strategy), NUM_SEEDS)
    engine, simulator = LowestScore(), Simulator(chance=0.2)
    while True:
        tried = race.tried()
        stage = race.climb(tried, engine) or race.new(engine, tried)
        is_end = stage is None
        stage = stage or race.finish(tried, engine)
        if stage is None:
            break
        if stage.calls is not None:
            place = engine.ranked([one.told() for one in tried])[0]
            assert stage.calls == [place] and not race.is_over(False)
            num_taken = len(stage.places) * (
                1 + sum(len(one.runs) > stage.places[0] for one in tried)
            )
            is_due = num_taken <= LARGEST_SHARE * (race.num_runs + len(stage.places))
            assert (race.is_over(True) and stage.places.stop == NUM_SEEDS) if is_end else is_due
        stages.append((race.num_runs, stage.places, stage.calls and stage.calls[0]))
        race.add(stage.entries(simulator(stage.points, stage.places)))
    assert race.num_runs <= 10 * NUM_SEEDS
    numbers = [len(one.runs) for one in tried]
    assert set(numbers) == {2, 4, NUM_SEEDS} and min(engine.told_of) >= 4
    end = recommended(engine, [one.told() for one in tried], most_runs(tried))
    assert end is not None and numbers[end] == NUM_SEEDS
    assert any(taken[2] is not None and taken[1].stop == NUM_SEEDS for taken in stages[-2:])


@pytest.mark.parametrize("stages", [2, 6, 9])
def test_resumed_equals_unkilled_where_an_engine_recommends(
    space: Space, tmp_path: Path, stages: int
) -> None:
    def led(simulator: Simulator, record: SearchRecord | None = None) -> list[object]:
        return list(search(LowestScore(), Valuation(space.strategy), simulator, record))

    unkilled = led(Simulator(chance=1.0))
    record = SearchRecord(tmp_path / "search.jsonl", {"seeds": 1})
    with pytest.raises(KeyboardInterrupt):
        led(Simulator(chance=1.0, stages=stages), record)
    assert led(Simulator(chance=1.0), record) == unkilled
    assert led(Simulator(stages=0), record) == unkilled


def test_a_budget_too_small_for_a_model_is_spent(space: Space) -> None:
    """16 runs: too few to take a point to all seeds beside the first four."""
    strategy = space.strategy.model_copy(
        update={"search": space.strategy.search.model_copy(update={"calls": 1})}
    )
    tried = list(search(LowestScore(), Valuation(strategy), Simulator(chance=0.2)))
    numbers = [len(one.runs) for one in tried]
    assert len(numbers) >= 4 and 4 in numbers and sum(numbers) <= NUM_SEEDS


def test_the_command_shows_a_recommended_point_with_all_runs(space: Space) -> None:
    engine = LowestScore()
    tried = list(search(engine, Valuation(space.strategy), Simulator(chance=0.2)))
    place = recommended(engine, [one.told() for one in tried], most_runs(tried))
    frame = SearchFrame(space, Valuation(space.strategy), tuple(range(NUM_SEEDS)), "reference")
    document = to_document(frame, tried, place)
    assert document["is_recommended"] and document["best_call"] == place
    assert "is_estimate" not in document["points"][place]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("rungs: [4, 2]", r"raced.yaml: search: rungs must grow, such as \[4, 16\]; given are \[4, 2\]"),
        ("rungs: [1, 4]", r"raced.yaml: search.rungs\[0\]: got 1, allowed is a number of at least 2"),
        ("engine: pareto, rungs: [2]", "leave rungs out"),
    ],
)  # fmt: skip
def test_refusals(given: str, words: str) -> None:
    text = RACED.replace("rungs: [2, 4]", given).replace(
        "engine: random, ", "" if "engine" in given else "engine: random, "
    )
    with pytest.raises(ConfigError, match=words):
        parse_strategy(text, "raced.yaml")


def test_the_last_rung_is_below_the_number_of_seeds(space: Space) -> None:
    with pytest.raises(
        ConfigError, match=r"search\.rungs: the last one is 4, and the search has 4 seeds; give"
    ):
        Race(Valuation(space.strategy), 4)


def test_a_search_without_rungs_is_recorded_as_before_there_were_any() -> None:
    plain, with_rungs = (parse_strategy(text, "a.yaml").search for text in (TINY, RACED))
    assert "rungs" not in plain.model_dump() and plain.rungs == ()
    assert with_rungs.model_dump()["rungs"] == (2, 4)
