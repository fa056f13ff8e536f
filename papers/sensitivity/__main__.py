"""`python -m papers.sensitivity`: what matters in the ledger's spaces, by simulator and surrogate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, switch
from blis_jax.commands.options.seed_options import SeedOptions, seeds_option
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from sweeps.sensitivity import __main__ as sensitivity
from sweeps.sensitivity.__main__ import NUM_ROWS, NUM_SEEDS

NAME = "papers.sensitivity"
FOLDER = "out/papers_sensitivity"
SPACES = ("iter01_priority_cascade", "iter08_token_budget")
FINISHED = "dataset.zarr"

_DESCRIPTION = """\
Take the total indices of the ledger's spaces on the simulator and, where a folder of surrogates is
given, on the surrogate of each space, and print whether they agree within their intervals. A space
is a study of sweeps.sensitivity in OUTPUT; a command that was stopped goes on where it was.
"""
_EXAMPLES = """\
examples:
  the indices that come with the package:
    %(prog)s --saved

  all spaces again, at the size of those:
    %(prog)s

  with the surrogates models/iter01_priority_cascade, models/iter08_token_budget, …:
    %(prog)s --surrogates models
"""


class _What(SeedOptions, title="what"):
    """The spaces, and how they are studied."""

    spaces: str = option(str, ",".join(SPACES), "A,B,…", "strategies whose spaces are looked at")
    surrogates: str | None = option(str, None, "FOLDER", "with a surrogate named as each space")
    base: int | None = option(
        cli.whole, None, "N", "rows of the Saltelli design, a power of two", shown=NUM_ROWS
    )
    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    output: str | None = option(str, None, "FOLDER", "where studies and tables go", shown=FOLDER)


class _Switches(CommandOptions, title="switches"):
    """Switches for the parts to make."""

    saved: bool = switch("print what comes with the package, draw it with --output, and stop")
    no_figures: bool = switch()
    no_cache: bool = switch()


class SensitivityPaperOptions(
    _What, _Switches, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    options = SensitivityPaperOptions.read(arguments)
    if options.saved:
        return _saved(options.output)
    spaces = _spaces(options)
    output = Path(FOLDER if options.output is None else options.output)
    cli.check_writable(output, is_folder=True)
    prepare_backend(use_cache=not options.no_cache)
    import pandas as pd

    from blis_jax.results.dataset import load
    from papers.sensitivity.table import TABLE, printed, rows_of

    rows: list[dict[str, Any]] = []
    for space in spaces:
        cli.say(NAME, f"{space}: {len(rows)} indices so far")
        code = sensitivity.main(_words(options, space, output / Path(space).stem))
        if code:
            return code
        rows += rows_of(Path(space).stem, load(output / Path(space).stem / FINISHED))
    table = pd.DataFrame(rows)
    with cli.writing(output / TABLE), replacing(output / TABLE) as written:
        table.to_csv(written, index=False)
    print("\n".join(printed(table)))
    print(f"Written: {output / TABLE}")
    return 0


def _words(options: SensitivityPaperOptions, space: str, folder: Path) -> list[str]:
    """The options of one space's study."""
    words = [space, "--resume", "--quiet", "--output", str(folder)]
    given = options.given()
    for name in ("base", "seeds", "num_seeds", "first_seed"):
        if name in given:
            words += [f"--{name.replace('_', '-')}", str(given[name])]
    words += [f"--{name.replace('_', '-')}" for name in ("no_figures", "no_cache") if name in given]
    if options.surrogates is not None and (Path(options.surrogates) / space).exists():
        words += ["--surrogate", str(Path(options.surrogates) / space)]
    return words


def _spaces(options: SensitivityPaperOptions) -> list[str]:
    from sweeps.strategies.file import load_strategy

    spaces = [name.strip() for name in options.spaces.split(",")]
    for name in spaces:
        if not load_strategy(name).parameters:
            raise ConfigError(f"--spaces: {name} has no parameters, so it is no space")
    folder = options.surrogates
    if folder is not None:
        found = [name for name in spaces if (Path(folder) / name).exists()]
        if not found:
            raise ConfigError(
                f"--surrogates: {folder} has no folder named as one of {', '.join(spaces)}"
            )
    return spaces


def _saved(output: str | None) -> int:
    """The indices that come with the package; with --output also their figures."""
    import pandas as pd

    from blis_jax.reports.drawing import save
    from papers.sensitivity.table import DATA, TABLE, printed, totals_of
    from sweeps.sensitivity.figure import totals
    from sweeps.sensitivity.model import SIMULATOR, SURROGATE

    table = pd.read_csv(DATA / TABLE)
    print("\n".join(printed(table)))
    if output is None:
        return 0
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for space, rows in table.groupby("space", sort=False):
        path = folder / f"agreement_{space}.png"
        with cli.writing(path):
            save(totals(*totals_of(rows), (SIMULATOR, SURROGATE), str(space)), path)
        print(f"Written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
