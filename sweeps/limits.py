"""`blis-jax limits ARM ARM…`: goodput under every choice of the classes' TTFT limits, as a map."""

from __future__ import annotations

import sys

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import AllSwitch, option, words
from blis_jax.commands.options.cluster_flags import InstancesOption
from blis_jax.commands.options.outputs import PageOption, outputs_of
from blis_jax.commands.options.seed_options import CountedRequests, seeds_option
from blis_jax.errors import ConfigError
from sweeps.runs.options import (
    FOLDER,
    NUM_SEEDS,
    ArmRequests,
    FitOption,
    ResultFiles,
    check_statistics,
)

NAME = "sweeps.limits"

_DESCRIPTION = """\
Goodput counts requests whose TTFT keeps the limit of their class, so a verdict on it depends on limits that somebody
chose. Compare strategies under every choice of limits in which no class has a shorter one than a more urgent class; the
first arm is the reference. Prints what holds under all of them, and draws the map. An ARM is
[LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]], as those of blis-jax compare.
"""
_EXAMPLES = """\
examples:
  the ledger's thin tiers against its baseline, under 35 choices of limits:
    %(prog)s iter00_baseline thin=iter23_thin_tiers@begun

  other limits of two classes:
    %(prog)s iter00_baseline iter13_class_lead@found --limits critical=80,150 --limits sheddable=500,1000,5000
"""


class _Asked(FitOption, InstancesOption, ArmRequests, CountedRequests, title="question"):
    """Options for the limits, and for the requests that every arm serves."""

    limits: tuple[str, ...] = option(
        str, (), "CLASS=MS,…", "TTFT limits of a class to try (default: critical=50,100,200 standard=150,250,500,1000 "
        "sheddable=300,500,1000,2000, of others 1000,2000); repeat it", is_repeated=True,
    )  # fmt: skip
    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    confidence: float = option(values.number, 0.95, "P", "confidence of all differences together")


class LimitsOptions(
    _Asked, ResultFiles, PageOption, AllSwitch, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):  # fmt: skip
    """Options of the command."""

    arms: tuple[str, ...] = words("ARM", "two or more; the reference first")


@LimitsOptions.as_main
def main(options: LimitsOptions) -> int:
    """Run the command; return its exit code."""
    check_statistics(options.confidence)
    if len(options.arms) < 2:
        raise ConfigError(
            f"two or more arms are needed, the reference first; got {len(options.arms)}; see --help"
        )
    paths = outputs_of(options, f"{FOLDER}/limits.json")
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.compare.limits import map_limits

    return map_limits(options, paths, options.line())


if __name__ == "__main__":
    sys.exit(main())
