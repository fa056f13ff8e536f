"""`blis-jax init NAME`: begin a track, its baseline measured and its ledger empty."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import PlainSwitches, option, switch, word
from blis_jax.errors import ConfigError
from sweeps.ledger.entry import TrackOptions

NAME = "sweeps.init"
FOLDER = "tracks"

_DESCRIPTION = """\
Begin a track: a folder with the problem as data and as a page, the baseline measured on every seed,
a page for ideas, a first strategy, a first findings document, and an empty ledger.
"""
_EXAMPLES = """\
examples:
  the problem of the repository's own ledger, with a name of your own:
    %(prog)s mine

  conversations on four instances, five seeds:
    %(prog)s talk --workload multiturn --baseline "iter00_baseline:num_instances=4" --seeds 42,43,44,45,46

  after an edit of problem.yaml, measure and render again; nothing else is touched:
    %(prog)s mine --refresh
"""


class _Track(TrackOptions, title="track"):
    """Options for the start of a track."""

    problem: str | None = option(
        str, None, "NAME|FILE", "whose question and criteria to begin with", shown="scheduling"
    )
    in_: str = option(str, FOLDER, "FOLDER", "where the track's folder is made")


class _Switches(PlainSwitches, title="switches"):
    """Switches that replace a track, or measure its baseline again."""

    overwrite: bool = switch("replace a track whose ledger has no rows")
    refresh: bool = switch(
        "measure the baseline of an existing track again, and render its problem.md"
    )


class InitOptions(_Track, _Switches, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES):
    """Options of the command."""

    name: str | None = word("NAME", "name of the track and its folder")


@InitOptions.as_main
def main(options: InitOptions) -> int:
    """Run the command; return its exit code."""
    folder = _folder(options.name, Path(options.in_))
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.ledger.scaffold import begin_track

    return begin_track(folder, options)


def _folder(name: str | None, parent: Path) -> Path:
    if not name:
        raise ConfigError("no track is given; write its name, such as mine")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(
            f"track {name!r}: a name has letters, digits, '.', '_' and '-' and begins with a letter or "
            "a digit; --in says where it goes"
        )
    cli.check_writable(parent, is_folder=True)
    return parent / name


if __name__ == "__main__":
    sys.exit(main())
