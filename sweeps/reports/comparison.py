"""A comparison of arms as a report: its document's numbers, distributions of its runs, one run of each arm again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.commands import cli
from blis_jax.commands.flags.report_flags import ReportPaths
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.run_words import words_of
from blis_jax.reports.runs import timelines_of
from blis_jax.reports.study import (
    CURVE_LEVELS,
    Curves,
    SeedValues,
    ShownDifference,
    ShownInterval,
    Study,
    TtftShare,
    every_kth,
    finite,
)
from blis_jax.reports.words import joined
from sweeps.compare import report as words
from sweeps.reports.words import percentile_lines, token_rate_lines

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.results.records import RunRecord
    from sweeps.runs.bench import Bench
    from sweeps.runs.measured import Measured

Document = Mapping[str, Any]
MOST_IN_TITLE = 3  # strategies that the title names


def write_reports(
    document: Document,
    arms: Mapping[str, tuple[ClusterConfig, Sequence[Measured]]],
    bench: Bench,
    paths: ReportPaths,
    command: str,
) -> None:
    """The page and the trace, as far as they are asked for; one run of each arm is made again."""
    seed = common_seed(document["seeds"], [runs for _, runs in arms.values()])
    records = {} if seed is None else {
        name: bench.record(config, seed) for name, (config, _) in arms.items()
    }  # fmt: skip
    runs = {name: of_arm for name, (_, of_arm) in arms.items()}
    study = study_of(document, runs, records, seed, command)
    write_files(study, records, {name: config for name, (config, _) in arms.items()}, seed, paths)


def write_files(
    study: Study,
    records: Mapping[str, RunRecord],
    configs: Mapping[str, ClusterConfig],
    seed: int | None,
    paths: ReportPaths,
) -> None:
    """A study's page, and the trace of its records."""
    if paths.report is not None:
        from blis_jax.reports.page import write

        with cli.writing(paths.report):
            write(study, paths.report)
    if paths.timeline is not None:
        from blis_jax.reports.perfetto import TracedRun, write_trace

        traced = [
            TracedRun(name, record, configs[name].block_size_in_tokens)
            for name, record in records.items()
        ]
        with cli.writing(paths.timeline):
            write_trace(traced, paths.timeline, {"command": study.command, "seed": str(seed)})


def common_seed(seeds: Sequence[int], arms: Sequence[Sequence[Measured]]) -> int | None:
    """The first on which every arm came to its end."""
    whole = (all(runs[at].is_whole for runs in arms) for at in range(len(seeds)))
    return next((seed for seed, is_whole in zip(seeds, whole, strict=True) if is_whole), None)


def study_of(
    document: Document,
    runs: Mapping[str, Sequence[Measured]],
    records: Mapping[str, RunRecord],
    seed: int | None,
    command: str,
) -> Study:
    """The report; `runs` are those of each arm, `records` one of each."""
    inference = document["inference"]
    classes = (ALL, *document["classes"])
    arms = document["arms"]
    asked = [entry for entry in document["criteria"] if entry["is_asked"]]
    about, runs_are = _about_trace(document), words_of(document)
    criteria = words.criterion_lines({**document, "criteria": asked})
    return Study(
        title=about.get("title", ""),
        lead=about.get("lead", ""),
        command=command,
        workload=document["workload"],
        strategies=tuple(arm["name"] for arm in arms),
        descriptions={},
        kinds={arm["name"]: arm["strategy"] or "" for arm in arms},
        classes=classes,
        seeds=tuple(document["seeds"]),
        runs=runs_are,
        pairs="blocks" if inference.get("block_s") else "",
        differences=tuple(
            difference_of(entry, entry["arm"], entry["reference"])
            for entry in document["comparisons"]
        ),
        intervals=inference["intervals"],
        verdicts="A change is called better or worse where Holm's method, which corrects for the "
        f"number of comparisons ({inference['family_size']}), tells it from chance.",
        joint=f"{100 * inference['confidence']:g} %; {inference['simultaneous_intervals']}",
        values=tuple(value for arm in arms for value in values_of(arm["name"], arm["figures"])),
        levels=CURVE_LEVELS,
        curves=curves_of(runs, classes),
        parts=tuple(part for arm in arms for part in _parts(arm)),
        parts_of=f"Means over all {runs_are.many} of the comparison; the parts add up to the TTFT.",
        timelines=timelines_of(records, seed) if seed is not None else (),
        notes=(
            target_line(document["targets"]),
            *percentile_lines(document["comparisons"]),
            *token_rate_lines(document["comparisons"]),
        ),
        checks=tuple(map(runs_are.in_text, words.failure_lines(document))),
        more={
            "Success criteria": [runs_are.in_text(line) for line in criteria],
            "From which age a lower class goes first": words.crossover_lines(document),
            "Which mechanisms acted": [
                runs_are.in_text(line) for line in words.mechanism_lines(document)
            ],
        },
        provenance=_provenance(document),
    )


def _about_trace(document: Document) -> dict[str, str]:
    """Title and first sentences where the requests are those of a trace."""
    trace = document.get("trace")
    if not trace:
        return {}
    name, (first, *others) = Path(document["workload"]).name, (a["name"] for a in document["arms"])
    shown = joined(others) if len(others) <= MOST_IN_TITLE else f"{len(others)} strategies"
    verb = "compares" if len(others) == 1 else "compare"
    if trace["windows"]:
        runs = f"cut into {trace['windows']} windows of arrival time, each a run that begins on an idle cluster"
    elif len(document["seeds"]) > 1:
        runs = f"run {len(document['seeds'])} times where a strategy draws at random, else once"
    else:
        runs = "run once for each strategy"
    return {
        "title": f"How {shown} {verb} with {first} on the trace {name}",
        "lead": f"This page compares {joined(others)} with {first} on the trace “{name}”: "
        f"{trace['num_requests']:,} requests that arrived within {trace['span_s']:,.0f} s, {runs}. "
        "Every strategy serves exactly the same requests.",
    }


def difference_of(entry: Mapping[str, Any], name: str, reference: str) -> ShownDifference:
    """An entry of the document as a difference of the report."""
    return ShownDifference(
        strategy=name,
        reference=reference,
        slo_class=entry["class"],
        metric=entry["metric"],
        unit=entry["unit"],
        better=entry["better"],
        reference_mean=entry["reference_mean"],
        mean=entry["mean"],
        absolute=_range(entry["difference"]),
        percent=_range(entry["percent"]),
        joint_percent=_range(entry["simultaneous_percent"]),
        num_pairs=entry["num_pairs"],
        verdict=entry["verdict"],
    )


def _range(entry: Mapping[str, Any]) -> ShownInterval:
    return ShownInterval(entry["mean"], entry["low"], entry["high"])


def values_of(name: str, figures: Mapping[str, Mapping[str, Any]]) -> Iterable[SeedValues]:
    """The seeds' values of one arm."""
    for slo_class, of_class in figures.items():
        for metric, entry in of_class.items():
            yield SeedValues(name, slo_class, metric, finite(entry["per_seed"]))


def curves_of(runs: Mapping[str, Sequence[Measured]], classes: Sequence[str]) -> tuple[Curves, ...]:
    """TTFT distributions, of the runs that have one: records of earlier versions do not keep it."""
    num_seeds = max(map(len, runs.values()), default=0)
    step = every_kth(num_seeds, len(runs) * len(classes) * len(CURVE_LEVELS))
    found = []
    for name, of_arm in runs.items():
        for slo_class in classes:
            known = {
                at: of_arm[at].ttft_curve_ms[slo_class]
                for at in range(0, len(of_arm), step)
                if slo_class in of_arm[at].ttft_curve_ms
            }
            if known:
                found.append(Curves(name, slo_class, known))
    return tuple(found)


def _parts(arm: Mapping[str, Any]) -> Iterable[TtftShare]:
    for slo_class, views in arm["ttft_parts"].items():
        for view, entry in views.items():
            for group, value in entry["groups"].items():
                yield TtftShare(arm["name"], slo_class, view, group, value)


def target_line(targets: Mapping[str, Mapping[str, float]]) -> str:
    """What goodput counts."""
    texts = [
        f"{name} {' and '.join(f'{limit[:-3].upper()} ≤ {ms:g} ms' for limit, ms in limits.items())}"
        for name, limits in targets.items()
        if limits
    ]
    return f"Goodput counts completed requests within their class's targets: {', '.join(texts)}."


def _provenance(document: Document) -> dict[str, Any]:
    arms = document["arms"]
    return {
        **document["versions"],
        "random stream": document["rng"],
        words_of(document).many: ", ".join(map(str, document["seeds"])),
        "requests a run": str(document["num_requests"] or "as many as the workload draws"),
        "fingerprints of the arms' runs": {arm["name"]: arm["fingerprint"] for arm in arms},
        "settings of the arms": {arm["name"]: arm["settings"] for arm in arms},
        "options for blis_jax.run": {arm["name"]: arm["cli_args"] for arm in arms},
    }
