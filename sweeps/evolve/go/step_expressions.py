"""Translate Go's expressions to calls of the package `stepping`."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sweeps.evolve.go.expressions import UNKNOWN
from sweeps.evolve.go.source import (
    above,
    field,
    items,
    owner_of,
    receiver_type,
    statements_of,
    text_of,
    walk,
)
from sweeps.evolve.go.step_types import StepTypes

if TYPE_CHECKING:
    from tree_sitter import Node


_OF_ROUTER = {"scorers": "go.scorers()", "weights": "go.shares()", "rng": "go", "observers": "NIL"}
_OF_REQUEST = {
    "SLOClass": "go.request_class", "SessionID": "go.session", "InputTokens": "go.tokens",
    "ArrivalTime": "go.arrival_us",
}  # fmt: skip
_OF_STATE = {"Snapshots": "go.snapshots", "Clock": "go.clock_us"}
_FUNCTIONS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "%": "rem",
    "==": "same",
    "<": "less",
    "<=": "not_more",
}
_TURNED = {">": "less", ">=": "not_more"}
_BITS = ("&", "|", "^", "&^", "<<", ">>")
_SCORERS = ("scoreLoadBalance", "scoreQueueDepth", "scoreKVUtilization")
_PLACES = (
    "identifier",
    "selector_expression",
    "index_expression",
    "unary_expression",
    "parenthesized_expression",
)


class StepExpressions(StepTypes):
    """Translate all expressions except literals and calls."""

    def value(self, node: Node) -> str:
        """Return the code of an expression."""
        constant = self.fold(node)
        if constant is not None:
            return constant.code
        method = getattr(self, f"_{node.type}", None)
        return method(node) if method else self.program.refuse(node, "not read")

    place = value

    def copied(self, node: Node, is_declared: bool = False) -> str:
        """Return the code of the value that a variable takes: structs are copied; a declared constant gets a type."""
        constant = self.fold(node)
        if constant is not None:
            return constant.typed() if is_declared else constant.code
        if node.type == "func_literal":
            code = self.value(node)
            self.literal = node
            return code
        code = self.value(node)
        return (
            f"copied({code})"
            if node.type in _PLACES and not code.startswith("go.snapshots")
            else code
        )

    def _nil(self, node: Node) -> str:
        return "NIL"

    def _parenthesized_expression(self, node: Node) -> str:
        return self.value(items(node)[0])

    def _identifier(self, node: Node) -> str:
        variable = self.find(text_of(node))
        if variable is not None:
            return f"partial({variable.code}, go)" if variable.kind == "function" else variable.code
        if text_of(node) in _SCORERS:
            return f"go.named_scorer({text_of(node)!r})"
        return self.program.refuse(node, "a name from outside the function is not read")

    def _selector_expression(self, node: Node) -> str:
        name, operand = text_of(field(node, "field")), field(node, "operand")
        kind = self.kind_at(operand)
        if kind == "router":
            return _OF_ROUTER[name] if name in _OF_ROUTER else self._kept_number(node, name)
        if kind == "request":
            if name not in _OF_REQUEST:
                self.program.refuse(
                    node, UNKNOWN.get(name, "the context of a policy has no such field")
                )
            return _OF_REQUEST[name]
        if kind == "state":
            return _OF_STATE[name] if name in _OF_STATE else self.program.refuse(node, "not read")
        if self.package_of(operand):
            self.program.refuse(node, f"package {text_of(operand)} is not read")
        return f"go.get({self.value(operand)}, {name!r})"

    def _kept_number(self, node: Node, name: str) -> str:
        """Return the code of a numeric field of the router's struct, which keeps its value from request to request."""
        spec = self.specs.get(self.router)
        kind = next(
            (
                field(part, "type")
                for part in (walk(spec) if spec is not None else ())
                if part.type == "field_declaration"
                and name in map(text_of, part.children_by_field_name("name"))
            ),
            None,
        )
        code = self.plain_type(text_of(kind)) if kind is not None else ""
        if code not in self.numbers and code != "BOOL":
            self.program.refuse(
                node, "a struct field, which may be kept between requests, is not read"
            )
        if name not in self.kept:
            self.kept[name] = "False" if code == "BOOL" else f"{code}(0)"
            for part in walk(self.root):
                self._begin(part, name, code)
        return f"go.numbers[{name!r}]"

    def _begin(self, node: Node, name: str, code: str) -> None:
        """Record the first value of a kept number if this node sets it in a literal of the router's struct."""
        if node.type == "keyed_element":
            key, value = (items(part)[0] for part in items(node))
            around = node.parent.parent if node.parent is not None else None
            if (
                text_of(key) != name
                or around is None
                or text_of(field(around, "type")) != self.router
            ):
                return
            first = self.fold(value)
            if first is None:
                self.program.refuse(node, "what this begins with is not known")
            self.kept[name] = replace(first, kind=code if code in self.numbers else "").code
        elif node.type == "assignment_statement":
            for target in items(field(node, "left")):
                is_it = (
                    target.type == "selector_expression" and text_of(field(target, "field")) == name
                )
                if is_it and self._of_method(node) != self.router:
                    self.program.refuse(node, "what this begins with is not known")

    def _of_method(self, node: Node) -> str:
        """Return the type whose method encloses a node; empty if the node is in a plain function."""
        methods = [around for around in above(node) if around.type == "method_declaration"]
        return receiver_type(methods[0]) if methods else ""

    def _index_expression(self, node: Node) -> str:
        return f"item({self.value(field(node, 'operand'))}, {self.value(field(node, 'index'))})"

    def _slice_expression(self, node: Node) -> str:
        ends = [node.child_by_field_name(name) for name in ("start", "end")]
        if node.child_by_field_name("capacity") is not None:
            self.program.refuse(node, "a part of this is not read")
        start, end = ("0" if bound is None and place == 0 else "None" if bound is None else self.value(bound)
                      for place, bound in enumerate(ends))  # fmt: skip
        return f"part({self.value(field(node, 'operand'))}, {start}, {end})"

    def _unary_expression(self, node: Node) -> str:
        sign, code = text_of(field(node, "operator")), self.value(field(node, "operand"))
        names = {"-": "negative", "!": "no", "^": "inverted", "*": "place_at", "&": "pointer_to"}
        if sign == "+":
            return code
        return f"{names[sign]}({code})" if sign in names else self.program.refuse(node, "not read")

    def _binary_expression(self, node: Node) -> str:
        return self.operation(
            node, text_of(field(node, "operator")), field(node, "left"), field(node, "right")
        )

    def operation(self, node: Node, sign: str, left: Node, right: Node) -> str:
        """Return the code of a binary operation."""
        first, second = self.value(left), self.value(right)
        if sign in _FUNCTIONS:
            return f"{_FUNCTIONS[sign]}({first}, {second})"
        if sign in _TURNED:
            return f"{_TURNED[sign]}({second}, {first})"
        if sign == "!=":
            return f"no(same({first}, {second}))"
        if sign in ("&&", "||"):
            return f"go.{'both' if sign == '&&' else 'either'}({first}, lambda: {second})"
        if sign in _BITS:
            return f"bits({sign!r}, {first}, {second})"
        return self.program.refuse(node, "this operator is not read")

    @abstractmethod
    def function(self, node: Node, name: str, is_closure: bool = False) -> None:
        """Write a function or closure; implemented by the writer."""

    def _func_literal(self, node: Node) -> str:
        around = node.parent
        while around is not None and around.type in (
            "expression_list",
            "literal_element",
            "keyed_element",
        ):
            around = around.parent
        is_kept = around is not None and around.type in ("literal_value", "assignment_statement")
        loops = [outer for outer in above(node) if outer.type == "for_statement"]
        if is_kept and loops:
            self.program.refuse(
                node, "a closure that a loop keeps is not read; name it before the loop"
            )
        name = self.fresh(f"function_{self.program.line(node)}")
        self.declared.add(name)
        self.function(node, name, is_closure=True)
        return name

    # --- what a tree says -----------------------------------------------------------------------------------

    def changed_in(self, nodes: list[Node]) -> list[str]:
        """Return the names that the nodes assign; a name appears once for each assignment."""
        names = []
        for node in (part for root in nodes for part in walk(root)):
            if node.type == "assignment_statement":
                names += [text_of(target) for target in items(field(node, "left"))]
            elif node.type in ("inc_statement", "dec_statement"):
                names.append(text_of(items(node)[0]))
        return names

    def bound_of(self, condition: Node, body: Node) -> str:
        """Return the code of the most passes of a loop that counts in its body; the text `None` for any other loop."""
        changed = self.changed_in([body])
        if condition.type == "binary_expression" and text_of(field(condition, "operator")) == "&&":
            parts = (self.bound_of(field(condition, name), body) for name in ("left", "right"))
            return next((bound for bound in parts if bound != "None"), "None")
        if condition.type != "binary_expression" or any(
            part.type == "continue_statement" for part in walk(body)
        ):
            return "None"
        sign = text_of(field(condition, "operator"))
        for name, other, up in (("left", "right", "<"), ("right", "left", ">")):
            counter, end = field(condition, name), field(condition, other)
            if (
                counter.type != "identifier"
                or changed.count(text_of(counter)) != 1
                or sign[0] not in "<>"
            ):
                continue
            steps = (self._step(node, text_of(counter)) for node in statements_of(body))
            step = next(filter(None, steps), 0)
            if (
                not step
                or (step > 0) != sign.startswith(up)
                or any(text_of(n) in changed for n in walk(end))
            ):
                continue
            return f"go.bound({self.value(counter)}, {self.value(end)}, {step})"
        return "None"

    def guess_of(self, condition: Node, body: Node) -> str:
        """Return as code a guess of the passes of a loop whose ends approach each other, or that divides its number.

        For any other loop the code is the text `None`.
        """
        ends = (
            [field(condition, name) for name in ("left", "right")]
            if condition.type == "binary_expression"
            else []
        )
        if [end.type for end in ends] == ["identifier", "identifier"]:
            first, last = ends if text_of(field(condition, "operator"))[0] in "<!" else ends[::-1]
            return f"go.bound({self.value(first)}, {self.value(last)}, 1)"
        for node in walk(body):
            for end in ends if node.type == "assignment_statement" else ():
                by, sign = (
                    self.fold(items(field(node, "right"))[0]),
                    text_of(field(node, "operator")),
                )
                if (
                    by is not None
                    and text_of(field(node, "left")) == text_of(end)
                    and sign in ("/=", ">>=")
                ):
                    number = float(by.value) if sign == "/=" else 2.0 ** float(by.value)
                    return str(int(63 / math.log2(number)) + 2) if number >= 2 else "None"
        return "None"

    def _step(self, node: Node, name: str) -> int:
        if node.type in ("inc_statement", "dec_statement") and text_of(items(node)[0]) == name:
            return 1 if node.type == "inc_statement" else -1
        if node.type == "assignment_statement" and text_of(field(node, "left")) == name:
            by, sign = self.fold(items(field(node, "right"))[0]), text_of(field(node, "operator"))
            if by is not None and isinstance(by.value, Fraction) and sign in ("+=", "-="):
                return int(by.value) if sign == "+=" else -int(by.value)
        return 0

    def is_free(self, body: Node, key: str) -> bool:
        """Return whether the statements of a loop over a map show that the order of passes does not matter."""
        for node in walk(body):
            if node.type in ("break_statement", "return_statement", "labeled_statement"):
                return False
            if node.type == "call_expression":
                name = text_of(field(node, "function"))
                if name not in ("len", "delete", "float64", "int") and not name.startswith("math."):
                    return False
            if node.type == "assignment_statement":
                targets = items(field(node, "left"))
                if not all(
                    target.type == "index_expression" and text_of(field(target, "index")) == key
                    for target in targets
                ):
                    return False
        return True

    def appends_over(self, target: Node, value: Node) -> bool:
        """Return whether `target = append(target[:i], …)` may overwrite the cells: no other slice uses them."""
        if value.type != "call_expression" or text_of(field(value, "function")) != "append":
            return False
        first, *rest = items(field(value, "arguments"))
        if first.type != "slice_expression" or text_of(field(first, "operand")) != text_of(target):
            return False
        if len(rest) == 1 and rest[0].type == "variadic_argument":
            other = items(rest[0])[0]
            if other.type == "slice_expression" and text_of(field(other, "operand")) == text_of(
                target
            ):
                return True
        return target.type == "identifier" and self._is_alone(target)

    def _is_alone(self, target: Node) -> bool:
        """Return whether no other slice shares the cells of `target`: it only holds new slices and is not passed on."""
        name = text_of(target)
        for mention in walk(owner_of(target)):
            around = mention.parent
            if mention.type != "identifier" or text_of(mention) != name or around is None:
                continue
            if (
                around.type == "expression_list" and around.parent is not None
            ):  # is assigned, or is a value
                around = around.parent
                left = around.child_by_field_name("left")
                is_target = (
                    left is not None and left.start_byte <= mention.start_byte < left.end_byte
                )
                values = items(field(around, "right")) if is_target else []
                if len(values) != 1 or not self._is_new(values[0], name):
                    return False
            elif around.type == "var_spec":
                if around.child_by_field_name("value") is not None:
                    return False
            elif around.type == "slice_expression":
                call = around.parent.parent if around.parent is not None else None
                if (
                    call is None
                    or call.type != "call_expression"
                    or text_of(field(call, "function")) != "append"
                ):
                    return False
            elif around.type == "argument_list":
                if (
                    text_of(field(around.parent, "function")) not in ("len", "append")
                    if around.parent
                    else True
                ):
                    return False
            elif around.type == "range_clause":
                if around.parent is None or name in self.changed_in([field(around.parent, "body")]):
                    return False
            elif around.type != "index_expression":
                return False
        return True

    def _is_new(self, value: Node, name: str) -> bool:
        """Return whether a value is a new slice, or an append to the slice with this name."""
        if value.type == "call_expression":
            function, parts = text_of(field(value, "function")), items(field(value, "arguments"))
            return function == "make" or (
                function == "append" and text_of(parts[0]).partition("[")[0] == name
            )
        return value.type in ("composite_literal", "nil")
