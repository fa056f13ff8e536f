"""Constants of Go, exact until a variable takes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sweeps.evolve.go.nodes import MATH, WHOLE_MATH, field, items, text_of, walk
from sweeps.evolve.go.steps.types import StepTypes, Variable

if TYPE_CHECKING:
    from tree_sitter import Node


_BITS = ("&", "|", "^", "&^", "<<", ">>")


@dataclass(frozen=True)
class FoldedConstant:
    """A constant: exact, with the code of its type where it has one."""

    value: Fraction | bool | str
    is_float: bool = False
    kind: str = ""

    @property
    def code(self) -> str:
        """Return its code; a constant without a type is a number of Python."""
        if not isinstance(self.value, Fraction):
            return repr(self.value)
        if self.is_float or self.kind.startswith("FLOAT"):
            try:
                text = repr(float(self.value))
            except OverflowError:
                text = "float('inf')"
        else:
            text = str(int(self.value))
        return f"{self.kind}({text})" if self.kind else text

    def typed(self) -> str:
        """Return its code as that of a variable."""
        if isinstance(self.value, Fraction) and not self.kind:
            return replace(self, kind="FLOAT" if self.is_float else "WHOLE").code
        return self.code


class StepConstants(StepTypes):
    """Fold constants, which are exact in Go."""

    def fold(self, node: Node) -> FoldedConstant | None:
        """Return an expression as a constant; None of another one."""
        method = getattr(self, f"_fold_{node.type}", None)
        return method(node) if method else None

    def _fold_int_literal(self, node: Node) -> FoldedConstant:
        return FoldedConstant(Fraction(int(text_of(node).replace("_", ""), 0)))

    def _fold_float_literal(self, node: Node) -> FoldedConstant:
        return FoldedConstant(Fraction(text_of(node).replace("_", "")), is_float=True)

    def _fold_rune_literal(self, node: Node) -> FoldedConstant:
        return FoldedConstant(Fraction(ord(json.loads(f'"{text_of(node)[1:-1]}"'))))

    def _fold_interpreted_string_literal(self, node: Node) -> FoldedConstant:
        return FoldedConstant(json.loads(text_of(node)))

    def _fold_raw_string_literal(self, node: Node) -> FoldedConstant:
        return FoldedConstant(text_of(node)[1:-1])

    def _fold_true(self, node: Node) -> FoldedConstant:
        return FoldedConstant(text_of(node) == "true")

    _fold_false = _fold_true

    def _fold_parenthesized_expression(self, node: Node) -> FoldedConstant | None:
        return self.fold(items(node)[0])

    def _fold_iota(self, node: Node) -> FoldedConstant:
        return FoldedConstant(Fraction(self.iota))

    def _fold_identifier(self, node: Node) -> FoldedConstant | None:
        found = self.find(text_of(node))
        if found is None and text_of(node) == "iota":
            return FoldedConstant(Fraction(self.iota))
        return found.constant if found is not None else None

    def _fold_selector_expression(self, node: Node) -> FoldedConstant | None:
        name = text_of(field(node, "field"))
        if text_of(field(node, "operand")) == "math" and self.find("math") is None and name in MATH:
            return FoldedConstant(MATH[name], is_float=name not in WHOLE_MATH)
        return None

    def _fold_unary_expression(self, node: Node) -> FoldedConstant | None:
        operand, sign = self.fold(field(node, "operand")), text_of(field(node, "operator"))
        if operand is None:
            return None
        if sign == "!" and isinstance(operand.value, bool):
            return FoldedConstant(not operand.value)
        if isinstance(operand.value, Fraction) and sign in "+-":
            return replace(operand, value=-operand.value if sign == "-" else operand.value)
        return None

    def _fold_call_expression(self, node: Node) -> FoldedConstant | None:
        function, given = field(node, "function"), items(field(node, "arguments"))
        if (
            function.type != "identifier"
            or len(given) != 1
            or self.find(text_of(function)) is not None
        ):
            return None
        code, of = self.plain_type(text_of(function)), self.fold(given[0])
        if of is None or not code or code not in self.numbers or not isinstance(of.value, Fraction):
            return None
        return replace(of, kind=code, is_float=of.is_float and code.startswith("FLOAT"))

    def _fold_binary_expression(self, node: Node) -> FoldedConstant | None:
        first, second = self.fold(field(node, "left")), self.fold(field(node, "right"))
        if first is None or second is None:
            return None
        sign, a, b = text_of(field(node, "operator")), first.value, second.value
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self._folded(sign, first, second)
        if isinstance(a, str) and isinstance(b, str):
            texts: dict[str, str | bool] = {"+": a + b, "==": a == b, "!=": a != b}
            made = texts.get(sign)
            return None if made is None else FoldedConstant(made)
        if isinstance(a, bool) and isinstance(b, bool):
            made = {"&&": a and b, "||": a or b, "==": a == b, "!=": a != b}.get(sign)
            return None if made is None else FoldedConstant(made)
        return None

    def _folded(
        self, sign: str, first: FoldedConstant, second: FoldedConstant
    ) -> FoldedConstant | None:
        a, b = first.value, second.value
        assert isinstance(a, Fraction) and isinstance(b, Fraction)
        kind = first.kind or (second.kind if sign not in ("<<", ">>") else "")
        is_float = (first.is_float or second.is_float or kind.startswith("FLOAT")) and sign not in (
            "<<",
            ">>",
        )
        compared = {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "==": a == b, "!=": a != b}
        if sign in compared:
            return FoldedConstant(compared[sign])
        made: Fraction | None = {"+": a + b, "-": a - b, "*": a * b}.get(sign)
        if sign in "/%" and b != 0:
            whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            made = (
                a / b
                if is_float and sign == "/"
                else Fraction(whole)
                if sign == "/"
                else a - whole * b
            )
        elif sign in _BITS and a.denominator == b.denominator == 1:
            i, j = int(a), int(b)
            made = Fraction({"&": i & j, "|": i | j, "^": i ^ j, "&^": i & ~j}[sign] if sign not in ("<<", ">>")
                            else i << j if sign == "<<" else i >> j)  # fmt: skip
        return None if made is None else FoldedConstant(made, is_float, kind)

    def constants_of(self, group: Node) -> dict[str, Variable]:
        """Return the constants of a declaration, counted by iota; those that are not known are left out."""
        found: dict[str, Variable] = {}
        repeated: tuple[Node | None, Node | None] = (None, None)
        self.scopes.append(found)
        for number, spec in enumerate(one for one in walk(group) if one.type == "const_spec"):
            if spec.child_by_field_name("value") is not None:
                repeated = field(spec, "value"), spec.child_by_field_name("type")
            given, kind = repeated
            names = [one for one in spec.children_by_field_name("name") if one.is_named]
            self.iota = number
            for name, node in zip(names, items(given) if given is not None else [], strict=False):
                constant = self.fold(node)
                if constant is not None:
                    wanted = self.type_code(kind) if kind is not None else ""
                    constant = (
                        replace(constant, kind=wanted) if wanted in self.numbers else constant
                    )
                    found[text_of(name)] = Variable("", "const", constant=constant)
        self.scopes.pop()
        return found
