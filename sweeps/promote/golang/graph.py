"""The computation of a policy as a graph: equal values share a node, and parts without effect are left out at once.

A node is a scalar (rank 0), one number for each endpoint (rank 1), or one for each pair of endpoints (rank 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

INPUTS = ("input", "param", "state", "literal", "length", "draw")


@dataclass(frozen=True, eq=False)
class Node:
    """Hold one value; nodes are compared by identity, because equal values share a node."""

    op: str
    args: tuple[Node, ...]
    attrs: tuple[Hashable, ...]
    dtype: str  # bool, int32, int64, float64 or key
    rank: int
    origin: str  # "file.py:line" of the policy, "" if unknown
    order: int  # of creation: arguments come first

    @property
    def value(self) -> Any:
        """Return the value of a literal."""
        return self.attrs[0]

    @property
    def is_float(self) -> bool:
        """Return whether the node is a floating-point number."""
        return self.dtype.startswith("float")


class Graph:
    """Create nodes, simplified, and only one for equal values."""

    def __init__(self, folds: dict[str, Callable[..., Any]], is_order: bool = False) -> None:
        # then scalars stand for one request's values among those of others
        self.is_order = is_order
        self._folds = folds  # elementwise operations on numpy scalars
        self._known: dict[Hashable, Node] = {}
        self.origin = ""  # of the equation that is being translated
        self.names: dict[int, str] = {}  # by order of a node: what the policy calls it

    def make(
        self, op: str, args: Sequence[Node], attrs: tuple[Hashable, ...], dtype: str, rank: int
    ) -> Node:
        """Return the node without simplification; an equal existing node is reused."""
        key = (op, tuple(id(arg) for arg in args), tuple(map(_key_of, attrs)), dtype, rank)
        if key not in self._known:
            order = len(self._known)
            self._known[key] = Node(op, tuple(args), attrs, dtype, rank, self.origin, order)
        return self._known[key]

    def literal(self, value: Any, dtype: str) -> Node:
        """Return the node of a constant."""
        return self.make("literal", (), (np.dtype(dtype).type(value),), dtype, 0)

    def elementwise(self, op: str, args: Sequence[Node], dtype: str) -> Node:
        """Return the node of an elementwise operation; scalars are broadcast."""
        if op in self._folds and args and all(arg.op == "literal" for arg in args):
            with np.errstate(all="ignore"):
                return self.literal(self._folds[op](*(arg.value for arg in args)), dtype)
        simple = _SIMPLER.get(op)
        simplified = simple(self, *args) if simple else None
        if simplified is not None:
            return simplified
        return self.make(op, args, (), dtype, max((arg.rank for arg in args), default=0))

    def convert(self, arg: Node, dtype: str) -> Node:
        """Return the node of the value in another dtype."""
        if arg.dtype == dtype:
            return arg
        if arg.op == "literal":
            return self.literal(arg.value, dtype)
        if arg.dtype == "bool":
            return self.select(arg, self.literal(1, dtype), self.literal(0, dtype))
        if dtype == "bool":
            return self.elementwise("ne", (arg, self.literal(0, arg.dtype)), "bool")
        return self.make("convert", (arg,), (), dtype, arg.rank)

    def select(self, condition: Node, on_true: Node, on_false: Node) -> Node:
        """Return `on_true` where the condition holds, else `on_false`."""
        simplified = _simpler_select(self, condition, on_true, on_false)
        if simplified is not None:
            return simplified
        rank = max(condition.rank, on_true.rank, on_false.rank)
        return self.make("select", (condition, on_true, on_false), (), on_true.dtype, rank)

    def negated(self, arg: Node) -> Node:
        """Return the negation of a truth value."""
        return self.elementwise("not", (arg,), "bool")

    def reduced(self, kind: str, arg: Node, axis: int, dtype: str) -> Node:
        """Return a reduction over the endpoints of one axis; kinds: sum, min, max, prod, or, and."""
        if self.is_order:
            return self.make("reduce", (arg,), (kind, axis), dtype, 0)
        if arg.rank == 0 and kind in ("min", "max", "or", "and"):
            return arg
        if arg.rank == 0 and kind == "sum" and (dtype != "float64" or is_literal(arg, 1.0)):
            length = self.make("length", (), (0,), dtype, 0)
            return self.elementwise("mul", (length, arg), dtype)
        return self.make("reduce", (arg,), (kind, axis), dtype, max(arg.rank - 1, 0))


def _key_of(value: Hashable) -> Hashable:
    """Return a key that tells 0.0 from -0.0, and treats NaN as equal to itself."""
    return (type(value).__name__, repr(value)) if isinstance(value, np.generic) else value


def is_literal(node: Node, value: Any) -> bool:
    """Return whether the node is a literal with this value."""
    return node.op == "literal" and bool(node.value == value)


def live(outputs: Sequence[Node]) -> list[Node]:
    """Return the nodes that the outputs depend on, arguments before their users."""
    seen: set[int] = set()
    nodes: list[Node] = []

    def visit(node: Node) -> None:
        if node.order not in seen:
            seen.add(node.order)
            for arg in node.args:
                visit(arg)
            nodes.append(node)

    for output in outputs:
        visit(output)
    return sorted(nodes, key=lambda node: node.order)


def inputs_of(outputs: Sequence[Node], op: str) -> Iterator[Node]:
    """Return the nodes of one `op` that the outputs depend on, in order of creation."""
    return (node for node in live(outputs) if node.op == op)


# --- what is simpler and equal --------------------------------------------------------------------


def _simpler_select(graph: Graph, condition: Node, on_true: Node, on_false: Node) -> Node | None:
    if condition.op == "literal":
        return on_true if condition.value else on_false
    if on_true is on_false:
        return on_true
    if condition.op == "not":
        return graph.select(condition.args[0], on_false, on_true)
    is_kept = condition.op == "eq" and condition.args[0] is condition.args[1] is on_true
    if is_kept and on_false.op == "literal" and on_false.is_float and math.isnan(on_false.value):
        return on_true  # exact_product's guard: NaN stays NaN
    if on_true.dtype == "bool":
        return _logical_select(graph, condition, on_true, on_false)
    return None


def _logical_select(graph: Graph, condition: Node, on_true: Node, on_false: Node) -> Node | None:
    def both(op: str, *args: Node) -> Node:
        return graph.elementwise(op, args, "bool")

    if is_literal(on_true, True):
        return both("or", condition, on_false)
    if is_literal(on_true, False):
        return both("and", graph.negated(condition), on_false)
    if is_literal(on_false, True):
        return both("or", graph.negated(condition), on_true)
    if is_literal(on_false, False):
        return both("and", condition, on_true)
    other = both("and", graph.negated(condition), on_false)
    return both("or", both("and", condition, on_true), other)


def _not(graph: Graph, arg: Node) -> Node | None:
    opposite = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
    if arg.op == "not":
        return arg.args[0]
    if arg.op in ("eq", "ne") or (arg.op in opposite and not arg.args[0].is_float):
        return graph.elementwise(opposite[arg.op], arg.args, "bool")
    return None


def _neg(graph: Graph, arg: Node) -> Node | None:
    del graph
    return arg.args[0] if arg.op == "neg" else None


def _logical(absorbs: bool) -> Callable[[Graph, Node, Node], Node | None]:
    def simpler(graph: Graph, left: Node, right: Node) -> Node | None:
        del graph
        if left.dtype != "bool":
            return None
        for operand, other in ((left, right), (right, left)):
            if operand.op == "literal":
                return operand if bool(operand.value) is absorbs else other
        return left if left is right else None

    return simpler


def _quotient(graph: Graph, above: Node, below: Node) -> Node | None:
    """Drop a division by 1, and the guard by which exact_quotient ties the divisor to the numerator."""
    if is_literal(below, 1):
        return above
    if below.op == "select":
        condition, kept, other = below.args
        if condition.op == "eq" and condition.args[0] is condition.args[1] is above is other:
            return graph.elementwise("div", (above, kept), above.dtype)
    return None


def _sum(graph: Graph, left: Node, right: Node) -> Node | None:
    """Simplify an added 0 away; that changes at most the sign of a zero, which no comparison notices."""
    del graph
    if is_literal(left, 0):
        return right
    return left if is_literal(right, 0) else None


def _difference(graph: Graph, left: Node, right: Node) -> Node | None:
    is_whole = not left.is_float and left.op == "add"
    if is_whole and right.op == "literal" and left.args[1].op == "literal":
        rest = graph.elementwise("sub", (left.args[1], right), left.dtype)
        return graph.elementwise("add", (left.args[0], rest), left.dtype)
    return left if is_literal(right, 0) else None


def _product(graph: Graph, left: Node, right: Node) -> Node | None:
    del graph
    if is_literal(left, 1):
        return right
    return left if is_literal(right, 1) else None


def _extreme(infinity: float) -> Callable[[Graph, Node, Node], Node | None]:
    def simpler(graph: Graph, left: Node, right: Node) -> Node | None:
        del graph
        if left is right or is_literal(right, infinity):
            return left
        return right if is_literal(left, infinity) else None

    return simpler


def _equal_whole(value: bool) -> Callable[[Graph, Node, Node], Node | None]:
    def simpler(graph: Graph, left: Node, right: Node) -> Node | None:
        if left.dtype == "bool" and right.op == "literal":
            return left if bool(right.value) is value else graph.negated(left)
        is_whole = left is right and not left.is_float
        return graph.literal(value, "bool") if is_whole else None

    return simpler


_SIMPLER: dict[str, Callable[..., Node | None]] = {
    "not": _not,
    "neg": _neg,
    "or": _logical(True),
    "and": _logical(False),
    "div": _quotient,
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "min": _extreme(math.inf),
    "max": _extreme(-math.inf),
    "eq": _equal_whole(True),
    "ne": _equal_whole(False),
}
