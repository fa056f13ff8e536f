"""How many searches are near the best known point after so many evaluations, from a table of judged points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.search.judging import is_near_at, tolerance_of
from blis_jax.reports.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    figure,
    line_handle,
    save,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

COLOURS = {
    "ensemble": RED,
    "ensemble-expected": ORANGE,
    "ensemble-raced-expected": BLUE,
    "denoised-raced-expected-recommended": PINK,
    "denoised": GREEN,
    "denoised-recommended": PINK,
    "turbo": BLACK,
    "turbo-expected": GREEN,
    "tpe": PINK,
    "random": GREY,
    "sobol": GREY,
}

LABELS = {"denoised-raced-expected-recommended": "denoised, led by its model"}


def draw(points: pd.DataFrame, path: Path, strategy: str, goal: float) -> None:
    """Draw the share of searches whose best point is near enough, by evaluation, to a PNG.

    `points` is the table of `report.judged`, `goal` the difference that is near enough.
    """
    level, _, error = tolerance_of(points)
    handles = []
    with figure(3.6) as (made, panels):
        panel = panels[0][0]
        for engine, of_engine in points.groupby("engine", sort=False):
            each = [search for _, search in of_engine.groupby("random_state")]
            evaluations = range(1, int(of_engine["calls"].max()) + 1)
            shares = [
                100 * sum(is_near_at(search, at, goal) for search in each) / len(each)
                for at in evaluations
            ]
            colour = COLOURS.get(str(engine), BLACK)
            panel.step(evaluations, shares, where="post", color=colour)
            handles.append(
                line_handle(
                    f"{LABELS.get(str(engine), engine)} ({len(each)} searches)", color=colour
                )
            )
        panel.set_ylim(0, 102)
        panel.set_xlabel("evaluations")
        panel.set_ylabel("searches near enough (%)")
        title = f"Searches that are near the best known point, {strategy}"
        caption = (
            f"Near enough: at most {goal:.2f} above the best known point's {level:.2f} on seeds that no "
            f"search saw. The standard error of a difference is {error:.2f}."
        )
        save(made, path, title, caption, handles)
