"""Figure 9: what time to first token consists of, by class and policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures import BY_NAME

NAME = "ttft_parts"
POLICIES = ("baseline", "iteration 1", "iteration 5", "8-opt")
# the published constants of a request, ms: after the first token, and before the queue per request
# and prompt token; and the mean waiting time that follows from the reference's runs
EXPECTED = tuple(
    Expected(
        {"policy": policy, "x": "all", "slo_class": "critical", "metric": "output_processing"},
        1.8055,
        1e-3,
    )
    for policy in POLICIES
)
PARTS = {  # by what a reader sees; the smallest ones together
    "waiting": (style.PARTS["waiting"][0], "waiting for the batch", ("queueing_time", "waiting")),
    "prefill": (style.PARTS["compute"][0], "computing the prompt", ("prefill_compute",)),
    "chunks": (
        style.PARTS["chunk overhead"][0],
        "further steps because of chunks",
        ("chunk_overhead",),
    ),
    "other": (
        style.PARTS["fixed"][0],
        "output processing and the rest",
        ("output_processing", "admission_delay", "routing_delay", "preempted_service"),
    ),
}
ROWS = {"all": "all requests", "slowest": "the slowest 5 %"}


def draw(data: Path, path: Path) -> None:
    """Draw one row for all requests of a class and one for its slowest, one column per class."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(5.4, 2, len(CLASSES), sharey="row") as (figure, panels):
        for row, (which, words) in enumerate(ROWS.items()):
            for panel, slo_class in zip(panels[row], CLASSES, strict=True):
                _draw_bars(panel, chosen(table, x=which, slo_class=slo_class))
                panel.set_title(f"{slo_class}, {words}")
            panels[row][0].set_ylabel("mean TTFT (ms)")
        caption = (
            f"{style.BURST} Mean over the requests of a class with a first token, then over {num_seeds} seeds, "
            "requests by this simulator's generator. The parts add up to time to first token. Bars "
            "on the whole column: 95 % interval of the mean of its largest part. A step is shared by all "
            "requests in it, so computing a prompt includes the time of the others' tokens; further steps because of "
            "chunks are the constant part of the steps that a prompt would not have needed in one piece."
        )
        title = "Priorities take the waiting from critical requests; computing prompts remains"
        style.save(figure, path, title, caption, _handles())


def _draw_bars(panel: Any, table: Any) -> None:
    for place, policy in enumerate(POLICIES):
        rows = chosen(table, policy=policy).set_index("metric")
        bottom = 0.0
        for colour, _, names in PARTS.values():
            height = float(rows.loc[list(names), "mean"].sum())
            panel.bar(place, height, 0.72, bottom=bottom, color=colour)
            bottom += height
        largest = rows.loc[rows["mean"].idxmax()]
        half = (largest["high"] - largest["low"]) / 2
        panel.errorbar([place], [bottom], yerr=[half], color="0.2", linewidth=1)
        panel.text(place, bottom + half, f"{bottom:.0f}", ha="center", va="bottom", fontsize=8)
    words = [policy.replace("iteration", "iter.") for policy in POLICIES]
    panel.set_xticks(range(len(POLICIES)), words)
    for label, policy in zip(panel.get_xticklabels(), POLICIES, strict=True):
        label.set_color(style.POLICY_COLOURS[policy])
    panel.margins(y=0.12)
    panel.grid(axis="x", visible=False)


def _handles() -> list[Any]:
    return [style.area_handle(words, color=colour) for colour, words, _ in PARTS.values()]


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
