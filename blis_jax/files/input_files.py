"""Check and read input files: regular files, text encodings, values of a user's Python file, and the package's own
data.
"""

from __future__ import annotations

import ast
import bz2
import functools
import gzip
import importlib
import importlib.util
import io
import json
import lzma
import os
import re
import stat
import sys
import traceback
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any, TypeVar

from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.lazy import yaml

# bytes of one packed file: far more than a recorded trace, less than a memory
MOST_UNPACKED = 2**30
PIECE = 2**20  # bytes of a packed file that are unpacked at once
LONGEST_LINE = 2**26  # bytes of a line of one packed file
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]|\\U0000[dD][89a-fA-F]")


def shipped(name: str) -> Any:
    """Return the content of a YAML file of this package's `data`."""
    return loaded(resources.files("blis_jax").joinpath("data", name).read_text("utf-8"))


def loaded(text: str) -> Any:
    """Return the content of a YAML text that a program wrote, read by libyaml if PyYAML has it."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def check_regular(path: Path) -> Path:
    """Return the path; refuses a named pipe, a socket or a device, on which reading may block for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # the reader reports the problem
        return path
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket"
        raise ConfigError(f"{path} is {kind}, not a file; write its content to a file first")
    if stat.S_ISCHR(mode) and path.resolve() != Path("/dev/null"):
        raise ConfigError(f"{path} is a device, not a file; write its content to a file first")
    return path


def refuse_half_characters(text: str, document: object, source: str) -> None:
    """Refuse escapes such as \\ud800, which stand for half a character and cannot be encoded."""
    if not _SURROGATE_ESCAPE.search(text):
        return
    for word in _texts(document):
        if any(0xD800 <= ord(letter) <= 0xDFFF for letter in word):
            shown = ascii(word[:60])
            raise ConfigError(
                f"{source}: {shown} holds half of a character (an escape from \\ud800 to \\udfff "
                "without its partner); write the character itself"
            )


def _texts(document: object) -> Iterator[str]:
    """Yield all keys and values that are texts; an object that several YAML aliases share is visited once."""
    waiting, seen = [document], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif id(value) in seen:
            continue
        elif isinstance(value, dict):
            seen.add(id(value))
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            seen.add(id(value))
            waiting += value


class Unpacked(io.RawIOBase):
    """The bytes of a packed file, read in pieces, with limits on their number and on a line."""

    def __init__(self, packed: IO[bytes], path: Path) -> None:
        """`packed` gives the unpacked bytes by `read`."""
        self._packed, self._path = packed, path
        self._total = self._since_newline = 0

    def readable(self) -> bool:
        """Return True, as a readable stream does."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with unpacked bytes; refuses to go beyond the limits."""
        piece = self._packed.read(len(buffer))
        buffer[: len(piece)] = piece
        self._total += len(piece)
        last = piece.rfind(b"\n")
        self._since_newline = len(piece) - last - 1 + (self._since_newline if last < 0 else 0)
        for size, limit, words in (
            (self._total, MOST_UNPACKED, "unpacks to"),
            (self._since_newline, LONGEST_LINE, "has a line of"),
        ):
            if size > limit:
                raise ConfigError(
                    f"{self._path} {words} more than {limit >> 20} MiB; unpack it and give the part "
                    "that you want, for instance its first lines"
                )
        return len(piece)

    def close(self) -> None:
        """Close this stream and the packed file."""
        self._packed.close()
        super().close()


# functions that unpack a file, by its first bytes
_PACKERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_FOREIGN = {  # formats that are not unpacked here
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it (zstd -d) or pack it with gzip",
    b"PK\x03\x04": "a zip archive or a spreadsheet; give the file in it, or save the sheet as CSV",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
NOT_WHOLE = (EOFError, zlib.error, lzma.LZMAError)  # raised on reading a damaged packed file


def _bytes_of(path: Path) -> tuple[IO[bytes], bool]:
    """Return a file's bytes, unpacked if its first bytes mark it as compressed, and whether they are UTF-16."""
    with check_regular(path).open("rb") as file:
        start = file.read(8)
    for mark, words in _FOREIGN.items():
        if start.startswith(mark):
            raise ConfigError(f"{path} is {words}")
    packer = next((_PACKERS[mark] for mark in _PACKERS if start.startswith(mark)), None)
    if packer is None:
        return path.open("rb"), start.startswith(_UTF16)
    return io.BufferedReader(Unpacked(packer(path), path), PIECE), False


def open_text(path: Path) -> IO[str]:
    """Return an open text stream of a UTF-8 file, or UTF-16 with byte-order mark; gzip, bzip2 and xz are unpacked."""
    file, is_utf16 = _bytes_of(path)
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    return io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")


def absent(path: Path, what: str) -> str:
    """Return the message that a file does not exist; for a URL, that the file must be downloaded."""
    if re.match(r"\w+:/", str(path)):
        return f"{path.as_posix().replace(':/', '://', 1)} is an address; download the file and give its path"
    return f"{path} does not exist; give the path of {what}"


def read_text(path: Path, what: str) -> str:
    """Return the text of a file; refuses bytes that do not fit its encoding, and names the file `what` in errors.

    Raises:
        ConfigError: the file is missing, cannot be read, or is not UTF-8 text.
    """
    try:
        file, is_utf16 = _bytes_of(path)
        with file:
            text = file.read().decode("utf-16" if is_utf16 else "utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except NOT_WHOLE as error:
        raise ConfigError(f"{path} is not a whole packed file ({error})") from None
    except FileNotFoundError:
        raise ConfigError(absent(path, what)) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; give the path of {what}") from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read ({reason}); give the path of {what}") from None


def read_json(path: Path, what: str) -> Any:
    """Return the JSON document in a text file; errors say that the file should be `what`."""
    text = read_text(path, what)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); give {what}") from None
    refuse_half_characters(text, document, str(path))
    return document


# --- values from a Python file of the user --------------------------------------------------------

# A path that is not there may begin with an installed package: `package/folder/file.py:Name`.

T = TypeVar("T")
_PREFIX = "blis_jax_user_file_"  # of the names of modules


def is_file(name: str) -> bool:
    """Return whether a name has the form of a value in a user's file, `path/to/file.py:Name`."""
    return name.rpartition(":")[0].endswith(".py")


def value_at(name: str, wanted: str, kind: type[T], decorator: str) -> T:
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


def shipped_names(package: str, *folder: str) -> tuple[str, ...]:
    """Return the names of the YAML files in a folder of an installed package, sorted and without their ending."""
    files = resources.files(package).joinpath(*folder).iterdir()
    return tuple(sorted(file.name[:-5] for file in files if file.name.endswith(".yaml")))


def mapping(value: object, place: str, known: Collection[str] | None = None) -> Mapping[Any, Any]:
    """Return a file's value at `place` if it is a mapping with no other keys than `known`, where these are given.

    Raises:
        ConfigError: the value is not a mapping, or has another key.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: got {shortened(value)}, allowed is a mapping")
    for key in value:
        if known is not None and key not in known:
            raise ConfigError(
                f"{place}: the key {shortened(key)} is unknown; use some of {', '.join(known)}"
                f"{closest(str(key), known)}"
            )
    return value


def given_keys(value: object, place: str, known: Collection[str]) -> dict[Any, Any]:
    """Return the entries of a mapping whose keys must be in `known`, without keys that are null.

    Raises:
        ConfigError: the value is not a mapping, or has another key.
    """
    section = mapping(value, place, known)
    return {key: of_key for key, of_key in section.items() if of_key is not None}


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
