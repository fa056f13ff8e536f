"""`blis-jax papers real_servers`: predictions of real servers against what they measured."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands.options import CommandOptions, option, switch

NAME = "papers.real_servers"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "real_serving_runs"
PARTS = "vllm,llmd_runs,inferencex"
_DESCRIPTION = """\
Predict runs of real servers and hold the predictions against what was measured: 31 runs of vLLM beside the
predictions of six published simulators, with nothing fitted and with a fit to the other runs (one workload,
one model or one kind of GPU left out); llm-d clusters and vLLM deployments in closed loops. Prints the tables of
docs/results/real-servers.md and real-servers-loops.md.
"""
_EXAMPLES = """\
examples:
  the runs beside the checkout:
    %(prog)s

  the same, into the page, its figure, and the fits that `blis-jax predict` uses:
    %(prog)s --write
"""


class RealServersOptions(
    CommandOptions, title="what", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    data: str | None = option(
        str, None, "FOLDER",
        "folder of vllm_runs.csv, llmd_runs.csv and inferencex_vllm.csv (default: shared/data beside the checkout)",
    )  # fmt: skip
    parts: str = option(str, PARTS, "NAMES", "which collections, with commas")
    write: bool = switch("write tables and figure into the pages, and the fits into the package")


@RealServersOptions.as_main
def main(options: RealServersOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend()
    from papers.real_servers import page

    folder = Path(options.data or DATA)
    page.make(folder, options.parts.split(","), options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
