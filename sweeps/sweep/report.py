"""A sweep's sentences (runs, measures, checks), and its document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.core.kinds import NONE
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.files.atomic_write import plain
from blis_jax.metrics.metric import names_in
from blis_jax.reports.findings import Quantity, Sentence
from blis_jax.reports.study import SEEDS, RunWords, run_words
from blis_jax.statistics import paired
from blis_jax.traces.source import TraceSource
from sweeps.compare.judge import BySeeds, comparison_json, figures_json, inference_json
from sweeps.runs.measured import pair_of
from sweeps.runs.saved_sweep import SavedSweep, outcome_counts
from sweeps.sweep.data import INVARIANTS, NOT_RUN

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.metrics.run_summary import RunSummary
    from blis_jax.runs.driver import Timing
    from blis_jax.statistics.intervals import Inference
    from blis_jax.statistics.paired import Pair
    from sweeps.sweep.plan import SweepPlan


# --- the points judged on common seeds, as a document: the numbers of the report and of --json ----


COMPARED = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "pooled_ttft_p99_ms",
    "ttft_p99_ms",
    "e2e_mean_ms",
    "pooled_e2e_p99_ms",
    "e2e_p99_ms",
    "tpot_mean_ms",
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_rps",
    "attainment",
)


class PointMetric(NamedTuple):
    """A metric of one of the plan's points; the name ends in `[class]` where it is of a class."""

    point: int  # its index
    metric: str


def _beside_reference(
    plan: SweepPlan, dataset: xr.Dataset, names: Sequence[str]
) -> Iterator[tuple[int, Sequence[RunSummary], Sequence[RunSummary]]]:
    """Yield the index of each point, the runs of its reference, and its own runs."""
    references: dict[int, Sequence[RunSummary]] = {}
    for index, runs in enumerate(SavedSweep(Path(), dataset).runs_by_point(names)):
        reference = plan.reference_of(index)
        if reference == index:
            references[index] = runs
        yield index, references[reference], runs


def pairs_of(plan: SweepPlan, dataset: xr.Dataset, names: Sequence[str]) -> dict[PointMetric, Pair]:
    """Return metrics of every point beside those of its reference, on the seeds of the Dataset."""
    return {
        PointMetric(index, name): pair_of(reference, runs, name)
        for index, reference, runs in _beside_reference(plan, dataset, names)
        for name in names
        if runs is not reference
    }


def to_document(plan: SweepPlan, dataset: xr.Dataset, inference: Inference) -> dict[str, Any]:
    """Return every point's metrics, and differences from its reference, as plain data; null for missing values."""
    names = names_in(COMPARED, dataset["slo_class"].values.tolist())
    judge, figures = BySeeds(inference), []
    pairs: dict[PointMetric, Pair] = {}
    for index, reference, runs in _beside_reference(plan, dataset, names):
        figures.append(figures_json(judge, runs, names))
        if runs is not reference:
            pairs |= {PointMetric(index, name): pair_of(reference, runs, name) for name in names}
    differences = paired.differences(list(pairs.values()), inference)
    against = "strategy" if len(plan.strategies) > 1 else "place"
    size, labels = len(differences), [plan.labels(point) for point in plan.points]
    family = {
        "family": f"{size} comparisons: every metric and class of every point against the first {against}",
        "family_size": size,
    }
    document = {
        "kind": "sweep",
        "inference": inference_json(judge, differences, family, runs_of(plan).one),
        "slo_targets": json.loads(dataset.attrs["slo_targets"]),
        "measure": json.loads(dataset.attrs["measure"]),
        "outcomes": {
            str(name): outcome_counts(dataset["outcome"].sel(strategy=name).values)
            for name in dataset["strategy"].values
        },
        "open_ties": int(dataset["num_open_ties"].sum()),
        "invariant_violations": json.loads(dataset.attrs["invariant_violation_counts"]),
        "arms": [
            {"name": name, "place": where, "figures": of_point}
            for (name, where), of_point in zip(labels, figures, strict=True)
        ],
        "comparisons": [
            {
                **comparison_json(
                    labels[of.point][0],
                    labels[plan.reference_of(of.point)][0],
                    of.metric,
                    difference,
                ),
                "place": labels[of.point][1],
            }
            for of, difference in zip(pairs, differences, strict=True)
        ],
    }
    return dict(plain(document))


# --- the report -----------------------------------------------------------------------------------


NONE_BROKEN = "none broken"


def requests_text(plan: SweepPlan) -> str:
    """Return a text that names the workload and its seeds, or the trace and its runs."""
    if not isinstance(plan.requests.source, TraceSource):
        return f"Workload {plan.requests.name}, {SEEDS.listed(plan.requests.seeds, has_kind=False)}"
    trace, count = plan.requests.source, len(plan.requests.seeds)
    runs = "one run of each strategy" if count == 1 else f"{count} runs"
    if trace.num_windows:
        runs = f"{count} windows of {trace.run_s:.4g} s, each a run"
    return (
        f"Trace {plan.requests.name} ({trace.trace.format}), {trace.num_requests} requests in "
        f"{trace.span_s:.4g} s, {runs},"
    )


def runs_of(plan: SweepPlan) -> RunWords:
    """Return the words for the runs of a strategy."""
    trace = plan.requests.source.about() if isinstance(plan.requests.source, TraceSource) else None
    return run_words(trace, len(plan.requests.seeds))


def method_lines(plan: SweepPlan) -> list[str]:
    """Return a line on why there are no intervals, if the requests are one run of a trace."""
    if not isinstance(plan.requests.source, TraceSource) or len(plan.requests.seeds) > 1:
        return []
    return [
        "One run of a trace has no spread to take intervals from: --trace-windows N makes N runs "
        "of it, and blis-jax compare resamples its requests."
    ]


def window_line(measure: str) -> str:
    """Return a sentence on which arrivals were measured."""
    spans = json.loads(measure)
    if not any(spans.values()):
        return "All arrivals are measured, from an empty cluster to the last completion."
    return (
        f"Arrivals of the first {spans['warm_up_s']:g} s and the last {spans['cool_down_s']:g} s "
        "are simulated but not measured; throughput and goodput count what completes in the time between."
    )


def time_sentence(timing: Timing, num_known: int) -> Sentence:
    """Return a sentence on the time of each phase, in s, and the number of runs known before."""
    parts: list[str | Quantity] = []
    if timing.num_rows:
        compiling, running = (
            Quantity(timing.compile_s, like=10.0),
            Quantity(timing.run_s, like=10.0),
        )
        parts = [compiling, " s waiting for the compiler, ", running, " s simulating and measuring"]
    if timing.num_rows and timing.run_s > 0:
        parts += [" (", Quantity.whole(round(timing.num_rows / timing.run_s)), " runs/s)"]
    if num_known:
        parts += [
            "; " * bool(parts),
            Quantity.whole(num_known),
            " of them taken over from the file",
        ]
    return Sentence.of(*parts, ".")


def cost_lines(plan: SweepPlan, dataset: xr.Dataset) -> list[str]:
    """Return lines on the cost of every strategy's instances, where a cluster policy takes some down."""
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
    """Return lines with outcomes of all runs by strategy, ties and invariants; nothing is left out."""
    parts = []
    for strategy in dataset["strategy"].values:
        counts = outcome_counts(dataset["outcome"].sel(strategy=strategy).values)
        parts.append(f"{strategy} " + ", ".join(f"{num} {name}" for name, num in counts.items()))
    ties = dataset["num_open_ties"].values
    return [
        f"Outcomes of {dataset['outcome'].size} runs: {'; '.join(parts)}.",
        f"Ties: in {int((ties > 0).sum())} runs, events fell into one microsecond on one instance; their "
        f"order was not checked against BLIS ({int(ties.sum())} such events in all).",
        f"Invariants: {len(INVARIANTS)} checked in every run, {runs.in_text(_broken(dataset))}.",
    ]


def remark_lines(dataset: xr.Dataset, runs: RunWords = SEEDS) -> list[str]:
    """Return warnings for the reader: runs without metrics, requests left over, broken invariants."""
    lines = []
    codes = set(dataset["outcome"].values.reshape(-1).tolist())
    for code in sorted(codes - {NOT_RUN, *map(int, WHOLE)}):
        outcome_code = Outcome(code)
        count = int((dataset["outcome"].values == code).sum())
        lines.append(
            f"{count} × {outcome_code.name.lower()}: {outcome_code.sentence}; these runs have no figures, "
            f"and their {runs.many} are left out of the comparison"
        )
    if NOT_RUN in codes:
        lines.append(f"{int((dataset['outcome'].values == NOT_RUN).sum())} runs were not made")
    if int(Outcome.HORIZON) in codes:
        lines.append("horizon: requests were left unfinished and have no E2E; goodput misses them")
    repaired = int((dataset["num_repairs"].values > 0).sum())
    if repaired:
        lines.append(f"{repaired} runs were made again with larger tables")
    if (broken := _broken(dataset)) != NONE_BROKEN:
        lines.append(f"Invariants {runs.in_text(broken)}; report this")
    return lines


def _broken(dataset: xr.Dataset) -> str:
    """Return the invariants that do not hold, how often, and in which runs."""
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
    return "broken: " + "; ".join(texts) if texts else NONE_BROKEN
