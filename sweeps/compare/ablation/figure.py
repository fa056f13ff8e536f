"""The figure of an ablation: what each component contributes to every class, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.reports.figures import WIDTH, class_words, figure, line_handle, save
from blis_jax.reports.run_words import words_of
from blis_jax.reports.style import BLUE, GREEN, GREY, RED
from sweeps.compare.ablation.report import metrics_of
from sweeps.reports.words import short_title, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


KINDS = {  # colour, marker, and what it is called
    "added alone": (BLUE, "o", "added to the base alone"),
    "left out": (RED, "s", "left out: the whole minus the whole without it"),
    "Shapley": (GREEN, "D", "Shapley value: average over all orders"),
}
WHOLE = GREY
PANEL_INCHES = 1.3  # at least


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draws the first metric's contributions to a PNG, whole or not at all."""
    metric = metrics_of(document)[0][1]
    classes = [slo_class for slo_class, name in metrics_of(document) if name == metric]
    rows = [*(one["name"] for one in document["components"]), "all together"]
    width = max(WIDTH, 1.7 + PANEL_INCHES * len(classes))
    height = 0.7 + 0.42 * len(rows)
    with figure(height, 1, len(classes), width, sharex=True) as (made, panels):
        for place, (panel, slo_class) in enumerate(zip(panels[0], classes, strict=True)):
            _draw_class(panel, document, slo_class, metric, rows if place == 0 else None)
        heading = (
            f"{short_title(metric)}: what each component of {document['arm']} changes against "
            f"{document['base']}"
        )
        save(made, path, heading, _caption(document), _handles(document))


def _draw_class(
    panel: Axes,
    document: Mapping[str, Any],
    slo_class: str,
    metric: str,
    rows: Sequence[str] | None,
) -> None:
    from matplotlib.ticker import MaxNLocator

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
    panel.axvline(0.0, color="0.4", linewidth=1.1, zorder=0.9)
    panel.axhline(len(components) - 0.5, color="0.8", linewidth=0.8)
    panel.set_yticks(range(len(components) + 1), rows or [""] * (len(components) + 1))
    for label, one in zip(panel.get_yticklabels(), document["components"], strict=False):
        label.set_color("0.55" if one["status"] == "inert" else "black")
    panel.set_ylim(len(components) + 0.5, -0.5)
    unit = title(metric).partition(", ")[2]
    panel.set_xlabel(f"change ({unit})" if unit else "change")
    panel.set_title(class_words(slo_class))
    panel.grid(axis="y", visible=False)
    panel.xaxis.set_major_locator(MaxNLocator(4))


def _kinds(document: Mapping[str, Any]) -> list[str]:
    present = {entry["kind"] for entry in document["contributions"]}
    return [kind for kind in KINDS if kind in present]


def _draw_change(
    panel: Axes, entry: Mapping[str, Any], at: float, colour: str, marker: str
) -> None:
    change = entry["difference"]
    if change["mean"] is None:
        return
    if change["low"] is not None:
        panel.plot([change["low"], change["high"]], [at, at], color=colour, linewidth=1.8)
    face = colour if entry["verdict"] in ("better", "worse") else "white"
    panel.plot([change["mean"]], [at], marker, color=colour, markerfacecolor=face, markersize=5)


def _handles(document: Mapping[str, Any]) -> list[Any]:
    handles = [
        line_handle(KINDS[kind][2], color=KINDS[kind][0], marker=KINDS[kind][1])
        for kind in _kinds(document)
    ]
    return [*handles, line_handle("the whole change", color=WHOLE, marker="o")]


def _caption(document: Mapping[str, Any]) -> str:
    inference = document["inference"]
    level = f"{100 * inference['confidence']:g} %"
    source = "Trace" if document.get("trace") else "Workload"
    text = (
        f"{source} {document['workload']}, the same requests for every combination, "
        f"{words_of(document).listed(document['seeds'])}. Dots: mean of the paired differences; lines: "
        f"{level} interval of each by itself; filled: not 0 after correction for all contributions "
        "(Holm); hollow: cannot be told from 0."
    )
    inert = [one["name"] for one in document["components"] if one["status"] == "inert"]
    if inert:
        text += f" In grey: inert, every request had the same life without it: {', '.join(inert)}."
    failed = [one for one in document["combinations"] if one["failure"] or one["error"]]
    if failed:
        text += f" {len(failed)} combinations failed on some {words_of(document).one}; what needs them leaves it out."
    return text
