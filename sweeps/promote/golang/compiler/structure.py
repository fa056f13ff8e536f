"""Primitives that are more than an operation element by element: choices, reductions, draws.

Each rule is `(lowering, params, arguments, shape) -> value`; None means that Go has no counterpart for this use.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sweeps.promote.golang.compiler.graph import Node, is_literal
from sweeps.promote.golang.compiler.shapes import SHAPES
from sweeps.promote.golang.compiler.values import (
    ENDPOINTS,
    Length,
    Translation,
    Value,
    endpoint_axis,
    fixed_axis,
    mapped,
    value_of,
)

Shape = Sequence[Length]


def _convert(lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape) -> Value:
    return mapped(
        lowering.graph, lambda arg: lowering.graph.convert(arg, params["dtype"]), shape, arguments
    )


def _select(lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape) -> Value:
    del params
    graph = lowering.graph

    def chosen(which: Node, *cases: Node) -> Node:
        if which.dtype == "bool":
            return graph.select(which, cases[1], cases[0])
        found = cases[-1]
        for at in range(len(cases) - 2, -1, -1):
            is_it = graph.elementwise("le", (which, graph.literal(at, which.dtype)), "bool")
            found = graph.select(is_it, cases[at], found)
        return found

    return mapped(graph, chosen, shape, arguments)


def _clamp(lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape) -> Value:
    graph, dtype = lowering.graph, params["dtype"]

    def clamped(low: Node, value: Node, high: Node) -> Node:
        return graph.elementwise(
            "min", (graph.elementwise("max", (low, value), dtype), high), dtype
        )

    return mapped(graph, clamped, shape, arguments)


def _integer_pow(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value:
    graph, dtype, power = lowering.graph, params["dtype"], int(params["y"])

    def raised(base: Node) -> Node:
        """The power by repeated squaring, as XLA forms it."""
        result, square, left = None, base, abs(power)
        while left:
            if left & 1:
                result = (
                    square if result is None else graph.elementwise("mul", (result, square), dtype)
                )
            left >>= 1
            if left:
                square = graph.elementwise("mul", (square, square), dtype)
        one = graph.literal(1, dtype)
        found = one if result is None else result
        return graph.elementwise("div", (one, found), dtype) if power < 0 else found

    return mapped(graph, raised, shape, arguments)


def _square(lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape) -> Value:
    return _integer_pow(lowering, params | {"y": 2}, arguments, shape)


def _rsqrt(lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape) -> Value:
    graph, dtype = lowering.graph, params["dtype"]
    one = graph.literal(1, dtype)
    return mapped(
        graph,
        lambda arg: graph.elementwise(
            "div", (one, graph.elementwise("sqrt", (arg,), dtype)), dtype
        ),
        shape,
        arguments,
    )


def _logistic(lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape) -> Value:
    graph, dtype = lowering.graph, params["dtype"]
    one = graph.literal(1, dtype)

    def squashed(arg: Node) -> Node:
        decayed = graph.elementwise("exp", (graph.elementwise("neg", (arg,), dtype),), dtype)
        return graph.elementwise(
            "div", (one, graph.elementwise("add", (one, decayed), dtype)), dtype
        )

    return mapped(graph, squashed, shape, arguments)


# --- over endpoints -------------------------------------------------------------------------------


def _reduce(kind: str, operation: str) -> Translation:
    def reduced(
        lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
    ) -> Value | None:
        """Over endpoints a loop, over fixed axes one operation after the other."""
        graph, (given,) = lowering.graph, arguments
        dtype = params["dtype"]
        for axis in sorted(params["axes"], reverse=True):
            rest = given.shape[:axis] + given.shape[axis + 1 :]
            if given.shape[axis] == ENDPOINTS:
                order = endpoint_axis(given.shape, axis)
                flat = [graph.reduced(kind, node, order, dtype) for node in given.nodes.reshape(-1)]
                given = value_of(rest, flat)
                continue
            at = fixed_axis(given.shape, axis)
            moved = np.moveaxis(given.nodes, at, 0)
            total = Value(rest, moved[0, ...])
            for part in (moved[place, ...] for place in range(1, len(moved))):
                total = mapped(
                    graph,
                    lambda a, b: graph.elementwise(operation, (a, b), dtype),
                    rest,
                    [total, Value(rest, part)],
                )
            given = total
        return Value(tuple(shape), given.nodes)

    return reduced


def _arg(kind: str) -> Translation:
    def found(
        lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
    ) -> Value | None:
        """The first place of the extreme value; None where the compiler has no loop for the shape."""
        (given,), (axis,) = arguments, params["axes"]
        graph, dtype = lowering.graph, str(np.dtype(params["dtype"]))
        if given.shape[axis] != ENDPOINTS:
            return _arg_of_fixed(graph, kind, given, axis, shape, dtype)
        if tuple(given.shape) != (ENDPOINTS,):
            return None
        node = given.node
        if node.rank == 0 and not graph.is_order:
            return value_of((), graph.literal(0, dtype))
        return value_of((), graph.make("arg", (node,), (kind,), dtype, 0))

    return found


def _arg_of_fixed(
    graph: Any, kind: str, given: Value, axis: int, shape: Shape, dtype: str
) -> Value:
    """The first of the greatest along an axis of fixed length."""
    moved = np.moveaxis(given.nodes, fixed_axis(given.shape, axis), 0)
    parts = [Value(tuple(shape), moved[place, ...]) for place in range(len(moved))]
    best, place = parts[0], value_of(shape, [graph.literal(0, dtype)] * parts[0].nodes.size)

    def is_better(one: Node, than: Node) -> Node:
        if one.dtype == "bool":
            one, than = (one, than) if kind == "max" else (than, one)
            found: Node = graph.elementwise("and", (one, graph.negated(than)), "bool")
            return found
        found = graph.elementwise("gt" if kind == "max" else "lt", (one, than), "bool")
        return found

    for at, part in enumerate(parts[1:], 1):
        here = graph.literal(at, dtype)
        better = mapped(graph, is_better, shape, [part, best])
        place = mapped(
            graph, lambda yes, no, here=here: graph.select(yes, here, no), shape, [better, place]
        )
        best = mapped(graph, graph.select, shape, [better, part, best])
    return place


def _dot(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    """A vector times a vector, or times a matrix along an axis of fixed length."""
    ((left_axes, right_axes), batch) = params["dimension_numbers"]
    if batch != ((), ()) or len(left_axes) != 1 or not all(one.shape for one in arguments):
        return None
    graph, dtype = lowering.graph, params["dtype"]

    def product(one: Node, other: Node) -> Node:
        found: Node = graph.elementwise("mul", (one, other), dtype)
        return found

    left, right = arguments
    (left_axis,), (right_axis,) = left_axes, right_axes
    if left.shape[left_axis] == ENDPOINTS:
        if shape:
            return None
        return value_of((), graph.reduced("sum", product(left.node, right.node), 0, dtype))
    if len(left.shape) > 1 and len(right.shape) > 1:
        return None
    total = None
    for one, other in zip(_along(left, left_axis), _along(right, right_axis), strict=True):
        term = mapped(graph, product, shape, [one, other])
        add = functools.partial(_added, graph, dtype)
        total = term if total is None else mapped(graph, add, shape, [total, term])
    return total


def _added(graph: Any, dtype: str, one: Node, other: Node) -> Node:
    found: Node = graph.elementwise("add", (one, other), dtype)
    return found


def _along(given: Value, axis: int) -> list[Value]:
    moved = np.moveaxis(given.nodes, fixed_axis(given.shape, axis), 0)
    rest = given.shape[:axis] + given.shape[axis + 1 :]
    return [Value(rest, moved[place, ...]) for place in range(len(moved))]


def _cumsum(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    (given,) = arguments
    if tuple(given.shape) != (ENDPOINTS,) or params.get("reverse"):
        return None
    graph, node, dtype = lowering.graph, given.node, params["dtype"]
    if node.rank == 0 and dtype != "float64" and not graph.is_order:
        place = graph.make("iota", (), (0,), dtype, 1)
        count = graph.elementwise("add", (place, graph.literal(1, dtype)), dtype)
        return value_of(shape, graph.elementwise("mul", (count, node), dtype))
    return value_of(shape, graph.make("cumulated", (node,), (), dtype, 1))


# --- draws ----------------------------------------------------------------------------------------


def _split(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    del params
    if ENDPOINTS in shape:
        return None
    key = arguments[0].node
    places = itertools.product(*(range(n) for n in shape if isinstance(n, int)))
    return value_of(
        shape, [lowering.graph.make("key", (key,), place, "key", 0) for place in places]
    )


def _draw(
    lowering: Any, params: dict[str, Any], arguments: list[Value], shape: Shape
) -> Value | None:
    """`jax.random.uniform`: a number from a source that the plugin is given; the same key gives the same number."""
    del params
    if len(arguments) != 3:
        return None
    graph, key = lowering.graph, arguments[0].node
    root = key
    while root.op == "key":
        root = root.args[0]
    if root.op != "input" or root.attrs[0] != "key":
        unsupported: Value = lowering.unsupported(
            "random draw that a whole run repeats", "float64", shape, []
        )
        return unsupported
    rank = sum(length == ENDPOINTS for length in shape)
    if rank > 1:
        return None
    places = itertools.product(*(range(n) for n in shape if isinstance(n, int)))
    number = value_of(
        shape, [graph.make("draw", (), (key.order, *place), "float64", rank) for place in places]
    )
    low, high = arguments[1].node, arguments[2].node
    if is_literal(low, 0.0) and is_literal(high, 1.0):
        return number

    def between(drawn: Node) -> Node:
        span = graph.elementwise("sub", (high, low), "float64")
        scaled = graph.elementwise("mul", (drawn, span), "float64")
        moved = graph.elementwise("add", (scaled, low), "float64")
        return graph.elementwise("max", (low, moved), "float64")

    return mapped(graph, between, shape, [number])


STRUCTURE: dict[str, Translation] = {
    **SHAPES,
    "convert_element_type": _convert,
    "select_n": _select,
    "clamp": _clamp,
    "integer_pow": _integer_pow,
    "square": _square,
    "rsqrt": _rsqrt,
    "logistic": _logistic,
    "reduce_sum": _reduce("sum", "add"),
    "reduce_prod": _reduce("prod", "mul"),
    "reduce_max": _reduce("max", "max"),
    "reduce_min": _reduce("min", "min"),
    "reduce_or": _reduce("or", "or"),
    "reduce_and": _reduce("and", "and"),
    "argmax": _arg("max"),
    "argmin": _arg("min"),
    "cumsum": _cumsum,
    "dot_general": _dot,
    "random_split": _split,
    "draw": _draw,
}
