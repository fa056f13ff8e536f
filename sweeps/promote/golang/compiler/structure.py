"""Translate primitives that are more than an operation element by element: choices, reductions, draws.

A rule makes the value of a `Use`; None means that Go has no counterpart for this use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from sweeps.promote.golang.compiler.graph import Node, is_literal
from sweeps.promote.golang.compiler.values import (
    ENDPOINTS,
    SHAPES,
    Length,
    Translation,
    Use,
    Value,
    endpoint_axis,
    fixed_axis,
    mapped,
    value_of,
)


def _convert(use: Use) -> Value:
    return use.mapped(lambda arg: use.graph.convert(arg, use.dtype))


def _select(use: Use) -> Value:
    graph = use.graph

    def chosen(which: Node, *cases: Node) -> Node:
        """Return the case whose number is `which`; the last one for any larger number."""
        if which.dtype == "bool":
            return graph.select(which, cases[1], cases[0])
        found = cases[-1]
        for at in range(len(cases) - 2, -1, -1):
            is_it = graph.elementwise("le", (which, graph.literal(at, which.dtype)), "bool")
            found = graph.select(is_it, cases[at], found)
        return found

    return use.mapped(chosen)


def _clamp(use: Use) -> Value:
    return use.mapped(lambda low, value, high: use.of("min", use.of("max", low, value), high))


def _power(use: Use, power: int) -> Value:
    """Return the power by repeated squaring, as XLA forms it."""

    def raised(base: Node) -> Node:
        """Multiply the squares that the power's bits ask for; divide 1 by it for a negative power."""
        result, square, left = None, base, abs(power)
        while left:
            if left & 1:
                result = square if result is None else use.of("mul", result, square)
            left >>= 1
            if left:
                square = use.of("mul", square, square)
        one = use.graph.literal(1, use.dtype)
        found = one if result is None else result
        return use.of("div", one, found) if power < 0 else found

    return use.mapped(raised)


def _rsqrt(use: Use) -> Value:
    one = use.graph.literal(1, use.dtype)
    return use.mapped(lambda arg: use.of("div", one, use.of("sqrt", arg)))


def _logistic(use: Use) -> Value:
    one = use.graph.literal(1, use.dtype)
    return use.mapped(
        lambda arg: use.of("div", one, use.of("add", one, use.of("exp", use.of("neg", arg))))
    )


# --- over endpoints -------------------------------------------------------------------------------


def _reduce(kind: str, operation: str) -> Translation:
    def reduced(use: Use) -> Value | None:
        """Return a loop over endpoints, and over fixed axes one operation after the other."""
        (array,) = use.arguments
        for axis in sorted(use.params["axes"], reverse=True):
            rest = array.shape[:axis] + array.shape[axis + 1 :]
            if array.shape[axis] == ENDPOINTS:
                order, nodes = endpoint_axis(array.shape, axis), array.nodes.reshape(-1)
                flat = [use.graph.reduced(kind, node, order, use.dtype) for node in nodes]
                array = value_of(rest, flat)
                continue
            total, *parts = _along(array, axis)
            for part in parts:
                total = mapped(use.graph, lambda a, b: use.of(operation, a, b), rest, [total, part])
            array = total
        return Value(tuple(use.shape), array.nodes)

    return reduced


def _arg(kind: str) -> Translation:
    def first_place(use: Use) -> Value | None:
        """Return the first place of the extreme value; None where the compiler has no loop for the shape."""
        (array,), (axis,) = use.arguments, use.params["axes"]
        if array.shape[axis] != ENDPOINTS:
            return _arg_of_fixed(use, kind, array, axis)
        if tuple(array.shape) != (ENDPOINTS,):
            return None
        node, dtype = array.node, _place_dtype(use)
        if node.rank == 0 and not use.is_order:
            return value_of((), use.graph.literal(0, dtype))
        return value_of((), use.graph.make("arg", (node,), (kind,), dtype, 0))

    return first_place


def _place_dtype(use: Use) -> str:
    return str(np.dtype(use.params["dtype"]))


def _arg_of_fixed(use: Use, kind: str, array: Value, axis: int) -> Value:
    """Return the first of the greatest along an axis of fixed length."""
    graph, shape, dtype = use.graph, use.shape, _place_dtype(use)
    best, *others = _along(array, axis)
    place = value_of(shape, [graph.literal(0, dtype)] * best.nodes.size)

    def is_better(one: Node, than: Node) -> Node:
        if one.dtype == "bool":
            one, than = (one, than) if kind == "max" else (than, one)
            return graph.elementwise("and", (one, graph.negated(than)), "bool")
        return graph.elementwise("gt" if kind == "max" else "lt", (one, than), "bool")

    for at, part in enumerate(others, 1):
        here = graph.literal(at, dtype)
        better = mapped(graph, is_better, shape, [part, best])
        place = use.mapped(lambda yes, no, here=here: graph.select(yes, here, no), better, place)
        best = use.mapped(graph.select, better, part, best)
    return place


def _dot(use: Use) -> Value | None:
    """Return a vector times a vector, or times a matrix along an axis of fixed length."""
    ((left_axes, right_axes), batch) = use.params["dimension_numbers"]
    if batch != ((), ()) or len(left_axes) != 1 or not all(one.shape for one in use.arguments):
        return None
    left, right = use.arguments
    (left_axis,), (right_axis,) = left_axes, right_axes
    if left.shape[left_axis] == ENDPOINTS:
        if use.shape:
            return None
        product = use.of("mul", left.node, right.node)
        return value_of((), use.graph.reduced("sum", product, 0, use.dtype))
    if len(left.shape) > 1 and len(right.shape) > 1:
        return None
    total = None
    for one, other in zip(_along(left, left_axis), _along(right, right_axis), strict=True):
        term = use.mapped(lambda a, b: use.of("mul", a, b), one, other)
        total = term if total is None else use.mapped(lambda a, b: use.of("add", a, b), total, term)
    return total


def _along(array: Value, axis: int) -> list[Value]:
    """Return the parts at each place of a fixed axis."""
    moved = np.moveaxis(array.nodes, fixed_axis(array.shape, axis), 0)
    rest = array.shape[:axis] + array.shape[axis + 1 :]
    return [Value(rest, moved[place, ...]) for place in range(len(moved))]


def _cumsum(use: Use) -> Value | None:
    (array,), graph = use.arguments, use.graph
    if tuple(array.shape) != (ENDPOINTS,) or use.params.get("reverse"):
        return None
    node = array.node
    if node.rank == 0 and use.dtype != "float64" and not use.is_order:
        place = graph.make("iota", (), (0,), use.dtype, 1)
        count = use.of("add", place, graph.literal(1, use.dtype))
        return value_of(use.shape, use.of("mul", count, node))
    return value_of(use.shape, graph.make("cumulated", (node,), (), use.dtype, 1))


# --- draws ----------------------------------------------------------------------------------------


def _places(shape: Sequence[Length]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(n) for n in shape if isinstance(n, int)))


def _split(use: Use) -> Value | None:
    if ENDPOINTS in use.shape:
        return None
    key = use.arguments[0].node
    keys = [use.graph.make("key", (key,), place, "key", 0) for place in _places(use.shape)]
    return value_of(use.shape, keys)


def _draw(use: Use) -> Value | None:
    """Return what `jax.random.uniform` is: a number from a source that the plugin is given, one for each key."""
    if len(use.arguments) != 3:
        return None
    graph, (key, low, high) = use.graph, (argument.node for argument in use.arguments)
    root = key
    while root.op == "key":
        root = root.args[0]
    if root.op != "input" or root.attrs[0] != "key":
        what = "random draw that a whole run repeats"
        unsupported: Value = use.lowering.unsupported(what, "float64", use.shape, [])
        return unsupported
    rank = sum(length == ENDPOINTS for length in use.shape)
    if rank > 1:
        return None
    places = _places(use.shape)
    draws = [graph.make("draw", (), (key.order, *place), "float64", rank) for place in places]
    number = value_of(use.shape, draws)
    if is_literal(low, 0.0) and is_literal(high, 1.0):
        return number

    def between(drawn: Node) -> Node:
        span = graph.elementwise("sub", (high, low), "float64")
        scaled = graph.elementwise("mul", (drawn, span), "float64")
        moved = graph.elementwise("add", (scaled, low), "float64")
        return graph.elementwise("max", (low, moved), "float64")

    return use.mapped(between, number)


STRUCTURE: dict[str, Translation] = {
    **SHAPES,
    "convert_element_type": _convert,
    "select_n": _select,
    "clamp": _clamp,
    "integer_pow": lambda use: _power(use, int(use.params["y"])),
    "square": lambda use: _power(use, 2),
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
