"""`python -m sweeps.principles`: run the catalogue's checks, or hold a strategy against them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import AllSwitch, CommandOptions, PlainSwitches, option, switch
from blis_jax.commands.options.seed_options import DrawnOptions, given_seeds, seeds_option
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import write_json
from blis_jax.reports import render
from sweeps.principles import USUAL_OUTPUT
from sweeps.principles.report import findings_of, listing

if TYPE_CHECKING:
    from sweeps.principles.catalogue import Catalogue, Entry
    from sweeps.principles.verdicts import PrinciplesRecord

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


class _Checks(DrawnOptions, title="checks"):
    """Options for the checks to make, and their seeds."""

    only: str | None = option(str, None, "ID,ID,…", "entries to check (default: all)")


class _Strategy(CommandOptions, title="strategies"):
    """The strategy that is held against the catalogue."""

    strategy: str | None = option(
        str, None, "ARM", "strategy to hold against the catalogue: [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]",
    )  # fmt: skip
    measure: bool = switch("also run the strategy without the setting that a finding is about")


class _Switches(PlainSwitches, title="switches"):
    """Switches that list the entries, add the slow checks, or make all checks again."""

    list: bool = switch("print the entries and end")
    slow: bool = switch("also run what takes minutes: the searches of S3")
    overwrite: bool = switch("make all checks again")


class PrinciplesOptions(
    _Checks, _Strategy, _Switches, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    seeds: str | None = seeds_option(
        "at least 3; a number begins with each entry's first seed; default: each entry's"
    )
    output: str | None = option(str, None, "PATH", f"result, .json (default: {USUAL_OUTPUT})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _principles, arguments)


def _principles(arguments: Sequence[str] | None) -> int:
    options = PrinciplesOptions.read(arguments)
    prepare_backend(use_cache=not options.no_cache)
    from sweeps.principles.catalogue import chosen, load_catalogue

    catalogue = load_catalogue()
    entries = chosen(catalogue, options.only)
    if options.list:
        print("\n".join(listing(entries)))
        return 0
    if options.measure and options.strategy is None:
        raise ConfigError("--measure belongs to --strategy; give the strategy to measure")
    seeds = _seeds(options)
    if options.strategy is not None:
        from sweeps.principles.advice import advise

        output = None if options.output is None else Path(options.output)
        return advise(
            options.strategy, output, entries, seeds, options.stream, is_measured=options.measure
        )
    return _checked(options, catalogue, entries, seeds)


def _seeds(options: PrinciplesOptions) -> tuple[int, ...] | int | None:
    """Seeds for all entries, how many each is to have, or None for the entries' own."""
    seeds = given_seeds(options, options.stream)
    if seeds is None:
        return None
    if len(seeds) < LEAST_SEEDS:
        raise ConfigError(f"--seeds: got {len(seeds)}, a check needs at least {LEAST_SEEDS}")
    has_both = options.seeds is not None and options.num_seeds is not None
    is_counted = "," not in (options.seeds or "") and not has_both
    if is_counted and options.first_seed is None:
        return len(seeds)
    from sweeps.runs.requests import check_seeds

    check_seeds(seeds, options.stream)
    return seeds


def seeds_of(entry: Entry, asked: tuple[int, ...] | int | None) -> tuple[int, ...]:
    """Return the seeds for an entry: its own if none are asked for, that many from its first one on,
    or the listed ones.
    """
    if asked is None:
        return entry.seeds
    if isinstance(asked, int):
        return tuple(range(entry.seeds[0], entry.seeds[0] + asked))
    return asked


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
    from sweeps.principles.verdicts import PrinciplesRecord, code_hash

    path = _output(options.output)
    record = PrinciplesRecord(path.with_suffix(".jsonl"))
    with record.held(is_resumed=not options.overwrite):
        record.begin()
        code = code_hash()
        checks = _run(options, catalogue, entries, seeds, record, code)
        with cli.writing(path):
            write_json(path, {"principles": checks, "code": code})
        if not options.quiet:
            render.show(findings_of(checks), options.all)
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
    """The checks in order, those in the record as they are."""
    from sweeps.principles.lab import Lab
    from sweeps.principles.verdicts import check, identity, metrics_of, to_document

    stream, is_slow = options.stream, options.slow
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
