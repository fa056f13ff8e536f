"""Draws from one seeded source, in the order and with the rejections of Go's `rand.Rand`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.workload.go_random import source, ziggurat

if TYPE_CHECKING:
    from jaxtyping import Int32

FIRST_BLOCK, LARGEST_BLOCK = 4 * source.TAP, 64 * source.TAP  # raw numbers made at a time
LARGEST_INT31 = 2**31 - 1
LARGEST_INT63 = 2**63 - 1


class Stream:
    """`rand.New(rand.NewSource(seed))`; seeds that agree modulo 2^31 - 1 give the same stream."""

    def __init__(self, seed: int) -> None:
        self._raw = source.seed_state(seed)
        self._block = FIRST_BLOCK
        self._next = source.LENGTH

    def _refill(self) -> None:
        """Make the next block; blocks grow, since many clients of a workload draw little."""
        before = self._raw[-source.LENGTH :]
        self._raw = np.empty(source.LENGTH + self._block, np.uint64)
        self._raw[: source.LENGTH] = before
        source.extend(self._raw, source.LENGTH)
        self._next = source.LENGTH
        self._block = min(2 * self._block, LARGEST_BLOCK)

    def int63(self) -> int:
        """Uniform below 2^63."""
        if self._next == len(self._raw):
            self._refill()
        value = int(self._raw[self._next]) & LARGEST_INT63
        self._next += 1
        return value

    def uint32(self) -> int:
        """Uniform below 2^32."""
        return self.int63() >> 31

    def int31(self) -> int:
        """Uniform below 2^31."""
        return self.int63() >> 32

    def intn(self, limit: int) -> int:
        """Uniform below `limit`, from 31 bits if they suffice; the unequal rest is drawn again."""
        draw, size = (self.int31, 2**31) if limit <= LARGEST_INT31 else (self.int63, 2**63)
        value = draw()
        while value >= size - size % limit:
            value = draw()
        return value % limit

    def intn_vector(self, limit: int, count: int) -> Int32[np.ndarray, " draw"]:
        """As many draws of `intn(limit)`, for a limit below 2^31."""
        accepted_below = 2**31 - 2**31 % limit
        parts, missing = [], count
        while missing > 0:
            if self._next == len(self._raw):
                self._refill()
            raw = self._raw[self._next : self._next + missing]
            values = (raw >> np.uint64(32)).astype(np.int64) & LARGEST_INT31
            self._next += len(values)
            if values.max() >= accepted_below:
                values = values[values < accepted_below]
            missing -= len(values)
            parts.append((values % limit).astype(np.int32))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def float64(self) -> float:
        """Uniform in [0, 1); a number that rounds to 1 is drawn again."""
        value = self.int63() * 2.0**-63
        while value == 1.0:
            value = self.int63() * 2.0**-63
        return value

    def norm_float64(self) -> float:
        """Standard normal."""
        layers = ziggurat.normal()
        while True:
            bits = self.uint32()
            signed = bits - 2**32 if bits >= 2**31 else bits
            layer = signed & 0x7F
            value = signed * layers.widths[layer]
            if abs(signed) < layers.thresholds[layer]:
                return value
            if layer == 0:
                tail = ziggurat.NORMAL_TAIL + self._normal_tail()
                return tail if signed > 0 else -tail
            if self._is_under(layers, layer, math.exp(-0.5 * value * value)):
                return value

    def _normal_tail(self) -> float:
        while True:
            beyond = -_log(self.float64()) * (1.0 / ziggurat.NORMAL_TAIL)
            height = -_log(self.float64())
            if height + height >= beyond * beyond:
                return beyond

    def exp_float64(self) -> float:
        """Exponential with mean 1."""
        layers = ziggurat.exponential()
        while True:
            bits = self.uint32()
            layer = bits & 0xFF
            value = bits * layers.widths[layer]
            if bits < layers.thresholds[layer]:
                return value
            if layer == 0:
                return ziggurat.EXPONENTIAL_TAIL - _log(self.float64())
            if self._is_under(layers, layer, math.exp(-value)):
                return value

    def _is_under(self, layers: ziggurat.Ziggurat, layer: int, density: float) -> bool:
        """Whether a point drawn beside the inner part of a layer lies under the density.

        In single precision as in Go, where an exp with another last bit decides one in 10^8 of these
        tests (which one draw in a hundred comes to) differently at most.
        """
        low, high = layers.heights[layer], layers.heights[layer - 1]
        return bool(low + np.float32(self.float64()) * (high - low) < np.float32(density))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
