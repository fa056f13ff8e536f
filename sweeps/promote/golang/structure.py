"""The primitives of a jaxpr that have a Go counterpart, in one table: elementwise ones, choices, reductions, draws.

Each translation returns the value of a `Use` of its primitive, or None if Go has no counterpart for that use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeps.promote.golang.graph import Node, is_literal
from sweeps.promote.golang.values import (
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


@dataclass(frozen=True)
class Elementwise:
    """Hold an elementwise operation: how it is computed on constants, and its Go text."""

    operation: str  # of the graph
    fold: Callable[..., Any] | None
    go: str  # an operator, or a function; "" where the emitter knows more
    go_whole: str = ""  # for whole numbers, where it differs


def _safely(function: Callable[..., Any]) -> Callable[..., Any]:
    def folded(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return folded


def _away_from_zero(value: Any) -> Any:
    return np.trunc(value + np.copysign(0.5, value))


def _truncated(above: Any, below: Any) -> Any:
    """Divide as XLA does: whole numbers toward zero, and by 0 to -1."""
    if isinstance(above, np.floating):
        return above / below
    if below == 0:
        return type(above)(-1)
    quotient = abs(int(above)) // abs(int(below))
    return type(above)(quotient if (above < 0) == (below < 0) else -quotient)


def _remainder(above: Any, below: Any) -> Any:
    if not isinstance(above, np.floating) and below == 0:
        return above
    return np.fmod(above, below)


ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise("add", np.add, "+"),
    "sub": Elementwise("sub", np.subtract, "-"),
    "mul": Elementwise("mul", np.multiply, "*"),
    "div": Elementwise("div", _truncated, "/", "quotient"),
    "rem": Elementwise("rem", _remainder, "math.Mod", "remainder"),
    "neg": Elementwise("neg", np.negative, "-"),
    "abs": Elementwise("abs", np.abs, "math.Abs", "absolute"),
    "sign": Elementwise("sign", np.sign, "sign", "sign"),
    "floor": Elementwise("floor", np.floor, "math.Floor"),
    "ceil": Elementwise("ceil", np.ceil, "math.Ceil"),
    "exp": Elementwise("exp", np.exp, "math.Exp"),
    "exp2": Elementwise("exp2", np.exp2, "math.Exp2"),
    "expm1": Elementwise("expm1", np.expm1, "math.Expm1"),
    "log": Elementwise("log", np.log, "math.Log"),
    "log1p": Elementwise("log1p", np.log1p, "math.Log1p"),
    "sqrt": Elementwise("sqrt", np.sqrt, "math.Sqrt"),
    "cbrt": Elementwise("cbrt", np.cbrt, "math.Cbrt"),
    "tanh": Elementwise("tanh", np.tanh, "math.Tanh"),
    "sin": Elementwise("sin", np.sin, "math.Sin"),
    "cos": Elementwise("cos", np.cos, "math.Cos"),
    "pow": Elementwise("pow", np.power, "math.Pow"),
    "min": Elementwise("min", np.minimum, "min"),
    "max": Elementwise("max", np.maximum, "max"),
    "eq": Elementwise("eq", np.equal, "=="),
    "ne": Elementwise("ne", np.not_equal, "!="),
    "lt": Elementwise("lt", np.less, "<"),
    "le": Elementwise("le", np.less_equal, "<="),
    "gt": Elementwise("gt", np.greater, ">"),
    "ge": Elementwise("ge", np.greater_equal, ">="),
    "and": Elementwise("and", np.bitwise_and, "&&", "&"),
    "or": Elementwise("or", np.bitwise_or, "||", "|"),
    "xor": Elementwise("xor", np.bitwise_xor, "!=", "^"),
    "not": Elementwise("not", np.invert, "!", "^"),
    "is_finite": Elementwise("is_finite", np.isfinite, "isFinite"),
}
ROUNDINGS = {0: "round_away", 1: "round_even"}
FOLDS: dict[str, Callable[..., Any]] = {
    entry.operation: _safely(entry.fold) for entry in ELEMENTWISE.values() if entry.fold is not None
}
FOLDS |= {"round_away": _away_from_zero, "round_even": np.rint}
GO = {entry.operation: entry for entry in ELEMENTWISE.values()}
GO |= {
    "round_away": Elementwise("round_away", _away_from_zero, "math.Round"),
    "round_even": Elementwise("round_even", np.rint, "math.RoundToEven"),
}

# primitives that the lowering takes apart itself, and what becomes of them
STRUCTURAL = {
    "jit": "its equations in place of the call",
    "closed_call": "its equations in place of the call",
    "custom_jvp_call": "its equations in place of the call",
    "custom_vjp_call": "its equations in place of the call",
    "optimization_barrier": "nothing: Go does not rearrange floating-point operations",
    "copy": "nothing",
    "stop_gradient": "nothing",
    "convert_element_type": "a conversion; a real number becomes whole with saturation, as in XLA",
    "select_n": "an if or a switch",
    "clamp": "min and max",
    "round": "`math.Round` or `math.RoundToEven`",
    "integer_pow": "products",
    "square": "a product",
    "rsqrt": "a quotient and `math.Sqrt`",
    "logistic": "a quotient and `math.Exp`",
    "broadcast_in_dim": "a scalar or an element that is used for every endpoint",
    "reshape": "nothing, or places of a fixed axis",
    "squeeze": "nothing, or places of a fixed axis",
    "expand_dims": "nothing, or places of a fixed axis",
    "transpose": "nothing, or exchanged indices",
    "slice": "places of a fixed axis, or one endpoint",
    "dynamic_slice": "one endpoint, the index kept inside the list as in XLA",
    "stack": "places of a fixed axis",
    "concatenate": "places of a fixed axis",
    "rev": "the endpoint counted from the end",
    "iota": "the loop's index",
    "reduce_sum": "a loop that adds",
    "reduce_prod": "a loop that multiplies",
    "reduce_max": "a loop with max",
    "reduce_min": "a loop with min",
    "reduce_or": "a loop with ||",
    "reduce_and": "a loop with &&",
    "argmax": "a loop that keeps the first of the greatest, or a switch along a fixed axis",
    "argmin": "a loop that keeps the first of the least, or a switch along a fixed axis",
    "dot_general": "of two vectors, or a vector and a matrix: products and a sum",
    "cumsum": "a sum that the loop carries on",
    "random_bits": "inside `jax.random.uniform` and `bernoulli`: a draw of `math/rand/v2`",
    "random_split": "further draws",
}
# what has no counterpart, and what to do instead
PROPOSALS = {
    "sort": "rank with comparisons and sums, or take the best with argmax",
    "while": "write the loop out if its length is fixed",
    "scan": "write the loop out if its length is fixed",
    "cond": "use jnp.where: both branches are cheap",
    "gather": "index with one scalar at a time",
    "scatter-add": "use jnp.where with the index that jnp.arange gives",
    "scatter": "keep scalars in the state, or leave out this part of the strategy",
    "dynamic_update_slice": "keep scalars in the state, or leave out this part of the strategy",
    "dot_general": "write the sum out: jnp.sum(a * b), where it is more than a vector times a vector or a matrix",
    "random_fold_in": "draw from context.key; a draw that a run repeats has no counterpart in a router",
}
NO_PROPOSAL = "use the primitives of docs/reference/promoted-go.md, or leave out this policy and write a Map C row"


# --- primitives that are more than an operation element by element --------------------------------


def _convert(use: Use) -> Value:
    return use.mapped(lambda arg: use.graph.convert(arg, use.dtype))


def _select(use: Use) -> Value:
    graph = use.graph

    def chosen(which: Node, *cases: Node) -> Node:
        """Return the case with the index `which`; the last case for any larger index."""
        if which.dtype == "bool":
            return graph.select(which, cases[1], cases[0])
        case = cases[-1]
        for at in range(len(cases) - 2, -1, -1):
            is_it = graph.elementwise("le", (which, graph.literal(at, which.dtype)), "bool")
            case = graph.select(is_it, cases[at], case)
        return case

    return use.mapped(chosen)


def _clamp(use: Use) -> Value:
    return use.mapped(lambda low, value, high: use.of("min", use.of("max", low, value), high))


def _power(use: Use, power: int) -> Value:
    """Return a whole power by repeated squaring, in XLA's order of products."""

    def raised(base: Node) -> Node:
        """Multiply the squares that the power's bits select; for a negative power, return 1 divided by the product."""
        result, square, left = None, base, abs(power)
        while left:
            if left & 1:
                result = square if result is None else use.of("mul", result, square)
            left >>= 1
            if left:
                square = use.of("mul", square, square)
        unit = use.graph.literal(1, use.dtype)
        product = unit if result is None else result
        return use.of("div", unit, product) if power < 0 else product

    return use.mapped(raised)


def _rsqrt(use: Use) -> Value:
    unit = use.graph.literal(1, use.dtype)
    return use.mapped(lambda arg: use.of("div", unit, use.of("sqrt", arg)))


def _logistic(use: Use) -> Value:
    unit = use.graph.literal(1, use.dtype)
    return use.mapped(
        lambda arg: use.of("div", unit, use.of("add", unit, use.of("exp", use.of("neg", arg))))
    )


# --- over endpoints -------------------------------------------------------------------------------


def _reduce(kind: str, operation: str) -> Translation:
    def reduced(use: Use) -> Value | None:
        """Reduce by a loop over endpoint axes, and by repeated operations over fixed axes."""
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
        """Return the first index of the extreme value; None if the compiler has no loop for the shape."""
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
    """Return the first index of the extreme value along an axis of fixed length."""
    graph, shape, dtype = use.graph, use.shape, _place_dtype(use)
    best, *others = _along(array, axis)
    place = value_of(shape, [graph.literal(0, dtype)] * best.nodes.size)

    def is_better(node: Node, than: Node) -> Node:
        if node.dtype == "bool":
            node, than = (node, than) if kind == "max" else (than, node)
            return graph.elementwise("and", (node, graph.negated(than)), "bool")
        return graph.elementwise("gt" if kind == "max" else "lt", (node, than), "bool")

    for at, part in enumerate(others, 1):
        here = graph.literal(at, dtype)
        better = mapped(graph, is_better, shape, [part, best])
        place = use.mapped(lambda yes, no, here=here: graph.select(yes, here, no), better, place)
        best = use.mapped(graph.select, better, part, best)
    return place


def _dot(use: Use) -> Value | None:
    """Return the product of two vectors, or of a vector and a matrix along a fixed axis; None for any other shape."""
    ((left_axes, right_axes), batch) = use.params["dimension_numbers"]
    if batch != ((), ()) or len(left_axes) != 1 or not all(arg.shape for arg in use.arguments):
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
    for factor, other in zip(_along(left, left_axis), _along(right, right_axis), strict=True):
        term = use.mapped(lambda a, b: use.of("mul", a, b), factor, other)
        total = term if total is None else use.mapped(lambda a, b: use.of("add", a, b), total, term)
    return total


def _along(array: Value, axis: int) -> list[Value]:
    """Return the slices of an array along a fixed axis."""
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
    """Return the value of `jax.random.uniform`: a draw that the plugin receives, one for each key and element."""
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
