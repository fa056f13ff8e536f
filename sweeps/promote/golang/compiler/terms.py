"""Nodes as Go expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sweeps.promote.golang.compiler.expressions import (
    PRECEDENCE,
    Binary,
    Expression,
    Index,
    Invocation,
    Text,
    Unary,
    call,
    printed,
)
from sweeps.promote.golang.compiler.graph import Node
from sweeps.promote.golang.compiler.origins import camel
from sweeps.promote.golang.compiler.primitives import GO

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
    """Expressions of nodes; remembers what they use."""

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
        self.used: set[str] = (
            set()
        )  # i, j, endpoint, other, request, endpoints, state, parameters, helpers
        self.constants: dict[str, tuple[str, str]] = {}  # name -> value and origin

    def of(self, node: Node, index: tuple[str, ...]) -> Expression:
        """The expression at the loop variables of its axes."""
        if node.order in self.slices and index:
            return Index(self.slices[node.order], self._place(index[0]))
        if node.order in self.names:
            return Text(self.names[node.order])
        maker = getattr(self, f"_{node.op}", None)
        found: Expression = maker(node, index) if maker else self._elementwise(node, index)
        return found

    def typed(self, node: Node, index: tuple[str, ...]) -> Expression:
        """The same where Go must see the type: a literal has its dtype."""
        one = self.of(node, index)
        if node.op == "literal" and node.dtype.startswith("int"):
            return call(node.dtype, one)
        return one

    # --- leaves -----------------------------------------------------------------------------------

    def _literal(self, node: Node, index: tuple[str, ...]) -> Expression:
        del index
        return self.number(node.value, node.dtype, node.origin)

    def number(self, value: Any, dtype: str, origin: str = "") -> Expression:
        """A constant; one that is not plain gets a name that says where the policy has it."""
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
            one = Binary(text, parts[0], parts[1])
            return call("float64", one) if node.order in self.rounded else one
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
        """Constants for a literal that is compared with a code, such as an SLO class."""
        if arg.op != "literal" or node.op not in ("eq", "ne", "lt", "le", "gt", "ge"):
            return None
        other = node.args[0] if node.args[1] is arg else node.args[1]
        return self._codes.get(str(other.attrs[0])) if other.op == "input" else None


def field_name(path: str) -> str:
    """A signal's path in the simulator as the name of a field: `snapshots.queue_depth` -> `queueDepth`."""
    return camel(path.rpartition(".")[2])


def exported(name: str) -> str:
    """A field's name as Go exports it: `refilled_us` -> `RefilledUs`."""
    one = camel(name)
    return one[0].upper() + one[1:]
