"""Tables of Go's normal and exponential draws: the ziggurat method of Marsaglia and Tsang.

Journal of Statistical Software 5(8), 2000: layers of equal area under the density, each drawn as a
scaled integer and accepted at once below a threshold. Go keeps widths and heights in single
precision. They are computed here in double precision, whose last bit is 2^29 times finer.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NORMAL_TAIL = 3.442619855899  # where the tail begins, 128 layers
NORMAL_AREA = 9.91256303526217e-3  # of each layer
EXPONENTIAL_TAIL = 7.69711747013104972  # 256 layers
EXPONENTIAL_AREA = 3.949659822581572e-3


@dataclass(frozen=True)
class Ziggurat:
    """One distribution's layers; layer 0 is the base with the tail."""

    thresholds: tuple[int, ...]  # integers below it need no test
    widths: tuple[float, ...]  # single precision; what an integer is multiplied by
    heights: tuple[np.float32, ...]  # density at the layer's edge


@functools.cache
def normal() -> Ziggurat:
    """128 layers over half a normal density, for integers below 2^31 in absolute value."""
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
    """256 layers over the exponential density, for integers below 2^32."""
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
