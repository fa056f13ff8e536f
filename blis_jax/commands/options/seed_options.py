"""`--seeds` and `--first-seed`: the same options in every command that takes seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blis_jax.commands.help import HIDDEN
from blis_jax.commands.options import CommandOptions, option
from blis_jax.commands.values import OneOf, at_least, whole
from blis_jax.errors import ConfigError

MOST_SEEDS = 1_000_000
FIRST_SEED = {"reference": 42, "jax": 0}  # by who draws the requests; 42 is BLIS's default seed


def seeds_option(usual: str) -> Any:
    """Declare `--seeds`; `usual` says which seeds are taken without it."""
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
        """Return whether the options say how many seeds, or which."""
        return self.seeds is not None or self.num_seeds is not None

    @property
    def stream(self) -> str:
        """Return who draws requests from the seeds."""
        return "reference"


class DrawnOptions(SeedOptions, title="requests"):
    """Seeds, and who draws requests from them."""

    rng: str | None = option(
        OneOf("reference", "jax"), None, "NAME",
        "who draws the requests: reference draws those of BLIS, jax those of blis_jax.sweep", shown="reference",
    )  # fmt: skip

    @property
    def stream(self) -> str:
        """Return who draws, as the user says."""
        return self.rng or "reference"


class RequestCount(CommandOptions, title="requests"):
    """The option for the number of requests."""

    num_requests: int | None = option(
        at_least(1), None, "N", "requests in place of the workload's number"
    )


class CountedRequests(RequestCount, DrawnOptions, title="requests"):
    """Seeds, who draws, and how many requests."""


def listed_seeds(text: str) -> tuple[int, ...]:
    """Read the seeds in `A,B,…`; a comma at the end makes a list of one."""
    parts = text.removesuffix(",").split(",")
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise ConfigError(
            f"--seeds: {text!r} is neither a number of seeds nor a list of whole numbers such as "
            "42,43,44"
        ) from None


def seeds_text(seeds: Sequence[int]) -> str:
    """Write seeds as a list that `--seeds` takes."""
    return ",".join(map(str, seeds)) + "," * (len(seeds) == 1)


def seeds_of(options: SeedOptions, usual: int, stream: str = "reference") -> tuple[int, ...]:
    """Return the seeds that the options ask for, or the `usual` number of them; `stream` is who draws.

    Whether the stream has such seeds is checked where it draws.
    """
    seeds = given_seeds(options, stream) if options.has_number else None
    return seeds or _following("--seeds", usual, _first(options, stream))


def given_seeds(options: SeedOptions, stream: str = "reference") -> tuple[int, ...] | None:
    """Return the seeds that the options ask for; None if they do not ask for any.

    Raises:
        ConfigError: they contradict each other, or have a first seed and not how many follow.
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
