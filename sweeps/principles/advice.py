"""A strategy checked against the catalogue: the principles that it touches, with advice and measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.metrics.metric import name_in
from blis_jax.metrics.run_summary import RunSummary, share_differing
from blis_jax.reports import render
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Sentence
from blis_jax.statistics.intervals import BY_STUDENT
from blis_jax.statistics.paired import Pair, differences
from sweeps.principles import USUAL_OUTPUT
from sweeps.principles.catalogue import Entry, load_catalogue
from sweeps.principles.facts import Case, facts_of
from sweeps.principles.lab import figures_of
from sweeps.principles.rules import AGAINST, Touch, touches
from sweeps.principles.verdicts import PrinciplesRecord, code_hash, identity
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import strategies_of, workload_for
from sweeps.strategies.arms import Arm, arm_of

NAME = "sweeps.principles"
USUAL_SEEDS = (42, 43, 44)
MEASURED = ("ttft_p99_ms", "completion_rate")


def advise(
    strategy: str,
    path: Path | None,
    entries: Sequence[Entry],
    seeds: tuple[int, ...] | int | None,
    stream: str,
    is_measured: bool,
) -> int:
    """Print the findings of the rules on a strategy; return the exit code."""
    arm = arm_of(strategy)
    if path is not None:
        if path.suffix != ".json":
            raise ConfigError(f"--output: {str(path)!r} must end in .json")
        cli.check_writable(path)
    on = seeds_for(arm.strategy.seeds if arm.strategy is not None else USUAL_SEEDS, seeds)
    case = case_of(arm, on[0])
    wanted = {entry.id: entry for entry in entries}
    touched = [touch for touch in touches(case) if touch.principle in wanted]
    verdicts = _verdicts(stream)
    measured: list[list[dict[str, Any]]] = [[] for _ in touched]
    if is_measured:
        measured = _measured(stream, case, touched, on)
    documents = [
        _document(touch, wanted[touch.principle], verdicts, rows)
        for touch, rows in zip(touched, measured, strict=True)
    ]
    render.show(findings_of(arm.name, documents, on, is_measured))
    if path is not None:
        with cli.writing(path):
            write_json(path, {"strategy": arm.name, "seeds": on, "findings": documents})
        print(f"Written: {path}")
    return 0


def case_of(arm: Arm, seed: int) -> Case:
    """Return an arm with its workload: that of its strategy file, or `mixed`."""
    spec, _ = workload_for(None, strategies_of([arm]), None)
    return Case(arm.config, spec, facts_of(arm.config, spec, seed), arm.strategy)


def seeds_for(usual: tuple[int, ...], wanted: tuple[int, ...] | int | None) -> tuple[int, ...]:
    """Return `usual` if `wanted` is None, the seeds in `wanted`, or as many from the first usual seed on."""
    if wanted is None:
        return usual
    return tuple(range(usual[0], usual[0] + wanted)) if isinstance(wanted, int) else wanted


def _verdicts(stream: str) -> dict[str, str]:
    """Return the verdicts of recorded checks of this code, by entry; only checks with the entries' own seeds count."""
    record = PrinciplesRecord(Path(USUAL_OUTPUT).with_suffix(".jsonl"))
    try:
        checks = dict(record.lines())
    except ConfigError:  # of another version, so none of its checks is of this code
        return {}
    catalogue, code = load_catalogue(), code_hash()
    verdicts = {}
    for entry in catalogue.entries.values():
        key = identity(catalogue, entry, entry.seeds, stream, False, code)
        if key in checks:
            verdicts[entry.id] = str(checks[key]["verdict"])
    return verdicts


def _document(
    touch: Touch, entry: Entry, verdicts: Mapping[str, str], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        **asdict(touch),
        "statement": entry.statement,
        "verdict": verdicts.get(entry.id),
        "catalogue_verdict": entry.verdict,
        "measured": rows,
    }


def findings_of(
    name: str, documents: Sequence[Mapping[str, Any]], seeds: Sequence[int], is_measured: bool
) -> Findings:
    """Return the principles that a strategy touches, with advice and measurements."""
    count = len({entry["principle"] for entry in documents})
    against = [entry["principle"] for entry in documents if entry["relation"] == AGAINST]
    num_run = sum(entry["verdict"] is not None for entry in documents)
    return Findings(
        Answer(
            asked=f"Which principles does {name} rely on or contradict?",
            verdict=(
                Sentence.of(f"{name} touches ", Quantity.whole(count), " principles."),
                *([Sentence.of(f"It contradicts {', '.join(against)}.")] if against else ()),
            ),
            sure=Sentence.of(
                Quantity.whole(num_run), " of ", Quantity.whole(len(documents)),
                " principles were checked with this code, the others as the catalogue has them.",
            ),
            price=Sentence.of(
                *((Quantity.whole(len(seeds)), " runs each.") if is_measured else ("no run.",))
            ),
            next="say it beside the results." if is_measured else "--measure runs it without each setting.",
        ),
        [
            Remarks((entry["advice"], *(row["text"] for row in entry["measured"])), _title(entry), True)
            for entry in documents
        ],
    )  # fmt: skip


def _title(entry: Mapping[str, Any]) -> str:
    verdict = entry["verdict"] or f"{entry['catalogue_verdict']} in the catalogue, not run here"
    says = f"{entry['setting']} {entry['relation']} {entry['principle']} ({verdict})"
    return f"{says}: {entry['statement'].rstrip('.')}"


# --- measurement ----------------------------------------------------------------------------------


def _measured(
    stream: str, case: Case, touches: Sequence[Touch], seeds: tuple[int, ...]
) -> list[list[dict[str, Any]]]:
    """Compare, for every touched principle, the strategy with itself under the settings that the principle proposes."""
    classes = case.spec.slo_classes
    names = [name_in(name, slo_class) for name in MEASURED for slo_class in classes]
    names += list(MEASURED)
    others = {
        at: case.config.replace(**touch.instead)
        for at, touch in enumerate(touches)
        if touch.instead
    }
    configs = list(dict.fromkeys([case.config, *others.values()]))
    experiment = Experiment.on(case.spec, seeds, stream, configs_per_batch=len(configs))
    made = experiment.summaries(configs, lambda record: figures_of(record, names, True))
    runs = dict(zip(configs, made, strict=True))
    rows: list[list[dict[str, Any]]] = [[] for _ in touches]
    for at, config in others.items():
        rows[at] = _compared(runs[case.config], runs[config], classes, touches[at].instead)
    return rows


def _compared(
    first: Sequence[RunSummary],
    second: Sequence[RunSummary],
    classes: Sequence[str],
    instead: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return table rows by class: the strategy, the changed strategy, and their paired difference."""
    changed = ", ".join(f"{name}={value}" for name, value in instead.items())
    failed = [run.outcome.name for run in (*first, *second) if not run.is_whole]
    if failed:
        return [{"instead": changed, "text": f"{changed}: a run ended with {failed[0]}"}]
    if not any(share_differing(a, b) for a, b in zip(first, second, strict=True)):
        return [{"instead": changed, "text": f"{changed}: every request exactly as before"}]
    metrics = {name: f"ttft_p99_ms[{name}]" for name in classes} | {"all": "ttft_p99_ms"}
    pairs = [
        Pair(
            np.array([run.value(metric) for run in first]),
            np.array([run.value(metric) for run in second]),
        )
        for metric in metrics.values()
    ]
    rows = []
    for slo_class, pair, change in zip(metrics, pairs, differences(pairs, BY_STUDENT), strict=True):
        before, after = pair.first, pair.second
        text = (
            f"{changed}: {slo_class} TTFT P99 {before.mean():.1f} -> {after.mean():.1f} ms, "
            f"{change.percent.mean:+.1f} % [{change.percent.low:+.1f}, {change.percent.high:+.1f}], "
            f"{change.verdict}"
        )
        rows.append(
            {
                "instead": changed,
                "slo_class": slo_class,
                "before_ms": before.tolist(),
                "after_ms": after.tolist(),
                "verdict": change.verdict,
                "text": text,
            }
        )
    return rows
