"""The primitives of a jaxpr that have a Go counterpart: one table, from which the reference page is made too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Elementwise:
    """Hold an operation element by element: how it is folded, and its Go text."""

    operation: str  # of the graph
    fold: Callable[..., Any] | None
    go: str  # an operator, or a function; "" where the emitter knows more
    go_whole: str = ""  # for whole numbers, where it differs


def _safely(function: Callable[..., Any]) -> Callable[..., Any]:
    def folded(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return folded


def _away_from_zero(value: Any) -> Any:
    return np.trunc(value + np.copysign(0.5, value))


def _truncated(above: Any, below: Any) -> Any:
    """Divide as XLA does: whole numbers are cut, and divided by 0 they give -1."""
    if isinstance(above, np.floating):
        return above / below
    if below == 0:
        return type(above)(-1)
    quotient = abs(int(above)) // abs(int(below))
    return type(above)(quotient if (above < 0) == (below < 0) else -quotient)


def _remainder(above: Any, below: Any) -> Any:
    if not isinstance(above, np.floating) and below == 0:
        return above
    return np.fmod(above, below)


ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise("add", np.add, "+"),
    "sub": Elementwise("sub", np.subtract, "-"),
    "mul": Elementwise("mul", np.multiply, "*"),
    "div": Elementwise("div", _truncated, "/", "quotient"),
    "rem": Elementwise("rem", _remainder, "math.Mod", "remainder"),
    "neg": Elementwise("neg", np.negative, "-"),
    "abs": Elementwise("abs", np.abs, "math.Abs", "absolute"),
    "sign": Elementwise("sign", np.sign, "sign", "sign"),
    "floor": Elementwise("floor", np.floor, "math.Floor"),
    "ceil": Elementwise("ceil", np.ceil, "math.Ceil"),
    "exp": Elementwise("exp", np.exp, "math.Exp"),
    "exp2": Elementwise("exp2", np.exp2, "math.Exp2"),
    "expm1": Elementwise("expm1", np.expm1, "math.Expm1"),
    "log": Elementwise("log", np.log, "math.Log"),
    "log1p": Elementwise("log1p", np.log1p, "math.Log1p"),
    "sqrt": Elementwise("sqrt", np.sqrt, "math.Sqrt"),
    "cbrt": Elementwise("cbrt", np.cbrt, "math.Cbrt"),
    "tanh": Elementwise("tanh", np.tanh, "math.Tanh"),
    "sin": Elementwise("sin", np.sin, "math.Sin"),
    "cos": Elementwise("cos", np.cos, "math.Cos"),
    "pow": Elementwise("pow", np.power, "math.Pow"),
    "min": Elementwise("min", np.minimum, "min"),
    "max": Elementwise("max", np.maximum, "max"),
    "eq": Elementwise("eq", np.equal, "=="),
    "ne": Elementwise("ne", np.not_equal, "!="),
    "lt": Elementwise("lt", np.less, "<"),
    "le": Elementwise("le", np.less_equal, "<="),
    "gt": Elementwise("gt", np.greater, ">"),
    "ge": Elementwise("ge", np.greater_equal, ">="),
    "and": Elementwise("and", np.bitwise_and, "&&", "&"),
    "or": Elementwise("or", np.bitwise_or, "||", "|"),
    "xor": Elementwise("xor", np.bitwise_xor, "!=", "^"),
    "not": Elementwise("not", np.invert, "!", "^"),
    "is_finite": Elementwise("is_finite", np.isfinite, "isFinite"),
}
ROUNDINGS = {0: "round_away", 1: "round_even"}
FOLDS: dict[str, Callable[..., Any]] = {
    one.operation: _safely(one.fold) for one in ELEMENTWISE.values() if one.fold is not None
}
FOLDS |= {"round_away": _away_from_zero, "round_even": np.rint}
GO = {one.operation: one for one in ELEMENTWISE.values()}
GO |= {
    "round_away": Elementwise("round_away", _away_from_zero, "math.Round"),
    "round_even": Elementwise("round_even", np.rint, "math.RoundToEven"),
}

# primitives that the lowering takes apart itself, and what becomes of them
STRUCTURAL = {
    "jit": "its equations in place of the call",
    "closed_call": "its equations in place of the call",
    "custom_jvp_call": "its equations in place of the call",
    "custom_vjp_call": "its equations in place of the call",
    "optimization_barrier": "nothing: Go does not rearrange floating-point operations",
    "copy": "nothing",
    "stop_gradient": "nothing",
    "convert_element_type": "a conversion; a real number becomes whole with saturation, as in XLA",
    "select_n": "an if or a switch",
    "clamp": "min and max",
    "round": "`math.Round` or `math.RoundToEven`",
    "integer_pow": "products",
    "square": "a product",
    "rsqrt": "a quotient and `math.Sqrt`",
    "logistic": "a quotient and `math.Exp`",
    "broadcast_in_dim": "a scalar or an element that is used for every endpoint",
    "reshape": "nothing, or places of a fixed axis",
    "squeeze": "nothing, or places of a fixed axis",
    "expand_dims": "nothing, or places of a fixed axis",
    "transpose": "nothing, or exchanged indices",
    "slice": "places of a fixed axis, or one endpoint",
    "dynamic_slice": "one endpoint, the index kept inside the list as in XLA",
    "stack": "places of a fixed axis",
    "concatenate": "places of a fixed axis",
    "rev": "the endpoint counted from the end",
    "iota": "the loop's index",
    "reduce_sum": "a loop that adds",
    "reduce_prod": "a loop that multiplies",
    "reduce_max": "a loop with max",
    "reduce_min": "a loop with min",
    "reduce_or": "a loop with ||",
    "reduce_and": "a loop with &&",
    "argmax": "a loop that keeps the first of the greatest, or a switch along a fixed axis",
    "argmin": "a loop that keeps the first of the least, or a switch along a fixed axis",
    "dot_general": "of two vectors, or a vector and a matrix: products and a sum",
    "cumsum": "a sum that the loop carries on",
    "random_bits": "inside `jax.random.uniform` and `bernoulli`: a draw of `math/rand/v2`",
    "random_split": "further draws",
}
# what has no counterpart, and what to do instead
PROPOSALS = {
    "sort": "rank with comparisons and sums, or take the best with argmax",
    "while": "write the loop out if its length is fixed",
    "scan": "write the loop out if its length is fixed",
    "cond": "use jnp.where: both branches are cheap",
    "gather": "index with one scalar at a time",
    "scatter-add": "use jnp.where with the index that jnp.arange gives",
    "scatter": "keep scalars in the state, or leave out this part of the strategy",
    "dynamic_update_slice": "keep scalars in the state, or leave out this part of the strategy",
    "dot_general": "write the sum out: jnp.sum(a * b), where it is more than a vector times a vector or a matrix",
    "random_fold_in": "draw from context.key; a draw that a run repeats has no counterpart in a router",
}
NO_PROPOSAL = "use the primitives of docs/reference/promoted-go.md, or leave out this policy and write a Map C row"
