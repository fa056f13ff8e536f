"""Lower primitives that move or reduce entries of arrays: shapes, reductions, and indices known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from blis_jax.policies.as_data.graph import (
    INT32,
    Cells,
    CellsForm,
    Expression,
    ExpressionGraph,
    Parameters,
    RouterStream,
    assembled,
    bare,
    elements,
    grid,
    has_instances,
)
from blis_jax.policies.reading import NotAsDataError

if TYPE_CHECKING:
    from blis_jax.policies.as_data.lowering import Tabulation

EXACT = "a product that enters a sum may be rounded with it; write exact_product(a, b) of blis_jax.policies"


# --- shapes ---------------------------------------------------------------------------------------


def _reshaped(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    return lowering.moved(lambda entries: entries, out, cells)


def _broadcast(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    shape, axes = tuple(out.shape), params["broadcast_dimensions"]
    kept = has_instances(shape, lowering.graph)
    if not cells.shape:
        return Cells(shape, np.dtype(out.dtype), grid(cells.node, shape[:-1] if kept else shape))
    between = [1] * len(shape)
    for axis, size in zip(axes, cells.shape, strict=True):
        between[axis] = size
    if kept and has_instances(cells.shape, lowering.graph) and axes[-1] == len(shape) - 1:
        nodes = np.broadcast_to(cells.nodes.reshape(between[:-1]), shape[:-1])
        return Cells(shape, np.dtype(out.dtype), nodes)
    return lowering.moved(
        lambda entries: np.broadcast_to(entries.reshape(between), shape), out, cells
    )


def _sliced(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    strides = params["strides"] or (1,) * len(cells.shape)
    parts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return lowering.moved(
        lambda entries: entries[tuple(slice(*part) for part in parts)], out, cells
    )


def _padded(
    lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells, filler: Cells
) -> Cells:
    if any(low < 0 or high < 0 or inner for low, high, inner in params["padding_config"]):
        raise NotAsDataError("padding by less than nothing is no operation of a table")
    made = grid(filler.node, tuple(out.shape))
    at = tuple(
        slice(low, low + size)
        for (low, _, _), size in zip(params["padding_config"], cells.shape, strict=True)
    )
    made[at] = elements(cells, lowering.graph)
    return assembled(made, np.dtype(out.dtype), lowering.graph)


def _joined(lowering: Tabulation, params: Parameters, out: ShapedArray, *cells: Cells) -> Cells:
    axis = params["dimension"]
    return lowering.moved(lambda *all_: np.concatenate(all_, axis), out, *cells)


def _stacked(lowering: Tabulation, params: Parameters, out: ShapedArray, *cells: Cells) -> Cells:
    axis = params.get("axis", 0)
    return lowering.moved(lambda *all_: np.stack(all_, axis), out, *cells)


def _turned(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    if "permutation" in params:
        return lowering.moved(lambda entries: entries.transpose(params["permutation"]), out, cells)
    return lowering.moved(lambda entries: np.flip(entries, params["dimensions"]), out, cells)


def _counted(lowering: Tabulation, params: Parameters, out: ShapedArray) -> Cells:
    shape, axis = tuple(out.shape), params["dimension"]
    dtype = np.dtype(out.dtype)
    if has_instances(shape, lowering.graph) and axis == len(shape) - 1:
        place = lowering.graph.place
        node = lowering.graph.make("real", place) if dtype.kind == "f" else place
        return Cells(shape, dtype, grid(node, shape[:-1]))
    along = np.arange(shape[axis], dtype=dtype).reshape(
        [-1 if at == axis else 1 for at in range(len(shape))]
    )
    return lowering.literal(np.broadcast_to(along, shape), out)


# --- across entries -------------------------------------------------------------------------------


def _reduced(lane: str, pair: str) -> Any:
    """Return the rule of a reduction: one operation across instances, and one entry after another along other axes."""

    def rule(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
        """Return the array reduced over the axes `params["axes"]`."""
        graph, suffix = lowering.graph, ".f" if cells.is_real else ""
        if pair == "add" and cells.is_real and any(node.contracts for node in cells.nodes.flat):
            raise NotAsDataError(EXACT)
        axes = set(params["axes"])
        last = len(cells.shape) - 1
        nodes = cells.nodes
        is_vector = has_instances(cells.shape, graph)
        if is_vector and last in axes:
            nodes = _mapped(lambda node: lowering.graph.make(lane + suffix, node), nodes)
            axes.discard(last)
        for axis in sorted(axes, reverse=True):
            parts = [np.asarray(part, object) for part in np.moveaxis(nodes, axis, 0)]
            begun = graph.constant(np.float64(0)) if pair == "add" and cells.is_real else None
            made = parts.pop(0) if begun is None else grid(begun, parts[0].shape)
            for part in parts:
                made = _mapped(lambda a, b: lowering.graph.make(pair + suffix, a, b), made, part)
            nodes = made
        if pair == "add" and out.dtype == jnp.int32:
            nodes = _mapped(lambda node: _within_int32(lowering, node), nodes)
        entries = nodes
        if is_vector and last not in params["axes"]:
            return Cells(tuple(out.shape), np.dtype(out.dtype), entries)
        return assembled(entries, np.dtype(out.dtype), graph)

    return rule


def _within_int32(lowering: Tabulation, node: Expression) -> Expression:
    fits = INT32[0] <= node.bounds[0] and node.bounds[1] <= INT32[1]
    return node if fits else lowering.graph.make("wrap32", node)


def _mapped(function: Callable[..., Expression], *nodes: Any) -> np.ndarray:
    """Return an array of `function` applied to the corresponding nodes of arrays of one shape."""
    made = np.empty(nodes[0].shape, object)
    for place in np.ndindex(made.shape):
        made[place] = function(*(node[place] for node in nodes))
    return made


def _first_of(name: str) -> Any:
    def rule(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
        """Return the instance's index at which the extreme value is."""
        if len(cells.shape) != 1 or not has_instances(cells.shape, lowering.graph):
            raise NotAsDataError(
                "the place of an extreme is an operation of a table only across instances"
            )
        node = lowering.graph.make(name + (".f" if cells.is_real else ""), cells.node)
        return Cells((), np.dtype(out.dtype), grid(node, ()))

    return rule


def _summed_up(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    if cells.is_real or params["reverse"] or len(cells.shape) != 1:
        raise NotAsDataError("a running sum of float64 is no operation of a table")
    if has_instances(cells.shape, lowering.graph):
        node = lowering.graph.make("running_sum", cells.node)
        made = grid(node, ())
    else:
        made = np.empty(cells.shape, object)
        for at, node in enumerate(cells.nodes):
            made[at] = node if at == 0 else lowering.graph.make("add", made[at - 1], node)
    if out.dtype == jnp.int32:
        made = _mapped(lambda node: _within_int32(lowering, node), made)
    return Cells(cells.shape, np.dtype(out.dtype), made)


# --- places that are known only when the table runs -----------------------------------------------


def _taken(
    lowering: Tabulation, params: Parameters, out: ShapedArray, operand: Any, *starts: Cells
) -> Cells:
    """Return the slice: the rule of JAX's `dynamic_slice`."""
    dtype, sizes = np.dtype(out.dtype), params["slice_sizes"]
    if isinstance(operand, RouterStream):
        node = lowering.graph.draw("draw", starts[0].node)
        return Cells((1,), dtype, grid(node, () if lowering.graph.num_instances == 1 else (1,)))
    if len(operand.shape) == 1 and sizes == (1,):
        node = _at(lowering, operand, bare(starts[0].node))
        return Cells((1,), dtype, grid(node, () if has_instances((1,), lowering.graph) else (1,)))
    entries = elements(operand, lowering.graph)
    for axis, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        length, place = entries.shape[axis], bare(start.node)
        if size == length:
            continue
        along = np.moveaxis(entries, axis, 0)
        made = np.empty((size, *along.shape[1:]), object)
        for at in range(size):
            for rest in np.ndindex(along.shape[1:]):
                choices = [along[(first + at, *rest)] for first in range(length - size + 1)]
                made[(at, *rest)] = _pick(lowering.graph, choices, place)
        entries = np.moveaxis(made, 0, axis)
    return assembled(entries, dtype, lowering.graph)


def _pick(graph: ExpressionGraph, entries: list[Expression], at: Expression) -> Expression:
    """Return the entry at the index `at`; an index out of range is clipped."""
    made = entries[-1]
    for place in range(len(entries) - 2, -1, -1):
        is_it = graph.make("le", at, graph.constant(place))
        made = graph.make("select", is_it, entries[place], made)
    return made


def _at(lowering: Tabulation, cells: Cells, place: Expression) -> Expression:
    """Return the entry at an index of a one-dimensional array."""
    if has_instances(cells.shape, lowering.graph):
        return lowering.graph.make("at", cells.node, place)
    return _pick(lowering.graph, list(cells.nodes), place)


def _gathered(
    lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells, places: Cells
) -> Cells:
    """Return the gathered entries: the rule of JAX's `gather`, for indices into one axis."""
    numbers, graph, dtype = params["dimension_numbers"], lowering.graph, np.dtype(out.dtype)
    axes, sizes = numbers.start_index_map, params["slice_sizes"]
    is_plain = len(axes) == 1 and tuple(numbers.collapsed_slice_dims) == tuple(axes)
    is_plain &= not numbers.operand_batching_dims
    rest = [size for axis, size in enumerate(cells.shape) if axis not in axes]
    if not is_plain or [size for axis, size in enumerate(sizes) if axis not in axes] != rest:
        raise NotAsDataError("taking entries by places in several axes is no operation of a table")
    batch = tuple(places.shape[:-1])
    index = assembled(elements(places, graph).reshape(batch), places.dtype, graph)
    rows = np.moveaxis(elements(cells, graph), axes[0], -1)
    made = np.empty(rest, object)
    for place in np.ndindex(*rest):
        row = assembled(rows[place], cells.dtype, graph)
        gathered = lowering.each(
            lambda at, row=row: _found(lowering, params, row, bare(at)),
            CellsForm(batch, dtype),
            index,
        )
        made[place] = elements(gathered, graph)
    entries = np.stack([*made.reshape(-1)]).reshape(*rest, *batch) if rest else made[()]
    offsets = [axis for axis in range(len(out.shape)) if axis not in numbers.offset_dims]
    order = [*numbers.offset_dims, *offsets]
    return assembled(entries.transpose(np.argsort(order)), dtype, graph)


def _found(lowering: Tabulation, params: Parameters, row: Cells, place: Expression) -> Expression:
    """Return the entry at an index, or the fill value that JAX's `gather` has beyond the ends."""
    graph, size = lowering.graph, row.shape[0]
    entries = _at(lowering, row, place)
    if params["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP:
        return entries
    fills = params["fill_value"]
    if fills is None:
        is_whole = row.dtype.kind == "i"
        fills = np.nan if row.is_real else np.iinfo(row.dtype).min if is_whole else True
    from_first = graph.make("le", graph.constant(0), place)
    is_in = graph.make("and", from_first, graph.make("lt", place, graph.constant(size)))
    return graph.make("select", is_in, entries, graph.constant(np.asarray(fills, row.dtype)))


def _put(
    lowering: Tabulation,
    params: Parameters,
    out: ShapedArray,
    cells: Cells,
    places: Cells,
    new: Cells,
) -> Cells:
    """Return the updated array: the rule of JAX's `scatter` into a one-dimensional array."""
    graph, dtype = lowering.graph, np.dtype(out.dtype)
    if (
        len(cells.shape) != 1
        or params["mode"] == jax.lax.GatherScatterMode.CLIP
        or len(new.shape) > 1
    ):
        raise NotAsDataError("writing at places in several axes is no operation of a table")
    index = assembled(elements(places, graph).reshape(new.shape), places.dtype, graph)
    if has_instances(cells.shape, graph) and has_instances(new.shape, graph):
        node = lowering.graph.make("put", index.node, new.node, cells.node)
        return Cells(cells.shape, dtype, grid(node, ()))
    entries = elements(cells, graph).copy()
    pairs = zip(elements(index, graph).reshape(-1), elements(new, graph).reshape(-1), strict=True)
    for place, value in pairs:
        for at in range(len(entries)):
            is_it = lowering.graph.make("eq", place, graph.constant(at))
            entries[at] = lowering.graph.make("select", is_it, value, entries[at])
    return assembled(entries, dtype, graph)


def _placed(
    lowering: Tabulation,
    params: Parameters,
    out: ShapedArray,
    cells: Cells,
    new: Cells,
    *starts: Cells,
) -> Cells:
    """Return the updated array: the rule of JAX's `dynamic_update_slice`, for one entry."""
    if len(cells.shape) != 1 or new.shape != (1,):
        raise NotAsDataError("writing a part of an array is no operation of a table")
    graph, size = lowering.graph, cells.shape[0]
    least = graph.make("max", starts[0].node, graph.constant(0))
    clipped = graph.make("min", least, graph.constant(size - 1))
    (value,) = elements(new, graph)
    if has_instances(cells.shape, graph):
        is_it = lowering.graph.make("eq", graph.place, clipped)
        node = lowering.graph.make("select", is_it, value, cells.node)
        return Cells(cells.shape, np.dtype(out.dtype), grid(node, ()))
    entries = [
        lowering.graph.make(
            "select", lowering.graph.make("eq", clipped, graph.constant(at)), value, before
        )
        for at, before in enumerate(cells.nodes)
    ]
    return assembled(grid(entries, cells.shape), np.dtype(out.dtype), graph)


RULES: Mapping[str, Any] = {
    "copy": _reshaped, "copy_p": _reshaped, "stop_gradient": _reshaped,
    "squeeze": _reshaped, "reshape": _reshaped, "expand_dims": _reshaped, "broadcast_in_dim": _broadcast,
    "slice": _sliced, "pad": _padded, "concatenate": _joined, "stack": _stacked, "transpose": _turned,
    "rev": _turned, "iota": _counted, "reduce_sum": _reduced("sum", "add"), "reduce_min": _reduced("least", "min"),
    "reduce_max": _reduced("most", "max"), "reduce_or": _reduced("most", "or"), "reduce_and": _reduced("least", "and"),
    "argmax": _first_of("first_most"), "argmin": _first_of("first_least"), "cumsum": _summed_up,
    "dynamic_slice": _taken, "gather": _gathered, "scatter": _put, "dynamic_update_slice": _placed,
}  # fmt: skip
