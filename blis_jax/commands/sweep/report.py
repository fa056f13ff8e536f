"""A sweep's tables and sentences for the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.commands.sweep.data import INVARIANTS, NOT_RUN, outcome_counts
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.metrics.scalars import TITLES
from blis_jax.policies.registry import NONE
from blis_jax.reports.run_words import SEEDS, RunWords, run_words
from blis_jax.statistics.compared import ComparedMetric, Comparison
from blis_jax.statistics.intervals import Estimate
from blis_jax.statistics.paired import BETTER, SAME, UNCLEAR, WORSE
from blis_jax.traces.source import TraceSource

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from blis_jax.commands.sweep.plan import SweepPlan
    from blis_jax.runs.driver import Timing

MOST_FULL_TABLES = 4  # beyond it, one line per class and point
IN_BRIEF = {
    "pooled_ttft_p99_ms": "TTFT P99 pooled, ms",
    "output_tokens_per_s": TITLES["output_tokens_per_s"].axis,
    "goodput_rps": "goodput, 1/s",
}
WIDE = 124  # columns that the full table needs
OWN_TITLES = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT", "attainment": "within targets, %"}
COLOURS = {BETTER: "green", WORSE: "red", UNCLEAR: "", SAME: ""}
NOTHING = "–"


def title(metric: str) -> str:
    """A metric's name for people, with its unit."""
    if metric in OWN_TITLES or metric in TITLES:
        return OWN_TITLES.get(metric) or TITLES[metric].axis
    of_run = metric.removeprefix("pooled_")
    latency, _, rest = of_run.removesuffix("_ms").partition("_")
    if rest[0] != "p":
        return f"{OWN_TITLES[latency]} {rest}, ms"
    return f"{OWN_TITLES[latency]} {rest.upper()} {'by run' if of_run == metric else 'pooled'}, ms"


def _scaled(figure: ComparedMetric, value: float) -> float:
    return 100 * value if figure.metric == "attainment" else value


def _number(value: float, signed: bool = False, like: float | None = None) -> str:
    """Three or four figures that matter; `like` sets the decimals."""
    if not math.isfinite(value):
        return NOTHING
    size = abs(value if like is None or not math.isfinite(like) else like)
    decimals = 0 if size >= 1000 else 1 if size >= 10 else 2
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", "−")


def _mean(figure: ComparedMetric) -> str:
    mean = _scaled(figure, figure.value.mean)
    half = _scaled(figure, figure.value.high - figure.value.mean)
    text = _number(mean)
    return f"{text} ± {_number(half, like=mean)}" if math.isfinite(half) else text


def _interval(estimate: Estimate, scale: float = 1.0) -> str:
    text = _number(scale * estimate.mean, signed=True)
    if not math.isfinite(estimate.low):
        return text
    low, high = (
        _number(scale * end, signed=True, like=scale * estimate.mean)
        for end in (estimate.low, estimate.high)
    )
    return f"{text} [{low}, {high}]"


def place_text(place: Mapping[str, Any]) -> str:
    """Where in the grid: `slo_age_weight=1e-05, workload.aggregate_rate=1000`."""
    return ", ".join(f"{name}={value}" for name, value in place.items())


def _partner(comparison: Comparison, comparisons: Sequence[Comparison]) -> Comparison:
    """The reference of a point: the first strategy at its place, or else the first point."""
    same_place = [other for other in comparisons if other.place == comparison.place]
    return next((other for other in same_place if other.reference is None), comparisons[0])


def _table(heading: str = "") -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(
        title=heading or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )


def full_table(comparison: Comparison, reference: Comparison, width: int) -> Table:
    """Every class and metric of one point beside its reference; the difference decides the verdict."""
    table = _table(place_text(comparison.place))
    names = [reference.strategy, comparison.strategy]
    if reference.strategy == comparison.strategy:
        names = [place_text(reference.place), place_text(comparison.place)]
    table.add_column("class")
    table.add_column("metric")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("difference [95 %]", justify="right", no_wrap=True)
    if width >= WIDE:
        table.add_column("in % [95 %]", justify="right", no_wrap=True)
    table.add_column("")
    for slo_class, figures in comparison.figures.items():
        for row, (first, second) in enumerate(
            zip(reference.figures[slo_class], figures, strict=True)
        ):
            change = second.difference
            cells = [slo_class if row == 0 else "", title(second.metric), _mean(first)]
            cells.append(_mean(second))
            if change is not None:
                cells.append(_interval(change.absolute, _scaled(second, 1.0)))
                if width >= WIDE:
                    cells.append(_interval(change.percent))
                colour = COLOURS[change.verdict]
                cells.append(f"[{colour}]{change.verdict}[/]" if colour else change.verdict)
            table.add_row(*cells, end_section=row == len(figures) - 1)
    return table


def single_table(comparison: Comparison) -> Table:
    """Every class and metric of one point that has nothing to be compared with."""
    table = _table(place_text(comparison.place))
    table.add_column("class")
    table.add_column("metric")
    table.add_column(comparison.strategy, justify="right")
    for slo_class, figures in comparison.figures.items():
        for row, figure in enumerate(figures):
            is_last = row == len(figures) - 1
            name = slo_class if row == 0 else ""
            table.add_row(name, title(figure.metric), _mean(figure), end_section=is_last)
    return table


def brief_table(comparisons: Sequence[Comparison]) -> Table:
    """One line per point and class, for grids."""
    table = _table()
    axes = list(comparisons[0].place)
    for name in (*axes, "strategy", "class"):
        table.add_column(name, overflow="fold", max_width=14)
    for heading in (*IN_BRIEF.values(), "TTFT P99 pooled, % [95 %]"):
        table.add_column(heading, justify="right", no_wrap=True)
    for comparison in comparisons:
        for row, (slo_class, figures) in enumerate(comparison.figures.items()):
            chosen = {figure.metric: figure for figure in figures}
            is_first = row == 0
            cells = [str(comparison.place[name]) if is_first else "" for name in axes]
            cells += [comparison.strategy if is_first else "", slo_class]
            cells += [_mean(chosen[metric]) for metric in IN_BRIEF]
            change = chosen["pooled_ttft_p99_ms"].difference
            cells.append(_interval(change.percent) if change else "reference")
            table.add_row(*cells, end_section=row == len(comparison.figures) - 1)
    return table


def show_tables(console: Console, comparisons: Sequence[Comparison]) -> None:
    """The tables that suit the number of points."""
    compared = [one for one in comparisons if one.reference is not None]
    if len(comparisons) == 1:
        console.print(single_table(comparisons[0]))
    elif len(compared) <= MOST_FULL_TABLES:
        for comparison in compared:
            partner = _partner(comparison, comparisons)
            console.print(full_table(comparison, partner, console.width))
    else:
        console.print(brief_table(comparisons))


def _change(figure: ComparedMetric) -> str:
    """A metric and its change in %: `TTFT P99 −74 %`."""
    assert figure.difference is not None
    percent = figure.difference.percent.mean
    name = title(figure.metric).replace("throughput, ", "").removesuffix(", ms")
    name = name.removesuffix(", %").removesuffix(", requests/s")
    return f"{name} {_number(percent, signed=True)} %" if math.isfinite(percent) else name


def verdict_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Per class, what improved and what got worse; one line per compared point and class."""
    compared = [one for one in comparisons if one.reference is not None]
    if len(compared) > MOST_FULL_TABLES:
        return []
    lines = []
    for comparison in compared:
        where = place_text(comparison.place)
        lines.append(
            f"{comparison.strategy} against {comparison.reference}{f' at {where}' if where else ''}:"
        )
        for slo_class in comparison.figures:
            parts = []
            for verdict, words in ((BETTER, "better"), (WORSE, "worse")):
                changes = [_change(one) for one in comparison.with_verdict(slo_class, verdict)]
                if changes:
                    parts.append(f"{words}: {', '.join(changes)}")
            parts = parts or ["no difference that these runs can tell from chance"]
            lines.append(f"  {slo_class} — {'; '.join(parts)}")
    return lines


def target_line(slo_targets: str, classes: Sequence[str]) -> str:
    """What goodput counts, in one sentence."""
    by_class = json.loads(slo_targets)
    texts = []
    for name in classes[1:]:
        limits = [
            f"{limit.removesuffix('_ms').upper()} ≤ {value:g} ms"
            for limit, value in by_class.get(name, {}).items()
        ]
        texts.append(f"{name} {' and '.join(limits) or 'completed'}")
    return f"Goodput counts completed requests within their class's targets: {', '.join(texts)}."


def requests_text(plan: SweepPlan) -> str:
    """The workload and its seeds, or the trace and its runs."""
    if not isinstance(plan.spec, TraceSource):
        return f"Workload {plan.workload}, {SEEDS.listed(plan.seeds, has_kind=False)}"
    trace, count = plan.spec, len(plan.seeds)
    runs = "one run of each strategy" if count == 1 else f"{count} runs"
    if trace.num_windows:
        runs = f"{count} windows of {trace.run_s:.4g} s, each a run"
    return (
        f"Trace {plan.workload} ({trace.trace.format}), {trace.num_requests} requests in "
        f"{trace.span_s:.4g} s, {runs},"
    )


def runs_of(plan: SweepPlan) -> RunWords:
    """What the runs of a strategy are called."""
    trace = plan.spec.about() if isinstance(plan.spec, TraceSource) else None
    return run_words(trace, len(plan.seeds))


def method_line(plan: SweepPlan, method: str) -> str:
    """How means and intervals are made."""
    if isinstance(plan.spec, TraceSource):
        if len(plan.seeds) == 1:
            return (
                "One run of a trace has no spread to take intervals from: --trace-windows N makes N runs "
                "of it, and python -m sweeps.compare resamples its requests."
            )
        if plan.spec.num_windows:
            windows = method.replace("seed", "window")
            return f"Mean over windows ± half of its interval; intervals: {windows}."
    return f"Mean over seeds ± half of its interval; intervals: {method}."


def window_line(measure: str) -> str:
    """Which arrivals were measured, in one sentence."""
    spans = json.loads(measure)
    if not any(spans.values()):
        return "All arrivals are measured, from an empty cluster to the last completion."
    return (
        f"Arrivals of the first {spans['warm_up_s']:g} s and the last {spans['cool_down_s']:g} s "
        "are simulated but not measured; throughput and goodput count what completes in the time between."
    )


def time_line(timing: Timing, num_known: int) -> str:
    """What took how long."""
    line = (
        f"{timing.num_rows} runs: {timing.compile_s:.1f} s waiting for the compiler, "
        f"{timing.run_s:.1f} s simulating and measuring"
    )
    if timing.num_rows and timing.run_s > 0:
        line += f" ({timing.num_rows / timing.run_s:.0f} runs/s)"
    if num_known:
        line += f"; {num_known} runs taken over from the file"
    return line + "."


def cost_lines(plan: SweepPlan, dataset: xr.Dataset) -> list[str]:
    """What the instances of every strategy cost, where a cluster policy takes some down."""
    if all(point.config.cluster_policy == NONE for point in plan.points):
        return []
    parts = []
    for strategy in dataset["strategy"].values:
        of_strategy = dataset.sel(strategy=strategy)
        seconds, idle = (
            float(of_strategy[name].mean()) for name in ("instance_seconds", "idle_share")
        )
        parts.append(f"{strategy} {seconds:.4g} instance-seconds, {idle:.1%} of them idle")
    return [f"Cost, mean of all runs: {'; '.join(parts)}."]


def check_lines(dataset: xr.Dataset, runs: RunWords = SEEDS) -> list[str]:
    """Outcomes of all runs by strategy, ties and invariants; nothing is left out."""
    lines, codes = [], set()
    parts = []
    for strategy in dataset["strategy"].values:
        outcome: np.ndarray = dataset["outcome"].sel(strategy=strategy).values
        codes |= set(outcome.reshape(-1).tolist())
        counts = outcome_counts(outcome)
        parts.append(f"{strategy} " + ", ".join(f"{num} {name}" for name, num in counts.items()))
    lines.append(f"Outcomes of {dataset['outcome'].size} runs: {'; '.join(parts)}.")
    for code in sorted(codes - {NOT_RUN, *map(int, WHOLE)}):
        outcome_code = Outcome(code)
        lines.append(
            f"  {outcome_code.name.lower()}: {outcome_code.sentence}; these runs have no figures, "
            f"and their {runs.many} are left out of the comparison"
        )
    if int(Outcome.HORIZON) in codes:
        lines.append(
            "  horizon: requests were left unfinished and have no E2E; goodput misses them"
        )
    repaired = int((dataset["num_repairs"].values > 0).sum())
    if repaired:
        lines.append(f"  {repaired} runs were made again with larger tables")
    ties = dataset["num_open_ties"].values
    lines.append(
        f"Ties: in {int((ties > 0).sum())} runs, events fell into one microsecond on one instance; their "
        f"order was not checked against BLIS ({int(ties.sum())} such events in all)."
    )
    broken = runs.in_text(_broken(dataset))
    lines.append(f"Invariants: {len(INVARIANTS)} checked in every run, {broken}.")
    return lines


def _broken(dataset: xr.Dataset) -> str:
    """Which invariants do not hold, how often, and in which runs."""
    order = ("invariant", "strategy", "seed", ...)
    violated = dataset["invariant_violations"].transpose(*order).values
    texts = []
    for name, counts in zip(INVARIANTS, violated, strict=True):
        strategies, seeds = counts.nonzero()[:2]
        if len(strategies):
            where = [
                f"{dataset['strategy'].values[strategy]} seed {dataset['seed'].values[seed]}"
                for strategy, seed in zip(strategies[:3], seeds[:3], strict=True)
            ]
            more = ", …" if len(strategies) > len(where) else ""
            texts.append(f"{name} {counts.sum()}× ({', '.join(where)}{more})")
    return "broken: " + "; ".join(texts) if texts else "none broken"
