"""What each part of the compound does under bursts, and whether bursts amplify its gain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.routing_evolution.figures import BY_NAME
from papers.routing_evolution.figures.settings import ABLATION, COMPOUND, COUNTS, GATED

NAME = "burst_ablation"
TAILS = {
    "worst_ttft_p99_ms": (style.ORANGE, "worst instance, the track's metric"),
    "ttft_p99_ms": (style.BLACK, "all requests of the cluster"),
}
GAINS = {
    (COMPOUND, 1000): (style.POLICY_COLOURS["8-opt"], "-", "compound, 1,000 requests"),
    (COMPOUND, 2000): (style.POLICY_COLOURS["8-opt"], "--", "compound, 2,000 requests"),
    (GATED, 1000): (style.POLICY_COLOURS["iteration 5"], "-", "4:3 and gate alone, 1,000 requests"),
    (GATED, 2000): (
        style.POLICY_COLOURS["iteration 5"],
        "--",
        "4:3 and gate alone, 2,000 requests",
    ),
}
# the reference's means of seeds 42, 123 and 7777, ms
EXPECTED = tuple(
    Expected({"policy": policy, "slo_class": "all", "metric": "ttft_p99_ms"}, value, 0.15)
    for policy, value in (
        ("round-robin", 461.4),
        ("4:3", 441.1),
        ("4:3, priorities", 579.7),
        ("4:3, gate", 103.4),
        ("4:3, both (compound)", 124.3),
        ("3:2, both", 124.9),
        ("round-robin, both", 145.2),
        ("least-loaded, both", 125.1),
    )
)


def draw(data: Path, path: Path) -> None:
    """Draw above the arms of the ablation, below the gain as gaps between arrivals vary more."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    ratios = {"height_ratios": [1.25, 1]}
    with style.figure(5.9, 2, 1, gridspec_kw=ratios) as (figure, panels):
        arms, gains = panels[:, 0]
        _draw_arms(arms, table)
        _draw_gains(gains, table)
        caption = (
            "Above: 2,000 requests in about 1 s, gamma gaps with CV 2, 8 instances. The gate does the work; "
            "priorities without it make the tail of all worse, and on top of it too. Below: the gain against "
            "round-robin with the same number of requests on both sides, negative is better. The track's "
            "65 % with bursts was of 2,000 requests, its 47 % without of 1,000. "
            f"{num_seeds} seeds, requests by this simulator's generator; bars: 95 % interval of the mean, below of "
            "the change paired by seed."
        )
        title = "The gate alone is better than the compound, and bursts lessen the gain"
        handles = [style.area_handle(words, color=colour) for colour, words in TAILS.values()]
        style.save(figure, path, title, caption, handles)


def _draw_arms(panel: Any, table: Any) -> None:
    names = list(ABLATION)
    heights = np.arange(len(names))[::-1]
    for place, (metric, (colour, _)) in enumerate(TAILS.items()):
        rows = chosen(table, metric=metric, slo_class="all").set_index("policy").loc[names]
        at = heights + 0.2 * (1 - 2 * place)
        reach = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
        panel.barh(at, rows["mean"], 0.38, xerr=reach, color=colour, ecolor="0.55")
        for height, value, high in zip(at, rows["mean"], rows["high"], strict=True):
            panel.text(high + 9, height, f"{value:.0f}", va="center", fontsize=8, color=colour)
    panel.set_yticks(heights, names)
    panel.grid(axis="y", visible=False)
    panel.set_xlim(0, 720)
    panel.set_xlabel("TTFT P99 (ms)")
    panel.set_title("routing, and what is added to it")


def _draw_gains(panel: Any, table: Any) -> None:
    rows = table[table["metric"] == "ttft_p99_ms_change_percent"]
    parts = rows["x"].str.split(" ", expand=True)
    for (policy, count), (colour, kind, words) in GAINS.items():
        assert count in COUNTS
        some = rows.assign(x=parts[1].astype(float))
        some = some[(rows["policy"] == policy) & (parts[0] == str(count))]
        style.line(panel, some, colour, linestyle=kind, label=words)
    panel.set_xlabel(
        "coefficient of variation of the gaps between a client's arrivals (1: Poisson)"
    )
    panel.set_ylabel("change of TTFT P99 (%)")
    panel.set_title("against round-robin, all requests of the cluster")
    panel.legend(loc="upper left", ncols=2, handlelength=3.2)
    panel.set_ylim(-85, -20)


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
