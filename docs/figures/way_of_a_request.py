"""Draws way_of_a_request.png: python docs/figures/way_of_a_request.py"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

from blis_jax.reports.style import write_png

INK, EDGE = "#263238", "#90a4ae"
GATEWAY, QUEUE, BATCH = "#e3f2fd", "#fff3e0", "#e8f5e9"
NUM_INSTANCES = 3


def box(axis, x, y, width, height, words, colour, small=""):
    """A box with its name, and a smaller line below the name."""
    axis.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.02", fc=colour, ec=EDGE)
    )
    shift = 0.11 if small else 0
    axis.text(x + width / 2, y + height / 2 + shift, words, ha="center", va="center", color=INK)
    axis.text(
        x + width / 2, y + height / 2 - 0.16, small, ha="center", va="center", color=INK, fontsize=8
    )


def arrow(axis, start, end):
    """From one place to the other."""
    axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2})


def main():
    """Draw the picture beside this file."""
    figure, axis = plt.subplots(figsize=(9, 3.1), layout="constrained")
    box(axis, 1.2, 1.2, 1.3, 0.8, "admission", GATEWAY, "let in or reject")
    box(axis, 3.0, 1.2, 1.5, 0.8, "routing", GATEWAY, "scorers, picker")
    axis.text(0.1, 1.75, "request", ha="left", va="center", color=INK)
    arrow(axis, (0.1, 1.6), (1.15, 1.6))
    arrow(axis, (2.55, 1.6), (2.95, 1.6))
    for row in range(NUM_INSTANCES):
        y = 2.35 - 1.15 * row
        axis.add_patch(
            FancyBboxPatch(
                (5.15, y - 0.12), 4.6, 0.94, boxstyle="round,pad=0.03", fc="none", ec=EDGE
            )
        )
        box(axis, 5.3, y, 1.7, 0.7, "wait queue", QUEUE, "priority, scheduler")
        box(axis, 7.5, y, 2.1, 0.7, "running batch", BATCH, "steps, KV blocks")
        arrow(axis, (7.05, y + 0.35), (7.45, y + 0.35))
        arrow(axis, (4.55, 1.6), (5.1, y + 0.35))
        arrow(axis, (9.65, y + 0.35), (10.3, y + 0.35))
    axis.text(
        10.35, 2.7, "first token,\n…\nlast token", ha="left", va="center", color=INK, fontsize=9
    )
    axis.text(3.1, 2.35, "gateway", ha="center", color=INK, fontsize=9, style="italic")
    axis.text(7.45, 3.27, "instances", ha="center", color=INK, fontsize=9, style="italic")
    axis.set_xlim(0, 11.3)
    axis.set_ylim(-0.15, 3.45)
    axis.axis("off")
    write_png(figure, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
