"""Which values are known while JAX traces; masks; and texts selected from tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import jax, jnp, lax

Value = Any  # a number of NumPy or JAX, a text, or a place: which one is known while JAX traces
INT, REAL = np.int64, np.float64


class Nil:
    """Go's nil; also the type of a variable that starts as nil."""

    def zero(self) -> Nil:
        """Return nil."""
        return self

    def __call__(self, value: Value) -> Value:
        """Return the value unchanged."""
        return value


NIL = Nil()


class UnreadText:
    """A text for human readers only, such as a log line; its content is not computed."""


@dataclass(frozen=True)
class SessionName:
    """The name of a session; only whether the request has a session is known."""

    is_there: Value


@dataclass(frozen=True)
class Snap:
    """A snapshot, by its place in the slice of snapshots; -1 is nil."""

    place: Value


@dataclass(frozen=True, eq=False)
class InstanceId:
    """The ID of the instance at a place; the ID at place -1 is empty."""

    place: Value
    router: Value

    @property
    def text(self) -> Value:
        """Return the ID as a text."""
        row = self.place
        if self.router._row is not None:
            row = jnp.where(row >= 0, self.router._row[row], -1)
        names = ("", *(f"instance_{number}" for number in range(self.router.size)))
        return names[int(row) + 1] if known(row) else TableText(names, row + 1)


@dataclass(frozen=True, eq=False)
class TableText:
    """A text selected from a table by a traced index."""

    table: tuple[str, ...]
    index: Value


@dataclass(frozen=True, eq=False)
class Length:
    """A traced whole number, with the bounds between which it lies."""

    value: Value
    most: int
    least: int = 0

    def moved(self, by: int) -> Length:
        """Return the number plus a known number, with its bounds moved too."""
        return Length(self.value + by, self.most + by, self.least + by)


@dataclass(frozen=True, eq=False)
class BareShift:
    """An untyped constant shifted by a traced number; the result takes the type of the other operand."""

    first: int
    by: Value

    def of(self, kind: Value) -> Value:
        """Return the shifted constant as a number of the dtype `kind`."""
        return lax.shift_left(jnp.asarray(self.first, kind), jnp.asarray(self.by).astype(kind))


def known(value: Value) -> bool:
    """Return whether a number is known while JAX traces."""
    return isinstance(value, (bool, int, float, np.generic))


def value_of(value: Value) -> Value:
    """Return a number without its known bounds."""
    if isinstance(value, BareShift):
        return value.of(INT)
    return value.value if isinstance(value, Length) else value


def static_bool(value: Value) -> Value:
    """Return a condition; as a Python bool where the condition is known while JAX traces.

    Raises:
        ConfigError: the value is not a condition.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if not isinstance(value, (jax.Array, np.ndarray)) or value.dtype != bool:
        raise ConfigError("a bool is wanted")
    return jnp.asarray(value)


def both_masks(first: Value, second: Value) -> Value:
    """Return the mask that holds where both masks hold."""
    if first is False or second is False:
        return False
    if first is True or first is second:
        return second
    return first if second is True else first & second


def no(mask: Value) -> Value:
    """Return the mask that holds where `mask` does not."""
    mask = static_bool(mask)
    return not mask if isinstance(mask, bool) else ~mask


def any_mask(first: Value, second: Value) -> Value:
    """Return the mask that holds where at least one of the masks holds."""
    return no(both_masks(no(first), no(second)))


def alike(first: Value, second: Value) -> tuple[Value, Value]:
    """Return two numbers in one type; an untyped constant takes the type of the other number.

    Raises:
        ConfigError: a value is not a number, or the types differ.
    """
    first, second = (
        jnp.asarray(number) if isinstance(number, np.ndarray) else number
        for number in (
            number if isinstance(number, BareShift) else value_of(number)
            for number in (first, second)
        )
    )
    for number in (first, second):
        if not known(number) and not isinstance(number, (jax.Array, BareShift)):
            raise ConfigError(f"{named(number)} is no number")
    kinds = [None if isinstance(number, (bool, int, float, BareShift)) else np.dtype(number.dtype)
             for number in (first, second)]  # fmt: skip
    if None not in kinds and kinds[0] != kinds[1]:
        raise ConfigError(f"numbers of two types, {kinds[0]} and {kinds[1]}")
    kind = kinds[0] or kinds[1]
    if kind is None:
        return value_of(first), value_of(second)
    return of_kind(first, kind), of_kind(second, kind)


def of_kind(value: Value, kind: np.dtype[Value]) -> Value:
    """Return a number in the dtype `kind` if it is an untyped constant; else unchanged."""
    if isinstance(value, BareShift):
        return value.of(kind)
    return kind.type(value) if isinstance(value, (bool, int, float)) else value


def named(value: Value) -> str:
    """Return a noun for a value, for error messages."""
    names = {"SliceValue": "a slice", "MapValue": "a map", "StructValue": "a struct", "Pointer": "a pointer",
             "TableText": "a text", "str": "a text", "InstanceId": "an ID", "SessionName": "a session's name",
             "Nil": "nil", "Snap": "a snapshot", "UnreadText": "a text of fmt"}  # fmt: skip
    return names.get(type(value).__name__, "this")


def is_bare(value: Value, old: Value) -> bool:
    """Return whether `value` is an untyped constant and `old` a number that has a type."""
    return (
        isinstance(value, (int, float, BareShift))
        and not isinstance(value, bool)
        and hasattr(old, "dtype")
    )


def is_text(value: Value) -> bool:
    """Return whether a value is a known text, a text from a table, or an ID."""
    return isinstance(value, (str, TableText, InstanceId))


def as_text(value: Value) -> Value:
    """Return a text as a Python string where the text is known, else as a text from a table.

    Raises:
        ConfigError: the text cannot be known, such as words of fmt and names of sessions.
    """
    text = value.text if isinstance(value, InstanceId) else value
    if not isinstance(text, (str, TableText)):
        raise ConfigError(f"{named(value)} is no text that is known here")
    return text


def table_of(text: Value) -> tuple[str, ...]:
    """Return all texts that a text may turn out to be."""
    return text.table if isinstance(text, TableText) else (text,)


def looked_up(text: Value, function: Callable[[str], Value]) -> Value:
    """Apply a function to a text; a text from a table is looked up in the function's values on the table."""
    if isinstance(text, str):
        return function(text)
    return jnp.asarray(np.array([function(entry) for entry in text.table]))[text.index]


def of_text(function: Callable[[str], Value], text: Value) -> Value:
    """Apply a function whose result is a text, a bool or a whole number to a text."""
    text = as_text(text)
    if isinstance(text, str):
        return function(text)
    answers = [function(entry) for entry in text.table]
    if isinstance(answers[0], str):
        return TableText(tuple(answers), text.index)
    if isinstance(answers[0], bool):
        return looked_up(text, function)
    return Length(looked_up(text, function).astype(INT), max(answers), min(answers))
