"""What the papers' figures add to the common style: the names and colours of the record's policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.reports.style import (
    BLACK,
    BLUE,
    CLASS_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PARTS,
    PINK,
    RED,
    SKY,
    area_handle,
    class_handles,
    class_style,
    figure,
    line_handle,
    plain_log,
    save,
)

__all__ = [
    "BLACK",
    "BURST",
    "CLASS_COLOURS",
    "ORANGE",
    "PARTS",
    "POLICY_COLOURS",
    "SKY",
    "area_handle",
    "at_load",
    "class_handles",
    "class_style",
    "figure",
    "line",
    "line_handle",
    "plain_log",
    "policy_handles",
    "save",
    "size_axes",
]

POLICY_COLOURS: Mapping[str, str] = {
    "baseline": GREY,
    "iteration 1": GREEN,
    "iteration 3": PINK,
    "iteration 5": BLUE,
    "8-opt": RED,
    "iteration 13": ORANGE,
}
POLICY_WORDS: Mapping[str, str] = {
    "baseline": "baseline: first come first served, chunks of 256 tokens",
    "iteration 1": "iteration 1: priorities by class",
    "iteration 3": "iteration 3: iteration 1 with a gate for sheddable requests",
    "iteration 5": "iteration 5: priorities, no chunks for critical and sheddable prompts",
    "8-opt": "8-opt: iteration 8 after search, 962 tokens a step",
}
BURST = (
    "Workload: 1,000 requests within about 0.5 s, a burst at 1.3 to 4 times the prefill capacity of "
    "8 instances and not a steady state."
)


def policy_handles(policies: Sequence[str], **style: Any) -> list[Any]:
    """Return one line per policy for a legend."""
    return [
        line_handle(POLICY_WORDS[name], color=POLICY_COLOURS[name], **({"linewidth": 2.2} | style))
        for name in policies
    ]


def at_load(table: Any, load: str) -> Any:
    """Return the rows whose x is `LOAD SIZE` with this load, with the size as x."""
    parts = table["x"].str.split(" ", expand=True)
    return table.assign(x=parts[1])[parts[0] == load]


def size_axes(above: Any, below: Any, most: float) -> None:
    """Give two panels, above each other, an axis of cluster sizes; changes in % below reach up to `most`."""
    above.set_xscale("log", base=2)
    above.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
    above.set_ylim(bottom=0)
    below.set_ylim(-100, most)


def line(panel: Any, rows: Any, color: str, **settings: Any) -> Any:
    """Draw means with bars for their intervals; `rows` is a table with x, mean, low and high."""
    rows = rows.sort_values("x")
    below, above = rows["mean"] - rows["low"], rows["high"] - rows["mean"]
    return panel.errorbar(
        rows["x"], rows["mean"], yerr=[below.clip(lower=0), above.clip(lower=0)],
        **({"marker": "o"} | settings | {"color": color}),
    )  # fmt: skip
