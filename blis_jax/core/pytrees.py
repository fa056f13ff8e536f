"""What JAX takes apart, also if it is declared before JAX has started: frozen dataclasses, and sub-trees by class."""

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
    """Make a frozen dataclass of a class whose fields are all traced arrays (or pytrees of arrays).

    Where JAX has not started, the class is registered with it when the first instance is made.
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
    """Tell JAX of a class once, as of a dataclass if it is not said how."""
    with _REGISTERING:
        if cls not in _REGISTERED:
            (how or jax.tree_util.register_dataclass)(cls)
            _REGISTERED.add(cls)


def register_declared() -> None:
    """Register with JAX the classes that were made before it had started.

    A program from disk may return one of which there was no instance yet.
    """
    for cls in _DECLARED:
        _register(cls)


def _new_and_register(cls: type, *_: object, **__: object) -> Any:
    if cls not in _REGISTERED:
        _register(cls)
    return object.__new__(cls)


class Parts:
    """Sub-trees that a program has a use for by class, in the order in which they were given; which they are is static.

    So no field of a tree is empty for want of a mechanism.
    """

    __slots__ = ("_of",)

    def __init__(self, *parts: object) -> None:
        """No two of them are of one class. JAX learns of the class with the first of it that is made."""
        if Parts not in _REGISTERED:
            _register(Parts, _register_parts)
        self._of = {type(part): part for part in parts}

    def __getitem__(self, kind: type[T]) -> T:
        """Return the sub-tree of this class.

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
        """Return the same sub-trees with some of them replaced.

        Raises:
            KeyError: there is none of that class to replace.
        """
        of = {type(part): part for part in parts}
        if unknown := of.keys() - self._of.keys():
            raise KeyError(f"there is no {min(kind.__name__ for kind in unknown)} to replace")
        return _made({**self._of, **of})

    def only(self, *kinds: type) -> Parts:
        """Return those of these classes, as far as they are there."""
        return _made({kind: part for kind, part in self._of.items() if kind in kinds})


def _made(of: dict[type, object]) -> Parts:
    """Sub-trees that JAX puts together may be anything in place of what belongs under a class."""
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
    """A dataclass with a field `own` of sub-trees, which are read and replaced as if they were its items."""

    own: Parts

    def __getitem__(self, kind: type[T]) -> T:
        """Return the sub-tree of this class, which the program has."""
        return self.own[kind]

    def __contains__(self, kind: type) -> bool:
        return kind in self.own

    def having(self, *parts: object) -> Self:
        """Return the same with these sub-trees in place of those of their classes."""
        return dataclasses.replace(self, own=self.own.having(*parts))  # type: ignore[type-var]
