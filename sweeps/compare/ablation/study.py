"""An ablation as options of `blis-jax ablate` say: its runs, its findings and its pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands.options.outputs import OutputPaths, outputs_of, write_pages
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import finite
from blis_jax.metrics.summaries import ALL, VIEWS, grouped
from blis_jax.progress import phase
from blis_jax.reports.answers import answer, by_class, change_value, deciding, in_words
from blis_jax.reports.findings import Findings, Quantity, Remarks, Sentence
from blis_jax.reports.study import (
    EVERYWHERE,
    MetricChange,
    SeedValues,
    Study,
    TtftShare,
    judged,
    provenance_of,
    words_of,
)
from blis_jax.reports.study_pictures import pictures
from blis_jax.reports.words import target_line
from sweeps.compare.ablation import report as words
from sweeps.compare.ablation.components import Component, components_of, config_at, on
from sweeps.compare.ablation.document import (
    ADDED,
    LEFT_OUT,
    MAIN,
    SHAPLEY,
    Ablation,
    Combination,
    default_metrics,
    to_document,
)
from sweeps.compare.ablation.effects import masks_of
from sweeps.compare.document import CommonSetting, part_table
from sweeps.compare.report import token_rate_lines
from sweeps.compare.result import make_part, setting_of, write_result
from sweeps.compare.study import (
    common_seed,
    seconds_sentence,
    values_of,
    with_runs,
)
from sweeps.runs.experiment import Experiment
from sweeps.runs.options import FOLDER, NUM_SEEDS
from sweeps.runs.requests import requests_of, workload_of_arms
from sweeps.strategies.arms import Arm, arms_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.files.journal import Journal
    from blis_jax.metrics.run_summary import RunSummary
    from blis_jax.records.record import RunRecord
    from sweeps.ablate import AblateOptions


Document = Mapping[str, Any]


def write_reports(
    document: Document, ablation: Ablation, experiment: Experiment, paths: OutputPaths, command: str
) -> None:
    """Write the page and the trace; for these, one run of the base and one of the arm are made again."""
    ends = {ablation.base.name: ablation.base.config, ablation.arm.name: ablation.arm.config}
    runs = _runs_of_ends(ablation)
    seed = common_seed(document["seeds"], list(runs.values()))
    records = {} if seed is None else {
        name: experiment.record(config, seed) for name, config in ends.items()
    }  # fmt: skip
    study = _with_ends(study_of(document, command), runs, records, seed)
    write_pages(study, records, ends, seed, paths, findings_of(document))


def _runs_of_ends(ablation: Ablation) -> dict[str, Sequence[RunSummary]]:
    whole = 2 ** len(ablation.components) - 1
    return {ablation.base.name: ablation.runs(0), ablation.arm.name: ablation.runs(whole)}


def findings_of(document: Document, seconds: float | None = None) -> Findings:
    """Return the findings of an ablation for every output; `seconds` is the wall time of the command."""
    study = replace(study_of(document), time=seconds_sentence(seconds))
    deciding_metric = deciding(study)
    metrics = words.metrics_of(document)
    is_small = len(document["combinations"]) <= words.MOST_ROWS
    said = study.runs.in_text
    return Findings(
        answer(study),
        (
            Remarks(study.remarks, is_brief=True),
            Remarks(tuple(words.component_lines(document)), "Components", is_brief=True),
            *(
                words.contribution_table(document, slo_class, metric, metric == deciding_metric)
                for slo_class, metric in metrics
            ),
            *([words.combination_table(document)] if is_small else []),
            words.interaction_table(document),
            Remarks(
                (
                    words.design_line(document),
                    said(
                        f"Intervals of differences hold for the whole family together: {study.joint}."
                    ),
                    said(
                        f"Those of one difference by itself are in the result: {study.intervals}."
                    ),
                    "The changes as a whole, at the head of each table, are a family of their own.",
                    said(
                        f"{study.verdicts} Interactions: {document['inference']['family_of_interactions']}."
                    ),
                    *study.notes,
                )
            ),
        ),
        pictures(study),
        study.place_title,
    )


def _verdict(study: Study, document: Document) -> tuple[Sentence, ...]:
    """Return the total change by class, then the component that contributes most to it."""
    metric, arm = deciding(study), document["arm"]
    whole = [difference for difference in study.differences if difference.strategy == arm]
    sentences = [Sentence.of("in all ", *by_class(whole, metric), ".")]
    kinds = dict.fromkeys(entry["kind"] for entry in document["contributions"])
    kind = SHAPLEY if SHAPLEY in kinds else ADDED
    parts: list[str | Quantity] = []
    for slo_class in document["classes"] or [ALL]:
        clear = [
            difference
            for difference in study.differences
            if (difference.place, difference.metric, difference.slo_class)
            == (kind, metric, slo_class)
            and difference.strategy != arm
            and difference.change.verdict in words.CLEAR
        ]
        if clear:
            most = max(
                clear, key=lambda difference: abs(finite(difference.change.absolute.mean) or 0)
            )
            parts += [
                ", " * bool(parts),
                f"{slo_class} {most.strategy} ",
                change_value(most, "bare"),
            ]
    if parts:
        return (*sentences, Sentence.of(f"most of it ({kind}): ", *parts, "."))
    return (*sentences, Sentence.of("no single component is told from chance."))


def study_of(document: Document, command: str = "") -> Study:
    """Return an ablation as a report, without the parts that need whole runs."""
    base, arm = document["base"], document["arm"]
    total = {"arm": arm, "reference": base, "place": ADDED}
    differences = [MetricChange.of_json(entry | total) for entry in document["total"]]
    differences += [_contribution(entry, base, arm) for entry in document["contributions"]]
    components = [component["name"] for component in document["components"]]
    runs_are = words_of(document)
    source = "trace" if document.get("trace") else "workload"
    runs = runs_are.counted(len(document["seeds"]))
    study = Study(
        command=command,
        workload=document["workload"],
        cluster=document["cluster"],
        strategies=(base, arm, *components),
        title=f"What makes {arm} differ from {base} on the {source} {document['workload']}",
        places=tuple(dict.fromkeys(difference.place for difference in differences)),
        place_title="Kind of contribution",
        own=(words.picture(document),) if document["contributions"] else (),
        descriptions={},
        classes=(ALL, *document["classes"]),
        seeds=tuple(document["seeds"]),
        runs=runs_are,
        differences=tuple(differences),
        **judged(document),
        num_runs=len(document["seeds"])
        * sum(entry["error"] is None for entry in document["combinations"]),
        values=tuple(_values(document)),
        parts_of=f"Means over all {runs_are.many}, of the base and of the arm; the parts add up to the TTFT.",
        notes=(
            f"“{ADDED}” is {base} with one component added; “{LEFT_OUT}” is {arm} against {arm} without "
            f"the component; “{SHAPLEY}” averages over all orders in which components can be added; "
            f"“{MAIN}” averages over all combinations of the others.",
            target_line(document["targets"]),
            *token_rate_lines(document["contributions"]),
        ),
        remarks=tuple(words.failure_lines(document)),
        more={"The components": words.component_lines(document)},
        provenance={
            **provenance_of(document, runs_are),
            "components": {
                component["name"]: component["settings"] for component in document["components"]
            },
        },
    )
    of = in_words(deciding(study))
    return replace(
        study,
        asked=f"Which part of {arm} makes it differ from {base} in {of}? {len(components)} components, {runs}.",
        verdict=_verdict(study, document),
        next="blis-jax compare judges an arm without what does nothing; --report FILE.html draws it.",
    )


def _with_ends(
    study: Study,
    runs: Mapping[str, Sequence[RunSummary]],
    records: Mapping[str, RunRecord],
    seed: int | None,
) -> Study:
    """Return the report with latency distributions and one run over time added, of the base and of the arm."""
    study = with_runs(study, runs, records, seed)
    return replace(
        study,
        curves=tuple(replace(curve, place=EVERYWHERE) for curve in study.curves),
        parts=tuple(_parts(runs, study.classes)),
    )


def _contribution(entry: Mapping[str, Any], base: str, arm: str) -> MetricChange:
    component, kind = entry["component"], entry["kind"]
    reference = f"{arm} without {component}" if kind == LEFT_OUT else base
    return MetricChange.of_json({**entry, "arm": component, "reference": reference, "place": kind})


def _values(document: Document) -> Iterator[SeedValues]:
    """Yield every combination's values by seed, under the names and kinds of contribution that the differences have."""
    components = [component["name"] for component in document["components"]]
    by_parts = {frozenset(entry["on"]): entry["figures"] for entry in document["combinations"]}
    base, arm, whole = document["base"], document["arm"], frozenset(components)
    named = {(ADDED, base): frozenset[str](), (ADDED, arm): whole}
    for component in components:
        named[ADDED, component] = frozenset([component])
        named[LEFT_OUT, component] = whole
        named[LEFT_OUT, f"{arm} without {component}"] = whole - {component}
    for (kind, name), parts in named.items():
        for value in values_of(name, by_parts.get(parts, {})):
            yield replace(value, place=kind)


def _parts(runs: Mapping[str, Sequence[RunSummary]], classes: Sequence[str]) -> Iterator[TtftShare]:
    for name, of_arm in runs.items():
        for slo_class in classes:
            for view in VIEWS:
                table = part_table(of_arm, slo_class, view)
                table = table[np.isfinite(table).all(axis=1)]
                if len(table):
                    for group, value in grouped(table.mean(axis=0)).items():
                        yield TtftShare(name, slo_class, view, group, float(value))


def take_apart(options: AblateOptions, arm_text: str, base_text: str, command: str) -> int:
    """Run combinations of components, and write and print each component's contribution; return the exit code."""
    began = time.monotonic()
    if arm_text == base_text:
        raise ConfigError(f"{arm_text} is both ARM and --against: nothing to take apart")
    options.check_part(options.output)
    arm, base = arms_of(
        (arm_text, base_text),
        options.instances,
        options.trace is not None,
        options.coefficients_from,
    )
    components = components_of(base.config, arm.config, options.components)
    paths = outputs_of(options, f"{FOLDER}/ablate.json", beside=(".jsonl",))
    if options.block_s is not None:
        raise ConfigError("--block-s has no meaning here; --trace-windows gives runs to compare")
    masks = masks_of(options.design, len(components))
    configs = [base.config, arm.config]
    requests = requests_of(
        options, options.command, lambda: workload_of_arms(options, [arm, base]), configs, NUM_SEEDS
    )
    setting = setting_of(
        options, requests, [arm, base], lambda classes, _: default_metrics(classes)
    )
    experiment = Experiment(requests, setting.metrics, setting.targets)
    journal = experiment.journal(paths.beside(".jsonl"), "ablation", options.part)
    combined, errors = _combined(base, arm, components, masks)
    with journal.held(options.resume):
        if options.part is not None:
            return make_part(
                options, options.part, setting, experiment, journal, list(combined.values())
            )
        combinations = _run(options.command, setting, experiment, journal, masks, combined, errors)

        ablation = Ablation(base, arm, components, options.design, combinations)

        with phase("judging contributions"):
            document = to_document(setting, ablation)

        def write_more() -> None:
            write_reports(document, ablation, experiment, paths, command)

        has_figures = any(contribution["num_pairs"] for contribution in document["contributions"])
        lacking = None if has_figures else "on no seed did two combinations finish"
        seconds = time.monotonic() - began
        return write_result(document, paths, options, findings_of, write_more, seconds, lacking)


Named = tuple["ClusterConfig", str]


def _combined(
    base: Arm, arm: Arm, components: Sequence[Component], masks: Sequence[int]
) -> tuple[dict[int, Named], dict[int, str]]:
    """Return named configurations by mask, and the errors of combinations that are no valid configuration by mask."""
    configs: dict[int, Named] = {}
    errors: dict[int, str] = {}
    for mask in masks:
        name = " + ".join(component.name for component in on(components, mask)) or base.name
        try:
            configs[mask] = config_at(base.config, arm.config, components, mask), name
        except ConfigError as error:
            errors[mask] = str(error)
    return configs, errors


def _run(
    command: str,
    setting: CommonSetting,
    experiment: Experiment,
    journal: Journal,
    masks: Sequence[int],
    configs: Mapping[int, Named],
    errors: Mapping[int, str],
) -> tuple[Combination, ...]:
    """Run every combination on every seed; combinations in `errors` are not run and keep their error."""
    classes, is_one = setting.classes, setting.is_one_trace
    with experiment.kept_runs(command, journal, len(masks), classes, is_one) as kept:
        kept.make(list(configs.values()))
        return tuple(
            Combination(mask, error=errors[mask])
            if mask in errors
            else Combination(mask, kept.of(*configs[mask]))
            for mask in masks
        )
