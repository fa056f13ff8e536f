"""Pytree classes: frozen dataclasses that may be declared before JAX is imported, and sub-trees looked up by class."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar, dataclass_transform

from blis_jax.lazy import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Turn a class whose fields are all traced arrays, or pytrees of arrays, into a frozen dataclass that is a pytree.

    If JAX is not imported yet, the class is registered when its first instance is created.
    """
    made: type[T] = dataclass(frozen=True)(cls)
    if "jax" in sys.modules:
        _register(made)
    else:
        made.__signature__ = inspect.signature(made)  # type: ignore[attr-defined]  # __new__ hides it
        made.__new__ = staticmethod(_new_and_register)  # type: ignore[method-assign]
        _DECLARED.append(made)
    return made


_DECLARED: list[type] = []  # before JAX had started
_REGISTERED: set[type] = set()
_REGISTERING = threading.Lock()  # two mechanisms compile side by side, and JAX takes a class once


def _register(cls: type, how: Callable[[type], object] | None = None) -> None:
    """Register a class with JAX once, by `how` if given, else as a dataclass."""
    with _REGISTERING:
        if cls not in _REGISTERED:
            (how or jax.tree_util.register_dataclass)(cls)
            _REGISTERED.add(cls)


def register_declared() -> None:
    """Register with JAX the classes that were declared before JAX was imported.

    A program loaded from disk may return a class of which there was no instance yet.
    """
    for cls in _DECLARED:
        _register(cls)


def _new_and_register(cls: type, *_: object, **__: object) -> Any:
    if cls not in _REGISTERED:
        _register(cls)
    return object.__new__(cls)


class Parts:
    """The sub-trees that a program uses, looked up by class and kept in the order given; the classes are static.

    A mechanism that is switched off has no sub-tree here, so no tree needs an empty field for it.
    """

    __slots__ = ("_of",)

    def __init__(self, *parts: object) -> None:
        """Store the sub-trees, each of a class of its own; the first instance registers `Parts` with JAX."""
        if Parts not in _REGISTERED:
            _register(Parts, _register_parts)
        self._of = {type(part): part for part in parts}

    @classmethod
    def used(cls, *makers: tuple[Callable[[], object], bool]) -> Self:
        """Return the sub-trees that are used, each made by its function, in this order."""
        return cls(*(make() for make, is_used in makers if is_used))

    def __getitem__(self, kind: type[T]) -> T:
        """Return the sub-tree of the class `kind`.

        Raises:
            KeyError: the program has none.
        """
        part: T = self._of[kind]  # type: ignore[assignment]
        return part

    def __contains__(self, kind: type) -> bool:
        return kind in self._of

    def __iter__(self) -> Iterator[object]:
        return iter(self._of.values())

    def having(self, *parts: object) -> Parts:
        """Return a copy in which each given sub-tree replaces the one of its class.

        Raises:
            KeyError: there is none of that class to replace.
        """
        of = {type(part): part for part in parts}
        if unknown := of.keys() - self._of.keys():
            raise KeyError(f"there is no {min(kind.__name__ for kind in unknown)} to replace")
        return _made({**self._of, **of})

    def only(self, *kinds: type) -> Parts:
        """Return only the sub-trees whose class is among `kinds`; classes without a sub-tree are skipped."""
        return _made({kind: part for kind, part in self._of.items() if kind in kinds})


def _made(of: dict[type, object]) -> Parts:
    """Build `Parts` without checks: JAX may put any object in place of a sub-tree when it rebuilds a pytree."""
    made = Parts()
    made._of = of
    return made


def _register_parts(cls: type) -> None:
    jax.tree_util.register_pytree_node(
        cls,
        lambda parts: (tuple(parts._of.values()), tuple(parts._of)),
        lambda kinds, parts: _made(dict(zip(kinds, parts, strict=True))),
    )


class HasParts:
    """A dataclass whose field `own` holds sub-trees; they are read and replaced like items of the dataclass."""

    own: Parts

    def __getitem__(self, kind: type[T]) -> T:
        """Return the sub-tree of the class `kind`, which the program must have."""
        return self.own[kind]

    def __contains__(self, kind: type) -> bool:
        return kind in self.own

    def having(self, *parts: object) -> Self:
        """Return a copy in which each given sub-tree replaces the one of its class."""
        return dataclasses.replace(self, own=self.own.having(*parts))  # type: ignore[type-var]
