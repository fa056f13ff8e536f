"""Short vectors whose entries have names: a row of a table, or the lane's scalars; and typed rows made of them.

On a CPU a vector is one buffer: branches capture and return it whole, and a change is one fused kernel. In many lanes
its entries are apart: each is a scalar of the lane, so that no kernel waits for entries that it does not use.

Likewise there are two ways to run a phase only when it applies. A single lane on a CPU branches. Many lanes in one
vectorised loop evaluate every phase and keep the small results that apply; whole tables never pass through either.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from blis_jax.core.pytrees import pytree


@pytree
class Columns:
    """A vector whose entries are apart: a tuple of scalars instead of one array."""

    entries: tuple[Any, ...]


Vector: TypeAlias = Any  # an array, or Columns
NO_ENTRIES: Vector = ()  # in place of a vector of a row that has no fields for it
T = TypeVar("T")


def with_entry(table: jax.Array, value: jax.Array, at: jax.Array) -> jax.Array:
    """Return a 1-D table with its entry at index `at` replaced by the scalar `value`."""
    return lax.dynamic_update_slice(table, value[None], (at,))


def is_apart(value: object) -> TypeGuard[Columns]:
    """Return whether a value is a vector with its entries apart."""
    return isinstance(value, Columns)


def apart(vector: Vector) -> Columns:
    """Split a vector into a tuple of scalars, one for each entry."""
    if isinstance(vector, Columns):
        return vector
    return Columns(tuple(get(vector, column) for column in range(vector.shape[0])))


def together(vector: Vector) -> jax.Array:
    """Return a vector as one array; entries that are apart are stacked."""
    return jnp.stack(vector.entries) if isinstance(vector, Columns) else vector


def selected(vector: Vector) -> jax.Array:
    """Return a vector as one array built from selects, which XLA fuses into the reader, unlike a concatenation."""
    if not isinstance(vector, Columns):
        return vector
    place = lax.iota(jnp.int32, len(vector.entries))
    row = jnp.broadcast_to(vector.entries[0], place.shape)
    for index, entry in enumerate(vector.entries[1:], start=1):
        row = jnp.where(place == jnp.int32(index), entry, row)
    return row


def get(vector: Vector | np.ndarray, column: int) -> Any:
    """Return the entry of a vector as a scalar, or the column of a table whose last axis holds the vectors."""
    if isinstance(vector, Columns):
        entry: jax.Array = vector.entries[int(column)]
        return entry
    if isinstance(vector, np.ndarray):
        return vector[..., int(column)]
    return lax.index_in_dim(vector, int(column), axis=vector.ndim - 1, keepdims=False)


def put(vector: Vector, changes: Mapping[int, jax.Array]) -> Vector:
    """Return a vector in which the entries at the indices in `changes` are replaced."""
    if isinstance(vector, Columns):
        entries = list(vector.entries)
        for index, value in changes.items():
            entries[int(index)] = value.astype(entries[int(index)].dtype)
        return Columns(tuple(entries))
    place = lax.iota(jnp.int32, vector.shape[0])
    for index, value in changes.items():
        vector = jnp.where(place == jnp.int32(index), value.astype(vector.dtype), vector)
    return vector


def choose(predicate: jax.Array, one: T, other: T) -> T:
    """Return `one` where the predicate holds, else `other`; a vector with entries apart on either side stays apart."""

    def pick(a: Vector, b: Vector) -> Vector:
        if is_apart(a) or is_apart(b):
            pairs = zip(apart(a).entries, apart(b).entries, strict=True)
            return Columns(tuple(jnp.where(predicate, x, y) for x, y in pairs))
        return jnp.where(predicate, a, b)

    chosen: T = jax.tree.map(pick, one, other, is_leaf=is_apart)
    return chosen


def tail(vector: Vector, start: int) -> Vector:
    """Return the vector's entries from `start` on."""
    if isinstance(vector, Columns):
        return Columns(vector.entries[int(start) :])
    return vector[int(start) :]


def with_tail(vector: Vector, start: int, entries: Vector) -> Vector:
    """Return the vector with its entries from `start` on replaced by `entries`."""
    if isinstance(vector, Columns):
        return Columns(vector.entries[: int(start)] + apart(entries).entries)
    return jnp.concatenate([vector[: int(start)], entries])


def as_int(mask: jax.Array) -> jax.Array:
    """Return 1 where the mask is true, else 0."""
    return mask.astype(jnp.int32)


def build(
    columns: Iterable[IntEnum], values: Mapping[IntEnum, jax.Array], dtype: DTypeLike
) -> Vector:
    """Build a vector with one entry per member of the enumeration `columns`, apart until a branch ends."""
    return Columns(tuple(values[column].astype(dtype) for column in columns))


@pytree
class RowTable:
    """The rows of one kind: a table of whole numbers and one of times, or both joined, see tables/joined.py."""

    parts: tuple[jax.Array, ...]

    @property
    def numbers(self) -> jax.Array:
        """Return the table of whole numbers; if both tables are joined, the times are its last columns."""
        return self.parts[0]

    @property
    def times(self) -> jax.Array:
        """Return the table of times, which exists only if the tables are not joined."""
        return self.parts[1]

    @property
    def is_joined(self) -> bool:
        """Return whether whole numbers and times are in one table."""
        return len(self.parts) == 1

    def with_numbers(self, numbers: jax.Array) -> RowTable:
        """Return the rows with their table of whole numbers replaced."""
        return RowTable((numbers, *self.parts[1:]))


@pytree
class PastTable:
    """Each request's history, instance and expected cached blocks: three tables, or all joined in one."""

    parts: tuple[jax.Array, ...]

    @property
    def rows(self) -> jax.Array:
        """Return the `Past` row of each request; in a joined table, place and expected blocks follow behind."""
        return self.parts[0]

    @property
    def places(self) -> jax.Array:
        """Return the instance of each request, or a code for why the request has none."""
        return self.parts[1]

    @property
    def expected(self) -> jax.Array:
        """Return how many prompt blocks the router's index held for each request when it was routed."""
        return self.parts[2]

    @property
    def is_joined(self) -> bool:
        """Return whether histories, places and expected blocks are in one table."""
        return len(self.parts) == 1


When = Callable[[jax.Array, Callable[[], T], Callable[[], T]], T]


def branch(predicate: jax.Array, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return `compute()` if the predicate holds, else `otherwise()`, as a `lax.cond` that runs only one of the two."""

    def whole(side: Callable[[], T]) -> Callable[[], T]:
        return lambda: jax.tree.map(together, side(), is_leaf=is_apart)

    return lax.cond(predicate, whole(compute), whole(otherwise))


def masked(predicate: jax.Array, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Run both functions; return `compute()` where the predicate holds, else `otherwise()`."""
    chosen: T = choose(predicate, compute(), otherwise())
    return chosen


def once(predicate: jax.Array, change: Callable[[T, jax.Array], T], value: T) -> T:
    """Return `change(value, True)` if the predicate holds, else `value`, by a loop that updates tables in place."""
    done = jnp.array(False)

    def turn(carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        return done, change(carry[1], jnp.array(True))

    return lax.while_loop(lambda carry: carry[0], turn, (predicate, value))[1]


def repeated(
    holds: Callable[[T], jax.Array], change: Callable[[T, jax.Array], T], value: T, most: int
) -> T:
    """Apply `change(value, True)` while `holds(value)`, at most `most` times; XLA updates tables in place here, too."""

    def goes_on(carry: tuple[jax.Array, T]) -> jax.Array:
        return (carry[0] < most) & holds(carry[1])

    def turn(carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        return carry[0] + 1, change(carry[1], jnp.array(True))

    return lax.while_loop(goes_on, turn, (jnp.int32(0), value))[1]


def always(predicate: jax.Array, change: Callable[[T, jax.Array], T], value: T) -> T:
    """Return `change(value, predicate)`; `change` must leave everything as it is where the predicate does not hold."""
    return change(value, predicate)


Whole: TypeAlias = Annotated[jax.Array, "int32"]
Moment: TypeAlias = Annotated[jax.Array, "clock"]  # a time in µs


class _Field:
    """A descriptor for one field of a row: which of the row's two vectors holds the field, and at which index."""

    def __init__(self, part: int, place: int) -> None:
        """Part 0 is the vector of whole numbers, part 1 the vector of times; `place` is the field's index in it."""
        self.part, self.place = part, place

    def __get__(self, row: Row | None, owner: type | None = None) -> Any:
        """Return the field's value in a row, or the descriptor itself if accessed on the class."""
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

    def __init__(self, numbers: Vector, times: Vector = NO_ENTRIES) -> None:
        """Store the two vectors of a row; `make` builds a row from values by field name."""
        self.numbers, self.times = numbers, times

    def __init_subclass__(cls) -> None:
        """Collect the annotated fields, and register the class with JAX as a pytree."""
        kinds: dict[str, list[str]] = {"Whole": [], "Moment": []}
        written = {Whole: "Whole", Moment: "Moment"}
        for base in reversed(cls.__mro__):
            for name, annotation in inspect.get_annotations(base).items():
                kind = annotation if isinstance(annotation, str) else written.get(annotation, "")
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
        """Build a row from values for all fields, times in the dtype `clock`; entries are apart until a branch ends.

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
        return cls(*(Columns(tuple(each)) if each else NO_ENTRIES for each in entries))

    @classmethod
    def filled(cls, clock: DTypeLike | None = None, number: int = 0, time: ArrayLike = 0) -> Self:
        """Build a row whose whole numbers all equal `number` and whose times all equal `time`, as arrays."""
        numbers = jnp.full((len(cls.columns),), number, jnp.int32)
        if not len(cls.time_columns):
            return cls(numbers)
        return cls(numbers, jnp.full((len(cls.time_columns),), time, clock))

    @classmethod
    def _check(cls, values: Iterable[str]) -> None:
        if unknown := [name for name in values if name not in cls._fields]:
            raise TypeError(f"{cls.__name__} has no field {unknown[0]!r}")

    def replace(self, **changes: jax.Array) -> Self:
        """Return the row with the fields named in the arguments replaced.

        Raises:
            TypeError: there is no field of that name.
        """
        self._check(changes)
        parts = [self.numbers, self.times]
        for part in range(2):
            of_part = {
                self._fields[name].place: value
                for name, value in changes.items()
                if self._fields[name].part == part
            }
            parts[part] = put(parts[part], of_part) if of_part else parts[part]
        return type(self)(*parts)

    def with_rest_of(self, wider: Self) -> Self:
        """Return this row, followed by the columns of `wider` that lie behind its own fields; see joined.py."""
        if not is_apart(wider.numbers):
            return self
        return type(self)(
            Columns((*self.numbers.entries, *wider.numbers.entries[len(self.columns) :])),
            self.times,
        )


def _enumeration(name: str, fields: list[str]) -> Any:
    return enum.IntEnum(name, {field.upper(): place for place, field in enumerate(fields)})
