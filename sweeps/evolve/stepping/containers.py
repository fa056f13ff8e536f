"""Arrays, slices and maps of Go, whose cells are assigned under masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import jnp
from sweeps.evolve.stepping.basics import (
    INT,
    Length,
    Nil,
    Snap,
    Value,
    any_mask,
    both_masks,
    is_bare,
    known,
    no,
    of_kind,
    static_bool,
    value_of,
)
from sweeps.evolve.stepping.operations import add, sub
from sweeps.evolve.stepping.places import (
    CHOICES,
    CopiedValue,
    Pointer,
    StructValue,
    chosen,
    copied,
    same,
)


def element_at(cells: list[Value], place: Value) -> Value:
    """Return the element at a place; a struct at a traced place comes as a reference, so that it can be assigned."""
    place = value_of(place)
    if not cells:
        raise ConfigError("an element of an empty slice is not read")
    if isinstance(place, (float, np.floating)):
        raise ConfigError("an int is wanted as an index")
    if known(place):
        return cells[min(max(int(place), 0), len(cells) - 1)]
    first = cells[0]
    if isinstance(first, StructValue):
        places = [(place == number, cell) for number, cell in enumerate(cells)]
        return Pointer(places, first.of, is_place=True)
    if isinstance(first, Snap):
        return Snap(
            element_at(
                [INT(cell.place) if known(cell.place) else cell.place for cell in cells], place
            )
        )
    element = cells[0]
    for number, cell in enumerate(cells[1:], 1):
        element = chosen(place == number, cell, element)
    return element


def put_element(cells: list[Value], place: Value, value: Value, mask: Value) -> None:
    """Assign the element at a place where the mask holds."""
    place = value_of(place)
    places = [int(place)] if known(place) else range(len(cells))
    for number in places:
        is_it = mask if known(place) else both_masks(mask, place == number)
        if isinstance(cells[number], CopiedValue):
            cells[number].assign(value, is_it)
        elif is_bare(value, cells[number]):
            kind = np.dtype(cells[number].dtype)
            cells[number] = chosen(is_it, of_kind(value, kind), cells[number])
        else:
            cells[number] = chosen(is_it, value, cells[number])


@dataclass(eq=False)
class ArrayOf(CopiedValue):
    """An array of Go."""

    cells: list[Value]
    of: Value

    @property
    def count(self) -> int:
        """Return the array's length."""
        return len(self.cells)

    def get(self, place: Value) -> Value:
        """Return the element at a place."""
        return element_at(self.cells, place)

    def put(self, place: Value, value: Value, mask: Value) -> None:
        """Assign the element at a place where the mask holds."""
        put_element(self.cells, place, value, mask)

    def copied(self) -> ArrayOf:
        """Return a copy of the array."""
        return ArrayOf([copied(cell) for cell in self.cells], self.of)

    def assign(self, other: Value, mask: Value) -> None:
        """Assign another array's elements where the mask holds."""
        for place, value in enumerate(other.cells):
            self.put(place, value, mask)


@dataclass(eq=False)
class SliceValue:
    """A slice: its first cell, and how many cells it spans; other slices may share the cells."""

    cells: list[Value]
    of: Value
    start: int = 0
    count: Value = None
    is_kept: bool = False  # of the router, or of two slices by a condition: nothing is assigned
    is_part: bool = False  # cells of another slice may stand behind it
    grown_from: Value = None

    def __post_init__(self) -> None:
        self.count = len(self.cells) - self.start if self.count is None else self.count

    @property
    def most(self) -> int:
        """Return the largest number of elements that the slice may have."""
        room = len(self.cells) - self.start
        if isinstance(self.count, Length):
            return min(room, max(self.count.most, 0))
        return min(room, int(self.count)) if known(self.count) else room

    def values(self) -> list[Value]:
        """Return the cells of the largest number of elements; only the first `count` belong to the slice."""
        return self.cells[self.start : self.start + self.most]

    def get(self, place: Value) -> Value:
        """Return the element at a place."""
        return element_at(self.cells[self.start :], place)

    def put(self, place: Value, value: Value, mask: Value) -> None:
        """Assign the element at a place where the mask holds.

        Raises:
            ConfigError: the slice belongs to the router, or a condition decides which of two slices it is.
        """
        if self.is_kept:
            raise ConfigError(
                "an assignment to this is not read: it would be kept between requests, or is one of two slices"
            )
        put_element(self.cells, add(place, self.start) if self.start else place, value, mask)

    def part(self, start: Value = 0, end: Value = None) -> SliceValue:
        """Return `slice[start:end]`."""
        last = self.count if end is None else end
        count = (
            sub(last, start) if start is not None and not (known(start) and start == 0) else last
        )
        if known(start):
            return SliceValue(
                self.cells, self.of, self.start + int(start), count, self.is_kept,
                is_part=end is not None or self.is_part,
            )  # fmt: skip
        first = value_of(start)
        moved = [copied(element_at(self.values(), first + place)) for place in range(self.most)]
        return SliceValue(moved, self.of, 0, count, is_kept=True, is_part=True)

    def appended(self, values: Sequence[tuple[Value, Value]], go: Value) -> SliceValue:
        """Append to the slice the values whose own mask holds, where the present statement is executed.

        An append to a part of a slice overwrites the shared cells behind the part. Where no cell is left, the
        router makes no decision, because Go's result would depend on capacities.
        """
        grown = self
        for place, (value, is_there) in enumerate(values):
            here = both_masks(go.mask, is_there)
            room = len(grown.cells) - grown.start
            if here is False:
                continue
            if not grown.is_part or (known(grown.count) and int(grown.count) >= room):
                return grown.with_more(values[place:], go.mask)
            if grown.most >= room:
                go.leave_out(both_masks(here, value_of(grown.count) >= room))
            grown.put(grown.count, value, here)
            more = 1 if here is True else jnp.asarray(here).astype(INT)
            count = grown.count
            if known(count) and here is True:
                count = int(count) + 1
            else:
                least = count.least if isinstance(count, Length) else int(count)
                count = Length(value_of(count) + more, grown.most + 1, least + (here is True))
            grown = SliceValue(
                grown.cells, grown.of, grown.start, count, is_part=True, grown_from=self
            )
        return grown

    def with_more(self, values: Sequence[tuple[Value, Value]], mask: Value) -> SliceValue:
        """Return a new slice with the values appended whose own mask and `mask` both hold."""
        cells, count = list(self.values()), self.count
        for value, is_there in values:
            here = both_masks(mask, is_there)
            if here is False:
                continue
            if is_bare(value, self.of.zero()):
                value = self.of(value)
            if here is True and known(count):
                cells[int(count) :] = [value]
                count = int(count) + 1
                continue
            cells.append(self.of.zero() if not isinstance(self.of, Nil) else value)
            at_ = value_of(count)
            for number in range(len(cells)):
                cells[number] = chosen(
                    both_masks(here, static_bool(at_ == number)), value, cells[number]
                )
            more = jnp.asarray(here).astype(INT) if here is not True else 1
            count = Length(at_ + more, len(cells))
        return SliceValue(cells, self.of, 0, count, grown_from=self)

    def alone(self) -> SliceValue:
        """Return the slice with cells that no other slice shares."""
        return SliceValue(self.values(), self.of, 0, self.count)

    def emptied(self) -> SliceValue:
        """Return an empty slice of the same type."""
        return SliceValue([], self.of)


def _chosen_slice(mask: Value, new: SliceValue, old: SliceValue) -> SliceValue:
    if new.grown_from is old:
        return new
    cells = [new.values(), old.values()]
    size = max(map(len, cells))
    zero = next((copied(cell) for part in cells for cell in part), None)
    first, second = ([*part, *[zero] * (size - len(part))] for part in cells)
    made = [chosen(mask, a, b) for a, b in zip(first, second, strict=True)]
    least = [length.least if isinstance(length, Length) else 0 for length in (new.count, old.count)]
    both = value_of(new.count), value_of(old.count)
    if known(both[0]) and known(both[1]) and both[0] == both[1]:
        count: Value = both[0]
    else:
        count = Length(jnp.where(mask, *both).astype(INT), size, min(least))
    of = new.of if not isinstance(new.of, Nil) else old.of
    is_kept = new.is_kept or old.is_kept
    if new.cells is old.cells and new.start == old.start:
        is_part = new.is_part or old.is_part
        return SliceValue(new.cells, of, new.start, count, is_kept, is_part=is_part)
    is_own = new.cells is not old.cells and old.cells and not new.grown_from
    return SliceValue(made, of, 0, count, is_kept=bool(is_own) or is_kept)


@dataclass(eq=False)
class MapEntry:
    """A key of a map, its value, and a mask for whether the key is in the map."""

    key: Value
    value: Value
    is_there: Value


@dataclass(eq=False)
class MapValue:
    """A map of Go."""

    of: Value
    entries: list[MapEntry] = field(default_factory=list)
    is_kept: bool = False

    @property
    def count(self) -> Value:
        """Return the number of keys."""
        masks = [entry.is_there for entry in self.entries]
        if all(isinstance(mask, bool) for mask in masks):
            return sum(masks)
        return Length(sum(jnp.asarray(mask).astype(INT) for mask in masks), len(masks))

    def found(self, key: Value) -> tuple[Value, Value]:
        """Return the value of a key, and a mask for whether the key is in the map."""
        value, is_there = self.of.zero(), False
        for entry in self.entries:
            is_it = both_masks(entry.is_there, same(entry.key, key))
            value = chosen(is_it, entry.value, value)
            is_there = any_mask(is_there, is_it)
            if is_it is True:
                break
        return value, is_there

    def get(self, key: Value) -> Value:
        """Return the value of a key; the zero value if the key is not in the map."""
        return self.found(key)[0]

    def put(self, key: Value, value: Value, mask: Value) -> None:
        """Assign the value of a key where the mask holds.

        Raises:
            ConfigError: a condition decides which of two maps it is.
        """
        if self.is_kept:
            raise ConfigError("an assignment to one of two maps is not read")
        if is_bare(value, self.of.zero()):
            value = self.of(value)
        for entry in self.entries:
            is_it = both_masks(mask, same(entry.key, key))
            is_same = isinstance(is_it, bool) or is_it is mask
            if not is_same:
                is_it = both_masks(is_it, entry.is_there)
            entry.value = chosen(is_it, value, entry.value)
            entry.is_there = any_mask(entry.is_there, is_it)
            mask = both_masks(mask, no(is_it)) if not (is_same and is_it is not False) else False
            if mask is False:
                return
        if mask is not False:
            self.entries.append(MapEntry(key, chosen(mask, value, self.of.zero()), mask))

    def delete(self, key: Value, mask: Value) -> None:
        """Delete a key where the mask holds."""
        for entry in self.entries:
            is_it = both_masks(mask, same(entry.key, key))
            entry.is_there = both_masks(entry.is_there, no(is_it))

    def emptied(self) -> MapValue:
        """Return an empty map of the same type."""
        return MapValue(self.of)


def _chosen_map(mask: Value, new: MapValue, old: MapValue) -> MapValue:
    entries = [
        MapEntry(entry.key, entry.value, both_masks(entry.is_there, mask)) for entry in new.entries
    ]
    entries += [
        MapEntry(entry.key, entry.value, both_masks(entry.is_there, no(mask)))
        for entry in old.entries
    ]
    return MapValue(new.of, entries, is_kept=True)


CHOICES += [
    (SliceValue, _chosen_slice),
    (MapValue, _chosen_map),
    (ArrayOf, lambda mask, new, old: ArrayOf([chosen(mask, a, b) for a, b in zip(new.cells, old.cells, strict=True)],
                                             new.of)),
]  # fmt: skip
