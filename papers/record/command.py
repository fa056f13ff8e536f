"""The command of a record: `python -m papers.RECORD`, its options and what they ask for."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.errors import ConfigError, closest

if TYPE_CHECKING:
    from papers.record.claims import AnyClaim
    from papers.record.definition import PaperRecord
    from papers.record.runs import PaperRuns

LEAST_SEEDS, MOST_SEEDS = 2, 100_000
FIGURE_SEEDS = 200

_DESCRIPTION = """\
Compute every claim of {title} on its own seeds and requests and print it beside the
published number; with --seeds also on many seeds, with intervals; then draw the figures. Runs
are kept in OUTPUT/parts as each setting ends, so a command that was stopped goes on where it was.
"""
_EXAMPLES = """\
examples:
  every row on the published seeds, and the figures from the data that come with the package:
    %(prog)s

  which claims survive on a thousand seeds:
    %(prog)s --seeds 1000

  what that would simulate, and about how long:
    %(prog)s --seeds 1000 --plan

  the figures' data computed again, then the figures:
    %(prog)s --figures

  one figure from saved data:
    %(prog)s.figures.{figure}
"""
_SWITCHES = {
    "figures": "compute the data of the figures, then draw them",
    "no-figures": "draw no figures",
    "resume": "use runs that are kept already; this is the default",
    "overwrite": "simulate again what is kept already",
    "plan": "say what would be simulated and about how long it takes, and stop",
    "quiet": "print nothing but errors",
    "no-cache": "compile again instead of using programs kept from earlier runs",
}


def reproduce(record: PaperRecord, arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def run(words: Sequence[str] | None) -> int:
        """Reads the options and does what they say."""
        given = _parser(record).given(sys.argv[1:] if words is None else words)
        return _run(_job(record, given))

    return cli.run_command(record.package, run, arguments)


def _parser(record: PaperRecord) -> Parser:
    parser = Parser(
        prog=f"python -m {record.package}",
        description=_DESCRIPTION.format(title=record.title),
        epilog=_EXAMPLES.format(figure=record.figure_example),
    )
    parser.add_flags("what", _flags(record))
    parser.add_switches("switches", _SWITCHES)
    return parser


def _flags(record: PaperRecord) -> tuple[Flag, ...]:
    first = record.first_reference_seed
    of_rows = f"only these rows of the record, such as {record.row_example}"
    of_rng = (
        "who draws the requests of the N seeds: jax (seeds 0 to N-1), or reference "
        f"({first} to {first - 1}+N)"
    )
    output = "where results, data, figures and parts go"
    return (
        Flag("rows", str, None, "A,B,…", of_rows),
        Flag("seeds", cli.whole, None, "N", "also compute every claim on N seeds, with intervals"),
        Flag("rng", cli.one_of("reference", "jax"), "jax", "NAME", of_rng),
        Flag("figure-seeds", cli.whole, FIGURE_SEEDS, "N", "seeds of the figures' data"),
        Flag("output", str, record.output, "FOLDER", output),
        Flag("parts", str, None, "FOLDER", "where runs are kept (default: OUTPUT/parts)"),
    )


@dataclass(frozen=True)
class PaperJob:
    """What is asked for."""

    record: PaperRecord
    claims: tuple[AnyClaim, ...]
    num_seeds: int
    stream: str
    figure_seeds: int
    output: Path
    parts: Path
    switches: frozenset[str]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The many seeds."""
        first = self.record.first_reference_seed if self.stream == "reference" else 0
        return tuple(range(first, first + self.num_seeds))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is printed."""
        return "quiet" in self.switches

    def runs(self, stream: str) -> PaperRuns:
        """Runs with requests drawn by a stream."""
        from papers.record.runs import PaperRuns

        return PaperRuns(self.parts, stream, "overwrite" in self.switches)

    def print(self, lines: Sequence[str]) -> None:
        """Prints, unless nothing is to be."""
        if not self.is_quiet:
            print("\n".join(lines))


def _job(record: PaperRecord, given: dict[str, Any]) -> PaperJob:
    """The options, checked."""
    contradictions = (("figures", "no_figures"), ("resume", "overwrite"))
    for one, other in contradictions:
        if one in given and other in given:
            words = (name.replace("_", "-") for name in (one, other))
            raise ConfigError("--{} and --{} contradict each other; give one".format(*words))
    for name in ("seeds", "figure_seeds"):
        if name in given and not LEAST_SEEDS <= given[name] <= MOST_SEEDS:
            flag = name.replace("_", "-")
            raise ConfigError(
                f"--{flag} is {given[name]}; allowed is {LEAST_SEEDS} to {MOST_SEEDS}, since an "
                "interval needs two seeds"
            )
    if "rng" in given and "seeds" not in given:
        raise ConfigError("--rng is about the seeds of --seeds; give that too, or leave --rng out")
    output = Path(given.get("output", record.output))
    parts = Path(given["parts"]) if "parts" in given else output / "parts"
    for folder in (output, parts):
        cli.check_writable(folder, is_folder=True)
    return PaperJob(
        record,
        _chosen(record, given.get("rows")),
        given.get("seeds", 0),
        given.get("rng", "jax"),
        given.get("figure_seeds", FIGURE_SEEDS),
        output,
        parts,
        frozenset(given),
    )


def _chosen(record: PaperRecord, rows: str | None) -> tuple[AnyClaim, ...]:
    if rows is None:
        return record.claims
    wanted = [row.strip() for row in rows.split(",")]
    known = list(dict.fromkeys(claim.row for claim in record.claims))
    for row in wanted:
        if row not in known:
            raise ConfigError(
                f"--rows: the record has no row {row!r}; it has {', '.join(known)}"
                f"{closest(row, known)}"
            )
    return tuple(claim for claim in record.claims if claim.row in wanted)


def _run(job: PaperJob) -> int:
    prepare_backend(use_cache="no_cache" not in job.switches)
    from papers.record import actions
    from papers.record.runs import elapsed

    if "plan" in job.switches:
        actions.plan(job)
        return 0
    start = time.monotonic()
    actions.published(job)
    if job.num_seeds:
        actions.many(job)
    if "figures" in job.switches:
        actions.compute_data(job)
    if "no_figures" not in job.switches:
        actions.draw(job)
    job.print([f"Done in {elapsed(start)}."])
    return 0
