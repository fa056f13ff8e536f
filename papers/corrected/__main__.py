"""`python -m papers.corrected`: both records with the defects of the reference and without them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.shared_options import switches
from blis_jax.files.atomic_write import replacing

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
_FLAGS = (
    Flag("output", str, FOLDER, "FOLDER", "where the two tables go"),
    Flag(
        "parts", str, None, "FOLDER", "where runs are kept (default: where each record keeps its)"
    ),
    Flag("page", str, None, "FILE", "also write the page of results"),
)
_SWITCHES = {
    "saved": "use the tables that come with the package instead of simulating",
    **switches("quiet", "no-cache"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_flags("what", _FLAGS)
    parser.add_switches("switches", _SWITCHES)
    given = parser.given(sys.argv[1:] if arguments is None else arguments)
    folder = Path(str(files(NAME))) / "data"
    if "saved" not in given:
        folder = Path(given.get("output", FOLDER))
        cli.check_writable(folder, is_folder=True)
        prepare_backend(use_cache="no_cache" not in given)
        _compute(folder, given)
    claims, parts = (_read(folder / name) for name in (CLAIMS, PARTS))
    from papers.corrected import page

    if "quiet" not in given:
        print("\n".join(page.printed(claims, parts)))
    if "page" in given:
        path = Path(given["page"])
        with cli.writing(path), replacing(path) as written:
            written.write_text(page.page(claims, parts), encoding="utf-8")
    return 0


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _compute(folder: Path, given: dict[str, Any]) -> None:
    from papers.corrected import explained, page
    from papers.record.runs import PaperRuns
    from papers.routing_evolution.record import RECORD as ROUTING
    from papers.strategy_evolution.record import RECORD as SCHEDULING

    verdicts: list[ProfileVerdict] = []
    runs: dict[str, PaperRuns] = {}
    for record in (SCHEDULING, ROUTING):
        kept = Path(given.get("parts", Path(record.output) / "parts"))
        cli.check_writable(kept, is_folder=True)
        runs[record.name] = PaperRuns(kept, "reference")
        verdicts += _verdicts(record, runs[record.name])
    parts = [
        row
        for verdict in explained.surprises(verdicts)
        for row in explained.parts_of(verdict, runs[verdict.record.name])
    ]
    texts = {
        CLAIMS: explained.csv_of([page.row_of(verdict) for verdict in verdicts], page.COLUMNS),
        PARTS: explained.csv_of(parts, explained.COLUMNS),
    }
    for name, text in texts.items():
        with cli.writing(folder / name), replacing(folder / name) as written:
            written.write_text(text, encoding="utf-8")


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
