"""Options on seeds, alike in all commands: `--seeds`, `--first-seed`; `--precision`, `--decide`, which add seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blis_jax import lazy
from blis_jax.commands.help import HIDDEN
from blis_jax.commands.options import CommandOptions, option, switch
from blis_jax.commands.values import OneOf, at_least, whole
from blis_jax.errors import ConfigError, as_option

if TYPE_CHECKING:
    from blis_jax.metrics import scalars
    from blis_jax.statistics import sequential
else:  # `--help` does not wait for them
    scalars = lazy.Module("blis_jax.metrics.scalars")
    sequential = lazy.Module("blis_jax.statistics.sequential")

MOST_SEEDS = 1_000_000
FIRST_SEED = {"reference": 42, "jax": 0}  # by who draws the requests; 42 is BLIS's default seed


def seeds_option(usual: str) -> Any:
    """Declare `--seeds`; the text `usual` tells the help's reader which seeds are the default."""
    words = f"number of seeds, or a list A,B,… of them ({usual})"
    return option(str, None, "N|A,B,…", words)


class SeedOptions(CommandOptions, title="requests"):
    """Options for the seeds: a list, or their number and the first."""

    seeds: str | None = seeds_option("default: by command")
    num_seeds: int | None = option(whole, None, "N", HIDDEN, also="vmap-seeds")
    first_seed: int | None = option(
        whole, None, "N", "the first seed; the others follow (default: 42, as in BLIS, or 0 where JAX draws)",
    )  # fmt: skip

    @property
    def has_number(self) -> bool:
        """Return whether the options give a number or a list of seeds."""
        return self.seeds is not None or self.num_seeds is not None

    @property
    def stream(self) -> str:
        """Return the random stream from which requests are drawn: `reference` or `jax`."""
        return "reference"


class DrawnOptions(SeedOptions, title="requests"):
    """Seeds, and who draws requests from them."""

    rng: str | None = option(
        OneOf("reference", "jax"), None, "NAME",
        "who draws the requests: reference draws those of BLIS, jax others of the same laws", shown="reference",
    )  # fmt: skip

    @property
    def stream(self) -> str:
        """Return the random stream given by --rng, else `reference`."""
        return self.rng or "reference"


class RequestCount(CommandOptions, title="requests"):
    """The option for the number of requests."""

    num_requests: int | None = option(
        at_least(1), None, "N", "requests in place of the workload's number"
    )


class CountedRequests(RequestCount, DrawnOptions, title="requests"):
    """Seeds, who draws, and how many requests."""


def listed_seeds(text: str) -> tuple[int, ...]:
    """Read a list of seeds `A,B,…`; `A,` is a list of one seed."""
    parts = text.removesuffix(",").split(",")
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise ConfigError(
            f"--seeds: {text!r} is neither a number of seeds nor a list of whole numbers such as "
            "42,43,44"
        ) from None


def seeds_text(seeds: Sequence[int]) -> str:
    """Format seeds as a list for `--seeds`."""
    return ",".join(map(str, seeds)) + "," * (len(seeds) == 1)


def seeds_of(options: SeedOptions, usual: int, stream: str = "reference") -> tuple[int, ...]:
    """Return the seeds that the options ask for, else `usual` many; `stream` is the random stream of the requests.

    Whether the stream allows these seeds is checked when requests are drawn.
    """
    seeds = given_seeds(options, stream) if options.has_number else None
    return seeds or _following("--seeds", usual, _first(options, stream))


def given_seeds(options: SeedOptions, stream: str = "reference") -> tuple[int, ...] | None:
    """Return the seeds that the options ask for; None if they do not ask for any.

    Raises:
        ConfigError: the options contradict each other, or give a first seed without a number of seeds.
    """
    text, count = options.seeds, options.num_seeds
    if options.first_seed is not None and not options.has_number:
        raise ConfigError("--first-seed: nothing says how many seeds follow; give --seeds too")
    if text is not None and "," in text:
        seeds = listed_seeds(text)
        if count not in (None, len(seeds)):
            raise ConfigError(
                f"--seeds lists {len(seeds)} seeds, but --num-seeds asks for {count}; give one of both"
            )
        if options.first_seed is not None:
            raise ConfigError("--first-seed: --seeds lists the seeds; give one of them")
        return seeds
    first = _first(options, stream)
    if text is None:
        return None if count is None else _following("--num-seeds", count, first)
    (number,) = listed_seeds(text)
    if count is None:
        return _following("--seeds", number, first)
    if options.first_seed is not None:
        raise ConfigError("--num-seeds: --seeds is given too; give one of them")
    return _following("--num-seeds", count, number)  # the older pair: --seeds says where they begin


def _first(options: SeedOptions, stream: str) -> int:
    return FIRST_SEED[stream] if options.first_seed is None else options.first_seed


def _following(option: str, count: int, first: int) -> tuple[int, ...]:
    if not 1 <= count <= MOST_SEEDS:
        raise ConfigError(f"{option}: got {count}, allowed is 1 to {MOST_SEEDS}")
    return tuple(range(first, first + count))


# --- how many seeds are enough, in every command that compares on seeds ---------------------------

USUAL = "pooled_ttft_p99_ms"
USUAL_CLASS = "critical"
FEWEST_SEEDS, USUAL_MOST_SEEDS = 20, 640
SMALLEST, LARGEST = 1e-4, 0.5


class EnoughSeedsOptions(CommandOptions, title="enough seeds"):
    """Options for choosing the number of seeds by looking at the results."""

    precision: str | None = option(
        str, None, "P%", "add seeds until the differences are known to ±P % of the reference",
    )  # fmt: skip
    most_seeds: int | None = option(
        whole, None, "N", f"the most seeds that --precision and --decide take (default: {USUAL_MOST_SEEDS})",
    )  # fmt: skip
    decide: bool = switch(
        "add seeds until the verdicts are safe; tests and intervals hold however often the command looks"
    )

    @property
    def has_rule(self) -> bool:
        """Return whether the options ask for a stopping rule, which adds seeds."""
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
    """Return the stopping rule that the options ask for; None if the number of seeds is fixed."""
    if not options.has_rule:
        for name in ("deciding", "most_seeds"):
            if getattr(options, name, None) is not None:
                raise ConfigError(
                    f"{as_option(name)} has no meaning without --precision or --decide; give one of them"
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
    most = USUAL_MOST_SEEDS if options.most_seeds is None else options.most_seeds
    if not FEWEST_SEEDS <= most <= 100_000:
        raise ConfigError(f"--most-seeds: got {most}, allowed is {FEWEST_SEEDS} to 100000")
    return sequential.StoppingRule(options.decide, _precision(options.precision), most)


def first_seeds(seeds: Sequence[int], rule: sequential.StoppingRule) -> tuple[int, ...]:
    """Return the seeds of the rule's first stage, checked for too few or too many."""
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


def deciding_metrics(deciding: str | None, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics named in `deciding`, checked; None means the default metric."""
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
