"""A comparison's findings: its answer, then the table of its differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from blis_jax.reports.answers import IN_BRIEF, OF_ALL, answer, deciding, metric_title, scaled
from blis_jax.reports.findings import Cell, Findings, Quantity, Remarks, Row, Table
from blis_jax.reports.study import MetricChange, ShownFigure, Study
from blis_jax.reports.study_pictures import pictures
from blis_jax.reports.style import ALL_REQUESTS
from blis_jax.reports.words import OF_LIMITS, joined
from blis_jax.statistics.intervals import CONFIDENCE, Estimate
from blis_jax.statistics.paired import BETTER, UNCLEAR, WORSE

MOST_IN_TITLE = 3  # strategies
MOST_POINTS = 4  # beyond it the short table has the deciding metric alone
FEW_METRICS = 4  # were asked for, so the short table has them all
Entry = MetricChange | ShownFigure
Column = tuple[str, Callable[[Any], Cell]]  # its heading, and what it shows of a difference


def findings(study: Study) -> Findings:
    """Return the findings of a comparison, the answer first."""
    table = difference_table(study) if study.differences else figure_table(study)
    said = study.runs.in_text
    long = [*(f"{name}: {text}" for name, text in study.descriptions.items() if text)]
    long += map(said, filter(None, (_intervals_line(study), study.verdicts, _unseen(study))))
    return Findings(
        answer(study),
        (
            Remarks(tuple(map(said, study.remarks)), is_brief=True),
            *study.ranked,
            table,
            Remarks((study.limits,) if study.limits else (), is_brief=_has_goodput(table)),
            *(Remarks(tuple(lines), title, is_brief=True) for title, lines in study.brief.items()),
            *study.tables,
            *(Remarks(tuple(lines), title) for title, lines in study.more.items() if lines),
            Remarks((*long, *study.notes, *study.checks)),
        ),
        pictures(study),
        study.place_title,
    )


def _has_goodput(shown: Table) -> bool:
    """Return whether the short table has a metric that depends on the classes' targets."""
    titles = {metric_title(name) for name in OF_LIMITS}
    return any(cell in titles for row in shown.brief().rows for cell in row.cells)


def title_of(study: Study) -> str:
    """Return the title of a comparison's page."""
    if len(study.strategies) == 1:
        return f"How {study.strategies[0]} does on the workload {study.workload}"
    others = list(study.strategies[1:])
    shown = joined(others) if len(others) <= MOST_IN_TITLE else f"{len(others)} strategies"
    verb = "compares" if len(others) == 1 else "compare"
    source = study.source.lower()
    return f"How {shown} {verb} with {study.strategies[0]} on the {source} {study.workload_name}"


def _intervals_line(study: Study) -> str:
    if not study.differences:
        return f"Means over {study.runs.many}; intervals: {study.intervals}."
    joint = f"; those that hold for all differences at once: {study.joint}" if study.joint else ""
    return f"Means over {study.runs.many}; intervals: {study.intervals}{joint}."


def _unseen(study: Study) -> str:
    """Return a sentence on how often what no run has shown may come; empty for fewer than two runs."""
    pairs = [difference.change.num_pairs for difference in study.differences]
    count, word = max(pairs, default=0), study.pairs or study.runs.many
    if count < 2 or study.are_exact:
        return ""
    often = 1 / (1 - (1 - CONFIDENCE) ** (1 / count))
    return (
        f"What comes once in {often:.0f} {word}, such as far longer waits, is missing from {count} in "
        f"{100 - 100 * CONFIDENCE:.0f} % of cases, what is rarer more often; no interval shows it."
    )


def difference_table(study: Study) -> Table:
    """Return the table of all differences; the short table has those marked by `_are_shown`."""
    keys, means, changes = _keys(study.differences), _mean_columns(study), _change_columns(study)
    columns = [*keys, *means, *changes]
    rows = tuple(
        Row(
            (*(shown(difference) for _, shown in columns), difference.judgement),
            is_shown,
            difference.place,
        )
        for difference, is_shown in zip(study.differences, _are_shown(study), strict=True)
    )
    headings = [*(heading for heading, _ in columns), ""]
    percent = [at for at, heading in enumerate(headings) if heading.startswith("in %")][-1]
    return Table(
        tuple(headings),
        rows,
        num_keys=len(keys),
        name="differences",
        brief_columns=(*range(len(keys) + len(means)), percent, len(columns)),
    )


def _are_shown(study: Study) -> list[bool]:
    """Return for each difference whether the short table shows it.

    It shows clear differences; and unclear ones over all requests if few metrics were asked for, or if no clear
    difference is shown for the strategy.
    """
    brief, metric = _brief_metrics(study), deciding(study)
    are_clear = [row.metric in brief and _is_told(row, metric) for row in study.differences]
    if len({(row.strategy, row.place) for row in study.differences}) > MOST_POINTS:
        return are_clear
    told = {
        (row.strategy, row.place)
        for row in study.differences
        if row.metric == metric and _is_told(row, metric)
    }
    are_few = len({row.metric for row in study.differences}) <= FEW_METRICS

    def is_open(row: MetricChange) -> bool:
        is_untold = (row.strategy, row.place) not in told and row.judgement == UNCLEAR
        return row.metric in brief and row.slo_class == ALL_REQUESTS and (are_few or is_untold)

    return [
        is_clear or is_open(row) for row, is_clear in zip(study.differences, are_clear, strict=True)
    ]


def _is_told(row: MetricChange, metric: str) -> bool:
    """Return whether a row is a clear difference; of throughput, only that of the whole cluster."""
    is_whole = row.metric not in OF_ALL or row.slo_class == ALL_REQUESTS or row.metric == metric
    return row.judgement in (BETTER, WORSE) and is_whole


def _brief_metrics(study: Study) -> set[str]:
    """Return the metrics of the short table: the usual ones, or all metrics if none of the usual was asked for.

    Empty if the study has a ranking, which takes the short table's place.
    """
    if study.ranked:
        return set()
    if (
        len({(difference.strategy, difference.place) for difference in study.differences})
        > MOST_POINTS
    ):
        return {deciding(study)}
    entries: Sequence[Entry] = study.differences or study.figures
    named = {entry.metric for entry in entries}
    if len(named) <= FEW_METRICS:
        return named
    usual = named & {*IN_BRIEF, *OF_ALL}
    return usual | {deciding(study)} if usual else named


def _keys(entries: Sequence[Entry]) -> list[Column]:
    """Return the key columns, which distinguish entries."""
    keys: list[Column] = [
        ("class", lambda row: row.slo_class),
        ("metric", lambda row: metric_title(row.metric)),
    ]
    for name in ("place", "strategy"):
        if len({getattr(entry, name) for entry in entries}) > 1:
            keys.insert(0, (name, attrgetter(name)))
    return keys


def _mean_columns(study: Study) -> list[Column]:
    """Return the columns with both strategies' means, with intervals if the study has them."""
    known = {
        (figure.strategy, figure.place, figure.slo_class, figure.metric): figure.value
        for figure in study.figures
    }

    def mean(row: MetricChange, strategy: str, plain: float) -> Quantity:
        alone = Estimate(plain, math.nan, math.nan, row.change.num_pairs)
        figure = known.get((strategy, row.place, row.slo_class, row.metric), alone)
        return Quantity.of(scaled(row.metric, figure), "half")

    pairs = {(difference.reference, difference.strategy) for difference in study.differences}
    before, after = next(iter(pairs)) if len(pairs) == 1 else ("reference", "strategy")
    return [
        (before, lambda row: mean(row, row.reference, row.change.first_mean)),
        (after, lambda row: mean(row, row.strategy, row.change.second_mean)),
    ]


def _change_columns(study: Study) -> list[Column]:
    """Return the columns with the differences, in their unit and in %, with single and with simultaneous intervals."""
    level = f"{100 * study.confidence:g} %"

    def in_unit(row: MetricChange, estimate: Estimate) -> Quantity:
        return Quantity.of(scaled(row.metric, estimate), is_signed=True)

    def in_percent(estimate: Estimate) -> Quantity:
        return Quantity.of(estimate, is_signed=True)

    columns: list[Column] = [
        (f"difference [{level}]", lambda row: in_unit(row, row.change.absolute)),
        (f"difference [{level}, all]", lambda row: in_unit(row, row.change.simultaneous)),
        (f"in % [{level}]", lambda row: in_percent(row.change.percent)),
        (f"in % [{level}, all]", lambda row: in_percent(row.change.simultaneous_percent)),
        (study.pairs or study.runs.many, lambda row: Quantity.whole(row.change.num_pairs)),
    ]
    if any(math.isfinite(row.change.p_adjusted) for row in study.differences):
        columns.append(("p (Holm)", lambda row: p_text(row.change.p_adjusted)))
    return columns


def p_text(value: float | None) -> str:
    """Return a p-value as text; empty if there is none."""
    if value is None or math.isnan(value):
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def figure_table(study: Study) -> Table:
    """Return the table of means for a study without a comparison; the short table has a few metrics."""
    keys, brief = _keys(study.figures), _brief_metrics(study)
    rows = tuple(
        Row(
            (
                *(shown(figure) for _, shown in keys),
                Quantity.of(scaled(figure.metric, figure.value), "half"),
            ),
            figure.metric in brief,
            figure.place,
        )
        for figure in study.figures
    )
    headings = (*(heading for heading, _ in keys), "mean")
    return Table(headings, rows, num_keys=len(keys), name="differences")
