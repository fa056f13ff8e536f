"""`python -m blis_jax.run`: one run, or recorded scenarios again; what they need is imported behind the options."""

from __future__ import annotations

from collections.abc import Sequence

from blis_jax.commands import cli
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import trace_flags
from blis_jax.commands.run.flags import NAME, RunOptions, make_parser
from blis_jax.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    given = make_parser().given(arguments)
    from blis_jax.commands.run.workload import with_workload_spec

    options = RunOptions.of(trace_flags.renamed(with_workload_spec(given)))
    notes = Notes(NAME, options.log)
    cli.silence_warnings(options.log)
    if not options.scenario:
        from blis_jax.commands.run.one_run import simulate_one

        return simulate_one(options, notes)
    if options.steady:
        raise ConfigError("--steady looks at one run; leave out --scenario")
    from blis_jax.commands.run.scenarios import replay

    return replay(options, notes)
