"""The tables of both tracks together, as text for a terminal and as the page of results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from blis_jax.reports.render import table_lines
from papers.pages import answer, texts_of

Row = Mapping[str, str]
Tables = Mapping[str, Sequence[Row]]
TABLES = ("iterations", "searches", "parts", "joint", "regimes", "check")
METRIC_WORDS = {
    "worst_ttft_p99_ms": "TTFT P99 of the worst instance",
    "ttft_p99_ms": "TTFT P99",
    "slo_miss_rate": "missed targets",
    "reject_rate": "rejected",
}
MINUS = "−"
CLEAR = ("better", "worse")
_SHARES = ("slo_miss_rate", "reject_rate")


def printed(tables: Tables) -> list[str]:
    """Return the lines of a terminal."""
    lines = answer(
        "Which winner of the two tracks has the lowest objective on which workload?",
        [_verdict(tables["joint"], workload) for workload in _workloads(tables["joint"])],
        "95 % for every change by itself, paired by seed, on seeds that no search saw.",
        f"{len(tables['joint'])} arms on workloads, each on the same seeds as the others there.",
        "--page FILE writes the tables with the tree of regimes.",
    )
    for row in tables["iterations"]:
        if row["metric"] in ("worst_ttft_p99_ms", "slo_miss_rate"):
            words = f"{METRIC_WORDS[row['metric']]} {_interval(row, row['metric'] in _SHARES)}"
            lines.append(
                f"row {row['row']} ({row['name']}, {row['verdict']}): {words}, {row['judged']}"
            )
    for row in tables["joint"]:
        change = row["objective change"] and (
            f", {_change(row, 'objective')} against the published optimum"
        )
        lines.append(
            f"{row['workload']}, {row['arm']}: {row['objective']} {_milliseconds(row[row['objective']])}{change}"
        )
    for name in ("regimes", "check"):
        lines += [" | ".join(row.values()) for row in tables[name]]
    return lines


def _workloads(joint: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["workload"] for row in joint))


def _verdict(joint: Sequence[Row], workload: str) -> str:
    """Say which arm has the lowest objective on a workload."""
    rows = [row for row in joint if row["workload"] == workload and row[row["objective"]]]
    if not rows:
        return f"{workload}: no arm has a figure."
    best = min(rows, key=lambda row: float(row[row["objective"]]))
    rejected = f"{_percent(best['reject_rate'])} rejected"
    return f"{workload}: {best['arm']}, {best['objective']} {_milliseconds(best[best['objective']])} ms, {rejected}."


def page(tables: Tables) -> str:
    """Write the page of results, in Markdown."""
    parts = {
        "rows": _rows(tables),
        "searches": _columns(tables["searches"], _SEARCHES),
        "parts": _parts(tables["parts"]),
        "joint": _joint(tables["joint"]),
        "regimes": _columns(tables["regimes"], _REGIMES),
        "check": _columns(tables["check"], _CHECK),
    }
    lines: list[str] = []
    for line in texts_of("papers.two_tracks")["page"].splitlines():
        name = line.strip().removeprefix("{").removesuffix("}")
        is_table = line.strip() == f"{{{name}}}" and name in parts
        lines += parts[name] if is_table else [line.rstrip()]
    return "\n".join([*lines, ""])


# --- tables ---------------------------------------------------------------------------------------


def _rows(tables: Tables) -> list[str]:
    """Return one line for each row of the track's ledger."""
    heads = (
        "row", "strategy", "expected before the search", "verdict",
        "TTFT P99 of the worst instance, ms: compound, found", "change [95 %, all]",
        "missed targets, points [95 %, all]", "rejected: compound, found",
    )  # fmt: skip
    by_row: dict[str, dict[str, Row]] = {}
    for row in tables["iterations"]:
        by_row.setdefault(row["row"], {})[row["metric"]] = row
    rows = []
    for name, of in by_row.items():
        worst, missed, rejected = (of[key] for key in ("worst_ttft_p99_ms", *_SHARES))
        both = ("reference mean", "mean")
        rows.append((
            name, f"`{worst['strategy']}`", worst["hypothesis"], worst["verdict"],
            ", ".join(_milliseconds(worst[key]) for key in both), _judged_row(worst),
            _judged_row(missed), ", ".join(_percent(rejected[key]) for key in both),
        ))  # fmt: skip
    return table_lines(heads, rows)


def _judged_row(row: Row) -> str:
    words = _interval(row, row["metric"] in _SHARES)
    return words if words == "no figure" else f"{words}, {row['judged']}"


def _percent(text: str) -> str:
    value = 100 * float(text)
    return f"{value:.0f} %" if math.isfinite(value) else "–"


def _milliseconds(text: str) -> str:
    value = float(text)
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _parts(rows: Iterable[Row]) -> list[str]:
    heads = ("row", "component", "", "worst TTFT P99 [95 %, all]", "rejected, points [95 %, all]")
    by_part: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        by_part.setdefault((row["row"], row["component"], row["kind"]), {})[row["metric"]] = row
    return table_lines(heads, (
        (*part, _judged(of.get("worst_ttft_p99_ms"), False), _judged(of.get("reject_rate"), True))
        for part, of in by_part.items()
        if any(row["verdict"] in CLEAR for row in of.values())
    ))  # fmt: skip


def _judged(row: Row | None, is_share: bool) -> str:
    if row is None or not row["change"]:
        return "no figure"
    return (
        "no request differs"
        if row["verdict"] == "same"
        else f"{_interval(row, is_share)}, {row['verdict']}"
    )


def _joint(rows: Sequence[Row]) -> list[str]:
    lines = []
    for workload in _workloads(rows):
        here = [row for row in rows if row["workload"] == workload]
        track, objective = here[0]["track"], here[0]["objective"]
        words = "critical TTFT P99" if "critical" in objective else METRIC_WORDS[objective]
        heads = (
            "arm", f"{words}, ms", "change [95 %, all]", "missed targets", "change, points [95 %, all]",
            "missed budgets", "change, points [95 %, all]", "rejected", "decode tokens/s",
        )  # fmt: skip
        cells = (_joint_cells(row, objective) for row in here)
        lines += [f"`{workload}`, of the {track} track:", "", *table_lines(heads, cells), ""]
    return lines[:-1]


def _joint_cells(row: Row, objective: str) -> tuple[str, ...]:
    change, missed, budgets = (
        f"{_change(row, name)}, {row[f'{name} verdict']}"
        if row["objective change"]
        else "published optimum"
        for name in ("objective", "missed", "budgets")
    )
    names = ("slo_miss_rate", "missed_budgets", "reject_rate")
    shares = [f"{100 * float(row[name]):.1f} %" for name in names]
    return (
        row["arm"], _milliseconds(row[objective]), change, shares[0], missed, shares[1], budgets,
        shares[2], f"{float(row['tokens_per_sec']):,.0f}",
    )  # fmt: skip


_SEARCHES = {
    "row": "row",
    "workload": "workload",
    "calls": "calls",
    "best call": "best call",
    "objective": "objective",
    "best score": "score on the search's seeds",
    "parameters": "found",
}
_REGIMES = {
    "regime": "regime",
    "recommended": "take",
    "cells": "cells of the map",
    "with that label": "where it is the first choice",
    "check cells": "other cells",
    "feasible": "it keeps the constraint in",
    "best": "best or within 5 % in",
    "mean excess %": "mean excess over the best, %",
}
_CHECK = {
    "policy": "choice",
    "cells": "other cells",
    "feasible": "it keeps the constraint in",
    "best or within 5 %": "best or within 5 % in",
    "mean excess %": "mean excess over the best, %",
    "worst excess %": "worst excess, %",
}


def _columns(rows: Iterable[Row], columns: Mapping[str, str]) -> list[str]:
    """Return a table of some columns, with other heads."""
    return table_lines(tuple(columns.values()), ([row[key] for key in columns] for row in rows))


def _change(row: Row, name: str) -> str:
    ends = {"change": row[f"{name} change"], "low": row[f"{name} low"], "high": row[f"{name} high"]}
    return _interval(ends, name != "objective")


def _interval(row: Row, is_share: bool) -> str:
    if not math.isfinite(float(row["change"])):
        return "no figure"
    mean, low, high = (_signed(row[key]) for key in ("change", "low", "high"))
    return f"{mean} [{low}, {high}]" if is_share else f"{mean} % [{low}, {high}]"


def _signed(text: str) -> str:
    value = float(text)
    words = f"{value:+,.0f}" if abs(value) >= 100 else f"{round(value, 1) + 0.0:+.1f}"
    return "0.0" if words == "+0.0" else words.replace("-", MINUS)
