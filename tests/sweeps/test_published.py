"""The record's own searches: the same points in the same order have the published scores."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.search.engines import make
from sweeps.search.loop import runs_at, search
from sweeps.search.objectives import Valuation
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of
from tests.support.recorded.reference_data import SHARED_DIR
from tests.support.rotation import rotating

FOLDER = SHARED_DIR / "data" / "blis_reference" / "strategy_pr452"
SEARCHES = {"iter01_priority_cascade": "iter1", "iter08_token_budget": "iter8"}


def published(name: str) -> dict[str, Any]:
    path = FOLDER / f"{SEARCHES[name]}-optimization-results.json"
    if not path.is_file():
        pytest.skip("no results of the reference beside this checkout")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.golden
@pytest.mark.parametrize("name", rotating(SEARCHES, always=["iter01_priority_cascade"]))
def test_first_calls_and_best_point_have_the_published_scores(name: str) -> None:
    recorded = published(name)
    strategy = load_strategy(name)
    few = strategy.search.model_copy(update={"calls": 5})
    strategy = strategy.model_copy(update={"search": few})
    space, valuation = space_of(strategy), Valuation(strategy)
    experiment = Experiment.on(workload_of(strategy), strategy.seeds, "reference", valuation.names)
    tried = search(make(space, few), valuation, runs_at(space, experiment))
    scores = [one.worth.score for one in tried]
    assert scores == pytest.approx(recorded["convergence"][:5], rel=1e-12)
    best = dict(recorded["best_parameters"])
    if "slo_scorer_weight" in best:  # a text there
        best["slo_scorer_weight"] = int(best["slo_scorer_weight"])
    point = tuple(best[parameter] for parameter in space.names)
    worth = valuation.worth(experiment.run([space.config_at(point)])[0])
    assert worth.score == pytest.approx(recorded["best_score"], rel=1e-12)
