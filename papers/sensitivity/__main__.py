"""`python -m papers.sensitivity`: what matters in the ledger's spaces, by simulator and surrogate."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.seed_options import seed_flags
from blis_jax.commands.flags.shared_options import switches
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from sweeps.sensitivity.flags import BASE, NUM_SEEDS

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
_FLAGS = (
    Flag("spaces", str, ",".join(SPACES), "A,B,…", "strategies whose spaces are looked at"),
    Flag("surrogates", str, None, "FOLDER", "with a surrogate named as each space"),
    BASE,
    *seed_flags(f"default: {NUM_SEEDS}"),
    Flag("output", str, FOLDER, "FOLDER", "where studies and tables go"),
)
_SWITCHES = {
    "saved": "print what comes with the package, draw it with --output, and stop",
    **switches("no-figures", "no-cache"),
}


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_flags("what", _FLAGS)
    parser.add_switches("switches", _SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    if "saved" in given:
        return _saved(given)
    spaces = _spaces(given)
    output = Path(given.get("output", FOLDER))
    cli.check_writable(output, is_folder=True)
    prepare_backend(use_cache="no_cache" not in given)
    import pandas as pd

    from blis_jax.results.dataset import load
    from papers.sensitivity.table import TABLE, printed, rows_of
    from sweeps.sensitivity import __main__ as sensitivity

    rows: list[dict[str, Any]] = []
    for space in spaces:
        cli.say(NAME, f"{space}: {len(rows)} indices so far")
        code = sensitivity.main(_words(given, space, output / Path(space).stem))
        if code:
            return code
        rows += rows_of(Path(space).stem, load(output / Path(space).stem / FINISHED))
    table = pd.DataFrame(rows)
    with cli.writing(output / TABLE), replacing(output / TABLE) as written:
        table.to_csv(written, index=False)
    print("\n".join(printed(table)))
    print(f"Written: {output / TABLE}")
    return 0


def _words(given: Mapping[str, Any], space: str, folder: Path) -> list[str]:
    """The options of one space's study."""
    words = [space, "--resume", "--quiet", "--output", str(folder)]
    for name in ("base", "seeds", "num-seeds", "first-seed"):
        if name.replace("-", "_") in given:
            words += [f"--{name}", str(given[name.replace("-", "_")])]
    words += [f"--{name}" for name in ("no-figures", "no-cache") if name.replace("-", "_") in given]
    if "surrogates" in given and (Path(given["surrogates"]) / space).exists():
        words += ["--surrogate", str(Path(given["surrogates"]) / space)]
    return words


def _spaces(given: Mapping[str, Any]) -> list[str]:
    from sweeps.strategies.file import load_strategy

    spaces = [name.strip() for name in given.get("spaces", ",".join(SPACES)).split(",")]
    for name in spaces:
        if not load_strategy(name).parameters:
            raise ConfigError(f"--spaces: {name} has no parameters, so it is no space")
    folder = given.get("surrogates")
    if folder is not None:
        found = [name for name in spaces if (Path(folder) / name).exists()]
        if not found:
            raise ConfigError(
                f"--surrogates: {folder} has no folder named as one of {', '.join(spaces)}"
            )
    return spaces


def _saved(given: Mapping[str, Any]) -> int:
    """The indices that come with the package; with --output also their figures."""
    import pandas as pd

    from papers.sensitivity.table import DATA, TABLE, printed, totals_of
    from sweeps.sensitivity.figure import draw_totals
    from sweeps.sensitivity.model import SIMULATOR, SURROGATE

    table = pd.read_csv(DATA / TABLE)
    print("\n".join(printed(table)))
    if "output" not in given:
        return 0
    folder = Path(given["output"])
    folder.mkdir(parents=True, exist_ok=True)
    for space, rows in table.groupby("space", sort=False):
        path = folder / f"agreement_{space}.png"
        with cli.writing(path):
            draw_totals(*totals_of(rows), (SIMULATOR, SURROGATE), path, str(space))
        print(f"Written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
