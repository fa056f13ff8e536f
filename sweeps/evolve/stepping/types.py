"""Go's types: the zero value of each, and the conversion of a value to the type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import jax, jnp
from sweeps.evolve.stepping.basics import (
    INT,
    REAL,
    Length,
    Nil,
    Snap,
    UnreadText,
    Value,
    known,
    named,
    value_of,
)
from sweeps.evolve.stepping.containers import ArrayOf, MapValue, SliceValue
from sweeps.evolve.stepping.operations import is_real
from sweeps.evolve.stepping.places import Pointer, StructValue, copied, pointer_to, record_of


@dataclass(frozen=True)
class NumberType:
    """A numeric type; calling it converts a number."""

    kind: Value

    def zero(self) -> Value:
        """Return 0."""
        return self.kind(0)

    def __call__(self, value: Value) -> Value:
        """Return a number converted to this type as Go converts it."""
        if isinstance(value, Length) and self.kind is INT:
            return value
        value = value_of(value)
        if isinstance(value, (bool, str)) or not (known(value) or isinstance(value, jax.Array)):
            raise ConfigError(f"{named(value)} is no number")
        is_whole = not np.issubdtype(self.kind, np.floating)
        if known(value):
            with np.errstate(all="ignore"):
                if is_whole:
                    return np.asarray(int(value) & (2**64 - 1), np.uint64).astype(self.kind)[()]
                return self.kind(value)
        return (jnp.trunc(value) if is_whole and is_real(value) else value).astype(self.kind)


@dataclass(frozen=True)
class PlainType:
    """A type without conversions; only its zero value matters."""

    nothing: Value

    def zero(self) -> Value:
        """Return the zero value."""
        return self.nothing

    def __call__(self, value: Value) -> Value:
        """Return the value unchanged: it has this type already."""
        return value


FLOAT, WHOLE = NumberType(REAL), NumberType(INT)


FLOAT32, INT32, INT16, INT8 = (
    NumberType(kind) for kind in (np.float32, np.int32, np.int16, np.int8)
)


UINT64, UINT32, UINT16, UINT8 = (
    NumberType(kind) for kind in (np.uint64, np.uint32, np.uint16, np.uint8)
)


BOOL, TEXT, WORDS = PlainType(False), PlainType(""), PlainType(UnreadText())


@dataclass(eq=False)
class StructKind:
    """A struct type: its fields with their types, and its methods."""

    name: str
    kinds: dict[str, Value]
    methods: dict[str, tuple[Callable[..., Value], bool]] = field(default_factory=dict)

    def zero(self) -> StructValue:
        """Return a struct whose fields are zero."""
        return StructValue(self, {name: kind.zero() for name, kind in self.kinds.items()})

    def __call__(self, value: Value) -> Value:
        """Return the value unchanged: it has this type already."""
        return value

    def made(self, **values: Value) -> StructValue:
        """Return the struct of a literal: the given fields, and zeros for all others."""
        record = self.zero()
        for name, value in values.items():
            record.put(name, copied(value), True)
        return record

    def method(self, go: Value, owner: Value, name: str, arguments: tuple[Value, ...]) -> Value:
        """Call a method, or the function stored in a field."""
        if name not in self.methods:
            return owner.get(name)(*arguments)
        function, is_pointer = self.methods[name]
        if is_pointer:
            return function(go, pointer_to(owner), *arguments)
        return function(go, copied(record_of(owner)), *arguments)


EMPTY = StructKind("struct{}", {})


@dataclass(frozen=True)
class Container:
    """The type of a slice, a map, an array or a pointer; `size` is the length of an array."""

    form: str
    of: Value
    size: int = 0

    def zero(self) -> Value:
        """Return the zero value: an array of zeros, a nil pointer, or an empty map or slice."""
        if self.form == "array":
            return ArrayOf([self.of.zero() for _ in range(self.size)], self.of)
        if self.form == "pointer":
            return Snap(-1) if isinstance(self.of.zero(), Snap) else Pointer([], self.of)
        return MapValue(self.of) if self.form == "map" else SliceValue([], self.of)

    def __call__(self, value: Value) -> Value:
        """Return the value; nil becomes this type's zero value."""
        return self.zero() if isinstance(value, Nil) else value

    def made(self, count: Value = 0) -> Value:
        """Return the map or slice that `make` returns."""
        if self.form == "map":
            return MapValue(self.of)
        most = count.most if isinstance(count, Length) else count
        if not known(most):
            raise ConfigError("a slice of this length is not read")
        return SliceValue([self.of.zero() for _ in range(int(most))], self.of, count=count)

    def filled(self, *values: Value, keys: Sequence[Value] = ()) -> Value:
        """Return the container of a literal; `keys` are a map's keys."""
        made = self.zero()
        cells = [self._fit(value) for value in values]
        if self.form == "map":
            for key, value in zip(keys, cells, strict=True):
                made.put(key, value, True)
        elif self.form == "array":
            for place, value in enumerate(cells):
                made.put(INT(place), value, True)
        else:
            made = SliceValue(cells, self.of)
        return made

    def _fit(self, value: Value) -> Value:
        if isinstance(self.of, NumberType) and isinstance(value, (int, float)):
            return self.of(value)
        return copied(value)
