"""Pictures as matplotlib draws them."""

import pytest

from blis_jax.reports.drawing import drawn
from blis_jax.reports.pictures import Axis, Panel, Picture, Series, Style


@pytest.mark.parametrize(
    ("limits", "ticks"),
    [
        ((-19, 22), ["−10 %", "0", "+10 %"]),
        ((-1.2, 0.7), ["−0.5 %", "0", "+0.5 %"]),
        ((-70, 200), ["−50 %", "0", "+100 %"]),
    ],
)
def test_an_axis_of_changes_has_ticks_at_any_size(
    limits: tuple[float, float], ticks: list[str]
) -> None:
    """Halves and doubles alone leave one tick, 0, where all changes are small."""
    panel = Panel(
        [Series([0.0], [0.0], Style(marker="o"))], Axis("change", "percent", limits=limits), Axis()
    )
    with drawn(Picture("changes", "", [[panel]], [3.0])) as made:
        (axes,) = made.axes
        assert [label.get_text() for label in axes.get_xticklabels()] == ticks
