"""The loop and its record: an interrupted search ends as one that was left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.workload.spec import load_builtin
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_content, workload_of
from sweeps.search.command import by_class, figures
from sweeps.search.engines import make
from sweeps.search.loop import (
    ExperimentOnLoads,
    Runs,
    SearchRecord,
    Tried,
    best_of,
    load_specs,
    search,
)
from sweeps.search.objectives import Valuation
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import Point, Space, space_of
from tests.sweeps.tiny import TINY, run_of, tiny_space


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


@pytest.mark.parametrize("engine", ["random", "denoised", "gp_minimize"])
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
    with pytest.raises(ConfigError, match=r"is not a record of this work \(search\)"):
        SearchRecord(path, {"seeds": 1}).read()
    path.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"is not a record of this work \(search\)"):
        SearchRecord(path, {"seeds": 1}).read()


def test_a_window_is_part_of_what_a_record_is_of() -> None:
    """Rates in a window count otherwise than in earlier versions, whose records are not gone on with."""
    plain, windowed = load_builtin("mixed"), load_builtin("stationary")
    assert workload_content(plain) == plain.model_dump(mode="json")
    assert workload_content(windowed)["rates"] == "completions in the window"


# A search on several loads: whose figures stand where, and what is refused


SEVERAL = (
    TINY.replace(
        "success_criteria:", "loads: {slow: {workload: mixed, rate: 10}}\nsuccess_criteria:"
    )
    .replace(
        "objectives: [", 'objectives: [{metric: "ttft_p99_ms[critical]", at: slow, weight: 2}, '
    )
    .replace(
        "constraints:",
        "constraints:\n  - {metric: tokens_per_sec, at: slow, direction: max, threshold: 9}",
    )
)


def test_figures_of_all_loads_stand_beside_each_other() -> None:
    """The load is the tiny workload itself at a tenth of its rate."""
    own = TINY[TINY.index("workload:") : TINY.index("seeds:")].replace("workload:", "").splitlines()
    inline = "\n".join(f"    {line}" for line in own if line)
    text = SEVERAL.replace(
        "loads: {slow: {workload: mixed, rate: 10}}",
        f"loads:\n  slow:\n    rate: 20\n    workload:\n{inline}",
    )
    strategy = parse_strategy(text, "several.yaml")
    space, valuation = space_of(strategy), Valuation(strategy, has_loads=True)
    assert valuation.names_at("slow") == ("ttft_p99_ms[critical]", "tokens_per_sec")
    specs = load_specs(strategy)
    main = Experiment.on(workload_of(strategy), (42, 43), "reference", valuation.names)
    config = space.config_at(space.at([0.3, 0.6, 0.9]))
    (runs,) = ExperimentOnLoads(main, valuation, specs).run([config])
    (mine,) = main.run([config])
    (slow,) = Experiment.on(specs["slow"], (42, 43), "reference", valuation.names_at("slow")).run(
        [config]
    )
    for run, one, other in zip(runs, mine, slow, strict=True):
        assert one.metrics.items() <= run.metrics.items()
        assert run.metrics["tokens_per_sec at slow"] == other.metrics["tokens_per_sec"]
        assert run.metrics["tokens_per_sec"] > 1.5 * run.metrics["tokens_per_sec at slow"]
    worth = valuation.worth(runs)
    assert worth.objectives[0] != worth.objectives[1]
    assert worth.penalties["tokens_per_sec at slow"] == 0.0
    assert set(by_class(figures(runs))["critical"]) == {"ttft_p99_ms", "ttft_p99_ms at slow"}


def test_a_run_that_fails_at_one_load_is_a_failure() -> None:
    whole = RunSummary(Outcome.COMPLETED, {"ttft_p99_ms": 1.0})
    failed = RunSummary(Outcome.LIVELOCK)
    for one, other in ((whole, failed), (failed, whole)):
        assert one.beside(other, " at slow") == failed


def test_what_is_wrong_is_said() -> None:
    unknown = parse_strategy(SEVERAL.replace("at: slow", "at: slaw"), "several.yaml")
    with pytest.raises(ConfigError, match=r"objectives\[0\].at: there is no load 'slaw'.*slow"):
        Valuation(unknown, has_loads=True)
    with pytest.raises(ConfigError, match=r"loads: only blis-jax optimize runs a point on several"):
        Valuation(parse_strategy(SEVERAL, "several.yaml"))
    with pytest.raises(ConfigError, match=r"loads.slow.rate"):
        parse_strategy(SEVERAL.replace("rate: 10", "rate: 0"), "several.yaml")
