"""All rule judges by name, the runs that they need, and the review that options of `blis-jax review` ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options.outputs import output_path, outputs_of
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import plain, write_json
from blis_jax.metrics.measure import DEFAULT_TARGETS
from blis_jax.reports import render
from blis_jax.reports.findings import Answer, Findings, Remarks
from sweeps.principles.lab import figures_of, reported_names
from sweeps.review.candidates import Candidate, Exhibit, Judge, Opinion, candidates_of
from sweeps.review.classes import INERT, PROXY, STARVATION
from sweeps.review.consensus import check_record, read_reviews, to_record, write_template
from sweeps.review.numbers import BOUNDS, STABILITY
from sweeps.review.routing import METRICS, OSCILLATION, SIGNAL, RunDecisions, decisions_of
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.requests import check_seeds
from sweeps.search.objectives import Valuation

if TYPE_CHECKING:
    from blis_jax.workload.table import RequestTable
    from sweeps.review.__main__ import ReviewOptions

JUDGES = {
    judge.name: judge
    for judge in (SIGNAL, OSCILLATION, STABILITY, PROXY, STARVATION, INERT, BOUNDS)
}


def judges_named(text: str | None) -> tuple[Judge, ...]:
    """Return the judges of a list such as `signal,inert`; all if None.

    Raises:
        ConfigError: a name is unknown, or none is given.
    """
    if text is None:
        return tuple(JUDGES.values())
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in JUDGES:
            raise ConfigError(
                f"--judges: {name!r} is unknown; use some of {', '.join(JUDGES)}"
                f"{closest(name, JUDGES)}"
            )
    if not names:
        raise ConfigError(f"--judges: none is named; use some of {', '.join(JUDGES)}")
    return tuple(judge for name, judge in JUDGES.items() if name in names)


def exhibit_of(
    candidate: Candidate,
    judges: Sequence[Judge],
    seeds: tuple[int, ...],
    stream: str,
    valuation: Valuation | None = None,
) -> Exhibit:
    """Run a candidate and all configurations that its judges compare it with, on common seeds."""
    configs = [candidate.config]
    for judge in judges:
        configs += judge.configs(candidate).values()
    configs = list(dict.fromkeys(configs))
    names = tuple(dict.fromkeys((*METRICS, *reported_names(candidate.spec))))
    wanted = () if valuation is None else valuation.names
    targets = DEFAULT_TARGETS if valuation is None else targets_of(valuation.strategy)
    experiment = Experiment.on(candidate.spec, seeds, stream, wanted, targets)
    made = experiment.summaries(configs, lambda record: figures_of(record, names, True))
    worth = None if valuation is None else valuation.worth(experiment.run([candidate.config])[0])
    block_size = candidate.config.block_size_in_tokens
    table = experiment.drawn.table(candidate.spec, seeds[0], block_size)
    return Exhibit(
        candidate,
        seeds,
        dict(zip(configs, made, strict=True)),
        _decisions(candidate, table, seeds[0], judges),
        None if worth is None or worth.failures else worth.score,
    )


def _decisions(
    candidate: Candidate, table: RequestTable, seed: int, judges: Sequence[Judge]
) -> RunDecisions | None:
    needed = {judge.name for judge in judges} & {SIGNAL.name, STABILITY.name}
    return decisions_of(candidate.config, table, seed) if needed else None


def review_candidates(options: ReviewOptions) -> int:
    """Judge the candidates, write a template or verify a record, as the options ask; return the exit code."""
    if options.check is not None:
        return _check(options.check, options.candidates)
    candidates = candidates_of(options.candidates, options.num_requests)
    if options.template is not None:
        return _template(options.template, options.overwrite, candidates)
    return _judged(options, candidates)


def _check(record: str, texts: Sequence[str]) -> int:
    if texts:
        raise ConfigError("--check takes the candidates from the record; leave them out")
    render.show_answer(
        Answer.of(
            f"Does {record} still hold of its candidates?",
            check_record(Path(record)),
            "hashes of the candidates, and the rule of the consensus on the opinions again.",
            "nothing was run.",
            "judge the candidates again when they change.",
        )
    )
    return 0


def _template(template: str, overwrite: bool, candidates: Sequence[Candidate]) -> int:
    path = output_path(template, "--template", (".yaml", ".yml"), overwrite)
    with cli.writing(path):
        write_template(path, candidates)
    render.show_answer(
        Answer.of(
            "Where can a reviewer of yours write an opinion?",
            f"Written: {path}",
            "the file names each candidate with its hash, so that it goes with no other.",
            "nothing was run.",
            "give it back with --external when it is filled in",
        )
    )
    return 0


def _judged(options: ReviewOptions, candidates: Sequence[Candidate]) -> int:
    judges = judges_named(options.judges)
    stream = options.stream
    seeds = given_seeds(options, stream) or candidates[0].seeds
    check_seeds(seeds, stream)
    files = [Path(part.strip()) for part in (options.external or "").split(",") if part.strip()]
    imported = read_reviews(files, candidates, tuple(JUDGES))
    path = outputs_of(options, options.usual_output).result

    valuation = _valuation(candidates)
    scores: dict[str, float | None] = {}
    work = progress.begin("judging", len(candidates) * len(judges), "opinions")
    opinions: list[Opinion] = []
    for candidate in candidates:
        work.show(len(opinions), f"runs of {candidate.name}")
        exhibit = exhibit_of(candidate, judges, seeds, stream, valuation)
        scores[candidate.name] = exhibit.score
        for judge in judges:
            work.show(len(opinions), f"{judge.name} on {candidate.name}")
            opinions.append(judge.judge(exhibit))
    work.clear()
    on = {candidate.name: seeds for candidate in candidates}
    record = plain(
        to_record(candidates, [*opinions, *imported], on, stream, options.num_requests, scores)
    )
    with cli.writing(path):
        write_json(path, record)
    if not options.quiet:
        render.show(_findings(record, len(judges), len(seeds)))
        print(f"Written: {path}")
    return 0


def _valuation(candidates: Sequence[Candidate]) -> Valuation | None:
    """Return the scorer of candidates: the first one's objectives, if all have one workload."""
    strategy = candidates[0].strategy
    is_common = all(candidate.spec == candidates[0].spec for candidate in candidates)
    is_valued = strategy is not None and bool(strategy.objectives) and is_common
    return Valuation(strategy) if strategy is not None and is_valued else None


def _findings(record: Mapping[str, Any], num_judges: int, num_seeds: int) -> Findings:
    """Return the choice, and the opinions on each candidate with dissents."""
    chosen, entries = record["consensus"]["chosen"], record["candidates"]
    outcomes = record["consensus"]["outcomes"]
    count = len(entries)
    answer = Answer.of(
        f"Which of {count} candidates do the reviewers accept?" if count > 1
        else f"Do the reviewers accept {entries[0]['name']}?",
        f"Chosen: {chosen}." if chosen else "No candidate is chosen: all are rejected.",
        record["consensus"]["rule"],
        f"{num_judges} judges on {count} candidates; their runs are on {num_seeds} seeds each.",
        f"blis-jax compare sets {chosen} beside a baseline." if chosen
        else "read the reasons below, change a candidate, and judge it again.",
    )  # fmt: skip
    sections = [
        Remarks(_opinions(record, entry, outcomes[entry["name"]]), entry["name"], is_brief=True)
        for entry in entries
    ]
    return Findings(answer, tuple(sections))


def _opinions(
    record: Mapping[str, Any], entry: Mapping[str, Any], outcome: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the opinions on one candidate."""
    name = entry["name"]
    score = "" if entry["score"] is None else f", score {entry['score']:.6g}"
    lines = [f"{outcome['outcome']}{score} ({entry['hash'][:21]}...)"]
    lines += [f"differs from the record: {text}" for text in entry["deviations"]]
    for opinion in record["opinions"]:
        if opinion["candidate"] == name:
            reasons = "; ".join(opinion["reasons"]) or "no reason given"
            lines.append(f"{opinion['judge']}: {opinion['verdict']}; {reasons}")
    if outcome["dissent"]:
        lines.append(f"dissent: {', '.join(outcome['dissent'])}")
    return tuple(lines)
