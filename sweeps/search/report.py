"""What a search found, from its document: the answer first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.words import metric_words, number
from sweeps.search.figure import picture


def findings_of(document: Mapping[str, Any], result: Path | None = None) -> Findings:
    """Return what a search found, for every output; `result` is the file that the document is in."""
    sections, has_best = [_failures(document)], document["best_score"] is not None
    if has_best:
        sections += [_criteria(document), _front(document)]
    drawn = (picture(document),) if has_best else ()
    return Findings(_answer(document, result), (_parameters(document), *sections), drawn)


def _answer(document: Mapping[str, Any], result: Path | None) -> Answer:
    num_runs = sum(len(point["outcomes"]) for point in document["points"])
    name = "RESULT.json" if result is None else str(result)
    by = "a trace's" if document["rng"] == "recorded" else f"by {document['rng']}"
    return Answer(
        asked=f"Which parameters of {document['strategy']} score lowest? {document['n_calls']} points × "
        f"{_runs_of_a_point(document)} runs, engine {document['search']['engine']}, requests {by}.",
        verdict=tuple(_verdicts(document)),
        sure=_sure(document),
        price=Sentence.of(Quantity.whole(num_runs), " runs."),
        next=f"python -m sweeps.compare {document['strategy']} {name} judges it on other seeds."
        if document["best_score"] is not None
        else "see the outcomes in the result.",
        cluster=document.get("cluster", ""),
    )


def _runs_of_a_point(document: Mapping[str, Any]) -> str:
    """Return the runs of a point; with rungs the fewest and the most."""
    most, rungs = len(document["seeds"]), document["search"].get("rungs")
    return f"{rungs[0]} to {most}" if rungs else str(most)


def _verdicts(document: Mapping[str, Any]) -> list[Sentence]:
    if document["best_score"] is None:
        return [Sentence.of("every point failed.")]
    is_recommended = document.get("is_recommended")
    which = "which the model recommends" if is_recommended else "the best of them"
    call, score = (
        Quantity.whole(document["best_call"] + 1),
        Quantity(document["best_score"], like=0.001),
    )
    total = Quantity.whole(document["n_calls"])
    meaning = ", its objectives plus penalties."
    sentences = [
        Sentence.of("point ", call, " of ", total, f", {which}, has score ", score, meaning)
    ]
    parts: list[str | Quantity] = []
    for slo_class, metrics in document["best_figures"].items():
        tail = metrics.get("ttft_p99_ms")
        if tail is not None and tail["mean"] is not None:
            figure = Quantity(tail["mean"], tail["low"], tail["high"], form="half")
            parts += [", " * bool(parts), f"{slo_class} ", figure]
    return [*sentences, *([Sentence.of("TTFT P99, ms: ", *parts, ".")] if parts else [])]


def _sure(document: Mapping[str, Any]) -> Sentence:
    level = "95 % for each mean by itself"
    if not document.get("is_recommended"):
        return Sentence.of(f"{level}; the lowest of many scores is partly luck.")
    score, call = (
        Quantity(document["lowest_score"], like=0.001),
        Quantity.whole(document["lowest_call"] + 1),
    )
    return Sentence.of(
        f"{level}; the lowest score, ", score, " of point ", call, ", is partly luck."
    )


def _parameters(document: Mapping[str, Any]) -> Table:
    entries = (document["best_parameters"] or {}).items()
    rows = tuple(Row((name, str(value))) for name, value in entries)
    return Table(("parameter", "value"), rows, name="parameters")


def _failures(document: Mapping[str, Any]) -> Remarks:
    failed = ", ".join(f"{count} × {name}" for name, count in document["failures"].items())
    return Remarks((f"Failed points: {failed or 'none'}.",), is_brief=bool(failed))


def _criteria(document: Mapping[str, Any]) -> Remarks:
    lines = []
    for entry in document["success"]:
        is_change = "change_percent" in entry
        goal = number(entry["change_percent" if is_change else "threshold"], is_change)
        reached = number(entry["reached"], is_change)
        unit, of = (" %", " against the baseline") if is_change else ("", "")
        sign = "at most" if entry["direction"] == "min" else "at least"
        verdict = "met" if entry["is_met"] else "not met"
        lines.append(
            f"{metric_words(entry['metric'])} {sign} {goal}{unit}{of}: {reached}{unit}, {verdict}"
        )
    return Remarks(tuple(lines), "Success criteria", is_brief=True)


def _front(document: Mapping[str, Any]) -> Remarks:
    if "front" not in document:
        return Remarks(())
    count, volume = len(document["front"]["calls"]), document["front"]["hypervolume"]
    return Remarks((f"Pareto front of {count} points, hypervolume {volume:.6g}.",), is_brief=True)
