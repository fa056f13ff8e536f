"""Go expressions, printed as gofmt prints them, so that no toolchain is needed for clean text.

gofmt leaves out blanks around operators that bind tighter than their neighbours: `a*b + c`. The rules are those of
Go's printer as its documentation and behaviour show them; a test runs gofmt over what is printed here.
"""

from __future__ import annotations

from dataclasses import dataclass

PRECEDENCE = {
    "||": 1, "&&": 2,
    "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3,
    "+": 4, "-": 4, "|": 4, "^": 4,
    "*": 5, "/": 5, "%": 5, "<<": 5, ">>": 5, "&": 5,
}  # fmt: skip
_UNARY = 6


@dataclass(frozen=True)
class Text:
    """A name, a number, or anything else that needs no parentheses."""

    text: str


@dataclass(frozen=True)
class Unary:
    """`-x` or `!x`."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary:
    """Two operands; parentheses are put where precedence asks for them."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Invocation:
    """A call or a conversion."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Index:
    """`array[index]`, then a field if one is given."""

    array: str
    index: Expression
    field: str = ""


Expression = Text | Unary | Binary | Invocation | Index


def call(function: str, *arguments: Expression) -> Invocation:
    """A call with its arguments in a row."""
    return Invocation(function, arguments)


def printed(expression: Expression, depth: int = 1) -> str:
    """The text in gofmt's form, as it stands in a statement."""
    return _printed(expression, 0, depth)


def _printed(one: Expression, outer: int, depth: int) -> str:
    if isinstance(one, Text):
        return one.text
    if isinstance(one, Unary):
        inner = _printed(one.operand, _UNARY, depth)
        return f"{one.operator}{inner}"
    if isinstance(one, Invocation):
        inside = depth + (len(one.arguments) > 1)
        return f"{one.function}({', '.join(_printed(each, 0, inside) for each in one.arguments)})"
    if isinstance(one, Index):
        return f"{one.array}[{_printed(one.index, 0, depth + 1)}]{one.field}"
    return _binary(one, outer, depth)


def _binary(one: Binary, outer: int, depth: int) -> str:
    precedence = PRECEDENCE[one.operator]
    if precedence < outer:
        return f"({_printed(one, 0, max(depth - 1, 1))})"
    blank = " " if precedence < _cutoff(one, depth) else ""
    same = isinstance(one.left, Binary) and PRECEDENCE[one.left.operator] == precedence
    left = _printed(one.left, precedence, depth + (not same))
    right = _printed(one.right, precedence + 1, depth + 1)
    return f"{left}{blank}{one.operator}{blank}{right}"


def _cutoff(one: Binary, depth: int) -> int:
    """Operators that bind at least as tightly as this stand without blanks."""
    has_sum, has_product, problem = _walked(one)
    if problem:
        return problem + 1
    if has_sum and has_product:
        return 5 if depth == 1 else 4
    return 6 if depth == 1 else 4


def _walked(one: Binary) -> tuple[bool, bool, int]:
    """Whether sums and products occur outside parentheses, and an operator pair that needs blanks."""
    precedence = PRECEDENCE[one.operator]
    has_sum, has_product, problem = precedence == 4, precedence == 5, 0
    if isinstance(one.left, Binary) and PRECEDENCE[one.left.operator] >= precedence:
        has_sum, has_product, problem = _joined((has_sum, has_product, problem), _walked(one.left))
    if isinstance(one.right, Binary) and PRECEDENCE[one.right.operator] > precedence:
        has_sum, has_product, problem = _joined((has_sum, has_product, problem), _walked(one.right))
    if isinstance(one.right, Unary):
        problem = max(problem, {"--": 4, "&^": 5}.get(one.operator + one.right.operator, 0))
    return has_sum, has_product, problem


def _joined(one: tuple[bool, bool, int], other: tuple[bool, bool, int]) -> tuple[bool, bool, int]:
    return one[0] or other[0], one[1] or other[1], max(one[2], other[2])
