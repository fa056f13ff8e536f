"""Arrays of nodes: one whose last axis has an entry for each instance keeps vectors, any other one scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from blis_jax.policies.as_data.graph import Expression, ExpressionGraph

Parameters = Mapping[str, Any]  # of a primitive of JAX, by name


@dataclass(frozen=True)
class Cells:
    """An array of a traced policy.

    Attributes:
        shape: as JAX has it.
        dtype: likewise.
        nodes: of shape `shape[:-1]` if the last axis is that of the instances, else of `shape`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nodes: np.ndarray

    @property
    def is_real(self) -> bool:
        """Return whether it holds float64."""
        return self.dtype.kind == "f"

    @property
    def node(self) -> Expression:
        """Return the node of a scalar, or of a vector of instances."""
        return cast("Expression", self.nodes[()])


class RouterStream:
    """The router's stream, which is no array of nodes."""


class CellsForm(NamedTuple):
    """A shape and dtype, as a traced value has them."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def has_instances(shape: tuple[int, ...], graph: ExpressionGraph) -> bool:
    """Return whether an array of this shape keeps vectors."""
    return bool(shape) and shape[-1] == graph.num_instances


def grid(
    nodes: Expression | list[Expression] | np.ndarray | None, shape: tuple[int, ...]
) -> np.ndarray:
    """Return nodes as an array of objects."""
    made = np.empty(shape, object)
    made[...] = nodes
    return made


def elements(value: Cells, graph: ExpressionGraph) -> np.ndarray:
    """Return the scalar node of every entry, of shape `shape`."""
    if not has_instances(value.shape, graph):
        return value.nodes
    made = np.empty(value.shape, object)
    for place, node in np.ndenumerate(value.nodes):
        for at in range(graph.num_instances):
            made[(*place, at)] = graph.make("at", node, graph.constant(at))
    return made


def assembled(entries: np.ndarray, dtype: np.dtype[Any], graph: ExpressionGraph) -> Cells:
    """Return the array of these scalar nodes."""
    if not has_instances(entries.shape, graph):
        return Cells(entries.shape, dtype, entries)
    made = np.empty(entries.shape[:-1], object)
    for place in np.ndindex(made.shape):
        made[place] = _vector(list(entries[place]), graph)
    return Cells(entries.shape, dtype, made)


def _vector(entries: list[Expression], graph: ExpressionGraph) -> Expression:
    """Return the vector of scalars."""
    if all(one is entries[0] for one in entries):
        return entries[0]
    of = entries[0].operands[0] if entries[0].operation == "at" else None
    if of is not None and all(
        one is graph.make("at", of, graph.constant(at)) for at, one in enumerate(entries)
    ):
        return of
    made = entries[-1]
    for at in range(len(entries) - 2, -1, -1):
        is_it = graph.make("eq", graph.place, graph.constant(at))
        made = graph.make("select", is_it, entries[at], made)
    return made
