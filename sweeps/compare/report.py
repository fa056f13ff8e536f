"""A comparison's sentences and its TTFT table, rendered from its document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import (
    PERCENTILES_EXPLAINED,
    TOKEN_RATES,
    TOKEN_RATES_EXPLAINED,
    lookup,
    pooled_names,
)
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.answers import IN_PERCENT, metric_title
from blis_jax.reports.arm_pictures import TAIL
from blis_jax.reports.findings import Cell, Quantity, Row, Table
from blis_jax.reports.study import words_of
from blis_jax.reports.words import joined, metric_name, number, survivors_line, table_title
from blis_jax.statistics.paired import SEEDS_FOR_POOLED, Difference, Pair
from blis_jax.statistics.sequential import (
    DECIDED,
    PRECISE,
    SPENT,
    Look,
    StoppingRule,
    look,
    look_until_end,
    rule_words,
)
from sweeps.runs.measured import FALLS_BEHIND, KeptRuns, pair_of

if TYPE_CHECKING:
    from sweeps.compare.document import CommonSetting
    from sweeps.strategies.arms import Arm


VIEW_WORDS = {"mean": "mean", "p99": "P99", "tail": "slowest 1 %"}


def requests_line(document: Mapping[str, Any]) -> str:
    """Return a line that names the workload and the seeds, or the trace and its runs."""
    if document.get("trace"):
        return trace_line(document)
    size = f"{document['num_requests']} requests, " if document["num_requests"] else ""
    seeds = words_of(document).listed(document["seeds"], has_kind=False)
    return f"Workload {document['workload']}, {size}{seeds} common to all, requests by {document['rng']}."


def trace_line(document: Mapping[str, Any]) -> str:
    """Return a line that names the trace, and says whether an arm has one run, windows of the trace, or seeds."""
    trace, count = document["trace"], len(document["seeds"])
    text = (
        f"Trace {Path(trace['path']).name} ({trace['format']}): {trace['num_requests']} requests in "
        f"{trace['span_s']:.4g} s, the same for all; "
    )
    if trace["windows"]:
        return f"{text}{count} windows of {trace['span_s'] / count:.4g} s, each a run."
    if count == 1:
        return f"{text}one run each, as nothing is drawn."
    return f"{text}{count} runs each where something is drawn (seeds {', '.join(map(str, document['seeds']))})."


# --- TTFT -----------------------------------------------------------------------------------------


def part_table(document: Mapping[str, Any]) -> Table:
    """Return the table of the parts of TTFT in ms, by class and arm: of the mean, the P99 and the slowest requests."""
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
    rows = [
        Row((slo_class, words, *cells), is_brief=False)
        for slo_class in ("all", *document["classes"])
        for view, words in VIEW_WORDS.items()
        for cells in _part_rows(document, slo_class, view, names)
    ]
    title = f"TTFT by component, ms (mean over {words_of(document).many})"
    return Table(("class", "of", "arm", "TTFT", *names), tuple(rows), title, num_keys=3)


def _group_names(document: Mapping[str, Any]) -> list[str]:
    for arm in document["arms"]:
        for views in arm["ttft_parts"].values():
            for view in views.values():
                return list(view["groups"])
    return []


def _part_rows(
    document: Mapping[str, Any], slo_class: str, view: str, names: Sequence[str]
) -> Iterator[list[Cell]]:
    for arm in document["arms"]:
        views = arm["ttft_parts"].get(slo_class, {}).get(view)
        total = None if views is None else views["total"]
        parts = [None if views is None else views["groups"][name] for name in names]
        yield [arm["name"], Quantity(total), *(Quantity(part, like=total) for part in parts)]


# --- drawn coefficients ---------------------------------------------------------------------------


def draw_tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the table of the arms on coefficients drawn from a fit, if there are any; its short form has TTFT P99
    only."""
    section = document.get("coefficients")
    if section is None:
        return
    cases: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in section["figures"]:
        cases.setdefault((entry["class"], entry["metric"]), []).append(entry)
    has_tail = any(metric == TAIL for _, metric in cases)
    rows = [
        Row(cells, is_brief=metric == TAIL or not has_tail)
        for (slo_class, metric), entries in cases.items()
        for cells in _draw_rows(slo_class, metric, entries)
    ]
    title = f"On {len(section['draws'])} draws of the coefficients of {section['source']}"
    columns = ("class", "metric", "arm", "mean [95 % of the draws]", "is best with probability")
    yield Table(columns, tuple(rows), title, num_keys=3, name="draws")


def _draw_rows(
    slo_class: str, metric: str, entries: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Cell, ...]]:
    by = 100.0 if metric in IN_PERCENT else 1.0
    are_alike = len({(entry["mean"], entry["low"], entry["high"]) for entry in entries}) == 1
    for entry in entries:
        mean, low, high = (by * entry[end] for end in ("mean", "low", "high"))
        best = "alike" if are_alike else f"{entry['probability_of_best']:.2f}"
        yield slo_class, metric_title(metric), entry["arm"], Quantity(mean, low, high), best


# --- criteria, ageing, mechanisms, failures -------------------------------------------------------


def criterion_lines(document: Mapping[str, Any]) -> list[str]:
    """Return every success criterion with its verdict, then the verdicts of the same bound on the other classes."""
    lines = []
    for entry in document["criteria"]:
        if not (entry["is_asked"] or entry["num_seeds"]):
            continue
        sign = "at most" if entry["direction"] == "min" else "at least"
        is_change = "change_percent" in entry
        goal = entry["change_percent"] if is_change else entry["threshold"]
        unit = f" % against {document['reference']}" if is_change else ""
        shown = f"{quantity(entry['reached'], is_change)}{' %' * is_change}"
        words = metric_name(entry["metric"]) if is_change else table_title(entry["metric"])
        name = f"{words} of {entry['class']}"
        verdict = "met" if entry["is_met"] else "not met"
        if entry["num_seeds"] == 0:
            verdict = "no figure"
        elif not entry["is_sure"]:
            verdict += ", but the interval crosses the bound"
        seeds = f"{entry['num_seeds_met']} of {entry['num_seeds']} seeds"
        mark = "" if entry["is_asked"] else "(beyond the criteria) "
        lines.append(
            f"{mark}{entry['arm']}: {name} {sign} {number(goal, signed=is_change)}{unit}: "
            f"{f'{shown}, ' if entry['num_seeds'] else ''}{verdict} ({seeds})"
        )
    return lines


def crossover_lines(document: Mapping[str, Any]) -> list[str]:
    """Return lines on the age at which requests of a lower class go first, by the settings and as observed."""
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


def idle_lines(document: Mapping[str, Any]) -> list[str]:
    """Return lines on mechanisms that did nothing, with reasons, and on arms that are identical.

    Arms that differ in the router alone get no lines: they share their mechanisms, and the ranking lists identical arms
    once.
    """
    lines = []
    for arm in document["arms"]:
        for entry in () if document.get("ranking") else arm["mechanisms"]:
            if entry["status"] == "inert":
                words = "required by the strategy, but inert" if entry["is_required"] else "inert"
                lines.append(f"{arm['name']}: {entry['feature']} is {words}: {entry['reason']}")
        lines += [] if document.get("ranking") else _same_lines(document, arm)
    return lines


def acting_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the mechanisms that acted, and those for which the runs do not show whether they acted."""
    lines = []
    for arm in () if document.get("ranking") else document["arms"]:
        undecided: dict[str, list[str]] = {}
        for entry in arm["mechanisms"]:
            if entry["status"] == "unknown":
                undecided.setdefault(entry["reason"], []).append(entry["feature"])
        lines += [
            f"{arm['name']}: undecided: {', '.join(names)}: {reason}"
            for reason, names in undecided.items()
        ]
        active = [
            mechanism["feature"]
            for mechanism in arm["mechanisms"]
            if mechanism["status"] == "active"
        ]
        if active:
            lines.append(f"{arm['name']}: active: {', '.join(active)}")
    return lines


def _same_lines(document: Mapping[str, Any], arm: Mapping[str, Any]) -> list[str]:
    """Return a line that lists the arms identical to `arm`, if it is the first of several."""
    names = [arm["name"] for arm in document["arms"]]
    alike = [name for name in names if name == arm["name"] or name in arm["same_as"]]
    if len(alike) < 2 or alike[0] != arm["name"]:
        return []
    return [f"{joined(alike)} are the same: every request fared exactly the same, on every seed"]


def failure_lines(document: Mapping[str, Any]) -> list[str]:
    """Name the arms with unfinished runs or requests, broken invariants, or growing waits where others keep up, and
    what that means for their figures."""
    lines, behind = [], [arm.get("acted", {}).get(FALLS_BEHIND, 0) for arm in document["arms"]]
    for arm, num_behind in zip(document["arms"], behind, strict=True):
        if num_behind and min(behind) == 0:
            lines.append(
                f"{arm['name']} falls behind: requests come faster than it serves them, so its waits grow with the "
                f"length of a run (runs: {num_behind} of {len(arm['outcomes'])})"
            )
        failure = arm["failure"]
        if failure is not None:
            left = "its figures leave these seeds out, which may flatter it"
            words = left if len(failure["seeds"]) < len(document["seeds"]) else "it has no figures"
            lines.append(f"{arm['name']}: {failure['message']} — {words}")
        completed, arrived = arm.get("survivors") or (0, 0)
        if completed < arrived:
            lines.append(f"{arm['name']}: {survivors_line(completed, arrived)}")
        if arm["num_broken_invariants"]:
            lines.append(
                f"{arm['name']}: {arm['num_broken_invariants']} broken invariants; report this"
            )
    return lines


# --- numbers ------------------------------------------------------------------------------------


def quantity(entry: Mapping[str, Any], is_signed: bool = True) -> Quantity:
    """Return a document's entry as a number with its interval."""
    return Quantity(entry["mean"], entry["low"], entry["high"], is_signed=is_signed)


def milliseconds(us: float) -> str:
    """Return a time given in µs as text, in ms or, if long, in s."""
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.4g} ms"


def percentile_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Explain the two kinds of percentiles, where the entries have pooled ones."""
    pooled = [entry for entry in entries if entry["metric"] in pooled_names()]
    if not pooled:
        return []
    few = " With so few seeds, a few busy ones make up the tail, and intervals of pooled percentiles hold too seldom."
    is_few = min(entry["num_pairs"] for entry in pooled) < SEEDS_FOR_POOLED
    return [PERCENTILES_EXPLAINED + few * is_few]


def token_rate_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Explain what the throughputs count, where the entries have any."""
    is_there = any(entry["metric"] in TOKEN_RATES for entry in entries)
    return [f"Throughput: {TOKEN_RATES_EXPLAINED}"] if is_there else []


# --- as many seeds as a rule asks for: arms are run on more and more of them, all on the same -----


Differences = Look[tuple[Difference, ...]]
INTERRUPTED = "interrupted"
ENDS = {
    DECIDED: "every verdict is safe",
    PRECISE: "every difference is decided or known well enough",
    SPENT: "no more seeds are allowed (--most-seeds)",
    INTERRUPTED: "the user stopped the command",
}


@dataclass(frozen=True)
class EnoughSeeds:
    """A stopping rule for the number of seeds, with the metrics and the confidence that it uses."""

    rule: StoppingRule
    names: tuple[str, ...]  # metrics, of every arm against the first
    confidence: float

    def run(
        self, arms: Sequence[Arm], kept: KeptRuns
    ) -> tuple[list[tuple[RunSummary, ...]], list[Differences]]:
        """Run every arm on more and more seeds until the rule is met; return the runs and each look's differences."""

        def runs() -> list[tuple[RunSummary, ...]]:
            return [kept.of(arm.config, arm.name) for arm in arms]

        def look_at(count: int) -> Differences:
            kept.reach(count, len(arms))
            kept.make([(arm.config, arm.name) for arm in arms])
            return look(self._pairs(runs()), self.rule, self.confidence)

        looks = look_until_end(self.rule, len(kept.seeds), look_at)
        return runs(), looks

    def used(self, setting: CommonSetting, seeds: Sequence[int]) -> CommonSetting:
        """Return the setting with the seeds that were used; if the rule decides, intervals hold at every look."""
        inference = replace(setting.inference, is_anytime=self.rule.decides)
        return replace(setting, seeds=tuple(seeds), inference=inference)

    def _pairs(self, runs: Sequence[Sequence[RunSummary]]) -> list[Pair]:
        reference, *others = runs
        return [pair_of(reference, other, name) for other in others for name in self.names]

    def document(self, arms: Sequence[Arm], looks: Sequence[Differences]) -> dict[str, Any]:
        """Return as plain data the rule, the looks and the seeds used."""
        judged = [(arm.name, name) for arm in arms[1:] for name in self.names]
        return stopping_json(self.rule, self.confidence, judged, looks)


def stopping_json(
    rule: StoppingRule,
    confidence: float,
    judged: Sequence[tuple[str, str]],
    looks: Sequence[Differences],
) -> dict[str, Any]:
    """Return the rule by which seeds were added, and each look's results; `judged` are arms with their metrics."""
    last = looks[-1]
    return {
        "rule": rule_words(rule, confidence),
        "decides": rule.decides,
        "precision": rule.precision,
        "most_seeds": rule.most_seeds,
        "num_seeds": last.num_seeds,
        "looks": [seen.num_seeds for seen in looks],
        "end": last.end,
        "differences": [
            {
                "arm": arm,
                "metric": lookup(name)[0].name,
                "class": lookup(name)[1] or ALL,
                **difference.to_json(),
            }
            for (arm, name), difference in zip(judged, last.found, strict=True)
        ],
    }


def stopping_lines(document: Mapping[str, Any]) -> list[str]:
    """Return sentences on the rule by which seeds were added, the looks, and their results."""
    stopping = document.get("stopping")
    if not stopping:
        return []
    looks = ", ".join(map(str, stopping["looks"]))
    return [
        f"{stopping['num_seeds']} seeds: {stopping['rule']}. Looks at {looks}; then {ENDS[stopping['end']]}.",
        *(
            f"{entry['arm']}, {metric_name(entry['metric'])} of {entry['class']} requests: "
            f"{quantity(entry['simultaneous_percent'])} %, {entry['verdict']}"
            for entry in stopping["differences"]
        ),
        f"These intervals hold for {len(stopping['differences'])} together; the table judges more figures "
        "together, so its intervals are wider.",
    ]
