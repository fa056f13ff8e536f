"""The figures of the routing record: drawn from shipped data, with the numbers that are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.record.figures import DATA, PaperFigure
from papers.routing_evolution.figures import FIGURES
from papers.routing_evolution.figures.data import (
    OF_PUBLISHED_SEEDS,
    PREFIXES,
    RATIOS,
    TABLES,
    needed,
)
from papers.routing_evolution.figures.policies import bounds
from papers.routing_evolution.record import RECORD
from tests.papers.record.drawn import assert_has_expected_numbers, assert_is_drawn

SHIPPED = RECORD.folder / DATA
IDS = [figure.name for figure in FIGURES]


@pytest.mark.parametrize("figure", FIGURES, ids=IDS)
def test_figure_is_drawn_from_the_shipped_data(figure: PaperFigure, tmp_path: Path) -> None:
    assert_is_drawn(figure, tmp_path)


@pytest.mark.parametrize("figure", FIGURES, ids=IDS)
def test_figure_has_the_expected_numbers(figure: PaperFigure) -> None:
    """Numbers that were known before: measured with the reference on the track's seeds."""
    assert_has_expected_numbers(figure, SHIPPED)


def test_every_figure_has_data_settings_and_a_picture() -> None:
    names = {figure.name for figure in FIGURES}
    assert {*TABLES, *OF_PUBLISHED_SEEDS} == names
    assert {path.stem for path in (RECORD.folder / "pictures").glob("*.png")} >= names
    assert all(not setting.missing for setting in needed())


def test_bounds_of_the_inequality() -> None:
    """The record's numbers for ORTH: from 1.125 on for some prompts, from 2 on for all."""
    assert bounds(512) == (pytest.approx(1.125), pytest.approx(2.0))


def test_ratios_cross_both_bounds_of_every_workload() -> None:
    ratios = [affinity / depth for affinity, depth in RATIOS]
    assert ratios == sorted(ratios)
    for _, tokens in PREFIXES:
        least, most = bounds(tokens)
        assert min(ratios) < least < most < max(ratios)
