"""`blis-jax review CANDIDATE CANDIDATE [CANDIDATE]`: judges, imported verdicts, consensus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands.options import CommandOptions, PlainSwitches, option, words
from blis_jax.commands.options.seed_options import CountedRequests, seeds_option

NAME = "sweeps.review"
USUAL_OUTPUT = Path("out/review.json")

_DESCRIPTION = """\
Review two or three candidate strategies. Judges probe each candidate in the simulator for signals that
are the same for all instances, herding, unstable numbers, lengths that stand in for the class,
starvation, mechanisms that do nothing, and parameters at the ends of their ranges. Verdicts of other
reviewers are imported from files that are bound to the candidates by hash. The consensus is recorded
with the same hashes. A candidate runs on the workload of its strategy file, or on mixed if it has none.
"""
_EXAMPLES = """\
examples:
  the three ideas of the scheduling track:
    %(prog)s idea1_tiered_cascade idea2_deadlines idea3_gated_cascade

  ask somebody else, and take their verdicts in:
    %(prog)s mine.yaml iter05_simplified --template out/for_ada.yaml
    %(prog)s mine.yaml iter05_simplified --external out/for_ada.yaml

  whether a recorded review is still about the same candidates:
    %(prog)s --check out/review.json
"""


class _Judges(CountedRequests, title="judges"):
    """Options for the judges, and for the runs that they judge by."""

    judges: str | None = option(str, None, "NAME,…", "judges to ask (default: all)")
    external: str | None = option(
        str, None, "FILE,…", "verdicts of other reviewers, .yaml or .json"
    )


class _Files(CommandOptions, title="files"):
    """Options for the files to write, and for the one to verify."""

    output: str | None = option(
        str, None, "PATH", f"record to write, .json (default: {USUAL_OUTPUT})"
    )
    template: str | None = option(
        str, None, "PATH", "write an empty verdict file for another reviewer, and end"
    )
    check: str | None = option(
        str, None, "RECORD", "verify that a recorded review matches its candidates"
    )


class ReviewOptions(
    _Judges, _Files, PlainSwitches, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    usual_output: ClassVar[Path] = USUAL_OUTPUT
    candidates: tuple[str, ...] = words("CANDIDATE", "two or three arms")
    seeds: str | None = seeds_option("default: the first candidate's")


@ReviewOptions.as_main
def main(options: ReviewOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.review.judges import review_candidates

    return review_candidates(options)


if __name__ == "__main__":
    sys.exit(main())
