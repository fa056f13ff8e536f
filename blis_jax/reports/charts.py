"""The page's charts as Vega-Lite specifications; data come by name, see `data.tables`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.reports.data import GREATEST_RATIO, LEAST_RATIO, chart_metrics, metric_label, tables
from blis_jax.reports.study import Study
from blis_jax.reports.style import ALL_REQUESTS, CLASS_COLOURS, GREY, PARTS
from blis_jax.reports.words import class_words

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name; nothing is loaded from it
WIDTH = 1060  # pixels, with labels
CONFIG: Spec = {
    "font": "system-ui, sans-serif",
    "background": "white",
    "view": {"stroke": "#dddddd"},
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
             "gridColor": "#eeeeee", "labelLimit": 260},
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "labelLimit": 320},
    "title": {"fontSize": 13, "anchor": "start"},
    "header": {"labelFontSize": 13, "titleFontSize": 12},
}  # fmt: skip
VIEW_WORDS = {"mean": "the mean", "p99": "the 99th percentile", "tail": "the slowest 1 %"}
MEASURE_WORDS = {
    "running": (
        "Requests in the running batch (0: no step is running)",
        "requests",
        ("#f3f3f3", "#9ecae1", "#08519c"),
    ),
    "waiting": ("Requests in the wait queue", "requests", ("#f3f3f3", "#fdae6b", "#a63603")),
    "kv_percent": (
        "KV-cache blocks in use (% of the instance's)",
        "%",
        ("#f3f3f3", "#bcbddc", "#54278f"),
    ),
}
LEAST_HEIGHT = 64  # px of a heat map: its legend needs as much
LEAST_LABEL, MOST_LABEL = 120, 340  # px of a strategy's name beside its bars
MOST_TIMELINES = 6


def charts(study: Study) -> dict[str, Spec]:
    """By name; a chart without data is left out."""
    from blis_jax.reports.explore import explore

    found = {}
    if any(one.percent.mean is not None for one in study.differences):
        found["differences"] = differences(study)
    if study.values and study.differences:
        found["explore"] = explore(study)
    if study.parts:
        found["parts"] = parts(study)
    if study.timelines:
        found["timelines"] = timelines(study)
    return {name: {"$schema": SCHEMA, "config": CONFIG, **spec} for name, spec in found.items()}


def strategy_colour(study: Study, is_legend: bool = True, names: Sequence[str] = ()) -> Spec:
    """The colour channel of strategies."""
    colours = study.colours
    chosen = [name for name in study.strategies if not names or name in names]
    legend: Spec = {"title": None, "orient": "top", "columns": 4, "symbolOpacity": 1}
    return {
        "field": "strategy",
        "type": "nominal",
        "scale": {"domain": chosen, "range": [colours[name] for name in chosen]},
        "legend": legend if is_legend else None,
    }


def class_title(slo_class: str) -> Spec:
    """A panel's title in the class's colour."""
    words = class_words(slo_class)
    return {"text": words, "color": CLASS_COLOURS.get(slo_class, GREY), "fontSize": 14}


# --- paired differences ---------------------------------------------------------------------------


def differences(study: Study) -> Spec:
    """A panel a class: each metric ÷ the reference's, with intervals, on a logarithmic axis."""
    better = {one.metric: one.better for one in study.differences}
    labels = [metric_label(name, better[name]) for name in chart_metrics(study)]
    domain = _ratio_domain(study)
    classes = [
        name for name in study.classes if any(one.slo_class == name for one in study.differences)
    ]
    columns = min(len(classes), 4)
    width = (WIDTH - 190) // columns - 25
    panels = [
        _difference_panel(study, name, labels, domain, width, is_first=place % columns == 0)
        for place, name in enumerate(classes)
    ]
    return {"data": {"name": "differences"}, "concat": panels, "columns": columns, "spacing": 22}


def _difference_panel(
    study: Study,
    slo_class: str,
    labels: Sequence[str],
    domain: tuple[float, float],
    width: int,
    is_first: bool,
) -> Spec:
    compared = list(dict.fromkeys(one.strategy for one in study.differences))
    axis: Spec = {"title": None, "labels": is_first, "ticks": False, "grid": True, "domain": False}
    y: Spec = {"field": "label", "type": "nominal", "sort": list(labels),
               "scale": {"domain": list(labels)}, "axis": axis}  # fmt: skip
    offset: Spec = {"field": "strategy", "type": "nominal", "sort": compared}
    has_legend = len(compared) > 1
    common: Spec = {"y": y, "color": strategy_colour(study, has_legend, compared)}
    if len(compared) > 1:
        common["yOffset"] = offset
    layers: list[Spec] = [
        {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "#888888"},
         "encoding": {"x": {"datum": 1, **_ratio_scale(domain)}}}
    ]  # fmt: skip
    for low, high, width_px in (("joint_low", "joint_high", 1), ("ratio_low", "ratio_high", 3.5)):
        x = {"field": low, "type": "quantitative", **_ratio_scale(domain)}
        layers.append(
            {"transform": [{"filter": f"isValid(datum.{low})"}],
             "mark": {"type": "rule", "strokeWidth": width_px, "opacity": 0.75, "clip": True},
             "encoding": {**common, "x": x, "x2": {"field": high}}}
        )  # fmt: skip
    is_clear = "datum.verdict == 'better' || datum.verdict == 'worse'"
    dot: Spec = {
        "mark": {"type": "point", "filled": True, "size": 75, "opacity": 1, "strokeWidth": 2},
        "encoding": {
            **{name: channel for name, channel in common.items() if name != "color"},
            "x": {"field": "ratio", "type": "quantitative", **_ratio_scale(domain)},
            "stroke": strategy_colour(study, has_legend, compared),
            "fill": {"condition": {"test": is_clear, **strategy_colour(study, has_legend, compared)},
                     "value": "white"},
            "tooltip": [
                {"field": "strategy"}, {"field": "class"}, {"field": "label", "title": "metric"},
                {"field": "change", "title": "change [interval]"},
                {"field": "means", "title": "mean, reference → strategy"},
                {"field": "verdict"}, {"field": "num_pairs", "title": study.pairs or study.runs.many},
            ],
        },
    }  # fmt: skip
    layers.append(dot)
    return {
        "title": class_title(slo_class),
        "width": width,
        "height": len(labels) * (13 + 13 * len(compared)),
        "transform": [{"filter": {"field": "class", "equal": slo_class}},
                      {"filter": {"field": "label", "oneOf": list(labels)}}],
        "layer": layers,
    }  # fmt: skip


def _ratio_scale(domain: tuple[float, float]) -> Spec:
    ticks = [tick for tick in _TICKS if domain[0] <= tick <= domain[1]]
    octaves = math.log2(domain[1] / domain[0])
    if octaves > 2:
        ticks = [tick for tick in ticks if math.log2(tick).is_integer()]
    if octaves > 5:
        ticks = [tick for tick in ticks if tick == 1 or math.log2(tick) % 2]
    words = "(datum.value < 1 ? '−' : '+') + format(abs(datum.value - 1), '.0%')"
    return {
        "scale": {"type": "log", "domain": list(domain), "nice": False, "clamp": True},
        "axis": {"values": ticks, "labelExpr": f"datum.value == 1 ? '0' : {words}",
                 "title": "change against the reference", "labelFontSize": 10, "grid": True,
                 "labelOverlap": "greedy", "labelSeparation": 1},
    }  # fmt: skip


_TICKS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 8, 16, 32)


def _ratio_domain(study: Study) -> tuple[float, float]:
    """The same for all panels, wide enough for every interval."""
    shown = tables(study)["differences"]
    metrics = chart_metrics(study)
    ends = [0.85, 1.18]
    for name in ("ratio", "ratio_low", "ratio_high", "joint_low", "joint_high"):
        pairs = zip(shown[name], shown["metric"], strict=True)
        ends += [value for value, metric in pairs if value is not None and metric in metrics]
    return max(min(ends) / 1.1, LEAST_RATIO), min(max(ends) * 1.1, GREATEST_RATIO)


# --- parts of TTFT --------------------------------------------------------------------------------


def parts(study: Study) -> Spec:
    """Stacked bars, one a class and strategy, of the view that is chosen."""
    groups = {one.group for one in study.parts if one.mean_ms > 0}
    shown = {name: PARTS[name] for name in PARTS if name in groups}
    views = [name for name in VIEW_WORDS if any(one.view == name for one in study.parts)]
    colour: Spec = {
        "field": "words", "type": "nominal", "title": None,
        "sort": [words for _, words in shown.values()],
        "scale": {"domain": [words for _, words in shown.values()],
                  "range": [colour for colour, _ in shown.values()]},
        "legend": {"orient": "top", "columns": 5},
    }  # fmt: skip
    words = " : ".join(f"datum.part == '{name}' ? '{one[1]}'" for name, one in PARTS.items())
    order = " : ".join(f"datum.part == '{name}' ? {at}" for at, name in enumerate(PARTS))
    limit = max(LEAST_LABEL, min(MOST_LABEL, 8 * max(map(len, study.strategies))))
    y: Spec = {"field": "strategy", "type": "nominal", "sort": list(study.strategies),
               "axis": {"title": None, "labelLimit": limit}}  # fmt: skip
    bars: Spec = {
        "mark": {"type": "bar", "height": {"band": 0.75}},
        "encoding": {
            "y": y, "color": colour, "order": {"field": "order"},
            "x": {"field": "mean_ms", "type": "quantitative", "stack": "zero",
                  "axis": {"title": "time to first token (ms)", "tickCount": 10}},
            "tooltip": [{"field": "class"}, {"field": "strategy"}, {"field": "words", "title": "part"},
                        {"field": "mean_ms", "title": "ms", "format": ",.2f"}],
        },
    }  # fmt: skip
    totals: Spec = {
        "transform": [{"aggregate": [{"op": "sum", "field": "mean_ms", "as": "total"}],
                       "groupby": ["strategy", "class"]}],
        "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12},
        "encoding": {"y": y, "x": {"field": "total", "type": "quantitative"},
                     "text": {"field": "total", "format": ",.1f"}},
    }  # fmt: skip
    return {
        "data": {"name": "parts"},
        "params": [{"name": "view", "value": "p99" if "p99" in views else views[0],
                    "bind": {"input": "radio", "options": views, "name": "What is taken apart: ",
                             "element": "#controls-parts",
                             "labels": [VIEW_WORDS[name] for name in views]}}],
        "transform": [{"filter": "datum.view == view"},
                      {"calculate": f"{words} : datum.part", "as": "words"},
                      {"calculate": f"{order} : 9", "as": "order"}],
        "facet": {"row": {"field": "class", "type": "nominal", "sort": list(study.classes),
                          "header": {"labelAngle": 0, "labelAlign": "left", "title": None,
                                     "labelFontWeight": "bold"}}},
        "spec": {"width": WIDTH - 130 - limit, "height": {"step": 22}, "layer": [bars, totals]},
        "spacing": 12,
    }  # fmt: skip


# --- timelines ------------------------------------------------------------------------------------


def timelines(study: Study) -> Spec:
    """Heat maps of instances × time: a row a measure, a column a strategy."""
    shown = study.timelines[:MOST_TIMELINES]
    num_spans = len(shown[0].edges_s) - 1
    width = max(1, ((WIDTH - 130) // len(shown) - 18) // num_spans) * num_spans  # whole pixels
    num_instances = max(len(one.running) for one in shown)
    height = max(LEAST_HEIGHT, num_instances * max(4, min(14, 320 // num_instances)))
    colours = study.colours
    rows = []
    for measure in MEASURE_WORDS:
        greatest = max(float(getattr(one, measure).max()) for one in shown)
        panels = [
            _heat_map(study, one.strategy, measure, greatest, (width, height), place, colours)
            for place, one in enumerate(shown)
        ]
        title = {"text": MEASURE_WORDS[measure][0], "fontSize": 13, "offset": 4}
        rows.append({"title": title, "hconcat": panels, "spacing": 18})
    return {"data": {"name": "timelines"}, "vconcat": rows, "spacing": 26,
            "resolve": {"scale": {"color": "independent"}}}  # fmt: skip


def _heat_map(
    study: Study,
    strategy: str,
    measure: str,
    greatest: float,
    size: tuple[int, int],
    place: int,
    colours: Mapping[str, str],
) -> Spec:
    _, unit, colour_range = MEASURE_WORDS[measure]
    end = max(one.edges_s[-1] for one in study.timelines)
    time: Spec = {"type": "quantitative", "scale": {"domain": [0, end], "nice": False}}
    return {
        "title": {"text": strategy, "color": colours.get(strategy, GREY), "fontSize": 12},
        "width": size[0],
        "height": size[1],
        "transform": [{"filter": {"field": "strategy", "equal": strategy}}],
        "mark": {"type": "rect", "strokeWidth": 0},
        "encoding": {
            "x": {"field": "start_s", "axis": {"title": "simulated time (s)", "grid": False, "tickCount": 6}, **time},
            "x2": {"field": "end_s"},
            "y": {"field": "instance", "type": "ordinal",
                  "axis": {"title": "instance" if place == 0 else None, "labelOverlap": True}},
            "color": {"field": measure, "type": "quantitative",
                      "scale": {"range": list(colour_range), "interpolate": "rgb", "domain": [0, greatest or 1.0]},
                      "legend": {"title": unit, "gradientLength": size[1] - 10}},
            "tooltip": [{"field": "instance"}, {"field": "start_s", "title": "from (s)"},
                        {"field": "end_s", "title": "to (s)"}, {"field": "running"},
                        {"field": "waiting"}, {"field": "kv_percent", "title": "KV blocks in use (%)"}],
        },
    }  # fmt: skip


__all__ = ["ALL_REQUESTS", "charts", "class_title", "strategy_colour"]
