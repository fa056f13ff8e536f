"""Figures show what their commands draw today: the data that a PNG carries are compared.

Pictures that are drawn from data in the repository are all drawn again; those of runs are where the runs take minutes,
in turn with other slow tests.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from blis_jax.__main__ import main
from blis_jax.reports.drawing import data_of
from papers.record.figures import PaperFigure, shipped_data
from papers.routing_evolution.figures import FIGURES as OF_ROUTING
from papers.strategy_evolution.figures import FIGURES as OF_SCHEDULING
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.rotation import rotating

FIGURES = REPO_ROOT / "docs" / "figures"
BEST = "iter08_token_budget@published"
DRAWN_BY = {
    "routers": "compare --trace examples/traces/bursts.csv --routers all",
    "compare_best_t1024": f"compare iter00_baseline best={BEST} t1024={BEST}:max_tokens=1024",
    "ablate_best": f"ablate {BEST} --against iter00_baseline --design full",
    "goodput_limits": "limits iter00_baseline row13=iter13_class_lead@found row21=iter21_intent@found "
    "thin=iter23_thin_tiers@begun every=iter25_every_class@found --seeds 60 --first-seed 96000 --rng jax",
    "sweep_baseline_vs_it08_opt": "sweep --vmap-seeds 256 --output out/sweep.zarr",
}
FROM_DATA = {  # of the repository: the picture, the module that draws it, its words, and the file that it writes
    "sensitivity_agreement_iter08": (
        "docs/figures/sensitivity_agreement_iter08.png",
        "papers.sensitivity",
        "--saved --output out",
        "out/agreement_iter08_token_budget.png",
    ),
    "curve of bred routers": (
        "papers/router_search/pictures/curve.png",
        "papers.router_search",
        "--saved --picture curve.png",
        "curve.png",
    ),
}
OF_CAPACITY = ("capacity_gpus", "capacity_policies", "capacity_roles")  # the page has their numbers
OF_LONG_RUNS = {  # made by hours of runs, or with what is not in the repository
    "adapters": "examples/adapters/placements.py",
    "calibration": "a file of vllm bench serve",
    "curve": "a search for full clusters",
    "drafted_tokens": "examples/drafts/break_even.py",
    "real_servers": "the runs of public collections",
    "sawtooth": "400 steps of two derivatives",
    "search_iter08_token_budget": "a search",
    "search_reliability_joint_all_layers": "20 searches an engine, judged on seeds of their own",
    "search_reliability_joint_by_model": "20 searches an engine, judged on seeds of their own",
    "sensitivity_iter08_token_budget": "a design of runs",
    "surrogate_iter08_parity": "a trained surrogate",
    "surrogate_iter08_residuals": "a trained surrogate",
    "trace_viewer": "a screen of Perfetto",
    "way_of_a_request": "a drawing, by way_of_a_request.py",
}
CLOSE = 1e-3  # what another machine's logarithms may change


def different(one: Any, other: Any, place: str = "") -> list[str]:
    """Return the places at which two pieces of JSON differ, numbers by more than a thousandth."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in different(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for at, (a, b) in pairs for found in different(a, b, f"{place}/{at}")]
    if isinstance(one, float | int) and isinstance(other, float | int):
        is_same = math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)
    else:
        is_same = one == other
    return [] if is_same else [f"{place}: {one} and {other}"]


def test_a_changed_number_is_found() -> None:
    shown: Any = data_of(FIGURES / "routers.png")
    assert different(shown, shown) == []
    assert different({"a": [1.0, "x"]}, {"a": [1.1, "x"]}) == ["/a/0: 1.0 and 1.1"]
    assert different({"a": [1.0]}, {"a": [1.0, 2.0]}) != []


@pytest.mark.parametrize("name", DRAWN_BY)
def test_a_figure_carries_its_data(name: str) -> None:
    assert data_of(FIGURES / f"{name}.png")["panels"]


@pytest.mark.slow
@pytest.mark.parametrize("name", tuple(DRAWN_BY))
def test_a_figure_is_what_its_command_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(REPO_ROOT / "examples" / "traces", tmp_path / "examples" / "traces")
    monkeypatch.chdir(tmp_path)
    drawn = tmp_path / f"{name}.png"
    assert main([*shlex.split(DRAWN_BY[name]), "--figure", str(drawn)]) == 0
    assert different(data_of(FIGURES / f"{name}.png"), data_of(drawn)) == []


def test_every_figure_is_compared_or_said_why_not() -> None:
    known = [*DRAWN_BY, *OF_CAPACITY, *OF_LONG_RUNS, "sensitivity_agreement_iter08"]
    assert sorted(known) == sorted(path.stem for path in FIGURES.glob("*.png"))


@pytest.mark.parametrize(
    "figure",
    rotating([*OF_ROUTING, *OF_SCHEDULING], always=[OF_ROUTING[0], OF_SCHEDULING[0]]),
)
def test_a_picture_of_a_record_is_what_its_data_draw(figure: PaperFigure, tmp_path: Path) -> None:
    package = shipped_data(figure.package)
    figure.draw(package, tmp_path / "fresh.png")
    kept = package.parent / "pictures" / f"{figure.name}.png"
    assert different(data_of(kept), data_of(tmp_path / "fresh.png")) == []


@pytest.mark.parametrize("name", FROM_DATA)
def test_a_figure_of_saved_results_is_what_they_draw(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, module, words, written = FROM_DATA[name]
    monkeypatch.chdir(tmp_path)
    assert import_module(f"{module}.__main__").main(words.split()) == 0
    assert different(data_of(REPO_ROOT / kept), data_of(tmp_path / written)) == []


@pytest.mark.parametrize("name", OF_CAPACITY)
def test_a_figure_of_capacity_has_the_numbers_of_its_page(name: str) -> None:
    page = (REPO_ROOT / "docs" / "results" / "capacity.md").read_text(encoding="utf-8")
    table = page.partition(f"figures/{name}.png")[0].rpartition("| kind of cluster |")[2]
    said = set(re.findall(r"([\d.]+) % \[([\d.]+), ([\d.]+)\]", table))
    marks = [
        mark for panel in data_of(FIGURES / f"{name}.png")["panels"] for mark in panel["marks"]
    ]
    drawn = {
        tuple(f"{mark[key][0]:.2f}" for key in ("y", "y_low", "y_high"))
        for mark in marks
        if mark.get("y_low")
    }
    assert drawn and drawn == said
