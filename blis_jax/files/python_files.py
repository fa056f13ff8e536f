"""Read values from users' Python files, such as policies, and carry these files to other processes."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from blis_jax.errors import ConfigError, closest

# A path that is not there may begin with an installed package: `package/folder/file.py:Name`.

T = TypeVar("T")
_PREFIX = "blis_jax_user_file_"  # of the names of modules


def is_file(name: str) -> bool:
    """Return whether a name has the form of a value in a user's file, `path/to/file.py:Name`."""
    return name.rpartition(":")[0].endswith(".py")


def value_in_file(name: str, wanted: str, kind: type[T], decorator: str) -> T:
    """Return the value of type `kind` at `path/to/file.py:Name`; errors begin with `wanted` and suggest `decorator`.

    Raises:
        ConfigError: the file cannot be read or imported, or has no such value.
    """
    text, _, attribute = name.rpartition(":")
    path = _path_of(text)
    try:
        source = _brought.get(text) or path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{wanted}: the file cannot be read ({error.strerror})") from None
    _read[text] = source
    values = vars(_module(path.resolve(), source))
    known = [name for name, value in values.items() if isinstance(value, kind)]
    value = values.get(attribute)
    if isinstance(value, kind):
        return value
    code = getattr(value, "__code__", None)
    if code is not None:
        place = f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
        raise ConfigError(f"{wanted}: it is a plain function ({place}); write {decorator} above it")
    there = f"it has {', '.join(known)}" if known else f"decorate a function with {decorator}"
    raise ConfigError(
        f"{wanted}: the file has no {attribute!r}; {there}{closest(attribute, known)}"
    )


_FILE = re.compile(r"[^\s,=]+\.py(?=:)")


def files_in(text: str) -> dict[str, Path]:
    """Return the absolute paths of policy files that a text names as `path/to/file.py:Name`, by the path as written."""
    paths = {name: _path_of(name) for name in _FILE.findall(text)}
    return {name: path.resolve() for name, path in paths.items() if not _is_packaged(name, path)}


def with_absolute_files(text: str) -> str:
    """Return a text in which the paths of users' files are absolute, so that it is valid in any working directory."""
    files = files_in(text)
    return _FILE.sub(lambda name: str(files.get(name[0], name[0])), text)


def _is_packaged(name: str, path: Path) -> bool:
    """Return whether the file belongs to an installed package, so that its relative path is valid anywhere."""
    first = Path(name).parts[0]
    package = importlib.util.find_spec(first) if first.isidentifier() else None
    folders = (package.submodule_search_locations if package is not None else None) or ()
    return any(path.resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def _path_of(text: str) -> Path:
    """Return the file at a path: from the working directory, else from the installed package it begins with."""
    path = Path(text)
    if path.exists() or not path.parts[0].isidentifier():
        return path
    package = importlib.util.find_spec(path.parts[0])
    folders = (package.submodule_search_locations if package is not None else None) or ()
    files = (Path(folder).parent / path for folder in folders)
    return next((file for file in files if file.exists()), path)


# --- users' files in other processes, which may have no such file ----------------------------------

_read: dict[str, bytes] = {}  # by the path as written
_brought: dict[str, bytes] = {}  # from another process; they go before files that are here
_MADE = os.urandom(8).hex()


def process_name() -> str:
    """Return a name that identifies this process among all others, forked copies included."""
    return f"{_MADE}-{os.getpid()}"


def files_read() -> Mapping[str, bytes]:
    """Return the source of each user's file from which a value was read, by the path as written."""
    return dict(_read)


def bring(files: Mapping[str, bytes], process: str) -> None:
    """Adopt another process's user files: from now on their paths refer to the given sources.

    A process does not adopt its own files: a worker may run inside the sending process, where a file may change later,
    or the path may name another file after a change of the working directory.
    """
    if process != process_name():
        _brought.update(files)


def place_in_file(value: Any) -> tuple[str, str, str] | None:
    """Return where another process finds a function or class that cannot be looked up by its own name: the user's file
    as written, or the module; the name; and the field of the object with that name, such as the function inside a
    policy, empty if it is the whole object. Return None if there is no such place.
    """
    module = str(value.__module__)
    there = vars(sys.modules.get(module, object)).get(value.__qualname__)
    parts = ("", *(getattr(there, "__dataclass_fields__", ())))
    part = next((part for part in parts if _part_of(there, part) is value), None)
    if module.startswith(_PREFIX):
        texts = (text for text, source in _read.items() if _name_of(text, source) == module)
        text = next(texts, None)
        return None if part is None or text is None else (text, value.__qualname__, part)
    return (module, value.__qualname__, part) if part else None


def value_of_place(text: str, name: str, part: str) -> Any:
    """Return the value at a place from another process's `place_in_file`, whose files were adopted with `bring`."""
    if not text.endswith(".py"):
        return _part_of(getattr(importlib.import_module(text), name), part)
    module = _module(_path_of(text).resolve(), _brought.get(text) or _read[text])
    return _part_of(vars(module)[name], part)


def _part_of(value: Any, part: str) -> Any:
    return getattr(value, part) if part else value


def _name_of(text: str, source: bytes) -> str:
    return f"{_PREFIX}{abs(hash((_path_of(text).resolve(), source)))}"


@functools.lru_cache(maxsize=256)
def _module(path: Path, source: bytes) -> object:
    """Return the user's file as a module; the same module for the same text, so that its policies compile once.

    Python's own loader would reuse compiled code of an earlier text that had the same length and the same second of
    change.
    """
    name = f"{_PREFIX}{abs(hash((path, source)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a path that ends in .py has one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        tree = ast.parse(source, str(path))
        _refuse_twice(tree, path)
        exec(compile(tree, path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, ConfigError) and place_of(error) is None:
            raise
        if isinstance(error, SyntaxError) and error.filename == str(path):
            place, said = f"{path}, line {error.lineno}", error.msg
        else:
            place, said = place_of(error) or str(path), str(error)
        raise ConfigError(
            f"{place}: the file cannot be imported: {type(error).__name__}: {said}"
        ) from None
    return module


def _refuse_twice(tree: ast.Module, path: Path) -> None:
    """Refuse two decorated functions of the same name, since Python would silently keep only the second."""
    lines: dict[str, int] = {}
    for made in tree.body:
        if isinstance(made, ast.FunctionDef) and made.decorator_list:
            if made.name in lines:
                raise ConfigError(
                    f"{path}, line {made.lineno}: {made.name} is also in line {lines[made.name]}; give each policy a "
                    "name of its own"
                )
            lines[made.name] = made.lineno


def place_of(error: BaseException) -> str | None:
    """Return the line of a user's file in which an error arose, as `path/to/file.py, line 3`; None if elsewhere."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        if str(frame.f_globals.get("__name__")).startswith(_PREFIX):
            return f"{frame.f_code.co_filename}, line {line}"
    return None
