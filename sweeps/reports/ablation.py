"""An ablation as a report: what each component contributes, beside the change as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands.flags.report_flags import ReportPaths
from blis_jax.metrics.summaries import ALL
from blis_jax.metrics.ttft_parts import VIEWS, grouped
from blis_jax.reports.run_words import words_of
from blis_jax.reports.runs import timelines_of
from blis_jax.reports.study import (
    CURVE_LEVELS,
    EVERYWHERE,
    SeedValues,
    ShownDifference,
    Study,
    TtftShare,
)
from blis_jax.reports.words import joined
from sweeps.compare.ablation import report as words
from sweeps.compare.ablation.document import ADDED, LEFT_OUT, MAIN, SHAPLEY, Ablation
from sweeps.compare.document import part_table
from sweeps.reports.comparison import (
    common_seed,
    curves_of,
    difference_of,
    target_line,
    values_of,
    write_files,
)
from sweeps.reports.words import token_rate_lines

if TYPE_CHECKING:
    from blis_jax.results.records import RunRecord
    from sweeps.runs.bench import Bench
    from sweeps.runs.measured import Measured

Document = Mapping[str, Any]


def write_reports(
    document: Document, ablation: Ablation, bench: Bench, paths: ReportPaths, command: str
) -> None:
    """The page and the trace; one run of the base and one of the arm are made again."""
    ends = {ablation.base.name: ablation.base.config, ablation.arm.name: ablation.arm.config}
    runs = _runs_of_ends(ablation)
    seed = common_seed(document["seeds"], list(runs.values()))
    records = {} if seed is None else {
        name: bench.record(config, seed) for name, config in ends.items()
    }  # fmt: skip
    study = study_of(document, runs, records, seed, command)
    write_files(study, records, ends, seed, paths)


def _runs_of_ends(ablation: Ablation) -> dict[str, Sequence[Measured]]:
    whole = 2 ** len(ablation.components) - 1
    return {ablation.base.name: ablation.runs(0), ablation.arm.name: ablation.runs(whole)}


def study_of(
    document: Document,
    runs: Mapping[str, Sequence[Measured]],
    records: Mapping[str, RunRecord],
    seed: int | None,
    command: str,
) -> Study:
    """The report; `runs` and `records` are of the base and of the arm."""
    inference = document["inference"]
    base, arm = document["base"], document["arm"]
    classes = (ALL, *document["classes"])
    differences = [difference_of(entry, arm, base) for entry in document["total"]]
    differences = [replace(one, place=ADDED) for one in differences]
    differences += [_contribution(entry, base, arm) for entry in document["contributions"]]
    components = [one["name"] for one in document["components"]]
    parts = f"{len(components)} components: {joined(components)}" if components else "nothing"
    runs_are = words_of(document)
    source = "trace" if document.get("trace") else "workload"
    return Study(
        command=command,
        workload=document["workload"],
        strategies=(base, arm, *components),
        title=f"What makes {arm} differ from {base} on the {source} {document['workload']}",
        lead=f"{arm} differs from {base} in {parts}. This page says what each of them contributes, on "
        f"the {source} “{document['workload']}”, simulated with {runs_are.listed(document['seeds'])}. On "
        f"each {runs_are.one}, every combination serves exactly the same requests.",
        places=tuple(dict.fromkeys(one.place for one in differences)),
        place_title="Kind of contribution",
        descriptions={},
        classes=classes,
        seeds=tuple(document["seeds"]),
        runs=runs_are,
        differences=tuple(differences),
        intervals=inference["intervals"],
        joint=f"{100 * inference['confidence']:g} %; {inference['simultaneous_intervals']}",
        verdicts="A change is called better or worse where Holm's method, which corrects for the "
        f"number of contributions, tells it from chance ({inference['family']}).",
        values=tuple(_values(document)),
        levels=CURVE_LEVELS,
        curves=tuple(replace(one, place=EVERYWHERE) for one in curves_of(runs, classes)),
        parts=tuple(_parts(runs, classes)),
        parts_of=f"Means over all {runs_are.many}, of the base and of the arm; the parts add up to the TTFT.",
        timelines=timelines_of(records, seed) if seed is not None else (),
        notes=(
            f"“{ADDED}” is {base} with one component added; “{LEFT_OUT}” is {arm} against {arm} without "
            f"the component; “{SHAPLEY}” averages over all orders in which components can be added; "
            f"“{MAIN}” averages over all combinations of the others.",
            target_line(document["targets"]),
            *token_rate_lines(document["contributions"]),
        ),
        checks=tuple(map(runs_are.in_text, words.failure_lines(document))),
        more={"The components": words.component_lines(document)},
        provenance={
            **document["versions"],
            "random stream": document["rng"],
            runs_are.many: ", ".join(map(str, document["seeds"])),
            "components": {one["name"]: one["settings"] for one in document["components"]},
        },
    )


def _contribution(entry: Mapping[str, Any], base: str, arm: str) -> ShownDifference:
    component, kind = entry["component"], entry["kind"]
    reference = f"{arm} without {component}" if kind == LEFT_OUT else base
    return replace(difference_of(entry, component, reference), place=kind)


def _values(document: Document) -> Iterator[SeedValues]:
    """Every combination's seeds under the names and kinds that the differences use."""
    components = [one["name"] for one in document["components"]]
    by_parts = {frozenset(one["on"]): one["figures"] for one in document["combinations"]}
    base, arm, whole = document["base"], document["arm"], frozenset(components)
    named = {(ADDED, base): frozenset[str](), (ADDED, arm): whole}
    for component in components:
        named[ADDED, component] = frozenset([component])
        named[LEFT_OUT, component] = whole
        named[LEFT_OUT, f"{arm} without {component}"] = whole - {component}
    for (kind, name), on in named.items():
        for value in values_of(name, by_parts.get(on, {})):
            yield replace(value, place=kind)


def _parts(runs: Mapping[str, Sequence[Measured]], classes: Sequence[str]) -> Iterator[TtftShare]:
    for name, of_arm in runs.items():
        for slo_class in classes:
            for view in VIEWS:
                table = part_table(of_arm, slo_class, view)
                table = table[np.isfinite(table).all(axis=1)]
                if len(table):
                    for group, value in grouped(table.mean(axis=0)).items():
                        yield TtftShare(name, slo_class, view, group, float(value))
