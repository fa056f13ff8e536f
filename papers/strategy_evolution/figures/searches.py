"""Figure 7: the two published searches, call by call, beside the same searches here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.strategy_evolution.figures import BY_NAME

NAME = "searches"
SEARCHES = {
    "iter01_priority_cascade": ("iteration 1", "iteration 1: 30 calls", "iter1"),
    "iter08_token_budget": ("8-opt", "iteration 8: 40 calls", "iter8"),
}
BEST = {"iter01_priority_cascade": 131.78480, "iter08_token_budget": 70.77781}  # published, ms
# published scores of the first two calls, ms
EXPECTED = (
    Expected({"policy": "iter08_token_budget", "x": 1}, 575.3187333, 1e-5),
    Expected({"policy": "iter08_token_budget", "x": 2}, 105.3497133, 1e-5),
    Expected({"policy": "iter01_priority_cascade", "x": 1}, 132.61257, 1e-5),
    Expected({"policy": "iter01_priority_cascade", "x": 2}, 131.78480, 1e-5),  # the best
)
# where the record's own files lie, if they are here
RECORD = Path("data") / "blis_reference" / "strategy_pr452"


def draw(data: Path, path: Path) -> None:
    """Draw scores and the best so far; published scores where the record's files are at hand."""
    table = read(data, NAME)
    with style.figure(3.0, 1, len(SEARCHES)) as (figure, panels):
        has_record = False
        for panel, (strategy, (policy, words, name)) in zip(
            panels[0], SEARCHES.items(), strict=True
        ):
            recorded = published_scores(name)
            has_record = has_record or recorded is not None
            _draw_search(
                panel, chosen(table, policy=strategy), style.POLICY_COLOURS[policy], recorded
            )
            level = BEST[strategy]
            panel.axhline(level, color=style.BLACK, linestyle="--", linewidth=1)
            panel.text(
                1, level * 0.955, f"published best: {level:.2f} ms", va="top", fontsize=8,
                bbox={"color": "white", "alpha": 0.7, "pad": 0.3}, zorder=7,
            )  # fmt: skip
            panel.set_title(words)
            panel.set_xlabel("call")
            panel.set_yscale("log")
            panel.set_yticks([60, 80, 100, 150, 200, 500, 1000, 2000])
            panel.set_yticklabels(["60", "80", "100", "150", "200", "500", "1,000", "2,000"])
            panel.minorticks_off()
            panel.set_ylim(bottom=55)
        panels[0][0].set_ylabel("score: critical TTFT P99 (ms) + penalties")
        known = "Crosses: the record's scores. " if has_record else (
            "The record's scores of each call are not at hand here. "
        )  # fmt: skip
        caption = (
            f"{style.BURST} Each call is one setting of the parameters on seeds 42, 43 and 44 with the "
            "reference's own requests; the score is a mean of these three runs; bars: its standard error. "
            f"{known}The same Gaussian-process search chooses the same points up to call 19 and call 15, then "
            "they part, presumably by versions of its libraries; iteration 1 still ends at the published point, "
            "iteration 8 above it."
        )
        title = "The published searches, run again, end at the same point once and above it once"
        style.save(figure, path, title, caption, _handles(has_record), legend_columns=4)


def published_scores(name: str) -> list[float] | None:
    """Read the record's scores by call, if its files lie beside the checkout; they are not ours to ship."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / RECORD / f"{name}-optimization-results.json"
        if path.is_file():
            scores: list[float] = json.loads(path.read_text(encoding="utf-8"))["convergence"]
            return scores
    return None


def _draw_search(panel: Any, table: Any, colour: str, recorded: list[float] | None) -> None:
    rows = table.sort_values("x")
    calls, scores = rows["x"].to_numpy(), rows["mean"].to_numpy()
    reach = [scores - rows["low"], rows["high"] - scores]
    panel.errorbar(calls, scores, yerr=reach, fmt="o", color=colour, alpha=0.75, capsize=0)
    best = np.minimum.accumulate(scores)
    panel.step(calls, best, where="post", color=colour)
    if recorded is not None:
        panel.plot(
            np.arange(1, len(recorded) + 1), recorded, "x", color=style.BLACK, markersize=5,
            markeredgewidth=0.9,
        )  # fmt: skip


def _handles(has_record: bool) -> list[Any]:
    grey = {"color": "0.35"}
    handles = [
        style.line_handle("here, call by call", marker="o", linestyle="none", **grey),
        style.line_handle("best so far, here", **grey),
        style.line_handle("published best", color=style.BLACK, linestyle="--", linewidth=1),
    ]
    if has_record:
        mark = {"marker": "x", "linestyle": "none", "color": style.BLACK}
        handles.append(style.line_handle("published, call by call", **mark))
    return handles


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
