"""The findings of a search: the answer, the tables, and the pictures of its points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.metrics.scalars import TOKEN_RATES, lookup
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.pictures import Axis, Mark, Panel, Picture, Series, Style, Words
from blis_jax.reports.study import words_of
from blis_jax.reports.style import BLUE, GREEN, GREY, ORANGE, RED
from blis_jax.reports.words import metric_words, number, unit_text
from sweeps.claims.grammar import known_metric, our_name
from sweeps.search.objectives import AT


def findings_of(document: Mapping[str, Any], result: Path | None = None) -> Findings:
    """Return the findings of a search for every output; `result` is the path of the document."""
    sections, has_best = [_failures(document)], document["best_score"] is not None
    if has_best:
        sections += [_criteria(document), _front(document)]
    drawn = (picture(document),) if has_best else ()
    return Findings(_answer(document, result), (_parameters(document), *sections), drawn)


def _answer(document: Mapping[str, Any], result: Path | None) -> Answer:
    num_runs = sum(len(point["outcomes"]) for point in document["points"])
    name = "RESULT.json" if result is None else str(result)
    by = "a trace's" if document["rng"] == "recorded" else f"by {document['rng']}"
    return Answer(
        asked=f"Which parameters of {document['strategy']} score lowest? {document['n_calls']} points × "
        f"{_runs_of_a_point(document)} runs, engine {document['search']['engine']}, requests {by}.",
        verdict=tuple(_verdicts(document)),
        sure=_sure(document),
        price=Sentence.of(Quantity.whole(num_runs), " runs."),
        next=f"blis-jax compare {document['strategy']} {name} judges it on other seeds."
        if document["best_score"] is not None
        else "see the outcomes in the result.",
        cluster=document.get("cluster", ""),
    )


def _runs_of_a_point(document: Mapping[str, Any]) -> str:
    """Return the number of runs of a point as text; with rungs the fewest and the most."""
    most, rungs = len(document["seeds"]), document["search"].get("rungs")
    return f"{rungs[0]} to {most}" if rungs else str(most)


def _verdicts(document: Mapping[str, Any]) -> list[Sentence]:
    if document["best_score"] is None:
        return [Sentence.of("every point failed.")]
    is_recommended = document.get("is_recommended")
    which = "which the model recommends" if is_recommended else "the best of them"
    call, score = (
        Quantity.whole(document["best_call"] + 1),
        Quantity(document["best_score"], like=0.001),
    )
    total = Quantity.whole(document["n_calls"])
    meaning = ", its objectives plus penalties."
    sentences = [
        Sentence.of("point ", call, " of ", total, f", {which}, has score ", score, meaning)
    ]
    parts: list[str | Quantity] = []
    for slo_class, metrics in document["best_figures"].items():
        tail = metrics.get("ttft_p99_ms")
        if tail is not None and tail["mean"] is not None:
            figure = Quantity(tail["mean"], tail["low"], tail["high"], form="half")
            parts += [", " * bool(parts), f"{slo_class} ", figure]
    return [*sentences, *([Sentence.of("TTFT P99, ms: ", *parts, ".")] if parts else [])]


def _sure(document: Mapping[str, Any]) -> Sentence:
    level = "95 % for each mean by itself"
    if not document.get("is_recommended"):
        return Sentence.of(f"{level}; the lowest of many scores is partly luck.")
    score, call = (
        Quantity(document["lowest_score"], like=0.001),
        Quantity.whole(document["lowest_call"] + 1),
    )
    return Sentence.of(
        f"{level}; the lowest score, ", score, " of point ", call, ", is partly luck."
    )


def _parameters(document: Mapping[str, Any]) -> Table:
    entries = (document["best_parameters"] or {}).items()
    rows = tuple(Row((name, str(value))) for name, value in entries)
    return Table(("parameter", "value"), rows, name="parameters")


def _failures(document: Mapping[str, Any]) -> Remarks:
    failed = ", ".join(f"{count} × {name}" for name, count in document["failures"].items())
    return Remarks((f"Failed points: {failed or 'none'}.",), is_brief=bool(failed))


def _criteria(document: Mapping[str, Any]) -> Remarks:
    lines = []
    for entry in document["success"]:
        is_change = "change_percent" in entry
        goal = number(entry["change_percent" if is_change else "threshold"], is_change)
        reached = number(entry["reached"], is_change)
        unit, of = (" %", " against the baseline") if is_change else ("", "")
        sign = "at most" if entry["direction"] == "min" else "at least"
        verdict = "met" if entry["is_met"] else "not met"
        lines.append(
            f"{metric_words(entry['metric'])} {sign} {goal}{unit}{of}: {reached}{unit}, {verdict}"
        )
    return Remarks(tuple(lines), "Success criteria", is_brief=True)


def _front(document: Mapping[str, Any]) -> Remarks:
    if "front" not in document:
        return Remarks(())
    count, volume = len(document["front"]["calls"]), document["front"]["hypervolume"]
    return Remarks((f"Pareto front of {count} points, hypervolume {volume:.6g}.",), is_brief=True)


CALL, PENALISED, BEST, FRONT, FAILED = BLUE, ORANGE, RED, GREEN, GREY
DROPPED, DOMINATED = "0.65", "0.6"  # lighter greys
LARGEST_RATIO = 8.0  # of worst to best score beyond which the axis is logarithmic
PANEL_INCHES = 3.8
_WITHOUT_MODEL = ("random", "sobol", "grid")
Document = Mapping[str, Any]


def picture(document: Document) -> Picture:
    """Return the picture of a result document that has at least one point with all its runs."""
    found = document.get("front", {"metrics": (), "calls": ()})
    has_front = len(found["metrics"]) > 1 and bool(found["calls"])  # of points that keep all limits
    strategy, num_calls = document["strategy"], len(document["points"])
    if has_front:
        panels = [_volume(document), _front_panel(document)]
        title = f"Pareto front of {strategy}, found in {num_calls} calls"
    else:
        panels = [_calls(document)]
        title = f"Search over the parameters of {strategy}, call by call"
    rows = [[panel] for panel in panels]
    return Picture(title, _caption(document), rows, [PANEL_INCHES] * len(rows), name="search")


# --- calls ----------------------------------------------------------------------------------------


def _calls(document: Document) -> Panel:
    """Return scores by call with standard errors over seeds, the running best, and the best point marked."""
    points = document["points"]
    whole = [None if point["failures"] else point["score"] for point in points]
    kinds = [_kind(point) for point in points]
    marks = _start(document)
    for kind, style, label in (
        ("dropped", Style(DROPPED, ".", width=1.2, opacity=0.45), "dropped after fewer runs"),
        ("kept", Style(CALL, "o", width=1.2, opacity=0.45), "within all constraints"),
        (
            "penalised",
            Style(PENALISED, "o", width=1.2, opacity=0.45),
            "with a penalty in its score",
        ),
    ):
        at = [place for place, each in enumerate(kinds) if each == kind]
        if at:
            marks.append(_scores(document, at, style, label))
    best = [
        np.inf if score is None or kind == "dropped" else score
        for score, kind in zip(whole, kinds, strict=True)
    ]
    marks.append(
        Series(
            [float(call + 1) for call in range(len(points))],
            [None if score == np.inf else score for score in accumulate(best, min)],
            Style(BEST, line="-", width=1.4), "best so far", is_step=True,
        )
    )  # fmt: skip
    place = document["best_call"]
    word = "recommended" if document.get("is_recommended") else "best"
    label = f"{word}: {document['best_score']:.4g}, call {place + 1}"
    marks.append(Series([place + 1.0], [points[place]["score"]], Style(BEST, "*", size=15), label))
    known = [score for score in whole if score is not None]
    lost = [call + 1.0 for call, kind in enumerate(kinds) if kind == "failed"]
    if lost:
        marks.append(Series(lost, [max(known)] * len(lost), Style(FAILED, "x"), "failed point"))
    is_long = min(known) > 0 and max(known) / min(known) > LARGEST_RATIO
    y = Axis(_score_label(document), "log" if is_long else "linear")
    return Panel(marks, _call_axis(document), y)


def _kind(point: Mapping[str, Any]) -> str:
    if point["failures"]:
        return "failed"
    if point.get("is_estimate"):
        return "dropped"
    return "kept" if point["is_feasible"] else "penalised"


def _scores(document: Document, calls: Sequence[int], style: Style, label: str) -> Series:
    points = [document["points"][call] for call in calls]
    scores = [point["score"] for point in points]
    objectives = document["objectives"]
    errors = [0.0] * len(points)
    if len(objectives) == 1 and objectives[0].get("weight", 1.0) == 1.0:
        errors = [_error(_objective(document, point, 0)) for point in points]
    pairs = list(zip(scores, errors, strict=True))
    low, high = [score - error for score, error in pairs], [score + error for score, error in pairs]
    return Series([call + 1.0 for call in calls], scores, style, label, y_low=low, y_high=high)


def _error(figures: Mapping[str, Any]) -> float:
    """Return the standard error of an objective's mean over the seeds; 0 if unknown."""
    values = figures.get("per_seed", [])
    if len(values) < 2 or None in values:
        return 0.0
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _objective(document: Document, point: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    """Return the figures of one objective at one point; empty for a failed point."""
    objective = document["objectives"][place]
    metric, slo_class = lookup(our_name(objective["metric"]))
    name = metric.name + (AT + objective["at"] if "at" in objective else "")
    figures: Mapping[str, Any] = point["figures"].get(slo_class or "all", {}).get(name, {})
    return figures


def _start(document: Document) -> list[Mark]:
    """Return the mark at the call where a model begins to choose the points; empty without a model."""
    if not _has_model(document):
        return []
    return [Words(document["search"]["initial"] + 0.5, 1.0, "before the model", is_span=True)]


def _has_model(document: Document) -> bool:
    budget = document["search"]
    is_model = budget["engine"] not in _WITHOUT_MODEL
    return is_model and budget["initial"] < len(document["points"])


def _call_axis(document: Document) -> Axis:
    return Axis("call (point tried), in order", limits=(0.0, len(document["points"]) + 1.0))


# --- the front ------------------------------------------------------------------------------------


def _volume(document: Document) -> Panel:
    """Return the share of the final hypervolume that the points up to each call dominate."""
    volumes = document["front"]["hypervolume_by_call"]
    final = volumes[-1] if volumes[-1] > 0 else 1.0
    shares = [100 * volume / final for volume in volumes]
    calls = [call + 1.0 for call in range(len(volumes))]
    line = Series(calls, shares, Style(BEST, line="-", width=1.6), is_step=True)
    y = Axis("hypervolume (% of its final value)", limits=(0.0, 104.0))
    return Panel([*_start(document), line], _call_axis(document), y)


def _front_panel(document: Document) -> Panel:
    """Return the first two objectives of every point; those on the front with standard errors over the seeds."""
    on_front = set(document["front"]["calls"])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for place, point in enumerate(document["points"]):
        if not point["failures"]:
            is_other = "other" if point["is_feasible"] else "penalised"
            groups.setdefault("front" if place in on_front else is_other, []).append(point)
    styles = {
        "other": (DOMINATED, "dominated"),
        "penalised": (PENALISED, "with a penalty"),
        "front": (FRONT, "on the Pareto front"),
    }
    marks: list[Mark] = []
    for kind, (colour, label) in styles.items():
        points = groups.get(kind, [])
        (x, x_low, x_high), (y, y_low, y_high) = (
            zip(*_ranges(document, points, goal, kind == "front"), strict=True)
            if points
            else ((), (), ())
            for goal in (0, 1)
        )
        style = Style(colour, "o", width=1.2, opacity=0.4)
        marks.append(Series(x, y, style, label if points else "", x_low, x_high, y_low, y_high))
    first, second = (_axis_label(objective) for objective in document["objectives"][:2])
    return Panel(marks, Axis(first), Axis(second))


def _ranges(
    document: Document, points: Sequence[Mapping[str, Any]], goal: int, has_errors: bool
) -> Iterator[tuple[float, float, float]]:
    """Yield the mean of an objective at each point, one standard error down and up."""
    for point in points:
        figures = _objective(document, point, goal)
        mean, error = figures["mean"], _error(figures) if has_errors else 0.0
        yield mean, mean - error, mean + error


# --- words ----------------------------------------------------------------------------------------


def _axis_label(objective: Mapping[str, Any]) -> str:
    name = objective["metric"]
    metric = known_metric(name)
    words, unit = metric_words(our_name(name)), unit_text(metric.unit, " ({})")
    if metric.name in TOKEN_RATES:
        _, slo_class = lookup(our_name(name))
        words = "throughput" + (f" of {slo_class} requests" if slo_class else "")
        unit = f" ({TOKEN_RATES[metric.name]})"
    return words + unit


def _score_label(document: Document) -> str:
    objectives = document["objectives"]
    if len(objectives) > 1:
        return "score: weighted sum of the objectives"
    is_max = objectives[0].get("direction") == "max"
    words = _axis_label(objectives[0])
    penalty = "\n+ penalties" if document["constraints"] else ""
    return f"score: {'−' if is_max else ''}{words}{penalty}"


def _caption(document: Document) -> str:
    seeds = document["seeds"]
    runs = f"one run on seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} runs, one a seed"
    if rungs := document["search"].get("rungs"):
        runs = f"{rungs[0]} to {len(seeds)} runs, one a seed; of dropped points the score is an estimate"
    if document.get("trace"):
        windows = document["trace"]["windows"]
        runs = f"{windows} windows of a trace" if windows else f"{len(seeds)} × one trace"
    text = f"Each point is one setting of the strategy's parameters, simulated in {runs}. "
    if "front" in document and len(document["front"]["metrics"]) > 1:
        text += (
            "Above: how much of the final hypervolume the points found up to a call dominate. Below: "
            "the first two objectives; bars: standard error over the seeds. "
        )
        more = [_axis_label(objective) for objective in document["objectives"][2:]]
        if more:
            text += f"The front counts further objectives that are not drawn: {', '.join(more)}. "
    else:
        text += "Lower scores are better; bars: standard error of the mean over the seeds. "
    if document["constraints"]:
        parts = [
            f"{_axis_label(constraint)} {'at most' if constraint['direction'] == 'min' else 'at least'} "
            f"{constraint['threshold']:g}"
            for constraint in document["constraints"]
        ]
        text += f"Constraints: {'; '.join(parts)}. "
    if document["failures"]:
        text += "Crosses at the top: points with a run that did not come to its end. "
    if _has_model(document):
        text += "Points in the grey part are spread over the space; a model chooses the later ones."
    return words_of(document).in_text(text)
