"""What every figure of a record must be: drawn from the shipped data, with the numbers that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from papers.record.figures import PaperFigure, chosen, draw_one, read


def assert_is_drawn(figure: PaperFigure, folder: Path) -> None:
    """The figure is drawn from the shipped data, neither empty nor full."""
    path = folder / f"{figure.name}.png"
    assert draw_one([figure], [figure.name, "--output", str(path)]) == 0
    picture = imread(path)
    height, width, _ = picture.shape
    assert width > 1000 and height > 400
    assert 0.01 < np.mean(picture[..., :3].min(axis=2) < 0.9) < 0.8


def assert_has_expected_numbers(figure: PaperFigure, shipped: Path) -> None:
    """The shipped data have the numbers that were known before."""
    table = read(shipped, figure.name)
    assert figure.expected
    for expected in figure.expected:
        rows = chosen(table, **expected.where)
        assert len(rows) == 1, expected
        assert float(rows["mean"].iloc[0]) == pytest.approx(expected.value, rel=expected.within)
