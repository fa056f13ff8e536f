"""Regret curves of repeated searches; `python -m benchmarks.search.figure RESULTS PNG` draws saved ones.

RESULTS is what the files of a benchmark begin with, such as benchmarks/results/search_joint_all_layers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.reports.figures import figure, line_handle, plain_log, save
from blis_jax.reports.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {
    "ensemble": RED,
    "gp": BLUE,
    "tpe": PINK,
    "forest": ORANGE,
    "random": GREY,
    "sobol": GREEN,
}
LEAST = 1e-4  # of the regret that is drawn: a search that found the best point has none
TICKS = (0.1, 0.3, 1, 3, 10, 30, 100, 300)


def draw(
    regret: pd.DataFrame,
    counts: Mapping[str, int],
    best: float,
    path: Path,
    strategy: str,
    num_seeds: int,
    within: float,
) -> None:
    """Median regret by evaluation with quartiles, an engine each, to a PNG.

    `regret` is the table of `statistics.regret_table`; `counts` has the searches of each engine.
    """
    handles, last = [], {}
    with figure(3.9) as (made, panels):
        panel = panels[0][0]
        for engine in (name for name in counts if counts[name]):
            rows = regret[regret["engine"] == engine].sort_values("evaluation")
            low, middle, high = (
                100 * rows[name].clip(lower=LEAST)
                for name in ("lower_quartile", "median", "upper_quartile")
            )
            colour = COLOURS.get(engine, BLACK)
            panel.plot(rows["evaluation"], middle, color=colour)
            panel.fill_between(rows["evaluation"], low, high, color=colour, alpha=0.15, linewidth=0)
            handles.append(line_handle(f"{engine} ({counts[engine]} searches)", color=colour))
            last[engine] = float(middle.iloc[-1])
        goal = {"color": BLACK, "linestyle": "--", "linewidth": 0.9}
        panel.axhline(within, **goal)
        handles.append(line_handle(f"within {within:g} % of the best known", **goal))
        low, high = panel.get_ylim()
        plain_log(panel, "y", [tick for tick in TICKS if low <= tick <= high])
        panel.set_xlabel("evaluations")
        panel.set_ylabel("best score so far (% above the best known)")
        nearest = min(last, key=lambda engine: last[engine])
        title = f"{nearest} comes nearest to the best known score, {strategy}"
        caption = (
            f"Lines: median over the searches; bands: quartiles. One evaluation is the mean over {num_seeds} "
            f"fixed seeds. Best known score: {best:.4g}. A search that was stopped near enough stays "
            "where it was."
        )
        save(made, path, title, caption, handles)


def main(arguments: list[str]) -> int:
    """Draws the curves that ship, from the tables beside each other."""
    import pandas as pd

    from benchmarks.search.plan import NUM_SEEDS, WITHIN

    results, path = arguments
    ends = pd.read_csv(f"{results}_ends.csv")
    draw(
        pd.read_csv(f"{results}_regret.csv"),
        ends["engine"].value_counts(sort=False).to_dict(),
        float(ends["score"].min()),
        Path(path),
        Path(results).name.removeprefix("search_"),
        NUM_SEEDS,
        WITHIN,
    )
    print(f"Written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
