"""`python -m sweeps.evolve.search TASK.yaml`: breed a router for a task, without a language model."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import show_answer

NAME = "sweeps.evolve.search"
USUAL = "found.py"

_DESCRIPTION = """\
Search a router for a TASK.yaml without a language model: genetic programming over formulas of what a
router sees. Programs are tables of operations that one compiled engine runs; one that is worse than the
best so far is dropped after a few seeds, by a rule that keeps a better one with a stated probability. The
best formula is made shorter, and written as a policy of Python and as a block of Go.
"""
_EXAMPLES = """\
examples:
  500 formulas, and what the best of them is worth on seeds that the search did not use:
    %(prog)s task.yaml --programs 500 --output found.py
    blis-jax evolve check found.py task.yaml
"""


class _Task(CommandOptions, title="what"):
    """The task, and how long the search is."""

    task: str | None = word("TASK.yaml", "cluster, workloads, baseline, seeds, score, guards")
    programs: int = option(
        values.at_least(1), 300, "N", "programs that compute different functions"
    )
    minutes: float = option(
        values.number, 60.0, "M", "minutes after which no further program begins"
    )
    random_state: int = option(values.at_least(0), 0, "N", "seed of the search")
    output: str = option(str, USUAL, "PATH", "Python file to write; the block of Go goes beside it")


class EvolveSearchOptions(
    _Task, OverwriteSwitch, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""


@EvolveSearchOptions.as_main
def main(options: EvolveSearchOptions) -> int:
    """Run the command; return its exit code."""
    if options.task is None:
        raise ConfigError("no task is given; write the path of a TASK.yaml")
    path = output_path(options.output, "--output", (".py",), options.overwrite)
    go = output_path(str(Path(path).with_suffix(".go")), "--output", (".go",), options.overwrite)
    prepare_backend()

    from sweeps.evolve.breeding import searched
    from sweeps.evolve.task import load_task

    with progress.phase("searching", options.programs, "programs") as work:
        result = searched(
            load_task(options.task), options.programs, 60 * options.minutes, options.random_state,
            lambda count, best: work.show(count, f"best {best.score:+.3g} %"),
        )  # fmt: skip
    path.write_text(result.python, encoding="utf-8")
    go.write_text(result.go, encoding="utf-8")
    grew = ", ".join(f"{count} ({score:+.3g} %)" for count, score in result.curve)
    show_answer(
        Answer.of(
            f"a router for {options.task}, of {result.num_programs} formulas",
            f"{path} and {go} choose the instance with the highest {result.best.formula}.",
            f"{result.best.score:+.3g} % over {result.baseline} on the search's seeds, on which it was chosen. "
            f"{result.rule}",
            f"{result.num_programs} programs, {result.num_dropped} of them dropped after a few seeds; the best one "
            f"grew at {grew}.",
            f"blis-jax evolve check {path} {options.task} tells what it is worth on other seeds.",
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
