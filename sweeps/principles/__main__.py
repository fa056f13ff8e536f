"""`python -m sweeps.principles`: run the catalogue's checks, or hold a strategy against them."""

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
from blis_jax.files import input_files
from blis_jax.files.atomic_write import write_json
from sweeps.principles import USUAL_OUTPUT
from sweeps.runs.options import RNG

if TYPE_CHECKING:
    from sweeps.principles.catalogue import Catalogue, Entry
    from sweeps.principles.record import PrinciplesRecord

NAME = "sweeps.principles"
LEAST_SEEDS = 3
WORDS = ("statement", "evidence", "seen", "remark", "falsified_if")

_DESCRIPTION = """\
Run the 30 principles and 11 prior findings of the strategy search, and 6 further candidates, as
experiments. Each compares configurations on common seeds and says whether it holds, holds less
widely, or is not supported. Entries whose policies are not registered are untested. Every check that
was made is kept beside the output and is not made again until the code, the entry or the seeds change.
"""
_EXAMPLES = """\
examples:
  all checks, about ten minutes on two cores, seconds when nothing has changed:
    %(prog)s

  some of them on more seeds:
    %(prog)s --only RP-10,S7 --seeds 10

  which principles a strategy relies on or contradicts, and what leaving them out would change:
    %(prog)s --strategy iter05_simplified
    %(prog)s --strategy "joint_all_layers:gate=50" --measure
"""
_CHECKS = (
    Flag("only", str, None, "ID,ID,…", "entries to check (default: all)"),
    *seed_flags("at least 3; a number begins with each entry's first seed; default: each entry's"),
    RNG,
)
_STRATEGY = (
    Flag(
        "strategy",
        str,
        None,
        "ARM",
        "strategy to hold against the catalogue: [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]",
    ),
)
_OUTPUT = (Flag("output", str, None, "PATH", f"result, .json (default: {USUAL_OUTPUT})"),)
_SWITCHES = {
    "list": "print the entries and end",
    "slow": "also run what takes minutes: the searches of S3",
    "overwrite": "make all checks again",
    **switches("quiet", "no-cache"),
}


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_flags("checks", _CHECKS)
    group = parser.add_flags("strategies", _STRATEGY)
    group.add_argument(
        "--measure",
        action="store_true",
        help="also run the strategy without the setting that a finding is about",
    )
    parser.add_flags("output", _OUTPUT)
    parser.add_switches("switches", _SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _principles, arguments)


def _principles(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    prepare_backend(use_cache="no_cache" not in given)
    from sweeps.principles.catalogue import chosen, load_catalogue

    catalogue = load_catalogue()
    entries = chosen(catalogue, given.get("only"))
    if "list" in given:
        from sweeps.principles.report import listing

        print("\n".join(listing(entries)))
        return 0
    if "measure" in given and "strategy" not in given:
        raise ConfigError("--measure belongs to --strategy; give the strategy to measure")
    seeds = _seeds(given)
    if "strategy" in given:
        from sweeps.principles.advice import advise

        return advise(given, entries, seeds)
    return _checked(given, catalogue, entries, seeds)


def _seeds(given: Mapping[str, Any]) -> tuple[int, ...] | int | None:
    """Seeds for all entries, how many each is to have, or None for the entries' own."""
    seeds = given_seeds(given)
    if seeds is None:
        return None
    if len(seeds) < LEAST_SEEDS:
        raise ConfigError(f"--seeds: got {len(seeds)}, a check needs at least {LEAST_SEEDS}")
    is_counted = "," not in given.get("seeds", "") and not {"seeds", "num_seeds"} <= set(given)
    if is_counted and "first_seed" not in given:
        return len(seeds)
    from sweeps.runs.bench import check_seeds

    check_seeds(seeds, given.get("rng", "reference"))
    return seeds


def seeds_of(entry: Entry, given: tuple[int, ...] | int | None) -> tuple[int, ...]:
    """The seeds of one entry."""
    if given is None:
        return entry.seeds
    if isinstance(given, int):
        return tuple(range(entry.seeds[0], entry.seeds[0] + given))
    return given


def _output(given: Mapping[str, Any]) -> Path:
    path = Path(given.get("output", USUAL_OUTPUT))
    if path.suffix != ".json":
        raise ConfigError(f"--output: {str(path)!r} must end in .json")
    cli.check_writable(path)
    if path.exists() and '"principles"' not in input_files.read_text(path, "a result to replace"):
        raise ConfigError(f"{path} is not a result of this command; give another --output")
    return path


def _checked(
    given: Mapping[str, Any],
    catalogue: Catalogue,
    entries: Sequence[Entry],
    seeds: tuple[int, ...] | int | None,
) -> int:
    from sweeps.principles.record import PrinciplesRecord, code_hash
    from sweeps.principles.report import print_table, summary

    path = _output(given)
    record = PrinciplesRecord(path.with_suffix(".jsonl"))
    with record.held(is_resumed="overwrite" not in given):
        record.begin()
        code = code_hash()
        checks = _run(given, catalogue, entries, seeds, record, code)
        with cli.writing(path):
            write_json(path, {"principles": checks, "code": code})
        if "quiet" not in given:
            print_table(checks, sys.stdout)
            print("\n".join(summary(checks)))
            print(f"Written: {path}")
        return 0


def _run(
    given: Mapping[str, Any],
    catalogue: Catalogue,
    entries: Sequence[Entry],
    seeds: tuple[int, ...] | int | None,
    record: PrinciplesRecord,
    code: str,
) -> list[dict[str, Any]]:
    """The checks in order, those in the record as they are."""
    from sweeps.principles.experiments.lab import Lab
    from sweeps.principles.record import identity, to_document
    from sweeps.principles.verdicts import check, metrics_of

    stream, is_slow = given.get("rng", "reference"), "slow" in given
    lab = Lab(stream, metrics_of(entries))
    work = progress.begin("checking", len(entries), "principles")
    checks = []
    try:
        for done, entry in enumerate(entries):
            on = seeds_of(entry, seeds)
            key = identity(catalogue, entry, on, stream, is_slow, code)
            if key not in record.checks:
                work.show(done, f"{entry.id} on {len(on)} seeds")
                verdict = check(catalogue, entry, lab, on, is_slow)
                record.add(key, to_document(verdict))
            # wording is not part of the identity, so it is taken from the catalogue
            words = {name: getattr(entry, name) for name in WORDS}
            checks.append(record.checks[key] | words)
    except KeyboardInterrupt:
        cli.say(NAME, f"{record.path} has the checks made so far; the same command goes on there")
        raise
    finally:
        work.clear()
    return checks


if __name__ == "__main__":
    sys.exit(main())
