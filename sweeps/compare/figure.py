"""The figure of a comparison: what each class's TTFT P99 is made of, and every metric against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.reports.figures import WIDTH, area_handle, class_words, figure, line_handle, save
from blis_jax.reports.style import PARTS, STRATEGY_COLOURS, strategy_colours
from sweeps.reports.words import short_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_ARMS = len(STRATEGY_COLOURS)
PANEL_INCHES = 1.3  # at least
LEAST_RATIO, GREATEST_RATIO = 1 / 32, 32.0
MOST_TICKS = 4


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draws a comparison to a PNG, whole or not at all."""
    arms = document["arms"][:MOST_ARMS]
    classes = ["all", *document["classes"]]
    kinds = {arm["name"]: arm["strategy"] or "" for arm in arms}
    colours = strategy_colours(kinds, kinds)
    width = max(WIDTH, 1.7 + PANEL_INCHES * len(classes))
    num_metrics = max(len(_entries(document, name, arms[1]["name"])) for name in classes)
    heights = [0.5 + 0.3 * len(arms), 0.5 + num_metrics * (0.28 + 0.13 * (len(arms) - 1))]
    ratios = {"height_ratios": heights}
    with figure(sum(heights) + 1.2, 2, len(classes), width, gridspec_kw=ratios) as (made, panels):
        for column, slo_class in enumerate(classes):
            above, under = panels[:, column]
            _draw_parts(above, arms, slo_class, colours, is_first=column == 0)
            _draw_ratios(under, document, arms[1:], slo_class, colours, is_first=column == 0)
        title = f"{_joined([arm['name'] for arm in arms[1:]])} against {document['reference']}"
        title += ": TTFT P99 and every metric"
        save(made, path, title, _caption(document), _handles(arms, colours))


def _joined(names: Sequence[str]) -> str:
    return ", ".join(_short(name) for name in names)


def _short(name: str) -> str:
    return name if len(name) <= 34 else name[:32] + "…"


def _draw_parts(
    panel: Axes,
    arms: Sequence[Mapping[str, Any]],
    slo_class: str,
    colours: Mapping[str, str],
    is_first: bool,
) -> None:
    """The P99 of the TTFT by component, one bar an arm, with the interval of the whole."""
    from matplotlib.ticker import MaxNLocator

    for row, arm in enumerate(arms):
        view = arm["ttft_parts"].get(slo_class, {}).get("p99")
        if view is None:
            panel.text(0, row, " no run ended", va="center", fontsize=8.5, color="0.3")
            continue
        start = 0.0
        for name, (colour, _) in PARTS.items():
            panel.barh(row, view["groups"][name], left=start, color=colour, height=0.62)
            start += view["groups"][name]
        whole = arm["figures"].get(slo_class, {}).get("ttft_p99_ms")
        end = start
        if whole is not None and whole["low"] is not None:
            panel.plot([whole["low"], whole["high"]], [row, row], color="black", linewidth=1.2)
            end = whole["high"]
        panel.text(end, row, f" {start:.0f}", va="center", fontsize=8.5)
    panel.set_yticks(range(len(arms)), [_short(arm["name"]) for arm in arms] if is_first else [])
    for label, arm in zip(panel.get_yticklabels(), arms, strict=False):
        label.set_color(colours[arm["name"]])
    panel.set_ylim(len(arms) - 0.4, -0.6)
    panel.set_xlim(0, _longest(arms) * 1.4)
    panel.set_xlabel("TTFT P99 (ms)")
    panel.xaxis.set_major_locator(MaxNLocator(3))
    panel.grid(axis="y", visible=False)
    panel.set_title(class_words(slo_class))


def _longest(arms: Sequence[Mapping[str, Any]]) -> float:
    ends = [1.0]
    for arm in arms:
        for slo_class, views in arm["ttft_parts"].items():
            if "p99" in views:
                whole = arm["figures"].get(slo_class, {}).get("ttft_p99_ms", {})
                ends.append(max(views["p99"]["total"], whole.get("high") or 0.0))
    return max(ends)


def _entries(document: Mapping[str, Any], slo_class: str, arm: str) -> list[Mapping[str, Any]]:
    return [
        entry
        for entry in document["comparisons"]
        if entry["class"] == slo_class and entry["arm"] == arm
    ]


def _draw_ratios(
    panel: Axes,
    document: Mapping[str, Any],
    arms: Sequence[Mapping[str, Any]],
    slo_class: str,
    colours: Mapping[str, str],
    is_first: bool,
) -> None:
    """Each metric ÷ the reference's: own interval thick, simultaneous interval thin."""
    metrics = [entry["metric"] for entry in _entries(document, "all", arms[0]["name"])]
    apart = 0.62 / max(len(arms), 1)
    for place, arm in enumerate(arms):
        found = {entry["metric"]: entry for entry in _entries(document, slo_class, arm["name"])}
        for row, metric in enumerate(metrics):
            if metric in found:
                at = row + (place - (len(arms) - 1) / 2) * apart
                _draw_ratio(panel, found[metric], at, colours[arm["name"]])
    panel.axvline(1.0, color="0.4", linewidth=1.1, zorder=0.9)
    panel.set_xscale("log", base=2)
    low, high = _reach(document)
    panel.set_xlim(low, high)
    step = 2 if high / low > 2**MOST_TICKS else 1
    ticks = [2.0**power for power in range(-6, 7, step) if low <= 2.0**power <= high]
    panel.set_xticks(ticks, [f"×{tick:g}" if tick >= 1 else f"×1/{1 / tick:g}" for tick in ticks])
    panel.set_xticks([], minor=True)
    labels = [f"{short_title(name)}\n({_better(document, name)} is better)" for name in metrics]
    panel.set_yticks(range(len(metrics)), labels if is_first else [""] * len(metrics))
    panel.set_ylim(len(metrics) - 0.4, -0.6)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("ratio to reference")


def _draw_ratio(panel: Axes, entry: Mapping[str, Any], at: float, colour: str) -> None:
    if entry["percent"]["mean"] is None:
        return
    for key, width in (("simultaneous_percent", 1.0), ("percent", 3.0)):
        if entry[key]["low"] is not None:
            high = entry[key]["high"]
            ends = [_ratio(entry[key]["low"]), GREATEST_RATIO if high is None else _ratio(high)]
            panel.plot(ends, [at, at], color=colour, linewidth=width, alpha=0.75)
    face = colour if entry["verdict"] in ("better", "worse") else "white"
    mean = [_ratio(entry["percent"]["mean"])]
    panel.plot(mean, [at], "o", color=colour, markerfacecolor=face, markersize=5.5)


def _ratio(percent: float) -> float:
    return float(np.clip(1 + percent / 100, LEAST_RATIO, GREATEST_RATIO))


def _reach(document: Mapping[str, Any]) -> tuple[float, float]:
    """The same axis for all classes, wide enough for every interval."""
    ratios = [0.75, 1.33]
    for entry in document["comparisons"]:
        ends = [entry[key] for key in ("percent", "simultaneous_percent")]
        ratios += [
            _ratio(one[end]) for one in ends for end in ("low", "mean", "high")
            if one[end] is not None
        ]  # fmt: skip
    return min(ratios) / 1.1, max(ratios) * 1.1


def _better(document: Mapping[str, Any], metric: str) -> str:
    return next(
        str(entry["better"]) for entry in document["comparisons"] if entry["metric"] == metric
    )


def _handles(arms: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> list[Any]:
    """The arms, then what their time to first token consists of."""
    is_seen = {
        name: any(
            view["groups"][name] > 0
            for arm in arms
            for views in arm["ttft_parts"].values()
            for view in views.values()
        )
        for name in PARTS
    }
    return [
        *(line_handle(_short(arm["name"]), color=colours[arm["name"]], marker="o") for arm in arms),
        *(
            area_handle(words, color=colour)
            for name, (colour, words) in PARTS.items()
            if is_seen[name]
        ),
        line_handle("interval of the P99", color="black", linewidth=1.2),
    ]


def _caption(document: Mapping[str, Any]) -> str:
    count, inference = len(document["seeds"]), document["inference"]
    level = f"{100 * inference['confidence']:g} %"
    which = f"{count} random seed{'s' * (count > 1)}; means over seeds"
    source = f"Workload {document['workload']}"
    if document.get("trace"):
        windows, source = document["trace"]["windows"], f"Trace {Path(document['workload']).name}"
        which = (
            f"{windows} windows; means over windows" if windows else "resampled in blocks of time"
        )
    text = (
        f"{source}, the same requests for every arm, {which}. "
        "Above: the requests around each class's 99th percentile of time to first token, by what they "
        f"spent it on. Below: each metric divided by that of {document['reference']}, from paired "
        "differences; "
        f"thick lines: {level} interval of one difference; thin lines: intervals that hold for all "
        f"{inference['family_size']} together; filled dots: a difference after correction for their "
        "number (Holm); hollow dots: none that can be told from chance."
    )
    failed = [arm["name"] for arm in document["arms"] if arm["failure"] is not None]
    if failed:
        text += f" Runs that did not come to their end are left out, of {', '.join(failed)}."
    if len(document["arms"]) > MOST_ARMS:
        text += f" The first {MOST_ARMS} of {len(document['arms'])} arms are drawn."
    return text
