"""`blis-jax merge`: the parts that `--part` wrote as one result, with the bytes of the undivided run."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.commands.options import OverwriteSwitch, option, switch, words
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import sole_writer
from blis_jax.lazy import Module
from blis_jax.reports import render
from blis_jax.reports.findings import Answer

joining = Module("sweeps.runs.parts")

NAME = "sweeps.merge"
KINDS = (".zarr", ".nc", ".jsonl")
_DESCRIPTION = """\
Join the parts of one command's runs, which --part I/N wrote: Datasets (.zarr, .nc) of sweep, robustness and dataset,
records (.jsonl) of compare, ablate, sensitivity, ledger and papers. The bytes are those of the undivided run. Parts
that are missing, double, unfinished or of other runs are refused. Next names the command that judges the joined runs.
"""
_EXAMPLES = """\
examples:
  a sweep in two parts, on one machine or on two:
    blis-jax sweep baseline it08_opt --part 1/2 --output p1.zarr
    blis-jax sweep baseline it08_opt --part 2/2 --output p2.zarr
    %(prog)s p1.zarr p2.zarr --output all.zarr
    blis-jax sweep baseline it08_opt --output all.zarr --resume
"""


class MergeOptions(
    OverwriteSwitch, title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    parts: tuple[str, ...] = words("PART", "the files of all parts")
    output: str | None = option(str, None, "PATH", "what to write, with the ending of the parts")
    quiet: bool = switch()


@MergeOptions.as_main
def main(options: MergeOptions) -> int:
    """Run the command; return its exit code."""
    paths = [Path(text) for text in options.parts]
    if not paths or options.output is None:
        missing = "--output PATH" if paths else "PART, the files of all parts,"
        raise ConfigError(f"{missing} is missing; see --help for examples")
    endings = {path.suffix for path in (*paths, Path(options.output))}
    if len(endings) > 1 or not endings <= set(KINDS):
        raise ConfigError(
            f"the parts and --output end in {', '.join(sorted(endings))}; give one ending of {', '.join(KINDS)}"
        )
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} does not exist; give what --part wrote")
    output = output_path(options.output, "--output", KINDS, options.overwrite)
    if output.resolve() in [path.resolve() for path in paths]:
        raise ConfigError(f"--output: {output} is one of the parts; give another path")
    with sole_writer(output):
        if output.suffix == ".jsonl":
            num_runs, following = joining.join_journals(paths, output)
        else:
            num_runs, command = joining.join_datasets(paths, output)
            following = f"{command} --resume"
    if not options.quiet:
        question = f"{len(paths)} parts as one?"
        sure = "every run is there once; the bytes are those of the undivided run."
        price = f"{num_runs} runs were there; nothing was run."
        render.show_answer(Answer.of(question, f"Written: {output}", sure, price, following))
    return 0


if __name__ == "__main__":
    sys.exit(main())
