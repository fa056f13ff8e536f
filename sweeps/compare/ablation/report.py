"""An ablation's sentences and tables, rendered from its document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.reports.differences import p_text
from blis_jax.reports.findings import Cell, Quantity, Row, Table
from blis_jax.reports.pictures import Axis, Guide, Mark, Panel, Picture, Series, Style
from blis_jax.reports.study import words_of
from blis_jax.reports.style import BLACK, BLUE, GREEN, GREY, RED, WIDTH, class_words
from blis_jax.reports.words import NOTHING, metric_name, number, table_title
from blis_jax.statistics.paired import BETTER, SAME, WORSE
from sweeps.compare.report import quantity

MOST_ROWS = 16  # of the table of combinations; of interactions, beyond it the clear ones alone
CLEAR = (BETTER, WORSE)
DESIGNS = {
    "single": "each component alone and each left out",
    "pairs": "each component alone, every two, and each left out",
    "full": "all combinations",
}


def design_line(document: Mapping[str, Any]) -> str:
    """Return a sentence on the design: the combinations and seeds that were run."""
    return (
        f"{document['arm']} against {document['base']}: {len(document['components'])} components, "
        f"{len(document['combinations'])} combinations ({DESIGNS[document['design']]})."
    )


def metrics_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the (class, metric) pairs for which the document has contributions."""
    pairs = [(entry["class"], entry["metric"]) for entry in document["contributions"]]
    return list(dict.fromkeys(pairs))


def component_lines(document: Mapping[str, Any]) -> list[str]:
    """Return, for each component, a line with its settings and whether it does anything."""
    lines = []
    for component in document["components"]:
        settings = ", ".join(
            f"{name} {_value(before)} → {_value(after)}"
            for name, (before, after) in component["settings"].items()
        )
        contexts, inert = component["num_contexts"], component["num_contexts_inert"]
        words = ""
        if component["status"] == "inert":
            words = " — inert: every request fares exactly the same with and without it"
        elif component["status"] == "unknown":
            words = " — undecided: no two combinations that differ in it alone finished"
        elif component["needs"]:
            words = f" — does nothing without {' and '.join(component['needs'])}"
        elif inert:
            words = f" — does nothing in {inert} of {contexts} combinations of the others"
        lines.append(f"{component['name']}: {settings}{words}")
    return lines


def _value(value: object) -> str:
    if value is None:
        return "not used"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value) or "default"


def combination_table(document: Mapping[str, Any]) -> Table:
    """Return a table of the means of every combination, with one column for each metric and class."""
    names, of = [component["name"] for component in document["components"]], metrics_of(document)
    rows = []
    for entry in document["combinations"]:
        cells: list[Cell] = ["×" if name in entry["on"] else "" for name in names]
        for slo_class, metric in of:
            figure = entry["figures"].get(slo_class, {}).get(metric)
            cells.append(Quantity(None if figure is None else figure["mean"]))
        remark = "no configuration" if entry["error"] else ""
        if entry["failure"] is not None:
            count = len(entry["failure"]["seeds"])
            remark = f"{count} of {words_of(document).counted(len(document['seeds']))} failed"
        rows.append(Row((*cells, remark), is_brief=entry["failure"] is not None))
    columns = (*names, *(f"{table_title(metric)} {slo_class}" for slo_class, metric in of), "")
    heading = f"Combinations (mean over {words_of(document).many})"
    return Table(columns, tuple(rows), heading, num_keys=len(names))


def contribution_table(
    document: Mapping[str, Any], slo_class: str, metric: str, is_brief: bool = True
) -> Table:
    """Return a table of each component's contribution to one metric of one class, a column per kind of contribution."""
    by_place = {
        (entry["component"], entry["kind"]): entry
        for entry in document["contributions"]
        if (entry["class"], entry["metric"]) == (slo_class, metric)
    }
    kinds = list(dict.fromkeys(kind for _, kind in by_place))
    total = next(
        row for row in document["total"] if (row["class"], row["metric"]) == (slo_class, metric)
    )
    ends = f"{number(total['reference_mean'])} → {number(total['mean'])}"
    whole = quantity(total["simultaneous"])
    rows = []
    for component in document["components"]:
        entries = [by_place[component["name"], kind] for kind in kinds]
        is_clear = any(entry["verdict"] in CLEAR for entry in entries)
        cells = [cell for entry in entries for cell in _contribution(document, entry)]
        rows.append(Row((component["name"], *cells), is_brief and is_clear))
    columns = [column for kind in kinds for column in (kind, "")]
    heading = f"{table_title(metric)}, {slo_class}: {ends}, change {whole}"
    return Table(("component", *columns), tuple(rows), heading)


def _contribution(document: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[Cell, str]:
    """Return the table cell of a contribution's change, and its verdict."""
    if not entry["num_pairs"]:
        return NOTHING, ""
    if entry["verdict"] == SAME:
        return words_of(document).in_text("0, on every seed"), SAME
    return quantity(entry["simultaneous"]), entry["verdict"]


def interaction_table(document: Mapping[str, Any]) -> Table:
    """Return a table of AB − A − B + base for every two acting components, in the metric's unit and as ratios."""
    inert = {
        component["name"] for component in document["components"] if component["status"] == "inert"
    }
    rows = []
    for entry in document["interactions"]:
        if not entry["num_pairs"] or inert & set(entry["components"]):
            continue
        ratio = entry["ratio"]
        cells: tuple[Cell, ...] = (
            " × ".join(entry["components"]),
            table_title(entry["metric"]),
            entry["class"],
            quantity(entry["simultaneous"]),
            p_text(entry["p_adjusted"]),
            Quantity(ratio["together"], like=0.001),
            Quantity(ratio["expected"], like=0.001),
            entry["verdict"],
        )
        rows.append(Row(cells, is_brief=False))
    columns = (
        "components", "metric", "class", "interaction", "p (Holm)", "both ÷ base", "product of single ratios", "",
    )  # fmt: skip
    heading = "Interactions: both − one − other + base (negative: less than the two added up)"
    return Table(columns, tuple(rows), heading, num_keys=3)


def failure_lines(document: Mapping[str, Any]) -> list[str]:
    """Return lines that name the combinations that are no valid configuration, and those with unfinished runs."""
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


# --- the picture ----------------------------------------------------------------------------------


KINDS = {  # colour, marker, and what it is called
    "added alone": (BLUE, "o", "added to the base alone"),
    "left out": (RED, "s", "left out: the whole minus the whole without it"),
    "Shapley": (GREEN, "D", "Shapley value: average over all orders"),
}
PANEL_INCHES = 1.3  # at least


def picture(document: Mapping[str, Any]) -> Picture:
    """Return the picture of each component's contribution to the first metric, one panel per class."""
    metric = metrics_of(document)[0][1]
    classes = [slo_class for slo_class, name in metrics_of(document) if name == metric]
    height = 1.2 + 0.42 * (1 + len(document["components"]))
    panels = [_class_panel(document, name, metric, at == 0) for at, name in enumerate(classes)]
    return Picture(
        f"{metric_name(metric)}: what each component of {document['arm']} changes against {document['base']}",
        _caption(document), [panels], [height], max(WIDTH, 1.7 + PANEL_INCHES * len(classes)), "all",
        name="contributions",
    )  # fmt: skip


def _class_panel(document: Mapping[str, Any], slo_class: str, metric: str, is_first: bool) -> Panel:
    components = [component["name"] for component in document["components"]]
    present = {entry["kind"] for entry in document["contributions"]}
    kinds = [kind for kind in KINDS if kind in present]
    marks: list[Mark] = [
        Guide(0.0),
        Guide(len(components) - 0.5, "y", Style("0.8", line="-", width=0.8)),
    ]
    for entry in document["contributions"]:
        if (entry["class"], entry["metric"]) == (slo_class, metric) and entry["kind"] in kinds:
            at = (kinds.index(entry["kind"]) - (len(kinds) - 1) / 2) * 0.62 / len(kinds)
            marks += _change_mark(
                entry, components.index(entry["component"]) + at, *KINDS[entry["kind"]]
            )
    for entry in document["total"]:
        if (entry["class"], entry["metric"]) == (slo_class, metric):
            marks += _change_mark(entry, len(components), GREY, "o", "the whole change")
    unit = table_title(metric).partition(", ")[2]
    names = [*components, "all together"] if is_first else [""] * (len(components) + 1)
    return Panel(
        marks,
        Axis(f"change ({unit})" if unit else "change", most_ticks=4),
        Axis(
            ticks=[(float(at), name) for at, name in enumerate(names)],
            limits=(len(components) + 0.5, -0.5), has_grid=False,
            colours=["0.55" if component["status"] == "inert" else BLACK for component in document["components"]],
        ),
        class_words(slo_class),
    )  # fmt: skip


def _change_mark(
    entry: Mapping[str, Any], at: float, colour: str, marker: str, label: str
) -> list[Mark]:
    change = entry["difference"]
    if change["mean"] is None:
        return []
    style = Style(colour, marker, width=1.8, is_hollow=entry["verdict"] not in CLEAR)
    return [Series([change["mean"]], [at], style, label, [change["low"]], [change["high"]])]


def _caption(document: Mapping[str, Any]) -> str:
    inference = document["inference"]
    level = f"{100 * inference['confidence']:g} %"
    source = "Trace" if document.get("trace") else "Workload"
    text = (
        f"{source} {document['workload']}, the same requests for every combination, "
        f"{words_of(document).listed(document['seeds'])}. Dots: mean of the paired differences; lines: "
        f"{level} interval of each by itself; filled: not 0 after correction for all contributions "
        "(Holm); hollow: cannot be told from 0."
    )
    inert = [
        component["name"] for component in document["components"] if component["status"] == "inert"
    ]
    if inert:
        text += f" In grey: inert, every request had the same life without it: {', '.join(inert)}."
    failed = [
        combination
        for combination in document["combinations"]
        if combination["failure"] or combination["error"]
    ]
    if failed:
        text += f" {len(failed)} combinations failed on some {words_of(document).one}; what needs them leaves it out."
    return text
