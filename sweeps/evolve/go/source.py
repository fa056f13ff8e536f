"""Parse a Go file: the routing function, its helpers and constants, and arithmetic on its constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as made_of
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from blis_jax.errors import ConfigError
from blis_jax.lazy import tree_sitter, tree_sitter_go

if TYPE_CHECKING:
    from tree_sitter import Node

START, END = "EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END"
ROUTE = "Route"
_BEGIN = "package sim\nfunc (ws *WeightedScoring) Route(req *Request, state *RouterState) RoutingDecision {\n"
_FINISH = '\nreturn NewRoutingDecision(snapshots[bestIdx].ID, "")\n}\n'
_FUNCTIONS = ("func_literal", "function_declaration", "method_declaration")
DECISIONS = ("NewRoutingDecision", "NewRoutingDecisionWithScores")


# --- nodes of a tree ------------------------------------------------------------------------------


def shown(node: Node) -> str:
    """Return the first line of a node's source, cut to 60 characters."""
    first = text_of(node).partition("\n")[0].strip()
    return first if len(first) <= 60 else f"{first[:57]}..."


def text_of(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode()


def field(node: Node, name: str) -> Node:
    """Return a node's child by the name of a field that the grammar always fills."""
    child = node.child_by_field_name(name)
    assert child is not None, (node.type, name)
    return child


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants, in source order."""
    yield node
    for child in node.children:
        yield from walk(child)


def above(node: Node) -> Iterator[Node]:
    """Yield the ancestors of a node, the innermost first."""
    while node.parent is not None:
        node = node.parent
        yield node


def names_in(node: Node) -> Iterator[Node]:
    """Yield the identifiers in a node that may name variables."""
    return (part for part in walk(node) if part.type == "identifier")


def owner_of(node: Node) -> Node:
    """Return the innermost function that encloses a node."""
    return next(around for around in above(node) if around.type in _FUNCTIONS)


def statements_of(block: Node) -> list[Node]:
    """Return the statements of a block or of a case, without comments."""
    statements = []
    for child in block.named_children:
        if child.type == "statement_list":
            statements += statements_of(child)
        elif child.type != "comment":
            statements.append(child)
    return statements


def only_panics(block: Node) -> bool:
    """Return whether a block only panics."""
    statements = statements_of(block)
    return len(statements) == 1 and text_of(statements[0]).startswith("panic(")


def items(node: Node) -> list[Node]:
    """Return a node's named children, without comments."""
    return [child for child in node.named_children if child.type != "comment"]


def names_of(node: Node) -> list[str]:
    """Return the name nodes of a declaration of parameters, fields or variables."""
    return [text_of(name) for name in node.children_by_field_name("name") if name.is_named]


def receiver_of(method: Node) -> list[str]:
    """Return the name of a method's receiver, as a list of one name or none."""
    return [name for part in items(field(method, "receiver")) for name in names_of(part)]


def receiver_type(method: Node) -> str:
    """Return the name of the type that a method belongs to."""
    return text_of(field(items(field(method, "receiver"))[0], "type")).lstrip("*")


def parameters_of(function: Node) -> tuple[list[str], list[Node]]:
    """Return the names and the types of a function's parameters."""
    names: list[str] = []
    kinds: list[Node] = []
    for part in items(field(function, "parameters")):
        declared = names_of(part)
        names += declared
        kinds += [field(part, "type")] * len(declared)
    return names, kinds


def results_of(function: Node) -> list[tuple[Node | None, Node]]:
    """Return the results of a function as pairs of the name node, None if unnamed, and the type node."""
    declared = function.child_by_field_name("result")
    if declared is None:
        return []
    results: list[tuple[Node | None, Node]] = []
    for part in items(declared) if declared.type == "parameter_list" else [declared]:
        is_named = part.type == "parameter_declaration"
        kind = field(part, "type") if is_named else part
        names = part.children_by_field_name("name") if is_named else []
        results += [(name, kind) for name in names] or [(None, kind)]
    return results


def number_in(literal: Node) -> Fraction:
    """Return the number that a Go literal stands for."""
    text = text_of(literal).replace("_", "")
    return Fraction(int(text, 0)) if literal.type == "int_literal" else Fraction(text)


def computed(
    operator: str, first: Fraction, second: Fraction, is_float: bool
) -> Fraction | bool | None:
    """Return an operation on two constants, computed exactly as Go does; None if the operation is not defined."""
    compared = {
        "<": first < second, ">": first > second, "<=": first <= second, ">=": first >= second,
        "==": first == second, "!=": first != second,
    }  # fmt: skip
    if operator in compared:
        return compared[operator]
    if operator in "/%":
        if second == 0:
            return None
        quotient = first / second
        whole = quotient if is_float and operator == "/" else Fraction(int(quotient))
        return whole if operator == "/" else first - whole * second
    if operator in "+-*":
        return {"+": first + second, "-": first - second, "*": first * second}[operator]
    if first.denominator != 1 or second.denominator != 1:
        return None
    left, right = int(first), int(second)
    if operator in ("<<", ">>"):
        return Fraction(left << right if operator == "<<" else left >> right)
    made = {"&": left & right, "|": left | right, "^": left ^ right, "&^": left & ~right}
    return Fraction(made[operator]) if operator in made else None


# --- a program ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GoProgram:
    """A Go file with a routing function; lines are numbered as in the user's file."""

    name: str  # of the file, for sentences
    text: bytes
    first_line: int  # of the text in the file
    root: Node  # of the whole file
    route: Node
    marked: range  # lines of the block between the marks, else of the whole function
    notes: list[str] = made_of(default_factory=list)  # what its user should know

    @cached_property
    def functions(self) -> dict[str, Node]:
        """Return the functions of the file by name."""
        return {text_of(field(node, "name")): node for node in self.of_type("function_declaration")}

    @cached_property
    def methods(self) -> dict[tuple[str, str], Node]:
        """Return the methods of the file by type and name."""
        nodes = self.of_type("method_declaration")
        return {(receiver_type(node), text_of(field(node, "name"))): node for node in nodes}

    @cached_property
    def router(self) -> str:
        """Return the type that the routing function belongs to."""
        return receiver_type(self.route)

    @cached_property
    def helpers(self) -> dict[str, Node]:
        """Return the router's other methods and the file's functions, by name."""
        methods = {
            name: node
            for (owner, name), node in self.methods.items()
            if owner == self.router and name != ROUTE
        }
        return {**methods, **self.functions}

    @cached_property
    def constants(self) -> dict[str, Node]:
        """Return the values of the file's constants by name."""
        specs = (spec for group in self.of_type("const_declaration") for spec in walk(group))
        return {
            text_of(field(spec, "name")): field(spec, "value").named_children[0]
            for spec in specs
            if spec.type == "const_spec" and spec.child_by_field_name("value")
        }

    def of_type(self, kind: str) -> Iterator[Node]:
        """Yield the file's top-level declarations of one node type."""
        return (node for node in self.root.named_children if node.type == kind)

    def line(self, node: Node) -> int:
        """Return the line of the user's file on which a node begins."""
        return node.start_point.row + self.first_line

    def refuse(self, node: Node, what: str) -> NoReturn:
        """Refuse the program because of a node; `what` is the reason.

        Raises:
            ConfigError: always; the message has the file, the line and its text.
        """
        raise ConfigError(f"{self.name}:{self.line(node)}: {what}: {shown(node)}")

    def note(self, what: str) -> None:
        """Add a note for the program's user; a repeated note is kept once."""
        if what not in self.notes:
            self.notes.append(what)

    def lines_of(self, node: Node) -> list[str]:
        """Return the source lines that a node covers."""
        lines = self.text.decode().split("\n")
        return lines[node.start_point.row : node.end_point.row + 1]


def read(path: str | Path) -> GoProgram:
    """Read a Go routing function from a whole `routing.go`, the block between its marks, or a Python file with either.

    Raises:
        ConfigError: the file cannot be read or parsed, or has no routing function.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the file cannot be read ({error})") from None
    first_line = 1
    if path.suffix == ".py":
        text, first_line = _go_inside(path, text)
    if f") {ROUTE}(" not in text:
        text, first_line = _wrapped(path, text, first_line)
    root = tree_of(text.encode())
    if root.has_error:
        bad = next(node for node in walk(root) if node.type == "ERROR" or node.is_missing)
        raise ConfigError(
            f"{path.name}:{bad.start_point.row + first_line}: this is not Go: {shown(bad) or 'something is missing'}"
        )
    return program_of(path.name, root, text.encode(), first_line)


def _go_inside(path: Path, text: str) -> tuple[str, int]:
    """Return the Go text in a Python file's marked string, and the line where the string begins."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(
            f"{path.name}:{error.lineno}: not Python ({error.msg}); give a .go file"
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and START in node.value:
            return node.value, node.lineno
    raise ConfigError(
        f"{path.name}: no text with the mark {START}; give a .go file, or a file with Go in a string"
    )


def _wrapped(path: Path, text: str, first_line: int) -> tuple[str, int]:
    """Wrap a block that has no routing function into the body of one; return the text and its first line's number."""
    if "func " in text and START not in text:
        raise ConfigError(
            f"{path.name}: no method Route(req *Request, state *RouterState); give a file of BLIS's routing.go"
        )
    if "package " in text:
        raise ConfigError(
            f"{path.name}: the marks stand in no method {ROUTE}; give the block alone, or a whole routing.go"
        )
    return _BEGIN + text + _FINISH, first_line - _BEGIN.count("\n")


def tree_of(source: bytes) -> Node:
    """Parse a Go file; return the root of its tree."""
    parser: Any = tree_sitter.Parser(tree_sitter.Language(tree_sitter_go.language()))
    root: Node = parser.parse(source).root_node
    return root


def program_of(name: str, root: Node, source: bytes, first_line: int) -> GoProgram:
    """Return the program with its routing method: the one with the mark, else WeightedScoring's, else the only one.

    Raises:
        ConfigError: no routing method can be chosen.
    """
    comments = [node for node in walk(root) if node.type == "comment"]
    marks, ends = (
        [node.start_point.row for node in comments if mark in text_of(node)]
        for mark in (START, END)
    )
    routes = [
        node
        for node in root.named_children
        if node.type == "method_declaration" and text_of(field(node, "name")) == ROUTE
    ]
    marked = (
        node
        for node in routes
        if any(node.start_point.row <= mark <= node.end_point.row for mark in marks)
    )
    usual = (
        node
        for node in routes
        if "WeightedScoring" in text_of(field(node, "receiver")) or len(routes) == 1
    )
    route = next(marked, None) or next(usual, None)
    if route is None:
        raise ConfigError(
            f"{name}: {len(routes)} methods {ROUTE} and no mark {START} in any; mark the one that is meant"
        )
    begin, end = route.start_point.row, route.end_point.row + 1
    if marks and ends and begin <= marks[0] < end:
        begin, end = marks[0], ends[0] + 1
    return GoProgram(
        name, source, first_line, root, route, range(begin + first_line, end + first_line)
    )
