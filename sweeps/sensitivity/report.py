"""What a sensitivity study found, in plain words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from blis_jax.metrics.scalars import lookup
from sweeps.robustness.output.words import metric_words, shown
from sweeps.sensitivity.design import Sizes
from sweeps.sensitivity.effects import ANYWHERE, INSIDE, BestRange
from sweeps.sensitivity.indices import MATTERS, NO_EFFECT, NOISE, Agreement, do_meet
from sweeps.sensitivity.model import SIMULATOR, SURROGATE
from sweeps.sensitivity.study import SensitivityStudy, agreements, influential, verdicts
from sweeps.sensitivity.words import ends_words, interval_words, region_lines

YES_NO = {True: "yes", False: "no"}


def summary(study: SensitivityStudy, heading: str, about: str, failures: Mapping[str, int]) -> str:
    """The whole summary, in Markdown."""
    lines = [f"# {heading}", "", about]
    if failures:
        words = ", ".join(f"{count} × {name}" for name, count in failures.items())
        lines.append(f"Runs that did not finish: {words}. Rows with such a run are left out.")
    for model in study.findings:
        title = "What matters" + (f", by the {model}" if len(study.findings) > 1 else "")
        lines += ["", f"## {title}", "", *_overview(study, model)]
        for metric in study.metrics:
            lines += ["", *metric_lines(study, model, metric)]
        lines += ["", "### Where people tune", "", *region_lines(study, model)]
    if len(study.findings) > 1:
        lines += ["", "## Simulator and surrogate", "", *agreement_lines(study)]
    if study.ranges:
        lines += ["", "## Best ranges", "", *range_lines(study)]
    lines += ["", "## How to read this", "", *_legend(study)]
    return "\n".join(lines) + "\n"


def _overview(study: SensitivityStudy, model: str) -> list[str]:
    strong = influential(study, model)
    weak = [name for name in study.names if name not in strong]
    if not study.findings[model].sobol:
        return ["No metric varies over the space, so there is nothing to attribute."]
    lines = [f"Matter for some metric, most first: {', '.join(strong) or 'none'}."]
    if weak:
        where = ", the whole space and every region below" if study.regions else ""
        lines.append(
            f"Screened out (for no metric beyond seed noise, on either scale{where}): "
            f"{', '.join(weak)}."
        )
    return lines


def metric_lines(study: SensitivityStudy, model: str, metric: str) -> list[str]:
    """One metric: what matters and how, what does not, interactions, and other seeds."""
    found = study.findings[model]
    place = study.metrics.index(metric)
    words = metric_words(metric)
    values = found.values[..., place].mean(axis=1)
    values = values[np.isfinite(values)]
    if metric not in found.sobol:
        return [f"**{words}**: {_why_missing(values, len(found.values))}"]
    low, middle, high = np.percentile(values, (5, 50, 95))
    unit = _unit(metric)
    lines = [
        f"**{words}** (median {shown(_rounded(middle))}{unit} over the space, 5th to 95th percentile "
        f"{shown(_rounded(low))} to {shown(_rounded(high))}{unit}):"
    ]
    by_verdict = verdicts(study, model, metric)
    indices = found.sobol[metric]
    strong = [name for name, verdict in by_verdict.items() if verdict == MATTERS]
    strong.sort(key=lambda name: -indices.total[study.names.index(name), 0])
    for name in strong:
        lines.append(f"- {name}: {_effect_words(study, model, metric, name)}")
    for verdict in (NOISE, NO_EFFECT):
        names = [name for name, word in by_verdict.items() if word == verdict]
        if names:
            lines.append(f"- {verdict}: {', '.join(names)}.")
    lines.append(f"- {_interaction_words(study, model, metric)}")
    if len(found.values[0]) > 1:
        lines.append(f"- {_half_words(study, model, metric)}")
    if indices.num_left_out:
        total = indices.num_left_out + indices.num_rows
        lines.append(
            f"- {indices.num_left_out} of {total} rows left out, since a run failed there."
        )
    return lines


def _why_missing(values: np.ndarray, num_points: int) -> str:
    if len(values) < 0.8 * num_points:
        return f"no indices, since only {len(values)} of {num_points} points have a figure."
    return f"no parameter has any effect; it is {shown(_rounded(float(values[0])))} everywhere."


def _effect_words(study: SensitivityStudy, model: str, metric: str, name: str) -> str:
    """Indices of one parameter, and where the metric is low and high along it."""
    place = study.names.index(name)
    found = study.findings[model]
    indices, effect = found.sobol[metric], found.effects[place]
    along = effect.mean[study.metrics.index(metric)]
    dimension = study.dimensions[place]
    least, most = int(np.nanargmin(along)), int(np.nanargmax(along))
    ends = [
        f"{shown(_rounded(float(along[level])))}{_unit(metric)} at "
        f"{value_words(dimension.at(float(effect.shares[level])))}"
        for level in (least, most)
    ]
    return (
        f"total {interval_words(indices.total[place])}, alone "
        f"{interval_words(indices.first[place])}; on average {ends[0]}, {ends[1]}."
    )


def _interaction_words(study: SensitivityStudy, model: str, metric: str) -> str:
    indices = study.findings[model].sobol[metric]
    alone = float(np.clip(indices.first[:, 0].sum(), 0, 1))
    words = f"single parameters explain {100 * alone:.0f} % of the variance"
    pairs = [
        (float(indices.second[one, other, 0]), one, other)
        for one in range(len(study.names))
        for other in range(one + 1, len(study.names))
        if indices.second[one, other, 1] > max(float(indices.dummy[2]), 0.0)
    ]
    if not pairs:
        rows = indices.num_rows
        return f"{words}; {rows} rows show no pair that acts together beyond noise."
    shares = [
        f"{study.names[one]} with {study.names[other]} {interval_words(indices.second[one, other])}"
        for _, one, other in sorted(pairs, reverse=True)[:3]
    ]
    return f"{words}; together act {', '.join(shares)}."


def _half_words(study: SensitivityStudy, model: str, metric: str) -> str:
    """How far the indices depend on which seeds were drawn."""
    indices = study.findings[model].sobol[metric]
    halves = indices.halves
    change = np.abs(halves[0, :, 0] - halves[1, :, 0])
    is_strong = verdicts(study, model, metric)
    apart = [
        name
        for place, name in enumerate(study.names)
        if is_strong[name] == MATTERS and not do_meet(halves[0, place], halves[1, place])
    ]
    dummy = f"a dummy gets {interval_words(indices.dummy)}"
    if not np.isfinite(change).all():
        return f"{dummy}; on half of the seeds it does not vary."
    largest = study.names[int(change.argmax())]
    words = f"the two halves of the seeds differ by at most {change.max():.3f} ({largest})"
    return f"{dummy}; {words}" + (
        f", beyond their intervals: {', '.join(apart)}." if apart else "."
    )


def range_lines(study: SensitivityStudy) -> list[str]:
    """A table of where the best scores are."""
    lines = [
        "Where the best 5 % of the points by the strategy's own score (objectives and penalties) have "
        "each parameter: the middle nine tenths of them, both ends with intervals.",
        "",
        "| parameter | searched | best points between | and | best point | where |",
        "|---|---|---|---|---|---|",
    ]
    for dimension, one in zip(study.dimensions, study.ranges, strict=True):
        if dimension.kind == "categorical":
            shares = [
                f"{100 * share:.0f} % have {value_words(value)}"
                for value, share in zip(dimension.categories, one.shares, strict=True)
            ]
            lines.append(
                f"| {one.parameter} | {', '.join(map(value_words, dimension.categories))} | "
                f"{', '.join(shares)} | | {value_words(one.best)} | |"
            )
            continue
        ends = [
            f"{value_words(end[0])} [{value_words(end[1])}, {value_words(end[2])}]"
            for end in (one.low, one.high)
        ]
        searched = f"{value_words(dimension.low)} to {value_words(dimension.high)}"
        lines.append(
            f"| {one.parameter} | {searched} | {ends[0]} | {ends[1]} | {value_words(one.best)} | "
            f"{_where_words(one)} |"
        )
    return lines


def _where_words(one: BestRange) -> str:
    if one.where == ANYWHERE:
        return "anywhere: no preference seen"
    return "inside" if one.where == INSIDE else f"reaches the {one.where}"


def agreement_lines(study: SensitivityStudy) -> list[str]:
    """Total indices of both models, and how many have a value in common, tested both ways."""
    found = agreements(study, SIMULATOR, SURROGATE)
    if not found:
        return ["The two models have no metric with indices in common."]
    lines = [
        f"Of {len(found)} pairs of metric and parameter the bootstrap intervals of both models' total "
        f"indices meet for {sum(one.do_meet for one in found.values())}. The bootstrap does not know of "
        "other seeds in the simulator and other members in the surrogate; with the lower ends lowered "
        "by what a dummy gets from these, the intervals meet for "
        f"{sum(one.do_meet_with_noise for one in found.values())}.",
        "",
        "| metric | parameter | simulator | surrogate | meet | simulator, lowered | surrogate, lowered "
        "| meet |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (metric, name), one in found.items():
        cells = [metric, name, *agreement_cells(one)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def agreement_cells(one: Agreement) -> list[str]:
    """Both indices with the bootstrap's intervals, whether these meet; the lowered ones, and the same."""
    return [
        *(interval_words(figures) for figures in one.bootstrap),
        YES_NO[one.do_meet],
        *(ends_words(figures) for figures in one.with_noise),
        YES_NO[one.do_meet_with_noise],
    ]


def _legend(study: SensitivityStudy) -> list[str]:
    percent = f"{100 * study.resampling.confidence:g} %"
    return [
        "A total index is the share of a metric's variance over the space that would be gone if the "
        "parameter were fixed; alone (first order) is the share that it explains without the others. "
        f"In brackets: {percent} bootstrap intervals over the rows of the design, for each index by "
        "itself. A dummy parameter does nothing but draw new seeds. A parameter counts as noise if its "
        "interval reaches down to what the dummy gets. With fixed seeds the simulator is deterministic; "
        "the two halves of the seeds show how much the indices depend on the seeds. Estimates from few "
        "rows can lie above 1 or below 0; their interval then says how little they are worth. A range "
        "that ends at a bound may continue beyond it.",
    ]


def plan_words(num_points: int, num_seeds: int, sizes: Sizes) -> str:
    """The size of a study."""
    return (
        f"At most {num_points:,} points × {num_seeds} seeds: Saltelli with {sizes.base} rows, "
        f"{sizes.trajectories} Morris trajectories, derivatives at {sizes.gradients} points, effects "
        f"at {sizes.levels} levels over {sizes.bases} points."
    )


def value_words(value: object) -> str:
    """A parameter's value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return shown(value) if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _unit(metric: str) -> str:
    unit = lookup(metric)[0].unit
    return "" if unit == "1" else f" {unit}"
