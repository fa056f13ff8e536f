"""`blis-jax papers surrogate`: data, surrogates, bars, rivals and learning curves of three spaces."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from blis_jax.commands import cli, values
from blis_jax.commands.options import CommandOptions, SchedulerOption, option, switch
from blis_jax.errors import ConfigError, closest
from papers.surrogate.tables import OF_SEEDS, SPACES

NAME = "papers.surrogate"
FOLDER = "out/surrogate"
SAVED = Path(__file__).parent / "data"
PARTS = (
    "data", "fit", "bars", "coverage", "regions", *OF_SEEDS, "figures", "rivals", "curve", "speed",
)  # fmt: skip

_DESCRIPTION = """\
Simulate the datasets of iteration 8, iteration 1 and of all layers together, fit surrogates, and
print for each space whether the bars are met: R² on unseen points against 0.98, 0.95 or 0.9 of the
ceiling; coverage of 90 % intervals, apart for the best quarter and the branch without a chunk limit;
coverage for any seeds, of means and of differences from the baseline; pictures; rivals on the same
data; the learning curve; speed. Every part is kept, so a command that was stopped goes on where
it was.
"""
_EXAMPLES = """\
examples:
  the tables from the data that come with the package, at once:
    %(prog)s --saved

  iteration 8 from scratch:
    %(prog)s --spaces iter08

  only the table of bars, made if it is not there:
    %(prog)s --spaces iter08 --parts bars

  all of it at a hundredth of the size, to try:
    %(prog)s --scale 0.01 --output out/try
"""


class _What(CommandOptions, title="what"):
    """Options for the parts to make, and for their size."""

    spaces: str = option(str, ",".join(SPACES), "LIST", f"of {', '.join(SPACES)}")
    parts: str = option(str, ",".join(PARTS), "LIST", f"of {', '.join(PARTS)}")
    scale: float = option(values.number, 1.0, "R", "share of the points and steps")
    output: str = option(str, FOLDER, "FOLDER", "where datasets, surrogates and tables go")


class SurrogatePaperOptions(
    _What,
    SchedulerOption,
    title="switches",
    command=NAME,
    description=_DESCRIPTION,
    examples=_EXAMPLES,
):
    """Options of the command."""

    saved: bool = switch("print the tables that come with it")


@SurrogatePaperOptions.as_main
def main(options: SurrogatePaperOptions) -> int:
    """Run the command; return its exit code."""
    spaces = _list("spaces", options.spaces, tuple(SPACES))
    parts, scale = _list("parts", options.parts, PARTS), options.scale
    if not 0 < scale <= 1:
        raise ConfigError(f"--scale: got {scale:g}, allowed is above 0 up to 1")
    from papers.surrogate.tables import show_tables

    if options.saved:
        show_tables(spaces, SAVED, PARTS)
        return 0
    output = Path(options.output)
    cli.check_writable(output, is_folder=True)

    from papers.surrogate.parts import Job

    for name in spaces:
        job = Job(name, SPACES[name], output, scale, options.scheduler)
        for part in PARTS:
            if part in parts:
                job.make(part)
    show_tables(spaces, output, PARTS)
    return 0


def _list(name: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in chosen:
        if part not in allowed:
            raise ConfigError(
                f"--{name}: {part!r} is unknown; there are {', '.join(allowed)}"
                f"{closest(part, allowed)}"
            )
    return chosen


if __name__ == "__main__":
    sys.exit(main())
