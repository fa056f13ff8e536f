"""Names and types of a Go program that is read statement by statement."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeps.evolve import running
from sweeps.evolve.go.nodes import field, items, text_of, walk
from sweeps.evolve.go.source import BesideGo
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


@dataclass
class Variable:
    """What a name of Go stands for."""

    code: str
    kind: str = ""  # router, request, state, function or const, where it is one
    node: Node | None = None  # of a function, or of the closure that a variable has
    constant: Any = None


class StepTypes(BesideGo, ABC):
    """Names and types."""

    def __init__(self, program: GoProgram) -> None:
        self.program = program
        root = program.route
        while root.parent is not None:
            root = root.parent
        self.root = root
        names = {name for module in _MODULES.values() for name in vars(module)}
        self.taken = {*_OURS, *(name for name in names if not name.startswith("__"))}
        self.functions = {
            text_of(field(one, "name")): one
            for one in root.named_children
            if one.type == "function_declaration"
        }
        self.methods = {
            (self._of(one), text_of(field(one, "name"))): one
            for one in root.named_children if one.type == "method_declaration"
        }  # fmt: skip
        self.router = self._of(program.route)
        self.specs: dict[str, Node] = {
            text_of(field(spec, "name")): spec
            for one in root.named_children if one.type == "type_declaration"
            for spec in items(one) if spec.type in ("type_spec", "type_alias")
        }  # fmt: skip
        self.types: dict[str, str] = {}  # codes of the types that are used, by name
        self.type_lines: list[str] = []
        self.struct_codes = {"EMPTY"}
        self.fields_of: dict[str, dict[str, Node]] = {"EMPTY": {}}
        self.numbers = {code for code in PLAIN.values() if code[0] in "WFIU"}
        self.scopes: list[dict[str, Variable]] = [{}]
        self.declared: set[str] = set()
        self.assigned: set[str] = set()
        self.unmasked: set[str] = set()
        self.package_names: set[str] = set()
        self.codes_of_methods: dict[int, str] = {}
        self.kept: dict[str, str] = {}  # what the router's struct keeps: what it begins with
        self.literal: Node | None = None
        self.iota = 0
        self.draws = False
        for one in walk(root):
            if one.type == "type_parameter_declaration":
                self.types |= {text_of(name): "NIL" for name in one.children_by_field_name("name")}
        for one in root.named_children:
            if one.type == "const_declaration":
                self.scopes[0] |= self.constants_of(one)

    @abstractmethod
    def constants_of(self, group: Node) -> dict[str, Variable]:
        """Return the constants of a declaration; expressions know how."""

    def _of(self, method: Node) -> str:
        kind = text_of(field(items(field(method, "receiver"))[0], "type"))
        return kind.lstrip("*")

    # --- names ----------------------------------------------------------------------------------------

    def find(self, name: str) -> Variable | None:
        """Return what a name stands for, the innermost one."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def kind_at(self, node: Node) -> str:
        """Return what kind of variable an expression is; empty if it is none of the router's."""
        found = self.find(text_of(node)) if node.type == "identifier" else None
        return found.kind if found is not None else ""

    def kind_of(self, kind: Node | None) -> str:
        """Return what kind of variable a parameter of a type is."""
        text = text_of(kind).lstrip("*").removeprefix("sim.") if kind is not None else ""
        named = {"Request": "request", "RouterState": "state", self.router: "router"}
        return named.get(text, "map" if text.startswith("map[") else "")

    def kind_of_code(self, code: str) -> str:
        """Return what kind of variable one with this value is."""
        if code.startswith("Container('map'"):
            return "map"
        return "snapshots" if code == "go.snapshots" else ""

    def above(self, node: Node) -> list[Node]:
        """Return the nodes around a node, up to the function of the file."""
        found, one = [], node.parent
        while one is not None:
            found.append(one)
            one = one.parent
        return found

    def owner(self, node: Node) -> Node:
        """Return the function that a node belongs to."""
        kinds = ("func_literal", "function_declaration", "method_declaration")
        return next(one for one in self.above(node) if one.type in kinds)

    def package_variables(self) -> Iterator[Node]:
        """Yield the variables of the package."""
        for one in self.root.named_children:
            if one.type == "var_declaration":
                yield from (spec for spec in walk(one) if spec.type == "var_spec")

    def method_code(self, method: Node, name: str) -> str:
        """Return the function that a method of the router or of snapshots is."""
        if method.id not in self.codes_of_methods:
            self.codes_of_methods[method.id] = self.fresh(name)
        return self.codes_of_methods[method.id]

    # --- parameters and results -------------------------------------------------------------------------

    def parameters(self, function: Node) -> tuple[list[str], list[Node | None]]:
        """Return the names and types of parameters; a variadic one has none."""
        names: list[str] = []
        kinds: list[Node | None] = []
        for one in items(field(function, "parameters")):
            own = [text_of(part) for part in one.children_by_field_name("name")] or ["_"]
            names += own
            is_variadic = one.type == "variadic_parameter_declaration"
            kinds += [None if is_variadic else field(one, "type")] * len(own)
        return names, kinds

    def variadic_of(self, function: Node) -> Node | None:
        """Return the type of a variadic parameter's elements, if there is one."""
        if function.type not in ("func_literal", "function_declaration", "method_declaration"):
            return None
        last = items(field(function, "parameters"))[-1:]
        is_it = bool(last) and last[0].type == "variadic_parameter_declaration"
        return field(last[0], "type") if is_it else None

    def result_types(self, function: Node) -> list[str]:
        """Return the codes of the types that a function returns."""
        declared = function.child_by_field_name("result")
        if declared is None:
            return []
        parts = items(declared) if declared.type == "parameter_list" else [declared]
        return [
            self.type_code(part.child_by_field_name("type") or part if part.type == "parameter_declaration" else part)
            for part in parts
            for _ in (part.children_by_field_name("name") if part.type == "parameter_declaration" else ()) or (part,)
        ]  # fmt: skip

    def named_results(self, function: Node) -> list[tuple[Node, Node]]:
        """Return the names of a function's results, with their types."""
        declared = function.child_by_field_name("result")
        if declared is None or declared.type != "parameter_list":
            return []
        return [
            (name, field(part, "type"))
            for part in items(declared)
            for name in part.children_by_field_name("name")
        ]

    # --- types ------------------------------------------------------------------------------------------

    def plain_type(self, name: str) -> str:
        """Return the code of a type with a name, empty if there is none."""
        if name in PLAIN:
            return PLAIN[name]
        found = self.types.get(name)
        if found is None and name in self.specs and name != self.router:
            found = self._declared(name, self.specs[name])
        return found or ""

    def local_type(self, spec: Node) -> None:
        """Declare a type of a function."""
        self._declared(text_of(field(spec, "name")), spec)

    def _declared(self, name: str, spec: Node) -> str:
        kind = field(spec, "type")
        if kind.type != "struct_type":
            self.types[name] = self.type_code(kind)
            return self.types[name]
        code = self.fresh(name)
        self.types[name] = code
        kinds: dict[str, Node] = {}
        for one in walk(kind):
            if one.type == "field_declaration":
                inner = field(one, "type")
                parts = one.children_by_field_name("name")
                kinds |= {text_of(part): inner for part in parts}
        self.fields_of[code] = kinds
        self.struct_codes.add(code)
        pairs = ", ".join(f"{field_!r}: {self.type_code(of)}" for field_, of in kinds.items())
        self.type_lines.append(f"{code} = StructKind({name!r}, {{{pairs}}})")
        return code

    def type_code(self, node: Node, size: int = 0) -> str:
        """Return the code of a type; `size` is that of an array that counts its elements."""
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
            one.type == "field_declaration" for one in walk(node)
        ):
            return "EMPTY"
        return self.program.refuse(node, "this type is not read")

    @abstractmethod
    def size_of(self, node: Node) -> str:
        """Return the code of an array's length; expressions know how."""

    def _pointer(self, node: Node) -> str:
        inner = text_of(items(node)[0])
        if inner.removeprefix("sim.") in ("Request", "RouterState", self.router, "rand.Rand"):
            return "NIL"
        code = self.type_code(items(node)[0])
        if code not in self.struct_codes and code != "SNAPSHOT":
            self.program.refuse(node, "a pointer to this is not read")
        return f"Container('pointer', {code})"

    def imports(self, body: str) -> str:
        """Return the imports that the code needs."""
        words = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        lines = ["from functools import partial\n"] if "partial" in words else []
        lines.append("from blis_jax.policies import routing_policy")
        if self.draws and not self.kept:
            lines.append("from blis_jax.policies.routing.pickers import none_used")
        seen: set[str] = set()
        for name, module in _MODULES.items():
            own = sorted(one for one in words - seen if getattr(module, one, None) is not None
                         and getattr(getattr(module, one), "__module__", name) in (name, "builtins"))  # fmt: skip
            seen |= {*own}
            if own:
                lines.append(f"from {name} import (\n    " + ",\n    ".join(own) + ",\n)")
        return "\n".join(lines)
