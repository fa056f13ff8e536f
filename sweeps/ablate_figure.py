"""The figure of an ablation: what each component contributes to every class, with intervals."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.atomic_write import replacing
from sweeps.ablate_report import metrics_of
from sweeps.report_words import short_title, title

KINDS = {  # colour, marker, and what it is called
    "added alone": ("#0072b2", "o", "added to the base alone"),
    "left out": ("#d55e00", "s", "left out: the whole minus the whole without it"),
    "Shapley": ("#009e73", "D", "Shapley value: average over all orders"),
}
WHOLE = "#4d4d4d"
PANEL_INCHES = 2.9
LINE_INCHES = 0.165
LETTERS_PER_INCH = 17.5


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draws the first metric's contributions to a PNG, whole or not at all."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    metric = metrics_of(document)[0][1]
    classes = [slo_class for slo_class, name in metrics_of(document) if name == metric]
    rows = [*(one["name"] for one in document["components"]), "all together"]
    margin = 0.35 + 0.075 * max(len(row) for row in rows)
    width = max(margin + PANEL_INCHES * len(classes), 7.0)
    caption = textwrap.wrap(_caption(document), int(LETTERS_PER_INCH * width))
    below = LINE_INCHES * (len(caption) + 1) + 0.55
    height = 0.95 + 0.3 + 0.42 * len(rows) + below
    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = Figure(figsize=(width, height))
        panels = figure.subplots(1, len(classes), sharex=True, squeeze=False)[0]
        figure.subplots_adjust(
            left=margin / width, right=1 - 0.15 / width, top=1 - 0.95 / height,
            bottom=below / height, wspace=0.12,
        )  # fmt: skip
        for place, (panel, slo_class) in enumerate(zip(panels, classes, strict=True)):
            _draw_class(panel, document, slo_class, metric, rows if place == 0 else None)
        heading = (
            f"{short_title(metric)}: what the components of {document['arm']} change, against "
            f"{document['base']}"
        )
        figure.text(0.01, 1 - 0.08 / height, heading, fontsize=11, va="top")
        _legend(figure, document, height)
        figure.text(0.01, 0.06 / height, "\n".join(caption), fontsize=8, color="0.35", va="bottom")
        with replacing(path) as written:
            figure.savefig(written, dpi=130, format="png")


def _draw_class(
    panel: Any,
    document: Mapping[str, Any],
    slo_class: str,
    metric: str,
    rows: Sequence[str] | None,
) -> None:
    components = [one["name"] for one in document["components"]]
    kinds = _kinds(document)
    step = 0.62 / len(kinds)
    for entry in document["contributions"]:
        if (entry["class"], entry["metric"]) != (slo_class, metric) or entry["kind"] not in kinds:
            continue
        offset = (kinds.index(entry["kind"]) - (len(kinds) - 1) / 2) * step
        colour, marker, _ = KINDS[entry["kind"]]
        _draw_change(panel, entry, components.index(entry["component"]) + offset, colour, marker)
    for entry in document["total"]:
        if (entry["class"], entry["metric"]) == (slo_class, metric):
            _draw_change(panel, entry, len(components), WHOLE, "o")
    panel.axvline(0.0, color="0.5", linewidth=0.9, zorder=0)
    panel.axhline(len(components) - 0.5, color="0.8", linewidth=0.8)
    panel.set_yticks(range(len(components) + 1), rows or [""] * (len(components) + 1))
    for label, one in zip(panel.get_yticklabels(), document["components"], strict=False):
        label.set_color("0.55" if one["status"] == "inert" else "black")
    panel.set_ylim(len(components) + 0.5, -0.5)
    unit = title(metric).partition(", ")[2]
    panel.set_xlabel(f"change ({unit})" if unit else "change")
    heading = "all requests" if slo_class == "all" else slo_class
    panel.set_title(heading, loc="left", fontweight="bold", fontsize=9.5)
    panel.grid(axis="x", color="0.92")
    panel.set_axisbelow(True)


def _kinds(document: Mapping[str, Any]) -> list[str]:
    present = {entry["kind"] for entry in document["contributions"]}
    return [kind for kind in KINDS if kind in present]


def _draw_change(panel: Any, entry: Mapping[str, Any], at: float, colour: str, marker: str) -> None:
    change = entry["difference"]
    if change["mean"] is None:
        return
    if change["low"] is not None:
        panel.plot([change["low"], change["high"]], [at, at], color=colour, linewidth=1.8)
    face = colour if entry["verdict"] in ("better", "worse") else "white"
    panel.plot([change["mean"]], [at], marker, color=colour, markerfacecolor=face, markersize=5)


def _legend(figure: Any, document: Mapping[str, Any], height: float) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=KINDS[kind][0], marker=KINDS[kind][1], label=KINDS[kind][2])
        for kind in _kinds(document)
    ]
    handles.append(Line2D([], [], color=WHOLE, marker="o", label="the whole change"))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.005, 1 - 0.3 / height),
        ncols=len(handles), fontsize=8, frameon=False, columnspacing=1.4,
    )  # fmt: skip


def _caption(document: Mapping[str, Any]) -> str:
    count, inference = len(document["seeds"]), document["inference"]
    level = f"{100 * inference['confidence']:g} %"
    text = (
        f"Workload {document['workload']}, the same requests for every combination, {count} random "
        f"seed{'s' * (count > 1)}. Dots: mean of the paired differences; lines: {level} interval of "
        "each by itself; filled: not 0 after correction for all contributions (Holm); hollow: cannot "
        "be told from 0."
    )
    inert = [one["name"] for one in document["components"] if one["status"] == "inert"]
    if inert:
        text += f" In grey: inert, every request had the same life without it: {', '.join(inert)}."
    failed = [one for one in document["combinations"] if one["failure"] or one["error"]]
    if failed:
        text += f" {len(failed)} combinations failed on some seed; what needs them leaves it out."
    return text
