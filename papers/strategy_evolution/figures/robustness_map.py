"""Figure 10: which strategy is best where, over 1,024 regimes around the record's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers import figure_style as style
from papers.record.figures import Expected, draw_one, read
from papers.strategy_evolution.figures import BY_NAME

if TYPE_CHECKING:
    import pandas as pd

NAME = "robustness_map"
AXES = {
    "rate": "arrival rate (requests/s)",
    "arrival_cv": "CV of the gaps between arrivals",
    "kv_blocks": "KV blocks per instance",
    "kv_cpu_blocks": "KV blocks of the CPU tier",
    "instances": "instances",
    "shape": "workload",
    "step_constant": "fixed cost of a step (µs)",
}
COLOURS = {
    "baseline": style.POLICY_COLOURS["baseline"],
    "tuned": style.POLICY_COLOURS["8-opt"],
    "found": style.POLICY_COLOURS["iteration 13"],
    "undecided": "#e4e4e4",
    "none": "#3b2a4d",
}
WORDS = {
    "baseline": "baseline",
    "tuned": "8-opt",
    "found": "iteration 13, found here",
    "undecided": "none clearly best",
    "none": "none runs within the constraints",
}
# a design of 1,024 cells; and from 10,000 blocks on every run ends, as in figure 4 and the reference
EXPECTED = (
    *(Expected({"axis": axis, "x": "all", "recommended": "all"}, 1024, 0.0) for axis in AXES),
    Expected({"axis": "kv_blocks", "x": "10000", "recommended": "none"}, 0, 0.0),
    Expected({"axis": "kv_blocks", "x": "132139", "recommended": "none"}, 0, 0.0),
)


def draw(data: Path, path: Path) -> None:
    """Draw the share of the cells in which each strategy is recommended, by the value of each axis."""
    table = read(data, NAME)
    with style.figure(6.4, 4, 2) as (figure, panels):
        flat = panels.reshape(-1)
        for panel, (axis, words) in zip(flat, AXES.items(), strict=False):
            _bars(panel, table[(table["axis"] == axis) & (table["x"] != "all")])
            panel.set_title(words)
        for panel in panels[:, 0]:
            panel.set_ylabel("% of cells")
        flat[-1].set_axis_off()
        caption = (
            "1,024 cells spread evenly over seven axes (Sobol); in each, every strategy on the same requests of "
            "0.5 s of arrivals, 8 seeds. A strategy is recommended where it has the lowest critical TTFT P99 in at "
            "least 95 % of the bootstrap resamples of the seeds, sheddable TTFT P99 at most twice the baseline's and "
            "throughput at least 95 % of it. Cells are not corrected for their number."
        )
        handles = [style.area_handle(WORDS[name], color=colour) for name, colour in COLOURS.items()]
        title = "Iteration 13 is recommended most often; short of KV blocks, often none is"
        style.save(figure, path, title, caption, handles)


def _bars(panel: Any, table: pd.DataFrame) -> None:
    values = list(dict.fromkeys(table["x"]))
    values.sort(key=lambda text: (not _is_number(text), float(text) if _is_number(text) else 0.0))
    bottom = [0.0] * len(values)
    for name, colour in COLOURS.items():
        rows = table[table["recommended"] == name].set_index("x")["percent"]
        heights = [float(rows.get(value, 0.0)) for value in values]
        panel.bar(range(len(values)), heights, bottom=bottom, color=colour, width=0.8)
        bottom = [one + other for one, other in zip(bottom, heights, strict=True)]
    labels = [f"{float(v):,.0f}" if _is_number(v) and float(v) >= 100 else str(v) for v in values]
    labels = [label.replace("nonorthogonal", "non-\northogonal") for label in labels]
    is_long = any(len(label) > 9 for label in labels)
    panel.set_xticks(range(len(values)), labels, fontsize=8 if is_long else 8.5)
    panel.set_ylim(0, 100)
    panel.grid(visible=False)


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
