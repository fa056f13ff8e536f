"""`python -m papers.corrected`: both records with the defects of the reference and without them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, switch
from papers.pages import csv_of, rows_of, write_text

if TYPE_CHECKING:
    from papers.corrected.profiles import ProfileVerdict
    from papers.record.definition import PaperRecord
    from papers.record.runs import PaperRuns, SettingSample

NAME = "papers.corrected"
FOLDER = "out/corrected"
CLAIMS, PARTS = "claims.csv", "ttft_parts.csv"
_DESCRIPTION = """\
Compute every claim of both published records on its own seeds and requests twice: as BLIS computes
it, and under the corrected profile, without BLIS's defects. Print each claim with both numbers and
whether it survives, then what time to first token consists of where the defects turn it. Runs are
kept with those of the records, so a command that was stopped goes on where it was.
"""
_EXAMPLES = """\
examples:
  both records under both profiles:
    %(prog)s

  the tables that come with the package:
    %(prog)s --saved

  the page of results, from the tables that come with the package:
    %(prog)s --saved --page docs/results/corrected-record.md
"""


class CorrectedOptions(
    CommandOptions, title="what", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    output: str = option(str, FOLDER, "FOLDER", "where the two tables go")
    parts: str | None = option(
        str, None, "FOLDER", "where runs are kept (default: where each record keeps its)"
    )
    page: str | None = option(str, None, "FILE", "also write the page of results")
    saved: bool = switch("use the tables that come with the package instead of simulating")
    quiet: bool = switch()
    no_cache: bool = switch()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    options = CorrectedOptions.read(arguments)
    folder = Path(str(files(NAME))) / "data"
    if not options.saved:
        folder = Path(options.output)
        cli.check_writable(folder, is_folder=True)
        prepare_backend(use_cache=not options.no_cache)
        _compute(folder, options.parts)
    claims, parts = (rows_of(folder / name) for name in (CLAIMS, PARTS))
    from papers.corrected import page

    if not options.quiet:
        print("\n".join(page.printed(claims, parts)))
    if options.page is not None:
        write_text(Path(options.page), page.page(claims, parts))
    return 0


def _compute(folder: Path, parts_folder: str | None) -> None:
    from papers.corrected import page, profiles
    from papers.record.runs import PaperRuns
    from papers.routing_evolution.record import RECORD as ROUTING
    from papers.strategy_evolution.record import RECORD as SCHEDULING

    verdicts: list[ProfileVerdict] = []
    runs: dict[str, PaperRuns] = {}
    for record in (SCHEDULING, ROUTING):
        kept = Path(parts_folder or Path(record.output) / "parts")
        cli.check_writable(kept, is_folder=True)
        runs[record.name] = PaperRuns(kept, "reference")
        verdicts += _verdicts(record, runs[record.name])
    parts = [
        row
        for verdict in profiles.surprises(verdicts)
        for row in profiles.parts_of(verdict, runs[verdict.record.name])
    ]
    write_text(
        folder / CLAIMS, csv_of([page.row_of(verdict) for verdict in verdicts], page.COLUMNS)
    )
    write_text(folder / PARTS, csv_of(parts, profiles.COLUMNS))


def _verdicts(record: PaperRecord, runs: PaperRuns) -> Iterator[ProfileVerdict]:
    """Simulates a record under both profiles and judges its claims."""
    from papers.corrected.profiles import judged_profiles, without_defects

    settings = record.runnable(record.claims)
    line = progress.begin(f"simulating {record.title}", 2 * len(settings), "settings")
    samples: list[dict[str, SettingSample]] = []
    for made in (settings, [without_defects(setting) for setting in settings]):
        shown = partial(_show, line, len(samples) * len(settings))
        samples.append(runs.get(made, record.seeds, record.measurement, shown))
    line.clear()
    exact, corrected = samples
    yield from judged_profiles(record, record.claims, exact, corrected)


def _show(line: progress.Phase, before: int, done: int, total: int, what: str) -> None:
    line.show(before + done, what)


if __name__ == "__main__":
    sys.exit(main())
