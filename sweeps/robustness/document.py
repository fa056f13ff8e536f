"""The findings of a robustness map, for programs: one JSON document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from blis_jax.core.outcome import Outcome
from blis_jax.files.atomic_write import finite
from blis_jax.reports.findings import (
    Answer,
    Cell,
    Findings,
    Quantity,
    Remarks,
    Row,
    Sentence,
    Table,
)
from blis_jax.reports.words import joined, limits_lines, metric_words
from sweeps.claims.grammar import parse_constraint
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.cells import BY_NAME
from sweeps.robustness.figure import MapView, picture, runs_of
from sweeps.robustness.report import (
    by_axis,
    cell_table,
    constraint_lines,
    constraints_of,
    effect_lines,
    failure_lines,
    labels_of,
    reversal_lines,
    rule_lines,
    seeds_lines,
)
from sweeps.robustness.rules import Rules, shown
from sweeps.robustness.verdict import NONE, NUM_RESAMPLES, REASONS, inference_of

if TYPE_CHECKING:
    from blis_jax.runs.driver import Timing
    from sweeps.robustness.plan import Question


def findings_of(
    verdicts: xr.Dataset, rules: Rules, timing: Timing | None = None, view: MapView | None = None
) -> Findings:
    """Return the findings of a map for every output; `timing` is the time taken, `view` the axes of the picture."""
    said = runs_of(verdicts.attrs, verdicts.sizes["seed"]).in_text
    failures = [said(line) for line in failure_lines(verdicts)]
    effects = [said(line) for line in effect_lines(verdicts)]
    others = [
        *seeds_lines(verdicts), *constraint_lines(verdicts), *reversal_lines(verdicts),
        *rule_lines(rules)[:1],
    ]  # fmt: skip
    return Findings(
        map_answer(verdicts, timing),
        (
            _regime_table(rules),
            Remarks(tuple(effects), is_brief=True),
            Remarks(_limits(verdicts), is_brief=True),
            Remarks(tuple(failures), is_brief=bool(verdicts["has_failed"].values.any())),
            Remarks(tuple(map(said, others))),
            _axis_table(verdicts),
        ),
        () if view is None else (picture(verdicts, view),),
    )


def _limits(verdicts: xr.Dataset) -> tuple[str, ...]:
    """Return the limits that goodput counts by, if the objective or a constraint is goodput."""
    bounded = (parse_constraint(str(text)).metric for text in verdicts["constraint"].values)
    metrics = (str(verdicts.attrs["objective"]), *bounded)
    return limits_lines(metrics, json.loads(verdicts.attrs.get("slo_targets", "{}")))


def map_answer(verdicts: xr.Dataset, timing: Timing | None = None) -> Answer:
    """Return the map's answer: question, verdict, confidence, price, and what to do next."""
    first, *others = map(str, verdicts["strategy"].values)
    total, counts = verdicts.sizes["cell"], Counter(verdicts["recommended"].values.tolist())
    parts: list[str | Quantity] = []
    for label in labels_of(verdicts):
        if counts[label] or label in (first, *others):
            words = f"{label} in " if label not in (NONE, UNDECIDED) else f"{label}: "
            parts += [", " * bool(parts), words, Quantity.whole(counts[label])]
    is_made = verdicts["ending"].isin([outcome.name.lower() for outcome in Outcome]).values
    num_runs = int(verdicts["num_runs"].values[..., is_made].sum())
    verb = "Do" if len(others) > 1 else "Does"
    time = None
    if timing is not None and timing.num_rows:
        time = Sentence.of(
            Quantity.whole(timing.num_rows), " now, in ", Quantity(timing.run_s, like=10.0), " s."
        )
    return Answer(
        asked=f"{verb} {joined(others)} beat {first} in {metric_words(verdicts.attrs['objective'])}, and where? "
        f"{total:,} cells of load, workload and cluster.",
        verdict=(Sentence.of("best to take: ", *parts, " of ", Quantity.whole(total), " cells."),),
        sure=Sentence.of(
            f"{100 * float(verdicts.attrs['confidence']):g} % in each cell by itself; nothing is corrected for "
            "the number of cells."
        ),
        price=Sentence.of(Quantity.whole(num_runs), " runs."),
        next="--decide adds seeds in the undecided cells."
        if counts[UNDECIDED]
        else "the .csv beside the result has every cell; blis-jax compare looks at one closely.",
        time=time,
        cluster=verdicts.attrs.get("cluster", ""),
    )


def _regime_table(rules: Rules) -> Table:
    rows = tuple(
        Row(
            (
                rule.label,
                rule.words(),
                Quantity.whole(rule.num_right),
                Quantity.whole(rule.num_cells),
            )
        )
        for rule in rules.leaves
        if rule.where
    )
    return Table(("take", "where", "right in", "of cells"), rows)


def _axis_table(verdicts: xr.Dataset) -> Table:
    """Return a table of the number of recommendations by the values of each axis."""
    table = by_axis(verdicts)
    rows = []
    for record in table.to_dict("records"):
        cells: list[Cell] = [BY_NAME[str(record["axis"])].title, shown(record["value"])]
        for name in table.columns[2:]:
            is_change = str(name).endswith("%")
            value = finite(float(record[name]))
            like = None if is_change else 1000.0
            cells.append(Quantity(value, is_signed=is_change, like=like))
        rows.append(Row(tuple(cells), is_brief=False))
    return Table(
        tuple(map(str, table.columns)), tuple(rows), "Recommendations by axis, in cells", num_keys=2
    )


def title_of(verdicts: xr.Dataset) -> str:
    """Return the title of a map's page."""
    first, *others = map(str, verdicts["strategy"].values)
    return f"Where {joined(others)} {'does' if len(others) == 1 else 'do'} better than {first}"


def provenance_of(dataset: xr.Dataset, question: Question) -> dict[str, Any]:
    """Return the provenance of a map's numbers."""
    named = ("package_version", "jax_version", "profile", "device", "created", "design")
    kept = {
        name.replace("_", " "): str(dataset.attrs[name]) for name in named if name in dataset.attrs
    }
    return kept | {
        "objective": question.objective,
        "constraints": ", ".join(map(str, question.constraints)) or "none",
        "seeds": ", ".join(map(str, dataset["seed"].values.tolist())),
    }


def to_document(verdicts: xr.Dataset, rules: Rules, lines: Sequence[str]) -> dict[str, Any]:
    """Return the recommendations as JSON: the answer, by regime, by axis, by cell."""
    attributes = verdicts.attrs
    counts = Counter(verdicts["recommended"].values.tolist())
    reasons = Counter(verdicts["reason"].values.tolist())
    return {
        "answer": map_answer(verdicts).to_json(),
        "strategies": verdicts["strategy"].values.tolist(),
        "objective": attributes["objective"],
        "constraints": constraints_of(verdicts),
        "confidence": attributes["confidence"],
        "seeds": verdicts["seed"].values.tolist(),
        "reference_cell": json.loads(attributes["reference_cell"]),
        "method": {
            "intervals": inference_of(verdicts).method,
            "probability": f"share of {NUM_RESAMPLES} bootstrap resamples of the seeds, the same "
            "for all strategies, in which a strategy is best within the constraints",
            "note": "every cell stands for itself; nothing is corrected for their number",
        },
        "num_cells": verdicts.sizes["cell"],
        "recommended": {label: counts[label] for label in labels_of(verdicts)},
        "reasons": {reason: reasons[reason] for reason in REASONS},
        "summary": list(lines),
        "regimes": {
            "depth": rules.depth,
            "cross_validated_accuracy": finite(rules.accuracy),
            "accuracy_of_most_frequent": finite(rules.accuracy_of_most_frequent),
            "num_folds": rules.num_folds,
            "rules": [
                {
                    "where": [vars(condition) for condition in rule.where],
                    "words": rule.words(),
                    "recommended": rule.label,
                    "num_cells": rule.num_cells,
                    "counts": dict(rule.counts),
                }
                for rule in rules.leaves
            ],
        },
        "by_axis": _records(by_axis(verdicts)),
        "cells": _records(cell_table(verdicts)),
    }


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[Mapping[Any, Any]] = table.to_dict("records")
    return [
        {str(k): finite(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows
    ]
