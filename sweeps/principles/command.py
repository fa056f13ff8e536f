"""Check the principles that options of `blis-jax principles` name: verdicts against the catalogue, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import write_json
from blis_jax.reports import render
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Sentence
from sweeps.principles import USUAL_OUTPUT
from sweeps.principles.advice import advise, seeds_for
from sweeps.principles.catalogue import Catalogue, Entry, chosen, load_catalogue
from sweeps.principles.lab import Lab
from sweeps.principles.verdicts import (
    PrinciplesRecord,
    check,
    code_hash,
    identity,
    metrics_of,
    to_document,
)
from sweeps.runs.requests import check_seeds

if TYPE_CHECKING:
    from sweeps.principles.__main__ import PrinciplesOptions


WORDS = ("statement", "evidence", "seen", "remark", "falsified_if")


def findings_of(checks: Sequence[Mapping[str, Any]]) -> Findings:
    """Return the number of checks by verdict, those that contradict the catalogue, and every check's figures."""
    verdicts = [check["verdict"] for check in checks]
    claims = [claim for check in checks for claim in check["claims"]]
    num_run = sum("value" in claim for claim in claims)
    parts: list[str | Quantity] = [Quantity.whole(len(checks)), " checked: "]
    for at, name in enumerate(dict.fromkeys(verdicts)):
        parts += [", " * (at > 0), Quantity.whole(verdicts.count(name)), f" {name}"]
    differing = [check for check in checks if not check["agrees"]]
    names = ", ".join(check["id"] for check in differing)
    return Findings(
        Answer(
            asked="Do the principles that the catalogue records hold in this simulator?",
            verdict=(
                Sentence.of(*parts, "."),
                Sentence.of(
                    f"the catalogue says otherwise of {names}."
                    if names
                    else "All as in the catalogue."
                ),
            ),
            sure=_sure(claims),
            price=Sentence.of(
                Quantity.whole(num_run), " of ", Quantity.whole(len(claims)), " claims simulated."
            ),
            next="--strategy ARM says which of them a strategy relies on.",
        ),
        (
            Remarks(
                tuple(f"{_verdict(check)}: {check['statement']}" for check in differing),
                "Differs from the catalogue",
                is_brief=True,
            ),
            *(
                Remarks(
                    (f"{check['statement']} ({_verdict(check)})", *_figures(check)), check["id"]
                )
                for check in checks
            ),
        ),
    )


def _sure(claims: Sequence[Mapping[str, Any]]) -> Sentence:
    """Return a sentence on the number of seeds of the simulated claims, and the number of claims not run."""
    counts = [len(claim["per_seed"]) for claim in claims if claim.get("per_seed")]
    num_left = sum("value" not in claim for claim in claims)
    words = " claim was" if num_left == 1 else " claims were"
    left = Quantity.whole(num_left), f"{words} not simulated, and nothing is said there."
    if not counts:
        return Sentence.of(*left)
    least, most = Quantity.whole(min(counts)), Quantity.whole(max(counts))
    seeds = (least,) if least == most else (least, " to ", most)
    return Sentence.of("each claim on ", *seeds, " seeds; ", *left)


def _verdict(check: Mapping[str, Any]) -> str:
    there, here = check["recorded_verdict"], check["verdict"]
    return here if check["agrees"] else f"{check['id']}: {there} there, {here} here"


def _figures(check: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each claim that was run, then one for each reason why others were not."""
    claims = check["claims"]
    yield from (claim["text"] for claim in claims if "value" in claim)
    reasons = [claim["reason"] for claim in claims if "value" not in claim]
    for reason in dict.fromkeys(reasons):
        yield f"{reasons.count(reason)} of {len(claims)} claims not run: {reason}"
    if check["remark"]:
        yield f"Remark: {check['remark']}"


def listing(entries: Sequence[Any]) -> list[str]:
    """List every entry with its verdict in the catalogue and its statement."""
    return [f"{entry.id:6} {entry.verdict:16} {entry.statement}" for entry in entries]


def check_principles(options: PrinciplesOptions) -> int:
    """Check the entries that the options name, or hold a strategy against them; return the exit code."""
    catalogue = load_catalogue()
    entries = chosen(catalogue, options.only)
    if options.list:
        print("\n".join(listing(entries)))
        return 0
    if options.measure and options.strategy is None:
        raise ConfigError("--measure belongs to --strategy; give the strategy to measure")
    seeds = _seeds(options)
    if options.strategy is not None:
        output = None if options.output is None else Path(options.output)
        return advise(
            options.strategy, output, entries, seeds, options.stream, is_measured=options.measure
        )
    return _checked(options, catalogue, entries, seeds)


def _seeds(options: PrinciplesOptions) -> tuple[int, ...] | int | None:
    """Return the seeds for all entries, the number of seeds of each, or None for the entries' own seeds."""
    seeds = given_seeds(options, options.stream)
    if seeds is None:
        return None
    if len(seeds) < options.fewest_seeds:
        raise ConfigError(
            f"--seeds: got {len(seeds)}, a check needs at least {options.fewest_seeds}"
        )
    has_both = options.seeds is not None and options.num_seeds is not None
    is_counted = "," not in (options.seeds or "") and not has_both
    if is_counted and options.first_seed is None:
        return len(seeds)
    check_seeds(seeds, options.stream)
    return seeds


def _output(output: str | None) -> Path:
    path = Path(USUAL_OUTPUT if output is None else output)
    if path.suffix != ".json":
        raise ConfigError(f"--output: {str(path)!r} must end in .json")
    cli.check_writable(path)
    if path.exists() and '"principles"' not in input_files.read_text(path, "a result to replace"):
        raise ConfigError(f"{path} is not a result of this command; give another --output")
    return path


def _checked(
    options: PrinciplesOptions,
    catalogue: Catalogue,
    entries: Sequence[Entry],
    seeds: tuple[int, ...] | int | None,
) -> int:
    path = _output(options.output)
    record = PrinciplesRecord(path.with_suffix(".jsonl"))
    with record.held(is_resumed=not options.overwrite):
        record.begin()
        code = code_hash()
        checks = _run(options, catalogue, entries, seeds, record, code)
        with cli.writing(path):
            write_json(path, {"principles": checks, "code": code})
        if not options.quiet:
            render.show(findings_of(checks), options.all, options.explain)
            print(f"Written: {path}")
        return 0


def _run(
    options: PrinciplesOptions,
    catalogue: Catalogue,
    entries: Sequence[Entry],
    seeds: tuple[int, ...] | int | None,
    record: PrinciplesRecord,
    code: str,
) -> list[dict[str, Any]]:
    """Make the checks in order; checks in the record are not made again."""
    stream, is_slow = options.stream, options.slow
    lab = Lab(stream, metrics_of(entries))
    work = progress.begin("checking", len(entries), "principles")
    checks = []
    try:
        for done, entry in enumerate(entries):
            on = seeds_for(entry.seeds, seeds)
            key = identity(catalogue, entry, on, stream, is_slow, code)
            if key not in record.checks:
                work.show(done, f"{entry.id} on {len(on)} seeds")
                verdict = check(catalogue, entry, lab, on, is_slow)
                record.add(key, to_document(verdict))
            # wording is not part of the identity, so it is taken from the catalogue
            words = {name: getattr(entry, name) for name in WORDS}
            checks.append(record.checks[key] | words)
    except KeyboardInterrupt:
        cli.say(
            options.command,
            f"{record.path} has the checks made so far; the same command goes on there",
        )
        raise
    finally:
        work.clear()
    return checks
