"""Colours of strategies, classes and parts, and the legend of a figure."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.reports.style import (
    CLASS_COLOURS,
    PARTS,
    STRATEGY_COLOURS,
    columns_of,
    line_handle,
    strategy_colours,
)
from sweeps.robustness.figure import MapView, filled
from sweeps.robustness.verdict import recommend
from tests.sweeps.robustness.made_map import cell, made_map

BASE = (270.0, 265.0, 17_000.0)


def test_a_strategy_has_one_colour_whatever_it_is_compared_with() -> None:
    """Under its names in the ledger, in `sweep` and in BLIS, and beside any other."""
    first = strategy_colours(["iter00_baseline", "iter08_token_budget@published", "mine"])
    second = strategy_colours(["mine", "it08_opt", "baseline"])
    labelled = strategy_colours(["a", "b"], {"a": "baseline", "b": "full-combined"})
    tuned = first["iter08_token_budget@published"]
    assert second["it08_opt"] == labelled["b"] == tuned
    assert first["iter00_baseline"] == second["baseline"] == labelled["a"]


@pytest.mark.parametrize(
    "names", [["x", "y", "z"], ["iter08_a", "iter08_b", "iter05_c"], ["x", "baseline", "iter01"]]
)
def test_strategies_of_one_figure_differ(names: list[str]) -> None:
    colours = strategy_colours(names)
    assert list(colours) == names and len(set(colours.values())) == len(names)


def test_the_reference_is_grey_and_colours_come_again_beyond_the_palette() -> None:
    names = [f"arm{place}" for place in range(len(STRATEGY_COLOURS) + 2)]
    colours = list(strategy_colours(names).values())
    assert colours[0] == STRATEGY_COLOURS[0]
    assert colours[len(STRATEGY_COLOURS) :] == list(STRATEGY_COLOURS[:2])


def test_no_colour_means_two_things() -> None:
    parts = {colour for colour, _ in PARTS.values()}
    assert not set(CLASS_COLOURS.values()) & (set(STRATEGY_COLOURS) | parts)
    assert not set(STRATEGY_COLOURS) & parts


def test_a_legend_fits_its_figure() -> None:
    handles = [line_handle(name) for name in ("short", "a name of thirty letters or so", "third")]
    assert columns_of(handles, 12.0) == 3
    assert columns_of(handles, 1.0) == 1


def test_a_thin_map_is_drawn_without_facets() -> None:
    """A map with every tile keeps its facets; with every second one it loses one."""
    rates, blocks, sizes = (500.0, 1000.0, 1500.0), (2000, 3000, 5000), (4, 8, 16)
    cells = [
        cell(BASE, (90.0, 445.0, 17_000.0), rate=rate, kv_blocks=number, instances=size)
        for rate in rates
        for number in blocks
        for size in sizes
    ]
    whole = recommend(made_map(cells))
    assert filled(whole, MapView()) == MapView()
    thin = whole.isel(cell=np.arange(0, len(cells), 2))
    assert filled(thin, MapView()).row is None
