"""The staleness map: its saved values come from its cells, and what its words say is in them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from blis_jax.statistics.paired import WORSE
from papers.record.figures import draw_one
from papers.routing_evolution.figures.staleness_answers import (
    LINE,
    compared,
    first_losses,
    read,
    staleness_map,
    tables,
)
from papers.routing_evolution.figures.staleness_data import ALL, METRIC, Cell, cells, measured
from tests.support.recorded.reference_data import REPO_ROOT


def table(values: dict[int, list[float]]) -> pd.DataFrame:
    """One line of the map by age."""
    line = dict(zip(LINE, ("queue-depth", "all", True, 200), strict=True))
    return pd.DataFrame(
        [line | {"age_ms": age, "values": np.array(v)} for age, v in values.items()]
    )


def test_a_loss_begins_where_all_older_ages_lose_too():
    fresh = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    worse, same = [v + 5 + 0.01 * v for v in fresh], [10.1, 10.9, 12.1, 12.9, 14.1, 14.9]
    for values, first in (
        ({0: fresh, 1: same, 5: worse, 20: worse}, 5),
        ({0: fresh, 1: worse, 5: same, 20: worse}, 20),
        ({0: fresh, 1: worse, 5: worse, 20: same}, np.inf),
    ):
        (found,) = first_losses(compared(table(values)))["first_ms"]
        assert found == first


def test_every_cell_is_saved_once():
    saved = read()
    keys = [tuple(row) for row in saved[[*LINE, "age_ms"]].itertuples(index=False)]
    assert keys == [tuple(cell) for cell in cells()]


@pytest.mark.slow
def test_saved_values_are_those_of_their_cells():
    """Two cells, each on its first two seeds: the program of a part of the map gives the same runs."""
    wanted = [Cell("queue-depth", ALL, True, 200, 0), Cell("queue-depth", ALL, False, 600, 100)]
    again, saved = measured(wanted, (1, 2)), read()
    for cell, text in zip(wanted, again[f"{METRIC} by seed"], strict=True):
        is_it = (saved[[*LINE, "age_ms"]] == list(cell)).all(axis=1)
        np.testing.assert_allclose(
            np.array(text.split(), float), saved.loc[is_it, "values"].iloc[0][:2], atol=1e-3
        )


def test_the_page_has_the_tables_of_the_saved_data():
    page = (REPO_ROOT / "docs" / "results" / "staleness.md").read_text(encoding="utf-8")
    for block in tables(read()).split("\n\n"):
        assert block in page


def test_the_saved_data_say_what_the_title_says():
    """No harm that shows up to 2 ms, some from 5 ms on; 20-fold at most at 500 ms, and 1.4-fold of two choices."""
    found = compared(read())
    assert not (found.loc[found["age_ms"].isin([1, 2]), "verdict"] == WORSE).any()
    assert (found.loc[found["age_ms"] == 5, "verdict"] == WORSE).any()
    oldest = found[found["age_ms"] == 500]
    is_of_two = oldest["strategy"] == "power of two"
    assert round(1 + oldest["percent"].max() / 100) == 20
    assert round(1 + oldest.loc[is_of_two, "percent"].max() / 100, 1) == 1.4


def test_the_figure_is_drawn_from_saved_data(tmp_path: Path):
    path = tmp_path / "map.png"
    assert draw_one([staleness_map], ["staleness_map", "--output", str(path)]) == 0
    assert path.stat().st_size > 10_000
