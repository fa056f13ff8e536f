"""A Go file as a tree: the routing function, its helpers and constants, and refusals that name the line."""

from __future__ import annotations

import ast
import keyword
from dataclasses import dataclass, replace
from dataclasses import field as made_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from blis_jax.errors import ConfigError
from blis_jax.lazy import tree_sitter, tree_sitter_go
from sweeps.evolve.go.nodes import field, shown, text_of, walk
from sweeps.evolve.go.structs import without_structs

if TYPE_CHECKING:
    from tree_sitter import Node

START, END = "EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END"
ROUTE = "Route"
_BEGIN = "package sim\nfunc (ws *WeightedScoring) Route(req *Request, state *RouterState) RoutingDecision {\n"
_FINISH = '\nreturn NewRoutingDecision(snapshots[bestIdx].ID, "")\n}\n'


@dataclass(frozen=True)
class GoProgram:
    """A Go file with a routing function; lines are numbered as in the file that was given."""

    name: str  # of the file, for sentences
    text: bytes
    first_line: int  # of the text in the file
    route: Node
    functions: dict[str, Node]  # other functions of the file, and methods of its router, by name
    methods: frozenset[str]  # those that are methods
    constants: dict[str, Node]  # values of constants of the file, by name
    marked: range  # lines of the block between the marks, else of the whole function
    notes: list[str] = made_of(default_factory=list)  # what its user should know

    def line(self, node: Node) -> int:
        """Return the line on which a node begins."""
        return node.start_point.row + self.first_line

    def refuse(self, node: Node, what: str) -> NoReturn:
        """Refuse the program.

        Raises:
            ConfigError: always; it names the file, the line and what stands there.
        """
        raise ConfigError(f"{self.name}:{self.line(node)}: {what}: {shown(node)}")

    def without_structs(self) -> GoProgram:
        """Return the program with every struct written as its fields; notes are told together.

        Raises:
            ConfigError: a struct is used in a way that has no such form.
        """
        root = self.route
        while root.parent is not None:
            root = root.parent
        written = without_structs(self.name, root, self.text, self.first_line)
        if written == self.text:
            return self
        made = _program(self.name, _parser().parse(written).root_node, self.text, self.first_line)
        return replace(made, notes=self.notes)

    def note(self, what: str) -> None:
        """Keep a sentence for the program's user, once."""
        if what not in self.notes:
            self.notes.append(what)

    def lines_of(self, node: Node) -> list[str]:
        """Return the source lines of a node."""
        lines = self.text.decode().split("\n")
        return lines[node.start_point.row : node.end_point.row + 1]


class BesideGo:
    """The Python of a Go program as it is made: its lines, behind comments with Go's, and its names."""

    program: GoProgram
    lines: list[str]
    indent: int
    taken: set[str]  # names

    def emit(self, code: str) -> None:
        """Add a line of Python."""
        self.lines.append("    " * self.indent + code)

    def tell(self, node: Node, whole: bool = True) -> None:
        """Add the Go of a statement as comments, or its first line alone."""
        lines = self.program.lines_of(node)
        for place, text in enumerate(lines if whole else lines[:1]):
            self.emit(f"# {self.program.line(node) + place}: {text.strip()}")

    def fresh(self, name: str) -> str:
        """Return a name of Python that nothing has yet."""
        name = f"{name}_" if keyword.iskeyword(name) or name.startswith("_") else name
        found, number = name, 2
        while found in self.taken:
            found, number = f"{name}_{number}", number + 1
        self.taken.add(found)
        return found


def read(path: str | Path) -> GoProgram:
    """Read a routing function: a whole `routing.go`, the block between its marks, or a Python file that holds either.

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
    return _parsed(path.name, text, first_line)


def _go_inside(path: Path, text: str) -> tuple[str, int]:
    """Return the text of a Python file's string that has the marks, and its first line."""
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
    """Return the block of a file without a routing function as the body of one."""
    if "func " in text and START not in text:
        raise ConfigError(
            f"{path.name}: no method Route(req *Request, state *RouterState); give a file of BLIS's routing.go"
        )
    if "package " in text:
        raise ConfigError(
            f"{path.name}: the marks stand in no method {ROUTE}; give the block alone, or a whole routing.go"
        )
    return _BEGIN + text + _FINISH, first_line - _BEGIN.count("\n")


def _parser() -> Any:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_go.language()))


def _parsed(name: str, text: str, first_line: int) -> GoProgram:
    source = text.encode()
    root = _parser().parse(source).root_node
    if root.has_error:
        bad = next(node for node in walk(root) if node.type == "ERROR" or node.is_missing)
        raise ConfigError(
            f"{name}:{bad.start_point.row + first_line}: this is not Go: {shown(bad) or 'something is missing'}"
        )
    return _program(name, root, source, first_line)


def _program(name: str, root: Node, source: bytes, first_line: int) -> GoProgram:
    functions = {
        text_of(field(node, "name")): node
        for node in root.named_children
        if node.type == "function_declaration"
    }
    methods = {
        text_of(field(node, "name")): node
        for node in root.named_children
        if node.type == "method_declaration" and text_of(field(node, "name")) != ROUTE
    }
    constants = {}
    for group in root.named_children:
        if group.type == "const_declaration":
            for spec in (
                one
                for one in walk(group)
                if one.type == "const_spec" and one.child_by_field_name("value")
            ):
                constants[text_of(field(spec, "name"))] = field(spec, "value").named_children[0]
    routes = [
        node
        for node in root.named_children
        if node.type == "method_declaration" and text_of(field(node, "name")) == ROUTE
    ]
    marks = [
        node.start_point.row
        for node in walk(root)
        if node.type == "comment" and START in text_of(node)
    ]
    ends = [
        node.start_point.row
        for node in walk(root)
        if node.type == "comment" and END in text_of(node)
    ]
    route = _chosen(name, routes, marks)
    begin, end = route.start_point.row, route.end_point.row + 1
    if marks and ends and begin <= marks[0] < end:
        begin, end = marks[0], ends[0] + 1
    return GoProgram(
        name,
        source,
        first_line,
        route,
        {**_of_router(methods, route), **functions},
        frozenset(_of_router(methods, route)),
        constants,
        range(begin + first_line, end + first_line),
    )


def _of_router(methods: dict[str, Node], route: Node) -> dict[str, Node]:
    """Return the methods of the type that the routing function belongs to."""
    own = _receiver(route)
    return {name: node for name, node in methods.items() if _receiver(node) == own}


def _receiver(node: Node) -> str:
    return text_of(field(field(node, "receiver").named_children[0], "type")).lstrip("*")


def _chosen(name: str, routes: list[Node], marks: list[int]) -> Node:
    """Return the method with the mark, else WeightedScoring's, else the only one."""
    for node in routes:
        if any(node.start_point.row <= mark <= node.end_point.row for mark in marks):
            return node
    for node in routes:
        if "WeightedScoring" in text_of(field(node, "receiver")) or len(routes) == 1:
            return node
    raise ConfigError(
        f"{name}: {len(routes)} methods {ROUTE} and no mark {START} in any; mark the one that is meant"
    )
