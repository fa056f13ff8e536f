"""The findings of a robustness map, for people and programs: sentences, counts by axis, JSON, one row per cell."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from blis_jax.metrics.scalars import lookup
from blis_jax.reports.words import metric_words
from blis_jax.statistics import paired
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.cells import BY_NAME, kinds_in
from sweeps.robustness.figure import constraint_words
from sweeps.robustness.rules import Rules, rules_of, shown
from sweeps.robustness.store import is_done
from sweeps.robustness.verdict import NONE, ONLY_RUNNING, inference_of, reference_index, reversals

DIGITS = 6  # of the numbers in the table of cells
MOST_RULES = 3  # said of a constraint or of reversals
FEWEST_TOLD = 2  # cells whose regime is told
_WHERE_DEPTH = 2  # of trees that say where something happens


def labels_of(verdicts: xr.Dataset) -> tuple[str, ...]:
    """Return the possible recommendations of a cell: the strategies, undecided, none."""
    return (*map(str, verdicts["strategy"].values), UNDECIDED, NONE)


def recommendation_rules(verdicts: xr.Dataset, depth: int) -> Rules:
    """Return the decision tree that gives the recommendation in each regime."""
    labels = verdicts["recommended"].values.astype(str).tolist()
    return rules_of(verdicts, labels, depth, int(verdicts.attrs["random_state"]))


def by_axis(verdicts: xr.Dataset) -> pd.DataFrame:
    """Count the cells by axis, value and recommendation, with the median change of every other strategy."""
    labels = labels_of(verdicts)
    chosen = verdicts["recommended"].values
    rows = []
    for kind in kinds_in(verdicts.coords):
        values = verdicts[kind.name].values
        for value in dict.fromkeys(sorted(values.tolist(), key=None if not kind.is_text else str)):
            is_here = values == value
            counts = Counter(chosen[is_here].tolist())
            row: dict[str, Any] = {"axis": kind.name, "value": value, "cells": int(is_here.sum())}
            row |= {label: counts[label] for label in labels}
            changes = verdicts["change_percent"].values[is_here]
            for place, name in enumerate(labels[: verdicts.sizes["strategy"]]):
                if place:
                    row[f"median change of {name}, %"] = _median(changes[:, place])
            rows.append(row)
    return pd.DataFrame(rows)


def cell_table(verdicts: xr.Dataset) -> pd.DataFrame:
    """Return a table with one row per cell: axes, means of every strategy, changes with intervals, recommendation."""
    columns: dict[str, Any] = {
        kind.name: verdicts[kind.name].values for kind in kinds_in(verdicts.coords)
    }
    objective = verdicts.attrs["objective"]
    metrics = [text.replace("<=", ">=").split(">=")[0] for text in constraints_of(verdicts)]
    for place, name in enumerate(verdicts["strategy"].values.tolist()):
        columns[f"{name}: {objective}"] = verdicts["objective"].values[:, place]
        for bound, metric in enumerate(metrics):
            values = verdicts["constraint_value"].values[:, place, bound]
            columns.setdefault(f"{name}: {metric}", values)
        if place:
            columns[f"{name}: change %"] = verdicts["change_percent"].values[:, place]
            columns[f"{name}: low %"] = verdicts["change_percent_low"].values[:, place]
            columns[f"{name}: high %"] = verdicts["change_percent_high"].values[:, place]
        columns[f"{name}: p(best)"] = verdicts["probability_best"].values[:, place]
        columns[f"{name}: breaks"] = _broken(verdicts, place)
        columns[f"{name}: failures"] = _failures(verdicts, place)
    columns["recommended"] = verdicts["recommended"].values
    columns["reason"] = verdicts["reason"].values
    columns["reversed pairs"] = reversals(verdicts)
    table = pd.DataFrame(columns)
    numbers = table.select_dtypes("float").columns
    table[numbers] = table[numbers].map(lambda value: float(f"{value:.{DIGITS}g}"))
    return table


def constraints_of(verdicts: xr.Dataset) -> list[str]:
    """Return the constraints as the user gave them."""
    return [str(text) for text in verdicts["constraint"].values]


def _broken(verdicts: xr.Dataset, arm: int) -> list[str]:
    """Return by cell the constraints that a strategy breaks."""
    names = np.array(constraints_of(verdicts), object)
    kept = verdicts["is_kept"].values[:, arm]
    failed = verdicts["has_failed"].values[:, arm]
    return [
        " ".join(names[~row]) if not fails else "" for row, fails in zip(kept, failed, strict=True)
    ]


def _failures(verdicts: xr.Dataset, arm: int) -> list[str]:
    """Return by cell the outcomes of a strategy's runs, where it fails."""
    endings = verdicts["ending"].values.tolist()
    rows = zip(
        verdicts["num_runs"].values[:, arm], verdicts["has_failed"].values[:, arm], strict=True
    )
    return [
        " ".join(f"{name}:{count}" for name, count in zip(endings, counts, strict=True) if count)
        if failed
        else ""
        for counts, failed in rows
    ]


def differences(dataset: xr.Dataset, metrics: Sequence[str] | None = None) -> xr.Dataset:
    """Compare every metric of every strategy with the first strategy's, paired by seed: change, interval, verdict.

    The Dataset is over cell, strategy (without the first) and SLO class; `absolute` is in the metric's unit, `percent`
    in % of the first strategy's mean, each as mean, low and high. See `judged`.
    """
    dataset = dataset.isel(cell=np.flatnonzero(is_done(dataset)))
    table = xr.Dataset(coords=dataset.coords).isel(strategy=slice(1, None))
    table.attrs = dict(dataset.attrs)
    table.attrs["first"] = str(dataset["strategy"].values[0])
    table.attrs["intervals"] = inference_of(dataset).method
    table.coords["figure"] = ["mean", "low", "high"]
    for name in _asked(dataset, metrics):
        values, dims = _by_strategy(dataset, name)
        size = (values.shape[0], values.shape[1] - 1, *values.shape[2:-1])
        for kind, unit in (("absolute", lookup(name)[0].unit), ("percent", "%")):
            nothing = np.full((*size, 3), np.nan)
            table[f"{name}_{kind}"] = ((*dims, "figure"), nothing, {"units": unit})
        table[f"{name}_verdict"] = (dims, np.full(size, "", object))
    for cell, of_cell in enumerate(judged(dataset, metrics)):
        for (name, *index), difference in of_cell.items():
            at = (cell, *index)
            for kind, of in (("absolute", difference.absolute), ("percent", difference.percent)):
                table[f"{name}_{kind}"].values[at] = of.mean, of.low, of.high
            table[f"{name}_verdict"].values[at] = difference.verdict
    return table


def judged(
    dataset: xr.Dataset, metrics: Sequence[str] | None = None
) -> Iterator[dict[tuple[Any, ...], paired.Difference]]:
    """Yield each cell's differences by metric, strategy (0 is the second strategy) and index of the SLO class, if any.

    Failed runs are left out. All verdicts of a cell hold at once (Holm), by the inference used for the map's
    recommendations. All differences of a map are judged here.
    """
    columns = [(name, _by_strategy(dataset, name)[0]) for name in _asked(dataset, metrics)]
    for cell in range(dataset.sizes["cell"]):
        pairs = {
            (name, arm - 1, *index): paired.Pair(
                values[(cell, 0, *index)], values[(cell, arm, *index)], lookup(name)[0].direction
            )
            for name, values in columns
            for arm in range(1, values.shape[1])
            for index in np.ndindex(*values.shape[2:-1])
        }
        differences_of_cell = paired.differences(list(pairs.values()), inference_of(dataset))
        yield dict(zip(pairs, differences_of_cell, strict=True))


def _asked(dataset: xr.Dataset, metrics: Sequence[str] | None) -> Sequence[str]:
    every = [str(name) for name in dataset.data_vars if _is_metric(dataset, str(name))]
    return every if metrics is None else metrics


def _by_strategy(dataset: xr.Dataset, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return a metric's values `[cell, strategy, …, seed]`, and the names of all axes but the last."""
    inner = [str(dim) for dim in dataset[name].dims if dim == "slo_class"]
    dims = ("cell", "strategy", *inner)
    return dataset[name].transpose(*dims, "seed").values, dims


def _is_metric(dataset: xr.Dataset, name: str) -> bool:
    return "units" in dataset[name].attrs and dataset[name].dtype.kind == "f"


# --- words ----------------------------------------------------------------------------------------


def summary_lines(verdicts: xr.Dataset, rules: Rules) -> list[str]:
    """Return sentences that summarise the map's findings."""
    lines = [_counts_line(verdicts), *seeds_lines(verdicts)]
    lines += effect_lines(verdicts)
    lines += constraint_lines(verdicts)
    lines += failure_lines(verdicts)
    lines += reversal_lines(verdicts)
    lines += rule_lines(rules)
    return lines


def _counts_line(verdicts: xr.Dataset) -> str:
    total = verdicts.sizes["cell"]
    counts = Counter(verdicts["recommended"].values.tolist())
    parts = [
        f"{label} {counts[label]:,} ({_share(counts[label], total)})"
        for label in labels_of(verdicts)[:-2]
    ]
    parts.append(f"undecided {counts[UNDECIDED]:,} ({_share(counts[UNDECIDED], total)})")
    parts.append(f"none usable {counts[NONE]:,} ({_share(counts[NONE], total)})")
    return f"Recommendations in {total:,} cells: {', '.join(parts)}."


def seeds_lines(verdicts: xr.Dataset) -> list[str]:
    """Return sentences on the numbers of seeds that cells were run on, if a stopping rule decided these."""
    if "stopping" not in verdicts.attrs:
        return []
    counts = Counter(verdicts["num_seeds"].values.tolist())
    most = verdicts.sizes["seed"]
    parts = [f"{count} seeds in {counts[count]:,} cells" for count in sorted(counts)]
    return [
        f"Seeds were added in a cell until the rule had enough, at most {most}: {', '.join(parts)}."
    ]


def effect_lines(verdicts: xr.Dataset) -> list[str]:
    """Return sentences on the change of each strategy against the first, regardless of constraints."""
    first, *others = labels_of(verdicts)[: verdicts.sizes["strategy"]]
    lines = []
    for place, name in enumerate(others, start=1):
        changes = verdicts["change_percent"].values[:, place]
        changes = changes[np.isfinite(changes)]
        if not len(changes):
            lines.append(f"{name} and {first} never both finished.")
            continue
        order = verdicts["is_ahead"].values[:, place, 0]
        has_failed = verdicts["has_failed"].values[:, [0, place]].any(axis=1)
        low, middle, high = np.percentile(changes, (5, 50, 95))
        text = (
            f"{name} against {first}, {metric_words(verdicts.attrs['objective'])}: better in "
            f"{int((order > 0).sum()):,} cells, worse in {int((order < 0).sum()):,}, not separated "
            f"in {int((order[~has_failed] == 0).sum()):,}; median change {middle:+.1f} % "
            f"(5th to 95th percentile of the cells {low:+.1f} to {high:+.1f} %)."
        )
        lines.append(text.replace("-", "−") if "-" not in name + first else text)
    return lines


def constraint_lines(verdicts: xr.Dataset) -> list[str]:
    """Return sentences on the constraints that are broken, by which strategy and where."""
    lines = []
    failed = verdicts["has_failed"].values
    first = str(verdicts["strategy"].values[0])
    for bound, text in enumerate(
        constraint_words(constraint, first) for constraint in constraints_of(verdicts)
    ):
        for place, name in enumerate(labels_of(verdicts)[: verdicts.sizes["strategy"]]):
            runs = ~failed[:, place]
            broken = runs & ~verdicts["is_kept"].values[:, place, bound]
            if broken.any():
                lines.append(
                    f"{text}: broken by {name} in {int(broken.sum()):,} of {int(runs.sum()):,} cells"
                    f"{_where(verdicts, runs, broken)}."
                )
            elif place:
                lines.append(f"{text}: kept by {name} wherever it runs.")
    num_ahead = int(_is_beaten(verdicts).sum())
    if num_ahead:
        lines.append(
            f"In {num_ahead:,} cells a strategy is surely ahead of the recommended one, but breaks a "
            "constraint."
        )
    is_relative = any(text.endswith("%") for text in constraints_of(verdicts))
    only = int((verdicts["reason"].values == ONLY_RUNNING).sum())
    if is_relative and only and failed[:, 0].any():
        lines.append(
            f"In {int(failed[:, 0].sum()):,} cells the first strategy fails, so constraints in % of "
            "it could not be judged there."
        )
    return lines


def _is_beaten(verdicts: xr.Dataset) -> np.ndarray:
    """Return in which cells another strategy is surely better than the recommended one."""
    names = verdicts["strategy"].values.tolist()
    order = verdicts["is_ahead"].values
    chosen = verdicts["recommended"].values.tolist()
    return np.array(
        [
            label in names and bool((order[cell, names.index(label)] < 0).any())
            for cell, label in enumerate(chosen)
        ]
    )


def failure_lines(verdicts: xr.Dataset) -> list[str]:
    """Return sentences on the strategies that fail, and where."""
    lines = []
    endings = verdicts["ending"].values.tolist()
    for place, name in enumerate(labels_of(verdicts)[: verdicts.sizes["strategy"]]):
        failed = verdicts["has_failed"].values[:, place]
        if not failed.any():
            continue
        counts = verdicts["num_runs"].values[:, place].sum(axis=0)
        kinds = [
            f"{count:,} runs {ending.upper()}"
            for ending, count in zip(endings, counts.tolist(), strict=True)
            if count and ending not in ("completed", "horizon")
        ]
        everywhere = np.ones(len(failed), bool)
        lines.append(
            f"{name} fails in {int(failed.sum()):,} cells ({', '.join(kinds)})"
            f"{_where(verdicts, everywhere, failed)}."
        )
    return lines or ["Every run of every strategy finished."]


def reversal_lines(verdicts: xr.Dataset) -> list[str]:
    """Return sentences on whether the order of strategies in the reference cell holds in the others."""
    reference = reference_index(verdicts)
    if reference is None:
        return ["The reference cell has not been run, so there is no order to compare with."]
    is_reversed = reversals(verdicts) > 0
    words = ", ".join(
        BY_NAME[name].said(shown(value))
        for name, value in json.loads(verdicts.attrs["reference_cell"]).items()
    )
    order = verdicts["is_ahead"].values[reference]
    names = labels_of(verdicts)[: verdicts.sizes["strategy"]]
    if not order.any():
        return [f"In the reference cell ({words}) the strategies are not separated."]
    ranked = " < ".join(names[place] for place in np.argsort(-order.sum(axis=1), kind="stable"))
    if not is_reversed.any():
        return [f"The order of the reference cell ({words}: {ranked}) is reversed in no cell."]
    everywhere = np.ones(len(is_reversed), bool)
    return [
        f"The order of the reference cell ({words}: {ranked}, best first) is surely reversed in "
        f"{int(is_reversed.sum()):,} cells{_where(verdicts, everywhere, is_reversed)}."
    ]


def _where(verdicts: xr.Dataset, considered: np.ndarray, happens: np.ndarray) -> str:
    """Return the regimes in which `happens` is true in most of the considered cells, as text."""
    if happens.sum() < FEWEST_TOLD:
        return ""
    part = verdicts.isel(cell=np.flatnonzero(considered))
    labels = ["yes" if is_there else "no" for is_there in happens[considered]]
    rules = rules_of(part, labels, _WHERE_DEPTH, int(verdicts.attrs["random_state"]))
    regimes = [rule for rule in rules.leaves if rule.label == "yes" and rule.where]
    regimes.sort(key=lambda rule: -rule.num_right)
    words = [
        f"{rule.words()} ({rule.num_right:,} of {rule.num_cells:,})"
        for rule in regimes[:MOST_RULES]
    ]
    return f", mostly where {'; or '.join(words)}" if words else ""


def rule_lines(rules: Rules) -> list[str]:
    """Return the decision tree as text, one line for each regime."""
    if not rules.leaves:
        return []
    if len(rules.leaves) == 1 and not rules.leaves[0].where:
        return ["No axis tells the recommendations apart."]
    lines = ["By regime (decision tree, " + _accuracy_text(rules) + "):"]
    for rule in rules.leaves:
        share = _share(rule.num_right, rule.num_cells)
        lines.append(
            f"  {rule.label} where {rule.words()}: {rule.num_right:,} of {rule.num_cells:,} cells "
            f"({share})"
        )
    return lines


def _accuracy_text(rules: Rules) -> str:
    text = f"depth {rules.depth}"
    if math.isfinite(rules.accuracy):
        text += (
            f", right for {100 * rules.accuracy:.0f} % of unseen cells in {rules.num_folds}-fold "
            f"cross-validation; the most frequent answer alone for "
            f"{100 * rules.accuracy_of_most_frequent:.0f} %"
        )
    return text


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.0f} %" if total else "no cell"


def _median(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else float("nan")
