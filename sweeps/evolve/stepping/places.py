"""Structs, pointers, and the choice between two values by a mask.

A struct is a place that a masked assignment changes. A pointer lists the places it may point to, each with a mask.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import jnp
from sweeps.evolve.stepping.basics import (
    INT,
    InstanceId,
    Nil,
    SessionName,
    Snap,
    TableText,
    UnreadText,
    Value,
    alike,
    any_mask,
    as_text,
    both_masks,
    is_bare,
    is_text,
    known,
    named,
    no,
    of_kind,
    table_of,
)
from sweeps.evolve.stepping.operations import compared

if TYPE_CHECKING:
    from sweeps.evolve.stepping.types import StructKind


def same(first: Value, second: Value) -> Value:
    """Return whether `first == second`."""
    first, second = copied(first), copied(second)
    if isinstance(first, SessionName) or isinstance(second, SessionName):
        session, two = (first, second) if isinstance(first, SessionName) else (second, first)
        if isinstance(two, str) and not two:
            return no(session.is_there)
        raise ConfigError("sessions have no names here; ask whether there is one")
    if isinstance(first, Nil) or isinstance(second, Nil):
        return _is_nil(second if isinstance(first, Nil) else first)
    if isinstance(first, Snap) and isinstance(second, Snap):
        return same(first.place, second.place)
    if isinstance(first, InstanceId) and isinstance(second, InstanceId):
        return same(first.place, second.place)
    if isinstance(first, InstanceId) and isinstance(second, str) and not second:
        return same(first.place, -1)
    if isinstance(first, Pointer) and isinstance(second, Pointer):
        pairs = [(a, b) for a in first.places for b in second.places if a[1] is b[1]]
        either: Value = both_masks(_is_nil(first), _is_nil(second))
        for one_, two_ in pairs:
            either = any_mask(either, both_masks(one_[0], two_[0]))
        return either
    if isinstance(first, StructValue) and isinstance(second, StructValue):
        parts = [same(first.fields[name], second.fields[name]) for name in first.fields]
        return functools.reduce(both_masks, parts, True)
    if isinstance(first, bool) and isinstance(second, bool):
        return first == second
    return compared(operator.eq, first, second)


def _is_nil(value: Value) -> Value:
    if isinstance(value, Pointer):
        return no(functools.reduce(any_mask, [mask for mask, _ in value.places], False))
    if isinstance(value, Snap):
        return same(value.place, -1)
    if hasattr(value, "part"):  # a slice
        return same(value.count, 0)
    return isinstance(value, Nil)


def chosen(mask: Value, new: Value, old: Value) -> Value:
    """Return `new` where the mask holds, else `old`.

    Raises:
        ConfigError: the values have different types.
    """
    if mask is True or new is old:
        return new
    if mask is False:
        return old
    if isinstance(new, Nil) or isinstance(old, Nil):
        other = old if isinstance(new, Nil) else new
        is_number = known(other) or hasattr(other, "dtype")  # of a type that is a parameter
        empty = other.emptied() if hasattr(other, "emptied") else 0 if is_number else Snap(-1)
        new, old = (empty, other) if other is old else (other, empty)
    for kind, choose in CHOICES:
        if isinstance(new, kind) and isinstance(old, kind):
            return choose(mask, new, old)
    if is_text(new) and is_text(old):
        return _chosen_text(mask, new, old)
    if isinstance(new, UnreadText) or isinstance(old, UnreadText):
        return UnreadText()
    if isinstance(new, bool) and isinstance(old, bool):
        return new if new == old else (mask if new else no(mask))
    first, second = alike(new, old)
    if known(first) and known(second) and first == second:
        return second
    return jnp.where(mask, first, second)


def _chosen_text(mask: Value, new: Value, old: Value) -> Value:
    router = next((text.router for text in (new, old) if isinstance(text, InstanceId)), None)
    if router is not None:
        new, old = (InstanceId(-1, router) if isinstance(text, str) and not text else text
                    for text in (new, old))  # fmt: skip
        if isinstance(new, InstanceId) and isinstance(old, InstanceId):
            return InstanceId(chosen(mask, INT(new.place) if known(new.place) else new.place,
                                     INT(old.place) if known(old.place) else old.place), router)  # fmt: skip
    first_text, two = as_text(new), as_text(old)
    if isinstance(first_text, str) and first_text == two:
        return first_text
    first, second = (
        part.index if isinstance(part, TableText) else INT(0) for part in (first_text, two)
    )
    return TableText(
        (*table_of(first_text), *table_of(two)),
        jnp.where(mask, first, second + len(table_of(first_text))),
    )


def copied(value: Value) -> Value:
    """Return a value as Go's assignment copies it: structs and arrays are copied, slices and maps are shared."""
    if isinstance(value, Pointer) and value.is_place:
        return record_of(value)
    if isinstance(value, CopiedValue):
        return value.copied()
    return value


class CopiedValue(ABC):
    """A struct or an array: a value that an assignment copies."""

    @abstractmethod
    def copied(self) -> CopiedValue:
        """Return a copy of the value."""

    @abstractmethod
    def assign(self, other: Value, mask: Value) -> None:
        """Assign the parts of another value where the mask holds."""


@dataclass(eq=False)
class StructValue(CopiedValue):
    """A struct of Go."""

    of: StructKind
    fields: dict[str, Value]

    def get(self, name: str) -> Value:
        """Return a field; a struct or an array comes as the field itself, so that it can be assigned."""
        if name not in self.fields:
            raise ConfigError(f"{self.of.name} has no field {name}")
        return self.fields[name]

    def put(self, name: str, value: Value, mask: Value) -> None:
        """Assign a field where the mask holds."""
        old = self.get(name)
        if isinstance(old, CopiedValue):
            old.assign(value, mask)
        else:
            self.fields[name] = chosen(mask, value, old) if not is_bare(value, old) else of_kind(
                value, np.dtype(old.dtype)) if mask is True else chosen(mask, value, old)  # fmt: skip

    def copied(self) -> StructValue:
        """Return a copy of the struct."""
        return StructValue(self.of, {name: copied(value) for name, value in self.fields.items()})

    def assign(self, other: Value, mask: Value) -> None:
        """Assign another struct's fields where the mask holds."""
        for name, value in record_of(other).fields.items():
            self.put(name, value, mask)


def _chosen_record(mask: Value, new: StructValue, old: StructValue) -> StructValue:
    pairs = {name: chosen(mask, new.fields[name], old.fields[name]) for name in new.fields}
    return StructValue(new.of, pairs)


@dataclass(eq=False)
class Pointer:
    """A pointer: the places it may point to, each with a mask; `is_place` marks the place itself, as by `*pointer`."""

    places: list[tuple[Value, Value]]
    of: Value
    is_place: bool = False

    def get(self, name: str) -> Value:
        """Return a field of the struct that the pointer points to."""
        parts = [(mask, place.get(name)) for mask, place in self.places]
        if not parts:
            raise ConfigError(f"a field of nil is not read: {name}")
        if isinstance(parts[0][1], StructValue) and len(parts) > 1:
            return Pointer(parts, parts[0][1].of, is_place=True)
        chosen_value = parts[0][1]
        for mask, value in parts[1:]:
            chosen_value = chosen(mask, value, chosen_value)
        return chosen_value

    def put(self, name: str, value: Value, mask: Value) -> None:
        """Assign a field of the struct that the pointer points to, where the mask holds."""
        for is_it, place in self.places:
            place.put(name, value, both_masks(mask, is_it))

    def assign(self, value: Value, mask: Value) -> None:
        """Assign the struct that the pointer points to, where the mask holds."""
        for is_it, place in self.places:
            place.assign(value, both_masks(mask, is_it))

    def emptied(self) -> Pointer:
        """Return a nil pointer of the same type."""
        return Pointer([], self.of)


def _chosen_pointer(mask: Value, new: Pointer, old: Pointer) -> Pointer:
    merged: list[tuple[Value, Value]] = []
    for pointer, where in ((new, mask), (old, no(mask))):
        for is_it, place in pointer.places:
            here = both_masks(is_it, where)
            other = next(
                (n for n, (_, known_place) in enumerate(merged) if known_place is place), None
            )
            if other is None:
                merged.append((here, place))
            else:
                merged[other] = any_mask(merged[other][0], here), place
    return Pointer(merged, new.of)


def pointer_to(value: Value) -> Value:
    """Return `&value`.

    Raises:
        ConfigError: the value is neither a struct nor a snapshot.
    """
    if isinstance(value, Pointer):
        return Pointer(value.places, value.of)
    if isinstance(value, StructValue):
        return Pointer([(True, value)], value.of)
    if isinstance(value, Snap):
        return value
    raise ConfigError(f"a pointer to {named(value)} is not read")


def place_at(value: Value) -> Value:
    """Return `*value`."""
    return Pointer(value.places, value.of, is_place=True) if isinstance(value, Pointer) else value


def record_of(value: Value) -> Value:
    """Return the struct that a pointer points to; any other value unchanged."""
    if not isinstance(value, Pointer):
        return value
    if not value.places:
        raise ConfigError("what nil points to is not read")
    record = value.places[0][1]
    for mask, place in value.places[1:]:
        record = chosen(mask, place, record)
    return record


CHOICES: list[tuple[type, Callable[[Value, Value, Value], Value]]] = [
    (StructValue, _chosen_record),
    (Pointer, _chosen_pointer),
    (Snap, lambda mask, new, old: Snap(chosen(mask, *(INT(snap.place) if known(snap.place) else snap.place
                                                      for snap in (new, old))))),
]  # fmt: skip
