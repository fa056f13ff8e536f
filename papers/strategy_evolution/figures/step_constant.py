"""Figure 6: what critical requests gain from whole prompts, by the constant cost of a step."""

from __future__ import annotations

import sys
from pathlib import Path

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures import BY_NAME

NAME = "step_constant"
CHUNKED, WHOLE = "prompts in chunks", "critical prompts whole"
COLOURS = {CHUNKED: style.POLICY_COLOURS["iteration 1"], WHOLE: style.SKY}
# the reference's means of seeds 42 to 44, ms
EXPECTED = tuple(
    Expected(
        {"policy": policy, "x": 1, "slo_class": slo_class, "metric": "ttft_p99_ms"}, value, 0.15
    )
    for policy, slo_class, value in (
        (CHUNKED, "critical", 134.4),
        (WHOLE, "critical", 91.6),
        (CHUNKED, "sheddable", 471.7),
        (WHOLE, "sheddable", 459.0),
    )
)
PUBLISHED_CONSTANT_MS = 6.91


def draw(data: Path, path: Path) -> None:
    """Draw left the critical tail with and without chunks, right the change of every class."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(3.1, 1, 2) as (figure, panels):
        tails, changes = panels[0]
        for policy, colour in COLOURS.items():
            rows = chosen(table, policy=policy, slo_class="critical", metric="ttft_p99_ms")
            style.line(tails, rows, colour, label=policy)
        tails.set_ylim(bottom=0)
        tails.set_ylabel("critical TTFT P99 (ms)")
        tails.set_title("critical requests")
        tails.legend(loc="upper left")
        for slo_class in CLASSES:
            rows = chosen(
                table, policy=WHOLE, slo_class=slo_class, metric="ttft_p99_ms_change_percent"
            )
            style.line(
                changes, rows, label=slo_class, **style.class_style(slo_class)
            )  # fmt: skip
        changes.axhline(0, color="0.45", linewidth=1)
        changes.set_ylabel("change of TTFT P99 (%)")
        changes.set_title("whole instead of in chunks, by class")
        changes.legend(loc="center right")
        for panel in panels[0]:
            panel.set_xscale("log", base=2)
            multiples = [0.25, 0.5, 1, 2, 4]
            words = [f"{multiple * PUBLISHED_CONSTANT_MS:.1f}" for multiple in multiples]
            panel.set_xticks(multiples, words)
            panel.set_xlabel("constant cost of a step, β₀ (ms)")
            panel.axvline(1, color=style.BLACK, linewidth=1.1, linestyle=(0, (1, 2)), zorder=0)
            panel.margins(x=0.06)
        caption = (
            f"{style.BURST} Both settings have priorities by class and the default scorers; "
            "in one, prompts are cut into chunks of 256 tokens, in the other those of critical requests "
            "are not. The dotted line is the published constant (6.9 ms); it is multiplied by 0.25 to 4, "
            "everything else stays, so that the overload grows with it too. A step full of 2,048 "
            "prompt tokens costs 36 ms more than its constant, so a further chunk costs a critical request "
            "a further full step, whatever the constant. "
            f"{num_seeds} seeds, requests by this simulator's generator; bars: 95 % interval of "
            "the mean, on the right of the change paired by seed."
        )
        title = "Whole prompts save full steps, not the constant cost of a step"
        constant = style.line_handle(
            "published constant", color=style.BLACK, linewidth=1.1, linestyle=(0, (1, 2))
        )
        style.save(figure, path, title, caption, [constant])


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
