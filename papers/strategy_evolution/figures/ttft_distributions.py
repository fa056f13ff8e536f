"""Figure 1: how long requests of each class wait for their first token, baseline and winners."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures import BY_NAME

NAME = "ttft_distributions"
POLICIES = ("baseline", "iteration 5", "8-opt")
# the reference's means of seeds 42 to 44, ms
EXPECTED = tuple(
    Expected({"policy": policy, "slo_class": slo_class, "metric": "ttft_p99_ms"}, value, 0.15)
    for policy, slo_class, value in (
        ("baseline", "critical", 268.8),
        ("baseline", "sheddable", 264.8),
        ("iteration 5", "critical", 90.0),
        ("iteration 5", "standard", 187.1),
        ("8-opt", "critical", 70.8),
        ("8-opt", "sheddable", 599.2),
    )
)
SHARES = {"critical": "20 %", "standard": "50 %", "sheddable": "30 %"}


def draw(data: Path, path: Path) -> None:
    """Draw one panel per class: mean curves over the seeds, the middle 90 % of them, and the tails."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(3.0, 1, len(CLASSES), sharey=True) as (figure, panels):
        for panel, slo_class in zip(panels[0], CLASSES, strict=True):
            _draw_class(panel, chosen(table, slo_class=slo_class))
            panel.set_title(f"{slo_class} ({SHARES[slo_class]} of requests)")
            panel.set_xlabel("time to first token (ms)")
        panels[0][0].set_ylabel("requests with first token (%)")
        caption = (
            f"{style.BURST} Every policy served the same requests, drawn with {num_seeds} seeds by "
            "this simulator's generator. Lines: time within which a share of the class had its first "
            "token, mean over seeds. Bands: the middle 90 % of the seeds. Dots with numbers: 99th "
            "percentile, mean over seeds with its 95 % interval (narrower than the dots where none is seen)."
        )
        title = "Critical requests get their first token far sooner, sheddable ones far later"
        legend = style.policy_handles(POLICIES)
        style.save(figure, path, title, caption, legend, legend_columns=1)


def _draw_class(panel: Any, table: Any) -> None:
    for place, policy in enumerate(POLICIES):
        colour = style.POLICY_COLOURS[policy]
        curve = chosen(table, policy=policy, metric="ttft_ms").sort_values("x")
        share = 100 * curve["x"]
        panel.fill_betweenx(
            share, curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
        )
        panel.plot(curve["mean"], share, color=colour)
        (tail,) = chosen(table, policy=policy, metric="ttft_p99_ms").itertuples()
        reach = [[tail.mean - tail.low], [tail.high - tail.mean]]
        panel.errorbar([tail.mean], [99], xerr=reach, color=colour, marker="o", zorder=5)
        words = f"99 % within {tail.mean:.0f} ms"
        panel.text(
            0.98,
            0.23 - 0.085 * place,
            words,
            color=colour,
            ha="right",
            transform=panel.transAxes,
            bbox={"color": "white", "alpha": 0.75, "pad": 0.4},
        )
    longest = float(table["high"].max())
    panel.set_xlim(0, longest * 1.7 if longest > 500 else longest)  # room for the words
    panel.set_ylim(0, 101)


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
