"""The operations of a policy's table, `[instance]` each, on the bits of float64 and of whole numbers.

A register is int64 `[instance]`: a bool is stored as 0 or 1, an int32 as itself, a float64 as its bits, and a scalar as
equal entries. Each operation is rounded separately: its operands are read from registers, so that the compiler cannot
fuse it with another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.lazy import jax, jnp, lax

if TYPE_CHECKING:
    from jaxtyping import Array, Int

    Register = Int[Array, "instance"]


class Operation(NamedTuple):
    """An operation of a table.

    Attributes:
        num_operands: how many of the three operands the operation reads.
        run: function from the operands' registers to the result's register.
        is_by_place: whether it works entry by entry, so that equal entries yield equal entries.
        is_folded: whether it may be computed when the table is built; not so for functions that a compiler
            approximates.
        commutes: whether the first two operands may be swapped.
    """

    num_operands: int
    run: Callable[[Register, Register, Register], Register]
    is_by_place: bool = True
    is_folded: bool = True
    commutes: bool = False


def as_real(bits: jax.Array) -> jax.Array:
    """Return the float64 that has these bits."""
    return lax.bitcast_convert_type(bits, jnp.float64)


def as_bits(value: jax.Array) -> jax.Array:
    """Return the bits with which a register stores a bool, a whole number or a float64."""
    if value.dtype == jnp.float64:
        return lax.bitcast_convert_type(value, jnp.int64)
    return value.astype(jnp.int64)


def _wrapped(value: jax.Array) -> jax.Array:
    return value.astype(jnp.int32).astype(jnp.int64)


def _of(function: Callable[..., jax.Array], size: int, **more: Any) -> Operation:
    """Return the operation that applies `function` to whole numbers."""
    return Operation(size, lambda *operands: as_bits(function(*operands[:size])), **more)


def _wrapping(function: Callable[..., jax.Array], size: int, **more: Any) -> Operation:
    """Return the operation that applies `function` to int32, wrapping around."""
    return Operation(size, lambda *operands: _wrapped(function(*operands[:size])), **more)


def _real(function: Callable[..., jax.Array], size: int, **more: Any) -> Operation:
    """Return the operation that applies `function` to float64."""
    return Operation(
        size, lambda *operands: as_bits(function(*map(as_real, operands[:size]))), **more
    )


def _near(values: jax.Array) -> jax.Array:
    return lax.round(values, lax.RoundingMethod.TO_NEAREST_EVEN)


def _away(values: jax.Array) -> jax.Array:
    return lax.round(values, lax.RoundingMethod.AWAY_FROM_ZERO)


# --- across instances -----------------------------------------------------------------------------


def _at(values: Register, places: Register) -> Register:
    return values.at[jnp.clip(places, 0, values.shape[0] - 1)].get(mode="promise_in_bounds")


def _put(places: Register, values: Register, before: Register) -> Register:
    """Return `before` with values written at places, one after another; places out of range are ignored."""
    rows = lax.iota(jnp.int64, before.shape[0])
    last = jnp.max(jnp.where(places[None, :] == rows[:, None], rows[None, :], -1), axis=1)
    return jnp.where(last >= 0, _at(values, last), before)


def _same(value: jax.Array, like: Register) -> Register:
    return jnp.broadcast_to(as_bits(value), like.shape)


def _across(function: Callable[[jax.Array], jax.Array], is_real: bool = False) -> Operation:
    """Return the operation that reduces a vector over the instances."""
    convert = as_real if is_real else jnp.asarray
    return Operation(
        1, lambda values, *_: _same(function(convert(values)), values), is_by_place=False
    )


def _first(is_it: jax.Array) -> jax.Array:
    rows = lax.iota(jnp.int64, is_it.shape[0])
    return jnp.min(jnp.where(is_it, rows, is_it.shape[0] - 1))


def _first_extreme(extreme: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return the operation that yields the index of the first extreme value, or of the first NaN if there is one."""

    def place(values: jax.Array) -> jax.Array:
        best = extreme(values)
        return _first(jnp.where(best == best, values == best, values != values))

    return place


def _running_sum(values: Register) -> Register:
    rows = lax.iota(jnp.int64, values.shape[0])
    return jnp.sum(jnp.where(rows[None, :] <= rows[:, None], values[None, :], 0), axis=1)


OPERATIONS: dict[str, Operation] = {
    # whole numbers and truths
    "add": _of(jnp.add, 2, commutes=True),
    "sub": _of(jnp.subtract, 2),
    "mul": _of(jnp.multiply, 2, commutes=True),
    "div": _of(lax.div, 2),
    "rem": _of(lax.rem, 2),
    "neg": _of(jnp.negative, 1),
    "abs": _of(jnp.abs, 1),
    "sign": _of(jnp.sign, 1),
    "min": _of(jnp.minimum, 2, commutes=True),
    "max": _of(jnp.maximum, 2, commutes=True),
    "and": _of(jnp.bitwise_and, 2, commutes=True),
    "or": _of(jnp.bitwise_or, 2, commutes=True),
    "xor": _of(jnp.bitwise_xor, 2, commutes=True),
    "lt": _of(jnp.less, 2),
    "le": _of(jnp.less_equal, 2),
    "eq": _of(jnp.equal, 2, commutes=True),
    "add32": _wrapping(jnp.add, 2, commutes=True),
    "sub32": _wrapping(jnp.subtract, 2),
    "mul32": _wrapping(jnp.multiply, 2, commutes=True),
    "wrap32": _wrapping(jnp.asarray, 1),
    # float64
    "add.f": _real(jnp.add, 2, commutes=True),
    "sub.f": _real(jnp.subtract, 2),
    "mul.f": _real(jnp.multiply, 2, commutes=True),
    "div.f": _real(jnp.divide, 2),
    "rem.f": _real(lax.rem, 2),
    "min.f": _real(jnp.minimum, 2),
    "max.f": _real(jnp.maximum, 2),
    "neg.f": _real(jnp.negative, 1),
    "abs.f": _real(jnp.abs, 1),
    "sign.f": _real(jnp.sign, 1),
    "floor.f": _real(jnp.floor, 1),
    "ceil.f": _real(jnp.ceil, 1),
    "round.f": _real(_near, 1),
    "round_away.f": _real(_away, 1),
    "sqrt.f": _real(jnp.sqrt, 1),
    "exp.f": _real(jnp.exp, 1, is_folded=False),
    "log.f": _real(jnp.log, 1, is_folded=False),
    "log1p.f": _real(jnp.log1p, 1, is_folded=False),
    "pow.f": _real(lax.pow, 2, is_folded=False),
    "lt.f": _real(jnp.less, 2),
    "le.f": _real(jnp.less_equal, 2),
    "eq.f": _real(jnp.equal, 2, commutes=True),
    "real": Operation(1, lambda value, *_: as_bits(value.astype(jnp.float64))),
    "int": Operation(1, lambda value, *_: as_real(value).astype(jnp.int64)),
    "int32": Operation(1, lambda value, *_: as_bits(as_real(value).astype(jnp.int32))),
    # of the places where the first operand is 1 the second's, else the third's
    "select": Operation(3, lambda condition, two, three: jnp.where(condition != 0, two, three)),
    # across instances
    "at": Operation(2, lambda values, two, _: _at(values, two), is_by_place=False),
    "put": Operation(3, _put, is_by_place=False),
    "sum": _across(jnp.sum),
    "least": _across(jnp.min),
    "most": _across(jnp.max),
    "first_most": _across(_first_extreme(jnp.max)),
    "first_least": _across(_first_extreme(jnp.min)),
    "running_sum": Operation(1, lambda values, *_: _running_sum(values), is_by_place=False),
    "sum.f": _across(jnp.sum, is_real=True),
    "least.f": _across(jnp.min, is_real=True),
    "most.f": _across(jnp.max, is_real=True),
    "first_most.f": _across(_first_extreme(jnp.max), is_real=True),
    "first_least.f": _across(_first_extreme(jnp.min), is_real=True),
}  # fmt: skip
# of the router's stream, which is no register: the number at a place, and the first place from one on whose number is
# not above a limit
OF_DRAWS = {"draw": 1, "next_draw": 2}
CODES = {name: code for code, name in enumerate((*OPERATIONS, *OF_DRAWS))}
