"""The linked charts: a brush over seeds and a choice of classes change everything that is drawn."""

from __future__ import annotations

from typing import Any

from blis_jax.reports.charts import WIDTH, class_title, strategy_colour
from blis_jax.reports.study import Study
from blis_jax.reports.style import CLASS_COLOURS, GREY
from blis_jax.reports.words import HEADLINE_METRICS, short_title

Spec = dict[str, Any]
CONTROLS = "#controls-explore"
FEW_SEEDS = 40  # up to here there is room for larger points
BRUSH, CLASSES = {"param": "seeds"}, {"param": "classes"}


def explore(study: Study) -> Spec:
    """Differences seed by seed, their means over the brushed seeds, and TTFT distributions of these."""
    metrics = list(dict.fromkeys(one.metric for one in study.values))
    have = {one.strategy for one in study.values}
    found = (one.strategy for one in study.differences if {one.strategy, one.reference} <= have)
    compared = list(dict.fromkeys(found))
    first = next((name for name in HEADLINE_METRICS if name in metrics), metrics[0])
    params: list[Spec] = [
        {"name": "metric", "value": first,
         "bind": {"input": "select", "name": "Metric: ", "options": metrics, "element": CONTROLS,
                  "labels": [short_title(name) for name in metrics]}},
        {"name": "strategy", "value": compared[0],
         "bind": {"input": "select", "name": "Strategy: ", "options": compared,
                  "element": CONTROLS}},
    ]  # fmt: skip
    above: Spec = {"hconcat": [_seed_by_seed(study), _means(study)], "spacing": 30}
    rows = [above, _distributions(study)] if study.curves else [above]
    return {
        "params": params,
        "vconcat": rows,
        "spacing": 30,
        "resolve": {"scale": {"color": "independent"}},
    }


def _class_colour(study: Study) -> Spec:
    legend = {"title": "class (click to choose)", "orient": "top", "symbolOpacity": 1}
    return {
        "field": "class",
        "type": "nominal",
        "scale": {"domain": list(study.classes),
                  "range": [CLASS_COLOURS.get(name, GREY) for name in study.classes]},
        "legend": legend,
    }  # fmt: skip


def _chosen() -> list[Spec]:
    """The difference of the chosen strategy and metric; `r_…` is the reference's, see page.js."""
    return [
        {"filter": "datum.strategy == strategy && datum.reference != null"},
        {"calculate": "datum[metric] - datum['r_' + metric]", "as": "difference"},
        {"filter": "isValid(datum[metric]) && isValid(datum['r_' + metric])"},
    ]


def _seed_by_seed(study: Study) -> Spec:
    first = study.seeds[0]
    is_range = study.seeds == tuple(range(first, first + len(study.seeds)))
    word = study.runs.one
    named: Spec = {"title": word, "labelExpr": f"format(datum.value + {first}, 'd')"}
    axis = named if is_range else {"title": f"{word}, by its place in the list"}
    x: Spec = {"field": "at", "type": "quantitative",
               "axis": {**axis, "tickMinStep": 1, "grid": False},
               "scale": {"domain": [-0.5, len(study.seeds) - 0.5], "nice": False}}  # fmt: skip
    points: Spec = {
        "params": [
            {"name": "seeds", "select": {"type": "interval", "encodings": ["x"]}},
            {"name": "classes", "select": {"type": "point", "fields": ["class"]}, "bind": "legend"},
        ],
        "transform": _chosen(),
        "mark": {"type": "point", "filled": True, "size": 26 if len(study.seeds) > FEW_SEEDS else 60},
        "encoding": {
            "x": x,
            "y": {"field": "difference", "type": "quantitative",
                  "axis": {"title": "strategy − reference (metric's unit)"}},
            "color": _class_colour(study),
            "opacity": {"condition": {"test": {"and": [BRUSH, CLASSES]}, "value": 0.8},
                        "value": 0.08},
            "tooltip": [{"field": "seed", "title": word}, {"field": "class"},
                        {"field": "difference", "format": ",.3f"}],
        },
    }  # fmt: skip
    zero: Spec = {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "#888888"},
                  "encoding": {"y": {"datum": 0}}}  # fmt: skip
    return {
        "title": f"Differences on each {word}: drag over {word}s to choose some, double-click for all",
        "data": {"name": "values"},
        "width": 680,
        "height": 260,
        "layer": [zero, points],
    }


def _means(study: Study) -> Spec:
    low, high = ("datum.mean - 2 * datum.error", "datum.mean + 2 * datum.error")
    x: Spec = {"field": "class", "type": "nominal", "sort": list(study.classes),
               "scale": {"domain": list(study.classes)}, "axis": {"title": None, "labelAngle": -35}}  # fmt: skip
    y: Spec = {"type": "quantitative", "axis": {"title": "mean difference ± 2 standard errors"}}
    colour = _class_colour(study)
    aggregate: Spec = {
        "aggregate": [{"op": "mean", "field": "difference", "as": "mean"},
                      {"op": "stderr", "field": "difference", "as": "error"},
                      {"op": "count", "as": "count"}],
        "groupby": ["class"],
    }  # fmt: skip
    return {
        "title": f"Their mean over the chosen {study.runs.many}",
        "data": {"name": "values"},
        "width": 235,
        "height": 260,
        "transform": [*_chosen(), {"filter": BRUSH}, {"filter": CLASSES}, aggregate,
                      {"calculate": f"isValid(datum.error) ? {low} : datum.mean", "as": "low"},
                      {"calculate": f"isValid(datum.error) ? {high} : datum.mean", "as": "high"}],
        "layer": [
            {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "#888888"},
             "encoding": {"y": {"datum": 0}}},
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"x": x, "y": {"field": "low", **y}, "y2": {"field": "high"},
                          "color": colour}},
            {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"x": x, "y": {"field": "mean", **y}, "color": colour,
                          "tooltip": [{"field": "class"}, {"field": "mean", "format": ",.4f"},
                                      {"field": "count", "title": study.runs.many}]}},
            {"transform": [{"aggregate": [{"op": "max", "field": "count", "as": "count"}]},
                           {"calculate": f"datum.count + ' {study.runs.one}' + (datum.count == 1 ? '' : 's')",
                            "as": "words"}],
             "mark": {"type": "text", "align": "left", "baseline": "top", "dx": 5, "dy": 5,
                      "fontSize": 12, "x": 0, "y": 0},
             "encoding": {"text": {"field": "words"}}},
        ],
    }  # fmt: skip


def _distributions(study: Study) -> Spec:
    classes = [name for name in study.classes if any(c.slo_class == name for c in study.curves)]
    columns = min(len(classes), 4)
    width = (WIDTH - 60) // columns - 25
    panels = [
        _distribution(study, name, width, place % columns == 0)
        for place, name in enumerate(classes)
    ]
    return {
        "title": {"text": f"Time to first token over the chosen {study.runs.many}: lines are means, "
                          f"bands hold the middle half of the {study.runs.many}", "offset": 12},
        "concat": panels,
        "columns": columns,
        "spacing": 22,
    }  # fmt: skip


def _distribution(study: Study, slo_class: str, width: int, is_left: bool) -> Spec:
    y_axis: Spec = {"title": "requests with first token (%)" if is_left else None}
    y: Spec = {"field": "share", "type": "quantitative", "axis": y_axis,
               "scale": {"domain": [0, 100]}}  # fmt: skip
    colour = strategy_colour(study, names=[one.strategy for one in study.curves])
    operations = {"mean": "mean", "q1": "low", "q3": "high"}
    aggregate: Spec = {
        "aggregate": [{"op": op, "field": "ttft", "as": name} for op, name in operations.items()],
        "groupby": ["strategy", "share"],
    }
    axis = {"title": "time to first token (ms)", "tickCount": 5}
    return {
        "title": class_title(slo_class),
        "data": {"name": "curves"},
        "width": width,
        "height": 210,
        "transform": [{"filter": {"field": "class", "equal": slo_class}}, {"filter": BRUSH},
                      {"filter": CLASSES}, {"flatten": ["ttft_ms", "shares"],
                                            "as": ["ttft", "share"]}, aggregate],
        "layer": [
            {"mark": {"type": "area", "orient": "horizontal", "opacity": 0.2},
             "encoding": {"x": {"field": "low", "type": "quantitative", "axis": axis},
                          "x2": {"field": "high"}, "y": y, "color": colour}},
            {"mark": {"type": "line", "orient": "horizontal", "strokeWidth": 2},
             "encoding": {"x": {"field": "mean", "type": "quantitative"}, "y": y,
                          "order": {"field": "share"}, "color": colour,
                          "tooltip": [{"field": "strategy"}, {"field": "share", "title": "%"},
                                      {"field": "mean", "title": "within (ms)", "format": ",.1f"}]}},
        ],
    }  # fmt: skip
