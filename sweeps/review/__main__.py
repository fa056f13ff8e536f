"""`python -m sweeps.review CANDIDATE CANDIDATE [CANDIDATE]`: judges, imported verdicts, consensus."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.seed_options import given_seeds, seed_flags
from blis_jax.commands.flags.shared_options import switches
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from sweeps.runs.options import RNG

if TYPE_CHECKING:
    from sweeps.review.candidates import Candidate
    from sweeps.review.opinion import Opinion
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
_JUDGES = (
    Flag("judges", str, None, "NAME,…", "judges to ask (default: all)"),
    Flag("external", str, None, "FILE,…", "verdicts of other reviewers, .yaml or .json"),
    *seed_flags("default: the first candidate's"),
    Flag("num-requests", cli.whole, None, "N", "requests of every run (default: the workload's)"),
    RNG,
)
_FILES = (
    Flag("output", str, None, "PATH", f"record to write, .json (default: {USUAL_OUTPUT})"),
    Flag(
        "template", str, None, "PATH", "write an empty verdict file for another reviewer, and end"
    ),
    Flag("check", str, None, "RECORD", "verify that a recorded review matches its candidates"),
)
_SWITCHES = {
    "overwrite": "replace an existing output",
    **switches("quiet", "no-cache"),
}


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("candidates", metavar="CANDIDATE", nargs="*", help="two or three arms")
    parser.add_flags("judges", _JUDGES)
    parser.add_flags("files", _FILES)
    parser.add_switches("switches", _SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _review, arguments)


def _review(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    prepare_backend(use_cache="no_cache" not in given)
    texts: list[str] = given.get("candidates") or []
    if "check" in given:
        return _check(given, texts)
    from sweeps.review.candidates import candidates_of

    num_requests = given.get("num_requests")
    if num_requests is not None and num_requests < 1:
        raise ConfigError(f"--num-requests must be at least 1, got {num_requests}")
    candidates = candidates_of(texts, num_requests)
    if "template" in given:
        return _template(given, candidates)
    return _judged(given, candidates)


def _check(given: Mapping[str, Any], texts: Sequence[str]) -> int:
    from sweeps.review.consensus import check_record

    if texts:
        raise ConfigError("--check takes the candidates from the record; leave them out")
    for line in check_record(Path(given["check"])):
        print(line)
    return 0


def _template(given: Mapping[str, Any], candidates: Sequence[Candidate]) -> int:
    from sweeps.review.external import write_template

    path = Path(given["template"])
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--template: {str(path)!r} must end in .yaml")
    cli.check_writable(path)
    if path.exists() and "overwrite" not in given:
        raise ConfigError(f"{path} exists; give --overwrite to replace it, or another --template")
    with cli.writing(path):
        write_template(path, candidates)
    print(f"Written: {path}; give it back with --external when it is filled in")
    return 0


def _judged(given: Mapping[str, Any], candidates: Sequence[Candidate]) -> int:
    from sweeps.principles.record import plain
    from sweeps.review.consensus import to_record
    from sweeps.review.external import read_reviews
    from sweeps.review.judges import JUDGES, judges_named
    from sweeps.runs.bench import check_seeds

    judges = judges_named(given.get("judges"))
    stream = given.get("rng", "reference")
    seeds = given_seeds(given) or candidates[0].seeds
    check_seeds(seeds, stream)
    files = [Path(part.strip()) for part in given.get("external", "").split(",") if part.strip()]
    imported = read_reviews(files, candidates, tuple(JUDGES))
    path = _output(given)
    from sweeps.review.judges import exhibit_of

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
        to_record(candidates, [*opinions, *imported], on, stream, given.get("num_requests"), scores)
    )
    with cli.writing(path):
        write_json(path, record)
    if "quiet" not in given:
        for line in _lines(record):
            print(line)
        print(f"Written: {path}")
    return 0


def _valuation(candidates: Sequence[Candidate]) -> Valuation | None:
    """What scores the candidates: the first one's objectives, if all have one workload."""
    from sweeps.search.objectives import Valuation

    strategy = candidates[0].strategy
    is_common = all(candidate.spec == candidates[0].spec for candidate in candidates)
    return Valuation(strategy) if strategy is not None and is_common else None


def _output(given: Mapping[str, Any]) -> Path:
    path = Path(given.get("output", USUAL_OUTPUT))
    if path.suffix != ".json":
        raise ConfigError(f"--output: {str(path)!r} must end in .json")
    cli.check_writable(path)
    if path.exists() and "overwrite" not in given:
        raise ConfigError(f"{path} exists; give --overwrite to replace it, or another --output")
    return path


def _lines(record: Mapping[str, Any]) -> list[str]:
    """Opinions by candidate, the outcome with dissent, and the choice."""
    lines = []
    for entry in record["candidates"]:
        name = entry["name"]
        outcome = record["consensus"]["outcomes"][name]
        score = "" if entry["score"] is None else f", score {entry['score']:.6g}"
        lines.append(f"{name} ({entry['hash'][:21]}...): {outcome['outcome']}{score}")
        lines += [f"  differs from the record: {text}" for text in entry["deviations"]]
        for opinion in record["opinions"]:
            if opinion["candidate"] == name:
                reasons = "; ".join(opinion["reasons"]) or "no reason given"
                lines.append(f"  {opinion['judge']:12} {opinion['verdict']:8} {reasons}")
        if outcome["dissent"]:
            lines.append(f"  dissent: {', '.join(outcome['dissent'])}")
    chosen = record["consensus"]["chosen"]
    lines.append(f"Chosen: {chosen}." if chosen else "No candidate is chosen: all are rejected.")
    lines.append(record["consensus"]["rule"])
    return lines


if __name__ == "__main__":
    sys.exit(main())
