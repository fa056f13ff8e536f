"""`python -m papers.two_tracks`: the winners of both tracks on both tracks' workloads, and which to take where."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.shared_options import switches
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing

NAME = "papers.two_tracks"
FOLDER = "out/two_tracks"
MIN_SEEDS = 2
_DESCRIPTION = """\
Run the winners of the scheduling track and of the routing track on the workloads of both, on common
requests of seeds that no search saw, and print each with its change against the published optimum.
With the files of other commands, gather what the page of results shows beside it: the track's
ledger, its searches, what the parts contribute, and the regimes of two robustness maps, of which
one builds the decision tree and the other checks it.
"""
_EXAMPLES = """\
examples:
  the joint table:
    %(prog)s

  the tables that come with the package, and the page of results:
    %(prog)s --saved --page docs/results/two-tracks.md

  every table again, from searches, ablations and maps made before:
    %(prog)s --searches out/routing/searches --ablations out/routing/ablations --map out/routing/map.json \\
        --check out/routing/check.json
"""
_FLAGS = (
    Flag("seeds", cli.whole, None, "N", "seeds of the joint table (default: 64, from 6000 on)"),
    Flag("searches", str, None, "FOLDER", "files of sweeps.optimize, named as their strategies"),
    Flag("ablations", str, None, "FOLDER", "files of sweeps.ablate, named as their strategies"),
    Flag("map", str, None, "FILE", "robustness map (.json) that the decision tree is built from"),
    Flag("check", str, None, "FILE", "robustness map (.json) that the tree is checked on"),
    Flag("output", str, FOLDER, "FOLDER", "where the tables go"),
    Flag("parts", str, None, "FOLDER", "where runs are kept (default: OUTPUT/parts)"),
    Flag("page", str, None, "FILE", "also write the page of results"),
)
_SWITCHES = {
    "saved": "use the tables that come with the package instead of simulating",
    "no-joint": "leave the joint table as it is",
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
    if ("map" in given) != ("check" in given):
        raise ConfigError(
            "a tree is built from one map and checked on another; give both --map and --check"
        )
    folder = Path(str(files(NAME))) / "data"
    if "saved" not in given:
        folder = Path(given.get("output", FOLDER))
        cli.check_writable(folder, is_folder=True)
        prepare_backend(use_cache="no_cache" not in given)
        for name, make in _tables(folder, given):
            _write(folder / f"{name}.csv", make())
    from papers.two_tracks import page

    tables = {name: _read(folder / f"{name}.csv") for name in page.TABLES}
    if "quiet" not in given:
        print("\n".join(page.printed(tables)))
    if "page" in given:
        path = Path(given["page"])
        with cli.writing(path), replacing(path) as written:
            written.write_text(page.page(tables), encoding="utf-8")
    return 0


def _tables(
    folder: Path, given: dict[str, Any]
) -> list[tuple[str, Callable[[], list[dict[str, str]]]]]:
    """The tables to make, by name; those whose files are not given stay as they are."""
    from papers.two_tracks import iterations, regimes

    made: list[tuple[str, Callable[[], list[dict[str, str]]]]] = []
    if Path(iterations.TRACK).is_dir():
        made.append(("iterations", lambda: iterations.ledger_rows(Path(iterations.TRACK))))
    if "searches" in given:
        made.append(("searches", lambda: iterations.search_rows(Path(given["searches"]))))
    if "ablations" in given:
        made.append(("parts", lambda: iterations.part_rows(Path(given["ablations"]))))
    if "map" in given:
        built, other = (regimes.RobustnessMap(Path(given[name])) for name in ("map", "check"))
        regimes.check_disjoint(built, other)
        made.append(("regimes", lambda: regimes.rule_rows(built, other)))
        made.append(("check", lambda: regimes.check_rows(built, other)))
    if "no_joint" not in given:
        made.append(("joint", lambda: _joint(folder, given)))
    return made


def _joint(folder: Path, given: dict[str, Any]) -> list[dict[str, str]]:
    from papers.record.runs import PaperRuns
    from papers.two_tracks import joint

    count = given.get("seeds", joint.NUM_SEEDS)
    if count < MIN_SEEDS:
        raise ConfigError(f"--seeds is {count}; an interval needs {MIN_SEEDS} seeds or more")
    seeds = tuple(range(joint.FIRST_SEED, joint.FIRST_SEED + count))
    runs = PaperRuns(Path(given.get("parts", folder / "parts")), "jax")
    line = progress.begin("simulating", len(joint.cells()), "settings")
    rows = joint.rows(runs, seeds, lambda done, _, what: line.show(done, what))
    line.clear()
    return rows


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    if not rows:
        raise ConfigError(f"there is nothing to write into {path}; look at what the options name")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with cli.writing(path), replacing(path) as written:
        written.write_text(text.getvalue(), encoding="utf-8")


def _read(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main())
