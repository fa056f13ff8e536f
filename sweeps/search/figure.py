"""The figure of a search: the score of every call, the best so far, and how sure the best is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.metrics.scalars import TOKEN_RATES, lookup
from blis_jax.reports.figures import figure, plain_log, save
from blis_jax.reports.run_words import words_of
from blis_jax.reports.style import BLUE, GREEN, GREY, ORANGE, RED
from sweeps.runs.metrics import found, our_name
from sweeps.search.objectives import AT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


CALL, PENALISED, BEST, FRONT, FAILED = BLUE, ORANGE, RED, GREEN, GREY
DROPPED = "0.65"  # a lighter grey
LARGEST_RATIO = 8.0  # of worst to best score beyond which the axis is logarithmic


def draw(document: Mapping[str, Any], path: Path, strategy: str) -> None:
    """Draws a result document to a PNG, whole or not at all; `strategy` is its name for people."""
    has_front = "front" in document and len(document["front"]["metrics"]) > 1
    num_rows = 2 if has_front else 1
    with figure(3.5 * num_rows, num_rows) as (made, panels):
        if has_front:
            _draw_volume(panels[0][0], document)
            _draw_front(panels[1][0], document)
            title = f"Pareto front of {strategy}, found in {len(document['points'])} calls"
        else:
            _draw_calls(panels[0][0], document)
            title = f"Search over the parameters of {strategy}, call by call"
        save(made, path, title, _caption(document))


def _draw_calls(panel: Axes, document: Mapping[str, Any]) -> None:
    """Scores by call with intervals over seeds, the running best, and the best point marked."""
    points = document["points"]
    calls = np.arange(1, len(points) + 1)
    scores = np.array([point["score"] for point in points], float)
    failed = np.array([bool(point["failures"]) for point in points])
    penalised = ~np.array([point["is_feasible"] for point in points])
    dropped = np.array([bool(point.get("is_estimate")) for point in points])
    if dropped.any():
        label = "dropped after fewer runs"
        panel.plot(calls[dropped], scores[dropped], ".", color=DROPPED, markersize=5, label=label)
    for mask, colour, label in (
        (~failed & ~penalised & ~dropped, CALL, "within all constraints"),
        (~failed & penalised & ~dropped, PENALISED, "with a penalty in its score"),
    ):
        if mask.any():
            panel.plot(calls[mask], scores[mask], "o", color=colour, markersize=5, label=label)
            _draw_intervals(panel, document, calls, scores, mask, colour)
    running = np.minimum.accumulate(np.where(failed | dropped, np.inf, scores))
    panel.step(calls, running, where="post", color=BEST, linewidth=1.4, label="best so far")
    place = document["best_call"]
    word = "recommended" if document.get("is_recommended") else "best"
    label = f"{word}: {document['best_score']:.4g}, call {place + 1}"
    panel.plot([place + 1], [scores[place]], "*", color=BEST, markersize=15, zorder=5, label=label)
    whole = scores[~failed]
    if whole.min() > 0 and whole.max() / whole.min() > LARGEST_RATIO:
        plain_log(panel, "y")
    if failed.any():
        top = np.full(int(failed.sum()), 0.98)
        panel.plot(
            calls[failed], top, "x", color=FAILED, transform=panel.get_xaxis_transform(),
            label="failed point",
        )  # fmt: skip
    _mark_start(panel, document)
    panel.set_xlabel("call (point tried), in order")
    panel.set_ylabel(_score_label(document))
    _legend(panel)


def _draw_intervals(
    panel: Axes,
    document: Mapping[str, Any],
    calls: np.ndarray,
    scores: np.ndarray,
    mask: np.ndarray,
    colour: str,
) -> None:
    """What the seeds leave open of each objective, around the score."""
    if len(document["objectives"]) != 1 or document["objectives"][0].get("weight", 1.0) != 1.0:
        return
    spreads = [_half_range(document, point) for point in document["points"]]
    reach = np.array([np.nan if one is None else one for one in spreads])
    shown = mask & np.isfinite(reach)
    panel.errorbar(
        calls[shown], scores[shown], yerr=reach[shown], fmt="none", ecolor=colour, alpha=0.45,
        linewidth=1.2,
    )  # fmt: skip


def _half_range(document: Mapping[str, Any], point: Mapping[str, Any]) -> float | None:
    """Standard error of the objective's mean over the seeds."""
    values = _objective(document, point, 0).get("per_seed", [])
    if len(values) < 2 or None in values:
        return None
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _objective(
    document: Mapping[str, Any], point: Mapping[str, Any], place: int
) -> Mapping[str, Any]:
    """The figures of one objective at one point; empty for failures."""
    objective = document["objectives"][place]
    metric, slo_class = lookup(our_name(objective["metric"]))
    name = metric.name + (AT + objective["at"] if "at" in objective else "")
    figures: Mapping[str, Any] = point["figures"].get(slo_class or "all", {}).get(name, {})
    return figures


def _draw_volume(panel: Axes, document: Mapping[str, Any]) -> None:
    """The share of the final hypervolume that the points up to each call dominate."""
    volumes = np.array(document["front"]["hypervolume_by_call"])
    calls = np.arange(1, len(volumes) + 1)
    final = volumes[-1] if volumes[-1] > 0 else 1.0
    panel.step(calls, 100 * volumes / final, where="post", color=BEST, linewidth=1.6)
    _mark_start(panel, document)
    panel.set_xlabel("call (point tried), in order")
    panel.set_ylabel("hypervolume (% of its final value)")
    panel.set_ylim(0, 104)


def _draw_front(panel: Axes, document: Mapping[str, Any]) -> None:
    """The first two objectives of every point; those on the front with intervals over the seeds."""
    on_front = set(document["front"]["calls"])
    groups: dict[str, list[int]] = {"front": [], "constrained": [], "other": []}
    for place, point in enumerate(document["points"]):
        if point["failures"]:
            continue
        is_penalised = not point["is_feasible"]
        kind = "front" if place in on_front else "constrained" if is_penalised else "other"
        groups[kind].append(place)
    labels = {"front": "on the Pareto front", "constrained": "with a penalty", "other": "dominated"}
    colours = {"front": FRONT, "constrained": PENALISED, "other": "0.6"}
    for kind, places in groups.items():
        if not places:
            continue
        x, y = (_means(document, places, goal) for goal in (0, 1))
        panel.plot(x, y, "o", color=colours[kind], markersize=5, label=labels[kind])
        if kind == "front":
            errors = [_errors(document, places, goal) for goal in (0, 1)]
            panel.errorbar(
                x, y, xerr=errors[0], yerr=errors[1], fmt="none", ecolor=FRONT, alpha=0.4
            )
    panel.set_xlabel(_axis_label(document["objectives"][0]))
    panel.set_ylabel(_axis_label(document["objectives"][1]))
    _legend(panel)


def _means(document: Mapping[str, Any], places: Sequence[int], goal: int) -> np.ndarray:
    points = document["points"]
    return np.array([_objective(document, points[place], goal)["mean"] for place in places])


def _errors(document: Mapping[str, Any], places: Sequence[int], goal: int) -> np.ndarray:
    points = document["points"]
    seeds = [_objective(document, points[place], goal)["per_seed"] for place in places]
    if len(seeds[0]) < 2:
        return np.zeros(len(seeds))
    errors: np.ndarray = np.std(seeds, axis=1, ddof=1) / np.sqrt(len(seeds[0]))
    return errors


def _legend(panel: Axes) -> None:
    """Above the panel, where no point is hidden."""
    panel.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=3,
        borderpad=0,
        columnspacing=1.2,
        handletextpad=0.5,
    )


def _mark_start(panel: Axes, document: Mapping[str, Any]) -> None:
    """Where a model begins to choose the points."""
    budget = document["search"]
    if budget["engine"] in _WITH_MODEL and budget["initial"] < len(document["points"]):
        panel.axvspan(0, budget["initial"] + 0.5, color="0.94", zorder=0)
        panel.text(
            0.6, 0.02, " before the model", fontsize=8.5, color="0.35",
            transform=panel.get_xaxis_transform(),
        )  # fmt: skip
    panel.set_xlim(0, len(document["points"]) + 1)


_WITH_MODEL = ("gp", "gp_minimize", "pareto")


def _axis_label(objective: Mapping[str, Any]) -> str:
    name = objective["metric"]
    metric = found(name)
    _, slo_class = lookup(our_name(name))
    words = metric.name.removesuffix("_ms").replace("_", " ")
    for known in ("ttft", "e2e", "tpot", "itl", "slo"):
        words = words.replace(known, known.upper())
    words = words.replace("p99", "P99").replace("p95", "P95").replace("p50", "P50")
    unit = "" if metric.unit == "1" else f" ({metric.unit})"
    if metric.name in TOKEN_RATES:
        words, unit = "throughput", f" ({TOKEN_RATES[metric.name]})"
    return words + (f" of {slo_class} requests" if slo_class else "") + unit


def _score_label(document: Mapping[str, Any]) -> str:
    objectives = document["objectives"]
    if len(objectives) > 1:
        return "score: weighted sum of the objectives"
    is_max = objectives[0].get("direction") == "max"
    words = _axis_label(objectives[0])
    penalty = "\n+ penalties" if document["constraints"] else ""
    return f"score: {'−' if is_max else ''}{words}{penalty}"


def _caption(document: Mapping[str, Any]) -> str:
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
        more = [_axis_label(one) for one in document["objectives"][2:]]
        if more:
            text += f"The front counts further objectives that are not drawn: {', '.join(more)}. "
    else:
        text += "Lower scores are better; bars: standard error of the mean over the seeds. "
    if document["constraints"]:
        parts = [
            f"{_axis_label(one)} {'at most' if one['direction'] == 'min' else 'at least'} "
            f"{one['threshold']:g}"
            for one in document["constraints"]
        ]
        text += f"Constraints: {'; '.join(parts)}. "
    if document["failures"]:
        text += "Crosses at the top: points with a run that did not come to its end. "
    budget = document["search"]
    if budget["engine"] in _WITH_MODEL and budget["initial"] < len(document["points"]):
        text += "Points in the grey part are spread over the space; a model chooses the later ones."
    return words_of(document).in_text(text)
