"""Frozen dataclasses that JAX takes apart, also those that are declared before JAX has started."""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

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


def _register(cls: type) -> None:
    with _REGISTERING:
        if cls not in _REGISTERED:
            jax.tree_util.register_dataclass(cls)
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
