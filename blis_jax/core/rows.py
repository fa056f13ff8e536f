"""Typed rows: one row of a table with its fields under their names.

A row is read by field (`instance.load`) and changed by field (`instance.replace(load=...)`). Inside it is one vector of
whole numbers and, where the row has times, one of times, see columns.py for why: a branch of a compiled run takes and
gives back one buffer sooner than many scalars. Nothing outside this module knows the places of the fields.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from blis_jax.core.columns import Columns, Vector, get, is_apart, put

Whole: TypeAlias = Annotated[jax.Array, "int32"]
Moment: TypeAlias = Annotated[jax.Array, "clock"]  # a time in µs


class _Field:
    """One field of a row: the part of the row it is in, and its place there."""

    def __init__(self, part: int, place: int) -> None:
        """Part 0 holds whole numbers, part 1 times."""
        self.part, self.place = part, place

    def __get__(self, row: Row | None, owner: type | None = None) -> Any:
        """The field's value, or the field itself where the class is asked."""
        return self if row is None else row._entry(self.part, self.place)


class Row:
    """A row whose fields are the annotations of its class: `Whole` numbers, then times (`Moment`).

    `columns` and `time_columns` give the places of the fields to code that reads whole tables, as enumerations in
    capital letters: `Instance.columns.LOAD`.
    """

    columns: ClassVar[Any]
    time_columns: ClassVar[Any]
    _fields: ClassVar[dict[str, _Field]]
    __slots__ = ("numbers", "times")

    def __init__(self, numbers: Vector, times: Vector = None) -> None:
        """The row in its two vectors; `make` builds one by field."""
        self.numbers, self.times = numbers, times

    def __init_subclass__(cls) -> None:
        """Find the fields, and tell JAX that instances are containers of arrays."""
        kinds: dict[str, list[str]] = {"Whole": [], "Moment": []}
        written = {Whole: "Whole", Moment: "Moment"}
        for base in reversed(cls.__mro__):
            for name, given in inspect.get_annotations(base).items():
                kind = given if isinstance(given, str) else written.get(given, "")
                if kind in kinds and name not in kinds[kind]:
                    kinds[kind].append(name)
        cls._fields = {}
        for part, names in enumerate(kinds.values()):
            for place, name in enumerate(names):
                cls._fields[name] = _Field(part, place)
                setattr(cls, name, cls._fields[name])
        cls.columns = _enumeration(cls.__name__, kinds["Whole"])
        cls.time_columns = _enumeration(f"{cls.__name__}Time", kinds["Moment"])
        jax.tree_util.register_pytree_node(
            cls, lambda row: ((row.numbers, row.times), None), lambda _, parts: cls(*parts)
        )

    def _entry(self, part: int, place: int) -> jax.Array:
        return get(self.times if part else self.numbers, place)

    @classmethod
    def make(cls, clock: DTypeLike | None = None, **values: ArrayLike) -> Self:
        """Make a row of all its fields, times in the dtype `clock`; the entries are apart until a branch ends.

        Raises:
            TypeError: a field is missing, or there is none of that name.
        """
        cls._check(values)
        if missing := [name for name in cls._fields if name not in values]:
            raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
        entries: tuple[list[Any], list[Any]] = ([], [])
        for name, field in cls._fields.items():
            entries[field.part].append(
                jnp.asarray(values[name]).astype(clock if field.part else jnp.int32)
            )
        times = Columns(tuple(entries[1])) if entries[1] else None
        return cls(Columns(tuple(entries[0])), times)

    @classmethod
    def filled(cls, clock: DTypeLike | None = None, number: int = 0, time: ArrayLike = 0) -> Self:
        """Make a row with one number and one time in all fields, as arrays."""
        numbers = jnp.full((len(cls.columns),), number, jnp.int32)
        times = jnp.full((len(cls.time_columns),), time, clock) if len(cls.time_columns) else None
        return cls(numbers, times)

    @classmethod
    def _check(cls, values: Iterable[str]) -> None:
        if unknown := [name for name in values if name not in cls._fields]:
            raise TypeError(f"{cls.__name__} has no field {unknown[0]!r}")

    def replace(self, **changes: jax.Array) -> Self:
        """Return the row with some fields changed.

        Raises:
            TypeError: there is no field of that name.
        """
        self._check(changes)
        parts = [self.numbers, self.times]
        for part in range(2):
            mine = {
                self._fields[name].place: value
                for name, value in changes.items()
                if self._fields[name].part == part
            }
            parts[part] = put(parts[part], mine) if mine else parts[part]
        return type(self)(*parts)

    def with_rest_of(self, wider: Self) -> Self:
        """Return this row, and behind its fields what lies behind those of another one; see joined.py."""
        if not is_apart(wider.numbers):
            return self
        return type(self)(
            Columns((*self.numbers.entries, *wider.numbers.entries[len(self.columns) :])),
            self.times,
        )


def _enumeration(name: str, fields: list[str]) -> Any:
    return enum.IntEnum(name, {field.upper(): place for place, field in enumerate(fields)})
