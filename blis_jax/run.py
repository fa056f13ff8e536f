"""`blis-jax run`: one run, or recorded scenarios again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax import lazy
from blis_jax.commands import cli
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import trace_flags
from blis_jax.commands.run.flags import NAME, RunOptions, make_parser
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.commands.run import one_run, scenarios, workload
else:  # `--help` does not wait for them
    one_run = lazy.Module("blis_jax.commands.run.one_run")
    scenarios = lazy.Module("blis_jax.commands.run.scenarios")
    workload = lazy.Module("blis_jax.commands.run.workload")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    given = make_parser().given(arguments)
    options = RunOptions.of(trace_flags.renamed(workload.with_workload_spec(given)))
    notes = Notes(NAME, options.log)
    cli.silence_warnings(options.log)
    if not options.scenario:
        return one_run.simulate_one(options, notes)
    if options.steady:
        raise ConfigError("--steady looks at one run; leave out --scenario")
    return scenarios.replay(options, notes)


if __name__ == "__main__":
    sys.exit(main())
