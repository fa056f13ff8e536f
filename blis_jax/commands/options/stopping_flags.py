"""`--precision`, `--decide` and their like: how many seeds are enough, in every command that compares on seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax import lazy
from blis_jax.commands.options import CommandOptions, option, switch
from blis_jax.commands.values import whole
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.metrics import scalars
    from blis_jax.statistics import sequential
else:  # `--help` does not wait for them
    scalars = lazy.Module("blis_jax.metrics.scalars")
    sequential = lazy.Module("blis_jax.statistics.sequential")

USUAL = "pooled_ttft_p99_ms"
USUAL_CLASS = "critical"
FEWEST_SEEDS, MOST_SEEDS = 20, 640
SMALLEST, LARGEST = 1e-4, 0.5


class EnoughSeedsOptions(CommandOptions, title="enough seeds"):
    """Options for choosing the number of seeds by looking at the results."""

    precision: str | None = option(
        str, None, "P%", "add seeds until the differences are known to ±P % of the reference",
    )  # fmt: skip
    most_seeds: int | None = option(
        whole, None, "N", f"the most seeds that --precision and --decide take (default: {MOST_SEEDS})",
    )  # fmt: skip
    decide: bool = switch(
        "add seeds until the verdicts are safe; tests and intervals hold however often the command looks"
    )

    @property
    def has_rule(self) -> bool:
        """Return whether seeds are added until a rule is met."""
        return self.decide or self.precision is not None


class DecidingOptions(EnoughSeedsOptions, title="enough seeds"):
    """Options for choosing the number of seeds, and the metrics that decide it."""

    deciding: str | None = option(
        str, None, "LIST", "metrics that --precision and --decide judge by (default: "
        f"{USUAL}[{USUAL_CLASS}], or {USUAL} if no request is {USUAL_CLASS})",
    )  # fmt: skip


def rule_of(
    options: EnoughSeedsOptions, seeds: str | None = None, trace: str | None = None
) -> sequential.StoppingRule | None:
    """Return the rule that the options ask for; None if the number of seeds is fixed."""
    if not options.has_rule:
        for name in ("deciding", "most_seeds"):
            if getattr(options, name, None) is not None:
                raise ConfigError(
                    f"--{name.replace('_', '-')} has no meaning without --precision or --decide; give one of them"
                )
        return None
    if seeds is not None and "," in seeds:
        raise ConfigError(
            "--seeds lists the seeds, but --precision and --decide add seeds; give the number of the first stage"
        )
    if trace is not None:
        raise ConfigError(
            "--precision and --decide add seeds, but the requests are those of a trace; leave them out"
        )
    most = MOST_SEEDS if options.most_seeds is None else options.most_seeds
    if not FEWEST_SEEDS <= most <= 100_000:
        raise ConfigError(f"--most-seeds: got {most}, allowed is {FEWEST_SEEDS} to 100000")
    return sequential.StoppingRule(options.decide, _precision(options.precision), most)


def first_seeds(seeds: Sequence[int], rule: sequential.StoppingRule) -> tuple[int, ...]:
    """Return the seeds of the first stage, checked."""
    if not FEWEST_SEEDS <= len(seeds) <= rule.most_seeds:
        raise ConfigError(
            f"--seeds: got {len(seeds)}, but the first stage of --precision and --decide has {FEWEST_SEEDS} to "
            f"{rule.most_seeds} seeds, since the spread of fewer says too little"
        )
    return tuple(seeds)


def _precision(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        raise ConfigError(f"--precision: {text!r} is no number of %; give one such as 1%") from None
    if not SMALLEST <= share <= LARGEST:
        raise ConfigError(
            f"--precision: got {text}, allowed is {100 * SMALLEST:g}% to {100 * LARGEST:g}%"
        )
    return share


def names_of(deciding: str | None, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that the rule looks at."""
    if deciding is None:
        return (f"{USUAL}[{USUAL_CLASS}]" if USUAL_CLASS in classes else USUAL,)
    names = tuple(dict.fromkeys(name.strip() for name in deciding.split(",")))
    for name in names:
        try:
            _, slo_class = scalars.lookup(name)
        except ConfigError as error:
            raise ConfigError(f"--deciding: {error}") from None
        if slo_class is not None and slo_class not in classes:
            raise ConfigError(
                f"--deciding: no request is of class {slo_class}; there are {', '.join(classes)}"
            )
    return names
