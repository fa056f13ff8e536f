"""Canonical text and hash of a content; and a chain's large values, stored in files named by their hash."""

from __future__ import annotations

import hashlib
import json
import lzma
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blis_jax.errors import ConfigError, refusing_unwritable
from blis_jax.files.atomic_write import replacing

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Column = Float[np.ndarray, "run"]
    Whole = Int[np.ndarray, "run"]

MARK = "$sha256"  # {MARK: HASH} stands for the value whose canonical text has this hash
ENDING, COLUMNS = ".json.xz", ".columns.xz"  # a text; columns of figures, see below
LEAST = 1_000  # bytes of the text of a value that is worth a file


def canonical(content: object) -> str:
    """Return the canonical JSON text of a content, equal for equal contents; refuses NaN."""
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(content: object) -> str:
    """Return the SHA-256 of a content's canonical text."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


@dataclass(frozen=True)
class Beside:
    """The folder of a chain's large values, and the names, sizes and times of its files when the folder was read."""

    folder: Path
    files: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, path: Path) -> Beside:
        """Return the state of the folder beside the chain in `path`: folder `ledger` for `ledger.jsonl`."""
        folder = path.with_suffix("")
        states = {file.name: file.stat() for file in folder.glob("*.xz")}
        return cls(folder, tuple((name, s.st_size, s.st_mtime_ns) for name, s in states.items()))

    def expanded(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the large values in place of the marks that refer to them.

        Raises:
            ConfigError: a file is missing, or its content does not have the hash that names it.
        """
        record = {}
        for name, value in stored.items():
            if isinstance(value, Mapping):
                is_mark = value.keys() == {MARK}
                value = self._value(str(value[MARK])) if is_mark else self.expanded(value)
            record[name] = value
        return record

    def shortened(self, record: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Return a record with marks in place of the large values under `names`, which are written to files."""
        stored = {}
        for name, value in record.items():
            if name in names and len(text := canonical(value).encode()) >= LEAST:
                value = {MARK: self._put(text)}
            elif isinstance(value, Mapping):
                value = self.shortened(value, names)
            stored[name] = value
        return stored

    def _paths(self, name: str) -> tuple[Path, Path]:
        """Return the two paths that may hold a large value: as a text, and as packed columns."""
        return self.folder / f"{name}{ENDING}", self.folder / f"{name}{COLUMNS}"

    def _value(self, name: str) -> Any:
        whole, columns = self._paths(name)
        path = columns if columns.exists() else whole
        if not path.exists():
            file = f"{columns} (or {ENDING})"
            raise ConfigError(f"a part of it is not there: {file} is missing; restore the file")
        try:
            data = path.read_bytes()
            if path == columns:
                value = unpack(data)
                text = canonical(value).encode()
            else:
                text = lzma.decompress(data)
                value = json.loads(text)
        except (OSError, lzma.LZMAError, EOFError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read ({error}); restore the file") from None
        if hashlib.sha256(text).hexdigest() != name:
            raise ConfigError(f"{path} was changed: its name is not its content's hash")
        return value

    def _put(self, text: bytes) -> str:
        """Write a value to a file, packed if it holds columns, remove its unpacked form, and return its hash."""
        name = hashlib.sha256(text).hexdigest()
        whole, columns = self._paths(name)
        if not columns.exists():
            data = pack(text)
            if data is None:
                self._write(whole, lzma.compress(text, preset=9))
                return name
            self._write(columns, data)
        whole.unlink(missing_ok=True)
        return name

    def _write(self, path: Path, data: bytes) -> None:
        if not path.exists():
            with refusing_unwritable(path):
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as written:
                    written.write_bytes(data)


# --- columns of figures as bytes: a third smaller than their text packed with xz, and exact to the bit

# A file is an xz stream with a line of JSON, the names and forms of the columns, and then their numbers. Figures of
# runs are seldom any 64 bits: a percentile is a whole number of 0.01 µs, a rate is a count over the run's duration, a
# mean is a whole number of µs over a count. Such a column is stored as `whole / (scale × divisor)` and the rounding
# error, in floats between that quotient and the figure; other columns are stored as bits. `pack` unpacks its own
# result, and returns None if the text is not restored.

DURATION = "duration_s"  # the column that rates are counted over
SCALES = (1.0, 1e3, 1e5)
MOST_COUNTED = 1600  # the largest count that is looked for below a mean or a share
MOST_STEPS = 2  # between a figure and the quotient whose count was found
EXACT = 2.0**52
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "pb": 0}]


@dataclass
class _Packer:
    """The state of packing columns: the packed arrays, and the counts that later columns may share as divisors."""

    arrays: list[bytes] = field(default_factory=list)
    counts: list[Whole] = field(default_factory=list)
    duration: Column | None = None

    def add(self, name: str, column: Column) -> list[float | int | str]:
        """Pack a column in the shortest form that restores it; return that form's description."""
        bits = column.view(np.int64)
        best, form = _bytes_of(bits), cast("list[float | int | str]", ["bits"])
        for scale, divisor, key in self._divisors():
            if (made := _quotients(column, scale * divisor)) is not None:
                packed = b"".join(map(_bytes_of, made))
                if _size(packed) < _size(best):
                    best, form = packed, ["ratio", scale, key]
        if _size(best) > 4 * len(column):
            for scale in (1.0, 1e3):
                if (counts := _counts_below(column, scale)) is None:
                    continue
                made = _quotients(column, scale * counts)
                packed = b"".join(map(_bytes_of, (counts, *made))) if made else best
                if _size(packed) < _size(best):
                    best, form = packed, ["counted", scale]
                    place = counts
        if form[0] == "counted":
            self.counts.append(place)
        if name == DURATION and column.all():
            self.duration = column
        self.arrays.append(best)
        return form

    def _divisors(self) -> Iterator[tuple[float, Column | Whole | float, int | str]]:
        """Yield triples to try: a scale, a divisor, and the divisor's name in a form's description."""
        yield from ((scale, 1.0, "") for scale in SCALES)
        if self.duration is not None:
            yield 1.0, self.duration, DURATION
        for place, counts in enumerate(self.counts):
            yield from ((scale, counts, place) for scale in (1.0, 1e3))


def pack(text: bytes) -> bytes | None:
    """Return the packed bytes of a canonical text of columns; None for other texts, or if packing is not exact."""
    columns = json.loads(text)
    if not isinstance(columns, dict) or not all(
        isinstance(column, list) for column in columns.values()
    ):
        return None
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1 or lengths == {0}:
        return None
    packer, forms, plain = _Packer(), [], {}
    for name in _in_order(columns):
        if all(type(value) is float for value in columns[name]):
            forms.append([name, len(columns[name]), *packer.add(name, np.array(columns[name]))])
        else:
            plain[name] = columns[name]
    head = json.dumps([forms, plain], separators=(",", ":")).encode()
    made = lzma.compress(b"\n".join([head, b"".join(packer.arrays)]), filters=_FILTERS)
    return made if unpack(made) == columns and _texts_agree(made, text) else None


def unpack(data: bytes) -> dict[str, list[float | int | None]]:
    """Return the columns in packed bytes.

    Raises:
        ValueError: the bytes are not packed columns, or are damaged (or OSError, EOFError, lzma.LZMAError, as raised by
            xz).
    """
    head, _, rest = lzma.decompress(data).partition(b"\n")
    try:
        forms, columns = json.loads(head)
        counts: list[Whole] = []
        duration: Column | None = None
        for name, size, form, *words in forms:
            if form == "bits":
                made, rest = _read(rest, size)
                column = made.view(np.float64)
            else:
                divisor: Column | Whole | float = 1.0
                if form == "counted":
                    divisor, rest = _read(rest, size)
                    counts.append(divisor)
                elif words[1] == DURATION:
                    divisor = cast("Column", duration)
                elif words[1] != "":
                    divisor = counts[words[1]]
                whole, rest = _read(rest, size)
                steps, rest = _read(rest, size)
                quotient: Column = whole / (words[0] * divisor)
                column = (quotient.view(np.int64) + steps).view(np.float64)
            if name == DURATION:
                duration = column
            columns[name] = column.tolist()
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"its columns do not fit ({error})") from None
    return cast("dict[str, list[float | int | None]]", columns)


def _texts_agree(made: bytes, text: bytes) -> bool:
    """Return whether columns restore the same canonical text; equal values may have other texts, such as 1 and 1.0."""
    again = json.dumps(unpack(made), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return again.encode() == text


def _in_order(columns: Iterable[str]) -> list[str]:
    """Return the column names in packing order, the duration first."""
    return sorted(columns, key=lambda name: (name != DURATION, name))


def _size(packed: bytes) -> int:
    return len(zlib.compress(packed, 1))


def _quotients(column: Column, divisor: Column | float) -> tuple[Whole, Whole] | None:
    """Return whole numbers whose quotients by `divisor` are nearest to the column, and each quotient's distance from
    the column's value in units of the last place; None if a whole number is too large.
    """
    with np.errstate(over="ignore"):
        near = np.rint(column * divisor)
    if not np.all(np.abs(near) < EXACT):
        return None
    whole: Whole = near.astype(np.int64)
    quotient: Column = whole / (divisor + np.zeros(len(column)))
    return whole, column.view(np.int64) - quotient.view(np.int64)


def _counts_below(column: Column, scale: float) -> Whole | None:
    """Return, per value, the smallest count of which it is a whole number's quotient; None if any value has none."""
    counts = np.arange(1.0, MOST_COUNTED + 1)
    with np.errstate(over="ignore"):
        near = np.rint(column[:, None] * scale * counts)
    steps = column.view(np.int64)[:, None] - (near / (scale * counts)).view(np.int64)
    is_near = np.abs(steps) <= MOST_STEPS
    return is_near.argmax(axis=1) + 1 if is_near.any(axis=1).all() else None


def _bytes_of(numbers: Whole) -> bytes:
    """Return packed whole numbers: bit width, minimum, then one byte each up to 8 bits, or bit planes above."""
    least = int(numbers.min())
    bits = (int(numbers.max()) - least).bit_length()
    above = (numbers - np.int64(least)).view(np.uint64)
    if bits <= 8:
        rest = above.astype(np.uint8).tobytes() if bits else b""
    else:
        planes = (above >> np.arange(bits, dtype=np.uint64)[:, None]) & np.uint64(1)
        rest = np.packbits(planes.astype(np.uint8).ravel()).tobytes()
    return bytes([bits]) + least.to_bytes(8, "little", signed=True) + rest


def _read(data: bytes, size: int) -> tuple[Whole, bytes]:
    """Return the first array, of `size` numbers, in packed bytes, and the remaining bytes."""
    bits, least, is_whole = (
        data[0],
        int.from_bytes(data[1:9], "little", signed=True),
        len(data) >= 9,
    )
    data = data[9:]
    length = 0 if not bits else size if bits <= 8 else (bits * size + 7) // 8
    if not is_whole or len(data) < length or bits > 64:
        raise ValueError("it ends too early")
    held = np.frombuffer(data[:length], np.uint8)
    if not bits:
        above = np.zeros(size, np.uint64)
    elif bits <= 8:
        above = held.astype(np.uint64)
    else:
        planes = np.unpackbits(held)[: bits * size].reshape(bits, size).astype(np.uint64)
        above = (planes << np.arange(bits, dtype=np.uint64)[:, None]).sum(axis=0, dtype=np.uint64)
    return above.view(np.int64) + np.int64(least), data[length:]
