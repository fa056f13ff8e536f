"""The figure: the share of requests in time against the number of instances."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.reports.figures import GUIDE_COLOUR, figure, line_handle, save
from blis_jax.reports.style import STRATEGY_COLOURS
from sweeps.capacity.deciding import Answer
from sweeps.capacity.finding import Smallest
from sweeps.capacity.targets import ServiceTarget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {Answer.MEETS: "o", Answer.FAILS: "X", Answer.OPEN: "D"}
WORDS = {Answer.MEETS: "meets all targets", Answer.FAILS: "does not", Answer.OPEN: "open"}
LEAST_GAP = 2e-4  # from 100 %, which a logarithmic axis does not have
PANEL_INCHES = 2.3


def draw(found: Sequence[Smallest], targets: Sequence[ServiceTarget], path: Path) -> None:
    """A panel for each target; a PNG, whole or not at all."""
    colours = [STRATEGY_COLOURS[at % len(STRATEGY_COLOURS)] for at in range(len(found))]
    with figure(PANEL_INCHES * len(targets), len(targets), 1) as (made, panels):
        for place, target in enumerate(targets):
            _draw_target(panels[place, 0], found, colours, place, target)
        panels[-1, 0].set_xlabel("instances")
        lines = [
            line_handle(_label(one, found), color=colour)
            for one, colour in zip(found, colours, strict=True)
        ]
        marks = [
            line_handle(WORDS[answer], color=GUIDE_COLOUR, marker=mark, linestyle="none")
            for answer, mark in MARKS.items()
        ]
        save(
            made,
            path,
            "Share of requests in time against the size of the cluster",
            _CAPTION,
            lines + marks,
        )


_CAPTION = (
    "Each point is a cluster that was tried, with the interval of its last look over the seeds; the dashed line "
    "is what is asked for. The axis is stretched towards 100 %, and what lies above 99.98 % is drawn there."
)


def _label(one: Smallest, found: Sequence[Smallest]) -> str:
    policies, kinds = {each.arm.name for each in found}, {each.family.name for each in found}
    parts = [one.arm.name] * (len(policies) > 1) + [one.family.name] * (len(kinds) > 1)
    return ", ".join(parts) or one.arm.name


def _draw_target(
    panel: Axes,
    found: Sequence[Smallest],
    colours: Sequence[str],
    place: int,
    target: ServiceTarget,
) -> None:
    for one, colour in zip(found, colours, strict=True):
        sizes = np.array(list(one.tried))
        entries = [decision.attained[place] for decision in one.tried.values()]
        shares, lows, highs = (
            np.clip([getattr(entry, name) for entry in entries], 0, 1 - LEAST_GAP)
            for name in ("share", "low", "high")
        )
        panel.plot(sizes, 1 - shares, color=colour, alpha=0.6)
        panel.vlines(sizes, 1 - lows, 1 - highs, color=colour, linewidth=1.2)
        for answer, mark in MARKS.items():
            is_it = np.array([each.answer is answer for each in one.tried.values()])
            panel.plot(sizes[is_it], 1 - shares[is_it], mark, color=colour)
    panel.axhline(1 - target.share, color=GUIDE_COLOUR, linestyle="--", linewidth=1)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_ylim(1.25, LEAST_GAP * 0.8)
    ticks = [1, 0.5, 0.1, 0.05, 0.01, 0.001]
    panel.set_yticks(ticks, [f"{100 * (1 - tick):g} %" for tick in ticks])
    every = sorted({size for one in found for size in one.tried})
    panel.set_xticks(every, list(map(str, every)))
    panel.minorticks_off()
    panel.set_ylabel("in time")
    panel.set_title(target.words)
