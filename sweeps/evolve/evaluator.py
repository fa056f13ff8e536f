"""`blis-jax evolve evaluator TASK.yaml`: the evaluator of a task for OpenEvolve and SkyDiscover."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import show_answer
from sweeps.evolve import client

NAME = "sweeps.evolve.evaluator"
USUAL = "evaluator.py"
MORE_S = 60  # that a search waits longer than the server

_DESCRIPTION = """\
Write the evaluator of a TASK.yaml for OpenEvolve 0.4 and SkyDiscover 0.1: evaluate, evaluate_stage1,
evaluate_stage2, with artifacts. The file needs Python alone. Programs, in Go or Python, are run by one
server process, which begins with the first of them, starts again if it is dead or a program is late, and
ends a while after the last. A program that fails has a finite score and its error with the line.
"""
_EXAMPLES = """\
examples:
  the evaluator of a task, and a search with it:
    %(prog)s task.yaml --output evaluator.py
    openevolve-run routing.go evaluator.py --config config.yaml --iterations 50
"""


class _Task(CommandOptions, title="what"):
    """The task, and where the evaluator goes."""

    task: str | None = word("TASK.yaml", "cluster, workloads, baseline, seeds, score, guards")
    output: str = option(str, USUAL, "PATH", "Python file to write")


class EvaluatorOptions(
    _Task, OverwriteSwitch, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _write, arguments)


def _write(arguments: Sequence[str] | None) -> int:
    options = EvaluatorOptions.read(arguments)
    if options.task is None:
        raise ConfigError("no task is given; write the path of a TASK.yaml")
    path = output_path(options.output, "--output", (".py",), options.overwrite)

    from sweeps.evolve.task import load_task

    task = load_task(options.task)
    first = task.file.stage1
    threshold = "" if first is None else f"\n    cascade_thresholds: [{first.pass_:g}]"
    head = _HEAD.format(
        name=task.file.name, timeout=int(task.file.limit_s) + MORE_S,
        cascade="true" if first is not None else "false", threshold=threshold,
    )  # fmt: skip
    its = _CLIENT.format(
        python=sys.executable, task=str(Path(options.task).resolve()), limit=task.file.limit_s,
        failure=task.file.failure_score, environment=_environment(),
    )  # fmt: skip
    stages = _STAGES if first is not None else ""
    path.write_text(head + _client() + its + stages + _EVALUATE, encoding="utf-8")
    stage = "" if first is None else f"; stage 1 has seeds {', '.join(map(str, first.seeds))}"
    show_answer(
        Answer.of(
            f"an evaluator of {options.task} for OpenEvolve and SkyDiscover",
            f"{path} hands programs to a server of {sys.executable}{stage}.",
            f"the score is the gain over {task.file.baseline} in % less what guards take off, on "
            f"{len(task.file.seeds)} seeds; its half width stands beside it.",
            f"a program may take {task.file.limit_s:g} s; what fails scores {task.file.failure_score:g}.",
            "its first lines are for the search's config. blis-jax evolve check tells what the winner is worth.",
        )
    )
    return 0


def _environment() -> dict[str, str]:
    """Return the variables that let the server find this same package, wherever the search runs."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([str(Path(client.__file__).parents[2]), *filter(None, inherited)])
    return {"PYTHONPATH": os.pathsep.join(paths)}


def _client() -> str:
    """Return the client module's source without its docstring."""
    return inspect.getsource(client).split('"""', 2)[2].lstrip()


_HEAD = '''\
"""The evaluator of the task {name}, written by `blis-jax evolve evaluator`.

In the config of the search:

evaluator:
    timeout: {timeout}
    cascade_evaluation: {cascade}{threshold}
"""

'''
_CLIENT = """

CLIENT = TaskClient(
    python={python!r},
    task={task!r},
    limit_s={limit!r},
    failure_score={failure!r},
    environment={environment!r},
)
"""
_STAGES = '''

def evaluate_stage1(program_path: str) -> Any:
    """Return metrics and artifacts of a program on the seeds of the first stage."""
    return CLIENT.evaluate(program_path, "first")


def evaluate_stage2(program_path: str) -> Any:
    """Return metrics and artifacts of a program on all seeds of the search."""
    return CLIENT.evaluate(program_path)
'''
_EVALUATE = '''

def evaluate(program_path: str) -> Any:
    """Return metrics and artifacts of a program on all seeds of the search."""
    return CLIENT.evaluate(program_path)


def stop() -> None:
    """End the server; by itself it ends a while after the last program."""
    CLIENT.stop()
'''


if __name__ == "__main__":
    sys.exit(main())
