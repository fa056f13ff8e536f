"""Calls, types and literals of Go: scorers, package math, builtin functions, and the values that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sweeps.evolve.go.expressions import Expressions
from sweeps.evolve.go.source import field, items, names_in, text_of, walk
from sweeps.evolve.go.writer import (
    CLASS,
    DTYPES,
    FIXED,
    FUNCTIONS,
    GO_TYPES,
    INSTANCE,
    LIST,
    NUMBERS,
    PAIRS,
    SCORER,
    GoValue,
    array,
    typed,
)

if TYPE_CHECKING:
    from tree_sitter import Node


class Calls(Expressions, ABC):
    """Translate expressions, including calls."""

    # --- calls ------------------------------------------------------------------------------------

    def _call_expression(self, node: Node) -> GoValue:
        function, arguments = field(node, "function"), items(field(node, "arguments"))
        name = text_of(function)
        builtin = getattr(self, f"call_{name}", None) if function.type == "identifier" else None
        if builtin and self.find(name) is None and name not in self.program.helpers:
            return builtin(node, arguments)
        if function.type == "selector_expression":
            return self._method(node, function, arguments)
        if function.type == "identifier" and (
            name in self.program.helpers or self._is_function(name)
        ):
            return self.called(node, name, arguments)
        callee = self.value(function)
        return (
            self._scored(node, callee)
            if callee.kind == "scorer"
            else self.refuse(node, "this call is not read")
        )

    def _is_function(self, name: str) -> bool:
        variable = self.find(name)
        return variable is not None and variable.kind == "function"

    @abstractmethod
    def called(self, node: Node, name: str, arguments: list[Node]) -> GoValue:
        """Translate a call of a helper or a closure; implemented by the class that translates statements."""

    def _scored(self, node: Node, scorer: GoValue) -> GoValue:
        kinds = [self.value(argument).kind for argument in items(field(node, "arguments"))]
        if kinds != ["request", "snapshots"]:
            return self.refuse(node, "a scorer is asked about all snapshots alone")
        return GoValue(f"go.scores[{scorer.code}]", "float", (INSTANCE,), is_map=True)

    def _method(self, node: Node, function: Node, arguments: list[Node]) -> GoValue:
        owner, name = field(function, "operand"), text_of(field(function, "field"))
        package = self.package_of(owner)
        if package == "math":
            return self._of_math(node, name, arguments)
        if package == "fmt" and name.startswith("Sprint"):
            return GoValue("None", "text")
        if package:
            return self.refuse(node, f"package {package} is not read")
        receiver = self.value(owner)
        if receiver.kind == "snap" and name == "EffectiveLoad" and not arguments:
            return GoValue(self.of_instance("go.effective_load", receiver), "int")
        if receiver.kind == "router" and (self.program.router, name) in self.program.methods:
            return self.called(node, name, arguments)
        if receiver.kind == "rng" and name == "Intn" and len(arguments) == 1:
            limit = self.number(arguments[0], "int")
            return GoValue(f"go.intn({limit.code}{self.mask and ', ' + self.mask})", "int")
        return self.refuse(node, "this call is not read")

    def _of_math(self, node: Node, name: str, arguments: list[Node]) -> GoValue:
        if name == "Inf":
            sign = self.value(arguments[0]).const
            if isinstance(sign, Fraction):
                return GoValue("-jnp.inf" if sign < 0 else "jnp.inf", "float", is_static=True)
        codes = [array(self.number(argument, "float")) for argument in arguments]
        if name in FUNCTIONS and len(codes) == 1:
            return GoValue(f"{FUNCTIONS[name]}({codes[0]})", "float")
        if name in PAIRS and len(codes) == 2:
            return GoValue(f"{PAIRS[name]}({', '.join(codes)})", "float")
        if name == "IsInf" and len(arguments) == 2 and self.value(arguments[1]).const == 0:
            return GoValue(f"jnp.isinf({codes[0]})", "bool")
        if name == "IsNaN":
            return GoValue(f"jnp.isnan({codes[0]})", "bool")
        return self.refuse(node, "this of package math is not read")

    def call_len(self, node: Node, arguments: list[Node]) -> GoValue:
        """Translate `len(…)`."""
        of = self.value(arguments[0])
        if of.kind == "tokens":
            return GoValue(of.code, "int")
        if not of.axes:
            return self.refuse(node, "the length of this is not read")
        axis = of.axes[0]
        if axis == INSTANCE and of.has:
            return GoValue(f"jnp.sum({of.has} & go.there, dtype=INT)", "int")
        if axis == CLASS:
            return self.refuse(node, "the length of this is not read")
        code = {INSTANCE: "go.count", SCORER: "go.num_scorers", LIST: f"{of.code}.count"}.get(
            axis, f"{of.code}.shape[0]"
        )
        return GoValue(
            code,
            "int",
            is_static=axis in (SCORER, FIXED),
            extent=axis if axis in (INSTANCE, SCORER) else "",
        )

    def call_float64(self, node: Node, arguments: list[Node]) -> GoValue:
        """Translate `float64(…)`."""
        value = self.value(arguments[0])
        if isinstance(value.const, Fraction):
            return replace(typed(value, "float"), is_untyped=False)
        if value.kind not in NUMBERS or value.axes:
            return self.refuse(node, "a number is wanted")
        return value if value.kind == "float" else GoValue(f"real({value.code})", "float")

    def call_int(self, node: Node, arguments: list[Node]) -> GoValue:
        """Translate `int(…)`."""
        value = self.value(arguments[0])
        if isinstance(value.const, Fraction) and value.const.denominator == 1:
            return replace(typed(value, "int"), is_untyped=False)
        if value.kind not in NUMBERS or value.axes:
            return self.refuse(node, "a number is wanted")
        return value if value.kind == "int" else GoValue(f"whole({value.code})", "int")

    call_int64 = call_int

    def call_max(self, node: Node, arguments: list[Node]) -> GoValue:
        """Translate `max(…)` or `min(…)`."""
        values = [self.value(argument) for argument in arguments]
        kinds = {value.kind for value in values if not value.is_untyped} or {values[0].kind}
        if len(kinds) != 1 or not kinds <= set(NUMBERS) or any(value.axes for value in values):
            return self.refuse(node, "numbers of one type are wanted")
        kind = kinds.pop()
        codes = [array(self.number(argument, kind)) for argument in arguments]
        function = "jnp.maximum" if text_of(field(node, "function")) == "max" else "jnp.minimum"
        code = codes[0]
        for other in codes[1:]:
            code = f"{function}({code}, {other})"
        return GoValue(code, kind)

    call_min = call_max

    def call_make(self, node: Node, arguments: list[Node]) -> GoValue:
        """Translate `make(…)`: a map keyed by instance, a slice indexed by instance or scorer, or a growing slice."""
        kind, axes = self.type_of(arguments[0])
        if kind == "snapshots":
            kind, axes = "snap", (LIST,)
        if axes == (LIST,) and len(arguments) > 1:
            size = self.value(arguments[1])
            if size.extent:
                axes = (size.extent,)
            elif isinstance(size.const, Fraction):
                axes = (FIXED,) if size.const else (LIST,)
            else:
                return self.refuse(node, "a slice of this length is not read")
        elif axes == (LIST, INSTANCE) and len(arguments) > 1:
            size = self.value(arguments[1])
            if not size.extent:
                return self.refuse(node, "a slice of this length is not read")
            axes = (size.extent, INSTANCE)
        if axes == (LIST,):
            return GoValue(f"slice_of({DTYPES[kind]})", kind, axes)
        if LIST in axes or kind not in DTYPES:
            return self.refuse(node, "this type is not read")
        sizes = {INSTANCE: "go.size", SCORER: "go.num_scorers", FIXED: text_of(arguments[-1])}
        shape = ", ".join(sizes[axis] for axis in axes)
        empty = "-1" if kind in ("id", "snap") else "0"
        is_map = arguments[0].type == "map_type"
        return GoValue(f"jnp.full(({shape},), {empty}, {DTYPES[kind]})", kind, axes, is_map=is_map)

    def has_loop(self, name: str) -> bool:
        """Return whether a function loops, appends, makes or draws: it cannot be called for all instances at once."""
        node = self.program.helpers.get(name)
        variable = self.find(name)
        if variable is not None and variable.kind == "function":
            node = self.closures[variable.code][0]
        acts = (".Intn", "append", "make")
        return node is not None and any(
            part.type == "for_statement"
            or (part.type == "call_expression" and text_of(field(part, "function")).endswith(acts))
            for part in walk(node)
        )

    def captures(self, name: str) -> set[str]:
        """Return the names that a closure mentions; none for a helper of the file."""
        variable = self.find(name)
        if variable is None or variable.kind != "function":
            return set()
        return {text_of(part) for part in names_in(self.closures[variable.code][0])}

    def call_append(self, node: Node, arguments: list[Node]) -> GoValue:
        """Translate `append(slice, value)` as a new slice."""
        old, value = self.value(arguments[0]), self.value(arguments[1])
        if len(arguments) != 2 or not old.is_list:
            return self.refuse(node, "this append is not read")
        if old.is_alias:
            return self.refuse(
                node, "an append to a part of another slice, which it may change, is not read"
            )
        value = typed(value, old.kind) if value.is_untyped else value
        if value.kind != old.kind or value.axes:
            return self.refuse(node, "a value of another type is not read")
        return GoValue(f"{old.code}.append({array(value)})", old.kind, (LIST,))

    def type_of(self, node: Node) -> tuple[str, tuple[str, ...]]:
        """Return the kind of a type's elements, and the axes by which the type is indexed."""
        text = text_of(node)
        if text in GO_TYPES:
            return GO_TYPES[text], ()
        if text == "string":
            return "id", ()
        if node.type == "pointer_type" and text.lstrip("*") in GO_TYPES:
            return GO_TYPES[text.lstrip("*")], ()
        if node.type == "slice_type":
            if text == "[]RoutingSnapshot":
                return "snapshots", (INSTANCE,)
            kind, axes = self.type_of(field(node, "element"))
            return kind, (LIST, *axes)
        if node.type == "array_type":
            kind, axes = self.type_of(field(node, "element"))
            return kind, (LIST, *axes)
        if node.type == "map_type" and text_of(field(node, "key")) == "string":
            kind, axes = self.type_of(field(node, "value"))
            return kind, (INSTANCE, *axes)
        self.program.refuse(node, "this type is not read")

    def _composite_literal(self, node: Node) -> GoValue:
        """Translate `[]T{…}`, and a map with classes as keys."""
        made, body = field(node, "type"), items(field(node, "body"))
        if made.type == "map_type" and body:
            return self._by_class(node, made, body)
        axes: tuple[str, ...] = (LIST,)
        if made.type == "array_type" and text_of(field(made, "length")) in ("...", str(len(body))):
            kind = self.type_of(field(made, "element"))[0]
        else:
            kind, axes = self.type_of(made)
        if kind == "snapshots":
            kind, axes = "snap", (LIST,)
        if not body and axes[:1] == (INSTANCE,):
            return self.call_make(node, [made])
        if axes != (LIST,) or kind not in DTYPES:
            return self.refuse(node, "this literal is not read")
        if any(element.type != "literal_element" for element in body):
            return self.refuse(node, "keys in this literal are not read")
        values = [self.value(items(element)[0]) for element in body]
        codes = [typed(value, kind).code if value.is_untyped else value.code for value in values]
        if any(value.kind != kind and not value.is_untyped for value in values):
            return self.refuse(node, "this literal is not read")
        return GoValue(f"slice_of({', '.join([DTYPES[kind], *codes])})", kind, axes)

    def _by_class(self, node: Node, made: Node, body: list[Node]) -> GoValue:
        kind, axes = self.type_of(field(made, "value"))
        by_class: dict[int, str] = {}
        for element in body:
            if element.type != "keyed_element" or axes or kind not in NUMBERS:
                return self.refuse(node, "this literal is not read")
            key, value = (items(part)[0] for part in items(element))
            code = self.as_class(self.value(key))
            if code.kind != "class" or not code.is_static:
                return self.refuse(key, "a key that is no class is not read")
            if int(code.code) >= 0:
                by_class[int(code.code)] = self.number(value, kind).code
        values = ", ".join(by_class.get(place, "0") for place in range(6))
        has = ", ".join(str(place in by_class) for place in range(6))
        return GoValue(
            f"jnp.stack([jnp.asarray(one, {DTYPES[kind]}) for one in ({values})])",
            kind, (CLASS,), has=f"jnp.asarray([{has}])",
        )  # fmt: skip
