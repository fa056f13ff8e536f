"""`python -m papers.real_servers`: predictions of real servers against what they measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser

NAME = "papers.real_servers"
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "real_serving_runs"
PAGE = ROOT / "docs" / "results" / "real-servers.md"
PARTS = "vllm,llmd_runs,inferencex"
FITS = ROOT / "blis_jax" / "data" / "served_fits.yaml"
_DESCRIPTION = """\
Predict runs of real servers and hold the predictions against what was measured: 31 runs of vLLM beside the
predictions of six published simulators, with nothing fitted and with a fit to the other runs (one workload,
one model or one kind of GPU left out); llm-d clusters and vLLM deployments in closed loops. Prints the tables of
docs/results/real-servers.md.
"""
_EXAMPLES = """\
examples:
  the runs beside the checkout:
    %(prog)s

  the same, into the page, its figure, and the fits that `blis_jax.predict` uses:
    %(prog)s --write
"""
_FLAGS = (
    Flag(
        "data",
        str,
        None,
        "FOLDER",
        "folder of vllm_runs.csv, llmd_runs.csv and inferencex_vllm.csv (default: shared/data beside the checkout)",
    ),
    Flag("parts", str, PARTS, "NAMES", "which collections, with commas"),
)
_SWITCHES = {"write": "write tables and figure into the pages, and the fits into the package"}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_flags("what", _FLAGS)
    parser.add_switches("switches", _SWITCHES)
    given = parser.given(sys.argv[1:] if arguments is None else arguments)
    prepare_backend()
    from papers.real_servers import page

    folder = Path(given.get("data", DATA))
    page.make(folder, given.get("parts", PARTS).split(","), "write" in given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
