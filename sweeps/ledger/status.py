"""Where the search stands: the best row so far, how long nothing came of it, what is still open.

An iteration is null if none of its rows, with its hypothesis confirmed, improves on the best
objective so far by more than `MARGIN_PERCENT`. Only rows with the workload and the baseline of the first
measured row count as better or worse; their seeds may differ, so the objective is taken as a share of the
baseline's on the same seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blis_jax.metrics.scalars import HIGHER, lookup
from sweeps.ledger.book import LedgerRow
from sweeps.ledger.rows.trial import BASELINE, STRATEGY
from sweeps.tracks.verdicts import CONFIRMED

MARGIN_PERCENT = 1.0


@dataclass(frozen=True)
class Standing:
    """The state of a search."""

    num_rows: int
    verdicts: dict[str, int]
    best: LedgerRow | None  # None while nothing is better than the baseline
    best_value: (
        float | None
    )  # mean of the objective over the best row's seeds, at first the baseline's
    baseline_value: float | None  # on the same seeds
    null_iterations: tuple[str, ...]  # the last ones, up to now
    open_rows: tuple[LedgerRow, ...]


def standing(rows: Sequence[LedgerRow], objective: str) -> Standing:
    """The state after all rows."""
    done = [row for row in rows if row.result is not None]
    verdicts: dict[str, int] = {}
    for row in done:
        verdict = str(row.result and row.result["verdict"])
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    best: LedgerRow | None = None
    best_share = 1.0
    nulls: list[str] = []
    for iteration, members in _iterations(done).items():
        is_null = True
        for row in members:
            share = _share(row, done, objective)
            if share is not None and _is_improvement(row, share, best_share, objective):
                best, best_share, is_null = row, share, False
        nulls = [*nulls, iteration] if is_null else []
    open_rows = tuple(row for row in rows if row.result is None)
    shown = best or _first_measured(done)
    baseline_value = None if shown is None else _mean(shown, BASELINE, objective)
    best_value = baseline_value if best is None else _mean(best, STRATEGY, objective)
    return Standing(len(rows), verdicts, best, best_value, baseline_value, tuple(nulls), open_rows)


def _iterations(rows: Sequence[LedgerRow]) -> dict[str, list[LedgerRow]]:
    found: dict[str, list[LedgerRow]] = {}
    for row in rows:
        found.setdefault(row.hypothesis.iteration, []).append(row)
    return found


def _share(row: LedgerRow, rows: Sequence[LedgerRow], objective: str) -> float | None:
    """The objective's mean ÷ the baseline's, if the row is comparable with the first measured one."""
    first = _first_measured(rows)
    if first is None or not row.result or not row.result.get("runs"):
        return None
    if _circumstances(row) != _circumstances(first):
        return None
    value, baseline = _mean(row, STRATEGY, objective), _mean(row, BASELINE, objective)
    return None if value is None or not baseline else value / baseline


def _first_measured(rows: Sequence[LedgerRow]) -> LedgerRow | None:
    return next((row for row in rows if row.result and row.result.get("runs")), None)


def _mean(row: LedgerRow, role: str, objective: str) -> float | None:
    values = row.result["runs"][role]["figures"].get(objective) if row.result else None
    return None if values is None or None in values else float(np.mean(values))


def _circumstances(row: LedgerRow) -> tuple[object, ...]:
    hypothesis = row.hypothesis
    workload = hypothesis.workload.hash if hypothesis.workload else ""
    return workload, hypothesis.arms[BASELINE].hash


def _is_improvement(row: LedgerRow, share: float, best: float, objective: str) -> bool:
    if row.result is None or row.result["verdict"] != CONFIRMED:
        return False
    is_higher_better = lookup(objective)[0].direction == HIGHER
    gain = (share - best) if is_higher_better else (best - share)
    return 100 * gain > MARGIN_PERCENT * abs(best)
