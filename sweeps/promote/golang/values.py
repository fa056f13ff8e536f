"""Hold a jaxpr's arrays as nodes: an axis over endpoints stays inside a node, an axis of fixed length is unrolled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeps.promote.golang.graph import Graph, Node, is_literal

ENDPOINTS = "endpoints"  # the length of an axis that grows with the cluster
Length = int | str


@dataclass(frozen=True)
class Affine:
    """Hold a number that equals the number of endpoints plus `offset`."""

    offset: int


@dataclass(frozen=True)
class Value:
    """Hold an array: its axes, and one node for each index along the axes of fixed length."""

    shape: tuple[Length, ...]
    nodes: np.ndarray[Any, Any]  # of Node, one axis for each fixed one

    @property
    def fixed(self) -> tuple[int, ...]:
        """Return the lengths of the fixed axes."""
        return tuple(length for length in self.shape if isinstance(length, int))

    @property
    def node(self) -> Node:
        """Return the only node of an array without fixed axes, or with fixed axes of length 1."""
        (node,) = self.nodes.reshape(-1)
        return node


def value_of(shape: Sequence[Length], nodes: Any) -> Value:
    """Return an array from one node, or from a flat list of nodes along the fixed axes."""
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
    """Apply `make` element by element, with arguments broadcast to `shape`."""
    arguments = [
        argument
        if argument.shape in ((), tuple(shape))
        else broadcast(graph, argument, shape, range(len(shape)))
        for argument in arguments
    ]
    fixed = tuple(length for length in shape if isinstance(length, int))
    spread = [
        np.broadcast_to(argument.nodes, fixed) if argument.shape else argument.nodes
        for argument in arguments
    ]
    flat = [
        make(*(nodes[place] if nodes.shape else nodes[()] for nodes in spread))
        for place in itertools.product(*map(range, fixed))
    ]
    return value_of(shape, flat)


def broadcast(graph: Graph, value: Value, shape: Sequence[Length], places: Sequence[int]) -> Value:
    """Broadcast as `lax.broadcast_in_dim` does: axis `k` of the value becomes axis `places[k]` of the result."""
    along = {place: axis for axis, place in enumerate(places)}
    old = _order_among(value.shape, ENDPOINTS)
    new = _order_among(shape, ENDPOINTS)
    moved = tuple(new[places[axis]] for axis in old)

    def at(place: tuple[int, ...]) -> Node:
        """Return the nodes at this index of the fixed axes, spread over the endpoint axes."""
        chosen = []
        index = dict(zip(_fixed_axes(shape), place, strict=True))
        for axis in _fixed_axes(value.shape):
            out = next(out_axis for out_axis, from_axis in along.items() if from_axis == axis)
            chosen.append(0 if value.shape[axis] == 1 else index[out])
        node: Node = value.nodes[tuple(chosen)]
        if node.rank == 0 or (moved == tuple(range(len(moved))) and len(new) == len(moved)):
            return node
        return graph.make("broadcast", (node,), moved, node.dtype, len(new))

    fixed = tuple(length for length in shape if isinstance(length, int))
    return value_of(shape, [at(place) for place in itertools.product(*map(range, fixed))])


def reshaped(value: Value, shape: Sequence[Length]) -> Value | None:
    """Return the same elements in another shape; None if axes over endpoints would change."""
    if [length for length in value.shape if length == ENDPOINTS] != [
        length for length in shape if length == ENDPOINTS
    ]:
        return None
    fixed = tuple(length for length in shape if isinstance(length, int))
    return Value(tuple(shape), value.nodes.reshape(fixed))


def fixed_axis(shape: Sequence[Length], axis: int) -> int:
    """Return the index of a fixed axis among the fixed axes."""
    return _fixed_axes(shape).index(axis)


def endpoint_axis(shape: Sequence[Length], axis: int) -> int:
    """Return the index of an endpoint axis among the endpoint axes."""
    return _order_among(shape, ENDPOINTS)[axis]


def _fixed_axes(shape: Sequence[Length]) -> list[int]:
    return [axis for axis, length in enumerate(shape) if isinstance(length, int)]


def _order_among(shape: Sequence[Length], kind: Length) -> dict[int, int]:
    axes = [axis for axis, length in enumerate(shape) if length == kind]
    return {axis: order for order, axis in enumerate(axes)}


@dataclass(frozen=True)
class Use:
    """Hold one use of a primitive: its parameters, its arguments, and the shape of its result."""

    lowering: Any
    params: Mapping[str, Any]
    arguments: Sequence[Value]
    shape: Sequence[Length]

    @property
    def graph(self) -> Graph:
        """Return the graph that the policy is translated to."""
        graph: Graph = self.lowering.graph
        return graph

    @property
    def dtype(self) -> str:
        """Return the dtype of the result."""
        return str(self.params["dtype"])

    @property
    def is_order(self) -> bool:
        """Return whether the rule compares requests, so that scalars hold one request's values among others."""
        return self.graph.is_order

    def of(self, operation: str, *args: Node) -> Node:
        """Return the node of an operation, in the result's dtype."""
        return self.graph.elementwise(operation, args, self.dtype)

    def mapped(self, make: Callable[..., Node], *arguments: Value) -> Value:
        """Apply `make` element by element to the given arguments, or to the primitive's own if none are given."""
        return mapped(self.graph, make, self.shape, arguments or self.arguments)


# None: Go has no counterpart for this use
Translation = Callable[[Use], "Value | None"]


# --- primitives that move elements and compute none -------------------------------------------------


def _broadcast(use: Use) -> Value:
    return broadcast(use.graph, use.arguments[0], use.shape, use.params["broadcast_dimensions"])


def _reshape(use: Use) -> Value | None:
    return reshaped(use.arguments[0], use.shape)


def _transpose(use: Use) -> Value:
    places = [use.params["permutation"].index(axis) for axis in range(len(use.shape))]
    return broadcast(use.graph, use.arguments[0], use.shape, places)


def _stack(use: Use) -> Value:
    axis = int(use.params.get("axis", use.params.get("dimension", 0)))
    nodes = [argument.nodes for argument in use.arguments]
    return Value(tuple(use.shape), np.stack(nodes, axis=fixed_axis(use.shape, axis)))


def _concatenate(use: Use) -> Value | None:
    axis = int(use.params["dimension"])
    if use.shape[axis] == ENDPOINTS:
        return None
    nodes = [argument.nodes for argument in use.arguments]
    return Value(tuple(use.shape), np.concatenate(nodes, axis=fixed_axis(use.shape, axis)))


def _slice(use: Use) -> Value | None:
    (array,), params = use.arguments, use.params
    strides = params["strides"] or (1,) * len(array.shape)
    nodes, index = array.nodes, None
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    for axis, (start, stop, stride) in enumerate(bounds):
        if array.shape[axis] != ENDPOINTS:
            cut = slice(start, stop, stride)
            nodes = nodes[(slice(None),) * fixed_axis(array.shape, axis) + (cut,)]
        elif use.shape[axis] == 1:
            index = _place(use.graph, start)
        elif start != 0 or stop != Affine(0) or stride != 1:
            return None
    return Value(tuple(use.shape), nodes) if index is None else _elements(use, nodes, index)


def _place(graph: Graph, start: Any) -> Node:
    if isinstance(start, Affine):
        return graph.make("length", (), (start.offset,), "int32", 0)
    return graph.literal(start, "int32")


def _elements(use: Use, nodes: Any, index: Node) -> Value | None:
    """Return the endpoint at `index` of rank-1 nodes; the axis then has length 1."""
    flat = nodes.reshape(-1)
    if any(node.rank > 1 for node in flat):
        return None
    return value_of(use.shape, [_element(use.graph, node, index) for node in flat])


def _element(graph: Graph, node: Node, index: Node) -> Node:
    """Return the element of a node; a converted signal is converted after the pick, so that no slice is allocated."""
    if node.rank == 0 and not graph.is_order:
        return node
    if node.op == "convert":
        return graph.convert(_element(graph, node.args[0], index), node.dtype)
    return graph.make("at", (node, index), (), node.dtype, 0)


def _dynamic_slice(use: Use) -> Value | None:
    array, start = use.arguments[0], use.arguments[1]
    if tuple(array.shape) != (ENDPOINTS,) or tuple(use.shape) != (1,):
        return None
    if start.node.dtype not in ("int32", "int64"):
        return None
    return _elements(use, array.nodes, _inside(use.graph, start.node))


def _inside(graph: Graph, start: Node) -> Node:
    """Return the index clamped as XLA does; `jnp` has already turned negative indexes into ones from the end."""
    if start.op == "select" and start.args[0].op == "lt" and _is_not_negative(start.args[2]):
        start = start.args[2]
    if start.op in ("arg", "iota") or is_literal(start, 0):
        return start
    if not _is_not_negative(start):
        start = graph.elementwise("max", (start, graph.literal(0, start.dtype)), start.dtype)
    last = graph.make("length", (), (-1,), start.dtype, 0)
    return graph.elementwise("min", (start, last), start.dtype)


def _is_not_negative(node: Node) -> bool:
    """Return whether the number cannot be negative, judging by the operations that compute it."""
    if node.op in ("arg", "iota", "length"):
        return True
    if node.op == "literal":
        return bool(node.value >= 0)
    if node.op == "reduce" and node.attrs[0] not in ("min", "max"):
        return False
    inner = {"select": node.args[1:], "min": node.args, "reduce": node.args}.get(node.op, ())
    return bool(inner) and all(map(_is_not_negative, inner))


def _rev(use: Use) -> Value | None:
    (array,) = use.arguments
    nodes = array.nodes
    for axis in use.params["dimensions"]:
        if array.shape[axis] != ENDPOINTS:
            nodes = np.flip(nodes, fixed_axis(array.shape, axis))
        elif any(node.rank > 1 for node in nodes.reshape(-1)):
            return None
        else:
            flat = [
                node
                if node.rank == 0 and not use.is_order
                else use.graph.make("reversed", (node,), (), node.dtype, 1)
                for node in nodes.reshape(-1)
            ]
            nodes = value_of(use.shape, flat).nodes
    return Value(tuple(use.shape), nodes)


def _iota(use: Use) -> Value:
    axis, fixed = int(use.params["dimension"]), [n for n in use.shape if isinstance(n, int)]
    if use.shape[axis] == ENDPOINTS:
        place = endpoint_axis(use.shape, axis)
        node = use.graph.make("iota", (), (place,), use.dtype, len(use.shape) - len(fixed))
        return Value(tuple(use.shape), np.full(fixed, node, dtype=object))
    at = fixed_axis(use.shape, axis)
    places = itertools.product(*map(range, fixed))
    return value_of(use.shape, [use.graph.literal(place[at], use.dtype) for place in places])


SHAPES: dict[str, Translation] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "stack": _stack,
    "concatenate": _concatenate,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "rev": _rev,
    "iota": _iota,
}
