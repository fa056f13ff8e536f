"""Structs of Go as variables of their own: `best.score` becomes `best_score`, a slice of structs one slice a field.

A struct of numbers, bools, IDs and snapshots is a value in Go: it is copied by an assignment. So its fields are as many
variables, and the rest of the reader need not know of structs. Lines stay where they are.
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
class StructType:
    """A struct's fields, in order, with their types."""

    name: str
    fields: dict[str, str]


@dataclass(frozen=True)
class Held:
    """What a variable holds of structs: one, or those of a slice or map."""

    of: StructType
    container: str = ""  # what stands before the element's type, `[]` or `map[string]`


def without_structs(program: GoProgram) -> GoProgram:
    """Return the program with every struct that is declared and used as a value written as its fields.

    Raises:
        ConfigError: a struct is used in another way; the sentence says where and what.
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


def _types(program: GoProgram) -> dict[str, StructType]:
    """Return the structs whose fields are all plain; those with methods are the router's and BLIS's own."""
    has_methods = {owner for owner, _ in program.methods}
    found = {}
    for node in walk(program.root):
        if node.type != "type_spec" or field(node, "type").type != "struct_type":
            continue
        name = text_of(field(node, "name"))
        fields: dict[str, str] = {}
        for one in walk(field(node, "type")):
            if one.type == "field_declaration":
                kind = text_of(field(one, "type"))
                fields |= dict.fromkeys(names_of(one), kind)
        plain = bool(fields) and all(kind in ZEROS or kind == SNAPSHOT for kind in fields.values())
        if plain and name != SNAPSHOT and name not in has_methods:
            found[name] = StructType(name, fields)
    return found


class _Rewriting:
    """Writes a tree again; names hold what their declaration says, one thing in a whole function."""

    def __init__(self, program: GoProgram, types: dict[str, StructType]) -> None:
        self.source, self.refuse, self.types = program.text, program.refuse, types
        self.held: dict[str, Held] = {}
        self.returned: dict[str, Held] = {}  # by functions of the file
        names = set(re.findall(r"\w+", program.text.decode()))
        self.mark = "_"
        fields = {one for kind in types.values() for one in kind.fields}
        while any(f"{one}{self.mark}{two}" in names for one in names for two in fields):
            self.mark += "_"

    # --- what is held ---------------------------------------------------------------------------------

    def type_of(self, node: Node) -> Held | None:
        """Return what a type holds."""
        kind = text_of(node).replace(" ", "")
        match = re.fullmatch(r"(\[\]|map\[string\]|\[\w*\])?(\*?)(\w+)", kind)
        if match is None or match[3] not in self.types:
            return None
        if match[2]:
            self.refuse(node, "a pointer to a struct is not read; use the struct itself")
        return Held(self.types[match[3]], match[1] or "")

    def holds(self, node: Node) -> Held | None:
        """Return what an expression holds of structs; None if nothing."""
        if node.type == "identifier":
            return self.held.get(text_of(node))
        if node.type == "parenthesized_expression":
            return self.holds(items(node)[0])
        if node.type == "composite_literal":
            return self.type_of(field(node, "type"))
        if node.type == "index_expression":
            owner = self.holds(field(node, "operand"))
            return Held(owner.of) if owner is not None and owner.container else None
        if node.type == "slice_expression":
            return self.holds(field(node, "operand"))
        if node.type == "call_expression":
            name, given = text_of(field(node, "function")), items(field(node, "arguments"))
            if name in self.returned:
                return self.returned[name]
            if name == "append":
                return self.holds(given[0])
            if name == "make":
                return self.type_of(given[0])
        if node.type == "unary_expression" and self.holds(field(node, "operand")):
            self.refuse(node, "a pointer to a struct is not read; use the struct itself")
        return None

    def names(self, name: str, held: Held) -> list[str]:
        """Return the variables that a name stands for."""
        return [f"{name}{self.mark}{one}" for one in held.of.fields]

    def parts(self, node: Node, held: Held) -> list[str]:
        """Return the expression of each field."""
        if node.type == "identifier":
            return self.names(text_of(node), held)
        if node.type == "parenthesized_expression":
            return self.parts(items(node)[0], held)
        if node.type == "index_expression":
            owner = self.holds(field(node, "operand"))
            assert owner is not None
            index = self.text(field(node, "index"))
            return [f"{one}[{index}]" for one in self.parts(field(node, "operand"), owner)]
        if node.type == "composite_literal":
            return self.literal(field(node, "body"), held)
        if node.type == "slice_expression":
            rest = self.source[field(node, "operand").end_byte : node.end_byte].decode()
            return [f"{one}{rest}" for one in self.parts(field(node, "operand"), held)]
        if self.is_call(node):
            self.refuse(node, "give what this function returns a name of its own")
        name, given = text_of(field(node, "function")), items(field(node, "arguments"))
        if name == "make":
            sizes = "".join(f", {self.text(one)}" for one in given[1:])
            return [f"make({held.container}{kind}{sizes})" for kind in held.of.fields.values()]
        if len(given) != 2:
            self.refuse(node, "an append of several structs is not read")
        old = self.parts(given[0], held)
        new = self.parts(given[1], Held(held.of))
        return [f"append({one}, {value})" for one, value in zip(old, new, strict=True)]

    def literal(self, body: Node, held: Held) -> list[str]:
        """Return the fields of `X{…}`, or of all elements of `[]X{…}`."""
        given = items(body)
        if held.container:
            if held.container.startswith("map") and given:
                self.refuse(body, "a literal map of structs is not read")
            rows = [self.literal(_inner(items(one)[0]), Held(held.of)) for one in given]
            columns = zip(*rows, strict=True) if rows else [() for _ in held.of.fields]
            kinds = held.of.fields.values()
            pairs = zip(kinds, columns, strict=True)
            return [f"{held.container}{kind}{{{', '.join(one)}}}" for kind, one in pairs]
        by_name = dict.fromkeys(held.of.fields, "")
        for place, one in enumerate(given):
            if one.type == "keyed_element":
                key, value = (items(part)[0] for part in items(one))
                name = text_of(key)
            elif len(given) == len(by_name):
                name, value = list(by_name)[place], items(one)[0]
            else:
                self.refuse(one, "this literal is not read")
            if name not in by_name:
                self.refuse(one, f"{held.of.name} has no such field")
            by_name[name] = self.text(value)
        for name, kind in held.of.fields.items():
            if not by_name[name] and kind == SNAPSHOT:
                self.refuse(body, f"a struct without its {name} is not read")
            by_name[name] = by_name[name] or ZEROS[kind]
        return list(by_name.values())

    def is_call(self, node: Node) -> bool:
        """Return whether a function of the file returns this struct."""
        return node.type == "call_expression" and text_of(field(node, "function")) in self.returned

    # --- text -----------------------------------------------------------------------------------------

    def text(self, node: Node) -> str:
        """Return a node written again, on as many lines."""
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
        specs = [one for one in items(node) if one.type == "type_spec"]
        return "" if all(text_of(field(one, "name")) in self.types for one in specs) else None

    def _func_literal(self, node: Node) -> None:
        if self._returns_struct(node):
            self.refuse(node, "a closure that returns a struct is not read; write it as a function")

    def _returns_struct(self, node: Node) -> bool:
        result = node.child_by_field_name("result")
        return result is not None and any(text_of(one) in self.types for one in walk(result))

    def _function_declaration(self, node: Node) -> str | None:
        self.held = {}
        held = self.returned.get(text_of(field(node, "name")))
        if held is None:
            if self._returns_struct(node):
                self.refuse(node, "of several results none may be a struct here")
            return None
        parameters, body = field(node, "parameters"), field(node, "body")
        kinds = ", ".join(f"{held.container}{kind}" for kind in held.of.fields.values())
        return f"func {text_of(field(node, 'name'))}{self.text(parameters)} ({kinds}) {self.text(body)}"

    def _method_declaration(self, node: Node) -> None:
        self.held = {}

    def _return_statement(self, node: Node) -> str | None:
        given = items(node.named_children[0]) if node.named_children else []
        held = self.holds(given[0]) if len(given) == 1 else None
        return None if held is None else f"return {', '.join(self.parts(given[0], held))}"

    def _parameter_declaration(self, node: Node) -> str | None:
        held = self.type_of(field(node, "type"))
        if held is None:
            return None
        names = [text_of(one) for one in node.children_by_field_name("name")]
        self.held |= dict.fromkeys(names, held)
        pairs = [
            f"{one} {held.container}{kind}"
            for name in names
            for one, kind in zip(self.names(name, held), held.of.fields.values(), strict=True)
        ]
        return ", ".join(pairs)

    def _short_var_declaration(self, node: Node) -> str | None:
        left, right = items(field(node, "left")), items(field(node, "right"))
        held = [self.holds(one) for one in right]
        if len(left) != len(right):
            if any(held):
                self.refuse(node, "a struct with whether it is there is not read")
            return None
        for one, what in zip(left, held, strict=True):
            self._hold(one, text_of(one), what)
        return self._pairs(node, left, right, ":=") if any(held) else None

    def _hold(self, node: Node, name: str, held: Held | None) -> None:
        if name == "_":
            return
        if name in self.held and self.held[name] != held:
            self.refuse(node, f"{name} stands for a struct and for something else")
        if held is not None:
            self.held[name] = held

    def _assignment_statement(self, node: Node) -> str | None:
        left, right = items(field(node, "left")), items(field(node, "right"))
        if not any(self.holds(one) for one in (*left, *right)):
            return None
        if len(left) != len(right):
            self.refuse(node, "an assignment of structs by a call is not read")
        return self._pairs(node, left, right, "=")

    def _pairs(self, node: Node, left: list[Node], right: list[Node], sign: str) -> str:
        """Return an assignment field by field, as one statement each where none reads what another assigns."""
        if len(right) == 1 and self.is_call(right[0]):
            held = self.holds(right[0])
            assert held is not None
            if text_of(left[0]) != "_" and self.holds(left[0]) != held:
                self.refuse(right[0], "a struct of another kind")
            names = self._targets(left[0], held)
            words = [self._argument(one) for one in items(field(right[0], "arguments"))]
            return f"{', '.join(names)} {sign} {text_of(field(right[0], 'function'))}({', '.join(words)})"
        targets: list[str] = []
        values: list[str] = []
        for one, given in zip(left, right, strict=True):
            held = self.holds(given) or (self.holds(one) if text_of(one) != "_" else None)
            if held is None:
                targets.append(self.text(one))
                values.append(self.text(given))
                continue
            if self.holds(given) is None or (text_of(one) != "_" and self.holds(one) != held):
                self.refuse(given, "a struct of another kind, or none")
            targets += self._targets(one, held)
            values += self.parts(given, held)
        pairs = [f"{one} {sign} {value}" for one, value in zip(targets, values, strict=True)]
        bases = {one.partition("[")[0] for one in targets}
        is_statement = node.parent is not None and node.parent.type in ("statement_list", "block")
        if is_statement and all(
            not (bases - {target.partition("[")[0]}) & set(re.findall(r"\w+", value))
            for target, value in zip(targets, values, strict=True)
        ):
            return "; ".join(pair for pair in pairs if not pair.startswith("_ "))
        return f"{', '.join(targets)} {sign} {', '.join(values)}"

    def _targets(self, node: Node, held: Held) -> list[str]:
        return ["_"] * len(held.of.fields) if text_of(node) == "_" else self.parts(node, held)

    def _var_spec(self, node: Node) -> str | None:
        kind, given = node.child_by_field_name("type"), node.child_by_field_name("value")
        held = self.type_of(kind) if kind is not None else None
        values = items(given) if given is not None else []
        if held is None:
            if any(self.holds(one) for one in values):
                self.refuse(node, "write this declaration with := ")
            return None
        names = [text_of(one) for one in node.children_by_field_name("name") if one.is_named]
        if len(names) != 1 or (node.parent is not None and len(items(node.parent)) != 1):
            self.refuse(node, "structs declared together are not read; declare each by itself")
        self._hold(node, names[0], held)
        made = self.parts(values[0], held) if values else [None] * len(held.of.fields)
        kinds = held.of.fields.values()
        specs = [
            f"{name} {held.container}{kind}" + ("" if value is None else f" = {value}")
            for name, kind, value in zip(self.names(names[0], held), kinds, made, strict=True)
        ]
        return "; var ".join(specs)

    def _for_statement(self, node: Node) -> str | None:
        head = next((one for one in node.named_children if one.type == "range_clause"), None)
        held = self.holds(field(head, "right")) if head is not None else None
        if head is None or held is None or not held.container:
            return None
        left = head.child_by_field_name("left")
        names = [text_of(one) for one in items(left)] if left is not None else []
        key, element = (*names, "", "")[:2]
        if held.container.startswith("map"):
            self.refuse(head, "a range over a map of structs is not read; range over snapshots")
        over = self.parts(field(head, "right"), held)
        copies = ""
        if element not in ("", "_"):
            key = key if key not in ("", "_") else f"{element}{self.mark}place"
            self._hold(head, element, Held(held.of))
            copies = "; ".join(
                f"{name} := {one}[{key}]; _ = {name}"
                for name, one in zip(self.names(element, Held(held.of)), over, strict=True)
            ) + "; "  # fmt: skip
        body = self.text(field(node, "body"))
        ranged = f"{key} := range {over[0]}" if key not in ("", "_") else f"range {over[0]}"
        return f"for {ranged} {{{copies}{body[1:]}"

    def _selector_expression(self, node: Node) -> str | None:
        held = self.holds(field(node, "operand"))
        if held is None or held.container:
            return None
        name = text_of(field(node, "field"))
        if name not in held.of.fields:
            self.refuse(node, f"{held.of.name} has no such field")
        return self.parts(field(node, "operand"), held)[list(held.of.fields).index(name)]

    def _call_expression(self, node: Node) -> str | None:
        function, given = field(node, "function"), items(field(node, "arguments"))
        if not any(self.holds(one) for one in given):
            return None
        if text_of(function) == "len":
            held = self.holds(given[0])
            assert held is not None
            return f"len({self.parts(given[0], held)[0]})"
        return f"{self.text(function)}({', '.join(map(self._argument, given))})"

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


def _inner(node: Node) -> Node:
    """Return the body of an element of a literal slice, with or without its type."""
    return field(node, "body") if node.type == "composite_literal" else node
