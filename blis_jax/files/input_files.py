"""What a file must be before it is read, and texts that no file could hold."""

from __future__ import annotations

import gzip
import io
import json
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError

MOST_UNPACKED = (
    2**30
)  # bytes of one packed file: far more than a recorded trace, less than a memory
LONGEST_LINE = 2**26  # bytes of a line of one packed file
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]|\\U0000[dD][89a-fA-F]")


def check_regular(path: Path) -> Path:
    """The path; refuses a named pipe, a socket or a device, on which reading may wait for ever."""
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


def refuse_half_characters(text: str, document: Any, source: str) -> None:
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


def _texts(document: Any) -> Iterator[str]:
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

    def __init__(self, packed: Any, path: Path) -> None:
        """`packed` gives the unpacked bytes by `read`."""
        self._packed, self._path = packed, path
        self._total = self._since_newline = 0

    def readable(self) -> bool:
        """As a file says it."""
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


def read_text(path: Path, what: str) -> str:
    """A UTF-8 text file, compressed where its name ends in .gz; `what` it should be is said if it cannot be read."""
    try:
        if path.suffix == ".gz":
            return gzip.decompress(check_regular(path).read_bytes()).decode()
        return check_regular(path).read_text(encoding="utf-8")
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{path} is not a whole gzip file ({error})") from None
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the path of {what}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; give the path of {what}") from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read ({reason}); give the path of {what}") from None


def read_json(path: Path, what: str) -> Any:
    """The JSON document in a text file; `what` it should be is said if it is none."""
    text = read_text(path, what)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); give {what}") from None
    refuse_half_characters(text, document, str(path))
    return document
