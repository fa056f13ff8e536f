"""Primitives that move elements and compute none: broadcasting, reshaping, stacking, slicing, indexing.

Rules have the form of `structure`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sweeps.promote.golang.compiler.graph import Node, is_literal
from sweeps.promote.golang.compiler.values import (
    ENDPOINTS,
    Affine,
    Length,
    Translation,
    Value,
    broadcast,
    endpoint_axis,
    fixed_axis,
    reshaped,
    value_of,
)

Shape = Sequence[Length]


def _broadcast(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value:
    return broadcast(lowering.graph, arguments[0], shape, params["broadcast_dimensions"])


def _reshape(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    del lowering, params
    return reshaped(arguments[0], shape)


def _transpose(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value:
    places = [params["permutation"].index(axis) for axis in range(len(shape))]
    return broadcast(lowering.graph, arguments[0], shape, places)


def _stack(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    del lowering
    axis = int(params.get("axis", params.get("dimension", 0)))
    at = fixed_axis(shape, axis)
    return Value(tuple(shape), np.stack([one.nodes for one in arguments], axis=at))


def _concatenate(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    del lowering
    axis = int(params["dimension"])
    if shape[axis] == ENDPOINTS:
        return None
    at = fixed_axis(shape, axis)
    return Value(tuple(shape), np.concatenate([one.nodes for one in arguments], axis=at))


def _slice(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    (given,) = arguments
    strides = params["strides"] or (1,) * len(given.shape)
    nodes, index = given.nodes, None
    for axis, (start, stop, stride) in enumerate(
        zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    ):
        if given.shape[axis] != ENDPOINTS:
            cut = slice(start, stop, stride)
            nodes = nodes[(slice(None),) * fixed_axis(given.shape, axis) + (cut,)]
        elif shape[axis] == 1:
            index = _place(lowering, start)
        elif start != 0 or stop != Affine(0) or stride != 1:
            return None
    if index is None:
        return Value(tuple(shape), nodes)
    return _elements(lowering, nodes, index, shape)


def _place(lowering: Any, start: Any) -> Node:
    if isinstance(start, Affine):
        place: Node = lowering.graph.make("length", (), (start.offset,), "int32", 0)
        return place
    literal: Node = lowering.graph.literal(start, "int32")
    return literal


def _elements(lowering: Any, nodes: Any, index: Node, shape: Shape) -> Value | None:
    """The endpoint at `index` of rank-1 nodes; the axis has length 1 afterwards."""
    graph = lowering.graph
    if any(node.rank > 1 for node in nodes.reshape(-1)):
        return None
    picked = [_element(graph, node, index) for node in nodes.reshape(-1)]
    return value_of(shape, picked)


def _element(graph: Any, node: Node, index: Node) -> Node:
    """A converted signal is converted where it is picked, so that no slice of all of them is made."""
    if node.rank == 0 and not graph.is_order:
        return node
    if node.op == "convert":
        found: Node = graph.convert(_element(graph, node.args[0], index), node.dtype)
        return found
    made: Node = graph.make("at", (node, index), (), node.dtype, 0)
    return made


def _dynamic_slice(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    del params
    given, starts = arguments[0], arguments[1:]
    if tuple(given.shape) != (ENDPOINTS,) or tuple(shape) != (1,):
        return None
    graph = lowering.graph
    start = starts[0].node
    if start.dtype not in ("int32", "int64"):
        return None
    index = _inside(graph, start)
    return _elements(lowering, given.nodes, index, shape)


def _inside(graph: Any, start: Node) -> Node:
    """The index as XLA keeps it inside the list; `jnp` has counted a negative one from the end before."""
    if start.op == "select" and start.args[0].op == "lt" and _is_not_negative(start.args[2]):
        start = start.args[2]
    if start.op in ("arg", "iota") or is_literal(start, 0):
        return start
    if not _is_not_negative(start):
        start = graph.elementwise("max", (start, graph.literal(0, start.dtype)), start.dtype)
    last = graph.make("length", (), (-1,), start.dtype, 0)
    found: Node = graph.elementwise("min", (start, last), start.dtype)
    return found


def _is_not_negative(node: Node) -> bool:
    """Whether the number is no less than 0 by how it was made."""
    if node.op in ("arg", "iota", "length"):
        return True
    if node.op == "literal":
        return bool(node.value >= 0)
    kinds = {"select": node.args[1:], "min": node.args, "reduce": node.args}
    inner = kinds.get(node.op, ())
    if node.op == "reduce" and node.attrs[0] not in ("min", "max"):
        return False
    return bool(inner) and all(map(_is_not_negative, inner))


def _rev(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    graph, (given,) = lowering.graph, arguments
    nodes = given.nodes
    for axis in params["dimensions"]:
        if given.shape[axis] != ENDPOINTS:
            nodes = np.flip(nodes, fixed_axis(given.shape, axis))
        elif any(node.rank > 1 for node in nodes.reshape(-1)):
            return None
        else:
            flat = [
                node
                if node.rank == 0 and not graph.is_order
                else graph.make("reversed", (node,), (), node.dtype, 1)
                for node in nodes.reshape(-1)
            ]
            nodes = value_of(shape, flat).nodes
    return Value(tuple(shape), nodes)


def _iota(lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape) -> Value:
    del arguments
    graph, dtype, axis = lowering.graph, params["dtype"], int(params["dimension"])
    if shape[axis] == ENDPOINTS:
        rank = sum(length == ENDPOINTS for length in shape)
        node = graph.make("iota", (), (endpoint_axis(shape, axis),), dtype, rank)
        fixed = [length for length in shape if isinstance(length, int)]
        return Value(tuple(shape), np.full(fixed, node, dtype=object))
    fixed = [length for length in shape if isinstance(length, int)]
    at = fixed_axis(shape, axis)
    places = itertools.product(*map(range, fixed))
    return value_of(shape, [graph.literal(place[at], dtype) for place in places])


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
