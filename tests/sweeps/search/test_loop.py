"""The loop and its record: an interrupted search ends as one that was left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.spec import load_builtin
from sweeps.search.engines import make
from sweeps.search.loop import Runs, SearchRecord, search, workload_content
from sweeps.search.objectives import Valuation
from sweeps.search.racing import Tried, best_of
from sweeps.strategies.space import Point, Space
from tests.sweeps.tiny import run_of, tiny_space


@pytest.fixture(scope="module")
def space() -> Space:
    return tiny_space()


class Power(Exception):
    pass


class Simulator:
    """Made-up runs, which fail for good after some batches."""

    def __init__(self, batches: int = 99) -> None:
        self.batches, self.num_points = batches, 0

    def __call__(self, points: Sequence[Point], places: range) -> list[Runs]:
        if not self.batches:
            raise Power
        self.batches -= 1
        self.num_points += len(points)
        return [
            tuple(
                run_of(
                    **{"ttft_p99_ms[critical]": base / seed, "tokens_per_sec": float(tokens)},
                    ttft_p99_ms=1.0,
                )
                for seed in (3, 7)
            )
            for base, tokens, _ in points
        ]


def run(
    space: Space, simulator: Simulator, record: SearchRecord | None, engine: str
) -> list[Tried]:
    strategy = space.strategy
    engine_search = strategy.search.model_copy(update={"engine": engine, "calls": 7})
    strategy = strategy.model_copy(update={"search": engine_search})
    return search(make(space, engine_search), Valuation(strategy), simulator, record)


@pytest.mark.parametrize("engine", ["random", "gp", "gp_minimize"])
@pytest.mark.parametrize("is_torn", [False, True])
def test_resumed_equals_unkilled(space: Space, tmp_path: Path, engine: str, is_torn: bool) -> None:
    unkilled = run(space, Simulator(), None, engine)
    record = SearchRecord(tmp_path / "search.jsonl", {"seeds": 1})
    with pytest.raises(Power):
        run(space, Simulator(batches=2), record, engine)
    if is_torn:
        with record.path.open("a") as file:
            file.write('[{"point": [1')
    simulator = Simulator()
    assert run(space, simulator, record, engine) == unkilled
    assert 0 < simulator.num_points < 7
    simulator = Simulator(batches=0)
    assert run(space, simulator, record, engine) == unkilled  # nothing is left to do


def test_best_is_the_first_of_the_lowest(space: Space) -> None:
    tried = run(space, Simulator(), None, "random")
    best = best_of(tried)
    assert best is not None and best.worth.score == min(one.worth.score for one in tried)
    assert best_of([]) is None


def test_records_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    SearchRecord(path, {"seeds": 1}).begin()
    with pytest.raises(ConfigError, match="was made with different seeds;"):
        SearchRecord(path, {"seeds": 2}).read()
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="is not the record of a search"):
        SearchRecord(path, {"seeds": 1}).read()
    path.write_text("nonsense\n")
    with pytest.raises(ConfigError, match="is not the record of a search"):
        SearchRecord(path, {"seeds": 1}).read()


def test_a_window_is_part_of_what_a_record_is_of() -> None:
    """Rates in a window count otherwise than in earlier versions, whose records are not gone on with."""
    plain, windowed = load_builtin("mixed"), load_builtin("stationary")
    assert workload_content(plain) == plain.model_dump(mode="json")
    assert workload_content(windowed)["rates"] == "completions in the window"
