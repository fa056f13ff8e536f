"""`--seeds` and `--first-seed`: the same options in every command that takes seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.commands.flags.shared_options import HIDDEN
from blis_jax.commands.option_values import whole
from blis_jax.commands.parser import Flag
from blis_jax.errors import ConfigError

MOST_SEEDS = 1_000_000
FIRST_SEED = {"reference": 42, "jax": 0}  # by who draws the requests; 42 is BLIS's default seed


def seed_flags(usual: str) -> tuple[Flag, ...]:
    """The options; `usual` says which seeds are taken without them."""
    words = f"number of seeds, or a list A,B,… of them (older: --num-seeds, --vmap-seeds; {usual})"
    first = "the first seed; the others follow (default: 42, as in BLIS, or 0 where JAX draws)"
    return (
        Flag("seeds", str, None, "N|A,B,…", words),
        Flag("num-seeds/vmap-seeds", whole, None, "N", HIDDEN),
        Flag("first-seed", whole, None, "N", first),
    )


def listed_seeds(text: str) -> tuple[int, ...]:
    """The seeds in `A,B,…`; a comma at the end makes a list of one."""
    parts = text.removesuffix(",").split(",")
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise ConfigError(
            f"--seeds: {text!r} is neither a number of seeds nor a list of whole numbers such as "
            "42,43,44"
        ) from None


def seeds_text(seeds: Sequence[int]) -> str:
    """The seeds as a list that `--seeds` takes."""
    return ",".join(map(str, seeds)) + "," * (len(seeds) == 1)


def seeds_of(given: Mapping[str, Any], usual: int, stream: str | None = None) -> tuple[int, ...]:
    """The seeds that the options ask for, or the `usual` number of them; `stream` is who draws.

    Whether the stream has such seeds is checked where it draws.
    """
    return given_seeds(given, stream) or _following({}, usual, _first(given, stream))


def given_seeds(given: Mapping[str, Any], stream: str | None = None) -> tuple[int, ...] | None:
    """The seeds that the options ask for; None if they do not say how many."""
    text, count = given.get("seeds"), given.get("num_seeds")
    if text is not None and "," in text:
        seeds = listed_seeds(text)
        if count not in (None, len(seeds)):
            raise ConfigError(
                f"--seeds lists {len(seeds)} seeds, but --num-seeds asks for {count}; give one of both"
            )
        if "first_seed" in given:
            raise ConfigError("--first-seed: --seeds lists the seeds; give one of them")
        return seeds
    first = _first(given, stream)
    if text is None:
        return None if count is None else _following(given, count, first)
    (number,) = listed_seeds(text)
    if count is None:
        return _following(given, number, first)
    if "first_seed" in given:
        raise ConfigError("--num-seeds: --seeds is given too; give one of them")
    return _following(given, count, number)  # the older pair: --seeds says where they begin


def _first(given: Mapping[str, Any], stream: str | None) -> int:
    first: int = given.get("first_seed", FIRST_SEED[stream or given.get("rng", "reference")])
    return first


def _following(given: Mapping[str, Any], count: int, first: int) -> tuple[int, ...]:
    if not 1 <= count <= MOST_SEEDS:
        option = "--num-seeds" if "num_seeds" in given else "--seeds"
        raise ConfigError(f"{option}: got {count}, allowed is 1 to {MOST_SEEDS}")
    return tuple(range(first, first + count))
