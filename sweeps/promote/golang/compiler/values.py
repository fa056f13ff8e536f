"""Arrays of a jaxpr as nodes: axes over endpoints stay inside the nodes, axes of fixed length are taken apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeps.promote.golang.compiler.graph import Graph, Node

ENDPOINTS = "endpoints"  # the length of an axis that grows with the cluster
Length = int | str


# of (lowering, params, arguments, shape); None: no Go for this use
Translation = Callable[[Any, dict[str, Any], list["Value"], Sequence[Length]], "Value | None"]


@dataclass(frozen=True)
class Affine:
    """A number that is the number of endpoints plus `offset`."""

    offset: int


@dataclass(frozen=True)
class Value:
    """An array: its axes, and one node for each place along the axes of fixed length."""

    shape: tuple[Length, ...]
    nodes: np.ndarray[Any, Any]  # of Node, one axis for each fixed one

    @property
    def fixed(self) -> tuple[int, ...]:
        """The axes of fixed length."""
        return tuple(length for length in self.shape if isinstance(length, int))

    @property
    def node(self) -> Node:
        """The only node of an array without fixed axes, or with fixed axes of length 1."""
        (node,) = self.nodes.reshape(-1)
        return node


def value_of(shape: Sequence[Length], nodes: Any) -> Value:
    """The array; `nodes` is one node, or nested lists along the fixed axes."""
    fixed = tuple(length for length in shape if isinstance(length, int))
    array = np.empty(fixed, dtype=object)
    if isinstance(nodes, Node):
        array[...] = nodes
    else:
        flat = list(nodes)
        for at, place in enumerate(itertools.product(*map(range, fixed))):
            array[place] = flat[at]
    return Value(tuple(shape), array)


def mapped(
    graph: Graph, make: Callable[..., Node], shape: Sequence[Length], arguments: Sequence[Value]
) -> Value:
    """Element by element; scalars go with every shape, and axes of length 1 with every length."""
    arguments = [
        one if one.shape in ((), tuple(shape)) else broadcast(graph, one, shape, range(len(shape)))
        for one in arguments
    ]
    fixed = tuple(length for length in shape if isinstance(length, int))
    spread = [np.broadcast_to(one.nodes, fixed) if one.shape else one.nodes for one in arguments]
    flat = [
        make(*(one[place] if one.shape else one[()] for one in spread))
        for place in itertools.product(*map(range, fixed))
    ]
    return value_of(shape, flat)


def broadcast(graph: Graph, given: Value, shape: Sequence[Length], places: Sequence[int]) -> Value:
    """`lax.broadcast_in_dim`: axis `k` of what is given becomes axis `places[k]`."""
    along = {place: axis for axis, place in enumerate(places)}
    own = _order_among(given.shape, ENDPOINTS)
    new = _order_among(shape, ENDPOINTS)
    moved = tuple(new[places[axis]] for axis in own)

    def at(place: tuple[int, ...]) -> Node:
        """What stands at this place of the fixed axes, spread over the endpoint axes."""
        chosen = []
        index = dict(zip(_fixed_axes(shape), place, strict=True))
        for axis in _fixed_axes(given.shape):
            out = next(one for one, from_axis in along.items() if from_axis == axis)
            chosen.append(0 if given.shape[axis] == 1 else index[out])
        node: Node = given.nodes[tuple(chosen)]
        if node.rank == 0 or (moved == tuple(range(len(moved))) and len(new) == len(moved)):
            return node
        return graph.make("broadcast", (node,), moved, node.dtype, len(new))

    fixed = tuple(length for length in shape if isinstance(length, int))
    return value_of(shape, [at(place) for place in itertools.product(*map(range, fixed))])


def reshaped(given: Value, shape: Sequence[Length]) -> Value | None:
    """The same elements in another shape; None where axes over endpoints would change."""
    if [one for one in given.shape if one == ENDPOINTS] != [
        one for one in shape if one == ENDPOINTS
    ]:
        return None
    fixed = tuple(length for length in shape if isinstance(length, int))
    return Value(tuple(shape), given.nodes.reshape(fixed))


def fixed_axis(shape: Sequence[Length], axis: int) -> int:
    """The place of a fixed axis among the fixed ones."""
    return _fixed_axes(shape).index(axis)


def endpoint_axis(shape: Sequence[Length], axis: int) -> int:
    """The place of an axis over endpoints among those."""
    return _order_among(shape, ENDPOINTS)[axis]


def _fixed_axes(shape: Sequence[Length]) -> list[int]:
    return [axis for axis, length in enumerate(shape) if isinstance(length, int)]


def _order_among(shape: Sequence[Length], kind: Length) -> dict[int, int]:
    axes = [axis for axis, length in enumerate(shape) if length == kind]
    return {axis: order for order, axis in enumerate(axes)}
