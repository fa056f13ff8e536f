"""A traced function as nodes: what each operation of JAX becomes, and what has no form in a table.

A table rounds every operation on its own. So where the compiler may contract a product with the sum that it enters, or
multiply by a reciprocal, the function is refused: `exact_product` and `exact_quotient` say that it must not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from blis_jax.errors import ConfigError
from blis_jax.policies.as_data.arrays import (
    Value,
    assembled,
    elements,
    grid,
    has_instances,
)
from blis_jax.policies.as_data.graph import (
    HIDDEN,
    INT32,
    ROUNDED,
    Graph,
    Node,
    bare,
    is_power_of_two,
)
from blis_jax.policies.routing.pickers import draw_below

NUM_DRAWS = 1_234_567_891  # stands for their number, which is known when the table runs
INFINITY = "infinity"
DTYPES = ("bool", "int32", "int64", "float64")
EXACT = "a product that enters a sum may be rounded with it; write exact_product(a, b) of blis_jax.policies"
QUOTIENT = "a quotient by one number may become a product; write exact_quotient(a, b) of blis_jax.policies"


class NotAsDataError(ConfigError):
    """A policy has no form as a table of operations."""


class Draws:
    """The router's stream, which is no array of nodes."""


class Lowering:
    """Turn a traced function into nodes."""

    def __init__(self, graph: Graph) -> None:
        """`graph` makes the nodes."""
        self.graph = graph

    def run(self, jaxpr: Any, constants: Any, arguments: list[Any]) -> list[Any]:
        """Return what a traced function returns for these values.

        Raises:
            NotAsDataError: an operation has no form in a table; the sentence says which.
        """
        known: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return self.literal(atom.val, atom.aval) if isinstance(atom, core.Literal) else known[atom]

        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = self.literal(np.asarray(constant), variable.aval)
        known |= zip(jaxpr.invars, arguments, strict=True)
        for equation in jaxpr.eqns:
            given = [read(atom) for atom in equation.invars]
            found = self._equation(equation, given)
            known |= zip(equation.outvars, found, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, given: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr") or params.get("call_jaxpr")
        if inner is not None and name in ("pjit", "jit", "closed_call", "custom_jvp_call"):
            return self.run(inner.jaxpr, inner.consts, given)
        if name == "while":
            return [self._next_draw(equation, given)]
        rule = RULES.get(name)
        out = equation.outvars[0].aval
        if rule is None or any(isinstance(one, Draws) for one in given) and name != "dynamic_slice":
            raise NotAsDataError(f"{name} is no operation of a table")
        if str(getattr(out, "dtype", "")) not in DTYPES:
            raise NotAsDataError(f"{name} makes {out.str_short()}; a table has {', '.join(DTYPES)}")
        return [rule(self, params, out, *given)]

    def literal(self, constant: Any, aval: Any) -> Value:
        """Return the nodes of a constant."""
        array = np.asarray(constant, aval.dtype)
        if str(array.dtype) not in DTYPES:
            raise NotAsDataError(f"it has {array.dtype} numbers; a table has {', '.join(DTYPES)}")
        made = np.empty(array.shape, object)
        for place, one in np.ndenumerate(array):
            made[place] = self._constant(one)
        return assembled(made, array.dtype, self.graph)

    def _constant(self, one: Any) -> Node:
        if one.dtype.kind == "i" and int(one) in (NUM_DRAWS, NUM_DRAWS - 1):
            name = "num_draws" if int(one) == NUM_DRAWS else "last_draw"
            return self.graph.input(name, True, (0, INT32[1]))
        return self.graph.constant(one)

    def each(self, function: Callable[..., Node], out: Any, *given: Value) -> Value:
        """Return an array of what a function makes of every node of others of its shape, or of scalars."""
        shape = tuple(out.shape)
        made = np.empty(shape[:-1] if has_instances(shape, self.graph) else shape, object)
        nodes = [one.nodes if one.shape else grid(one.node, made.shape) for one in given]
        for place in np.ndindex(made.shape):
            made[place] = function(*(one[place] for one in nodes))
        return Value(shape, np.dtype(out.dtype), made)

    def moved(self, function: Callable[..., np.ndarray], out: Any, *given: Value) -> Value:
        """Return an array whose entries are those of others, as numpy moves them."""
        entries = function(*(elements(one, self.graph) for one in given))
        return assembled(entries.reshape(out.shape), np.dtype(out.dtype), self.graph)

    def _next_draw(self, equation: Any, given: list[Any]) -> Value:
        """Return where a loop over the stream ends that draws again what is above a limit, as `draw_below` has it."""
        texts = tuple(str(equation.params[part]) for part in ("cond_jaxpr", "body_jaxpr"))
        if texts != _draw_loop() or not isinstance(given[0], Draws):
            raise NotAsDataError("a loop whose end is known only when it runs is no operation of a table")
        most, start = given[1:]
        made = self.graph.draw("next_draw", start.node, most.node)
        return Value((), np.dtype(np.int32), grid(made, ()))

    def pick(self, entries: list[Node], at: Node) -> Node:
        """Return the entry at a place; places out of range are the nearest."""
        made = entries[-1]
        for place in range(len(entries) - 2, -1, -1):
            is_it = self.graph.make("le", at, self.graph.constant(place))
            made = self.graph.make("select", is_it, entries[place], made)
        return made


@functools.cache
def _draw_loop() -> tuple[str, ...]:
    """Return the condition and body of the loop in `draw_below`."""
    with jax.enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(size, jnp.int32) for size in ((NUM_DRAWS,), (), ())]
        made = jax.make_jaxpr(draw_below)(*shapes)
    (loop,) = (one for one in made.jaxpr.eqns if one.primitive.name == "while")
    return tuple(str(loop.params[part]) for part in ("cond_jaxpr", "body_jaxpr"))


# --- element by element ---------------------------------------------------------------------------


def _plain(whole: str, real: str = "", int32: str = "") -> Any:
    """Return the rule of an operation of its own name: on whole numbers, on float64, on int32 which may wrap."""

    def rule(lowering: Lowering, params: Any, out: Any, *given: Value) -> Value:
        name = real if given[-1].is_real else whole
        if not name:
            raise NotAsDataError(f"{whole or real} of {given[-1].dtype} is no operation of a table")

        def one(*nodes: Node) -> Node:
            if not given[-1].is_real and int32 and out.dtype == jnp.int32:
                wide = lowering.graph.make(name, *nodes)
                fits = INT32[0] <= wide.bounds[0] and wide.bounds[1] <= INT32[1]
                if not fits:
                    wide = lowering.graph.make(int32, *((wide,) if int32 == "wrap32" else nodes))
                return wide
            return lowering.graph.make(name, *nodes)

        return lowering.each(one, out, *given)

    return rule


def _sum_of(whole: str, real: str, int32: str) -> Any:
    inner = _plain(whole, real, int32)

    def rule(lowering: Lowering, params: Any, out: Any, *given: Value) -> Value:
        if given[0].is_real and any(node.contracts for one in given for node in one.nodes.flat):
            raise NotAsDataError(EXACT)
        made: Value = inner(lowering, params, out, *given)
        return made

    return rule


def _product(lowering: Lowering, params: Any, out: Any, *given: Value) -> Value:
    def one(*nodes: Node) -> Node:
        for first, second in (nodes, nodes[::-1]):
            is_chain = second.operation == "mul.f" and any(x.constant is not None for x in second.operands)
            if first.constant is not None and is_chain:
                raise NotAsDataError(EXACT)
        return lowering.graph.make("mul.f", *nodes)

    if given[0].is_real:
        return lowering.each(one, out, *given)
    made: Value = _plain("mul", "", "mul32")(lowering, params, out, *given)
    return made


def _quotient(lowering: Lowering, params: Any, out: Any, above: Value, below: Value) -> Value:
    if not above.is_real:
        made: Value = _plain("div", "", "wrap32")(lowering, params, out, above, below)
        return made

    def one(first: Node, second: Node) -> Node:
        divisor = bare(second)
        if second.operation == HIDDEN:  # of exact_quotient: where(a == a, b, a)
            if divisor.operation == "select" and divisor.operands[0] is lowering.graph.make("eq.f", first, first):
                divisor = divisor.operands[1]
        elif not is_power_of_two(divisor) and (divisor.constant is not None or (
            divisor.is_scalar and has_instances(below.shape, lowering.graph))):
            raise NotAsDataError(QUOTIENT)
        return lowering.graph.make("div.f", first, divisor)

    return lowering.each(one, out, above, below)


def _least_of(lowering: Lowering, params: Any, out: Any, *given: Value) -> Value:
    def one(*nodes: Node) -> Node:
        for first, second in (nodes, nodes[::-1]):
            if second.what == INFINITY:  # of exact_product
                return lowering.graph.marked(ROUNDED, first)
        return lowering.graph.make("min.f", *nodes)

    if given[0].is_real:
        return lowering.each(one, out, *given)
    made: Value = _plain("min")(lowering, params, out, *given)
    return made


def _compared(name: str, swaps: bool = False, negates: bool = False) -> Any:
    def rule(lowering: Lowering, params: Any, out: Any, *given: Value) -> Value:
        def one(first: Node, second: Node) -> Node:
            pair = (second, first) if swaps else (first, second)
            made = lowering.graph.make(f"{name}.f" if given[0].is_real else name, *pair)
            return lowering.graph.negated(made) if negates else made

        return lowering.each(one, out, *given)

    return rule


def _not(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    flip = lowering.graph.constant(np.int64(1 if one.dtype == np.bool_ else -1))
    return lowering.each(lambda node: lowering.graph.make("xor", node, flip), out, one)


def _select(lowering: Lowering, params: Any, out: Any, which: Value, *cases: Value) -> Value:
    if len(cases) != 2 or which.dtype != np.bool_:
        raise NotAsDataError("a choice among more than two is no operation of a table")
    def one(truth: Node, other: Node, then: Node) -> Node:
        return lowering.graph.make("select", truth, then, other)

    return lowering.each(one, out, which, *cases)


def _converted(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    to = np.dtype(out.dtype)

    def convert(node: Node) -> Node:
        if to.kind == "b":
            zero = lowering.graph.constant(np.float64(0) if one.is_real else np.int64(0))
            is_zero = lowering.graph.make("eq.f" if one.is_real else "eq", node, zero)
            return node if one.dtype.kind == "b" else lowering.graph.negated(is_zero)
        if to.kind == "f":
            return node if one.is_real else lowering.graph.make("real", node)
        if one.is_real:
            return lowering.graph.make("int32" if to == np.int32 else "int", node)
        fits = INT32[0] <= node.bounds[0] and node.bounds[1] <= INT32[1]
        return node if to == np.int64 or fits else lowering.graph.make("wrap32", node)

    return lowering.each(convert, out, one)


def _clamped(lowering: Lowering, params: Any, out: Any, low: Value, one: Value, high: Value) -> Value:
    suffix = ".f" if one.is_real else ""
    return lowering.each(
        lambda least, node, most: lowering.graph.make(
            f"min{suffix}", lowering.graph.make(f"max{suffix}", least, node), most
        ),
        out, low, one, high,
    )  # fmt: skip


def _power(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    power = params.get("y", 2)
    if not one.is_real or power not in (1, 2):
        raise NotAsDataError("a whole power above 2 is no operation of a table")
    return lowering.each(lambda x: lowering.graph.make("mul.f", x, x) if power == 2 else x, out, one)


def _rounded(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    to_even = params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN
    return lowering.each(
        lambda node: lowering.graph.make("round.f" if to_even else "round_away.f", node), out, one
    )


def _finite(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    most = lowering.graph.constant(math.inf)
    return lowering.each(
        lambda node: lowering.graph.make("lt.f", lowering.graph.make("abs.f", node), most), out, one
    )


def _barrier(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    return lowering.each(lambda node: lowering.graph.marked(HIDDEN, node), out, one)


# --- shapes ---------------------------------------------------------------------------------------


def _reshaped(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    return lowering.moved(lambda entries: entries, out, one)


def _broadcast(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    shape, axes = tuple(out.shape), params["broadcast_dimensions"]
    kept = has_instances(shape, lowering.graph)
    if not one.shape:
        return Value(shape, np.dtype(out.dtype), grid(one.node, shape[:-1] if kept else shape))
    between = [1] * len(shape)
    for axis, size in zip(axes, one.shape, strict=True):
        between[axis] = size
    if kept and has_instances(one.shape, lowering.graph) and axes[-1] == len(shape) - 1:
        nodes = np.broadcast_to(one.nodes.reshape(between[:-1]), shape[:-1])
        return Value(shape, np.dtype(out.dtype), nodes)
    return lowering.moved(lambda entries: np.broadcast_to(entries.reshape(between), shape), out, one)


def _sliced(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    strides = params["strides"] or (1,) * len(one.shape)
    parts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return lowering.moved(lambda entries: entries[tuple(slice(*part) for part in parts)], out, one)


def _padded(lowering: Lowering, params: Any, out: Any, one: Value, filler: Value) -> Value:
    if any(low < 0 or high < 0 or inner for low, high, inner in params["padding_config"]):
        raise NotAsDataError("padding by less than nothing is no operation of a table")
    made = grid(filler.node, tuple(out.shape))
    at = tuple(
        slice(low, low + size)
        for (low, _, _), size in zip(params["padding_config"], one.shape, strict=True)
    )
    made[at] = elements(one, lowering.graph)
    return assembled(made, np.dtype(out.dtype), lowering.graph)


def _joined(lowering: Lowering, params: Any, out: Any, *given: Value) -> Value:
    axis = params["dimension"]
    return lowering.moved(lambda *all_: np.concatenate(all_, axis), out, *given)


def _stacked(lowering: Lowering, params: Any, out: Any, *given: Value) -> Value:
    axis = params.get("axis", 0)
    return lowering.moved(lambda *all_: np.stack(all_, axis), out, *given)


def _turned(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    if "permutation" in params:
        return lowering.moved(lambda entries: entries.transpose(params["permutation"]), out, one)
    return lowering.moved(lambda entries: np.flip(entries, params["dimensions"]), out, one)


def _counted(lowering: Lowering, params: Any, out: Any) -> Value:
    shape, axis = tuple(out.shape), params["dimension"]
    dtype = np.dtype(out.dtype)
    if has_instances(shape, lowering.graph) and axis == len(shape) - 1:
        place = lowering.graph.place
        node = lowering.graph.make("real", place) if dtype.kind == "f" else place
        return Value(shape, dtype, grid(node, shape[:-1]))
    along = np.arange(shape[axis], dtype=dtype).reshape(
        [-1 if one == axis else 1 for one in range(len(shape))]
    )
    return lowering.literal(np.broadcast_to(along, shape), out)


# --- across entries -------------------------------------------------------------------------------


def _reduced(lane: str, pair: str) -> Any:
    """Return the rule of a reduction: across instances one operation, across other axes one entry after another."""

    def rule(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
        graph, suffix = lowering.graph, ".f" if one.is_real else ""
        if pair == "add" and one.is_real and any(node.contracts for node in one.nodes.flat):
            raise NotAsDataError(EXACT)
        axes = set(params["axes"])
        last = len(one.shape) - 1
        nodes = one.nodes
        is_vector = has_instances(one.shape, graph)
        if is_vector and last in axes:
            nodes = _mapped(lambda node: lowering.graph.make(lane + suffix, node), nodes)
            axes.discard(last)
        for axis in sorted(axes, reverse=True):
            parts = [np.asarray(part, object) for part in np.moveaxis(nodes, axis, 0)]
            begun = graph.constant(np.float64(0)) if pair == "add" and one.is_real else None
            made = parts.pop(0) if begun is None else grid(begun, parts[0].shape)
            for part in parts:
                made = _paired(lambda a, b: lowering.graph.make(pair + suffix, a, b), made, part)
            nodes = made
        if pair == "add" and out.dtype == jnp.int32:
            nodes = _mapped(lambda node: _within_int32(lowering, node), nodes)
        entries = nodes
        if is_vector and last not in params["axes"]:
            return Value(tuple(out.shape), np.dtype(out.dtype), entries)
        return assembled(entries, np.dtype(out.dtype), graph)

    return rule


def _within_int32(lowering: Lowering, node: Node) -> Node:
    fits = INT32[0] <= node.bounds[0] and node.bounds[1] <= INT32[1]
    return node if fits else lowering.graph.make("wrap32", node)


def _mapped(function: Callable[[Node], Node], nodes: np.ndarray) -> np.ndarray:
    made = np.empty(nodes.shape, object)
    for place in np.ndindex(made.shape):
        made[place] = function(nodes[place])
    return made


def _paired(function: Callable[[Node, Node], Node], first: Any, second: Any) -> np.ndarray:
    one, two = np.asarray(first, object), np.asarray(second, object)
    made = np.empty(one.shape, object)
    for place in np.ndindex(made.shape):
        made[place] = function(one[place], two[place])
    return made


def _first_of(name: str) -> Any:
    def rule(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
        if len(one.shape) != 1 or not has_instances(one.shape, lowering.graph):
            raise NotAsDataError("the place of an extreme in another array than one of instances is no operation of a table")
        node = lowering.graph.make(name + (".f" if one.is_real else ""), one.node)
        return Value((), np.dtype(out.dtype), grid(node, ()))

    return rule


def _summed_up(lowering: Lowering, params: Any, out: Any, one: Value) -> Value:
    if one.is_real or params["reverse"] or len(one.shape) != 1:
        raise NotAsDataError("a running sum of float64 is no operation of a table")
    if has_instances(one.shape, lowering.graph):
        node = lowering.graph.make("running_sum", one.node)
        made = grid(node, ())
    else:
        made = np.empty(one.shape, object)
        for at, node in enumerate(one.nodes):
            made[at] = node if at == 0 else lowering.graph.make("add", made[at - 1], node)
    if out.dtype == jnp.int32:
        made = _mapped(lambda node: _within_int32(lowering, node), made)
    return Value(one.shape, np.dtype(out.dtype), made)


# --- places that are known only when the table runs -----------------------------------------------


def _taken(lowering: Lowering, params: Any, out: Any, one: Any, *starts: Value) -> Value:
    """Return the rule of dynamic_slice."""
    dtype, sizes = np.dtype(out.dtype), params["slice_sizes"]
    if isinstance(one, Draws):
        node = lowering.graph.draw("draw", starts[0].node)
        return Value((1,), dtype, grid(node, () if lowering.graph.num_instances == 1 else (1,)))
    if len(one.shape) == 1 and sizes == (1,):
        node = _at(lowering, one, bare(starts[0].node))
        return Value((1,), dtype, grid(node, () if has_instances((1,), lowering.graph) else (1,)))
    entries = elements(one, lowering.graph)
    for axis, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        length, place = entries.shape[axis], bare(start.node)
        if size == length:
            continue
        along = np.moveaxis(entries, axis, 0)
        made = np.empty((size, *along.shape[1:]), object)
        for at in range(size):
            for rest in np.ndindex(along.shape[1:]):
                choices = [along[(first + at, *rest)] for first in range(length - size + 1)]
                made[(at, *rest)] = lowering.pick(choices, place)
        entries = np.moveaxis(made, 0, axis)
    return assembled(entries, dtype, lowering.graph)


def _at(lowering: Lowering, one: Value, place: Node) -> Node:
    """Return the entry of a one-dimensional array."""
    if has_instances(one.shape, lowering.graph):
        return lowering.graph.make("at", one.node, place)
    return lowering.pick(list(one.nodes), place)


def _gathered(lowering: Lowering, params: Any, out: Any, one: Value, places: Value) -> Value:
    """Return the rule of gather, of indices into one axis."""
    numbers, graph, dtype = params["dimension_numbers"], lowering.graph, np.dtype(out.dtype)
    axes, sizes = numbers.start_index_map, params["slice_sizes"]
    is_plain = len(axes) == 1 and tuple(numbers.collapsed_slice_dims) == tuple(axes) and not numbers.operand_batching_dims
    rest = [size for axis, size in enumerate(one.shape) if axis not in axes]
    if not is_plain or [size for axis, size in enumerate(sizes) if axis not in axes] != rest:
        raise NotAsDataError("taking entries by places in several axes is no operation of a table")
    batch = tuple(places.shape[:-1])
    index = assembled(elements(places, graph).reshape(batch), places.dtype, graph)
    rows = np.moveaxis(elements(one, graph), axes[0], -1)
    made = np.empty(rest, object)
    for place in np.ndindex(*rest):
        row = assembled(rows[place], one.dtype, graph)
        found = lowering.each(lambda at, row=row: _found(lowering, params, row, bare(at)), _Shape(batch, dtype), index)
        made[place] = elements(found, graph)
    entries = np.stack([*made.reshape(-1)]).reshape(*rest, *batch) if rest else made[()]
    offsets = [axis for axis in range(len(out.shape)) if axis not in numbers.offset_dims]
    order = [*numbers.offset_dims, *offsets]
    return assembled(entries.transpose(np.argsort(order)), dtype, graph)


class _Shape:
    """A shape and dtype, as a traced value has them."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


def _found(lowering: Lowering, params: Any, row: Value, place: Node) -> Node:
    """Return the entry at a place, and what a gather has beyond the ends."""
    graph, size = lowering.graph, row.shape[0]
    found = _at(lowering, row, place)
    if params["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP:
        return found
    fills = params["fill_value"]
    if fills is None:
        fills = np.nan if row.is_real else np.iinfo(row.dtype).min if row.dtype.kind == "i" else True
    is_in = lowering.graph.make("and", lowering.graph.make("le", graph.constant(0), place), lowering.graph.make("lt", place, graph.constant(size)))
    return lowering.graph.make("select", is_in, found, graph.constant(np.asarray(fills, row.dtype)))


def _put(lowering: Lowering, params: Any, out: Any, one: Value, places: Value, new: Value) -> Value:
    """Return the rule of a scatter that writes entries of a vector."""
    graph, dtype = lowering.graph, np.dtype(out.dtype)
    if len(one.shape) != 1 or params["mode"] == jax.lax.GatherScatterMode.CLIP or len(new.shape) > 1:
        raise NotAsDataError("writing at places in several axes is no operation of a table")
    index = assembled(elements(places, graph).reshape(new.shape), places.dtype, graph)
    if has_instances(one.shape, graph) and has_instances(new.shape, graph):
        node = lowering.graph.make("put", index.node, new.node, one.node)
        return Value(one.shape, dtype, grid(node, ()))
    entries = elements(one, graph).copy()
    pairs = zip(elements(index, graph).reshape(-1), elements(new, graph).reshape(-1), strict=True)
    for place, value in pairs:
        for at in range(len(entries)):
            is_it = lowering.graph.make("eq", place, graph.constant(at))
            entries[at] = lowering.graph.make("select", is_it, value, entries[at])
    return assembled(entries, dtype, graph)


def _placed(lowering: Lowering, params: Any, out: Any, one: Value, new: Value, *starts: Value) -> Value:
    """Return the rule of dynamic_update_slice of one entry."""
    if len(one.shape) != 1 or new.shape != (1,):
        raise NotAsDataError("writing a part of an array is no operation of a table")
    graph, size = lowering.graph, one.shape[0]
    clipped = lowering.graph.make("min", lowering.graph.make("max", starts[0].node, graph.constant(0)), graph.constant(size - 1))
    (value,) = elements(new, graph)
    if has_instances(one.shape, graph):
        is_it = lowering.graph.make("eq", graph.place, clipped)
        node = lowering.graph.make("select", is_it, value, one.node)
        return Value(one.shape, np.dtype(out.dtype), grid(node, ()))
    entries = [
        lowering.graph.make("select", lowering.graph.make("eq", clipped, graph.constant(at)), value, before)
        for at, before in enumerate(one.nodes)
    ]
    return assembled(grid(entries, one.shape), np.dtype(out.dtype), graph)


RULES: Mapping[str, Any] = {
    "add": _sum_of("add", "add.f", "add32"), "sub": _sum_of("sub", "sub.f", "sub32"),
    "add_any": _sum_of("add", "add.f", "add32"), "mul": _product, "div": _quotient,
    "rem": _plain("rem", "rem.f"), "neg": _plain("neg", "neg.f", "wrap32"), "abs": _plain("abs", "abs.f", "wrap32"),
    "sign": _plain("sign", "sign.f"), "min": _least_of, "max": _plain("max", "max.f"),
    "and": _plain("and"), "or": _plain("or"), "xor": _plain("xor"), "not": _not,
    "lt": _compared("lt"), "le": _compared("le"), "eq": _compared("eq"),
    "gt": _compared("lt", swaps=True), "ge": _compared("le", swaps=True), "ne": _compared("eq", negates=True),
    "floor": _plain("", "floor.f"), "ceil": _plain("", "ceil.f"), "sqrt": _plain("", "sqrt.f"),
    "exp": _plain("", "exp.f"), "log": _plain("", "log.f"), "log1p": _plain("", "log1p.f"),
    "pow": _plain("", "pow.f"), "integer_pow": _power, "square": _power, "round": _rounded, "is_finite": _finite,
    "select_n": _select, "convert_element_type": _converted, "clamp": _clamped,
    "optimization_barrier": _barrier, "copy": _reshaped, "copy_p": _reshaped, "stop_gradient": _reshaped,
    "squeeze": _reshaped, "reshape": _reshaped, "expand_dims": _reshaped, "broadcast_in_dim": _broadcast,
    "slice": _sliced, "pad": _padded, "concatenate": _joined, "stack": _stacked, "transpose": _turned,
    "rev": _turned, "iota": _counted, "reduce_sum": _reduced("sum", "add"), "reduce_min": _reduced("least", "min"),
    "reduce_max": _reduced("most", "max"), "reduce_or": _reduced("most", "or"), "reduce_and": _reduced("least", "and"),
    "argmax": _first_of("first_most"), "argmin": _first_of("first_least"), "cumsum": _summed_up,
    "dynamic_slice": _taken, "gather": _gathered, "scatter": _put, "dynamic_update_slice": _placed,
}  # fmt: skip
