"""Expressions of a table's operations as graph nodes: equal expressions share a node, and constant ones are computed at
once.

Equal programs become equal graphs: operands of commutative operations are sorted, and comparisons and selections are
brought into one form. Every rewriting keeps all bits of the result.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.policies.as_data.operations import OPERATIONS

INPUT, CONSTANT = "input", "constant"
LARGEST = 2**63 - 1
WIDE = (-LARGEST - 1, LARGEST)
INT32 = (-(2**31), 2**31 - 1)
TRUTH = (0, 1)
ROUNDED, HIDDEN = "rounded", "hidden"  # marks left by exact_product and exact_quotient
MOVES = ("at", "select", "put", "neg.f")
_TRUTHS = {"lt", "le", "eq", "lt.f", "le.f", "eq.f"}
# of their operands
_PICKS = {
    "select": (1, 2),
    "at": (0,),
    "put": (1, 2),
    "least": (0,),
    "most": (0,),
}


@dataclass(frozen=True, eq=False)
class Expression:
    """A node: an operation on other nodes, an input, or a constant.

    Attributes:
        operation: the operation's name, `input` or `constant`.
        operands: the nodes from which it is computed.
        what: an input's name, a constant's bits.
        is_scalar: whether all instances have the same value.
        bounds: least and greatest value of a whole number; without meaning for a float64.
        contracts: whether the value is or contains a product that a compiler could fuse with a following sum, with one
            rounding.
        digest: equal for equal expressions, in every process.
    """

    operation: str
    operands: tuple[Expression, ...]
    what: str | int
    is_scalar: bool
    bounds: tuple[int, int]
    contracts: bool
    digest: bytes

    @property
    def constant(self) -> int | None:
        """Return the bits of a constant; None for any other node."""
        return int(self.what) if self.operation == CONSTANT else None


def bits_of(value: object) -> int:
    """Return the bits with which a register stores a Python or numpy number."""
    array = np.asarray(value)
    return int(array.astype(np.float64).view(np.int64) if array.dtype.kind == "f" else array)


def bare(node: Expression) -> Expression:
    """Return a node without the mark that says how its value was rounded."""
    return node.operands[0] if node.operation in (ROUNDED, HIDDEN) else node


def is_power_of_two(node: Expression) -> bool:
    """Return whether multiplying or dividing by this float64 is exact."""
    if node.constant is None:
        return False
    value = float(np.int64(node.constant).view(np.float64))
    return value != 0 and math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5


def _contracts(operation: str, operands: tuple[Expression, ...]) -> bool:
    if operation in MOVES:
        return any(operand.contracts for operand in operands)
    return operation == "mul.f" and not any(map(is_power_of_two, operands))


class ExpressionGraph:
    """Builds nodes, equal ones once; a vector has `num_instances` entries."""

    def __init__(self, num_instances: int) -> None:
        """Start a graph without operations."""
        self.num_instances = num_instances
        self.nodes: dict[bytes, Expression] = {}
        self.place = self.input("place", False, (0, num_instances - 1))

    def _node(
        self, operation: str, operands: tuple[Expression, ...], what: str | int,
        is_scalar: bool, bounds: tuple[int, int] = WIDE,
    ) -> Expression:  # fmt: skip
        text = f"{operation}|{what}|".encode() + b"".join(operand.digest for operand in operands)
        digest = hashlib.blake2b(text, digest_size=16).digest()
        made = Expression(
            operation, operands, what, is_scalar, bounds, _contracts(operation, operands), digest
        )
        return self.nodes.setdefault(digest, made)

    def input(self, name: str, is_scalar: bool, bounds: tuple[int, int] = WIDE) -> Expression:
        """Return the node of an input."""
        return self._node(INPUT, (), name, is_scalar, bounds)

    def constant(self, value: Any) -> Expression:
        """Return the node of a constant: a number, a bool, or bits."""
        bits = bits_of(value)
        return self._node(CONSTANT, (), bits, True, (bits, bits))

    def draw(self, name: str, *operands: Expression) -> Expression:
        """Return the node of an operation on the router's stream."""
        return self._node(name, tuple(map(bare, operands)), "", True, (0, INT32[1]))

    def marked(self, mark: str, node: Expression) -> Expression:
        """Return a node that marks how `node` was rounded."""
        return self._node(mark, (bare(node),), "", node.is_scalar, node.bounds)

    def make(self, name: str, *operands: Expression) -> Expression:
        """Return the node of an operation, simplified if possible; one that only moves exact values is exact."""
        made = self._made(name, *map(bare, operands))
        is_exact = name in MOVES and not any(operand.contracts for operand in operands)
        return self.marked(ROUNDED, made) if is_exact and made.contracts else made

    def _made(self, name: str, *operands: Expression) -> Expression:
        operation = OPERATIONS[name]
        known = self._known(name, *operands)
        if known is not None:
            return known
        constants = [operand.constant for operand in operands]
        if operation.is_folded and None not in constants:
            return self.constant(np.int64(folded(name, self.num_instances, *constants)))
        if operation.commutes:
            operands = (*sorted(operands[:2], key=lambda operand: operand.digest), *operands[2:])
        is_scalar = all(operand.is_scalar for operand in operands)
        if not operation.is_by_place:
            is_scalar = (
                operands[1].is_scalar if name == "at" else name not in ("put", "running_sum")
            )
        bounds = self._bounds(name, operands)
        if bounds[0] == bounds[1]:
            return self.constant(np.int64(bounds[0]))
        return self._node(name, operands, "", is_scalar, bounds)

    def negated(self, truth: Expression) -> Expression:
        """Return the node of a bool's negation."""
        return self.make("xor", truth, self.constant(True))

    def _known(self, name: str, *operands: Expression) -> Expression | None:
        """Return a simpler node with the same bits; None if there is none."""
        constants = [operand.constant for operand in operands]
        first = operands[0]
        if name == "select":
            return self._choice(*operands)
        if name == "at" and first.is_scalar:
            return first
        if name == "at" and operands[1] is self.place:
            return first
        if name in ("least", "most", "least.f", "most.f") and first.is_scalar:
            return first
        if name in ("and", "or", "min", "max") and first is operands[1]:
            return first
        if name in ("eq", "le") and first is operands[1]:
            return self.constant(True)
        if name in ("lt", "xor", "sub") and first is operands[1]:
            return self.constant(False)
        if name in ("lt", "le", "eq"):
            return self._compared(name, *operands)
        neutral = {"add": 0, "or": 0, "xor": 0, "mul": 1, "sub": 0}.get(name)
        if neutral is not None and constants[1] == neutral:
            return first
        if neutral is not None and constants[0] == neutral and name != "sub":
            return operands[1]
        if name == "and" and 0 in constants:
            return self.constant(False)
        if (
            name == "and"
            and 1 in constants
            and all(operand.bounds[0] >= 0 and operand.bounds[1] <= 1 for operand in operands)
        ):
            return operands[1 - constants.index(1)]
        if (
            name == "or"
            and 1 in constants
            and all(operand.bounds[0] >= 0 and operand.bounds[1] <= 1 for operand in operands)
        ):
            return self.constant(True)
        if name == "xor" and first.operation == "xor" and first.operands[1] is operands[1]:
            return first.operands[0]
        if name in ("min", "max"):
            low, high = sorted(operands, key=lambda operand: operand.bounds)
            if low.bounds[1] <= high.bounds[0]:
                return low if name == "min" else high
        return None

    def _choice(self, truth: Expression, then: Expression, other: Expression) -> Expression | None:
        if truth.constant is not None:
            return then if truth.constant else other
        if then is other:
            return then
        if truth.operation == "xor" and truth.operands[-1].constant == 1:
            return self._made("select", truth.operands[0], other, then)
        if truth.operation == "xor" and truth.operands[0].constant == 1:
            return self._made("select", truth.operands[1], other, then)
        if (then.constant, other.constant) == (1, 0) and truth.bounds == TRUTH:
            return truth
        return None

    def _compared(self, name: str, first: Expression, second: Expression) -> Expression | None:
        (low, high), (from_, to) = first.bounds, second.bounds
        if name == "eq":
            return self.constant(False) if high < from_ or to < low else None
        if high < from_ or (name == "le" and high <= from_):
            return self.constant(True)
        if low > to or (name == "lt" and low >= to):
            return self.constant(False)
        return None

    def _bounds(self, name: str, operands: tuple[Expression, ...]) -> tuple[int, int]:
        """Return the bounds of a whole number that an operation yields; the widest ones if nothing is known."""
        if name in _TRUTHS:
            return TRUTH
        if name in _PICKS:
            lows, highs = zip(*(operands[at].bounds for at in _PICKS[name]), strict=True)
            return min(lows), max(highs)
        if name in ("first_most", "first_least", "first_most.f", "first_least.f"):
            return 0, self.num_instances - 1
        bounds = [operand.bounds for operand in operands]
        if name in ("and", "or", "xor") and all(low >= 0 and high <= 1 for low, high in bounds):
            return TRUTH
        if name in ("sum", "running_sum"):
            (low, high), size = bounds[0], self.num_instances
            return _within(min(low, size * low), max(high, size * high))
        if name == "neg":
            return _within(-bounds[0][1], -bounds[0][0])
        if name == "abs":
            return _within(0, max(abs(bounds[0][0]), abs(bounds[0][1])))
        if name == "min":
            return min(bounds[0][0], bounds[1][0]), min(bounds[0][1], bounds[1][1])
        if name == "max":
            return max(bounds[0][0], bounds[1][0]), max(bounds[0][1], bounds[1][1])
        if name == "add":
            return _within(bounds[0][0] + bounds[1][0], bounds[0][1] + bounds[1][1])
        if name == "sub":
            return _within(bounds[0][0] - bounds[1][1], bounds[0][1] - bounds[1][0])
        if name in ("add32", "sub32", "mul32", "wrap32", "int32"):
            return INT32
        return WIDE


def _within(low: int, high: int) -> tuple[int, int]:
    return (low, high) if WIDE[0] <= low and high <= WIDE[1] else WIDE


@functools.lru_cache(maxsize=65536)
def folded(name: str, size: int, *constants: int) -> int:
    """Return the bits of an operation on constants, computed as the engine computes them."""
    with jax.enable_x64(True):
        vectors = [jnp.full(size, bits, jnp.int64) for bits in constants]
        vectors += vectors[:1] * (3 - len(vectors))
        return int(OPERATIONS[name].run(*vectors)[0])


Parameters = Mapping[str, Any]  # of a primitive of JAX, by name


@dataclass(frozen=True)
class Cells:
    """An array of a traced policy, stored as nodes.

    Attributes:
        shape: of the JAX array.
        dtype: of the JAX array.
        nodes: array of nodes, of shape `shape[:-1]` if the last axis runs over the instances, else of `shape`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nodes: np.ndarray

    @property
    def is_real(self) -> bool:
        """Return whether the entries are float64."""
        return self.dtype.kind == "f"

    @property
    def node(self) -> Expression:
        """Return the only node, of a scalar or of a vector of instances."""
        return cast("Expression", self.nodes[()])


class RouterStream:
    """Stands for the router's stream of random numbers, which is not an array of nodes."""


class CellsForm(NamedTuple):
    """The shape and dtype of a traced value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def has_instances(shape: tuple[int, ...], graph: ExpressionGraph) -> bool:
    """Return whether an array of this shape has the instances as its last axis, so that its nodes are vectors."""
    return bool(shape) and shape[-1] == graph.num_instances


def grid(
    nodes: Expression | list[Expression] | np.ndarray | None, shape: tuple[int, ...]
) -> np.ndarray:
    """Return nodes as a numpy object array of shape `shape`."""
    made = np.empty(shape, object)
    made[...] = nodes
    return made


def elements(value: Cells, graph: ExpressionGraph) -> np.ndarray:
    """Return the scalar node of every entry, as an array of the value's shape."""
    if not has_instances(value.shape, graph):
        return value.nodes
    made = np.empty(value.shape, object)
    for place, node in np.ndenumerate(value.nodes):
        for at in range(graph.num_instances):
            made[(*place, at)] = graph.make("at", node, graph.constant(at))
    return made


def assembled(entries: np.ndarray, dtype: np.dtype[Any], graph: ExpressionGraph) -> Cells:
    """Return an array of a traced policy from the scalar node of every entry."""
    if not has_instances(entries.shape, graph):
        return Cells(entries.shape, dtype, entries)
    made = np.empty(entries.shape[:-1], object)
    for place in np.ndindex(made.shape):
        made[place] = _vector(list(entries[place]), graph)
    return Cells(entries.shape, dtype, made)


def _vector(entries: list[Expression], graph: ExpressionGraph) -> Expression:
    """Return a vector node from one scalar node per instance."""
    if all(entry is entries[0] for entry in entries):
        return entries[0]
    of = entries[0].operands[0] if entries[0].operation == "at" else None
    if of is not None and all(
        entry is graph.make("at", of, graph.constant(at)) for at, entry in enumerate(entries)
    ):
        return of
    made = entries[-1]
    for at in range(len(entries) - 2, -1, -1):
        is_it = graph.make("eq", graph.place, graph.constant(at))
        made = graph.make("select", is_it, entries[at], made)
    return made
