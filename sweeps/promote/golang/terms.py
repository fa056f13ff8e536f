"""Write nodes as Go expressions in gofmt's form, so that clean text needs no Go toolchain.

gofmt omits blanks around operators that bind tighter than their neighbours: `a*b + c`. The rules are those of
Go's printer according to its documentation and behaviour; a test runs gofmt over the output of this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.promote.golang.graph import Node
from sweeps.promote.golang.structure import GO

PRECEDENCE = {
    "||": 1, "&&": 2,
    "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3,
    "+": 4, "-": 4, "|": 4, "^": 4,
    "*": 5, "/": 5, "%": 5, "<<": 5, ">>": 5, "&": 5,
}  # fmt: skip
_UNARY = 6


@dataclass(frozen=True)
class Text:
    """Hold a name, a number, or any other text that needs no parentheses."""

    text: str


@dataclass(frozen=True)
class Unary:
    """Hold `-x` or `!x`."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary:
    """Hold a binary operation; printing adds parentheses where precedence requires them."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Invocation:
    """Hold a function call or a conversion."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Index:
    """Hold `array[index]`, followed by `.field` if a field is given."""

    array: str
    index: Expression
    field: str = ""


Expression = Text | Unary | Binary | Invocation | Index


def call(function: str, *arguments: Expression) -> Invocation:
    """Return a call of `function` with these arguments."""
    return Invocation(function, arguments)


def printed(expression: Expression, depth: int = 1) -> str:
    """Return the expression's text in gofmt's form, for use in a statement."""
    return _printed(expression, 0, depth)


def _printed(expression: Expression, outer: int, depth: int) -> str:
    if isinstance(expression, Text):
        return expression.text
    if isinstance(expression, Unary):
        inner = _printed(expression.operand, _UNARY, depth)
        return f"{expression.operator}{inner}"
    if isinstance(expression, Invocation):
        inside = depth + (len(expression.arguments) > 1)
        return f"{expression.function}({', '.join(_printed(each, 0, inside) for each in expression.arguments)})"
    if isinstance(expression, Index):
        return f"{expression.array}[{_printed(expression.index, 0, depth + 1)}]{expression.field}"
    return _binary(expression, outer, depth)


def _binary(binary: Binary, outer: int, depth: int) -> str:
    precedence = PRECEDENCE[binary.operator]
    if precedence < outer:
        return f"({_printed(binary, 0, max(depth - 1, 1))})"
    blank = " " if precedence < _cutoff(binary, depth) else ""
    same = isinstance(binary.left, Binary) and PRECEDENCE[binary.left.operator] == precedence
    left = _printed(binary.left, precedence, depth + (not same))
    right = _printed(binary.right, precedence + 1, depth + 1)
    return f"{left}{blank}{binary.operator}{blank}{right}"


def _cutoff(binary: Binary, depth: int) -> int:
    """Return the precedence at and above which gofmt prints operators without blanks."""
    has_sum, has_product, problem = _walked(binary)
    if problem:
        return problem + 1
    if has_sum and has_product:
        return 5 if depth == 1 else 4
    return 6 if depth == 1 else 4


def _walked(binary: Binary) -> tuple[bool, bool, int]:
    """Return whether sums and products occur outside parentheses, and the precedence of a pair that needs blanks."""
    precedence = PRECEDENCE[binary.operator]
    has_sum, has_product, problem = precedence == 4, precedence == 5, 0
    if isinstance(binary.left, Binary) and PRECEDENCE[binary.left.operator] >= precedence:
        has_sum, has_product, problem = _joined(
            (has_sum, has_product, problem), _walked(binary.left)
        )
    if isinstance(binary.right, Binary) and PRECEDENCE[binary.right.operator] > precedence:
        has_sum, has_product, problem = _joined(
            (has_sum, has_product, problem), _walked(binary.right)
        )
    if isinstance(binary.right, Unary):
        problem = max(problem, {"--": 4, "&^": 5}.get(binary.operator + binary.right.operator, 0))
    return has_sum, has_product, problem


def _joined(first: tuple[bool, bool, int], other: tuple[bool, bool, int]) -> tuple[bool, bool, int]:
    return first[0] or other[0], first[1] or other[1], max(first[2], other[2])


_PLAIN = (0.0, 0.5, 1.0, 2.0)  # numbers that need no name
_ELEMENTS = {"i": "endpoint", "j": "other"}  # what a loop's variable stands for
_LIMITS = {2**31 - 1: "MaxInt32", -(2**31): "MinInt32", 2**63 - 1: "MaxInt64", -(2**63): "MinInt64"}
HELPERS = {
    "quotient": """// quotient divides as the simulator does: a division by 0 gives -1.
func quotient[T int32 | int64](above, below T) T {
	if below == 0 {
		return -1
	}
	return above / below
}""",
    "remainder": """// remainder divides as the simulator does: a division by 0 leaves all.
func remainder[T int32 | int64](above, below T) T {
	if below == 0 {
		return above
	}
	return above % below
}""",
    "absolute": """// absolute is the value without its sign.
func absolute[T int32 | int64](value T) T {
	if value < 0 {
		return -value
	}
	return value
}""",
    "sign": """// sign is -1, 0 or 1.
func sign[T int32 | int64 | float64](value T) T {
	switch {
	case value > 0:
		return 1
	case value < 0:
		return -1
	default:
		return value
	}
}""",
    "isFinite": """// isFinite tells numbers from infinities and NaN.
func isFinite(value float64) bool {
	return !math.IsNaN(value) && !math.IsInf(value, 0)
}""",
    "whole": """// whole cuts a real number as the simulator does: what is too large becomes the largest, NaN becomes 0.
func whole[T int32 | int64](value float64, least, most T) T {
	switch {
	case math.IsNaN(value):
		return 0
	case value <= float64(least):
		return least
	case value >= float64(most):
		return most
	default:
		return T(value)
	}
}""",
}


class Terms:
    """Convert nodes to expressions, and record the names, helpers and constants in use."""

    def __init__(
        self,
        fields: Mapping[str, str],
        codes: Mapping[str, Mapping[int, str]],
        is_order: bool,
        unmapped: Callable[[Node], Exception],
    ) -> None:
        self._fields = fields  # of parameters: name in the policy -> exported name
        self._codes = codes  # of inputs that are codes: their constants
        self._is_order = is_order
        self._unmapped = unmapped
        self.names: dict[int, str] = {}  # of nodes, in the scope that is written
        self.slices: dict[int, str] = {}
        self.draws: dict[int, str] = {}
        self.rounded: set[int] = set()  # products that enter sums, which Go may fuse otherwise
        # i, j, endpoint, other, request, endpoints, state, parameters, helpers
        self.used: set[str] = set()
        self.constants: dict[str, tuple[str, str]] = {}  # name -> value and origin

    def of(self, node: Node, index: tuple[str, ...]) -> Expression:
        """Return the node's expression; `index` has the loop variables of its axes."""
        if node.order in self.slices and index:
            return Index(self.slices[node.order], self._place(index[0]))
        if node.order in self.names:
            return Text(self.names[node.order])
        maker = getattr(self, f"_{node.op}", None)
        expression: Expression = maker(node, index) if maker else self._elementwise(node, index)
        return expression

    def typed(self, node: Node, index: tuple[str, ...]) -> Expression:
        """Return the node's expression with an explicit type: an integer literal is converted to its dtype."""
        expression = self.of(node, index)
        if node.op == "literal" and node.dtype.startswith("int"):
            return call(node.dtype, expression)
        return expression

    # --- leaves -----------------------------------------------------------------------------------

    def _literal(self, node: Node, index: tuple[str, ...]) -> Expression:
        del index
        return self.number(node.value, node.dtype, node.origin)

    def number(self, value: Any, dtype: str, origin: str = "") -> Expression:
        """Return a constant; an unusual number becomes a named constant that records its line in the policy."""
        if dtype == "bool":
            return Text("true" if value else "false")
        if dtype == "float64" and not math.isfinite(value):
            return Text(
                "math.NaN()" if math.isnan(value) else f"math.Inf({1 if value > 0 else -1})"
            )
        if dtype != "float64" and int(value) in _LIMITS:
            return Text(f"math.{_LIMITS[int(value)]}")
        if value < 0:
            return Unary("-", self.number(-value, dtype, origin))
        text = repr(float(value)) if dtype == "float64" else str(int(value))
        if float(value) in _PLAIN:
            return Text(text)
        name = "fixed" + text.removesuffix(".0").replace(".", "p").replace("-", "Minus").replace(
            "+", ""
        )
        self.constants.setdefault(name, (text, origin))
        return Text(name)

    def _input(self, node: Node, index: tuple[str, ...]) -> Expression:
        name = field_name(str(node.attrs[0]))
        if self._is_order or not node.rank:
            self.used.add("request")
            return Text(f"request.{name}")
        element = self._element(index[0])
        return Text(f"{element}.{name}")

    def _element(self, at: str) -> str:
        if at in _ELEMENTS:
            self.used.add(_ELEMENTS[at])
            return _ELEMENTS[at]
        self.used.add("endpoints")
        return f"endpoints[{at}]"

    def _param(self, node: Node, index: tuple[str, ...]) -> Expression:
        del index
        self.used.add("parameters")
        return Text(f"p.{self._fields[str(node.attrs[0])]}")

    def _state(self, node: Node, index: tuple[str, ...]) -> Expression:
        del index
        self.used.add("state")
        return Text(f"before.{exported(str(node.attrs[0]))}")

    def _draw(self, node: Node, index: tuple[str, ...]) -> Expression:
        name = self.draws[node.order]
        return Index(name, self._place(index[0])) if node.rank else Text(name)

    def _length(self, node: Node, index: tuple[str, ...]) -> Expression:
        del index
        self.used.add("endpoints")
        offset = int(node.attrs[0])  # type: ignore[call-overload]
        count: Expression = Text("len(endpoints)")
        if offset:
            count = Binary("+" if offset > 0 else "-", count, Text(str(abs(offset))))
        return call(node.dtype, count)

    def _iota(self, node: Node, index: tuple[str, ...]) -> Expression:
        return call(node.dtype, self._place(index[int(node.attrs[0])]))  # type: ignore[call-overload]

    def _place(self, name: str) -> Expression:
        self.used.add(name)
        return Text(name)

    def _unsupported(self, node: Node, index: tuple[str, ...]) -> Expression:
        del index
        raise self._unmapped(node)

    # --- operations -------------------------------------------------------------------------------

    def _convert(self, node: Node, index: tuple[str, ...]) -> Expression:
        (arg,) = node.args
        inner = self.of(arg, index)
        if arg.is_float and node.dtype.startswith("int"):
            self.used.add("whole")
            size = node.dtype.removeprefix("int")
            return Invocation(
                f"whole[{node.dtype}]",
                (inner, Text(f"math.MinInt{size}"), Text(f"math.MaxInt{size}")),
            )
        return call(node.dtype, inner)

    def _broadcast(self, node: Node, index: tuple[str, ...]) -> Expression:
        return self.of(node.args[0], tuple(index[int(axis)] for axis in node.attrs))  # type: ignore[call-overload]

    def _reversed(self, node: Node, index: tuple[str, ...]) -> Expression:
        self.used |= {"endpoints", index[0]}
        return self._indexed(node.args[0], f"len(endpoints)-1-{index[0]}")

    def _indexed(self, array: Node, at: str) -> Expression:
        if array.op == "input":
            self.used.add("endpoints")
            return Text(f"endpoints[{at}].{field_name(str(array.attrs[0]))}")
        name = self.draws.get(array.order) or self.slices[array.order]
        return Text(f"{name}[{at}]")

    def _at(self, node: Node, index: tuple[str, ...]) -> Expression:
        array, place = node.args
        if array.op == "iota":
            return call(array.dtype, self.of(place, index))
        return self._indexed(array, printed(self.of(place, index), 2))

    def _elementwise(self, node: Node, index: tuple[str, ...]) -> Expression:
        known = GO[node.op]
        is_float = bool(node.args) and node.args[0].is_float
        is_whole = bool(node.args) and node.args[0].dtype.startswith("int")
        text = known.go_whole if known.go_whole and is_whole else known.go
        if node.op in ("eq", "ne") and is_float and node.args[0] is node.args[1]:
            test = call("math.IsNaN", self.of(node.args[0], index))
            return Unary("!", test) if node.op == "eq" else test
        if text == "quotient" and node.args[1].op == "literal" and node.args[1].value != 0:
            text = "/"
        if text == "remainder" and node.args[1].op == "literal" and node.args[1].value != 0:
            text = "%"
        parts = [self._operand(node, arg, index) for arg in node.args]
        if len(parts) == 1 and text in ("-", "!", "^"):
            return Unary(text, parts[0])
        if text in PRECEDENCE:
            operation = Binary(text, parts[0], parts[1])
            return call("float64", operation) if node.order in self.rounded else operation
        if text in HELPERS:
            self.used.add(text)
        if text.startswith("math."):
            parts = [
                part if arg.is_float else call("float64", part)
                for part, arg in zip(parts, node.args, strict=True)
            ]
        return Invocation(text, tuple(parts))

    def _operand(self, node: Node, arg: Node, index: tuple[str, ...]) -> Expression:
        codes = self._codes_beside(node, arg)
        if codes and int(arg.value) in codes:
            return Text(codes[int(arg.value)])
        return self.of(arg, index)

    def _codes_beside(self, node: Node, arg: Node) -> Mapping[int, str] | None:
        """Return the constants for a literal that is compared with a code, such as an SLO class; None for others."""
        if arg.op != "literal" or node.op not in ("eq", "ne", "lt", "le", "gt", "ge"):
            return None
        other = node.args[0] if node.args[1] is arg else node.args[1]
        return self._codes.get(str(other.attrs[0])) if other.op == "input" else None


def field_name(path: str) -> str:
    """Return the Go field name of a signal's path: `snapshots.queue_depth` -> `queueDepth`."""
    return camel(path.rpartition(".")[2])


def exported(name: str) -> str:
    """Return a field's name as Go exports it: `refilled_us` -> `RefilledUs`."""
    camel_case = camel(name)
    return camel_case[0].upper() + camel_case[1:]


def camel(name: str) -> str:
    """Return a name in camel case: `is_over_limit` -> `isOverLimit`."""
    first, *rest = [part for part in re.split(r"[^0-9A-Za-z]+", name) if part]
    return first[0].lower() + first[1:] + "".join(part[0].upper() + part[1:] for part in rest)
