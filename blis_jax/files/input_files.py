"""What a file must be before it is read, texts no file could hold, values of a user's Python file, and our own data."""

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
    """Return the content of a YAML text that a program wrote, read by libyaml where PyYAML has it."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def check_regular(path: Path) -> Path:
    """Return the path; refuses a named pipe, a socket or a device, on which reading may wait for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # the reader says what is wrong with it
        return path
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket"
        raise ConfigError(f"{path} is {kind}, not a file; write its content to a file first")
    if stat.S_ISCHR(mode) and path.resolve() != Path("/dev/null"):
        raise ConfigError(f"{path} is a device, not a file; write its content to a file first")
    return path


def refuse_half_characters(text: str, document: object, source: str) -> None:
    """Refuse escapes such as \\ud800, which stand for half a character and cannot be written."""
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
    """All keys and values that are texts; what several aliases name is looked at once."""
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
        """Return True, as a file does."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; refuses to go on beyond the limits."""
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
        """Close the packed file too."""
        self._packed.close()
        super().close()


# by the first bytes of a file: what unpacks it
_PACKERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_FOREIGN = {  # and what is not unpacked here
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it (zstd -d) or pack it with gzip",
    b"PK\x03\x04": "a zip archive or a spreadsheet; give the file in it, or save the sheet as CSV",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
NOT_WHOLE = (EOFError, zlib.error, lzma.LZMAError)  # what reading a damaged packed file raises


def _bytes_of(path: Path) -> tuple[IO[bytes], bool]:
    """Return the bytes of a file, unpacked where its first bytes say so, and whether they are UTF-16."""
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
    """Return a UTF-8 text, with or without byte-order mark, or UTF-16 with one; unpacked if it is gzip, bzip2 or xz."""
    file, is_utf16 = _bytes_of(path)
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    return io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")


def absent(path: Path, what: str) -> str:
    """Return that a file is not there; an address, which a path cuts to one slash, is never there."""
    if re.match(r"\w+:/", str(path)):
        return f"{path.as_posix().replace(':/', '://', 1)} is an address; download the file and give its path"
    return f"{path} does not exist; give the path of {what}"


def read_text(path: Path, what: str) -> str:
    """Read a text file as `open_text` does, but refuse what is not its encoding; `what` names the file in errors.

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
    """Return the JSON document in a text file; `what` it should be is said if it is none."""
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
    """Return whether a name is a path, `path/to/file.py:Name`."""
    return name.rpartition(":")[0].endswith(".py")


def value_at(name: str, wanted: str, kind: type[T], decorator: str) -> T:
    """Return the value of this type at `path/to/file.py:Name`; `wanted` begins errors, `decorator` makes such a value.

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
    """Return what a file has at a place, if that is a mapping, of these keys alone where they are given.

    Raises:
        ConfigError: it is none, or has another key.
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
    """Return what a mapping of these keys says, without keys that are null.

    Raises:
        ConfigError: it is no mapping, or has another key.
    """
    section = mapping(value, place, known)
    return {key: of_key for key, of_key in section.items() if of_key is not None}


_FILE = re.compile(r"[^\s,=]+\.py(?=:)")


def files_in(text: str) -> dict[str, Path]:
    """Return the users' policy files that a text names as `path/to/file.py:Name`, absolute, by the path as written."""
    paths = {name: _path_of(name) for name in _FILE.findall(text)}
    return {name: path.resolve() for name, path in paths.items() if not _is_packaged(name, path)}


def with_absolute_files(text: str) -> str:
    """Return a text with absolute paths of the users' files that it names, so that it holds in any folder."""
    files = files_in(text)
    return _FILE.sub(lambda name: str(files.get(name[0], name[0])), text)


def _is_packaged(name: str, path: Path) -> bool:
    """Return whether the file is one of an installed package, which a relative path names anywhere."""
    first = Path(name).parts[0]
    package = importlib.util.find_spec(first) if first.isidentifier() else None
    folders = (package.submodule_search_locations if package is not None else None) or ()
    return any(path.resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def _path_of(text: str) -> Path:
    """The file at a path: from the working directory, else of the installed package that the path begins with."""
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
    """Return a name of this process that no other has, of a copy of it neither."""
    return f"{_MADE}-{os.getpid()}"


def files_read() -> Mapping[str, bytes]:
    """Return the source of each user's file that a value was read from, by the path as written."""
    return dict(_read)


def bring(files: Mapping[str, bytes], process: str) -> None:
    """Take over the files of a process: from now on their paths mean these sources.

    A process takes over nothing of its own: a worker may live in the one that sends the work, where a file may change
    later, or another one may stand at the same path from another working directory.
    """
    if process != process_name():
        _brought.update(files)


def place_in_file(value: Any) -> tuple[str, str, str] | None:
    """Return where a function or class is that another process may not find by its name: the user's file as written
    or the module; the name; and which part of what has that name, such as the function that a decorator has made a
    policy of, empty if it is all. None where it has no such place.
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
    """Return what `place_in_file` has told the place of, in another process that has brought the file here."""
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
    """Return the user's file as a module; the same one as long as it has this text, so that its policies compile once.

    Python's own loader would take what it has compiled of another text that was as long and came in the same second.
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
    """Refuse two decorated functions of one name, of which Python would keep the second without a word."""
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
    """Return the line of a user's file in which an error arose, `path/to/file.py, line 3`; None: in none."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        if str(frame.f_globals.get("__name__")).startswith(_PREFIX):
            return f"{frame.f_code.co_filename}, line {line}"
    return None
