"""Arithmetic and comparisons of Go's numbers, rounded as in Go; results of known numbers are known while JAX traces."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.lazy import jnp, lax
from sweeps.evolve.stepping.basics import (
    INT,
    REAL,
    BareShift,
    Length,
    UnreadText,
    Value,
    alike,
    as_text,
    is_text,
    known,
    looked_up,
    no,
    static_bool,
    table_of,
    value_of,
)


def _wrapped(function: Callable[..., Value], first: Value, second: Value) -> Value:
    with np.errstate(all="ignore"):
        return function(first, second)


def add(first: Value, second: Value) -> Value:
    """Return `first + second`."""
    if isinstance(first, UnreadText) or isinstance(second, UnreadText):
        return UnreadText()
    if isinstance(first, Length) and known(second):
        return first.moved(int(second))
    if isinstance(second, Length) and known(first):
        return second.moved(int(first))
    if is_text(first) or is_text(second):
        if isinstance(first, str) and isinstance(second, str):
            return first + second
        return UnreadText()
    return _wrapped(operator.add, *alike(first, second))


def sub(first: Value, second: Value) -> Value:
    """Return `first - second`."""
    if isinstance(first, Length) and known(second):
        return first.moved(-int(second))
    return _wrapped(operator.sub, *alike(first, second))


def mul(first: Value, second: Value) -> Value:
    """Return `first * second`, rounded on its own (never fused with an addition)."""
    a, b = alike(first, second)
    if (known(a) and known(b)) or not is_real(a):
        return _wrapped(operator.mul, a, b)
    if np.dtype(a.dtype) == np.float32:  # the product of two float32 is exact in float64
        return (jnp.asarray(a, REAL) * jnp.asarray(b, REAL)).astype(np.float32)
    return exact_product(a, b)


def div(first: Value, second: Value) -> Value:
    """Return `first / second`; whole numbers are divided toward zero."""
    if isinstance(first, Length) and known(second) and int(second) > 0 and first.least >= 0:
        by = int(second)
        return Length(
            lax.div(first.value, jnp.asarray(by, INT)), first.most // by, first.least // by
        )
    a, b = alike(first, second)
    if not is_real(a):
        if known(a) and known(b):
            with np.errstate(all="ignore"):
                whole = abs(int(a)) // abs(int(b)) if int(b) else 0
            return type(a)(whole if (int(a) < 0) == (int(b) < 0) else -whole)
        return lax.div(*_same_shape(a, b))
    if known(a) and known(b):
        return _wrapped(operator.truediv, np.asarray(a)[()], b)
    if np.dtype(a.dtype) == np.float32:
        return exact_quotient(jnp.asarray(a, REAL), jnp.asarray(b, REAL)).astype(np.float32)
    return exact_quotient(a, b)


def rem(first: Value, second: Value) -> Value:
    """Return `first % second`, with the sign of `first`."""
    if isinstance(second, Length) and known(first):
        first = INT(first)
    a, b = alike(first, second)
    if known(a) and known(b):
        return type(a)(np.fmod(int(a), int(b))) if int(b) else a
    rest = lax.rem(*_same_shape(a, b))
    if isinstance(second, Length) and not known(a):
        return Length(rest, second.most - 1, 1 - second.most)
    return rest


def _same_shape(first: Value, second: Value) -> tuple[Value, Value]:
    return jnp.asarray(first), jnp.asarray(second)


def bits(sign: str, first: Value, second: Value) -> Value:
    """Return the bitwise operation `sign`: `&`, `|`, `^`, `&^`, `<<` or `>>`."""
    if sign in ("<<", ">>"):
        a, by = value_of(first), value_of(second)
        if isinstance(a, int) and sign == "<<":
            return a << int(by) if known(by) else BareShift(a, by)
        if isinstance(a, int):
            a = INT(a)
        if known(a) and known(by):
            moved = int(a) << int(by) if sign == "<<" else int(a) >> int(by)
            return np.asarray(moved & (2**64 - 1), np.uint64).astype(type(a))[()]
        a, by = jnp.asarray(a), jnp.asarray(by).astype(a.dtype)
        if sign == "<<":
            return lax.shift_left(a, by)
        is_signed = np.issubdtype(a.dtype, np.signedinteger)
        return (lax.shift_right_arithmetic if is_signed else lax.shift_right_logical)(a, by)
    a, b = alike(first, second)
    if sign == "&^":
        return a & ~b
    return {"&": operator.and_, "|": operator.or_, "^": operator.xor}[sign](a, b)


def negative(value: Value) -> Value:
    """Return `-value`."""
    return _wrapped(operator.sub, *alike(0, value)) if not is_real(value_of(value)) else -value


def inverted(value: Value) -> Value:
    """Return `^value`."""
    return ~value_of(value)


def is_real(value: Value) -> bool:
    """Return whether a number is a float."""
    return isinstance(value, float) or (
        not isinstance(value, (bool, int)) and bool(np.issubdtype(value.dtype, np.floating))
    )


def less(first: Value, second: Value) -> Value:
    """Return whether `first < second`."""
    if isinstance(first, Length) or isinstance(second, Length):
        (low, high), (least, most) = _between(first), _between(second)
        if high < least:
            return True
        if low >= most:
            return False
    return compared(operator.lt, first, second)


def not_more(first: Value, second: Value) -> Value:
    """Return whether `first <= second`."""
    if isinstance(first, Length) or isinstance(second, Length):
        return no(less(second, first))
    return compared(operator.le, first, second)


def _between(value: Value) -> tuple[float, float]:
    if isinstance(value, Length):
        return value.least, value.most
    return (value, value) if known(value) else (-np.inf, np.inf)


def compared(function: Callable[..., Value], first: Value, second: Value) -> Value:
    """Return the result of a comparison of two numbers, or of two texts in alphabetical order."""
    if is_text(first) or is_text(second):
        first_text, two = as_text(first), as_text(second)
        rank = {
            text: place
            for place, text in enumerate(sorted({*table_of(first_text), *table_of(two)}))
        }
        return static_bool(function(looked_up(first_text, rank.get), looked_up(two, rank.get)))
    return static_bool(function(*alike(first, second)))
