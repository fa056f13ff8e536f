"""An ablation's tables and sentences for the terminal, from its document."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.reports.run_words import words_of
from sweeps.compare.report import (
    COLOURS,
    WIDTH,
    interval_lines,
    new_table,
    requests_line,
    show_titled,
)
from sweeps.reports.words import NOTHING, interval, number, p_text, title, token_rate_lines

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 16  # of the table of combinations; of interactions, beyond it the clear ones alone
MARK = "*"


def show(document: Mapping[str, Any]) -> None:
    """Prints an ablation."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    said = words_of(document).in_text
    for line in head_lines(document):
        console.print(said(line), markup=False)
    show_titled(console, "Components:", component_lines(document))
    if len(document["combinations"]) <= MOST_ROWS:
        console.print(combination_table(document))
    for slo_class, metric in metrics_of(document):
        console.print(contribution_table(document, slo_class, metric))
    if document["interactions"]:
        console.print(interaction_table(document))
    show_titled(console, "Failures:", [said(line) for line in failure_lines(document)])


def head_lines(document: Mapping[str, Any]) -> list[str]:
    """What was run, and how intervals and verdicts are to be read."""
    inference, design = document["inference"], document["design"]
    words = {
        "single": "each component alone and each left out",
        "pairs": "each component alone, every two, and each left out",
        "full": "all combinations",
    }
    return [
        f"{document['arm']} against {document['base']}: {len(document['components'])} components, "
        f"{len(document['combinations'])} combinations ({words[design]}).",
        requests_line(document),
        *interval_lines(inference),
        "The changes as a whole, at the head of each table, are a family of their own.",
        f"{MARK}: not 0, by Holm's method over {inference['family']} (interactions: "
        f"{inference['family_of_interactions']}); p-values of the paired t-test by seed.",
        *token_rate_lines(document["contributions"]),
    ]


def metrics_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Classes and metrics that the contributions are of."""
    found = [(entry["class"], entry["metric"]) for entry in document["contributions"]]
    return list(dict.fromkeys(found))


def component_lines(document: Mapping[str, Any]) -> list[str]:
    """Each component's settings, and whether it does anything."""
    lines = []
    for one in document["components"]:
        settings = ", ".join(
            f"{name} {_value(before)} → {_value(after)}"
            for name, (before, after) in one["settings"].items()
        )
        contexts, inert = one["num_contexts"], one["num_contexts_inert"]
        words = ""
        if one["status"] == "inert":
            words = " — inert: every request fares exactly the same with and without it"
        elif one["status"] == "unknown":
            words = " — undecided: no two combinations that differ in it alone finished"
        elif one["needs"]:
            words = f" — does nothing without {' and '.join(one['needs'])}"
        elif inert:
            words = f" — does nothing in {inert} of {contexts} combinations of the others"
        lines.append(f"{one['name']}: {settings}{words}")
    return lines


def _value(value: object) -> str:
    if value is None:
        return "not used"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value) or "default"


def combination_table(document: Mapping[str, Any]) -> Table:
    """The means of every combination, one column a metric and class."""
    table = new_table()
    table.title, table.title_justify = f"Combinations (mean over {words_of(document).many})", "left"
    for one in document["components"]:
        table.add_column(one["name"], justify="center", overflow="fold", max_width=12)
    for slo_class, metric in metrics_of(document):
        table.add_column(f"{title(metric)} {slo_class}", justify="right", max_width=14)
    table.add_column("")
    for entry in document["combinations"]:
        cells = ["×" if one["name"] in entry["on"] else "" for one in document["components"]]
        for slo_class, metric in metrics_of(document):
            figure = entry["figures"].get(slo_class, {}).get(metric)
            cells.append(NOTHING if figure is None else number(figure["mean"]))
        remark = "no configuration" if entry["error"] else ""
        if entry["failure"] is not None:
            count = len(entry["failure"]["seeds"])
            remark = f"{count} of {words_of(document).counted(len(document['seeds']))} failed"
        table.add_row(*cells, remark)
    return table


def contribution_table(document: Mapping[str, Any], slo_class: str, metric: str) -> Table:
    """What each component changes in one metric of one class, by every way of counting."""
    entries = [
        entry
        for entry in document["contributions"]
        if (entry["class"], entry["metric"]) == (slo_class, metric)
    ]
    kinds = list(dict.fromkeys(entry["kind"] for entry in entries))
    total = next(
        one for one in document["total"] if (one["class"], one["metric"]) == (slo_class, metric)
    )
    table = new_table()
    ends = number(total["reference_mean"]), number(total["mean"])
    table.title = f"{title(metric)}, {slo_class}: {ends[0]} → {ends[1]}, change {interval(total['simultaneous'])}"
    table.title_justify = "left"
    table.add_column("component", no_wrap=True)
    for kind in kinds:
        table.add_column(kind, justify="right", no_wrap=True)
    for one in document["components"]:
        cells = []
        for kind in kinds:
            entry = next(e for e in entries if (e["component"], e["kind"]) == (one["name"], kind))
            cells.append(words_of(document).in_text(_contribution(entry)))
        table.add_row(one["name"], *cells)
    return table


def _contribution(entry: Mapping[str, Any]) -> str:
    if not entry["num_pairs"]:
        return NOTHING
    if entry["verdict"] == "same":
        return "0, on every seed"
    return _marked(entry, interval(entry["simultaneous"]))


def _marked(entry: Mapping[str, Any], text: str) -> str:
    text = text.replace("[", "\\[")
    colour = COLOURS.get(entry["verdict"])
    return f"[{colour}]{text} {MARK}[/]" if colour else f"{text}  "


def interaction_table(document: Mapping[str, Any]) -> Table:
    """AB − A − B + base of every two components that do something, in the unit and as ratios."""
    inert = {one["name"] for one in document["components"] if one["status"] == "inert"}
    entries = [
        entry
        for entry in document["interactions"]
        if entry["num_pairs"] and not inert & set(entry["components"])
    ]
    words = ""
    if len(entries) > MOST_ROWS:
        words = f" (those of {len(entries)} that are not 0; all are in the result)"
        entries = [entry for entry in entries if entry["verdict"] in COLOURS]
    table = new_table()
    table.title = (
        f"Interactions: both − one − other + base (negative: less than the two added up){words}"
    )
    table.title_justify = "left"
    for heading in ("components", "metric", "class"):
        table.add_column(heading, no_wrap=True)
    for heading in ("interaction", "p (Holm)", "both ÷ base", "product of single ratios"):
        table.add_column(heading, justify="right")
    for entry in entries:
        ratio = entry["ratio"]
        table.add_row(
            " × ".join(entry["components"]),
            title(entry["metric"]),
            entry["class"],
            _marked(entry, interval(entry["simultaneous"])),
            p_text(entry["p_adjusted"]),
            *(
                NOTHING if ratio[key] is None else f"{ratio[key]:.3f}"
                for key in ("together", "expected")
            ),
        )
    return table


def failure_lines(document: Mapping[str, Any]) -> list[str]:
    """Combinations that are no configuration, or with runs that did not come to their end."""
    lines = []
    for entry in document["combinations"]:
        name = " + ".join(entry["on"]) or document["base"]
        if entry["error"] is not None:
            lines.append(f"{name}: {entry['error']}")
        if entry["failure"] is not None:
            lines.append(f"{name}: {entry['failure']['message']}")
        if entry["num_broken_invariants"]:
            lines.append(f"{name}: {entry['num_broken_invariants']} broken invariants; report this")
    return _without_repeats(lines)


def _without_repeats(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(lines))
