"""`blis-jax surrogate coverage MODEL DATA.zarr`: do the intervals hold as often as they say?"""

from __future__ import annotations

import sys

from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, word, words
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError

NAME = "surrogate.coverage"
# the output that reports draw and judge if nothing else is asked
MOST_WANTED = "ttft_p99_ms[critical]"

_DESCRIPTION = """\
Count on the test points of a dataset how often means over the seeds, and single runs, lie in their
intervals, and test each count against the confidence (exact binomial test, two-sided). Calibration
points are finite in number, so that true coverage varies about the confidence: the last column tests
against that variation too (beta-binomial). The dataset is that of the fit, or one with other points of
the same space on the same seeds (sweeps.dataset with another --random-state).
"""
_EXAMPLES = """\
examples:
  90 %% intervals, the test at 1 %%:
    %(prog)s out/iter08.surrogate out/iter08.zarr

  on points that nobody has looked at:
    %(prog)s out/iter08.surrogate out/fresh.zarr

  80 %% intervals, the counts as a table:
    %(prog)s out/iter08.surrogate out/iter08.zarr --confidence 0.8 --output coverage.csv
"""


class _Test(CommandOptions, title="test"):
    """Options for the levels of the test, and for its table."""

    confidence: float = option(values.number, 0.9, "P", "confidence of the intervals")
    level: float = option(values.number, 0.01, "P", "significance level of the test")
    output: str | None = option(str, None, "PATH", "table to write, .csv")


class PairOptions(CommandOptions):
    """A surrogate and its dataset."""

    model: str | None = word("MODEL", "folder of surrogate.train")
    data: tuple[str, ...] = words("DATA", "dataset, .zarr, or saved sweeps")


class CoverageOptions(
    PairOptions, _Test, OverwriteSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""


@CoverageOptions.as_main
def main(options: CoverageOptions) -> int:
    """Run the command; return its exit code."""
    for name, value in (("confidence", options.confidence), ("level", options.level)):
        if not 0 < value < 1:
            raise ConfigError(f"--{name}: got {value:g}, allowed is between 0 and 1")
    out = None
    if options.output is not None:
        out = output_path(options.output, "--output", (".csv",), options.overwrite)

    from surrogate.scores import show_coverage

    return show_coverage(options, out)


if __name__ == "__main__":
    sys.exit(main())
