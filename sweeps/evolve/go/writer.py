"""Python as it is made of a function of Go: lines, names, and masks where Go has branches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as made_of
from typing import TYPE_CHECKING

from sweeps.evolve import running
from sweeps.evolve.go.calls import Calls
from sweeps.evolve.go.nodes import (
    GoValue,
    field,
    items,
    owner_of,
    statements_of,
    text_of,
    walk,
)
from sweeps.evolve.go.source import BesideGo, GoProgram

if TYPE_CHECKING:
    from tree_sitter import Node


_OURS = (
    "go", "jnp", "params", "state", "context", "route", "done", "bool", "range", "none_used", "routing_policy",
)  # fmt: skip


@dataclass
class MaskedBlock:
    """A block under a mask; `flags` may have been set since the mask was made."""

    mask: str
    flags: list[str] = made_of(default_factory=list)
    loop: str = ""  # the name behind the flags of the loop whose body it is
    is_function: bool = False


class Lines(BesideGo, Calls):
    """The Python of one function as it is made: its lines, its names, and where the present statement happens."""

    def __init__(self, program: GoProgram, root: Node) -> None:
        self.program, self.root = program, root
        self.lines: list[str] = []
        self.indent = 1
        self.scopes: list[dict[str, GoValue]] = [{}]
        self.frames = [MaskedBlock("", is_function=True)]
        self.taken = {*_OURS, *running.__all__, *(f"answer_{place}" for place in range(9))}
        self.returned: list[GoValue] = []
        self.captured = 0  # scopes below this one are another function's
        self.reassigned = set(_assigned(root))
        self.elements = [
            node for node in walk(root) if node.type == "index_expression" and _is_target(node)
        ]
        returns = [
            node
            for node in walk(root)
            if node.type == "return_statement" and owner_of(node) == root
        ]
        body = statements_of(field(root, "body"))
        self.returns_early = len(returns) > 1 or (bool(returns) and returns[0] != body[-1])
        self.several = {}
        self.closures = {}
        self.told: list[Node] = []  # whom observers are told of, as Go has it
        self.targets: list[str] = []  # whom decisions name

    # --- lines, names, masks ----------------------------------------------------------------------

    @property
    def mask(self) -> str:  # type: ignore[override]
        """Return the code of where the present statement happens; empty: everywhere."""
        frame = self.frames[-1]
        parts = [frame.mask] * bool(frame.mask) + [f"~{flag}" for flag in frame.flags]
        return " & ".join(parts)

    def set_flag(self, name: str, upto: str) -> None:
        """Say that what follows in the frames does not happen; `upto` is a loop, or empty for the function."""
        self.emit(f"{name} = {name} | {self.mask}" if self.mask else f"{name} = jnp.bool_(True)")
        for frame in reversed(self.frames):
            if name not in frame.flags:
                frame.flags.append(name)
            if frame.is_function or (upto and frame.loop == upto):
                return

    @contextmanager
    def block(self, mask: str, loop: str = "") -> Iterator[None]:
        """Translate what is below under a mask, in a scope of its own."""
        self.scopes.append({})
        self.frames.append(MaskedBlock(mask, loop=loop))
        yield
        self.frames.pop()
        self.scopes.pop()

    def under(self, node: Node, condition: str, word: str) -> str:
        """Name the mask of a branch."""
        mask = f"{self.mask} & ({condition})" if self.mask else condition
        name = self.fresh(f"{word}_{self.program.line(node)}")
        self.emit(f"{name} = {mask}")
        return name


# --- what a tree says of names --------------------------------------------------------------------


def _assigned(root: Node) -> Iterator[str]:
    """Yield the names that are assigned after their declaration, or declared more than once."""
    declared: set[str] = set()
    for node in walk(root):
        if node.type == "assignment_statement":
            yield from (text_of(one) for one in items(field(node, "left")))
        elif node.type in ("inc_statement", "dec_statement"):
            yield text_of(items(node)[0])
        elif node.type == "short_var_declaration":
            names = [text_of(one) for one in items(field(node, "left"))]
            if len(names) > 1:
                yield from (name for name in names if name in declared)
            declared.update(names)


def _is_target(node: Node) -> bool:
    """Return whether an element is assigned."""
    parent = node.parent
    if parent is None or parent.type == "index_expression":
        return False
    if parent.type in ("inc_statement", "dec_statement"):
        return True
    above = parent.parent
    return (
        parent.type == "expression_list"
        and above is not None
        and above.type == "assignment_statement"
        and field(above, "left") == parent
    )
