"""`blis-jax evolve check PROGRAM TASK.yaml`: a program on seeds that its search did not use."""

from __future__ import annotations

import sys

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import AllSwitch, CommandOptions, PlainSwitches, option, word
from blis_jax.commands.options.outputs import PageOption, outputs_of
from blis_jax.commands.options.seed_options import SeedOptions, seeds_option
from blis_jax.errors import ConfigError
from sweeps.runs.options import FOLDER, check_statistics

NAME = "sweeps.evolve.check"
NUM_SEEDS, FIRST_SEED = 20, 1000

_DESCRIPTION = """\
Check what a program search has found: a router in Go or Python against the baseline of its TASK.yaml, on
seeds that the search did not use. Prints the published gain beside the gain here, the gain on the new
seeds with its interval, what got worse by class, and the guards that are broken. Seeds that the search
used are refused: on them a program is as good as it was chosen to be.
"""
_EXAMPLES = """\
examples:
  a function of Go on 20 new seeds:
    %(prog)s routing.go task.yaml

  one of several policies of a Python file, with a page:
    %(prog)s routers.py:winner task.yaml --seeds 40 --first-seed 5000 --report out/winner.html
"""


class _Programs(CommandOptions, title="what"):
    """The program, and what it was searched for."""

    program: str | None = word(
        "PROGRAM", "a .go file, or FILE.py[:NAME] with a policy or with Go in a string"
    )
    task: str | None = word("TASK.yaml", "what the search was given")
    published: float | None = option(
        values.number, None, "X", "gain in % that the search reports, in place of the task's"
    )


class _Seeds(SeedOptions, title="requests"):
    """The new seeds."""

    seeds: str | None = seeds_option(
        f"default: {NUM_SEEDS} from {FIRST_SEED} on; of traces, the windows not used"
    )


class _Statistics(CommandOptions, title="statistics"):
    """How sure."""

    confidence: float = option(values.number, 0.95, "P", "confidence of intervals and verdicts")
    bootstrap: int = option(values.whole, 9999, "N", "resamples of the seeds, from 15 seeds on")
    random_state: int = option(values.at_least(0), 0, "N", "seed of the resampling")


class _Result(CommandOptions, title="output"):
    """The result."""

    output: str | None = option(str, None, "PATH", "result to write, .json")


class EvolveCheckOptions(
    _Programs, _Seeds, _Statistics, _Result, PageOption, PlainSwitches, AllSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""


@EvolveCheckOptions.as_main
def main(options: EvolveCheckOptions) -> int:
    """Run the command; return its exit code."""
    if options.program is None or options.task is None:
        raise ConfigError("a program and a task are needed; write PROGRAM TASK.yaml")
    check_statistics(options.confidence, options.bootstrap)
    paths = outputs_of(options, f"{FOLDER}/evolve_check.json")
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.evolve.checking import checked

    usual = range(FIRST_SEED, FIRST_SEED + NUM_SEEDS)
    return checked(options, paths, usual, options.line())


if __name__ == "__main__":
    sys.exit(main())
