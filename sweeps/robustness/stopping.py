"""As many seeds as a cell needs: what the rule is told of a cell at every look."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.statistics.sequential import Look, Seen
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.store import empty_dataset, part_of
from sweeps.robustness.verdict import NONE, answer, values_of

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.metrics.run_summary import RunSummary
    from sweeps.robustness.cells import Place
    from sweeps.robustness.plan import MapPlan

Runs = Sequence[Sequence["RunSummary"]]  # of a cell, by strategy and seed


def look_at(plan: MapPlan, cells: Sequence[Place], runs: Sequence[Runs]) -> list[Look[None]]:
    """Return what the rule says of cells that were run on the same seeds."""
    assert plan.stopping is not None
    count, end = len(runs[0][0]), plan.stopping.end
    return [Look(count, None, (one,), end(count, [one])) for one in _seen_in(plan, cells, runs)]


def _seen_in(plan: MapPlan, cells: Sequence[Place], runs: Sequence[Runs]) -> list[Seen]:
    """What the rule is told of cells that were run on the same seeds."""
    seeds = plan.seeds[: len(runs[0][0])]
    small = dataclasses.replace(plan, cells=tuple(cells), seeds=seeds)
    dataset = empty_dataset(small, {}, len(cells))
    for name, values in part_of(small, runs).items():
        dataset[name].values[...] = values
    verdicts = answer(dataset, plan.question)
    is_safe = _is_safe(verdicts, plan.question.confidence) | _is_same(verdicts, dataset, plan)
    widths = verdicts["change_percent_high"].values - verdicts["change_percent_low"].values
    with np.errstate(invalid="ignore"):
        halves = np.nan_to_num(np.nanmax(widths, axis=1, initial=0.0) / 200, nan=0.0)
    return [
        Seen(float(half), bool(safe), is_same=half == 0.0)
        for half, safe in zip(halves, is_safe, strict=True)
    ]


def _is_safe(verdicts: xr.Dataset, confidence: float) -> np.ndarray:
    """Cells with a recommendation, or surely without a strategy to recommend."""
    recommended = verdicts["recommended"].values
    some_within = verdicts["probability_best"].values.sum(axis=1)
    is_none = (recommended == NONE) & (some_within <= 1 - confidence)
    if "is_surely_kept" in verdicts:
        is_broken = (verdicts["is_surely_kept"].values == -1).any(axis=2)
        is_none &= (is_broken | verdicts["has_failed"].values).all(axis=1)
    safe: np.ndarray = is_none | ((recommended != NONE) & (recommended != UNDECIDED))
    return safe


def _is_same(verdicts: xr.Dataset, dataset: xr.Dataset, plan: MapPlan) -> np.ndarray:
    """Cells where every strategy that may lead has the same objective as the leader on every seed."""
    values = values_of(dataset, plan.question.objective)
    may_lead = verdicts["probability_best"].values > 0
    same = np.zeros(len(values), bool)
    for cell, rows in enumerate(values):
        leading = rows[may_lead[cell]]
        same[cell] = len(leading) > 1 and bool((leading == leading[0]).all())
    return same
