"""Nodes of a Go file's tree: their text, their parts, and whom they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


def shown(node: Node) -> str:
    """Return the first line of a node's source, not more than 60 letters of it."""
    first = text_of(node).partition("\n")[0].strip()
    return first if len(first) <= 60 else f"{first[:57]}..."


def text_of(node: Node) -> str:
    """Return the source of a node."""
    return (node.text or b"").decode()


def field(node: Node, name: str) -> Node:
    """Return the child in a field that the grammar always has."""
    child = node.child_by_field_name(name)
    assert child is not None, (node.type, name)
    return child


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it, in the order of the text."""
    yield node
    for child in node.children:
        yield from walk(child)


def statements_of(block: Node) -> list[Node]:
    """Return the statements of a block or of a case, without comments."""
    found = []
    for child in block.named_children:
        if child.type == "statement_list":
            found += statements_of(child)
        elif child.type != "comment":
            found.append(child)
    return found


def items(node: Node) -> list[Node]:
    """Return the expressions of a list, without comments."""
    return [child for child in node.named_children if child.type != "comment"]


def receiver_of(method: Node) -> list[str]:
    """Return the names of a method's receiver, one or none."""
    parts = items(field(method, "receiver"))
    return [text_of(one) for part in parts for one in part.children_by_field_name("name")]


def parameters_of(function: Node) -> tuple[list[str], list[Node]]:
    """Return the names and the types of a function's parameters."""
    names: list[str] = []
    kinds: list[Node] = []
    for one in items(field(function, "parameters")):
        own = [text_of(part) for part in one.children_by_field_name("name")]
        names += own
        kinds += [field(one, "type")] * len(own)
    return names, kinds


SORTS = re.compile(r"(sort|slices)\.\w+")


def sorted_in(node: Node) -> list[Node]:
    """Return the slices that a call of package sort or slices puts in order; none of another node."""
    if node.type != "call_expression" or not SORTS.fullmatch(text_of(field(node, "function"))):
        return []
    return [one for one in items(field(node, "arguments")) if one.type == "identifier"]


def names_in(node: Node) -> Iterator[Node]:
    """Yield the identifiers in a node that may name variables."""
    for one in walk(node):
        if one.type == "identifier":
            yield one


def owner_of(node: Node) -> Node:
    """Return the function that a node belongs to."""
    above = node.parent
    while above is not None and above.type not in (
        "func_literal",
        "function_declaration",
        "method_declaration",
    ):
        above = above.parent
    assert above is not None
    return above
