"""Nodes of a Go file's tree, with their text and parts, and the typed values that expressions of them become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from blis_jax.core.types import SLO_CLASSES

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


INSTANCE, SCORER, CLASS, LIST, FIXED = "instance", "scorer", "class", "list", "fixed"
NUMBERS = ("int", "float")
DTYPES = {"int": "INT", "float": "REAL", "bool": "bool", "id": "INT", "snap": "INT"}
EMPTY = {"int": "0", "float": "0.0", "bool": "False", "id": "-1", "snap": "-1"}
GO_TYPES = {
    "int": "int", "int64": "int", "int32": "int", "float64": "float", "bool": "bool", "RoutingSnapshot": "snap",
}  # fmt: skip
MATH = {
    "MaxFloat64": Fraction(1.7976931348623157e308), "SmallestNonzeroFloat64": Fraction(5e-324),
    "MaxInt": Fraction(2**63 - 1), "MaxInt64": Fraction(2**63 - 1), "MinInt64": Fraction(-(2**63)),
    "MinInt": Fraction(-(2**63)), "MaxInt32": Fraction(2**31 - 1), "MinInt32": Fraction(-(2**31)),
    "Pi": Fraction("3.14159265358979323846264338327950288419716939937510582097494459"),
    "E": Fraction("2.71828182845904523536028747135266249775724709369995957496696763"),
    "Ln2": Fraction("0.693147180559945309417232121458176568075500134360255254120680009"),
    "Sqrt2": Fraction("1.41421356237309504880168872420969807856967187537694807317667974"),
}  # fmt: skip
WHOLE_MATH = tuple(name for name in MATH if "Int" in name)
FUNCTIONS = {  # of package math: one float64 to another
    "Abs": "jnp.abs", "Sqrt": "jnp.sqrt", "Exp": "jnp.exp", "Exp2": "jnp.exp2", "Expm1": "jnp.expm1",
    "Log": "jnp.log", "Log2": "jnp.log2", "Log10": "jnp.log10", "Log1p": "jnp.log1p", "Floor": "jnp.floor",
    "Round": "rounded", "RoundToEven": "jnp.round", "Sin": "jnp.sin", "Cos": "jnp.cos", "Atan": "jnp.arctan",
    "Ceil": "jnp.ceil", "Trunc": "jnp.trunc", "Tanh": "jnp.tanh", "Cbrt": "jnp.cbrt",
}  # fmt: skip
PAIRS = {
    "Max": "jnp.maximum",
    "Min": "jnp.minimum",
    "Pow": "jnp.power",
    "Hypot": "jnp.hypot",
    "Mod": "jnp.fmod",
}
FIELDS = {  # of a snapshot: the vector, its kind
    "QueueDepth": ("queue_depth", "int"), "BatchSize": ("batch_size", "int"),
    "KVUtilization": ("kv_utilization", "float"), "FreeKVBlocks": ("free_kv_blocks", "int"),
    "CacheHitRate": ("cache_hit_rate", "float"), "InFlightRequests": ("in_flight", "int"),
    "PendingRequests": ("in_flight", "int"),
}  # fmt: skip


@dataclass(frozen=True)
class GoValue:
    """An expression; `kind` of a container is that of its elements, and `axes` are what it is indexed by."""

    code: str
    kind: str
    axes: tuple[str, ...] = ()
    const: Fraction | bool | str | None = None
    is_untyped: bool = False  # a constant that takes the type of what it meets
    is_static: bool = False  # a number of Python, the same in every run
    is_own: bool = False  # in a loop over instances: the instance that it is about
    extent: str = ""  # an axis whose length it is
    has: str = ""  # of a map: which keys it has
    is_map: bool = False
    is_alias: bool = False  # a container that another name or the router has too

    @property
    def is_list(self) -> bool:
        """Return whether it is a slice that grows."""
        return self.axes == (LIST,)

    def named(self, name: str, keeps: bool) -> GoValue:
        """Return the variable that has this value; one that is assigned again `keeps` nothing else of it."""
        return GoValue(
            name, self.kind, self.axes,
            is_own=self.is_own and keeps, extent=self.extent * keeps, has=self.has,
            is_map=self.is_map, is_alias=self.is_alias,
        )  # fmt: skip


def constant(value: Fraction | int, kind: str) -> GoValue:
    """Return an untyped number."""
    return typed(GoValue("", kind, const=Fraction(value), is_untyped=True), kind)


def typed(value: GoValue, kind: str) -> GoValue:
    """Return an untyped constant as a number of a kind; its code is a Python number."""
    assert isinstance(value.const, Fraction)
    if kind == "float":
        try:
            number = repr(float(value.const))
        except OverflowError:
            number = "jnp.inf"
    else:
        number = str(int(value.const))
    return replace(value, code=number, kind=kind)


def truth(value: bool) -> GoValue:
    """Return a constant bool."""
    return GoValue(str(value), "bool", const=value)


def array(value: GoValue) -> str:
    """Return the code of a value as an array of its dtype, so that no constant of Python stays in a variable."""
    if value.axes or not (value.is_static or value.const is not None):
        return value.code
    return f"jnp.asarray({value.code}, {DTYPES[value.kind]})"


def class_code(text: str) -> int:
    """Return the index of a class; -1 of a text that is none."""
    return SLO_CLASSES.index(text) if text in SLO_CLASSES else -1
