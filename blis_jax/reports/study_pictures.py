"""Pictures of a comparison: changes of metrics, differences by seed, and the pictures of each strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from blis_jax.files.atomic_write import finite
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.answers import deciding
from blis_jax.reports.arm_pictures import (
    MOST_STRATEGIES,
    MOST_TIMELINES,
    TAIL,
    choices_of,
    distributions,
    has_curves,
    part_bars,
    parts,
    short,
    timelines,
    width_of,
)
from blis_jax.reports.pictures import Axis, Guide, Mark, Panel, Picture, Series, Style, Words
from blis_jax.reports.study import MetricChange, ShownFigure, Study
from blis_jax.reports.style import (
    ALL_REQUESTS,
    BLUE,
    STRATEGY_COLOURS,
    WIDTH,
    class_style,
    class_words,
)
from blis_jax.reports.words import HEADLINE_METRICS, metric_name, table_title, unit_text
from blis_jax.statistics.intervals import Estimate
from blis_jax.statistics.paired import BETTER, WORSE

MOST_PLACES = 8  # of a grid that are drawn
MOST_METRICS, MOST_SEED_METRICS = 16, 8


def pictures(study: Study) -> tuple[Picture, ...]:
    """Return the pictures of a comparison; the first becomes its PNG, and opens its page."""
    places = study.places[:MOST_PLACES]
    first = study.own or tuple(changes(study, at) for at in places if _entries(study, at))
    if study.ranked:
        first = (ranked(study),)
    curves = tuple(distributions(study, at) for at in places if has_curves(study, at))
    drawn = [*curves, *first] if study.opens_with == "distributions" else [*first, *curves]
    if study.differences and len(study.seeds) > 1:
        drawn += seed_by_seed(study, places)
    if study.parts:
        drawn.append(parts(study))
    return (*drawn, *([timelines(study)] if study.timelines else []))


# --- changes, and what TTFT P99 is made of --------------------------------------------------------


def changes(study: Study, place: str) -> Picture:
    """Return a picture of all metrics' changes, one panel per class, below the parts of TTFT P99."""
    entries = _entries(study, place)
    compared = list(dict.fromkeys(entry.strategy for entry in entries))[: MOST_STRATEGIES - 1]
    names = [name for name in study.strategies if name in compared or name == study.strategies[0]]
    classes = [name for name in study.classes if any(entry.slo_class == name for entry in entries)]
    metrics = list(dict.fromkeys(entry.metric for entry in entries))[:MOST_METRICS]
    labels = [(float(row), _metric_label(name)) for row, name in enumerate(metrics)]
    rows = [
        [
            _changes_panel(study, [entry for entry in entries if entry.slo_class == name], compared,
                           metrics, labels if column == 0 else [(at, "") for at, _ in labels],
                           name, _reach(entries))
            for column, name in enumerate(classes)
        ]
    ]  # fmt: skip
    heights = [1.0 + len(metrics) * (0.28 + 0.13 * (len(compared) - 1))]
    if has_parts := _has_tail(study):
        longest = _longest(study, names)
        above = [
            _tail_panel(study, names, name, longest, column == 0)
            for column, name in enumerate(classes)
        ]
        below = [Panel(row.marks, row.x, row.y) for row in rows[0]]  # titles stand above already
        rows, heights = [above, below], [0.75 + 0.3 * len(names), *heights]
    title = f"{', '.join(map(short, compared))} against {study.strategies[0]}"
    title += f": {place}" if place else ": TTFT P99 and every metric" if has_parts else ""
    return Picture(
        title, _changes_caption(study, has_parts, len(compared)), rows, heights, width_of(len(classes)),
        name="changes", choices=choices_of(study, place),
    )  # fmt: skip


def _entries(study: Study, place: str) -> list[MetricChange]:
    return [
        difference
        for difference in study.differences
        if difference.place == place and finite(difference.change.percent.mean) is not None
    ]


def _metric_label(metric: str) -> str:
    return f"{metric_name(metric)}\n({lookup(metric)[0].direction} is better)"


def _reach(entries: Sequence[MetricChange]) -> tuple[float, float]:
    """Return one axis for all classes, in %, wide enough for every interval."""
    ends = [
        end
        for entry in entries
        for estimate in (entry.change.percent, entry.change.simultaneous_percent)
        for end in (estimate.mean, estimate.low, estimate.high)
        if math.isfinite(end)
    ]
    low, high = max(min([-10.0, *ends]), -99.6), min(max([11.0, *ends]), 25_500.0)
    return (100 + low) / 1.1 - 100, (100 + high) * 1.1 - 100


def _changes_panel(
    study: Study,
    entries: Sequence[MetricChange],
    compared: Sequence[str],
    metrics: Sequence[str],
    labels: Sequence[tuple[float, str]],
    slo_class: str,
    reach: tuple[float, float],
) -> Panel:
    marks: list[Mark] = [Guide(0.0)]
    apart = 0.62 / max(len(compared), 1)
    for entry in entries:
        if entry.strategy not in compared or entry.metric not in metrics:
            continue
        row = metrics.index(entry.metric)
        at = row + (compared.index(entry.strategy) - (len(compared) - 1) / 2) * apart
        colour = study.colours.get(entry.strategy, STRATEGY_COLOURS[1])
        is_clear = entry.change.verdict in (BETTER, WORSE)
        alone, together = entry.change.percent, entry.change.simultaneous_percent
        told = f"{short(entry.strategy)}, interval that holds for all together"
        marks.append(_interval(together, at, Style(colour, width=1, opacity=0.75), told))
        marks.append(
            Series(
                [alone.mean], [at],
                Style(colour, "o", width=3, size=5.5, is_hollow=not is_clear, opacity=0.75),
                short(entry.strategy), [finite(alone.low)], [finite(alone.high)],
            )
        )  # fmt: skip
    y = Axis(ticks=labels, limits=(len(metrics) - 0.4, -0.6), has_grid=False)
    x = Axis("change", "percent", limits=reach)
    return Panel(marks, x, y, class_words(slo_class))


def _interval(estimate: Estimate, at: float, style: Style, told: str) -> Series:
    low, high = finite(estimate.low), finite(estimate.high)
    return Series([low], [at], style, x_low=[low], x_high=[high], told=told)


def _has_tail(study: Study) -> bool:
    has_parts = any(part.view == "p99" for part in study.parts)
    return study.opens_with == "changes" and has_parts and bool(_tails(study))


def _tails(study: Study) -> dict[tuple[str, str], ShownFigure]:
    return {(tail.strategy, tail.slo_class): tail for tail in study.tails if tail.metric == TAIL}


def _longest(study: Study, names: Sequence[str]) -> float:
    sums: dict[tuple[str, str], float] = {}
    for part in study.parts:
        if part.view == "p99" and part.strategy in names:
            sums[part.strategy, part.slo_class] = (
                sums.get((part.strategy, part.slo_class), 0) + part.mean_ms
            )
    tails = [tail for (name, _), tail in _tails(study).items() if name in names]
    return max(1.0, *sums.values(), *(finite(tail.value.high) or 0.0 for tail in tails))


def _tail_panel(
    study: Study, names: Sequence[str], slo_class: str, longest: float, is_first: bool
) -> Panel:
    marks: list[Mark] = []
    for row, name in enumerate(names):
        bars = list(part_bars(study, name, slo_class, "p99", row))
        marks += bars or [Words(0.0, row, "no run ended")]
        total = sum(bar.length[0] or 0.0 for bar in bars)
        whole = _tails(study).get((name, slo_class))
        low, high = (
            (None, None) if whole is None else map(finite, (whole.value.low, whole.value.high))
        )
        if bars and low is not None:
            marks.append(
                Series([], [], Style(width=1.2, line="-"), "interval of the P99")
                if high is None
                else Series([low, high], [row, row], Style(width=1.2, line="-"), "interval of the P99")
            )  # fmt: skip
            total_at = max(total, high or 0.0)
        else:
            total_at = total
        if bars:
            marks.append(Words(total_at, row, f"{total:.0f}"))
    ticks = [(float(row), short(name) if is_first else "") for row, name in enumerate(names)]
    y = Axis(
        ticks=ticks, limits=(len(names) - 0.4, -0.6), has_grid=False,
        colours=[study.colours[name] for name in names],
    )  # fmt: skip
    x = Axis("TTFT P99 (ms)", limits=(0.0, 1.4 * longest), most_ticks=3)
    return Panel(marks, x, y, class_words(slo_class))


def _changes_caption(study: Study, has_parts: bool, num_compared: int) -> str:
    level = f"{100 * study.confidence:g} %"
    left = len({difference.strategy for difference in study.differences}) - num_compared
    sentences = [
        f"{study.source} {study.workload_name}, the same requests for every strategy, "
        f"{study.runs.listed(study.seeds)}; means over {study.runs.many}.",
        "Above: the requests around each class's 99th percentile of time to first token, by what they spent it "
        "on. Below: each" if has_parts else "Each",
    ]  # fmt: skip
    sentences[1] += (
        f" metric against {study.strategies[0]}, from paired differences, on an axis where halving and doubling are "
        f"equally far from 0; thick lines: {level} interval of one difference; thin lines: intervals that hold "
        "for all together; filled dots: a difference after correction for their number (Holm); hollow dots: "
        "none that can be told from chance."
    )
    if left > 0:
        sentences.append(f"{left} more strategies are in the table.")
    if not study.pairs and any(
        difference.change.num_pairs < len(study.seeds) for difference in study.differences
    ):
        sentences.append("Runs that did not come to their end are left out.")
    return " ".join(sentences)


# --- the best of many ------------------------------------------------------------------------------


def ranked(study: Study) -> Picture:
    """Return a picture of the best strategies, one row each: parts of TTFT P99, and change against the reference."""
    metric, reference = deciding(study), study.strategies[0]
    entries = [
        difference
        for difference in study.differences
        if (difference.metric, difference.slo_class) == (metric, ALL_REQUESTS)
        and finite(difference.change.percent.mean) is not None
    ]
    best = [str(row.cells[1]) for row in study.ranked[0].rows][:MOST_STRATEGIES]
    names = best if reference in best else [*best[:-1], reference]
    rows = {name: float(row) for row, name in enumerate(names)}
    marks: list[Mark] = [Guide(0.0)]
    for entry in entries:
        if entry.strategy in rows:
            style = Style(
                BLUE, "o", width=3, size=5.5, is_hollow=entry.change.verdict not in (BETTER, WORSE)
            )
            change = entry.change.simultaneous_percent
            mean, low, high = map(finite, (change.mean, change.low, change.high))
            marks.append(Series([mean], [rows[entry.strategy]], style, "", [low], [high]))
    x = Axis(f"{metric_name(metric)} against {reference}", "percent", limits=_reach(entries))
    y = Axis(
        ticks=[(row, short(name)) for name, row in rows.items()], limits=(len(rows) - 0.4, -0.6)
    )
    panels = [Panel(marks, x, replace(y, has_grid=False), "change")]
    if _has_tail(study):
        tail = _tail_panel(study, names, ALL_REQUESTS, _longest(study, names), is_first=True)
        panels[0] = replace(
            panels[0], y=replace(panels[0].y, ticks=[(row, "") for row in rows.values()])
        )
        panels = [replace(tail, title="what it is spent on"), *panels]
    left = len(study.strategies) - len(names)
    level = f"{100 * study.confidence:g} %"
    caption = (
        f"{study.source} {study.workload_name}, the same requests for each, {study.runs.listed(study.seeds)}. "
        "Left: the requests around the 99th percentile of time to first token, by what they spent it on. Right: the "
        f"change against {reference}; lines: {level} intervals that hold for all pairs together; filled dots: "
        f"told from chance.{f' {left} more are in the table.' * (left > 0)}"
    )
    words = f"The best {len(names)} of {len(study.strategies)}, the best first"
    return Picture(
        f"{words}: {metric_name(metric)}", caption, [panels], [0.9 + 0.3 * len(names)], WIDTH, name="changes",
        heading="Which is best?",
    )  # fmt: skip


# --- seed by seed ---------------------------------------------------------------------------------


def seed_by_seed(study: Study, places: Sequence[str]) -> list[Picture]:
    """Return pictures of the differences by seed, one for each metric; for one metric only if there are many places."""
    metrics = list(dict.fromkeys(value.metric for value in study.values))
    known = [name for name in HEADLINE_METRICS if name in metrics][:1]
    of_choice = list(dict.fromkeys([*known, *metrics]))[:MOST_SEED_METRICS]
    rows = (
        _seeds(study, place, metric)
        for place in places
        for metric in (of_choice if len(places) == 1 else of_choice[:1])
    )
    return [picture for picture in rows if picture is not None]


def _seeds(study: Study, place: str, metric: str) -> Picture | None:
    values = {
        (value.strategy, value.slo_class): value.values
        for value in study.values
        if (value.place, value.metric) == (place, metric)
    }
    pairs = dict.fromkeys(
        (difference.strategy, difference.reference)
        for difference in study.differences
        if difference.place == place
    )
    unit = lookup(metric)[0].unit
    rows = []
    for strategy, reference in list(pairs)[:MOST_TIMELINES]:
        marks: list[Mark] = [Guide(0.0, "y")]
        for slo_class in study.classes:
            ours, theirs = values.get((strategy, slo_class)), values.get((reference, slo_class))
            if ours is None or theirs is None:
                continue
            looks = class_style(slo_class)
            apart = [
                None if a is None or b is None else a - b for a, b in zip(ours, theirs, strict=True)
            ]
            marks.append(
                Series(list(map(float, study.seeds)), apart,
                       Style(looks["color"], looks["marker"], size=4.0, opacity=0.8),
                       class_words(slo_class))
            )  # fmt: skip
        if len(marks) > 1:
            x = Axis(study.runs.one, most_ticks=8, is_whole=True, is_run=True)
            y = Axis(f"difference{unit_text(unit, ' ({})')}")
            rows.append([Panel(marks, x, y, f"{short(strategy)} − {short(reference)}")])
    if not rows:
        return None
    about = (
        f"{study.runs.about} A point is one {study.runs.one} and one class. Where all points of a class lie on one "
        f"side of 0, the change does not depend on the {study.runs.one}."
    )
    choices = choices_of(study, place, metric=table_title(metric))
    return Picture(
        f"{table_title(metric)}: differences on each {study.runs.one}", about, rows, [1.9] * len(rows), name="seeds",
        heading=f"Does it hold on every {study.runs.one}?", choices=choices,
    )  # fmt: skip
