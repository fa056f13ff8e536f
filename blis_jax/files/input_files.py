"""Check and read input files: regular files, text encodings, and the package's own data."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import stat
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

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

    def __init__(self, packed: io.BufferedIOBase, path: Path) -> None:
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


def _bytes_of(path: Path) -> tuple[io.BufferedReader, bool]:
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


def open_text(path: Path) -> io.TextIOWrapper:
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
