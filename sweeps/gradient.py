"""`blis-jax gradient ARM`: smoothed gradients of metrics by settings that act through decisions."""

from __future__ import annotations

import sys
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    OverwriteSwitch,
    option,
    outputs,
    word,
)
from blis_jax.commands.options.cluster_flags import InstancesOption
from blis_jax.commands.options.seed_options import SeedOptions, seeds_option
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError
from sweeps.runs.options import ArmRequests, FitOption

NAME = "sweeps.gradient"
NUM_SEEDS, NUM_PAIRS = 32, 24
_DESCRIPTION = """\
Smoothed gradients: how the mean of each metric over perturbed settings changes with them. Thresholds, weights,
bases and budgets act through decisions: as one of them grows, a metric jumps. Its smoothed mean does not jump.
ARM is a strategy of the library, a file, or either with a point and settings (STRATEGY@POINT:NAME=VALUE).
"""
_EXAMPLES = """\
examples:
  the token budget and a chunk threshold of iteration 8's best point:
    %(prog)s iter08_token_budget@published --perturb max_num_scheduled_tokens=64,slo_prefill_critical=24

  by the logarithm of a scorer's weight, per class:
    %(prog)s iter00_baseline --perturb routing_scorers.queue-depth=0.3:log --metrics "ttft_p99_ms[critical]"
"""


class _Gradient(CommandOptions, title="gradient"):
    """Options for the settings to perturb, and for the size and law of the steps."""

    perturb: str | None = option(
        str, None, "LIST", "NAME=WIDTH[:log],…: settings and the σ of each"
    )
    metrics: str = option(
        str, "ttft_mean_ms,ttft_p99_ms,e2e_mean_ms", "LIST", "metrics, [class] behind"
    )
    pairs: int = option(values.whole, NUM_PAIRS, "N", "antithetic pairs of perturbed points")
    law: str = option(
        values.OneOf("normal", "uniform"), "normal", "NAME", "distribution of the perturbations"
    )
    random_state: int = option(values.whole, 0, "N", "seed of the perturbations")


class GradientOptions(
    _Gradient, FitOption, InstancesOption, ArmRequests, SeedOptions, StudyTrace, OverwriteSwitch, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    usual_seeds: ClassVar[int] = NUM_SEEDS

    arm: str | None = word("ARM", "the configuration")
    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    output: str | None = option(str, None, "PATH", "result to write, .json")


@GradientOptions.as_main
def main(options: GradientOptions) -> int:
    """Run the command; return its exit code."""
    if options.arm is None:
        raise ConfigError("no arm is given; give a strategy such as iter08_token_budget@published")
    widths = _widths(options.perturb)
    output = None
    if options.output is not None:
        output = outputs.output_path(options.output, "--output", (), options.overwrite)
    prepare_backend()

    from sweeps.sensitivity.smoothed import take_gradients

    return take_gradients(options, options.arm, widths, output)


def _widths(text: str | None) -> list[tuple[str, float, bool]]:
    """Return the names, the widths, and whether the logarithm is perturbed, from a text `NAME=WIDTH[:log],…`."""
    if not text:
        raise ConfigError(
            "--perturb: nothing to perturb; give for instance max_num_scheduled_tokens=64"
        )
    widths = []
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        number, colon, scale = rest.partition(":")
        try:
            width = float(number)
        except ValueError:
            equals = ""
        if not equals or (colon and scale != "log"):
            raise ConfigError(f"--perturb: {part!r} is not NAME=WIDTH or NAME=WIDTH:log")
        widths.append((name.strip(), width, bool(colon)))
    return widths


if __name__ == "__main__":
    sys.exit(main())
