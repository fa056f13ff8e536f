"""Manifests: checksums of every piece of a store, so that a lost or changed piece is found.

A store is a folder, or one NetCDF file. A folder's manifest lists its files with their checksums. In a Zarr store the
manifest is a separate group, which other readers of Zarr ignore; in other folders it is `manifest.json`. A NetCDF file
ends in a line with the checksum of all bytes before it, which readers of HDF5 ignore.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError, ConfigWarning

IN_ZARR, IN_FOLDER = "manifest/zarr.json", "manifest.json"
MISSING, CHANGED, FOREIGN = "is missing", "has changed", "does not belong to it"
AGAIN = "make it again"
DIGITS = 16  # of a checksum, hexadecimal
BYTES_AT_A_TIME = 1 << 20
_IS_PASSED_OVER = re.compile(r"(^|/)\.|\.partial$")
# files that a reader of Zarr would look into
_READ_BY_ZARR = re.compile(r"(^|/)(zarr\.json|c(/\d+)*)$")
_LAST_LINE = re.compile(rb"\nblis_jax sha256 ([0-9a-f]{%d})\n" % DIGITS)
_LAST_LINE_SIZE = len("\nblis_jax sha256 \n") + DIGITS


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest."""

    files: dict[str, str]  # checksums by path in the folder
    filled: tuple[str, ...] = ()  # arrays that are filled part by part
    command: str = ""  # that makes the store


@dataclass(frozen=True)
class Damage:
    """A piece of a store that differs from its manifest."""

    piece: str
    what: str  # MISSING, CHANGED or FOREIGN


# --- folders --------------------------------------------------------------------------------------


def seal(folder: Path, filled: Sequence[str] = (), command: str = "") -> None:
    """Write the manifest of a folder that is complete."""
    files = {piece: _checksum(folder / piece) for piece in _pieces(folder)}
    _write(folder, Manifest(files, tuple(filled), command))


def reseal(folder: Path, below: Iterable[str]) -> None:
    """Update the manifest of a folder after the pieces below some paths were written."""
    record = read(folder)
    if record is None:
        seal(folder)
        return
    starts = tuple(f"{path}/" for path in below)
    files = {piece: of for piece, of in record.files.items() if not piece.startswith(starts)}
    for start in starts:
        files |= {f"{start}{at}": _checksum(folder / start / at) for at in _pieces(folder / start)}
    in_order = dict(sorted(files.items()))  # in which its parts were filled is not to be seen
    _write(folder, Manifest(in_order, record.filled, record.command))


def read(folder: Path, advice: str = AGAIN) -> Manifest | None:
    """Return the manifest of a folder; None if there is none. Refuses a damaged manifest."""
    path = _path(folder)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path.parent != folder and path.parent.is_dir():
            raise refusal(folder, [Damage(_name(folder), MISSING)], None, advice) from None
        return None
    except (OSError, ValueError):
        text = ""
    try:
        attributes = json.loads(text)["attributes"]
        files, filled, command = (attributes[name] for name in ("files", "filled", "command"))
        record = Manifest(files, tuple(filled), command)
        is_whole = _text(record) == text
    except (ValueError, TypeError, KeyError, RecursionError):
        is_whole = False
    if not is_whole:
        raise refusal(folder, [Damage(_name(folder), CHANGED)], None, advice)
    return record


def damages(folder: Path, record: Manifest) -> list[Damage]:
    """Return the pieces of a folder that are missing, changed, or foreign according to its manifest."""
    present = set(_pieces(folder))
    damaged = []
    for piece, checksum in record.files.items():
        if piece not in present:
            damaged.append(Damage(piece, MISSING))
        elif not _holds(folder / piece, checksum):
            damaged.append(Damage(piece, CHANGED))
    foreign = [piece for piece in present - set(record.files) if _READ_BY_ZARR.search(piece)]
    return damaged + [Damage(piece, FOREIGN) for piece in sorted(foreign)]


def check(folder: Path, advice: str = AGAIN) -> bool:
    """Refuse a damaged folder and say what is damaged; return False if it has no manifest to check.

    `advice` says how to rebuild the folder if the manifest does not hold the command.
    """
    record = read(folder, advice) if folder.is_dir() else None
    if record is None:
        return False
    damage = damages(folder, record)
    if damage:
        raise refusal(folder, damage, record, advice)
    return True


def remark(path: Path) -> None:
    """Warn that a store cannot be checked because it has no checksums."""
    text = (
        f"{path} has no checksums, as stores of earlier versions, so a lost or changed piece would not "
        "be noticed; make it again if in doubt"
    )
    warnings.warn(ConfigWarning(text), stacklevel=3)


def is_in_a_part(damage: Damage, record: Manifest) -> bool:
    """Return whether a damaged piece holds values of an array that is written part by part."""
    array, _, rest = damage.piece.partition("/")
    return array in record.filled and rest.startswith("c/")


def refusal(
    folder: Path, damages: Sequence[Damage], record: Manifest | None, advice: str = AGAIN
) -> ConfigError:
    """Return the error that says what is damaged and how to rebuild it."""
    first, more = damages[0], len(damages) - 1
    others = f" (and {more} more of its pieces)" if more else ""
    if record is not None and record.command:
        is_filled_again = all(is_in_a_part(damage, record) for damage in damages)
        switch = "--resume" if is_filled_again else "--overwrite"
        advice = f"{AGAIN}: {record.command} {switch}"
    return ConfigError(f"{folder} is damaged: {first.piece} {first.what}{others}; {advice}")


def _path(folder: Path) -> Path:
    return folder / _name(folder)


def _name(folder: Path) -> str:
    return IN_ZARR if folder.suffix == ".zarr" else IN_FOLDER


def _pieces(folder: Path) -> list[str]:
    """Return the files of a folder in order, without its manifest, hidden files and half-written files."""
    pieces = []
    for root, _, names in os.walk(folder):
        start = root[len(os.fspath(folder)) :].replace(os.sep, "/").lstrip("/")
        pieces += [f"{start}/{name}" if start else name for name in names]
    kept = (name for name in pieces if not _IS_PASSED_OVER.search(name))
    return sorted(name for name in kept if name not in (IN_ZARR, IN_FOLDER))


def _holds(path: Path, checksum: str) -> bool:
    """Return whether a file can be read and has this checksum."""
    try:
        return _checksum(path) == checksum
    except OSError:
        return False


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return _digest(file, -1)


def _digest(file: io.BufferedReader, size: int) -> str:
    """Return the checksum of the next `size` bytes of a file; of all remaining bytes if `size` is negative."""
    digest = hashlib.sha256()
    while size and (part := file.read(min(size, BYTES_AT_A_TIME) if size > 0 else BYTES_AT_A_TIME)):
        digest.update(part)
        size -= len(part) if size > 0 else 0
    return digest.hexdigest()[:DIGITS]


def _write(folder: Path, record: Manifest) -> None:
    path = _path(folder)
    path.parent.mkdir(exist_ok=True)
    half = path.with_name(f"{path.name}.partial")
    half.write_text(_text(record), encoding="utf-8")
    half.replace(path)


def _text(record: Manifest) -> str:
    """Return the manifest as the text of a Zarr group that includes the manifest's own checksum."""
    content: dict[str, Any] = {
        "files": record.files,
        "filled": list(record.filled),
        "command": record.command,
    }
    checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:DIGITS]
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {**content, "checksum": checksum},
    }
    return json.dumps(group, indent=0)


# --- NetCDF files ---------------------------------------------------------------------------------


def seal_file(path: Path) -> None:
    """Append the line with the checksum to a completed file."""
    checksum = _checksum(path)
    with path.open("ab") as file:
        file.write(f"\nblis_jax sha256 {checksum}\n".encode())


def check_file(path: Path) -> bool:
    """Refuse a damaged file and say so; return False if it has no checksum to check."""
    size = path.stat().st_size - _LAST_LINE_SIZE
    if size < 0:
        return False
    with path.open("rb") as file:
        file.seek(size)
        last_line = _LAST_LINE.fullmatch(file.read())
        if last_line is None:
            return False
        file.seek(0)
        if _digest(file, size) != last_line[1].decode():
            raise ConfigError(f"{path} is damaged: its content has changed; make it again")
    return True
