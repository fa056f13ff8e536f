"""The routing track's ledger, its searches and what makes the difference to the published compound, as tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import read_json
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.paired import Pair, differences
from sweeps.ledger.book import Ledger, LedgerRow
from sweeps.ledger.rows.trial import REFERENCE, STRATEGY

TRACK = "sweeps/tracks/routing"
METRICS = ("worst_ttft_p99_ms", "ttft_p99_ms", "slo_miss_rate", "reject_rate")
KINDS = ("added alone", "left out")  # of contributions that every design has
SHARES = ("slo_miss_rate", "reject_rate")


def ledger_rows(folder: Path, metrics: tuple[str, ...] = METRICS) -> list[dict[str, str]]:
    """Each row's strategy against its reference on every metric; verdicts hold for all of them (Holm).

    Changes are in %, of shares in points; intervals are the family's.
    """
    rows = [row for row in Ledger(folder).rows() if row.result is not None]
    asked = [(row, metric) for row in rows for metric in metrics]
    found = differences([_pair(row, metric) for row, metric in asked])
    table = []
    for (row, metric), difference in zip(asked, found, strict=True):
        is_share = metric.partition("[")[0] in SHARES
        shown = difference.simultaneous if is_share else difference.simultaneous_percent
        scale = 100 if is_share else 1
        hypothesis = row.hypothesis
        assert hypothesis.workload is not None and row.result is not None
        table.append(
            {
                "row": row.id,
                "name": hypothesis.name,
                "hypothesis": hypothesis.statement,
                "strategy": hypothesis.arms[STRATEGY].text,
                "reference": hypothesis.arms[REFERENCE].text,
                "workload": hypothesis.workload.name,
                "seeds": str(len(hypothesis.seeds)),
                "verdict": str(row.result["status"]),
                "metric": metric,
                "reference mean": f"{difference.first_mean:.6g}",
                "mean": f"{difference.second_mean:.6g}",
                "change": f"{scale * shown.mean:+.4g}",
                "low": f"{scale * shown.low:+.4g}",
                "high": f"{scale * shown.high:+.4g}",
                "p": f"{difference.p_adjusted:.3g}",
                "judged": difference.verdict,
            }
        )
    return table


def _pair(row: LedgerRow, metric: str) -> Pair:
    assert row.result is not None
    runs = row.result["runs"]
    first, second = (_values(runs[role]["figures"][metric]) for role in (REFERENCE, STRATEGY))
    return Pair(first, second, lookup(metric)[0].direction)


def _values(kept: Iterable[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in kept], float)


def search_rows(folder: Path) -> list[dict[str, str]]:
    """What each search of a folder found, from the files of `sweeps.optimize`."""
    rows = []
    for path in sorted(folder.glob("routing*.json")):
        document: dict[str, Any] = read_json(path, "a result of sweeps.optimize")
        if document["best_score"] is None:
            continue
        numbers = document["best_parameters"].items()
        objective = document["objectives"][0]["metric"]
        rows.append(
            {
                "row": _row_of(path),
                "strategy": path.stem,
                "workload": _workload_of(path.stem),
                "calls": str(document["n_calls"]),
                "best call": str(document["best_call"] + 1),
                "objective": objective,
                "best score": f"{document['best_score']:.4g}",
                "parameters": ", ".join(f"{name} {_short(value)}" for name, value in numbers),
            }
        )
    return rows


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row_of(path: Path) -> str:
    """The row of the track's ledger whose strategy a file is named as."""
    found = [
        row.id
        for row in Ledger(Path(TRACK)).rows()
        if row.hypothesis.arms[STRATEGY].text.partition("@")[0] == path.stem
    ]
    if len(found) != 1:
        raise ConfigError(f"{path}: {path.stem} is the strategy of {len(found)} rows of {TRACK}")
    return found[0]


def _workload_of(strategy: str) -> str:
    from sweeps.strategies.file import load_strategy

    return str(load_strategy(strategy).workload)


def part_rows(folder: Path) -> list[dict[str, str]]:
    """What each component contributes, from the files of `sweeps.ablate` in a folder."""
    rows = []
    for path in sorted(folder.glob("routing*.json")):
        for entry in read_json(path, "a result of sweeps.ablate")["contributions"]:
            if entry["class"] != "all" or entry["kind"] not in KINDS:
                continue
            is_share = entry["metric"] in SHARES
            shown = entry["simultaneous" if is_share else "simultaneous_percent"]
            scale = 100 if is_share else 1
            numbers = {name: _number(shown[key], scale) for name, key in _ENDS.items()}
            rows.append(
                {
                    "row": _row_of(path),
                    "component": entry["component"],
                    "kind": entry["kind"],
                    "metric": entry["metric"],
                    **numbers,
                    "p": f"{entry['p_adjusted']:.3g}",
                    "verdict": entry["verdict"],
                }
            )
    return rows


_ENDS = {"change": "mean", "low": "low", "high": "high"}


def _number(value: float | None, scale: float) -> str:
    return "" if value is None else f"{scale * value:+.4g}"
