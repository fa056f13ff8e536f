"""Figures of the pages show what their commands draw today: the data that a PNG carries are compared."""

from __future__ import annotations

import math
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from blis_jax.__main__ import main
from blis_jax.reports.drawing import data_of
from tests.support.recorded.reference_data import REPO_ROOT

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
