"""The findings of a sensitivity study, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from blis_jax.metrics.scalars import lookup
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.words import NOTHING, metric_words, unit_text
from sweeps.robustness.rules import shown
from sweeps.sensitivity.effects import ANYWHERE, INSIDE, BestRange
from sweeps.sensitivity.figure import pictures
from sweeps.sensitivity.indices import (
    MATTERS,
    NO_EFFECT,
    NOISE,
    Agreement,
    TotalIndices,
    verdict,
)
from sweeps.sensitivity.model import SIMULATOR, SURROGATE, Sizes
from sweeps.sensitivity.study import (
    SensitivityStudy,
    agreements,
    influential,
    unsettled,
    verdicts,
)
from sweeps.sensitivity.words import (
    effect_words,
    ends_words,
    half_words,
    interaction_words,
    interval_words,
    rounded,
    value_words,
)

MARK = "*"  # behind an index that matters
YES_NO = {True: "yes", False: "no"}


def findings_of(
    study: SensitivityStudy,
    strategy: str,
    failures: Mapping[str, int],
    num_runs: int,
    about: str = "",
    cluster: str = "",
) -> Findings:
    """Return the answer, the parameters that matter, and every index; `about` describes the runs, made on `cluster`."""
    said = study.runs.in_text
    sections = [
        replace(section, lines=tuple(map(said, section.lines)))
        if isinstance(section, Remarks)
        else section
        for section in _sections(study, failures, about)
    ]
    return Findings(
        replace(_answer(study, strategy, num_runs), cluster=cluster),
        sections,
        pictures(study, strategy),
    )


def _sections(
    study: SensitivityStudy, failures: Mapping[str, int], about: str
) -> Iterator[Table | Remarks]:
    yield Remarks((about,) if about else ())
    yield Remarks(failure_lines(failures), is_brief=True)
    for model in study.findings:
        by = f", by the {model}" * (len(study.findings) > 1)
        yield Remarks(tuple(_overview(study, model)), f"What matters{by}", is_brief=True)
        for metric in study.metrics:
            yield Remarks(tuple(metric_lines(study, model, metric)), metric_words(metric) + by)
        yield Remarks(tuple(region_lines(study, model)), f"Where people tune{by}")
        yield region_table(study, model)
    if len(study.findings) > 1:
        yield from _agreement(study)
    if study.ranges:
        yield from _ranges(study)
    yield Remarks(tuple(_legend(study)), "How to read this")


def failure_lines(failures: Mapping[str, int]) -> tuple[str, ...]:
    """Return lines with the number of runs that did not finish, by outcome."""
    words = ", ".join(f"{count} × {name}" for name, count in failures.items())
    left_out = f"Runs that did not finish: {words}. Rows with such a run are left out."
    return (left_out,) if failures else ()


def _answer(study: SensitivityStudy, strategy: str, num_runs: int) -> Answer:
    """Return the answer; its verdict names for each metric the parameters that matter, the strongest first."""
    model = next(iter(study.findings))
    sentences = [
        Sentence.of(f"{metric_words(name)}: {_named(study, model, name)}.")
        for name in study.metrics
        if name in study.findings[model].sobol
    ]
    level = f"{100 * study.resampling.confidence:g} %"
    return Answer(
        asked=f"Which of {len(study.names)} parameters of {strategy} matter, and for which metric?",
        verdict=tuple(sentences) or (Sentence.of("no metric varies over the space."),),
        sure=Sentence.of(
            f"{level} for each index by itself (bootstrap), against what a dummy parameter gets."
        ),
        price=Sentence.of("at most ", Quantity.whole(num_runs), " runs."),
        next=f"blis-jax optimize {strategy} tunes what matters.",
    )


def _named(study: SensitivityStudy, model: str, metric: str) -> str:
    """Return the parameters that matter for a metric, and those that more rows would settle, as text."""
    strong, still = _strong(study, model, metric), unsettled(study, model, metric)
    words = ", ".join(strong) or ("none told" if still else "none")
    return f"{words}; open, give more --base: {', '.join(still)}" if still else words


def _strong(study: SensitivityStudy, model: str, metric: str) -> list[str]:
    """Return the parameters that matter for a metric, the strongest first."""
    indices = study.findings[model].sobol[metric]
    by_verdict = verdicts(study, model, metric)
    names = [name for name, verdict in by_verdict.items() if verdict == MATTERS]
    return sorted(names, key=lambda name: -indices.total[study.names.index(name), 0])


def _overview(study: SensitivityStudy, model: str) -> list[str]:
    strong = influential(study, model)
    seen = {name for metric in study.metrics for name in unsettled(study, model, metric)}
    still = [name for name in study.names if name in seen and name not in strong]
    weak = [name for name in study.names if name not in (*strong, *still)]
    if not study.findings[model].sobol:
        return ["No metric varies over the space, so there is nothing to attribute."]
    lines = [
        "Matter for some metric, on either scale, in the whole space or a region below, most first: "
        f"{', '.join(strong) or 'none'}."
    ]
    if still:
        lines.append(
            f"Open: {', '.join(still)}. Steps of it move a metric more than new seeds do, and these rows do not tell "
            "its share of the variance from noise; give more --base."
        )
    if weak:
        where = ", the whole space and every region below" if study.regions else ""
        lines.append(
            f"Screened out (for no metric beyond seed noise, on either scale{where}): "
            f"{', '.join(weak)}."
        )
    return lines


def metric_lines(study: SensitivityStudy, model: str, metric: str) -> list[str]:
    """Return sentences on one metric: parameters that matter, their effects, idle ones, interactions, other seeds."""
    indices_of_model = study.findings[model]
    place = study.metrics.index(metric)
    values = indices_of_model.values[..., place].mean(axis=1)
    values = values[np.isfinite(values)]
    if metric not in indices_of_model.sobol:
        return [_why_missing(values, len(indices_of_model.values))]
    low, middle, high = np.percentile(values, (5, 50, 95))
    unit = unit_text(lookup(metric)[0].unit)
    lines = [
        f"median {shown(rounded(middle))}{unit} over the space, 5th to 95th percentile "
        f"{shown(rounded(low))} to {shown(rounded(high))}{unit}"
    ]
    by_verdict = verdicts(study, model, metric)
    indices = indices_of_model.sobol[metric]
    for name in _strong(study, model, metric):
        lines.append(f"{name}: {effect_words(study, model, metric, name)}")
    for kind in (NOISE, NO_EFFECT):
        names = [name for name, word in by_verdict.items() if word == kind]
        if names:
            lines.append(f"{kind}: {', '.join(names)}.")
    lines.append(interaction_words(study, model, metric))
    if len(indices_of_model.values[0]) > 1:
        lines.append(half_words(study, model, metric))
    if indices.num_left_out:
        total = indices.num_left_out + indices.num_rows
        lines.append(f"{indices.num_left_out} of {total} rows left out, since a run failed there.")
    return lines


def _why_missing(values: np.ndarray, num_points: int) -> str:
    if len(values) < 0.8 * num_points:
        return f"no indices, since only {len(values)} of {num_points} points have a figure."
    return f"no parameter has any effect; it is {shown(rounded(float(values[0])))} everywhere."


def _ranges(study: SensitivityStudy) -> Iterator[Table | Remarks]:
    """Yield the table of the best points' ranges."""
    about = (
        "Where the best 5 % of the points by the strategy's own score (objectives and penalties) have "
        "each parameter: the middle nine tenths of them, both ends with intervals."
    )
    yield Remarks((about,), "Best ranges")
    rows = []
    for dimension, best_range in zip(study.dimensions, study.ranges, strict=True):
        if dimension.kind == "categorical":
            shares = [
                f"{100 * share:.0f} % have {value_words(value)}"
                for value, share in zip(dimension.categories, best_range.shares, strict=True)
            ]
            searched = ", ".join(map(value_words, dimension.categories))
            cells = (
                best_range.parameter,
                searched,
                ", ".join(shares),
                "",
                value_words(best_range.best),
                "",
            )
        else:
            low, high = (
                f"{value_words(end[0])} [{value_words(end[1])}, {value_words(end[2])}]"
                for end in (best_range.low, best_range.high)
            )
            searched = f"{value_words(dimension.low)} to {value_words(dimension.high)}"
            best = value_words(best_range.best)
            cells = (best_range.parameter, searched, low, high, best, _where_words(best_range))
        rows.append(Row(cells, is_brief=False))
    columns = ("parameter", "searched", "best points between", "and", "best point", "where")
    yield Table(columns, tuple(rows))


def _where_words(best_range: BestRange) -> str:
    if best_range.where == ANYWHERE:
        return "anywhere: no preference seen"
    return "inside" if best_range.where == INSIDE else f"reaches the {best_range.where}"


def _agreement(study: SensitivityStudy) -> Iterator[Table | Remarks]:
    """Yield the table of both models' total indices, and how many overlap, with and without noise."""
    title, by_pair = "Simulator and surrogate", agreements(study, SIMULATOR, SURROGATE)
    if not by_pair:
        yield Remarks(("The two models have no metric with indices in common.",), title)
        return
    about = (
        f"Of {len(by_pair)} pairs of metric and parameter the bootstrap intervals of both models' total "
        f"indices meet for {sum(agreement.do_meet for agreement in by_pair.values())}. The bootstrap does not know of "
        "other seeds in the simulator and other members in the surrogate; with the lower ends lowered "
        "by what a dummy gets from these, the intervals meet for "
        f"{sum(agreement.do_meet_with_noise for agreement in by_pair.values())}."
    )
    yield Remarks((about,), title)
    columns = (
        "metric", "parameter", "simulator", "surrogate", "meet", "simulator, lowered", "surrogate, lowered", "meet",
    )  # fmt: skip
    rows = [
        Row((metric, name, *agreement_cells(agreement)), is_brief=False)
        for (metric, name), agreement in by_pair.items()
    ]
    yield Table(columns, tuple(rows), num_keys=2)


def agreement_cells(agreement: Agreement) -> list[str]:
    """Return table cells: both indices' bootstrap intervals and whether these overlap, then the same for lowered
    ones."""
    return [
        *(interval_words(figures) for figures in agreement.bootstrap),
        YES_NO[agreement.do_meet],
        *(ends_words(figures) for figures in agreement.with_noise),
        YES_NO[agreement.do_meet_with_noise],
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
        "that ends at a bound may continue beyond it."
    ]


def plan_words(num_points: int, num_seeds: int, sizes: Sizes) -> str:
    """Return a sentence on the most points and seeds of a study, by design."""
    return (
        f"At most {num_points:,} points × {num_seeds} seeds: Saltelli with {sizes.base} rows, "
        f"{sizes.trajectories} Morris trajectories, derivatives at {sizes.gradients} points, effects "
        f"at {sizes.levels} levels over {sizes.bases} points."
    )


# --- indices, and those of all regions side by side -----------------------------------------------


def region_lines(study: SensitivityStudy, model: str) -> list[str]:
    """Return lines that explain the columns of the table of regions."""
    return [
        "Total indices of the metric itself and of its logarithm, over the whole space and inside parts "
        "of it. The metric itself says what avoids its largest values; the logarithm counts a change "
        "from 50 to 100 ms like one from 5 to 10 s; a region says what is left to tune there. An index "
        f"with {MARK} matters in its column beyond seed noise.",
        *(
            f"{view.region.name}: {view.region.words(study.dimensions)}"
            for view in study.findings[model].regions[1:]
        ),
    ]


def region_table(study: SensitivityStudy, model: str) -> Table:
    """Return a table of total indices by metric and parameter, with a column for every region and scale."""
    views = study.findings[model].regions
    heads = [
        head for view in views for head in (view.region.name, f"{view.region.name}, logarithm")
    ]
    rows = []
    for metric in study.metrics:
        columns = [by.get(metric) for view in views for by in (view.plain, view.log)]
        for place, name in enumerate(study.names):
            cells = [_cell(indices, place) for indices in columns]
            if any(cell.endswith(MARK) for cell in cells):
                rows.append(Row((metric_words(metric), name, *cells), is_brief=False))
    return Table(("metric", "parameter", *heads), tuple(rows), num_keys=2)


def _cell(indices: TotalIndices | None, place: int) -> str:
    if indices is None:
        return NOTHING
    words = interval_words(indices.total[place])
    return f"{words} {MARK}" if verdict(indices.total[place], indices.dummy) == MATTERS else words
