"""Designs over components that are on or off, and effects over all of their combinations.

A combination is a mask, bit i for component i; its value is NaN on a seed where it was not run or failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import factorial
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float

    Effect = Float[np.ndarray, "seed"]

SINGLE, PAIRS, FULL = "single", "pairs", "full"
DESIGNS = (SINGLE, PAIRS, FULL)
MOST_FOR_FULL = 6


@dataclass(frozen=True)
class Values:
    """A metric of every combination that was run, by seed."""

    count: int  # of components
    num_seeds: int
    by_mask: Mapping[int, Float[np.ndarray, "seed"]]

    def __getitem__(self, mask: int) -> Effect:
        """Return a combination's values by seed; NaN where the combination was not run."""
        return self.by_mask.get(mask, np.full(self.num_seeds, np.nan))


def masks_of(design: str, count: int) -> tuple[int, ...]:
    """Return the combinations of a design as masks, in ascending order.

    `single`: none, all, each alone, all but each; `pairs`: also every two alone; `full`: all.
    """
    if design == FULL:
        if count > MOST_FOR_FULL:
            raise ConfigError(
                f"--design full: {count} components have {2**count} combinations, allowed are "
                f"{MOST_FOR_FULL} components; join some with --components, or take --design pairs"
            )
        return tuple(range(2**count))
    everything = 2**count - 1
    alone = {1 << place for place in range(count)}
    masks = {0, everything} | alone | {everything ^ mask for mask in alone}
    if design == PAIRS:
        masks |= {mask | other_mask for mask in alone for other_mask in alone}
    return tuple(sorted(masks))


def contexts(count: int, *without: int) -> Iterator[int]:
    """Return an iterator over the masks of all combinations that lack the components `without`."""
    bits = sum(1 << place for place in without)
    return (mask for mask in range(2**count) if not mask & bits)


def alone(values: Values, place: int) -> tuple[Effect, Effect]:
    """Return the values of the base, then of the base with one component switched on."""
    return values[0], values[1 << place]


def left_out(values: Values, place: int) -> tuple[Effect, Effect]:
    """Return the values of the arm with one component switched off, then of the arm."""
    everything = 2**values.count - 1
    return values[everything ^ (1 << place)], values[everything]


def main_effect(values: Values, place: int) -> Effect:
    """Return the effect of one component, averaged over all combinations of the others `[seed]`."""
    count = values.count
    changes = [values[mask | 1 << place] - values[mask] for mask in contexts(count, place)]
    return np.asarray(np.mean(changes, axis=0))


def shapley(values: Values, place: int) -> Effect:
    """Return a component's Shapley value: its effect, averaged over all orders of switching the components on `[seed]`.

    The Shapley values of all components add up to the total change, on every seed.
    """
    count = values.count
    total = np.zeros(values.num_seeds)
    for mask in contexts(count, place):
        size = mask.bit_count()
        weight = factorial(size) * factorial(count - size - 1) / factorial(count)
        total += weight * (values[mask | 1 << place] - values[mask])
    return total


def joint(values: Values, first: int, second: int) -> tuple[Effect, Effect]:
    """Return, over the base, the sum of the two components' single effects, and their joint effect."""
    return _joint_in(values, 0, first, second)


def joint_anywhere(values: Values, first: int, second: int) -> tuple[Effect, Effect]:
    """Return the joint effect of two components and the sum of their effects, averaged over all
    combinations of the others.
    """
    pairs = [
        _joint_in(values, mask, first, second) for mask in contexts(values.count, first, second)
    ]
    return np.asarray(np.mean([a for a, _ in pairs], axis=0)), np.asarray(
        np.mean([b for _, b in pairs], axis=0)
    )


def _joint_in(values: Values, mask: int, first: int, second: int) -> tuple[Effect, Effect]:
    only_first, only_second = 1 << first, 1 << second
    added = values[mask | only_first] + values[mask | only_second] - values[mask]
    return added, values[mask | only_first | only_second]


def log_ratio(
    base: np.ndarray, first: np.ndarray, second: np.ndarray, both: np.ndarray, axis: int = -1
) -> np.ndarray:
    """Return log((both ÷ base) ÷ ((first ÷ base) × (second ÷ base))) of means over seeds; 0 means no interaction."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.log(cell.mean(axis=axis)) for cell in (base, first, second, both)]
    return np.asarray(logs[3] + logs[0] - logs[1] - logs[2])
