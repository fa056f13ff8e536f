"""Sub-trees that a program has a use for, each found under its class: no field is empty for want of a mechanism."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Self, TypeVar

from blis_jax.lazy import jax

T = TypeVar("T")


class Parts:
    """Sub-trees by class, in the order in which they were given; which they are is static."""

    __slots__ = ("_of",)

    def __init__(self, *parts: object) -> None:
        """No two of them are of one class. JAX learns of the class with the first of it that is made."""
        _register()
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


_REGISTERED: list[type] = []
_REGISTERING = threading.Lock()


def _register() -> None:
    if _REGISTERED:
        return
    with _REGISTERING:
        if not _REGISTERED:
            jax.tree_util.register_pytree_node(
                Parts,
                lambda parts: (tuple(parts._of.values()), tuple(parts._of)),
                lambda kinds, parts: _made(dict(zip(kinds, parts, strict=True))),
            )
            _REGISTERED.append(Parts)


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
