"""Values from a user's Python file, named `path/to/file.py:Name`."""

from __future__ import annotations

import functools
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TypeVar

from blis_jax.errors import ConfigError, closest

T = TypeVar("T")
_PREFIX = "blis_jax_user_file_"  # of the names of modules


def is_file(name: str) -> bool:
    """Whether a name is a path, `path/to/file.py:Name`."""
    return name.rpartition(":")[0].endswith(".py")


def value_at(name: str, wanted: str, kind: type[T], decorator: str) -> T:
    """The value of this type at `path/to/file.py:Name`; `wanted` begins errors, `decorator` makes such a value.

    Raises:
        ConfigError: the file cannot be read or imported, or has no such value.
    """
    text, _, attribute = name.rpartition(":")
    path = Path(text)
    try:
        stamp = path.stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(f"{wanted}: the file cannot be read ({error.strerror})") from None
    found = vars(_module(path.resolve(), stamp))
    known = [name for name, value in found.items() if isinstance(value, kind)]
    value = found.get(attribute)
    if isinstance(value, kind):
        return value
    there = f"it has {', '.join(known)}" if known else f"decorate a function with {decorator}"
    raise ConfigError(
        f"{wanted}: {attribute!r} is none in the file; {there}{closest(attribute, known)}"
    )


@functools.lru_cache(maxsize=256)
def _module(path: Path, stamp: int) -> object:
    """The user's file as a module; read again when it has changed."""
    name = f"{_PREFIX}{abs(hash((path, stamp)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a path that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            f"{path} cannot be imported: {type(error).__name__}: {error}; "
            f"`python {path}` shows where"
        ) from None
    return module


def place_of(error: BaseException) -> str | None:
    """The line of a user's file in which an error arose, `path/to/file.py, line 3`; None: in none."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        if str(frame.f_globals.get("__name__")).startswith(_PREFIX):
            return f"{frame.f_code.co_filename}, line {line}"
    return None
