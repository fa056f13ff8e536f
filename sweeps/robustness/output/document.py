"""What a robustness map says, for programs: one JSON document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from sklearn.model_selection import KFold, cross_val_score
from sklearn.tree import DecisionTreeClassifier

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
from blis_jax.reports.words import joined, metric_words
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.cells import BY_NAME, kinds_in
from sweeps.robustness.output.figure import MapView, picture, runs_of
from sweeps.robustness.output.report import (
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
from sweeps.robustness.verdict import NONE, NUM_RESAMPLES, REASONS, inference_of

if TYPE_CHECKING:
    from sweeps.robustness.parts import MapTiming
    from sweeps.robustness.plan import Question


# --- rules that tell regimes apart ---------------------------------------------------------------


DEPTH = 3
NUM_FOLDS = 5
FEWEST_CELLS = 10  # below it a tree says nothing that the cells do not
SMALLEST_SHARE = 100  # a leaf holds at least one cell in so many, and two
_MORE = "≥"
_LESS = "<"


@dataclass(frozen=True)
class RuleCondition:
    """A bound on a number (`≥` or `<`), or a text that is (`is`) or is not (`is not`) a value."""

    axis: str
    sign: str
    value: str | float

    def __str__(self) -> str:
        return f"{self.axis} {self.sign} {shown(self.value)}"


@dataclass(frozen=True)
class MapRule:
    """A leaf of the tree: the regime, what most of its cells have, and how many have what."""

    where: tuple[RuleCondition, ...]
    label: str
    counts: Mapping[str, int]

    @property
    def num_cells(self) -> int:
        """Return the number of cells in the regime."""
        return sum(self.counts.values())

    @property
    def num_right(self) -> int:
        """Return the number of the regime's cells that have the label."""
        return self.counts[self.label]

    def words(self) -> str:
        """Describe the regime in words; `everywhere` if it has no bounds."""
        return " and ".join(map(str, self.where)) or "everywhere"


@dataclass(frozen=True)
class Rules:
    """A tree as its leaves, largest first, with its accuracy on cells that it has not seen."""

    leaves: tuple[MapRule, ...]
    accuracy: float  # mean over the folds; NaN if there are too few cells
    accuracy_of_most_frequent: float  # of always saying the most frequent label
    depth: int
    num_folds: int


def rules_of(
    places: xr.Dataset, labels: Sequence[str], depth: int = DEPTH, random_state: int = 0
) -> Rules:
    """Fit the decision tree that tells the labels of the cells apart by their axes."""
    names = np.asarray(labels, str)
    features, columns = _features(places)
    most = max(Counter(names.tolist()).values(), default=0) / max(len(names), 1)
    if len(names) < FEWEST_CELLS or len(set(names)) < 2 or not columns:
        counts = Counter(names.tolist())
        label = counts.most_common(1)[0][0] if counts else ""
        everywhere = (MapRule((), label, counts),) if counts else ()
        return Rules(everywhere, float("nan"), most, 0, 0)
    tree = _classifier(depth, len(names), random_state).fit(features, names)
    leaves = _leaves(tree.tree_, features, names, columns, 0, np.ones(len(names), bool), ())
    ordered = sorted(leaves, key=lambda rule: -rule.num_cells)
    folds = min(NUM_FOLDS, len(names))
    accuracy = _accuracy(features, names, depth, random_state, folds)
    return Rules(tuple(ordered), accuracy, most, depth, folds)


def _classifier(depth: int, num_cells: int, random_state: int) -> Any:
    fewest = max(2, num_cells // SMALLEST_SHARE)
    return DecisionTreeClassifier(
        max_depth=depth, min_samples_leaf=fewest, random_state=random_state
    )


def _accuracy(
    features: np.ndarray, labels: np.ndarray, depth: int, random_state: int, num_folds: int
) -> float:
    folds = KFold(num_folds, shuffle=True, random_state=random_state)
    tree = _classifier(depth, len(labels), random_state)
    return float(np.mean(cross_val_score(tree, features, labels, cv=folds)))


_Column = tuple[str, Any]  # the axis, and the value that a text has or has not, None for numbers


def _features(places: xr.Dataset) -> tuple[np.ndarray, list[_Column]]:
    """Return numbers as they are, one column for each value of a text; axes that vary only."""
    columns: list[_Column] = []
    arrays = []
    for kind in kinds_in(places.coords):
        values = places[kind.name].values
        distinct = np.unique(values)
        if len(distinct) < 2:
            continue
        if kind.is_text:
            for value in distinct.tolist():
                columns.append((kind.name, value))
                arrays.append((values == value).astype(float))
        else:
            columns.append((kind.name, None))
            arrays.append(values.astype(float))
    return (np.stack(arrays, axis=1) if arrays else np.zeros((len(places["cell"]), 0))), columns


def _leaves(
    tree: Any,
    features: np.ndarray,
    labels: np.ndarray,
    columns: Sequence[_Column],
    node: int,
    here: np.ndarray,
    where: tuple[RuleCondition, ...],
) -> list[MapRule]:
    """Return the leaves below a node; two that say the same are one."""
    if tree.children_left[node] == -1:
        return [_rule(where, labels[here])]
    column, threshold = int(tree.feature[node]), float(tree.threshold[node])
    is_left = features[:, column].astype(np.float32) <= threshold
    below, above = _conditions(columns[column], features[here, column], threshold)
    sides = (
        (tree.children_left[node], here & is_left, below),
        (tree.children_right[node], here & ~is_left, above),
    )
    children = [
        _leaves(tree, features, labels, columns, child, cells, _with(where, condition))
        for child, cells, condition in sides
    ]
    said = {rule.label for rules in children for rule in rules}
    return [_rule(where, labels[here])] if len(said) == 1 else children[0] + children[1]


def _rule(where: tuple[RuleCondition, ...], labels: np.ndarray) -> MapRule:
    counts = Counter(labels.tolist())
    return MapRule(where, counts.most_common(1)[0][0], dict(counts.most_common()))


def _conditions(
    column: _Column, values: np.ndarray, threshold: float
) -> tuple[RuleCondition, RuleCondition]:
    """Return what holds below and above a threshold, which is told by the next value that occurs."""
    axis, text = column
    if text is not None:
        return RuleCondition(axis, "is not", text), RuleCondition(axis, "is", text)
    bound = float(values[values.astype(np.float32) > threshold].min())
    value = int(bound) if BY_NAME[axis].is_whole else bound
    return RuleCondition(axis, _LESS, value), RuleCondition(axis, _MORE, value)


def _with(where: tuple[RuleCondition, ...], added: RuleCondition) -> tuple[RuleCondition, ...]:
    """Return the conditions with one more; it replaces a looser one on the same side of the axis."""
    is_bound = added.sign in (_LESS, _MORE)
    kept = [
        one for one in where if not (is_bound and (one.axis, one.sign) == (added.axis, added.sign))
    ]
    return (*kept, added)


def shown(value: str | float) -> str:
    """Return a value of an axis: a number with at most six digits and its thousands apart, a text as it is."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e5 else f"{value:,.6g}"


# --- what a robustness map says, for programs: one JSON document ---------------------------------


def findings_of(
    verdicts: xr.Dataset, rules: Rules, timing: MapTiming | None = None, view: MapView | None = None
) -> Findings:
    """Return what a map says, for every output; `timing` is what making it took, `view` what its picture shows."""
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
            Remarks(tuple(failures), is_brief=bool(verdicts["has_failed"].values.any())),
            Remarks(tuple(map(said, others))),
            _axis_table(verdicts),
        ),
        () if view is None else (picture(verdicts, view),),
    )


def map_answer(verdicts: xr.Dataset, timing: MapTiming | None = None) -> Answer:
    """Return the five lines of a map."""
    first, *others = map(str, verdicts["strategy"].values)
    total, counts = verdicts.sizes["cell"], Counter(verdicts["recommended"].values.tolist())
    parts: list[str | Quantity] = []
    for label in labels_of(verdicts):
        if counts[label] or label in (first, *others):
            words = f"{label} in " if label not in (NONE, UNDECIDED) else f"{label}: "
            parts += [", " * bool(parts), words, Quantity.whole(counts[label])]
    num_runs = int(verdicts["num_runs"].values.sum())
    verb = "Do" if len(others) > 1 else "Does"
    time = None
    if timing is not None and timing.num_runs:
        time = Sentence.of(
            Quantity.whole(timing.num_runs), " now, in ", Quantity(timing.run_s, like=10.0), " s."
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
    """Return recommendations counted by the values of each axis."""
    table = by_axis(verdicts)
    rows = []
    for record in table.to_dict("records"):
        cells: list[Cell] = [str(record["axis"]), shown(record["value"])]
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
    """Return where a map's numbers come from."""
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
