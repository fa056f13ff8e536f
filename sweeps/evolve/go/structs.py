"""Replace Go's structs by variables: `best.score` becomes `best_score`, a slice of structs one slice for each field.

A struct of numbers, bools, IDs and snapshots is a value in Go: an assignment copies it. So each field can be a
variable, and the rest of the reader need not handle structs. Line numbers do not change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sweeps.evolve.go.source import (
    GoProgram,
    field,
    items,
    names_of,
    program_of,
    text_of,
    tree_of,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

ZEROS = {"int": "0", "int64": "0", "int32": "0", "float64": "0.0", "bool": "false", "string": '""'}
SNAPSHOT = "RoutingSnapshot"


@dataclass(frozen=True)
class Held:
    """The struct type that a variable, slice or map holds: its name, and its fields in order with their types."""

    name: str
    fields: dict[str, str]
    container: str = ""  # what stands before the element's type, `[]` or `map[string]`

    @property
    def element(self) -> Held:
        """Return the struct that one element of the slice or map holds."""
        return replace(self, container="")

    @property
    def kinds(self) -> list[str]:
        """Return the types of the variables that replace the struct, one for each field."""
        return [f"{self.container}{kind}" for kind in self.fields.values()]


def without_structs(program: GoProgram) -> GoProgram:
    """Return the program with structs that are used as values replaced by their fields.

    Raises:
        ConfigError: a struct is used in any other way; the sentence says how and where.
    """
    used = {text_of(node) for node in walk(program.root) if node.type == "type_identifier"}
    types = {name: kind for name, kind in _types(program).items() if name in used}
    if not types:
        return program
    rewriting = _Rewriting(program, types)
    for name, function in program.functions.items():
        result = function.child_by_field_name("result")
        held = rewriting.type_of(result) if result is not None else None
        if held is not None:
            rewriting.returned[name] = held
    root = tree_of(rewriting.text(program.root).encode())
    made = program_of(program.name, root, program.text, program.first_line)
    return replace(made, notes=program.notes)


def _types(program: GoProgram) -> dict[str, Held]:
    """Return the declared structs with plain fields only; structs with methods are left out."""
    has_methods = {owner for owner, _ in program.methods}
    structs = {}
    for node in walk(program.root):
        if node.type != "type_spec" or field(node, "type").type != "struct_type":
            continue
        name = text_of(field(node, "name"))
        fields = {
            name: text_of(field(part, "type"))
            for part in walk(field(node, "type"))
            if part.type == "field_declaration"
            for name in names_of(part)
        }
        is_plain = fields and all(kind in ZEROS or kind == SNAPSHOT for kind in fields.values())
        if is_plain and name != SNAPSHOT and name not in has_methods:
            structs[name] = Held(name, fields)
    return structs


class _Rewriting:
    """Rewrite a tree as text; a name holds the same struct type throughout a function."""

    def __init__(self, program: GoProgram, types: dict[str, Held]) -> None:
        self.source, self.refuse, self.types = program.text, program.refuse, types
        self.held: dict[str, Held] = {}
        self.returned: dict[str, Held] = {}  # by functions of the file
        names = set(re.findall(r"\w+", program.text.decode()))
        self.mark = "_"
        fields = {name for kind in types.values() for name in kind.fields}
        while any(f"{name}{self.mark}{two}" in names for name in names for two in fields):
            self.mark += "_"

    # --- what is held ---------------------------------------------------------------------------------

    def type_of(self, node: Node) -> Held | None:
        """Return the struct that a type node stands for, alone or as element; None if there is none."""
        kind = text_of(node).replace(" ", "")
        match = re.fullmatch(r"(\[\]|map\[string\]|\[\w*\])?(\*?)(\w+)", kind)
        if match is None or match[3] not in self.types:
            return None
        if match[2]:
            self.refuse(node, "a pointer to a struct is not read; use the struct itself")
        return replace(self.types[match[3]], container=match[1] or "")

    def holds(self, node: Node) -> Held | None:
        """Return the struct that an expression holds; None if it holds none."""
        if node.type == "identifier":
            return self.held.get(text_of(node))
        if node.type in ("parenthesized_expression", "slice_expression"):
            return self.holds(items(node)[0])
        if node.type == "composite_literal":
            return self.type_of(field(node, "type"))
        if node.type == "index_expression":
            owner = self.holds(field(node, "operand"))
            return owner.element if owner is not None and owner.container else None
        if node.type == "call_expression":
            name, arguments = text_of(field(node, "function")), items(field(node, "arguments"))
            if name in self.returned:
                return self.returned[name]
            if name == "append":
                return self.holds(arguments[0])
            if name == "make":
                return self.type_of(arguments[0])
        if node.type == "unary_expression" and self.holds(field(node, "operand")):
            self.refuse(node, "a pointer to a struct is not read; use the struct itself")
        return None

    def names(self, name: str, held: Held) -> list[str]:
        """Return the names of the variables that replace a name."""
        return [f"{name}{self.mark}{part}" for part in held.fields]

    def parts(self, node: Node, held: Held) -> list[str]:
        """Return an expression for each field of a node's struct."""
        if node.type == "identifier":
            return self.names(text_of(node), held)
        if node.type == "parenthesized_expression":
            return self.parts(items(node)[0], held)
        if node.type == "index_expression":
            owner = self.holds(field(node, "operand"))
            assert owner is not None
            index = self.text(field(node, "index"))
            return [f"{part}[{index}]" for part in self.parts(field(node, "operand"), owner)]
        if node.type == "composite_literal":
            return self.literal(field(node, "body"), held)
        if node.type == "slice_expression":
            rest = self.source[field(node, "operand").end_byte : node.end_byte].decode()
            return [f"{part}{rest}" for part in self.parts(field(node, "operand"), held)]
        if self.is_call(node):
            self.refuse(node, "give what this function returns a name of its own")
        name, arguments = text_of(field(node, "function")), items(field(node, "arguments"))
        if name == "make":
            sizes = "".join(f", {self.text(size)}" for size in arguments[1:])
            return [f"make({kind}{sizes})" for kind in held.kinds]
        if len(arguments) != 2:
            self.refuse(node, "an append of several structs is not read")
        old = self.parts(arguments[0], held)
        new = self.parts(arguments[1], held.element)
        return [f"append({part}, {value})" for part, value in zip(old, new, strict=True)]

    def literal(self, body: Node, held: Held) -> list[str]:
        """Return the expressions of the fields of `X{…}`, or of all elements of `[]X{…}`."""
        elements = items(body)
        if held.container:
            if held.container.startswith("map") and elements:
                self.refuse(body, "a literal map of structs is not read")
            values = [items(element)[0] for element in elements]  # with their type, or without
            bodies = [value.child_by_field_name("body") or value for value in values]
            rows = [self.literal(inner, held.element) for inner in bodies]
            columns = zip(*rows, strict=True) if rows else [() for _ in held.fields]
            pairs = zip(held.kinds, columns, strict=True)
            return [f"{kind}{{{', '.join(column)}}}" for kind, column in pairs]
        by_name = dict.fromkeys(held.fields, "")
        for place, element in enumerate(elements):
            if element.type == "keyed_element":
                key, value = (items(part)[0] for part in items(element))
                name = text_of(key)
            elif len(elements) == len(by_name):
                name, value = list(by_name)[place], items(element)[0]
            else:
                self.refuse(element, "this literal is not read")
            if name not in by_name:
                self.refuse(element, f"{held.name} has no such field")
            by_name[name] = self.text(value)
        for name, kind in held.fields.items():
            if not by_name[name] and kind == SNAPSHOT:
                self.refuse(body, f"a struct without its {name} is not read")
            by_name[name] = by_name[name] or ZEROS[kind]
        return list(by_name.values())

    def is_call(self, node: Node) -> bool:
        """Return whether a node calls a function of the file that returns a struct."""
        return node.type == "call_expression" and text_of(field(node, "function")) in self.returned

    # --- text -----------------------------------------------------------------------------------------

    def text(self, node: Node) -> str:
        """Return the text of a node with its structs replaced, on the same number of lines."""
        method = getattr(self, f"_{node.type}", None)
        made = method(node) if method else None
        if made is None:
            made, at = "", node.start_byte
            for child in node.children:
                made += self.source[at : child.start_byte].decode() + self.text(child)
                at = child.end_byte
            made += self.source[at : node.end_byte].decode()
        missing = text_of(node).count("\n") - made.count("\n")
        return made + "\n" * missing if missing > 0 else made

    def _type_declaration(self, node: Node) -> str | None:
        specs = [spec for spec in items(node) if spec.type == "type_spec"]
        return "" if all(text_of(field(spec, "name")) in self.types for spec in specs) else None

    def _func_literal(self, node: Node) -> None:
        if self._returns_struct(node):
            self.refuse(node, "a closure that returns a struct is not read; write it as a function")

    def _returns_struct(self, node: Node) -> bool:
        result = node.child_by_field_name("result")
        return result is not None and any(text_of(part) in self.types for part in walk(result))

    def _function_declaration(self, node: Node) -> str | None:
        self.held = {}
        held = self.returned.get(text_of(field(node, "name")))
        if held is None:
            if self._returns_struct(node):
                self.refuse(node, "of several results none may be a struct here")
            return None
        parameters, body = field(node, "parameters"), field(node, "body")
        head = f"func {text_of(field(node, 'name'))}{self.text(parameters)}"
        return f"{head} ({', '.join(held.kinds)}) {self.text(body)}"

    def _method_declaration(self, node: Node) -> None:
        self.held = {}

    def _return_statement(self, node: Node) -> str | None:
        results = items(node.named_children[0]) if node.named_children else []
        held = self.holds(results[0]) if len(results) == 1 else None
        return None if held is None else f"return {', '.join(self.parts(results[0], held))}"

    def _parameter_declaration(self, node: Node) -> str | None:
        held = self.type_of(field(node, "type"))
        if held is None:
            return None
        names = names_of(node)
        self.held |= dict.fromkeys(names, held)
        return ", ".join(
            f"{part} {kind}"
            for name in names
            for part, kind in zip(self.names(name, held), held.kinds, strict=True)
        )

    def _short_var_declaration(self, node: Node) -> str | None:
        left, right = items(field(node, "left")), items(field(node, "right"))
        held = [self.holds(value) for value in right]
        if len(left) != len(right):
            if any(held):
                self.refuse(node, "a struct with whether it is there is not read")
            return None
        for target, what in zip(left, held, strict=True):
            self._hold(target, text_of(target), what)
        return self._pairs(node, left, right, ":=") if any(held) else None

    def _hold(self, node: Node, name: str, held: Held | None) -> None:
        if name == "_":
            return
        if self.held.get(name, held) != held:
            self.refuse(node, f"{name} stands for a struct and for something else")
        if held is not None:
            self.held[name] = held

    def _assignment_statement(self, node: Node) -> str | None:
        left, right = items(field(node, "left")), items(field(node, "right"))
        if not any(self.holds(side) for side in (*left, *right)):
            return None
        if len(left) != len(right):
            self.refuse(node, "an assignment of structs by a call is not read")
        return self._pairs(node, left, right, "=")

    def _pairs(self, node: Node, left: list[Node], right: list[Node], sign: str) -> str:
        """Return an assignment field by field: separate statements unless one reads a variable that another assigns."""
        if len(right) == 1 and self.is_call(right[0]):
            held = self.holds(right[0])
            assert held is not None
            if text_of(left[0]) != "_" and self.holds(left[0]) != held:
                self.refuse(right[0], "a struct of another kind")
            names = self._targets(left[0], held)
            words = [self._argument(argument) for argument in items(field(right[0], "arguments"))]
            return f"{', '.join(names)} {sign} {text_of(field(right[0], 'function'))}({', '.join(words)})"
        targets: list[str] = []
        values: list[str] = []
        for left_side, source in zip(left, right, strict=True):
            held = self.holds(source) or self.holds(left_side)
            if held is None:
                targets.append(self.text(left_side))
                values.append(self.text(source))
                continue
            is_other = text_of(left_side) != "_" and self.holds(left_side) != held
            if self.holds(source) is None or is_other:
                self.refuse(source, "a struct of another kind, or none")
            targets += self._targets(left_side, held)
            values += self.parts(source, held)
        pairs = [f"{target} {sign} {value}" for target, value in zip(targets, values, strict=True)]
        bases = {target.partition("[")[0] for target in targets}
        is_statement = node.parent is not None and node.parent.type in ("statement_list", "block")
        if is_statement and all(
            not (bases - {target.partition("[")[0]}) & set(re.findall(r"\w+", value))
            for target, value in zip(targets, values, strict=True)
        ):
            return "; ".join(pair for pair in pairs if not pair.startswith("_ "))
        return f"{', '.join(targets)} {sign} {', '.join(values)}"

    def _targets(self, node: Node, held: Held) -> list[str]:
        return ["_"] * len(held.fields) if text_of(node) == "_" else self.parts(node, held)

    def _var_spec(self, node: Node) -> str | None:
        kind, right = node.child_by_field_name("type"), node.child_by_field_name("value")
        held = self.type_of(kind) if kind is not None else None
        values = items(right) if right is not None else []
        if held is None:
            if any(self.holds(value) for value in values):
                self.refuse(node, "write this declaration with := ")
            return None
        names = names_of(node)
        if len(names) != 1 or (node.parent is not None and len(items(node.parent)) != 1):
            self.refuse(node, "structs declared together are not read; declare each by itself")
        self._hold(node, names[0], held)
        made = self.parts(values[0], held) if values else [None] * len(held.fields)
        return "; var ".join(
            f"{name} {kind}" + ("" if value is None else f" = {value}")
            for name, kind, value in zip(self.names(names[0], held), held.kinds, made, strict=True)
        )

    def _for_statement(self, node: Node) -> str | None:
        head = next((child for child in node.named_children if child.type == "range_clause"), None)
        held = self.holds(field(head, "right")) if head is not None else None
        if head is None or held is None or not held.container:
            return None
        left = head.child_by_field_name("left")
        names = [text_of(part) for part in items(left)] if left is not None else []
        key, element = (*names, "", "")[:2]
        if held.container.startswith("map"):
            self.refuse(head, "a range over a map of structs is not read; range over snapshots")
        over = self.parts(field(head, "right"), held)
        copies = ""
        if element not in ("", "_"):
            key = key if key not in ("", "_") else f"{element}{self.mark}place"
            self._hold(head, element, held.element)
            copies = "; ".join(
                f"{name} := {part}[{key}]; _ = {name}"
                for name, part in zip(self.names(element, held.element), over, strict=True)
            ) + "; "  # fmt: skip
        body = self.text(field(node, "body"))
        ranged = f"{key} := range {over[0]}" if key not in ("", "_") else f"range {over[0]}"
        return f"for {ranged} {{{copies}{body[1:]}"

    def _selector_expression(self, node: Node) -> str | None:
        held = self.holds(field(node, "operand"))
        if held is None or held.container:
            return None
        name = text_of(field(node, "field"))
        if name not in held.fields:
            self.refuse(node, f"{held.name} has no such field")
        return self.parts(field(node, "operand"), held)[list(held.fields).index(name)]

    def _call_expression(self, node: Node) -> str | None:
        function, arguments = field(node, "function"), items(field(node, "arguments"))
        if not any(self.holds(argument) for argument in arguments):
            return None
        if text_of(function) == "len":
            held = self.holds(arguments[0])
            assert held is not None
            return f"len({self.parts(arguments[0], held)[0]})"
        return f"{self.text(function)}({', '.join(map(self._argument, arguments))})"

    def _argument(self, node: Node) -> str:
        held = self.holds(node)
        return self.text(node) if held is None else ", ".join(self.parts(node, held))

    def _identifier(self, node: Node) -> None:
        if text_of(node) in self.held:
            self.refuse(node.parent or node, "a struct is not read here; use its fields")

    def _composite_literal(self, node: Node) -> None:
        if self.type_of(field(node, "type")) is not None:
            self.refuse(node, "a struct is not read here; give it a name")

    def _unary_expression(self, node: Node) -> None:
        self.holds(node)  # refuses a pointer
