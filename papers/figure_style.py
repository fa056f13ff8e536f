"""How every figure of the papers looks: sizes, fonts, one colour a policy, one way to save."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blis_jax.atomic_write import replacing

WIDTH = 8.0  # inches
DPI = 150
TITLE_SIZE, TEXT_SIZE, CAPTION_SIZE = 11.0, 9.0, 7.8
LINE_INCHES = 0.152  # of a caption's line
LETTERS_PER_INCH = 17.6  # of a caption
# Okabe and Ito's colours, which colour-blind readers can tell apart.
GREY, BLACK, BLUE, SKY = "#4d4d4d", "#000000", "#0072b2", "#56b4e9"
RED, GREEN, PINK, ORANGE = "#d55e00", "#009e73", "#cc79a7", "#e69f00"
POLICY_COLOURS: Mapping[str, str] = {
    "baseline": GREY,
    "iteration 1": GREEN,
    "iteration 3": PINK,
    "iteration 5": BLUE,
    "8-opt": RED,
}
POLICY_WORDS: Mapping[str, str] = {
    "baseline": "baseline: first come first served, chunks of 256 tokens",
    "iteration 1": "iteration 1: priorities by class",
    "iteration 3": "iteration 3: iteration 1 with a gate for sheddable requests",
    "iteration 5": "iteration 5: priorities, no chunks for critical and sheddable prompts",
    "8-opt": "8-opt: iteration 8 after search, 962 tokens a step",
}
CLASS_LINES: Mapping[str, str] = {"critical": "-", "standard": "--", "sheddable": ":"}
CLASS_MARKS: Mapping[str, str] = {"critical": "o", "standard": "s", "sheddable": "^"}
BURST = (
    "Workload: 1,000 requests within about 0.5 s, a burst at 1.3 to 4 times the prefill capacity of "
    "8 instances and not a steady state."
)


@contextmanager
def figure(
    height: float, rows: int = 1, columns: int = 1, **subplots: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure of the common width and its panels [row, column]; height in inches, without words."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": TEXT_SIZE,
        "axes.titlesize": TEXT_SIZE + 0.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "0.9",
        "legend.frameon": False,
        "legend.fontsize": TEXT_SIZE - 0.5,
        "lines.linewidth": 1.7,
        "lines.markersize": 4.5,
        "errorbar.capsize": 2.0,
    }
    with rc_context(style):
        made = Figure(figsize=(WIDTH, height))
        yield made, made.subplots(rows, columns, squeeze=False, **subplots)


def save(
    made: Any,
    path: Path,
    title: str,
    caption: str,
    legend: Sequence[Any] = (),
    legend_columns: int = 1,
) -> None:
    """Writes a PNG whole or not at all: title and legend above the panels, the caption below.

    `legend` are handles with labels for the whole figure.
    """
    width, height = made.get_size_inches()
    lines = textwrap.wrap(" ".join(caption.split()), int(LETTERS_PER_INCH * width))
    below = LINE_INCHES * len(lines) + 0.12
    above = 0.36 + 0.19 * -(-len(legend) // legend_columns)
    total = height + below + above
    made.set_size_inches(width, total)
    made.text(0.01, 1 - 0.07 / total, title, fontsize=TITLE_SIZE, va="top", fontweight="bold")
    if legend:
        made.legend(
            handles=list(legend), loc="upper left", bbox_to_anchor=(0.0, 1 - 0.28 / total),
            labelspacing=0.25, handlelength=1.8, ncols=legend_columns,
        )  # fmt: skip
    words = "\n".join(lines)
    made.text(0.01, 0.05 / total, words, fontsize=CAPTION_SIZE, color="0.3", va="bottom")
    made.tight_layout(pad=0.5, w_pad=1.2, h_pad=1.2, rect=(0, below / total, 1, 1 - above / total))
    with replacing(path) as written:
        made.savefig(written, dpi=DPI, format="png")


def policy_handles(policies: Sequence[str]) -> list[Any]:
    """One line a policy for a legend."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=POLICY_COLOURS[name], linewidth=2.2, label=POLICY_WORDS[name])
        for name in policies
    ]


def line(panel: Any, rows: Any, colour: str, **settings: Any) -> Any:
    """Means with bars for their intervals; `rows` are a table with x, mean, low and high."""
    rows = rows.sort_values("x")
    below, above = rows["mean"] - rows["low"], rows["high"] - rows["mean"]
    return panel.errorbar(
        rows["x"], rows["mean"], yerr=[below.clip(lower=0), above.clip(lower=0)], color=colour,
        **({"marker": "o"} | settings),
    )  # fmt: skip
