"""Rules that separate regimes: a shallow decision tree over a map's axes, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from sklearn.model_selection import KFold, cross_val_score
from sklearn.tree import DecisionTreeClassifier

from sweeps.robustness.cells import BY_NAME, kinds_in

DEPTH = 3
NUM_FOLDS = 5
FEWEST_CELLS = 10  # below it a tree says nothing that the cells do not
SMALLEST_SHARE = 100  # a leaf holds at least one cell in so many, and two
_MORE = "≥"
_LESS = "<"


@dataclass(frozen=True)
class RuleCondition:
    """A condition: a bound on a number (`≥` or `<`), or a text that is (`is`) or is not (`is not`) a value."""

    axis: str
    sign: str
    value: str | float

    def __str__(self) -> str:
        return BY_NAME[self.axis].said(f"{self.sign} {shown(self.value)}")


@dataclass(frozen=True)
class MapRule:
    """A leaf of the tree: the regime, the label of most of its cells, and the number of cells by label."""

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
    """A tree as its leaves, the largest first, with its accuracy on cells left out of the fit."""

    leaves: tuple[MapRule, ...]
    accuracy: float  # mean over the folds; NaN if there are too few cells
    accuracy_of_most_frequent: float  # of always saying the most frequent label
    depth: int
    num_folds: int


def rules_of(
    places: xr.Dataset, labels: Sequence[str], depth: int = DEPTH, random_state: int = 0
) -> Rules:
    """Fit the decision tree that predicts the cells' labels from their axes."""
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
    """Return features: numbers as they are, one column for each value of a text; only axes that vary."""
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
    """Return the leaves below a node; two leaves with the same label are merged."""
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
    """Return the conditions below and above a threshold, which is stated as the next larger value in the cells."""
    axis, text = column
    if text is not None:
        return RuleCondition(axis, "is not", text), RuleCondition(axis, "is", text)
    bound = float(values[values.astype(np.float32) > threshold].min())
    value = int(bound) if BY_NAME[axis].is_whole else bound
    return RuleCondition(axis, _LESS, value), RuleCondition(axis, _MORE, value)


def _with(where: tuple[RuleCondition, ...], added: RuleCondition) -> tuple[RuleCondition, ...]:
    """Return the conditions with one more, in place of any earlier bound on the same side of the axis."""
    is_bound = added.sign in (_LESS, _MORE)
    kept = [
        condition
        for condition in where
        if not (is_bound and (condition.axis, condition.sign) == (added.axis, added.sign))
    ]
    return (*kept, added)


def shown(value: str | float) -> str:
    """Return a value of an axis as text: a number with at most six digits and separated thousands, a text unchanged."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e5 else f"{value:,.6g}"
