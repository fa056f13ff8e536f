"""Lower a traced function to nodes: what each JAX primitive becomes, and which primitives have no form in a table.

A table rounds every operation separately. A function is therefore refused where the compiler may fuse a product with a
following sum, or multiply by a reciprocal in place of a division; `exact_product` and `exact_quotient` forbid the
compiler both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import AbstractValue, ShapedArray
from jax.extend import core

from blis_jax.policies.as_data import moving
from blis_jax.policies.as_data.graph import (
    HIDDEN,
    INT32,
    ROUNDED,
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
    is_power_of_two,
)
from blis_jax.policies.reading import NotAsDataError
from blis_jax.policies.routing.pickers import draw_below

NUM_DRAWS = 1_234_567_891  # stands for their number, which is known when the table runs
INFINITY = "infinity"
DTYPES = ("bool", "int32", "int64", "float64")
QUOTIENT = (
    "a quotient by one number may become a product; write exact_quotient(a, b) of blis_jax.policies"
)


class Tabulation:
    """Turns a traced function into nodes."""

    def __init__(self, graph: ExpressionGraph) -> None:
        """Collect the nodes in `graph`."""
        self.graph = graph

    def run(
        self, jaxpr: core.Jaxpr, constants: Sequence[object], arguments: list[Any]
    ) -> list[Any]:
        """Return what the traced function `jaxpr` returns for these constants and arguments.

        Raises:
            NotAsDataError: an operation has no form in a table; the message says which.
        """
        known: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return (
                self.literal(atom.val, atom.aval) if isinstance(atom, core.Literal) else known[atom]
            )

        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = self.literal(np.asarray(constant), variable.aval)
        known |= zip(jaxpr.invars, arguments, strict=True)
        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            results = self._equation(equation, operands)
            known |= zip(equation.outvars, results, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: core.JaxprEqn, operands: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr") or params.get("call_jaxpr")
        if inner is not None and name in ("pjit", "jit", "closed_call", "custom_jvp_call"):
            return self.run(inner.jaxpr, inner.consts, operands)
        if name == "while":
            return [self._next_draw(equation, operands)]
        rule = RULES.get(name) or moving.RULES.get(name)
        out = equation.outvars[0].aval
        if rule is None or (
            any(isinstance(operand, RouterStream) for operand in operands)
            and name != "dynamic_slice"
        ):
            raise NotAsDataError(f"{name} is no operation of a table")
        if str(getattr(out, "dtype", "")) not in DTYPES:
            raise NotAsDataError(f"{name} makes {out.str_short()}; a table has {', '.join(DTYPES)}")
        return [rule(self, params, out, *operands)]

    def literal(self, constant: object, aval: AbstractValue) -> Cells:
        """Return a constant as an array of nodes."""
        array = np.asarray(constant, getattr(aval, "dtype", None))
        if str(array.dtype) not in DTYPES:
            raise NotAsDataError(f"it has {array.dtype} numbers; a table has {', '.join(DTYPES)}")
        made = np.empty(array.shape, object)
        for place, number in np.ndenumerate(array):
            made[place] = self._constant(number)
        return assembled(made, array.dtype, self.graph)

    def _constant(self, number: np.generic) -> Expression:
        if number.dtype.kind == "i" and int(number) in (NUM_DRAWS, NUM_DRAWS - 1):
            name = "num_draws" if int(number) == NUM_DRAWS else "last_draw"
            return self.graph.input(name, True, (0, INT32[1]))
        return self.graph.constant(number)

    def each(
        self, function: Callable[..., Expression], out: ShapedArray | CellsForm, *cells: Cells
    ) -> Cells:
        """Return an array with the form of `out` whose nodes are `function` of the corresponding nodes of `cells`."""
        shape = tuple(out.shape)
        made = np.empty(shape[:-1] if has_instances(shape, self.graph) else shape, object)
        nodes = [self._spread(operand, shape, made.shape) for operand in cells]
        for place in np.ndindex(made.shape):
            made[place] = function(*(node[place] for node in nodes))
        return Cells(shape, np.dtype(out.dtype), made)

    def moved(self, function: Callable[..., np.ndarray], out: ShapedArray, *cells: Cells) -> Cells:
        """Return an array of the form `out` whose entries `function` moves, as numpy does, from those of `cells`."""
        entries = function(*(elements(operand, self.graph) for operand in cells))
        return assembled(entries.reshape(out.shape), np.dtype(out.dtype), self.graph)

    def _spread(
        self, cells: Cells, shape: tuple[int, ...], of_nodes: tuple[int, ...]
    ) -> np.ndarray:
        """Return an array's nodes broadcast to `shape`, as numpy broadcasts scalars and axes of length 1."""
        if cells.shape == shape:
            return cells.nodes
        if not cells.shape:
            return grid(cells.node, of_nodes)
        entries = np.broadcast_to(elements(cells, self.graph), shape)
        return assembled(entries, cells.dtype, self.graph).nodes

    def _next_draw(self, equation: core.JaxprEqn, operands: list[Any]) -> Cells:
        """Return the node of the stream position at which the loop of `draw_below` ends; refuses any other loop."""
        texts = tuple(str(equation.params[part]) for part in ("cond_jaxpr", "body_jaxpr"))
        if texts != _draw_loop() or not isinstance(operands[0], RouterStream):
            raise NotAsDataError(
                "a loop whose end is known only when it runs is no operation of a table"
            )
        most, start = operands[1:]
        made = self.graph.draw("next_draw", start.node, most.node)
        return Cells((), np.dtype(np.int32), grid(made, ()))


@functools.cache
def _draw_loop() -> tuple[str, ...]:
    """Return the condition and the body of the loop in `draw_below`, as texts."""
    with jax.enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(size, jnp.int32) for size in ((NUM_DRAWS,), (), ())]
        made = jax.make_jaxpr(draw_below)(*shapes)
    (loop,) = (eqn for eqn in made.jaxpr.eqns if eqn.primitive.name == "while")
    return tuple(str(loop.params[part]) for part in ("cond_jaxpr", "body_jaxpr"))


# --- element by element ---------------------------------------------------------------------------


def _plain(whole: str, real: str = "", int32: str = "") -> Any:
    """Return the rule of an operation by its names on whole numbers, on float64, and on int32 that may wrap around."""

    def rule(lowering: Tabulation, params: Parameters, out: ShapedArray, *cells: Cells) -> Cells:
        """Return the operation applied to each entry, in the version for float64 or for whole numbers."""
        name = real if cells[-1].is_real else whole
        if not name:
            raise NotAsDataError(f"{whole or real} of {cells[-1].dtype} is no operation of a table")

        def combine(*nodes: Expression) -> Expression:
            """Return the operation on one entry, wrapped around if the result may exceed int32."""
            if not cells[-1].is_real and int32 and out.dtype == jnp.int32:
                wide = lowering.graph.make(name, *nodes)
                fits = INT32[0] <= wide.bounds[0] and wide.bounds[1] <= INT32[1]
                if not fits:
                    wide = lowering.graph.make(int32, *((wide,) if int32 == "wrap32" else nodes))
                return wide
            return lowering.graph.make(name, *nodes)

        return lowering.each(combine, out, *cells)

    return rule


def _sum_of(whole: str, real: str, int32: str) -> Any:
    inner = _plain(whole, real, int32)

    def rule(lowering: Tabulation, params: Parameters, out: ShapedArray, *cells: Cells) -> Cells:
        if cells[0].is_real and any(
            node.contracts for operand in cells for node in operand.nodes.flat
        ):
            raise NotAsDataError(moving.EXACT)
        made: Cells = inner(lowering, params, out, *cells)
        return made

    return rule


def _product(lowering: Tabulation, params: Parameters, out: ShapedArray, *cells: Cells) -> Cells:
    def combine(*nodes: Expression) -> Expression:
        """Return the node of a product; refuses a product that the compiler could merge with another product."""
        for first, second in (nodes, nodes[::-1]):
            is_chain = second.operation == "mul.f" and any(
                x.constant is not None for x in second.operands
            )
            if first.constant is not None and is_chain:
                raise NotAsDataError(moving.EXACT)
        return lowering.graph.make("mul.f", *nodes)

    if cells[0].is_real:
        return lowering.each(combine, out, *cells)
    made: Cells = _plain("mul", "", "mul32")(lowering, params, out, *cells)
    return made


def _quotient(
    lowering: Tabulation, params: Parameters, out: ShapedArray, above: Cells, below: Cells
) -> Cells:
    if not above.is_real:
        made: Cells = _plain("div", "", "wrap32")(lowering, params, out, above, below)
        return made

    def combine(first: Expression, second: Expression) -> Expression:
        """Return the node of a quotient that is rounded as in the compiled policy."""
        divisor = bare(second)
        if second.operation == HIDDEN:  # of exact_quotient: where(a == a, b, a)
            if divisor.operation == "select" and divisor.operands[0] is lowering.graph.make(
                "eq.f", first, first
            ):
                divisor = divisor.operands[1]
        elif not is_power_of_two(divisor) and (
            divisor.constant is not None or (out.shape and divisor.is_scalar)
        ):
            raise NotAsDataError(QUOTIENT)
        return lowering.graph.make("div.f", first, divisor)

    return lowering.each(combine, out, above, below)


def _least_of(lowering: Tabulation, params: Parameters, out: ShapedArray, *cells: Cells) -> Cells:
    def combine(*nodes: Expression) -> Expression:
        for first, second in (nodes, nodes[::-1]):
            if second.what == INFINITY:  # of exact_product
                return lowering.graph.marked(ROUNDED, first)
        return lowering.graph.make("min.f", *nodes)

    if cells[0].is_real:
        return lowering.each(combine, out, *cells)
    made: Cells = _plain("min")(lowering, params, out, *cells)
    return made


def _compared(name: str, swaps: bool = False, negates: bool = False) -> Any:
    def rule(lowering: Tabulation, params: Parameters, out: ShapedArray, *cells: Cells) -> Cells:
        """Return the comparison of each pair of entries."""

        def combine(first: Expression, second: Expression) -> Expression:
            pair = (second, first) if swaps else (first, second)
            made = lowering.graph.make(f"{name}.f" if cells[0].is_real else name, *pair)
            return lowering.graph.negated(made) if negates else made

        return lowering.each(combine, out, *cells)

    return rule


def _not(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    flip = lowering.graph.constant(np.int64(1 if cells.dtype == np.bool_ else -1))
    return lowering.each(lambda node: lowering.graph.make("xor", node, flip), out, cells)


def _select(
    lowering: Tabulation, params: Parameters, out: ShapedArray, which: Cells, *cases: Cells
) -> Cells:
    if len(cases) != 2 or which.dtype != np.bool_:
        raise NotAsDataError("a choice among more than two is no operation of a table")

    def combine(truth: Expression, other: Expression, then: Expression) -> Expression:
        return lowering.graph.make("select", truth, then, other)

    return lowering.each(combine, out, which, *cases)


def _converted(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    to = np.dtype(out.dtype)

    def convert(node: Expression) -> Expression:
        """Return an entry converted to the output's type."""
        if to.kind == "b":
            zero = lowering.graph.constant(np.float64(0) if cells.is_real else np.int64(0))
            is_zero = lowering.graph.make("eq.f" if cells.is_real else "eq", node, zero)
            return node if cells.dtype.kind == "b" else lowering.graph.negated(is_zero)
        if to.kind == "f":
            return node if cells.is_real else lowering.graph.make("real", node)
        if cells.is_real:
            return lowering.graph.make("int32" if to == np.int32 else "int", node)
        fits = INT32[0] <= node.bounds[0] and node.bounds[1] <= INT32[1]
        return node if to == np.int64 or fits else lowering.graph.make("wrap32", node)

    return lowering.each(convert, out, cells)


def _clamped(
    lowering: Tabulation,
    params: Parameters,
    out: ShapedArray,
    low: Cells,
    cells: Cells,
    high: Cells,
) -> Cells:
    suffix = ".f" if cells.is_real else ""
    return lowering.each(
        lambda least, node, most: lowering.graph.make(
            f"min{suffix}", lowering.graph.make(f"max{suffix}", least, node), most
        ),
        out, low, cells, high,
    )  # fmt: skip


def _power(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    power = params.get("y", 2)
    if not cells.is_real or power not in (1, 2):
        raise NotAsDataError("a whole power above 2 is no operation of a table")
    return lowering.each(
        lambda x: lowering.graph.make("mul.f", x, x) if power == 2 else x, out, cells
    )


def _rounded(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    to_even = params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN
    return lowering.each(
        lambda node: lowering.graph.make("round.f" if to_even else "round_away.f", node), out, cells
    )


def _finite(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    most = lowering.graph.constant(math.inf)
    return lowering.each(
        lambda node: lowering.graph.make("lt.f", lowering.graph.make("abs.f", node), most),
        out,
        cells,
    )


def _barrier(lowering: Tabulation, params: Parameters, out: ShapedArray, cells: Cells) -> Cells:
    return lowering.each(lambda node: lowering.graph.marked(HIDDEN, node), out, cells)


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
    "optimization_barrier": _barrier,
}  # fmt: skip
