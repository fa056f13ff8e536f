"""Figure 3: arrival rates."""

from __future__ import annotations

import sys
from pathlib import Path

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures import BY_NAME

NAME = "rate_sweep"
POLICIES = ("baseline", "iteration 5", "8-opt")
# the reference's means of seeds 42 to 44, ms
EXPECTED = tuple(
    Expected(
        {"policy": policy, "x": rate, "slo_class": "critical", "metric": "ttft_p99_ms"}, value, 0.15
    )
    for policy, rate, value in (
        ("baseline", 1000, 88.9),
        ("baseline", 1500, 167.7),
        ("baseline", 3000, 411.3),
        ("iteration 5", 1000, 69.3),
        ("iteration 5", 1500, 88.6),
        ("iteration 5", 3000, 94.8),
    )
)
FLAT = (1500, 3000, 90)  # the record: critical at about 90 ms between these rates


def draw(data: Path, path: Path) -> None:
    """Draw one panel per class: TTFT P99 against the rate."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(2.9, 1, len(CLASSES)) as (figure, panels):
        for panel, slo_class in zip(panels[0], CLASSES, strict=True):
            for policy in POLICIES:
                rows = chosen(table, policy=policy, slo_class=slo_class, metric="ttft_p99_ms")
                style.line(panel, rows, style.POLICY_COLOURS[policy])
            panel.set_title(slo_class)
            panel.set_xlabel("arrival rate (1,000 requests/s)")
            panel.set_xticks(range(0, 4001, 1000), ["0", "1", "2", "3", "4"])
            panel.set_xlim(0, 4150)
            panel.set_ylim(bottom=0)
        first, last, level = FLAT
        panels[0][0].plot(
            [first, last],
            [level, level],
            color=style.BLACK,
            linewidth=1.2,
            linestyle="--",
            zorder=6,
        )
        panels[0][0].set_ylabel("TTFT P99 (ms)")
        caption = (
            "1,000 requests on 8 instances at every rate: the faster they come, the shorter the burst "
            f"(2 s at 500 requests/s, 0.25 s at 4,000), so a high rate is not overload for longer. {num_seeds} "
            "seeds, requests by this simulator's generator; bars: 95 % interval of the mean. "
            "The three scales differ."
        )
        title = "Critical requests hardly notice the rate once they go first"
        published = f"published for iteration 5: flat at about {level} ms"
        legend = [
            *style.policy_handles(POLICIES),
            style.line_handle(published, color=style.BLACK, linewidth=1.2, linestyle="--"),
        ]
        style.save(figure, path, title, caption, legend, legend_columns=1)


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
