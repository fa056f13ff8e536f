"""Pictures of each strategy by itself: distribution and parts of TTFT, timelines of instances in single runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.files.atomic_write import finite
from blis_jax.metrics.summaries import grouped, select, ttft_parts_ms
from blis_jax.reports.pictures import Axis, Bars, Mark, Panel, Picture, Series, Style, Tiles
from blis_jax.reports.study import BAND, Study, Timeline, TtftShare
from blis_jax.reports.style import ALL_REQUESTS, PARTS, STRATEGY_COLOURS, WIDTH, class_words
from blis_jax.reports.words import joined

if TYPE_CHECKING:
    from blis_jax.metrics.summaries import Window
    from blis_jax.records.record import RunRecord

MOST_STRATEGIES = len(STRATEGY_COLOURS)


MOST_TIMELINES = 4


PANEL_INCHES = 1.3  # at least


LONGEST_NAME = 34


TAIL = "ttft_p99_ms"  # what the parts in the first picture add up to
VIEWS = {"mean": "mean", "p99": "P99", "tail": "slowest 1 %"}


MEASURES = {
    "running": ("Running batch", "requests", ("#f3f3f3", "#9ecae1", "#08519c")),
    "waiting": ("Wait queue", "requests", ("#f3f3f3", "#fdae6b", "#a63603")),
    "kv_percent": ("KV blocks in use", "%", ("#f3f3f3", "#bcbddc", "#54278f")),
}


def short(name: str) -> str:
    """Return a name, shortened to fit beside an axis."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 2]}…"


def choices_of(study: Study, place: str, **further: str) -> tuple[tuple[str, str], ...]:
    """Return the choices by which a page selects a picture: the place, if a grid has several, and `further` ones."""
    chosen = {"place": place} if len(study.places) > 1 else {}
    return tuple((chosen | further).items())


def width_of(num_panels: int) -> float:
    """Return the width of panels beside each other, in inches."""
    return max(WIDTH, 1.7 + PANEL_INCHES * num_panels)


def part_bars(study: Study, name: str, slo_class: str, view: str, row: float) -> Iterator[Bars]:
    """Yield the parts of a class's TTFT under one strategy as bars, end to end."""
    of_view = {
        part.group: part.mean_ms
        for part in study.parts
        if (part.strategy, part.slo_class, part.view) == (name, slo_class, view)
    }
    shown = [
        group for group in PARTS if any(o.group == group and o.mean_ms > 0 for o in study.parts)
    ]
    start = 0.0
    for group in shown if of_view else ():
        colour, words = PARTS[group]
        yield Bars([row], [of_view[group]], Style(colour), words, [start])
        start += of_view[group]


def has_curves(study: Study, place: str) -> bool:
    """Return whether the study has distributions to draw at a place."""
    return any(curve.place in ("*", place) for curve in study.curves)


def distributions(study: Study, place: str) -> Picture:
    """Return a picture of each class's TTFT distribution: one line per strategy, with a band over seeds."""
    names = study.strategies[:MOST_STRATEGIES]
    classes = [
        name for name in study.classes if any(curve.slo_class == name for curve in study.curves)
    ]
    classes = [name for name in classes if name != ALL_REQUESTS] or classes
    panels = [
        _distribution(study, place, names, slo_class, at == 0)
        for at, slo_class in enumerate(classes)
    ]
    words = joined(list(map(short, names)))
    where = f" At {place}." if place else ""
    many = study.runs.many
    caption = (
        f"Each strategy served the same requests, {study.runs.listed(study.seeds)}. Lines: mean over {many} of the "
        "time within which a share of the class's requests had their first token. Bands: the middle "
        f"{BAND[1] - BAND[0]} % of the {many}. Dots: 99th percentile, mean over {many}.{where}"
    )
    return Picture(
        f"Time to first token by SLO class under {words}, workload {study.workload_name}", caption, [panels],
        [2.6 + 0.16 * len(names)], max(WIDTH, 2.2 * len(classes) + 0.5), "all", "all", name="distributions",
        choices=choices_of(study, place),
    )  # fmt: skip


def _distribution(
    study: Study, place: str, names: Sequence[str], slo_class: str, is_first: bool
) -> Panel:
    marks: list[Mark] = []
    notes = []
    tails = {
        figure.strategy: finite(figure.value.mean)
        for figure in (*study.figures, *study.tails)
        if (figure.place, figure.slo_class, figure.metric) == (place, slo_class, TAIL)
    }
    percents = {
        difference.strategy: finite(difference.change.percent.mean)
        for difference in study.differences
        if (difference.place, difference.slo_class, difference.metric) == (place, slo_class, TAIL)
    }
    for curve in study.curves:
        if curve.slo_class != slo_class or curve.place not in ("*", place):
            continue
        if curve.strategy not in names:
            continue
        colour, share = study.colours[curve.strategy], [100 * level for level in study.levels]
        marks.append(
            Series(curve.mean, share, Style(colour, line="-", width=1.8), x_low=curve.low,
                   x_high=curve.high, has_band=True, told=short(curve.strategy))
        )  # fmt: skip
        tail, change = tails.get(curve.strategy), percents.get(curve.strategy)
        marks.append(
            Series([] if tail is None else [tail], [] if tail is None else [99.0],
                   Style(colour, "o", "-"), short(curve.strategy))
        )  # fmt: skip
        if tail is not None:
            by = "" if change is None else f" ({change:+.0f} %)".replace("-", "−")
            notes.append((f"P99 by run {tail:.0f} ms{by}", colour))
    share_words = study.class_shares.get(slo_class)
    heading = class_words(slo_class) + (
        "" if share_words is None else f" ({share_words:.0f} % of requests)"
    )
    y = Axis("requests with first token (%)" if is_first else "", limits=(0.0, 101.0))
    x = Axis("time to first token (ms)", limits=(0.0, None), most_ticks=5)
    return Panel(marks, x, y, heading, notes=notes)


def parts(study: Study) -> Picture:
    """Return a picture of the parts of TTFT: one row per class; columns for the mean, the P99 and the slowest."""
    classes = [name for name in study.classes if any(o.slo_class == name for o in study.parts)]
    views = [name for name in VIEWS if any(part.view == name for part in study.parts)]
    names = [
        name for name in study.strategies if any(part.strategy == name for part in study.parts)
    ]
    panels = [
        [
            Panel(
                [bar for row, name in enumerate(names)
                 for bar in part_bars(study, name, slo_class, view, row)],
                Axis("ms" if slo_class == classes[-1] else "", limits=(0.0, None), most_ticks=4),
                Axis(
                    ticks=[(float(row), short(name) if view == views[0] else "")
                           for row, name in enumerate(names)],
                    limits=(len(names) - 0.4, -0.6), has_grid=False,
                    colours=[study.colours[name] for name in names],
                ),
                f"{class_words(slo_class)}, {VIEWS[view]}",
            )
            for view in views
        ]
        for slo_class in classes
    ]  # fmt: skip
    about = (
        "The time to first token (TTFT) runs from a request's arrival to its first output token: waiting in the "
        "queue, then computing the prompt (prefill), in one piece or in chunks, and fixed delays. A part that "
        f"shrinks says by which mechanism a strategy helps. {study.parts_of}"
    )
    return Picture(
        "Time to first token by what it is spent on", about, panels,
        [0.55 + 0.22 * len(names)] * len(classes), width_of(3), name="parts",
        heading="What is the time to first token spent on?",
    )  # fmt: skip


def timelines(study: Study) -> Picture:
    """Return heat maps of instances over time: one row per measure, one column per strategy."""
    shown = study.timelines[:MOST_TIMELINES]
    rows = []
    for measure, (words, unit, colours) in MEASURES.items():
        most = max(float(getattr(run, measure).max()) for run in shown) or 1.0
        panels = []
        for run in shown:
            values = getattr(run, measure)
            edges = [at - 0.5 for at in range(len(values) + 1)]
            tiles = Tiles(
                list(run.edges_s), edges, values.tolist(), colours, (0.0, most), unit=unit,
                has_scale=run is shown[-1],
            )  # fmt: skip
            last = measure == list(MEASURES)[-1]
            panels.append(
                Panel(
                    [tiles], Axis("simulated time (s)" if last else "", most_ticks=6),
                    Axis("instance" if run is shown[0] else "", most_ticks=4, is_whole=True),
                    f"{words}, {short(run.strategy)}", study.colours.get(run.strategy, "black"),
                )
            )  # fmt: skip
        rows.append(panels)
    span = 1000 * (shown[0].edges_s[1] - shown[0].edges_s[0])
    counts = " ".join(
        f"{run.strategy}: {run.num_requests} requests in {run.num_steps} steps." for run in shown
    )
    where = f", at {study.places[0]}" if study.places[0] else ""
    seed = f" ({study.runs.one} {shown[0].seed}{where})" if len(study.seeds) > 1 else ""
    left = len(study.timelines) - len(shown)
    more = f" {left} more strategies are not drawn." if left else ""
    height = 0.45 + min(1.6, 0.35 + 0.08 * max(len(run.running) for run in shown))
    return Picture(
        "Instances over time",
        f"One run of each strategy with the same requests{seed}. A row is one instance, that is one model server; "
        f"a tile is a mean over {span:.3g} ms. {counts}{more} For every single step and request, write a trace with "
        "--timeline and open it in Perfetto.",
        rows, [height] * len(rows), max(WIDTH, 3.2 * len(shown)), name="timelines",
        heading="What did the instances do, over time?",
    )  # fmt: skip


# --- what is shown of single runs: a timeline of each instance, and the parts of TTFT -------------


MOST_CELLS = 12_000  # instances × spans of all timelines and measures of a page
SPANS = {1: 150, 2: 120, 3: 96}  # by number of runs: cells of whole pixels
USUAL_SPANS, LEAST_SPANS = 60, 20


def num_spans(num_instances: int, num_runs: int) -> int:
    """Return the number of spans of time that a timeline is divided into."""
    spans = MOST_CELLS // max(1, 3 * num_instances * num_runs)
    return min(SPANS.get(num_runs, USUAL_SPANS), max(LEAST_SPANS, spans))


def timelines_of(records: Mapping[str, RunRecord], seed: int) -> tuple[Timeline, ...]:
    """Return the timelines of one run of each strategy, all over the same spans of time."""
    if not records:
        return ()
    end_us = max(_end_us(record) for record in records.values())
    widest = max(len(record.instances.step_count) for record in records.values())
    edges_us = np.linspace(0, max(end_us, 1), num_spans(widest, len(records)) + 1)
    return tuple(timeline(record, name, seed, edges_us) for name, record in records.items())


def timeline(record: RunRecord, strategy: str, seed: int, edges_us: np.ndarray) -> Timeline:
    """Return a run's means over each span of time between the edges; time outside of steps counts as 0."""
    steps, num_instances = record.steps, len(record.instances.step_count)
    shape = num_instances, len(edges_us) - 1
    running, waiting, kv_percent = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for instance in range(num_instances):
        rows = np.flatnonzero(steps.instance == instance)
        if not len(rows):
            continue
        rows = rows[np.argsort(steps.last_index[rows], kind="stable")]
        start = steps.start_us[rows].astype(np.float64)
        end = start + steps.num_steps[rows] * steps.duration_us[rows]
        end[:-1] = np.minimum(end[:-1], start[1:])  # a step may begin before the last one has ended
        blocks = steps.sum_used_blocks[rows] / steps.num_steps[rows]
        total = max(int(record.instances.total_kv_blocks[instance]), 1)
        running[instance] = _means(start, end, steps.running[rows], edges_us)
        waiting[instance] = _means(start, end, steps.waiting[rows], edges_us)
        kv_percent[instance] = _means(start, end, 100 * blocks / total, edges_us)
    return Timeline(
        strategy=strategy,
        seed=seed,
        edges_s=(edges_us / 1e6).tolist(),
        running=running,
        waiting=waiting,
        kv_percent=kv_percent,
        num_requests=len(record.requests.arrival_us),
        num_steps=int(steps.num_steps.sum()),
    )


def _means(start: np.ndarray, end: np.ndarray, values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return time-weighted means of a function that is constant within each stretch, and 0 between stretches."""
    areas = np.cumsum((end - start) * values)
    times = np.column_stack([start, end]).reshape(-1)
    heights = np.column_stack([np.concatenate([[0.0], areas[:-1]]), areas]).reshape(-1)
    whole: np.ndarray = np.diff(np.interp(edges, times, heights)) / np.diff(edges)
    return whole


def _end_us(record: RunRecord) -> int:
    steps = record.steps
    ends = steps.start_us + steps.num_steps * steps.duration_us
    return int(ends.max(initial=0))


def parts_of(
    records: Mapping[str, Sequence[RunRecord]],
    classes: Sequence[str],
    window_of: Callable[[RunRecord], Window],
) -> tuple[TtftShare, ...]:
    """Return the parts of TTFT of every class under every strategy, as means over runs with a first token."""
    shares = []
    for strategy, runs in records.items():
        for slo_class in classes:
            tables: dict[str, list[list[float]]] = {}
            for record in runs:
                chosen = select(record, window=window_of(record)).of_name(slo_class)
                for view, parts in ttft_parts_ms(chosen).items():
                    tables.setdefault(view, []).append(parts)
            for view, rows in tables.items():
                means = grouped(np.array(rows).mean(axis=0))
                shares += [
                    TtftShare(strategy, slo_class, view, group, float(value))
                    for group, value in means.items()
                ]
    return tuple(shares)
