"""The figures of the routing record: drawn from shipped data, with the numbers that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from papers.record.figures import DATA, PaperFigure, chosen, draw_one, read
from papers.routing_evolution.figures import FIGURES, settings
from papers.routing_evolution.figures.data import OF_PUBLISHED_SEEDS, TABLES, needed
from papers.routing_evolution.figures.weight_ratios import bounds
from papers.routing_evolution.record import RECORD

SHIPPED = RECORD.folder / DATA
IDS = [figure.name for figure in FIGURES]


@pytest.mark.parametrize("figure", FIGURES, ids=IDS)
def test_figure_is_drawn_from_the_shipped_data(figure: PaperFigure, tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = tmp_path / f"{figure.name}.png"
    assert draw_one(figure, ["--output", str(path)]) == 0
    picture = imread(path)
    height, width, _ = picture.shape
    assert width > 1000 and height > 400
    assert 0.01 < np.mean(picture[..., :3].min(axis=2) < 0.9) < 0.8  # neither empty nor full


@pytest.mark.parametrize("figure", FIGURES, ids=IDS)
def test_figure_has_the_expected_numbers(figure: PaperFigure) -> None:
    """Numbers that were known before: measured with the reference on the track's seeds."""
    table = read(SHIPPED, figure.name)
    assert figure.expected
    for expected in figure.expected:
        rows = chosen(table, **expected.where)
        assert len(rows) == 1, expected
        assert float(rows["mean"].iloc[0]) == pytest.approx(expected.value, rel=expected.within)


def test_every_figure_has_data_settings_and_a_picture() -> None:
    names = {figure.name for figure in FIGURES}
    assert {*TABLES, *OF_PUBLISHED_SEEDS} == names
    assert {path.stem for path in (RECORD.folder / "pictures").glob("*.png")} >= names
    assert all(not setting.missing for setting in needed())


def test_bounds_of_the_inequality() -> None:
    """The record's numbers for ORTH: from 1.125 on for some prompts, from 2 on for all."""
    assert bounds(512) == (pytest.approx(1.125), pytest.approx(2.0))


def test_ratios_cross_both_bounds_of_every_workload() -> None:
    ratios = [affinity / depth for affinity, depth in settings.RATIOS]
    assert ratios == sorted(ratios)
    for _, tokens in settings.PREFIXES:
        least, most = bounds(tokens)
        assert min(ratios) < least < most < max(ratios)
