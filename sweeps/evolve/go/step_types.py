"""Names, types and constants of a Go program that is translated statement by statement."""

from __future__ import annotations

import ast
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sweeps.evolve import running
from sweeps.evolve.go.source import (
    computed,
    field,
    items,
    names_of,
    number_in,
    results_of,
    text_of,
    walk,
)
from sweeps.evolve.go.writer import MATH, WHOLE_MATH, GoReader
from sweeps.evolve.stepping import basics, containers, library, operations, places, router, types

if TYPE_CHECKING:
    from tree_sitter import Node

    from sweeps.evolve.go.source import GoProgram

PLAIN = {
    "int": "WHOLE", "int64": "WHOLE", "float64": "FLOAT", "float32": "FLOAT32", "int32": "INT32", "rune": "INT32",
    "int16": "INT16", "int8": "INT8", "uint": "UINT64", "uint64": "UINT64", "uint32": "UINT32", "uint16": "UINT16",
    "uint8": "UINT8", "byte": "UINT8", "bool": "BOOL", "string": "TEXT", "error": "NIL", "any": "NIL",
    "strings.Builder": "WORDS", "bytes.Buffer": "WORDS", "RoutingSnapshot": "SNAPSHOT",
    "sim.RoutingSnapshot": "SNAPSHOT", "scorerFunc": "NIL",
}  # fmt: skip
_OURS = (
    "go", "params", "state", "context", "route", "routing_policy", "none_used", "partial", "range", "_", "lambda",
    "float",
)  # fmt: skip
_MODULES = {
    module.__name__: module
    for module in (basics, containers, library, operations, places, router, running, types)
}


@dataclass(frozen=True)
class FoldedConstant:
    """The value of a constant expression, exact, with the code of its type if the constant is typed."""

    value: Fraction | bool | str
    is_float: bool = False
    kind: str = ""

    @property
    def code(self) -> str:
        """Return the code of the constant; an untyped constant becomes a Python number."""
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
        """Return the code for a variable that takes the constant: an untyped number becomes a float64 or an int."""
        if isinstance(self.value, Fraction) and not self.kind:
            return replace(self, kind="FLOAT" if self.is_float else "WHOLE").code
        return self.code


@dataclass
class Variable:
    """The meaning of a Go name."""

    code: str
    kind: str = ""  # router, request, state, function or const, where it is one
    node: Node | None = None  # of a function, or of the closure that a variable has
    constant: FoldedConstant | None = None


class StepTypes(GoReader[Variable], ABC):
    """Resolve names, types and constants."""

    def __init__(self, program: GoProgram) -> None:
        names = {name for module in _MODULES.values() for name in vars(module)}
        super().__init__(program, {*_OURS, *(name for name in names if not name.startswith("__"))})
        self.root = program.root
        self.functions, self.methods = program.functions, program.methods
        self.router = program.router
        self.specs: dict[str, Node] = {
            text_of(field(spec, "name")): spec
            for group in program.of_type("type_declaration")
            for spec in items(group)
            if spec.type in ("type_spec", "type_alias")
        }
        self.types: dict[str, str] = {}  # codes of the types that are used, by name
        self.type_lines: list[str] = []
        self.struct_codes = {"EMPTY"}
        self.fields_of: dict[str, dict[str, Node]] = {"EMPTY": {}}
        self.numbers = {code for code in PLAIN.values() if code[0] in "WFIU"}
        self.declared: set[str] = set()
        self.assigned: set[str] = set()
        self.unmasked: set[str] = set()
        self.package_names: set[str] = set()
        self.codes_of_methods: dict[int, str] = {}
        self.kept: dict[str, str] = {}  # what the router's struct keeps: what it begins with
        self.literal: Node | None = None
        self.iota = 0
        self.draws = False
        for node in walk(self.root):
            if node.type == "type_parameter_declaration":
                self.types |= dict.fromkeys(names_of(node), "NIL")
        for group in program.of_type("const_declaration"):
            self.scopes[0] |= self.constants_of(group)

    # --- names ----------------------------------------------------------------------------------------

    def kind_at(self, node: Node) -> str:
        """Return the kind of the variable that an expression names; empty for any other expression."""
        variable = self.find(text_of(node)) if node.type == "identifier" else None
        return variable.kind if variable is not None else ""

    def kind_of(self, kind: Node | None) -> str:
        """Return the kind of variable that a parameter of this type is."""
        text = text_of(kind).lstrip("*").removeprefix("sim.") if kind is not None else ""
        named = {"Request": "request", "RouterState": "state", self.router: "router"}
        return named.get(text, "map" if text.startswith("map[") else "")

    def kind_of_code(self, code: str) -> str:
        """Return the kind of a variable whose value has this code."""
        if code.startswith("Container('map'"):
            return "map"
        return "snapshots" if code == "go.snapshots" else ""

    def package_variables(self) -> Iterator[Node]:
        """Yield the declarations of package-level variables."""
        for group in self.program.of_type("var_declaration"):
            yield from (spec for spec in walk(group) if spec.type == "var_spec")

    def method_code(self, method: Node, name: str) -> str:
        """Return the name of the Python function for a method of the router, of snapshots or of a named number."""
        if method.id not in self.codes_of_methods:
            self.codes_of_methods[method.id] = self.fresh(name)
        return self.codes_of_methods[method.id]

    # --- parameters and results -------------------------------------------------------------------------

    def parameters(self, function: Node) -> tuple[list[str], list[Node | None]]:
        """Return a function's parameter names and type nodes; the type of a variadic parameter is None."""
        names: list[str] = []
        kinds: list[Node | None] = []
        for declared in items(field(function, "parameters")):
            declared_names = [
                text_of(part) for part in declared.children_by_field_name("name")
            ] or ["_"]
            names += declared_names
            is_variadic = declared.type == "variadic_parameter_declaration"
            kinds += [None if is_variadic else field(declared, "type")] * len(declared_names)
        return names, kinds

    def variadic_of(self, function: Node) -> Node | None:
        """Return the element type of a function's variadic parameter; None if it has none."""
        if function.type not in ("func_literal", "function_declaration", "method_declaration"):
            return None
        last = items(field(function, "parameters"))[-1:]
        is_it = bool(last) and last[0].type == "variadic_parameter_declaration"
        return field(last[0], "type") if is_it else None

    def result_types(self, function: Node) -> list[str]:
        """Return the codes of a function's result types."""
        return [self.type_code(kind) for _, kind in results_of(function)]

    # --- types ------------------------------------------------------------------------------------------

    def plain_type(self, name: str) -> str:
        """Return the code of a named type; empty if there is no such type."""
        if name in PLAIN:
            return PLAIN[name]
        code = self.types.get(name)
        if code is None and name in self.specs and name != self.router:
            code = self._declared(name, self.specs[name])
        return code or ""

    def local_type(self, spec: Node) -> None:
        """Declare a type that a function declares."""
        self._declared(text_of(field(spec, "name")), spec)

    def _declared(self, name: str, spec: Node) -> str:
        kind = field(spec, "type")
        if kind.type != "struct_type":
            self.types[name] = self.type_code(kind)
            return self.types[name]
        code = self.fresh(name)
        self.types[name] = code
        kinds: dict[str, Node] = {}
        for node in walk(kind):
            if node.type == "field_declaration":
                inner = field(node, "type")
                parts = node.children_by_field_name("name")
                kinds |= {text_of(part): inner for part in parts}
        self.fields_of[code] = kinds
        self.struct_codes.add(code)
        pairs = ", ".join(f"{field_!r}: {self.type_code(of)}" for field_, of in kinds.items())
        self.type_lines.append(f"{code} = StructKind({name!r}, {{{pairs}}})")
        return code

    def type_code(self, node: Node, size: int = 0) -> str:
        """Return the code of a type; `size` is the length of an array declared as `[...]T`."""
        text = text_of(node)
        if node.type in ("type_identifier", "qualified_type"):
            return self.plain_type(text) or self.program.refuse(node, "this type is not read")
        if node.type == "parenthesized_type":
            return self.type_code(items(node)[0])
        if node.type == "slice_type":
            return f"Container('slice', {self.type_code(field(node, 'element'))})"
        if node.type == "map_type":
            return f"Container('map', {self.type_code(field(node, 'value'))})"
        if node.type == "pointer_type":
            return self._pointer(node)
        if node.type == "implicit_length_array_type":
            return f"Container('array', {self.type_code(field(node, 'element'))}, {size})"
        if node.type == "array_type":
            of, length = self.type_code(field(node, "element")), self.size_of(field(node, "length"))
            return f"Container('array', {of}, {length})"
        if node.type in ("function_type", "interface_type"):
            return "NIL"
        if node.type == "struct_type" and not any(
            part.type == "field_declaration" for part in walk(node)
        ):
            return "EMPTY"
        return self.program.refuse(node, "this type is not read")

    @abstractmethod
    def size_of(self, node: Node) -> str:
        """Return the code of an array type's length; implemented by the class that translates expressions."""

    def _pointer(self, node: Node) -> str:
        inner = text_of(items(node)[0])
        if inner.removeprefix("sim.") in ("Request", "RouterState", self.router, "rand.Rand"):
            return "NIL"
        code = self.type_code(items(node)[0])
        if code not in self.struct_codes and code != "SNAPSHOT":
            self.program.refuse(node, "a pointer to this is not read")
        return f"Container('pointer', {code})"

    def imports(self, body: str) -> str:
        """Return the import lines that the code needs."""
        words = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        lines = ["from functools import partial\n"] if "partial" in words else []
        lines.append("from blis_jax.policies import routing_policy")
        if self.draws and not self.kept:
            lines.append("from blis_jax.policies.routing.pickers import none_used")
        seen: set[str] = set()
        for name, module in _MODULES.items():
            used = sorted(word for word in words - seen if getattr(module, word, None) is not None
                         and getattr(getattr(module, word), "__module__", name) in (name, "builtins"))  # fmt: skip
            seen |= {*used}
            if used:
                lines.append(f"from {name} import (\n    " + ",\n    ".join(used) + ",\n)")
        return "\n".join(lines)

    # --- constants, which are exact until a variable takes them ------------------------------------------

    def fold(self, node: Node) -> FoldedConstant | None:
        """Return the value of a constant expression; None if the expression is not constant."""
        method = getattr(self, f"_fold_{node.type}", None)
        return method(node) if method else None

    def _fold_int_literal(self, node: Node) -> FoldedConstant:
        return FoldedConstant(number_in(node))

    def _fold_float_literal(self, node: Node) -> FoldedConstant:
        return FoldedConstant(number_in(node), is_float=True)

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
        variable = self.find(text_of(node))
        if variable is None and text_of(node) == "iota":
            return FoldedConstant(Fraction(self.iota))
        return variable.constant if variable is not None else None

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
        function, arguments = field(node, "function"), items(field(node, "arguments"))
        if (
            function.type != "identifier"
            or len(arguments) != 1
            or self.find(text_of(function)) is not None
        ):
            return None
        code, of = self.plain_type(text_of(function)), self.fold(arguments[0])
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
        assert isinstance(first.value, Fraction) and isinstance(second.value, Fraction)
        is_shift = sign in ("<<", ">>")
        kind = first.kind or ("" if is_shift else second.kind)
        is_float = first.is_float or second.is_float or kind.startswith("FLOAT")
        made = computed(sign, first.value, second.value, is_float)
        if made is None or isinstance(made, bool):
            return None if made is None else FoldedConstant(made)
        return FoldedConstant(made, is_float and not is_shift, kind)

    def constants_of(self, group: Node) -> dict[str, Variable]:
        """Return the constants of a declaration, with iota counted; constants that cannot be computed are left out."""
        constants: dict[str, Variable] = {}
        repeated: tuple[Node | None, Node | None] = (None, None)
        self.scopes.append(constants)
        for number, spec in enumerate(part for part in walk(group) if part.type == "const_spec"):
            if spec.child_by_field_name("value") is not None:
                repeated = field(spec, "value"), spec.child_by_field_name("type")
            values, kind = repeated
            names = [name for name in spec.children_by_field_name("name") if name.is_named]
            self.iota = number
            for name, node in zip(names, items(values) if values is not None else [], strict=False):
                constant = self.fold(node)
                if constant is not None:
                    wanted = self.type_code(kind) if kind is not None else ""
                    constant = (
                        replace(constant, kind=wanted) if wanted in self.numbers else constant
                    )
                    constants[text_of(name)] = Variable("", "const", constant=constant)
        self.scopes.pop()
        return constants
