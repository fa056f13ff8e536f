"""The command of a record: `python -m papers.RECORD`, its options and what they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, SchedulerOption, option, switch
from blis_jax.errors import ConfigError
from sweeps.runs.options import PartOption

if TYPE_CHECKING:
    from papers.record.definition import PaperRecord

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
    python -m {package}.figures {figure}
"""


class _What(CommandOptions, title="what"):
    """Options for the rows to compute, and for their files."""

    rows: str | None = option(
        str, None, "A,B,…", "only these rows of the record, as its tables name them"
    )
    seeds: int | None = option(
        values.whole, None, "N", "also compute every claim on N seeds, with intervals"
    )
    rng: str | None = option(
        values.OneOf("reference", "jax"), None, "NAME", "who draws the requests of the N seeds: jax (from seed 0 "
        "on), or reference (from 42 on)", shown="jax",
    )  # fmt: skip
    figure_seeds: int = option(values.whole, FIGURE_SEEDS, "N", "seeds of the figures' data")
    output: str | None = option(
        str, None, "FOLDER", "where results, data, figures and parts go (default: out/RECORD)"
    )
    parts: str | None = option(str, None, "FOLDER", "where runs are kept (default: OUTPUT/parts)")


class RecordOptions(_What, PartOption, SchedulerOption, title="switches"):
    """Options of the command."""

    figures: bool = switch("compute the data of the figures, then draw them")
    no_figures: bool = switch()
    resume: bool = switch("use runs that are kept already; this is the default")
    overwrite: bool = switch("simulate again what is kept already")
    plan: bool = switch("say what would be simulated and about how long it takes, and stop")
    quiet: bool = switch()
    no_cache: bool = switch()


def reproduce(record: PaperRecord, arguments: Sequence[str] | None = None) -> int:
    """Run the command of a record; return its exit code."""
    description = _DESCRIPTION.format(title=record.title)
    examples = _EXAMPLES.format(package=record.package, figure=record.figure_example)

    @RecordOptions.called(record.package, description, examples).as_main
    def run(options: RecordOptions) -> int:
        """Run the command that the options describe; return its exit code."""
        check_sense(options)
        prepare_backend(use_cache=not options.no_cache)

        from papers.record.actions import reproduce_record

        return reproduce_record(record, options)

    return run(arguments)


def check_sense(options: RecordOptions) -> None:
    """Refuse options that contradict each other, or numbers that make no sense."""
    if options.figures and options.no_figures:
        raise ConfigError("--figures and --no-figures contradict each other; give one")
    if options.part is not None and options.plan:
        raise ConfigError("--plan says what all parts would simulate; leave --part out")
    if options.resume and options.overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one")
    for flag, count in (("seeds", options.seeds), ("figure-seeds", options.figure_seeds)):
        if count is not None and not LEAST_SEEDS <= count <= MOST_SEEDS:
            raise ConfigError(
                f"--{flag} is {count}; allowed is {LEAST_SEEDS} to {MOST_SEEDS}, since an interval "
                "needs two seeds"
            )
    if options.rng is not None and options.seeds is None:
        raise ConfigError("--rng is about the seeds of --seeds; give that too, or leave --rng out")
