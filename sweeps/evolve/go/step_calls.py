"""Translate Go's literals and calls to calls of the package `stepping`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.evolve.go.source import above, field, items, text_of
from sweeps.evolve.go.step_expressions import StepExpressions

if TYPE_CHECKING:
    from tree_sitter import Node


_TOLD = (
    "fmt.Errorf", "errors.New", "strconv.Itoa", "strconv.FormatFloat", "strconv.FormatInt", "strings.Join",
    "strings.Repeat",
)  # fmt: skip


class StepCalls(StepExpressions):
    """Translate literals and calls."""

    # --- literals -----------------------------------------------------------------------------------------

    def _composite_literal(self, node: Node) -> str:
        return self.literal_of(node, field(node, "type"), field(node, "body"))

    def literal_of(self, node: Node, kind: Node, body: Node) -> str:
        """Return the code of a literal of the type `kind`."""
        if kind.type == "pointer_type":
            return f"pointer_to({self.literal_of(node, items(kind)[0], body)})"
        code, elements = self.type_code(kind, len(items(body))), items(body)
        if code in self.struct_codes:
            return self._struct_literal(code, elements)
        if kind.type not in ("slice_type", "array_type", "map_type", "implicit_length_array_type"):
            return self.program.refuse(node, "this literal is not read")
        inner = field(kind, "value" if kind.type == "map_type" else "element")
        values, keys = [], []
        for element in elements:
            if element.type == "keyed_element":
                key, value = (items(part)[0] for part in items(element))
                if kind.type != "map_type":
                    return self.program.refuse(element, "keys in this literal are not read")
                keys.append(self.value(key))
            else:
                value = items(element)[0]
            values.append(
                self.literal_of(value, inner, value)
                if value.type == "literal_value"
                else self.value(value)
            )
        ends = [f"keys=({', '.join(keys)},)"] if keys else []
        return f"{code}.filled({', '.join([*values, *ends])})"

    def _struct_literal(self, code: str, elements: list[Node]) -> str:
        kinds, parts = self.fields_of[code], []
        for place, element in enumerate(elements):
            if element.type == "keyed_element":
                key, value = (items(part)[0] for part in items(element))
                name = text_of(key)
            else:
                name, value = list(kinds)[min(place, len(kinds) - 1)], items(element)[0]
            if name not in kinds:
                self.program.refuse(element, f"{code} has no such field")
            made = (
                self.literal_of(value, kinds[name], value)
                if value.type == "literal_value"
                else self.value(value)
            )
            parts.append(f"{name!r}: {made}")
        return f"{code}.made(**{{{', '.join(parts)}}})" if parts else f"{code}.zero()"

    def size_of(self, node: Node) -> str:
        """Return the code of an array type's length."""
        constant = self.fold(node)
        return (
            constant.code
            if constant is not None
            else self.program.refuse(node, "an array of this length is not read")
        )

    # --- calls --------------------------------------------------------------------------------------------

    def _type_conversion_expression(self, node: Node) -> str:
        return f"{self.type_code(field(node, 'type'))}({self.value(field(node, 'operand'))})"

    def _call_expression(self, node: Node) -> str:
        function, arguments = field(node, "function"), items(field(node, "arguments"))
        while function.type in ("parenthesized_expression", "type_instantiation_expression"):
            function = items(function)[0]
        if function.type == "selector_expression":
            return self._method(node, function, arguments)
        name = text_of(function)
        variable = self.find(name) if function.type == "identifier" else None
        if function.type == "identifier" and variable is None:
            builtin = getattr(self, f"call_{name}", None)
            if builtin is not None:
                return builtin(node, arguments)
            code = self.plain_type(name) or self.types.get(name, "")
            if code:
                return f"{code}({self.value(arguments[0])})"
        if variable is not None and variable.kind == "function":
            assert variable.node is not None
            self._check_depth(node, variable.node)
            return (
                f"{variable.code}({', '.join(['go', *self.arguments(variable.node, arguments)])})"
            )
        callee = self.value(function)
        literal = (
            variable.node
            if variable is not None
            else function
            if function.type == "func_literal"
            else None
        )
        return f"{callee}({', '.join(self.arguments(literal, arguments))})"

    def _check_depth(self, node: Node, function: Node) -> None:
        if function in above(node):
            self.program.refuse(node, "a function that calls itself is not read")

    def arguments(self, function: Node | None, values: list[Node]) -> list[str]:
        """Return the codes of arguments; the arguments of a variadic parameter become one slice."""
        codes = [
            self.value(items(value)[0] if value.type == "variadic_argument" else value)
            for value in values
        ]
        last = self.variadic_of(function) if function is not None else None
        if last is None or (values and values[-1].type == "variadic_argument"):
            return codes
        fixed = len(self.parameters(function)[0]) - 1  # type: ignore[arg-type]
        return [
            *codes[:fixed],
            f"Container('slice', {self.type_code(last)}).filled({', '.join(codes[fixed:])})",
        ]

    def _method(self, node: Node, function: Node, arguments: list[Node]) -> str:
        owner, name = field(function, "operand"), text_of(field(function, "field"))
        package = self.package_of(owner)
        if package:
            return self._of_package(node, package, name, arguments)
        if self.kind_at(owner) == "router" and (self.router, name) in self.methods:
            root = self.methods[self.router, name]
            self._check_depth(node, root)
            return f"{self.method_code(root, name)}({', '.join(['go', *self.arguments(root, arguments)])})"
        if ("RoutingSnapshot", name) in self.methods and name != "EffectiveLoad":
            root = self.methods["RoutingSnapshot", name]
            codes = ["go", self.value(owner), *self.arguments(root, arguments)]
            return f"{self.method_code(root, name)}({', '.join(codes)})"
        roots = [root for (_, method), root in self.methods.items() if method == name]
        if any(
            self.types.get(of, "EMPTY") not in self.struct_codes
            for of, method in self.methods
            if method == name
        ):
            if len(roots) > 1:
                self.program.refuse(
                    node, "a method that several types have is read of structs alone"
                )
            codes = ["go", self.value(owner), *self.arguments(roots[0], arguments)]
            return f"{self.method_code(roots[0], name)}({', '.join(codes)})"
        codes = self.arguments(roots[0] if len(roots) == 1 else None, arguments)
        return f"go.call({', '.join([self.value(owner), repr(name), *codes])})"

    def _of_package(self, node: Node, package: str, name: str, arguments: list[Node]) -> str:
        codes = [
            self.value(items(argument)[0] if argument.type == "variadic_argument" else argument)
            for argument in arguments
        ]
        text = f"{package}.{name}"
        if package in ("math", "bits"):
            return f"of_math({', '.join([repr(name), *codes])})"
        if text in _TOLD or text.startswith("fmt.Sprint"):
            return "told()"
        if package == "strings":
            return f"of_strings({', '.join([repr(name), *codes])})"
        if (
            text in ("sort.Ints", "sort.Float64s", "sort.Strings", "slices.Sort", "slices.Reverse")
            and len(codes) == 1
        ):
            return f"put_in_order(go, {text!r}, {codes[0]})"
        if text in ("sort.Slice", "sort.SliceStable", "slices.SortFunc", "slices.SortStableFunc"):
            return f"put_in_order(go, {text!r}, {codes[0]}, {codes[1]})"
        if package == "slices":
            return f"of_slices({', '.join([repr(name), *codes])})"
        what = "this call is not read" if package == "sort" else f"package {package} is not read"
        return self.program.refuse(node, what)

    def call_len(self, node: Node, arguments: list[Node]) -> str:
        """Translate `len(…)`."""
        return f"length({self.value(arguments[0])})"

    def call_append(self, node: Node, arguments: list[Node]) -> str:
        """Translate `append(…)`."""
        old = self.value(arguments[0])
        if len(arguments) == 2 and arguments[1].type == "variadic_argument":
            return f"append_all(go, {old}, {self.value(items(arguments[1])[0])})"
        return f"go.append({', '.join([old, *map(self.value, arguments[1:])])})"

    def call_make(self, node: Node, arguments: list[Node]) -> str:
        """Translate `make(…)`."""
        size = (
            f"{self.value(arguments[1])}"
            if len(arguments) > 1 and arguments[0].type != "map_type"
            else ""
        )
        return f"{self.type_code(arguments[0])}.made({size})"

    def call_new(self, node: Node, arguments: list[Node]) -> str:
        """Translate `new(…)`."""
        return f"pointer_to({self.type_code(arguments[0])}.zero())"

    def call_delete(self, node: Node, arguments: list[Node]) -> str:
        """Translate `delete(…)`."""
        return f"go.delete({self.value(arguments[0])}, {self.value(arguments[1])})"

    def call_copy(self, node: Node, arguments: list[Node]) -> str:
        """Translate `copy(…)`."""
        return f"go.copy({self.value(arguments[0])}, {self.value(arguments[1])})"

    def call_max(self, node: Node, arguments: list[Node]) -> str:
        """Translate `max(…)` and `min(…)`."""
        name = text_of(field(node, "function"))
        return f"largest({', '.join([repr(name), *map(self.value, arguments)])})"

    call_min = call_max
