"""`python -m sweeps.review CANDIDATE CANDIDATE [CANDIDATE]`: judges, imported verdicts, consensus."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, PlainSwitches, option, words
from blis_jax.commands.options.outputs import output_path, outputs_of
from blis_jax.commands.options.seed_options import CountedRequests, given_seeds, seeds_option
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import plain, write_json
from blis_jax.reports import render
from blis_jax.reports.findings import Answer, Findings, Remarks

if TYPE_CHECKING:
    from sweeps.review.candidates import Candidate, Opinion
    from sweeps.search.objectives import Valuation

NAME = "sweeps.review"
USUAL_OUTPUT = Path("out/review.json")

_DESCRIPTION = """\
Review two or three candidate strategies. Judges probe each candidate in the simulator for signals that
are the same for all instances, herding, unstable numbers, lengths that stand in for the class,
starvation, mechanisms that do nothing, and parameters at the ends of their ranges. Verdicts of other
reviewers are imported from files that are bound to the candidates by hash. The consensus is recorded
with the same hashes. A candidate runs on the workload of its strategy file, or on mixed if it has none.
"""
_EXAMPLES = """\
examples:
  the three ideas of the scheduling track:
    %(prog)s idea1_tiered_cascade idea2_deadlines idea3_gated_cascade

  ask somebody else, and take their verdicts in:
    %(prog)s mine.yaml iter05_simplified --template out/for_ada.yaml
    %(prog)s mine.yaml iter05_simplified --external out/for_ada.yaml

  whether a recorded review is still about the same candidates:
    %(prog)s --check out/review.json
"""


class _Judges(CountedRequests, title="judges"):
    """Options for the judges, and for the runs that they judge by."""

    judges: str | None = option(str, None, "NAME,…", "judges to ask (default: all)")
    external: str | None = option(
        str, None, "FILE,…", "verdicts of other reviewers, .yaml or .json"
    )


class _Files(CommandOptions, title="files"):
    """Options for the files to write, and for the one to verify."""

    output: str | None = option(
        str, None, "PATH", f"record to write, .json (default: {USUAL_OUTPUT})"
    )
    template: str | None = option(
        str, None, "PATH", "write an empty verdict file for another reviewer, and end"
    )
    check: str | None = option(
        str, None, "RECORD", "verify that a recorded review matches its candidates"
    )


class ReviewOptions(
    _Judges, _Files, PlainSwitches, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    candidates: tuple[str, ...] = words("CANDIDATE", "two or three arms")
    seeds: str | None = seeds_option("default: the first candidate's")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _review, arguments)


def _review(arguments: Sequence[str] | None) -> int:
    options = ReviewOptions.read(arguments)
    prepare_backend(use_cache=not options.no_cache)
    if options.check is not None:
        return _check(options.check, options.candidates)
    from sweeps.review.candidates import candidates_of

    candidates = candidates_of(options.candidates, options.num_requests)
    if options.template is not None:
        return _template(options.template, options.overwrite, candidates)
    return _judged(options, candidates)


def _check(record: str, texts: Sequence[str]) -> int:
    from sweeps.review.consensus import check_record

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
    from sweeps.review.consensus import write_template

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
    from sweeps.review.consensus import read_reviews, to_record
    from sweeps.review.judges import JUDGES, exhibit_of, judges_named
    from sweeps.runs.requests import check_seeds

    judges = judges_named(options.judges)
    stream = options.stream
    seeds = given_seeds(options, stream) or candidates[0].seeds
    check_seeds(seeds, stream)
    files = [Path(part.strip()) for part in (options.external or "").split(",") if part.strip()]
    imported = read_reviews(files, candidates, tuple(JUDGES))
    path = outputs_of(options, USUAL_OUTPUT).result

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
    """What scores the candidates: the first one's objectives, if all have one workload."""
    from sweeps.search.objectives import Valuation

    strategy = candidates[0].strategy
    is_common = all(candidate.spec == candidates[0].spec for candidate in candidates)
    is_valued = strategy is not None and bool(strategy.objectives) and is_common
    return Valuation(strategy) if strategy is not None and is_valued else None


def _findings(record: Mapping[str, Any], num_judges: int, num_seeds: int) -> Findings:
    """Return the choice, and the opinions on each candidate with what they dissent in."""
    chosen, entries = record["consensus"]["chosen"], record["candidates"]
    outcomes = record["consensus"]["outcomes"]
    count = len(entries)
    answer = Answer.of(
        f"Which of {count} candidates do the reviewers accept?" if count > 1
        else f"Do the reviewers accept {entries[0]['name']}?",
        f"Chosen: {chosen}." if chosen else "No candidate is chosen: all are rejected.",
        record["consensus"]["rule"],
        f"{num_judges} judges on {count} candidates; their runs are on {num_seeds} seeds each.",
        f"python -m sweeps.compare sets {chosen} beside a baseline." if chosen
        else "read the reasons below, change a candidate, and judge it again.",
    )  # fmt: skip
    sections = [
        Remarks(_opinions(record, one, outcomes[one["name"]]), one["name"], is_brief=True)
        for one in entries
    ]
    return Findings(answer, tuple(sections))


def _opinions(
    record: Mapping[str, Any], entry: Mapping[str, Any], outcome: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return what was said of one candidate."""
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


if __name__ == "__main__":
    sys.exit(main())
