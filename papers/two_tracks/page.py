"""The tables of both tracks together, as text for a terminal and as the page of results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from blis_jax.reports.render import row_line, table_lines
from papers.pages import answer

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
        change = (
            row["objective change"]
            and f", {_change(row, 'objective')} against the published optimum"
        )
        lines.append(
            f"{row['workload']}, {row['arm']}: {row['objective']} {_mean(row, row['objective'])}{change}"
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
    return f"{workload}: {best['arm']}, {best['objective']} {_mean(best, best['objective'])} ms, {rejected}."


def page(tables: Tables) -> str:
    """Write the page of results, in Markdown."""
    file = Path(str(files("papers.two_tracks"))) / "page.yaml"
    texts = yaml.safe_load(file.read_text(encoding="utf-8"))
    parts = {
        "rows": _rows(tables),
        "searches": _searches(tables["searches"]),
        "parts": _parts(tables["parts"]),
        "joint": _joint(tables["joint"]),
        "regimes": _regimes(tables["regimes"], _REGIMES),
        "check": _regimes(tables["check"], _CHECK),
    }
    lines: list[str] = []
    for line in texts["page"].splitlines():
        name = line.strip().removeprefix("{").removesuffix("}")
        is_table = line.strip() == f"{{{name}}}" and name in parts
        lines += parts[name] if is_table else [line.rstrip()]
    return "\n".join([*lines, ""])


# --- tables ---------------------------------------------------------------------------------------


def _rows(tables: Tables) -> list[str]:
    """Return one line for each row of the track's ledger."""
    heads = (
        "row",
        "strategy",
        "expected before the search",
        "verdict",
        "TTFT P99 of the worst instance, ms: compound, found",
        "change [95 %, all]",
        "missed targets, points [95 %, all]",
        "rejected: compound, found",
    )
    lines = table_lines(heads, ())
    for name in dict.fromkeys(row["row"] for row in tables["iterations"]):
        of = {row["metric"]: row for row in tables["iterations"] if row["row"] == name}
        worst, missed, rejected = (of[key] for key in ("worst_ttft_p99_ms", *_SHARES))
        shares = [_percent(rejected[key]) for key in ("reference mean", "mean")]
        lines.append(
            row_line(
                (
                    name,
                    f"`{worst['strategy']}`",
                    worst["hypothesis"],
                    worst["verdict"],
                    f"{_milliseconds(worst['reference mean'])}, {_milliseconds(worst['mean'])}",
                    _judged_row(worst),
                    _judged_row(missed),
                    ", ".join(shares),
                )
            )
        )
    return lines


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


def _searches(rows: Iterable[Row]) -> list[str]:
    heads = (
        "row",
        "workload",
        "calls",
        "best call",
        "objective",
        "score on the search's seeds",
        "found",
    )
    keys = ("row", "workload", "calls", "best call", "objective", "best score", "parameters")
    return table_lines(heads, ([row[key] for key in keys] for row in rows))


def _parts(rows: Iterable[Row]) -> list[str]:
    heads = ("row", "component", "", "worst TTFT P99 [95 %, all]", "rejected, points [95 %, all]")
    lines = table_lines(heads, ())
    by_part: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        by_part.setdefault((row["row"], row["component"], row["kind"]), {})[row["metric"]] = row
    for (name, component, kind), of in by_part.items():
        if not any(row["verdict"] in CLEAR for row in of.values()):
            continue
        cells = [_judged(of.get("worst_ttft_p99_ms"), False), _judged(of.get("reject_rate"), True)]
        lines.append(row_line([name, component, kind, *cells]))
    return lines


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
    for workload in dict.fromkeys(row["workload"] for row in rows):
        here = [row for row in rows if row["workload"] == workload]
        track, objective = here[0]["track"], here[0]["objective"]
        words = "critical TTFT P99" if "critical" in objective else METRIC_WORDS[objective]
        lines += [f"`{workload}`, of the {track} track:", ""]
        heads = (
            "arm",
            f"{words}, ms",
            "change [95 %, all]",
            "missed targets",
            "change, points [95 %, all]",
            "missed budgets",
            "change, points [95 %, all]",
            "rejected",
            "decode tokens/s",
        )
        lines += table_lines(heads, ())
        for row in here:
            is_base = not row["objective change"]
            change = {
                name: "published optimum"
                if is_base
                else f"{_change(row, name)}, {row[f'{name} verdict']}"
                for name in ("objective", "missed", "budgets")
            }
            shares = [f"{100 * float(row[name]):.1f} %" for name in (*_SHARES, "missed_budgets")]
            missed, rejected, budgets = shares
            lines.append(
                row_line(
                    (
                        row["arm"],
                        _mean(row, objective),
                        change["objective"],
                        missed,
                        change["missed"],
                        budgets,
                        change["budgets"],
                        rejected,
                        f"{float(row['tokens_per_sec']):,.0f}",
                    )
                )
            )
        lines.append("")
    return lines[:-1]


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


def _regimes(rows: Iterable[Row], columns: Mapping[str, str]) -> list[str]:
    heads = tuple(columns.values())
    return table_lines(heads, ([row[key] for key in columns] for row in rows))


def _mean(row: Row, metric: str) -> str:
    return _milliseconds(row[metric])


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
