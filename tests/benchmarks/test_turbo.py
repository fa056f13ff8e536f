"""The trust region of the engine `turbo`; its region needs no BoTorch, its batches do."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from benchmarks.search.turbo import (
    FIRST_EDGE,
    MOST_EDGE,
    LedTurbo,
    TrustRegion,
    Turbo,
    _lowest,
    engine_of,
    region_of,
)
from blis_jax.errors import ConfigError
from sweeps.search.engines import Told, recommended, recommends
from sweeps.search.engines.denoised import Denoised
from tests.sweeps.tiny import budget, tiny_space

SEARCH = budget("turbo", calls=200, initial=4, batch=4)


def tried(scores: list[float]) -> list[Told]:
    """First points at 100, then batches of which one point has a score and three are bad."""
    made = [Told((0,), 100.0)] * SEARCH.initial
    for score in scores:
        made += [Told((0,), score), *[Told((0,), 200.0)] * 3]
    return made


def test_the_region_doubles_with_successes_and_halves_with_failures() -> None:
    assert region_of(tried([]), SEARCH, 4) == TrustRegion(0, FIRST_EDGE)
    assert region_of(tried([90, 80]), SEARCH, 4).edge == FIRST_EDGE
    assert region_of(tried([90, 80, 70]), SEARCH, 4).edge == MOST_EDGE
    assert region_of(tried([90, 80, 70, 60, 50, 40]), SEARCH, 4).edge == MOST_EDGE
    assert region_of(tried([90, 95]), SEARCH, 4).edge == FIRST_EDGE / 2
    assert region_of(tried([90, 89.95]), SEARCH, 4).edge == FIRST_EDGE / 2  # hardly better
    assert region_of(tried([90, 95, 80, 70]), SEARCH, 4).edge == FIRST_EDGE / 2  # two only
    assert region_of(tried([150] * 2), SEARCH, 8).edge == FIRST_EDGE / 2  # patience of two


def test_a_region_that_is_too_small_begins_anew_without_its_points() -> None:
    worse = [150.0] * 7  # seven times halved is 0.8 / 128, below the least edge
    assert region_of(tried(worse[:6]), SEARCH, 4) == TrustRegion(0, FIRST_EDGE / 64)
    begin = SEARCH.initial + 7 * SEARCH.batch
    assert region_of(tried(worse), SEARCH, 4) == TrustRegion(begin, FIRST_EDGE)
    # A batch is the first points; another is better than these, so no failure.
    assert region_of(tried([*worse, 140.0, 130.0]), SEARCH, 4) == TrustRegion(begin, FIRST_EDGE)
    assert region_of(tried([*worse, 140.0, 145.0]), SEARCH, 4) == TrustRegion(begin, FIRST_EDGE / 2)


def test_every_draw_gives_its_lowest_candidate_in_turn() -> None:
    values = np.array([[3.0, 1.0, 2.0, 9.0], [1.0, 2.0, 3.0, 0.5]])
    assert _lowest(values, 4) == [1, 3, 2, 0]
    assert _lowest(values, 9) == [1, 3, 2, 0]


@pytest.mark.slow
@pytest.mark.lenient_promotion
def test_the_engine_finds_a_minimum_and_searches_on_after_a_restart() -> None:
    pytest.importorskip("botorch", reason="botorch is not installed; blis_jax does not need it")
    space = tiny_space()
    engine = Turbo(space, budget("turbo", calls=60, initial=6, batch=6))
    told: list[Told] = []
    while len(told) < 60:
        for base, tokens, weight in engine.ask(told, 6):
            worth = 50 + (base - 8) ** 2 + ((tokens - 900) / 100) ** 2 + weight
            told.append(Told((base, tokens, weight), worth, (worth,)))
    assert min(one.score for one in told) < 51.5  # 51 is the least
    assert len({one.point for one in told}) == 60


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botorch", None)
    with pytest.raises(ConfigError, match="'turbo' needs botorch; pip install botorch"):
        Turbo(tiny_space(), SEARCH)


def test_with_rungs_the_processes_of_denoised_say_which_point_goes_on(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "botorch", ModuleType("botorch"))
    space, search = tiny_space(), budget("turbo", calls=60, initial=6, batch=6)
    led, plain = LedTurbo(space, search), Turbo(space, search)
    told = [
        one._replace(point=point, score=float(place), objectives=(float(place),), num_runs=4)
        for place, (one, point) in enumerate(zip(tried([]) * 2, plain.ask([], 6), strict=False))
    ]
    assert recommends(led) and not recommends(plain)
    assert recommended(led, told) == recommended(Denoised(space, search), told) == 0
    assert isinstance(engine_of(space, budget("turbo-raced-expected")), LedTurbo)
    assert not isinstance(engine_of(space, budget("turbo")), LedTurbo)
