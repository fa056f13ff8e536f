"""`blis-jax evolve read ROUTING.GO`: an evolved routing function as a policy of Python."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, word
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.reading import SCORERS, signals_of
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import show_answer
from sweeps.evolve.go.reader import policy_of
from sweeps.evolve.go.source import GoProgram, read
from sweeps.evolve.programs import EvolvedRouter

NAME = "sweeps.evolve.read"
SIZES = (1, 5)  # of the clusters in which the policy is tried

_DESCRIPTION = """\
Read a routing function that a program search has written in Go, as BLIS's routing.go has it, and write
it as a policy of Python for any number of instances, with Go's lines beside it. The block between the
marks EVOLVE-BLOCK-START and EVOLVE-BLOCK-END, a whole routing.go, and a Python file with either in a
string are read. What cannot be read exactly is refused with its file and line.
"""
_EXAMPLES = """\
examples:
  a function, and a run with it beside the scorers that it weighs:
    %(prog)s routing.go --output mine.py
    blis-jax run --model qwen/qwen3-14b --num-instances 4 --workload mixed \\
        --routing-policy mine.py:route --routing-scorers prefix-affinity:1,load-balance:1
"""


class _Program(CommandOptions, title="program"):
    """Options for what is read, and where the policy goes."""

    program: str | None = word("ROUTING.GO", "the Go file, or a Python file with Go in a string")
    output: str | None = option(
        str, None, "PATH", "Python file to write (default: beside the program, .py)"
    )


class ReadOptions(
    _Program, OverwriteSwitch, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""


@ReadOptions.as_main
def main(options: ReadOptions) -> int:
    """Run the command; return its exit code."""
    if options.program is None:
        raise ConfigError("no program is given; write the path of a routing.go")
    program = read(options.program)
    path = Path(options.output or Path(options.program).with_suffix(".py"))
    if path.suffix != ".py":
        raise ConfigError(
            f"--output {path}: policies are Python files; give a name that ends in .py"
        )
    text = policy_of(program, path.stem)
    if path.exists() and not options.overwrite:
        raise ConfigError(f"--output {path} is there already; --overwrite replaces it")
    cli.check_writable(path)
    path.write_text(text, encoding="utf-8")
    prepare_backend()
    signals = _tried(program, path)
    for note in program.notes:
        cli.say(NAME, note)
    show_answer(_answer(options.program, path, program, signals, text))
    return 0


def _tried(program: GoProgram, path: Path) -> frozenset[str]:
    """Trace the written policy in clusters of several sizes; return the signals that it reads.

    Raises:
        ConfigError: the policy cannot be traced.
    """
    try:
        policy = registry.find("routing", f"{path}:route")
        return frozenset().union(*(signals_of(policy, size, num_scorers=2) for size in SIZES))
    except Exception as error:
        said = EvolvedRouter(program.name, f"{path}:route", is_go=True).told(error)
        path.unlink()
        raise ConfigError(f"{said}; nothing is written") from error


def _answer(
    source: str, path: Path, program: GoProgram, signals: frozenset[str], text: str
) -> Answer:
    code = [line for line in text.split("\n") if line.strip()]
    loops = sum(line.lstrip().startswith("for ") for line in code)
    passes = f", {loops} of whose loops go instance by instance" if loops else ""
    scorers = (
        " --routing-scorers prefix-affinity:1,load-balance:1" if signals & set(SCORERS) else ""
    )
    read_ = ", ".join(sorted(signals - {"draws", *SCORERS})) or "nothing"
    return Answer.of(
        f"the routing function in {source}, lines {program.marked.start} to {program.marked.stop - 1}, as a policy",
        f"{path} has the policy route{passes}; it reads {read_}"
        + (", what each scorer says" if scorers else "")
        + (", and breaks ties by BLIS's seeded stream" if "draws" in signals else "")
        + ".",
        f"every statement is read or refused; traced with {' and '.join(map(str, SIZES))} instances.",
        f"{len(code)} lines of Python, Go's among them; the first run compiles it.",
        f"blis-jax compare least-loaded 'mine=least-loaded:routing_policy={path}:route' tells what it is worth."
        if not scorers else f"run it as --routing-policy {path}:route{scorers}, with the weights of its search.",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
