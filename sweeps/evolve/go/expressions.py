"""Translate Go's expressions to expressions of JAX, with the rounding of Go."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from blis_jax.core.types import OLD_CLASSES
from sweeps.evolve.go.source import computed, field, items, number_in, text_of
from sweeps.evolve.go.writer import (
    CLASS,
    FIELDS,
    INSTANCE,
    LIST,
    MATH,
    NUMBERS,
    SCORER,
    WHOLE_MATH,
    GoValue,
    VectorWriter,
    array,
    class_code,
    constant,
    truth,
    typed,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_COMPARED = ("<", ">", "<=", ">=", "==", "!=")
UNKNOWN = {
    "OutputTokens": "the answer's length is not known when a request is routed",
    "MaxOutputLen": "the context of a policy has no bound of the answer's length",
    "TenantID": "tenants have numbers here, no names",
    "ID": "requests have no names here",
}


def _renamed(text: str) -> str:
    return (
        f"; workload files of version 1 call {OLD_CLASSES[text]} so" if text in OLD_CLASSES else ""
    )


class Expressions(VectorWriter):
    """Translate expressions; a subclass translates statements."""

    def value(self, node: Node) -> GoValue:
        """Translate an expression."""
        method = getattr(self, f"_{node.type}", None)
        return method(node) if method else self.refuse(node, "not read")

    def number(self, node: Node, kind: str) -> GoValue:
        """Translate an expression that must be a number of the given kind."""
        value = self.value(node)
        if value.is_untyped and value.kind in NUMBERS:
            if kind == "int" and isinstance(value.const, Fraction) and value.const.denominator != 1:
                return self.refuse(node, "a whole number is wanted")
            return typed(value, kind)
        if value.kind != kind or value.axes:
            return self.refuse(node, f"{'a float64' if kind == 'float' else 'an int'} is wanted")
        return value

    def condition(self, node: Node) -> GoValue:
        """Translate an expression that must be a bool."""
        value = self.value(node)
        return (
            value
            if value.kind == "bool" and not value.axes
            else self.refuse(node, "a bool is wanted")
        )

    # --- literals and names -----------------------------------------------------------------------

    def _int_literal(self, node: Node) -> GoValue:
        return constant(number_in(node), "int")

    def _float_literal(self, node: Node) -> GoValue:
        return constant(number_in(node), "float")

    def _true(self, node: Node) -> GoValue:
        return truth(text_of(node) == "true")

    _false = _true

    def _nil(self, node: Node) -> GoValue:
        return GoValue("-1", "nil")

    def _interpreted_string_literal(self, node: Node) -> GoValue:
        return GoValue("", "string", const=json.loads(text_of(node)))

    def _parenthesized_expression(self, node: Node) -> GoValue:
        return self.value(items(node)[0])

    def _identifier(self, node: Node) -> GoValue:
        name = text_of(node)
        variable = self.find(name)
        if variable is not None:
            return variable
        if name in self.program.constants:
            return self.value(self.program.constants[name])
        if name in ("true", "false"):
            return truth(name == "true")
        return self.refuse(node, "a name from outside the function is not read")

    # --- fields -----------------------------------------------------------------------------------

    def _selector_expression(self, node: Node) -> GoValue:
        name, operand = text_of(field(node, "field")), field(node, "operand")
        if text_of(operand) == "math" and self.find("math") is None:
            if name in MATH:
                return constant(MATH[name], "int" if name in WHOLE_MATH else "float")
            return self.refuse(node, "this of package math is not read")
        owner = self.value(operand)
        if owner.kind == "snap" and not owner.axes:
            if name == "ID":
                return replace(owner, kind="id")
            if name not in FIELDS:
                return self.refuse(node, "a snapshot has no such field here")
            vector, kind = FIELDS[name]
            return GoValue(self.of_instance(f"go.{vector}", owner), kind)
        of_owner = {
            "state": {
                "Snapshots": GoValue("", "snapshots", (INSTANCE,)),
                "Clock": GoValue("go.clock_us", "int"),
            },
            "request": {
                "SLOClass": GoValue("go.slo_class", "class"),
                "SessionID": GoValue("go.has_session", "session"),
                "ArrivalTime": GoValue("go.arrival_us", "int"),
                "InputTokens": GoValue("go.input_len", "tokens"),
            },
            "router": {
                "scorers": GoValue("", "scorer", (SCORER,)),
                "weights": GoValue("go.weights", "float", (SCORER,), is_alias=True),
                "rng": GoValue("", "rng"),
                "observers": GoValue("", "observers"),
            },
        }.get(owner.kind, {})
        if name in of_owner:
            return of_owner[name]
        if owner.kind == "router":
            return self.refuse(
                node, "a struct field, which may be kept between requests, is not read"
            )
        if owner.kind == "request":
            return self.refuse(node, UNKNOWN.get(name, "the context of a policy has no such field"))
        return self.refuse(node, "not read")

    def of_instance(self, vector: str, place: GoValue) -> str:
        """Return the code of a vector's element at an instance's number."""
        return vector if place.is_own else f"{vector}[{place.code}]"

    # --- elements ---------------------------------------------------------------------------------

    def _index_expression(self, node: Node) -> GoValue:
        owner, place = self.value(field(node, "operand")), self.value(field(node, "index"))
        return self.element(node, owner, place)

    def _slice_expression(self, node: Node) -> GoValue:
        """Translate `slice[:n]` and `slice[n:]`."""
        owner = self.value(field(node, "operand"))
        ends = [node.child_by_field_name(name) for name in ("start", "end")]
        if not owner.is_list or node.child_by_field_name("capacity") is not None:
            return self.refuse(node, "a part of this is not read")
        start, end = (None if bound is None else array(self.number(bound, "int")) for bound in ends)
        return GoValue(
            f"{owner.code}.part({start or 0}, {end})", owner.kind, owner.axes, is_alias=True
        )

    def element(self, node: Node, owner: GoValue, place: GoValue) -> GoValue:
        """Translate an element of a container at an index."""
        if owner.kind == "text":
            return owner
        if not owner.axes:
            return self.refuse(node, "an element of this is not read")
        axis, rest = owner.axes[0], owner.axes[1:]
        place = self.key(node, axis, place)
        if owner.kind == "snapshots":
            return GoValue(place.code, "snap", is_own=place.is_own)
        if owner.kind == "scorer":
            return GoValue(place.code, "scorer", is_static=True)
        if axis == LIST:
            return GoValue(f"{owner.code}.at({place.code})", owner.kind)
        if place.is_own:
            if len(owner.axes) > 1:
                return self.refuse(node, "a row by instance is not read here")
            return GoValue(owner.code, owner.kind, has=owner.has)
        if place.kind == "id" or axis == CLASS:
            return GoValue(f"at({owner.code}, {place.code})", owner.kind, rest)
        return GoValue(
            f"{owner.code}[{place.code}]", owner.kind, rest, is_map=bool(rest), is_alias=bool(rest)
        )

    def key(self, node: Node, axis: str, place: GoValue) -> GoValue:
        """Return the index as the axis needs it, or refuse the program."""
        if axis == CLASS:
            place = self.as_class(place)
        elif place.is_untyped:
            place = typed(place, "int")
        elif axis == INSTANCE and place.kind == "string":  # no instance has such an ID
            place = GoValue("-1", "id", is_static=True)
        wanted = {INSTANCE: ("int", "id"), CLASS: ("class",)}.get(axis, ("int",))
        if place.kind not in wanted or place.axes:
            return self.refuse(node, "this index is not read")
        return place

    def as_class(self, value: GoValue) -> GoValue:
        """Return a text as a class's number; any other value unchanged."""
        if value.kind == "string" and isinstance(value.const, str):
            code = class_code(value.const)
            if code < 0:
                self.program.note(
                    f"{value.const!r} is no class of BLIS, so a request never has it{_renamed(value.const)}"
                )
            return GoValue(str(code), "class", is_static=True)
        return value

    # --- operators --------------------------------------------------------------------------------

    def _unary_expression(self, node: Node) -> GoValue:
        operator, operand = text_of(field(node, "operator")), self.value(field(node, "operand"))
        inner = field(node, "operand")
        if operand.kind == "snap" and (
            operator == "*" or (operator == "&" and inner.type == "index_expression")
        ):
            return operand
        if operator in "+-" and operand.kind in NUMBERS and not operand.axes:
            if isinstance(operand.const, Fraction):
                sign = -1 if operator == "-" else 1
                return typed(replace(operand, const=sign * operand.const), operand.kind)
            return GoValue(f"({operator}({operand.code}))", operand.kind)
        if operator == "!" and operand.kind == "bool" and not operand.axes:
            if isinstance(operand.const, bool):
                return truth(not operand.const)
            return GoValue(f"(~({operand.code}))", "bool")
        return self.refuse(node, "not read")

    def _binary_expression(self, node: Node) -> GoValue:
        operator = text_of(field(node, "operator"))
        first, second = self.value(field(node, "left")), self.value(field(node, "right"))
        return self.operation(node, operator, first, second)

    def operation(self, node: Node, operator: str, first: GoValue, second: GoValue) -> GoValue:
        """Translate an operation of two values."""
        if operator == "+" and {first.kind, second.kind} <= {"text", "string"}:
            return GoValue("None", "text")
        if operator in ("&&", "||"):
            if {first.kind, second.kind} != {"bool"} or first.axes or second.axes:
                return self.refuse(node, "a bool is wanted")
            sign = "&" if operator == "&&" else "|"
            return GoValue(f"(({first.code}) {sign} ({second.code}))", "bool")
        if operator in ("==", "!="):
            special = self._told_apart(first, second) or self._told_apart(second, first)
            if special:
                return GoValue(f"(~({special}))" if operator == "!=" else special, "bool")
        if (
            first.axes
            or second.axes
            or {first.kind, second.kind} - {*NUMBERS, "id", "bool", "class", "snap"}
        ):
            return self.refuse(node, "not read")
        if isinstance(first.const, Fraction) and isinstance(second.const, Fraction):
            return self._of_constants(node, operator, first, second)
        if first.is_untyped:
            first = typed(first, second.kind)
        if second.is_untyped:
            second = typed(second, first.kind)
        if first.kind != second.kind:
            return self.refuse(node, "numbers of two types")
        if operator in _COMPARED:
            return self._comparison(node, operator, first, second)
        return self._arithmetic(node, operator, first, second)

    def _told_apart(self, value: GoValue, other: GoValue) -> str:
        """Return the code of `value == other` for an ID, class, snapshot, session or random stream; "" otherwise."""
        if value.kind == "rng" and other.kind == "nil":
            return "jnp.bool_(False)"
        if value.kind == "session" and other.const == "":
            return f"(~{value.code})"
        if value.kind == "class" and other.kind == "string":
            return f"({value.code} == {self.as_class(other).code})"
        if value.kind == "id" and other.const == "":
            return f"({value.code} == -1)"
        if value.kind == "snap" and other.kind == "nil":
            return f"({value.code} == -1)"
        return ""

    def _comparison(self, node: Node, operator: str, first: GoValue, second: GoValue) -> GoValue:
        codes = [first.code, second.code]
        if operator not in ("==", "!="):
            if first.kind == "id":
                codes = [f"go.text_rank({code})" for code in codes]
            elif first.kind not in NUMBERS:
                return self.refuse(node, "an order of these is not read")
        if (first.is_static and second.is_static) or all(
            v.const is not None or v.is_static for v in (first, second)
        ):
            codes[0] = f"jnp.asarray({codes[0]})"
        return GoValue(f"(({codes[0]}) {operator} ({codes[1]}))", "bool")

    def _arithmetic(self, node: Node, operator: str, first: GoValue, second: GoValue) -> GoValue:
        a, b, kind = first.code, second.code, first.kind
        is_static = (first.is_static or first.const is not None) and (
            second.is_static or second.const is not None
        )
        if operator in "+-" and kind in NUMBERS:
            return GoValue(f"(({a}) {operator} ({b}))", kind, is_static=is_static)
        if operator == "*" and kind in NUMBERS:
            return GoValue(f"times({a}, {b})" if kind == "float" else f"(({a}) * ({b}))", kind)
        if operator == "/" and kind in NUMBERS:
            return GoValue(f"over({a}, {b})" if kind == "float" else f"quotient({a}, {b})", kind)
        if operator == "%" and kind == "int":
            return GoValue(f"remainder({a}, {b})", kind)
        return self.refuse(node, "this operator is not read")

    def _of_constants(self, node: Node, operator: str, first: GoValue, second: GoValue) -> GoValue:
        a, b = first.const, second.const
        assert isinstance(a, Fraction) and isinstance(b, Fraction)
        kind = "float" if "float" in (first.kind, second.kind) else "int"
        made = (
            None
            if operator in ("%", "&", "|", "^", "&^")
            else computed(operator, a, b, kind == "float")
        )
        if made is None:
            return self.refuse(node, "this operator is not read")
        return truth(made) if isinstance(made, bool) else constant(made, kind)
