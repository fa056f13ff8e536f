"""The tables as the five lines of a terminal and as the page of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from papers.openevolve.experiments import CLASSES, HAND_MADE, HANDED_OVER, METRICS
from papers.openevolve.tables import CHANGES, FIGURES, SCORES
from papers.pages import answer

Rows = Sequence[Mapping[str, str]]
Tables = Mapping[str, Rows]
SHOWN = {METRICS[0]: "E2E mean", METRICS[1]: "E2E P95"}


def _count(rows: Rows) -> str:
    equal = sum(row["equal"] == "true" for row in rows)
    return f"{equal} of {len(rows)}"


def printed(tables: Tables) -> list[str]:
    """Return what the command prints."""
    figures, scores, changes = tables[FIGURES], tables[SCORES], tables[CHANGES]
    evolved = next((row for row in scores if row["arm"] == "evolved"), None)
    verdict = [f"{_count(figures)} published numbers are equal to the last digit."]
    if evolved is not None:
        low, high = float(evolved["low"]), float(evolved["high"])
        verdict.append(
            f"The winner's published {float(evolved['published']):+.2f} (two seeds) is "
            f"{float(evolved['new seeds']):+.2f} [{low:+.2f}, {high:+.2f}] on new seeds."
        )
    worse = [row for row in _by_class(changes, "evolved") if row["verdict"] == "worse"]
    verdict += [f"Worse: {_said(row)}." for row in worse[:4]]
    odd = [row for row in figures if row["equal"] != "true"]
    lines = answer(
        "whether the published numbers of evolved routers come out, and whether they hold on seeds of nobody's search",
        verdict,
        "equal means equal to 1e-12; intervals are 95 %, of one workload's arms, metrics and classes together.",
        f"{len(figures)} published numbers, {sum(1 for _ in changes)} comparisons on 20 seeds.",
        "docs/how-to/evolve.md: your own program.",
    )
    lines += [f"{row['set']:12} {row['workload']:18} {row['arm']:12} {row['seed']:5} {row['metric']:12} "
              f"{row['difference %']} %" for row in odd]  # fmt: skip
    return lines


def _by_class(changes: Rows, arm: str) -> list[Mapping[str, str]]:
    return [row for row in changes if row["arm"] == arm and "[" in row["metric"]]


def _name(metric: str) -> str:
    name, _, slo_class = metric.partition("[")
    return f"{slo_class.rstrip(']') or 'all'} {SHOWN[name]}"


def _said(row: Mapping[str, str]) -> str:
    return f"{_name(row['metric'])} on {row['workload']} {row['change %']} % [{row['low']}, {row['high']}]"


# --- the page -------------------------------------------------------------------------------------


def _words() -> dict[str, str]:
    text = Path(str(files("papers.openevolve") / "page.yaml")).read_text(encoding="utf-8")
    found: dict[str, str] = yaml.safe_load(text)
    return found


def page(tables: Tables) -> str:
    """Return the page of results."""
    figures = tables[FIGURES]
    words = _words()
    parts = [words["intro"], "## Published numbers, again\n", words["rules"]]
    parts.append(_table(("what", "numbers", "equal to the last digit"), list(_counts(figures))))
    odd = [row for row in figures if row["equal"] != "true"]
    if odd:
        parts.append(words["differs"])
        parts.append(_table(
            ("workload", "arm", "seed", "metric", "published, ms", "here, ms", "difference"),
            [(row["workload"], row["arm"], row["seed"], _name(row["metric"]), f"{float(row['published']):.1f}",
              f"{float(row['here']):.1f}", f"{row['difference %']} %") for row in odd],
        ))  # fmt: skip
    if tables[SCORES]:
        parts += _scores(tables[SCORES], words["scores"])
    if tables[CHANGES]:
        parts += list(_new_seeds(tables[CHANGES], words["classes"]))
    return "\n".join(parts).rstrip() + "\n"


def _counts(figures: Rows) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(row["set"] for row in figures):
        rows = [row for row in figures if row["set"] == name]
        from_go = [row for row in rows if "Go" in row["arm"]]
        what = {HANDED_OVER: "the winner and its baselines, two workloads, two seeds",
                HAND_MADE: "nine hand-made routers, read from their Go files, glia_40qps"}  # fmt: skip
        own = [row for row in rows if row not in from_go]
        yield (
            what.get(name, f"set {name}, seed 42: {_runs(own)}"),
            str(len(own)),
            _count(own),
        )
        if from_go:
            yield "the winner, read from its Go file", str(len(from_go)), _count(from_go)


def _runs(rows: Rows) -> str:
    """Say which arms were run on how many workloads."""
    workloads_by_arm: dict[str, set[str]] = {}
    for row in rows:
        workloads_by_arm.setdefault(row["arm"], set()).add(row["workload"])
    most = max(map(len, workloads_by_arm.values()))
    arms = [
        arm if len(found) == most else f"{arm} on {', '.join(sorted(found))}"
        for arm, found in workloads_by_arm.items()
    ]
    return f"{', '.join(arms)}; {most} workloads"


def _scores(rows: Rows, about: str) -> list[str]:
    shown = [
        (f"{row['set']}", row["arm"], f"{float(row['published']):.4f}", "yes" if row["equal"] == "true" else "no",
         "not run" if row["new seeds"] == "nan" else f"{row['new seeds']} [{row['low']}, {row['high']}]")
        for row in rows
    ]  # fmt: skip
    return [
        "## Scores\n",
        about,
        _table(("set", "arm", "published", "equal here", "20 new seeds"), shown),
    ]


def _new_seeds(rows: Rows, about: str) -> Iterator[str]:
    yield "## By class, on new seeds\n"
    yield about
    for name in dict.fromkeys(row["set"] for row in rows):
        yield f"### {'The hand-over' if name == HANDED_OVER else f'Set {name}'}\n"
        of_set = [row for row in rows if row["set"] == name]
        keys = dict.fromkeys((row["workload"], row["arm"]) for row in of_set)
        columns = [("all", ""), *((slo_class, f"[{slo_class}]") for slo_class in CLASSES)]
        head = (
            "workload",
            "arm",
            *(f"{label} {short}" for label, _ in columns for short in ("mean", "P95")),
        )
        lines = []
        for workload, arm in keys:
            by_metric = {
                row["metric"]: row
                for row in of_set
                if (row["workload"], row["arm"]) == (workload, arm)
            }
            cells = [
                _cell(by_metric.get(f"{metric}{suffix}"))
                for _, suffix in columns
                for metric in METRICS
            ]
            lines.append((workload, arm, *cells))
        yield _table(head, lines)


def _cell(row: Mapping[str, str] | None) -> str:
    if row is None:
        return ""
    text = f"{row['change %']} % [{row['low']}, {row['high']}]"
    return f"**{text}**" if row["verdict"] == "worse" else text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])
