"""Figure 8: the strategies' parts, alone and together, and taken back one at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures import BY_NAME

NAME = "ablation"
SQUARE = {
    "neither": (style.POLICY_COLOURS["baseline"], "neither (baseline)"),
    "whole prompts only": (style.ORANGE, "whole prompts only"),
    "priorities only": (style.POLICY_COLOURS["iteration 1"], "priorities only"),
    "both": (style.POLICY_COLOURS["iteration 5"], "both (iteration 5)"),
}
# the reference's means of seeds 42 to 44, ms
EXPECTED = tuple(
    Expected({"policy": name, "slo_class": "critical", "metric": "ttft_p99_ms"}, value, 0.15)
    for name, value in (
        ("neither", 268.8),
        ("whole prompts only", 252.7),
        ("priorities only", 134.4),
        ("both", 90.0),
    )
)
EDGE = 90.0  # % beyond which a change is only written


def draw(data: Path, path: Path) -> None:
    """Draw above the 2 × 2 of priorities and whole prompts, below 8-opt with a part taken back."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    ratios = {"height_ratios": [1, 1.25]}
    with style.figure(6.2, 2, 1, gridspec_kw=ratios) as (figure, panels):
        square, parts = panels[:, 0]
        _draw_square(square, table)
        _draw_parts(parts, table)
        (both,) = chosen(table, policy="interaction").itertuples()
        caption = (
            f"{style.BURST} Above: priorities by class, and prompts of critical and sheddable "
            "requests whole instead of in chunks of 256 tokens, each on and off. Together they bring "
            f"{-both.mean:.0f} ms [{-both.high:.0f}, {-both.low:.0f}] more for critical requests than the sum "
            "of both alone. Below: 8-opt with one part as it was before; to the right of 0 the part helps the class. "
            f"{num_seeds} seeds, requests by this simulator's generator; bars: 95 % interval of the "
            "mean, below of the change paired by seed."
        )
        title = "Critical requests gain most by priorities, and more with whole prompts on top"
        style.save(figure, path, title, caption)


def _draw_square(panel: Any, table: Any) -> None:
    width = 0.8 / len(SQUARE)
    for place, (name, (colour, _)) in enumerate(SQUARE.items()):
        rows = (
            chosen(table, policy=name, metric="ttft_p99_ms")
            .set_index("slo_class")
            .loc[list(CLASSES)]
        )
        at = np.arange(len(CLASSES)) + width * (place - 1.5)
        reach = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
        panel.bar(at, rows["mean"], width, yerr=reach, color=colour, ecolor="0.2")
        for x, value in zip(at, rows["mean"], strict=True):
            panel.text(x, value + 13, f"{value:.0f}", ha="center", fontsize=8.5, color=colour)
    panel.set_xticks(np.arange(len(CLASSES)), CLASSES)
    panel.margins(y=0.1)
    panel.grid(axis="x", visible=False)
    panel.set_ylabel("TTFT P99 (ms)")
    panel.set_title("priorities and whole prompts, each on and off")
    panel.legend(handles=_handles(), loc="upper left", ncols=2)


def _handles() -> list[Any]:
    return [style.area_handle(words, color=colour) for colour, words in SQUARE.values()]


def _draw_parts(panel: Any, table: Any) -> None:
    rows = table[table["x"] == "from 8-opt"]
    rows = rows[rows["metric"] == "ttft_p99_ms_change_percent"]
    names = list(dict.fromkeys(rows["policy"]))
    critical = rows[rows["slo_class"] == "critical"].set_index("policy")["mean"]
    names.sort(key=lambda name: critical[name])
    heights = np.arange(len(names))
    for place, slo_class in enumerate(CLASSES):
        of_class = rows[rows["slo_class"] == slo_class].set_index("policy").loc[names]
        reach = [of_class["mean"] - of_class["low"], of_class["high"] - of_class["mean"]]
        panel.errorbar(
            of_class["mean"], heights + 0.22 * (1 - place), xerr=reach,
            label=slo_class, **(style.class_style(slo_class) | {"linestyle": "none"}),
        )  # fmt: skip
        for height, value in zip(heights, of_class["mean"], strict=True):
            if value > EDGE:
                words = f"+{value:.0f} % →"
                panel.text(
                    1.24 * EDGE,
                    height + 0.22 * (1 - place),
                    words,
                    ha="right",
                    va="center",
                    fontsize=8.5,
                    color=style.CLASS_COLOURS[slo_class],
                )
    panel.axvline(0, color=style.POLICY_COLOURS["8-opt"], linewidth=1.2, zorder=0, label="8-opt")
    panel.set_xlim(-45, 1.25 * EDGE)
    panel.set_yticks(heights, names)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("change of TTFT P99 against 8-opt (%)")
    panel.set_title("8-opt, one part taken back")
    panel.legend(loc="lower right")


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
