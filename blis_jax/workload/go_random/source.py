"""Go's seeded source: an additive lagged Fibonacci generator, in vectors.

Outputs obey z[n] = z[n-607] + z[n-273] modulo 2^64 (Mitchell and Reeds). A seed is spread over the
first 607 by a multiplicative generator and combined with a fixed table: the state that the same
recurrence reaches from seed 1 after 7.8e12 steps. The table is computed by jumping ahead instead of
being listed: t^n modulo the polynomial t^607 - t^334 - 1 gives output n as a sum over the first 607.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt64

LENGTH = 607
TAP = 273
TABLE_STEPS = 7_800_000_000_000
TABLE_SEED = 1
SEED_MODULUS = 2**31 - 1
SEED_MULTIPLIER = 48271
SEED_OF_ZERO = 89482311  # stands for seeds that are multiples of the modulus
SEED_SKIPPED = 20  # first numbers of the multiplicative generator that are not used
FIRST_FEED = LENGTH - TAP  # index into the state that the first step counts down from


def seed_state(seed: int) -> UInt64[np.ndarray, " lag"]:
    """The 607 numbers before the first output of a source with this seed, oldest first."""
    state = _spread(seed, (40, 20, 0)) ^ _table()
    return state[_state_index(np.arange(1, LENGTH + 1))]


def extend(numbers: UInt64[np.ndarray, " n"], start: int) -> None:
    """Fill `numbers` from `start` on by the recurrence; the 607 before are given."""
    for first in range(start, len(numbers), TAP):
        last = min(first + TAP, len(numbers))
        np.add(
            numbers[first - LENGTH : last - LENGTH],
            numbers[first - TAP : last - TAP],
            out=numbers[first:last],
        )


def _spread(seed: int, shifts: tuple[int, int, int]) -> UInt64[np.ndarray, " lag"]:
    """State made from a seed alone: three consecutive 31-bit numbers per entry."""
    first = seed % SEED_MODULUS or SEED_OF_ZERO
    numbers = np.uint64(first) * _multipliers() % np.uint64(SEED_MODULUS)
    triples = numbers.reshape(LENGTH, 3) << np.array(shifts, np.uint64)
    return np.bitwise_xor.reduce(triples, axis=1)


@functools.cache
def _multipliers() -> UInt64[np.ndarray, " draw"]:
    """What a seed is multiplied by for each of its used numbers."""
    powers = []
    power = pow(SEED_MULTIPLIER, SEED_SKIPPED, SEED_MODULUS)
    for _ in range(3 * LENGTH):
        power = power * SEED_MULTIPLIER % SEED_MODULUS
        powers.append(power)
    return np.array(powers, np.uint64)


def _state_index(step: np.ndarray) -> np.ndarray:
    """Where the state keeps output number `step`, counted from 1, and kept its predecessor."""
    return (FIRST_FEED - step) % LENGTH


@functools.cache
def _table() -> UInt64[np.ndarray, " lag"]:
    """The fixed table that every seed is combined with."""
    start = _spread(TABLE_SEED, (20, 10, 0))
    numbers = np.empty(2 * LENGTH, np.uint64)
    numbers[:LENGTH] = start[_state_index(np.arange(1, LENGTH + 1))]
    extend(numbers, LENGTH)
    # numbers[j] is output j - 606; those from TABLE_STEPS - 606 to TABLE_STEPS make the table
    coefficients = _power_of_t(TABLE_STEPS)
    windows = np.lib.stride_tricks.sliding_window_view(numbers, LENGTH)[:LENGTH]
    last_outputs = (windows * coefficients).sum(axis=1, dtype=np.uint64)
    table = np.empty(LENGTH, np.uint64)
    steps = np.arange(TABLE_STEPS - LENGTH + 1, TABLE_STEPS + 1)
    table[_state_index(steps)] = last_outputs
    return table


def _power_of_t(exponent: int) -> UInt64[np.ndarray, " lag"]:
    """Coefficients of t^exponent modulo t^607 - t^334 - 1, lowest first, by repeated squaring."""
    power = np.zeros(LENGTH, np.uint64)
    power[0] = 1
    for bit in f"{exponent:b}":
        power = _reduced(np.convolve(power, power))
        if bit == "1":
            power = _reduced(np.concatenate([np.zeros(1, np.uint64), power]))
    return power


def _reduced(product: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " lag"]:
    """Replace t^(607+k) by t^(334+k) + t^k until the degree is below 607."""
    while len(product) > LENGTH:
        high, product = product[LENGTH:], product[:LENGTH].copy()
        product[: len(high)] += high
        lowered = np.zeros(max(LENGTH, LENGTH - TAP + len(high)), np.uint64)
        lowered[:LENGTH] = product
        lowered[LENGTH - TAP : LENGTH - TAP + len(high)] += high
        product = lowered
    return product
