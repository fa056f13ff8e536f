"""The random numbers of Go's `math/rand`, seed by seed and draw by draw, with its rejections, on the host."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int32, UInt64


FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3
WORKLOAD = "workload-gen"  # of requests from a specification


def subsystem_seed(master_seed: int, name: str) -> int:
    """Return the master seed XOR the 64-bit FNV-1a hash of the subsystem's name, signed."""
    return signed(master_seed ^ _fnv1a(name))


def signed(number: int) -> int:
    """Return a whole number wrapped to 64 signed bits, as Go's integers wrap."""
    unsigned = number % 2**64
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def _fnv1a(text: str) -> int:
    value = FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * FNV_PRIME % 2**64
    return value


# --- go's seeded source: an additive lagged Fibonacci generator, in vectors -----------------------

# Outputs obey z[n] = z[n-607] + z[n-273] modulo 2^64 (Mitchell and Reeds). A seed is spread over the first 607 by a
# multiplicative generator and combined with a fixed table: the state that the same recurrence reaches from seed 1
# after 7.8e12 steps. The table is computed by jumping ahead instead of being listed: t^n modulo the polynomial
# t^607 - t^334 - 1 gives output n as a sum over the first 607.


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
    """Return the 607 numbers of state before the first output of a source with this seed, oldest first."""
    state = _spread(seed, (40, 20, 0)) ^ _table()
    return state[_state_index(np.arange(1, LENGTH + 1))]


def extend(numbers: UInt64[np.ndarray, " n"], start: int) -> None:
    """Fill `numbers` from `start` on by the recurrence; the 607 numbers before `start` must be given."""
    for first in range(start, len(numbers), TAP):
        last = min(first + TAP, len(numbers))
        np.add(
            numbers[first - LENGTH : last - LENGTH],
            numbers[first - TAP : last - TAP],
            out=numbers[first:last],
        )


def _spread(seed: int, shifts: tuple[int, int, int]) -> UInt64[np.ndarray, " lag"]:
    """Return a state derived from the seed alone: three consecutive 31-bit numbers, shifted, per entry."""
    first = seed % SEED_MODULUS or SEED_OF_ZERO
    numbers = np.uint64(first) * _multipliers() % np.uint64(SEED_MODULUS)
    triples = numbers.reshape(LENGTH, 3) << np.array(shifts, np.uint64)
    return np.bitwise_xor.reduce(triples, axis=1)


@functools.cache
def _multipliers() -> UInt64[np.ndarray, " draw"]:
    """Return the factors by which a seed is multiplied to give each number that the state uses."""
    powers = []
    power = pow(SEED_MULTIPLIER, SEED_SKIPPED, SEED_MODULUS)
    for _ in range(3 * LENGTH):
        power = power * SEED_MULTIPLIER % SEED_MODULUS
        powers.append(power)
    return np.array(powers, np.uint64)


def _state_index(step: np.ndarray) -> np.ndarray:
    """Return the index in the state of output number `step`, counted from 1, which replaces an older number."""
    return (FIRST_FEED - step) % LENGTH


@functools.cache
def _table() -> UInt64[np.ndarray, " lag"]:
    """Return the fixed table with which every seed is combined."""
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
    """Return the coefficients of t^exponent modulo t^607 - t^334 - 1, lowest first, by repeated squaring."""
    power = np.zeros(LENGTH, np.uint64)
    power[0] = 1
    for bit in f"{exponent:b}":
        power = _reduced(np.convolve(power, power))
        if bit == "1":
            power = _reduced(np.concatenate([np.zeros(1, np.uint64), power]))
    return power


def _reduced(product: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " lag"]:
    """Return a product with t^(607+k) replaced by t^(334+k) + t^k until its degree is below 607."""
    while len(product) > LENGTH:
        high, product = product[LENGTH:], product[:LENGTH].copy()
        product[: len(high)] += high
        lowered = np.zeros(max(LENGTH, LENGTH - TAP + len(high)), np.uint64)
        lowered[:LENGTH] = product
        lowered[LENGTH - TAP : LENGTH - TAP + len(high)] += high
        product = lowered
    return product


# --- tables of Go's normal and exponential draws: the ziggurat method of Marsaglia and Tsang ------

# Journal of Statistical Software 5(8), 2000: layers of equal area under the density, each drawn as a scaled integer
# and accepted at once below a threshold. Go keeps widths and heights in single precision. They are computed here in
# double precision, whose last bit is 2^29 times finer.


NORMAL_TAIL = 3.442619855899  # where the tail begins, 128 layers
NORMAL_AREA = 9.91256303526217e-3  # of each layer
EXPONENTIAL_TAIL = 7.69711747013104972  # 256 layers
EXPONENTIAL_AREA = 3.949659822581572e-3


@dataclass(frozen=True)
class Ziggurat:
    """The layers of one distribution; layer 0 is the base with the tail."""

    thresholds: tuple[int, ...]  # integers below it need no test
    widths: tuple[float, ...]  # single precision; factors of the drawn integers
    heights: tuple[np.float32, ...]  # density at the layer's edge


@functools.cache
def normal() -> Ziggurat:
    """Return 128 layers over half a normal density, for integers with absolute values below 2^31."""
    return _layers(
        num=128,
        scale=2.0**31,
        tail=NORMAL_TAIL,
        area=NORMAL_AREA,
        density=lambda edge: math.exp(-0.5 * edge * edge),
        edge_of=lambda height: math.sqrt(-2.0 * math.log(height)),
    )


@functools.cache
def exponential() -> Ziggurat:
    """Return 256 layers over the exponential density, for integers below 2^32."""
    return _layers(
        num=256,
        scale=2.0**32,
        tail=EXPONENTIAL_TAIL,
        area=EXPONENTIAL_AREA,
        density=lambda edge: math.exp(-edge),
        edge_of=lambda height: -math.log(height),
    )


def _layers(
    num: int,
    scale: float,
    tail: float,
    area: float,
    density: Callable[[float], float],
    edge_of: Callable[[float], float],
) -> Ziggurat:
    base_width = area / density(tail)
    edges = [tail]  # from the lowest layer up
    for _ in range(num - 2):
        edges.append(edge_of(area / edges[-1] + density(edges[-1])))
    edges.reverse()
    inner = [int(narrow / wide * scale) for narrow, wide in itertools.pairwise(edges)]
    thresholds = [int(tail / base_width * scale), 0, *inner]
    widths = [width / scale for width in (base_width, *edges)]
    heights = [1.0, *map(density, edges)]
    return Ziggurat(
        tuple(thresholds),
        tuple(float(np.float32(width)) for width in widths),
        tuple(np.float32(height) for height in heights),
    )


# --- draws from one seeded source, in the order and with the rejections of Go's `rand.Rand` -------


FIRST_BLOCK, LARGEST_BLOCK = 4 * TAP, 64 * TAP  # raw numbers made at a time
LARGEST_INT31 = 2**31 - 1
MOST_UINT32 = 2**32 - 1
LARGEST_INT63 = 2**63 - 1


class Stream:
    """The stream `rand.New(rand.NewSource(seed))`; seeds that are equal modulo 2^31 - 1 give the same stream."""

    def __init__(self, seed: int) -> None:
        self._raw = seed_state(seed)
        self._numbers = self._raw.data  # an entry costs a third of an array's
        self._block = FIRST_BLOCK
        self._next = LENGTH
        self._below: tuple[int, Int32[np.ndarray, " raw"], list[int]] | None = None

    def _refill(self) -> None:
        """Generate the next block; blocks grow, since many clients of a workload draw little."""
        before = self._raw[-LENGTH:]
        self._raw = np.empty(LENGTH + self._block, np.uint64)
        self._raw[:LENGTH] = before
        extend(self._raw, LENGTH)
        self._numbers, self._below = self._raw.data, None
        self._next = LENGTH
        self._block = min(2 * self._block, LARGEST_BLOCK)

    def int63(self) -> int:
        """Return a uniform number below 2^63."""
        if self._next == len(self._numbers):
            self._refill()
        value = self._numbers[self._next] & LARGEST_INT63
        self._next += 1
        return value

    def uint32(self) -> int:
        """Return a uniform number below 2^32."""
        return self.int63() >> 31

    def int31(self) -> int:
        """Return a uniform number below 2^31."""
        return self.int63() >> 32

    def intn(self, limit: int) -> int:
        """Return a uniform number below `limit`, from 31 bits if they suffice, by Go's rule of rejection."""
        draw, size = (self.int31, 2**31) if limit <= LARGEST_INT31 else (self.int63, 2**63)
        value = draw()
        while value >= size - size % limit:
            value = draw()
        return value % limit

    def shuffled(self, count: int) -> list[int]:
        """Return the numbers below `count` in the order in which Go's `Shuffle` leaves them."""
        order = list(range(count))
        for last in range(count - 1, 0, -1):
            product = self.uint32() * (last + 1)
            while product & MOST_UINT32 < 2**32 % (last + 1):
                product = self.uint32() * (last + 1)
            other = product >> 32
            order[last], order[other] = order[other], order[last]
        return order

    def intn_vector(self, limit: int, count: int) -> Int32[np.ndarray, " draw"]:
        """Return `count` draws of `intn(limit)`, for a limit below 2^31; the caller must not write to the array."""
        parts, missing = [], count
        while missing > 0:
            if self._next == len(self._raw):
                self._refill()
            values, refused = self._made_below(limit)
            start, end = self._next, min(self._next + missing, len(values))
            self._next = end
            at = bisect.bisect_left(refused, start)
            if at < len(refused) and refused[at] < end:
                end = refused[at]
                self._next = end + 1
            parts.append(values[start:end])
            missing -= end - start
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _made_below(self, limit: int) -> tuple[Int32[np.ndarray, " raw"], list[int]]:
        """Return the results of `intn(limit)` for all raw numbers of the block, and the positions it rejects."""
        if self._below is None or self._below[0] != limit:
            values = (self._raw >> np.uint64(32)).astype(np.uint32) & np.uint32(LARGEST_INT31)
            refused = np.flatnonzero(values >= 2**31 - 2**31 % limit).tolist()
            # numpy divides by a number in vectors, but has no such remainder
            values -= values // np.uint32(limit) * np.uint32(limit)
            self._below = limit, values.view(np.int32), refused
        return self._below[1:]

    def float64(self) -> float:
        """Return a uniform number in [0, 1); if rounding gives 1, the number is drawn again."""
        value = self.int63() * 2.0**-63
        while value == 1.0:
            value = self.int63() * 2.0**-63
        return value

    def norm_float64(self) -> float:
        """Return a draw from the standard normal law."""
        layers = normal()
        while True:
            bits = self.uint32()
            signed = bits - 2**32 if bits >= 2**31 else bits
            layer = signed & 0x7F
            value = signed * layers.widths[layer]
            if abs(signed) < layers.thresholds[layer]:
                return value
            if layer == 0:
                tail = NORMAL_TAIL + self._normal_tail()
                return tail if signed > 0 else -tail
            if self._is_under(layers, layer, math.exp(-0.5 * value * value)):
                return value

    def _normal_tail(self) -> float:
        while True:
            beyond = -_log(self.float64()) * (1.0 / NORMAL_TAIL)
            height = -_log(self.float64())
            if height + height >= beyond * beyond:
                return beyond

    def exp_float64(self) -> float:
        """Return a draw from the exponential law with mean 1."""
        layers = exponential()
        while True:
            bits = self.uint32()
            layer = bits & 0xFF
            value = bits * layers.widths[layer]
            if bits < layers.thresholds[layer]:
                return value
            if layer == 0:
                return EXPONENTIAL_TAIL - _log(self.float64())
            if self._is_under(layers, layer, math.exp(-value)):
                return value

    def _is_under(self, layers: Ziggurat, layer: int, density: float) -> bool:
        """Return whether a point drawn in the outer part of a layer lies under the density.

        It is computed in single precision as in Go. A different last bit of exp changes at most one in 10^8 of these
        tests, which one in a hundred draws needs.
        """
        low, high = layers.heights[layer], layers.heights[layer - 1]
        return bool(low + np.float32(self.float64()) * (high - low) < np.float32(density))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
