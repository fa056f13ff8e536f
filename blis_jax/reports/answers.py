"""The five lines that answer a comparison: question, verdict by class, certainty, price, what to do next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from blis_jax.files.atomic_write import finite
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.findings import Answer, Form, Quantity, Sentence
from blis_jax.reports.study import (
    LONGER_TRACE,
    NO_FIGURE,
    SEEDS,
    TOO_FEW,
    WINDOWS,
    MetricChange,
    Study,
)
from blis_jax.reports.style import ALL_REQUESTS
from blis_jax.reports.words import (
    LATENCIES,
    POOLED,
    headline_metric,
    joined,
    metric_name,
    table_title,
    unit_text,
)
from blis_jax.statistics.intervals import Estimate
from blis_jax.statistics.paired import BETTER, SAME, UNCLEAR, WORSE, fewest_for_verdict

IN_BRIEF = (  # metrics of the short table, where they are there
    "ttft_mean_ms",
    "pooled_ttft_p99_ms",
    "tpot_mean_ms",
    "itl_mean_ms",
    "pooled_e2e_p99_ms",
    "output_tokens_per_s",
    "goodput_rps",
    "attainment",
    "instance_seconds",
    "num_scale_downs",
)
OF_ALL = ("output_tokens_per_s", "tokens_per_sec")  # said of the whole cluster
MOST_VERDICTS = 3  # strategies with a sentence each
MOST_IN_RETURN = 2  # figures of a better class that are worse
FOR = {
    BETTER: "better",
    WORSE: "worse",
    UNCLEAR: "not told from chance",
    SAME: "the same",
    TOO_FEW: TOO_FEW,
    NO_FIGURE: NO_FIGURE,
}
COUNTED = {BETTER: "better", WORSE: "worse", UNCLEAR: "not told from chance", SAME: "equal"}
IN_PERCENT = ("attainment",)  # shares


def metric_title(metric: str) -> str:
    """Return a metric's name in a table, with its unit."""
    return "within targets, %" if metric in IN_PERCENT else table_title(metric)


def answer(study: Study) -> Answer:
    """Return the five lines that answer a comparison."""
    if study.answer is not None:
        return study.answer
    counts = Counter(difference.judgement for difference in study.differences)
    num_runs = study.num_runs
    if num_runs is None:
        num_runs = len(study.strategies) * len(study.places) * len(study.seeds)
    return Answer(
        asked=study.asked or _asked(study),
        verdict=study.verdict or tuple(_verdicts(study)),
        sure=study.sure
        or (Sentence.of(study.too_short) if study.too_short else _sure(study, counts)),
        price=Sentence.of(Quantity.whole(num_runs), f" run{'s' * (num_runs != 1)}."),
        time=study.time,
        next=study.next or _next(study),
        cluster=study.cluster,
    )


def deciding(study: Study) -> str:
    """Return the metric that the verdict is about."""
    metrics = study.metrics or tuple(dict.fromkeys(figure.metric for figure in study.figures))
    family = len(study.differences)
    return headline_metric(metrics, len(study.seeds), family, 1 - study.confidence)


def _asked(study: Study) -> str:
    """Return the question: which strategies are compared, in which metric, on which workload."""
    first, *others = study.strategies
    runs = study.runs.counted(len(study.seeds))
    places = f", {len(study.places)} places" if len(study.places) > 1 else ""
    on = f"{'Workload' if study.runs is SEEDS else 'Trace'} {study.workload}, {runs}{places}."
    metric = in_words(deciding(study))
    if not others:
        return f"What is the {metric} under {first}? {on}"
    shown = joined(others) if len(others) <= MOST_VERDICTS else f"any of {len(others)} strategies"
    verb = "Do" if 1 < len(others) <= MOST_VERDICTS else "Does"
    return f"{verb} {shown} beat {first} in {metric}? {on}"


def in_words(metric: str) -> str:
    """Return a metric's name without abbreviations: `time to first token (pooled P99)`."""
    is_pooled = metric.startswith(POOLED)
    name, _, rest = metric.removeprefix(POOLED).removesuffix("_ms").partition("_")
    if name not in LATENCIES or not rest:
        return metric_name(metric)
    kind = rest if rest == "mean" else rest.upper()
    return f"{LATENCIES[name][0]} ({'pooled ' * is_pooled}{kind})"


def _verdicts(study: Study) -> Iterator[Sentence]:
    metric = deciding(study)
    strategies = list(dict.fromkeys(difference.strategy for difference in study.differences))
    if not strategies:
        yield _figure_sentence(study, metric)
        return
    for strategy in strategies[:MOST_VERDICTS]:
        name = f"{strategy}: " if len(strategies) > 1 else ""
        of_strategy = [
            difference for difference in study.differences if difference.strategy == strategy
        ]
        yield Sentence.of(name, *by_class(of_strategy, metric, study.too_short), ".")
    if len(strategies) > MOST_VERDICTS:
        yield _others(study, metric, strategies[MOST_VERDICTS:])


def _others(study: Study, metric: str, strategies: Sequence[str]) -> Sentence:
    counts = Counter(
        difference.change.verdict
        for difference in study.differences
        if difference.strategy in strategies
        and difference.metric == metric
        and difference.slo_class != ALL_REQUESTS
    )
    texts = [f"{count} {COUNTED.get(verdict, verdict)}" for verdict, count in counts.items()]
    return Sentence.of(
        f"{len(strategies)} more strategies, by class: {', '.join(texts) or 'no class'}."
    )


def by_class(
    differences: Sequence[MetricChange], metric: str, too_short: str = ""
) -> Iterator[str | Quantity]:
    """Yield the parts of a verdict: classes with their changes, by verdict, then the change of throughput.

    `too_short`: why a trace gives no verdict, if that is so; then changes are those on this trace.
    """
    of_metric = [difference for difference in differences if difference.metric == metric]
    chosen = [row for row in of_metric if row.slo_class != ALL_REQUESTS] or of_metric
    separator = ""
    for verdict, words in FOR.items():
        classes = [row for row in chosen if row.judgement == verdict]
        if not classes:
            continue
        if verdict == UNCLEAR and too_short:
            words = "on this trace"
        elif verdict == UNCLEAR and all(math.isnan(row.change.absolute.low) for row in classes):
            words = "of one run, without a spread to judge by"
        yield f"{separator}{words}: "
        yield from _listed(classes)
        separator = "; "
    whole = [
        difference
        for difference in differences
        if difference.metric in OF_ALL and difference.slo_class == ALL_REQUESTS
    ]
    if len(whole) == 1 and whole[0].change.num_pairs and whole[0].metric != metric:
        yield f"{separator}throughput "
        yield change_value(whole[0], "bare") if whole[0].change.verdict != SAME else SAME
        separator = "; "
    better, same = (
        {row.slo_class for row in chosen if row.change.verdict == verdict}
        for verdict in (BETTER, SAME)
    )
    others = [
        row
        for row in differences
        if row.metric in IN_BRIEF and row.metric not in (*OF_ALL, metric) and not row.place
    ]
    worse = [row for row in others if row.slo_class in better and row.judgement == WORSE]
    yield from _largest(worse, f"{separator}in return worse: ")
    changed = [
        row for row in others if row.slo_class in same and row.judgement in (BETTER, WORSE, UNCLEAR)
    ]
    yield from _largest(changed, f"{separator}not the same: ")


def _largest(rows: Sequence[MetricChange], head: str) -> Iterator[str | Quantity]:
    """Yield the largest of some changes of further metrics, after `head`; nothing if there are none."""
    ordered = sorted(rows, key=lambda row: -abs(finite(row.change.percent.mean) or 0.0))
    for at, row in enumerate(ordered[:MOST_IN_RETURN]):
        word = "all requests" if row.slo_class == ALL_REQUESTS else row.slo_class
        yield ", " if at else head
        yield f"{metric_name(row.metric)} of {word} "
        yield change_value(row, "bare")
    if len(ordered) > MOST_IN_RETURN:
        yield f", {len(ordered) - MOST_IN_RETURN} more"


def _listed(classes: Sequence[MetricChange]) -> Iterator[str | Quantity]:
    """Yield each class with its change; on a grid, with the number of places that have this verdict."""
    names = list(dict.fromkeys(row.slo_class for row in classes))
    for at, name in enumerate(names):
        of_class = [row for row in classes if row.slo_class == name]
        word = "all requests" if name == ALL_REQUESTS else name
        yield f"{', ' * (at > 0)}{word}"
        if len(of_class) > 1:
            yield f" at {len(of_class)} places"
        elif of_class[0].judgement not in (SAME, NO_FIGURE):
            yield " "
            yield change_value(of_class[0], "bare")


def _figure_sentence(study: Study, metric: str) -> Sentence:
    of_metric = [figure for figure in study.figures if figure.metric == metric]
    chosen = [change for change in of_metric if change.slo_class != ALL_REQUESTS] or of_metric
    parts: list[str | Quantity] = [f"{metric_title(metric)}: "]
    for at, change in enumerate(chosen[:6]):
        parts += [
            f"{', ' * (at > 0)}{change.slo_class} ",
            Quantity.of(scaled(metric, change.value), "half"),
        ]
    return Sentence.of(*parts, ".") if chosen else Sentence.of("no run has a figure.")


def _sure(study: Study, counts: Counter[str]) -> Sentence:
    level, total = f"{100 * study.confidence:g} %", sum(counts.values())
    if not total:
        return Sentence.of(f"{level} for each mean by itself; nothing is compared.")
    words = COUNTED | {TOO_FEW: TOO_FEW, NO_FIGURE: "without a figure"}
    parts: list[str | Quantity] = [
        f"{level} for all ",
        Quantity.whole(total),
        " differences at once: ",
    ]
    if study.are_exact:
        run = study.runs.one
        parts = [f"exact, since every {run} makes the same run (one {run} is enough): "]
    elif total == 1:
        parts = [f"{level} for the one difference: "]
    for at, verdict in enumerate(name for name in words if counts[name]):
        parts += [", " * (at > 0), Quantity.whole(counts[verdict]), f" {words[verdict]}"]
    return Sentence.of(*parts, ".")


def _next(study: Study) -> str:
    if not study.differences:
        return "give a second --strategy to compare with."
    metric = deciding(study)
    of_metric = [difference for difference in study.differences if difference.metric == metric]
    if any(row.judgement == NO_FIGURE for row in of_metric):
        return "see which runs have no figure and why, with --all."
    if any(row.judgement == TOO_FEW for row in of_metric):
        return "give more of the trace: an interval needs 100 requests, a P99 500 of each class."
    unclear = [row for row in of_metric if row.change.verdict == UNCLEAR]
    if unclear and study.pairs:  # one trace, of which there is no other run
        return LONGER_TRACE
    count, many = len(study.seeds), study.runs.many
    decide = "" if study.runs == WINDOWS else ", or --decide"
    if unclear and 1 < count < (fewest := fewest_for_verdict(study.confidence)):
        return (
            f"{count} {many} give no verdict: by chance all favour one of two equal strategies in "
            f"{200 * 2.0**-count:.3g} % of cases. Give {fewest} or more{decide}."
        )
    if unclear and study.runs == WINDOWS:
        return "a longer trace tells more; more windows of this one are shorter, and each begins on an idle cluster."
    if unclear:
        return f"more {many} tell more: --decide adds them until the verdicts are safe."
    if all(change.change.verdict == SAME for change in study.differences):
        return "what differs between them does not act here; it may at another rate or workload."
    return "blis-jax ablate finds which setting does it; --report FILE.html draws all of it."


def scaled(metric: str, estimate: Estimate) -> Estimate:
    """Return an estimate in the unit of tables: shares in %."""
    by = 100.0 if metric in IN_PERCENT else 1.0
    ends = {name: by * getattr(estimate, name) for name in ("mean", "low", "high")}
    return replace(estimate, **ends)


def change_value(row: MetricChange, form: Form = "interval") -> Quantity:
    """Return a difference in %, or in its own unit if the reference is 0."""
    if finite(row.change.percent.mean) is not None:
        return Quantity.of(row.change.simultaneous_percent, form, unit=" %", is_signed=True)
    unit = unit_text(lookup(row.metric)[0].unit)
    return Quantity.of(row.change.simultaneous, form, unit=unit, is_signed=True)
