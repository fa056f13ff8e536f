"""A comparison's tables and sentences for the terminal, from its document."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.reports.run_words import words_of
from blis_jax.statistics.paired import BETTER, SAME, WORSE
from sweeps.compare import coefficient_draws
from sweeps.compare.ranking import ranking_lines
from sweeps.compare.seeds import stopping_lines
from sweeps.reports.words import (
    NOTHING,
    interval,
    milliseconds,
    number,
    p_text,
    percentile_lines,
    short_title,
    title,
    token_rate_lines,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 140  # columns where the output is no terminal
WIDE = 132  # columns that the full table needs
COLOURS = {BETTER: "green", WORSE: "red"}
VIEW_WORDS = {"mean": "mean", "p99": "P99", "tail": "slowest 1 %"}


def show(document: Mapping[str, Any]) -> None:
    """Prints a comparison."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(requests_line(document), markup=False)
    show_titled(console, "Routers, the best first:", ranking_lines(document))
    said = words_of(document).in_text
    for line in head_lines(document)[1:]:
        console.print(said(line), markup=False)
    show_titled(console, "Enough seeds:", stopping_lines(document))
    for arm in compared_arms(document):
        console.print(difference_table(document, arm, console.width >= WIDE))
        lines = [said(line) for line in verdict_lines(document, arm)]
        show_titled(console, f"{arm} against {document['reference']}:", lines)
    console.print(part_table(document))
    for heading, lines in (
        ("Success criteria:", criterion_lines(document)),
        ("Ageing:", crossover_lines(document)),
        ("Mechanisms:", mechanism_lines(document)),
        ("Failures:", failure_lines(document)),
        ("Coefficients drawn:", coefficient_draws.lines(document)),
    ):
        show_titled(console, heading, [said(line) for line in lines])


def show_titled(console: Console, title: str, lines: Sequence[str]) -> None:
    """Lines below a title; nothing without lines."""
    if lines:
        console.print(title, markup=False)
        for line in lines:
            console.print(f"  {line}", markup=False)
        console.print()


def compared_arms(document: Mapping[str, Any]) -> list[str]:
    """The arms behind the reference."""
    return [arm["name"] for arm in document["arms"][1:]]


# --- head -----------------------------------------------------------------------------------------


def head_lines(document: Mapping[str, Any]) -> list[str]:
    """What was run, and how intervals and verdicts are to be read."""
    inference = document["inference"]
    return [
        requests_line(document),
        *interval_lines(inference),
        f"Verdicts: Holm's method over a family of {inference['family']}; p-values of the "
        f"{inference['test']}. A verdict is unclear where its interval contains 0.",
        *percentile_lines(document["comparisons"]),
        *token_rate_lines([*document["comparisons"], *document["criteria"]]),
    ]


def interval_lines(inference: Mapping[str, Any]) -> list[str]:
    """Which intervals are printed, and where the others are."""
    return [
        f"Intervals of differences hold for the whole family together, at {100 * inference['confidence']:g} %: "
        f"{inference['simultaneous_intervals']}.",
        "The result file and the figure have intervals that hold for one difference by itself: "
        f"{inference['intervals']}.",
    ]


def requests_line(document: Mapping[str, Any]) -> str:
    """The workload and the seeds, or the trace and its runs."""
    if document.get("trace"):
        return trace_line(document)
    size = f"{document['num_requests']} requests, " if document["num_requests"] else ""
    seeds = words_of(document).listed(document["seeds"], has_kind=False)
    return f"Workload {document['workload']}, {size}{seeds} common to all, requests by {document['rng']}."


def trace_line(document: Mapping[str, Any]) -> str:
    """The trace, and what the runs of an arm are."""
    trace, count = document["trace"], len(document["seeds"])
    text = (
        f"Trace {trace['path']} ({trace['format']}): {trace['num_requests']} requests in "
        f"{trace['span_s']:.4g} s, the same for all; "
    )
    if trace["windows"]:
        return f"{text}{count} windows of {trace['span_s'] / count:.4g} s, each a run."
    if count == 1:
        return f"{text}one run each, as nothing is drawn."
    return f"{text}{count} runs each where something is drawn (seeds {', '.join(map(str, document['seeds']))})."


# --- differences ----------------------------------------------------------------------------------


def _of_arm(entries: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    return [entry for entry in entries if entry["arm"] == arm]


def difference_table(document: Mapping[str, Any], arm: str, is_wide: bool = True) -> Table:
    """Every class and metric of one arm beside the reference; differences in the unit only if wide.

    The intervals are those that the verdicts agree with.
    """
    table = new_table()
    level = f"{100 * document['inference']['confidence']:g} %, all"
    table.add_column("class")
    table.add_column("metric", no_wrap=True)
    for name in (document["reference"], arm):
        table.add_column(name, justify="right", overflow="fold", max_width=16)
    pairs = "blocks" if document["inference"].get("block_s") else "pairs"
    columns = [f"difference [{level}]"] * is_wide + [f"in % [{level}]", pairs, "p (Holm)"]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    entries = sorted(
        _of_arm(document["comparisons"], arm), key=lambda entry: _class_order(document, entry)
    )
    for place, entry in enumerate(entries):
        is_first = place == 0 or entries[place - 1]["class"] != entry["class"]
        is_last = place + 1 == len(entries) or entries[place + 1]["class"] != entry["class"]
        colour = COLOURS.get(entry["verdict"])
        verdict = f"[{colour}]{entry['verdict']}[/]" if colour else entry["verdict"]
        cells = [
            entry["class"] if is_first else "",
            title(entry["metric"]),
            number(entry["reference_mean"]),
            number(entry["mean"], like=entry["reference_mean"]),
            *[interval(entry["simultaneous"])] * is_wide,
            interval(entry["simultaneous_percent"]),
            str(entry["num_pairs"]),
            p_text(entry["p_adjusted"]),
            verdict,
        ]
        table.add_row(*cells, end_section=is_last)
    return table


def _class_order(document: Mapping[str, Any], entry: Mapping[str, Any]) -> int:
    return ["all", *document["classes"]].index(entry["class"])


def new_table() -> Table:
    """In the style of the other commands."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))


def verdict_lines(document: Mapping[str, Any], arm: str) -> list[str]:
    """What improved and what got worse, by class."""
    mine = next(one for one in document["arms"] if one["name"] == arm)
    if document["reference"] in mine["same_as"]:
        return ["every request fared exactly the same in both, on every seed"]
    lines = []
    for slo_class in ("all", *document["classes"]):
        entries = [
            one for one in _of_arm(document["comparisons"], arm) if one["class"] == slo_class
        ]
        parts = [
            f"{verdict}: {', '.join(_change(one) for one in entries if one['verdict'] == verdict)}"
            for verdict in (BETTER, WORSE)
            if any(one["verdict"] == verdict for one in entries)
        ]
        if not parts and all(one["verdict"] == SAME for one in entries):
            parts = ["the same on every seed"]
        what = "this trace" if document.get("trace") else "these seeds"
        parts = parts or [f"nothing that {what} can tell from chance"]
        lines.append(f"{slo_class} — {'; '.join(parts)}")
    return lines


def _change(entry: Mapping[str, Any]) -> str:
    name = short_title(entry["metric"])
    if entry["percent"]["mean"] is None:
        return f"{name} {number(entry['difference']['mean'], signed=True)}"
    return f"{name} {number(entry['percent']['mean'], signed=True)} %"


# --- TTFT -----------------------------------------------------------------------------------------


def part_table(document: Mapping[str, Any]) -> Table:
    """What the mean, the P99 and the slowest requests' TTFT consist of."""
    names = [
        name
        for name in _group_names(document)
        if any(
            view["groups"][name] >= 0.05
            for arm in document["arms"]
            for views in arm["ttft_parts"].values()
            for view in views.values()
        )
    ]
    table = new_table()
    table.title, table.title_justify = (
        f"TTFT by component, ms (mean over {words_of(document).many})",
        "left",
    )
    for name in ("class", "of", "arm"):
        table.add_column(name)
    for name in ("TTFT", *names):
        table.add_column(name, justify="right")
    for slo_class in ("all", *document["classes"]):
        for view, words in VIEW_WORDS.items():
            rows = list(_part_rows(document, slo_class, view, names))
            for place, cells in enumerate(rows):
                head = [
                    slo_class if view == "mean" and place == 0 else "",
                    words if not place else "",
                ]
                is_last = view == "tail" and place + 1 == len(rows)
                table.add_row(*head, *cells, end_section=is_last)
    return table


def _group_names(document: Mapping[str, Any]) -> list[str]:
    for arm in document["arms"]:
        for views in arm["ttft_parts"].values():
            for view in views.values():
                return list(view["groups"])
    return []


def _part_rows(
    document: Mapping[str, Any], slo_class: str, view: str, names: Sequence[str]
) -> Iterator[list[str]]:
    for arm in document["arms"]:
        found = arm["ttft_parts"].get(slo_class, {}).get(view)
        if found is None:
            yield [arm["name"], NOTHING, *(NOTHING for _ in names)]
        else:
            total = found["total"]
            cells = [number(found["groups"][name], like=total) for name in names]
            yield [arm["name"], number(total), *cells]


# --- criteria, ageing, mechanisms, failures -------------------------------------------------------


def criterion_lines(document: Mapping[str, Any]) -> list[str]:
    """Every criterion with its verdict, then what the same bound says of the other classes."""
    lines = []
    for entry in document["criteria"]:
        if not (entry["is_asked"] or entry["num_seeds"]):
            continue
        sign = "at most" if entry["direction"] == "min" else "at least"
        is_change = "change_percent" in entry
        goal = entry["change_percent"] if is_change else entry["threshold"]
        unit = f" % against {document['reference']}" if is_change else ""
        shown = interval(entry["reached"], signed=is_change) + " %" * is_change
        words = short_title(entry["metric"]) if is_change else title(entry["metric"])
        name = f"{words} of {entry['class']}"
        verdict = "met" if entry["is_met"] else "not met"
        if entry["num_seeds"] == 0:
            verdict = "no figure"
        elif not entry["is_sure"]:
            verdict += ", but the interval crosses the bound"
        seeds = f"{entry['num_seeds_met']} of {entry['num_seeds']} seeds"
        mark = "" if entry["is_asked"] else "  (beyond the criteria) "
        lines.append(
            f"{mark}{entry['arm']}: {name} {sign} {number(goal, signed=is_change)}{unit}: "
            f"{f'{shown}, ' if entry['num_seeds'] else ''}{verdict} ({seeds})"
        )
    return lines


def crossover_lines(document: Mapping[str, Any]) -> list[str]:
    """From which age the lower class goes first, by the settings and in fact."""
    lines = []
    for arm in document["arms"]:
        seen = [entry for entry in arm["crossovers"] if entry["observed"] is not None]
        if seen and not seen[0]["is_by_priority"]:
            lines.append(f"{arm['name']}: {seen[0]['reason']}")
        else:
            lines += [f"{arm['name']}: {_crossover_words(entry)}" for entry in seen]
    return lines


def _crossover_words(entry: Mapping[str, Any]) -> str:
    seen, age = entry["observed"], entry["age_us"]
    by_settings = "never" if age is None else f"from an age of {milliseconds(age)}"
    in_fact = "none did"
    if seen["num_overtaking"]:
        youngest = milliseconds(seen["least_age_us"])
        in_fact = f"{seen['num_overtaking']} did, the youngest at {youngest}"
    passed = ""
    if seen["num_passed"]:
        oldest = milliseconds(seen["greatest_passed_age_us"])
        passed = f"; {entry['lower']} ones up to {oldest} old were passed by younger {entry['higher']} ones"
    return (
        f"{entry['lower']} overtakes {entry['higher']} {by_settings} ({entry['reason']}); "
        f"in fact {in_fact}{passed}"
    )


def mechanism_lines(document: Mapping[str, Any]) -> list[str]:
    """What was inert and why; what acted, in short; arms that are the same.

    Arms that differ in the router alone share their mechanisms, so only the last is said of them.
    """
    lines = []
    for arm in document["arms"]:
        if document.get("ranking"):
            lines += _same_lines(document, arm)
            continue
        for entry in arm["mechanisms"]:
            if entry["status"] == "inert":
                words = "required by the strategy, but inert" if entry["is_required"] else "inert"
                lines.append(f"{arm['name']}: {entry['feature']} is {words}: {entry['reason']}")
        undecided: dict[str, list[str]] = {}
        for entry in arm["mechanisms"]:
            if entry["status"] == "unknown":
                undecided.setdefault(entry["reason"], []).append(entry["feature"])
        lines += [
            f"{arm['name']}: undecided: {', '.join(names)}: {reason}"
            for reason, names in undecided.items()
        ]
        active = [one["feature"] for one in arm["mechanisms"] if one["status"] == "active"]
        if active:
            lines.append(f"{arm['name']}: active: {', '.join(active)}")
        lines += _same_lines(document, arm)
    return lines


def _same_lines(document: Mapping[str, Any], arm: Mapping[str, Any]) -> list[str]:
    return [
        f"{arm['name']} and {other} are the same: every request fared exactly the same, on every seed"
        for other in arm["same_as"]
        if _is_before(document, arm["name"], other)
    ]


def _is_before(document: Mapping[str, Any], first: str, second: str) -> bool:
    names = [arm["name"] for arm in document["arms"]]
    return names.index(first) < names.index(second)


def failure_lines(document: Mapping[str, Any]) -> list[str]:
    """Arms with runs that did not come to their end, and what that does to the figures."""
    lines = []
    for arm in document["arms"]:
        failure = arm["failure"]
        if failure is not None:
            left = "its figures leave these seeds out, which may flatter it"
            words = left if len(failure["seeds"]) < len(document["seeds"]) else "it has no figures"
            lines.append(f"{arm['name']}: {failure['message']} — {words}")
        if arm["num_broken_invariants"]:
            lines.append(
                f"{arm['name']}: {arm['num_broken_invariants']} broken invariants; report this"
            )
    return lines
