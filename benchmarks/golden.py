"""The recorded runs of BLIS that are committed: packed as one file, and unpacked at their first use.

python -m benchmarks.golden          unpack tests/data/golden.tar.xz into tests/data/golden
python -m benchmarks.golden --pack   pack that folder again, after a change that is meant

One archive takes a fifth of the room of its files: a column of all runs lies in one piece, as differences where these
are smaller.
"""

import argparse
import fcntl
import hashlib
import io
import json
import lzma
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ARCHIVE = Path(__file__).resolve().parents[1] / "tests" / "data" / "golden.tar.xz"
COLUMNS = "columns.json"
UNPACKED_FROM = ".unpacked_from"  # a file of the folder with the hash of the archive
Pieces = dict[str, list[tuple[str, np.ndarray]]]


def committed(archive: Path = ARCHIVE) -> Path:
    """Return the folder of the committed recorded runs, unpacked if it is not there yet.

    Processes may call it side by side. A folder that another archive made is replaced. Without an archive the folder
    is what it is, or is not there.
    """
    folder = archive.with_name(archive.name.removesuffix(".tar.xz"))
    if not archive.exists():
        return folder
    with archive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        digest = hashlib.sha256(file.read()).hexdigest()
        if not _made_from(folder, digest):
            with tempfile.TemporaryDirectory(prefix=".golden", dir=archive.parent) as room:
                fresh = Path(room) / "fresh"
                _unpack(archive, fresh)
                (fresh / UNPACKED_FROM).write_text(digest, encoding="utf-8")
                if folder.exists():
                    folder.rename(Path(room) / "old")
                fresh.rename(folder)
    return folder


def _made_from(folder: Path, digest: str) -> bool:
    """Return whether a folder was unpacked from the archive with this hash."""
    try:
        return (folder / UNPACKED_FROM).read_text(encoding="utf-8") == digest
    except OSError:
        return False


def _unpack(archive: Path, folder: Path) -> None:
    """Write all files of an archive into a new folder."""
    columns: dict[str, bytes] = {}
    with tarfile.open(archive, "r:xz") as members:
        for member in members:
            content = members.extractfile(member)
            assert content is not None  # `pack` writes files alone
            if member.name.startswith("columns"):
                columns[member.name] = content.read()
            else:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    index = json.loads(columns.pop(COLUMNS))
    decoded = {
        name: _decoded(columns[f"columns/{name}"], **form) for name, form in index["forms"].items()
    }
    for file, arrays in index["files"].items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **dict(_arrays_of(arrays, decoded)))


def _arrays_of(
    arrays: Mapping[str, Any], decoded: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of one file, cut out of their columns."""
    for array, (column, start, shape) in arrays.items():
        size = int(np.prod(shape, dtype=np.int64))
        yield array, decoded[column][start : start + size].reshape(shape)


def pack(folder: Path, archive: Path = ARCHIVE) -> None:
    """Write an archive of a folder, the same bytes for the same files."""
    pieces: Pieces = {}
    files: dict[str, dict[str, Any]] = {}
    others: list[tuple[str, bytes]] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".npz":
            files[name] = _columns_of(path, name, pieces)
        elif path.is_file() and name != UNPACKED_FROM:
            others.append((name, path.read_bytes()))
    forms, contents = {}, []
    for column, values in sorted(pieces.items()):
        forms[column], content = _encoded(np.concatenate([each for _, each in values]))
        contents.append((f"columns/{column}", content))
    index = json.dumps({"forms": forms, "files": files}, separators=(",", ":")).encode()
    others.sort(key=lambda other: (Path(other[0]).suffix, other[0]))  # like beside like
    with (
        archive.open("wb") as file,
        lzma.open(file, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w") as members,
    ):
        for name, content in [(COLUMNS, index), *contents, *others]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))


def _columns_of(path: Path, name: str, pieces: Pieces) -> dict[str, Any]:
    """Return where the arrays of a file lie in their columns, to which they are added."""
    columns = {}
    with np.load(path, allow_pickle=False) as arrays:
        for array, values in arrays.items():
            column = f"{array}.{values.dtype.str[1:]}"
            rows = pieces.setdefault(column, [])
            columns[array] = [column, sum(each.size for _, each in rows), list(values.shape)]
            rows.append((name, values.ravel()))
    return columns


def _encoded(values: np.ndarray) -> tuple[dict[str, Any], bytes]:
    """Return the form in which a column is smallest, and its bytes in that form."""
    forms: list[tuple[dict[str, Any], bytes]] = [
        ({"dtype": values.dtype.str, "differences": False}, values.tobytes())
    ]
    if values.dtype.kind in "iu" and values.size:
        steps = np.diff(values, prepend=np.zeros(1, values.dtype))
        lanes = steps.view(np.uint8).reshape(-1, values.dtype.itemsize).T
        forms.append(({"dtype": values.dtype.str, "differences": True}, lanes.tobytes()))
    return min(forms, key=lambda form: len(lzma.compress(form[1])))


def _decoded(content: bytes, dtype: str, differences: bool) -> np.ndarray:
    """Return the values of a column from its bytes."""
    kind = np.dtype(dtype)
    if not differences:
        return np.frombuffer(content, kind)
    lanes = np.frombuffer(content, np.uint8).reshape(kind.itemsize, -1)
    steps = np.ascontiguousarray(lanes.T).reshape(-1).view(kind)
    return np.cumsum(steps, dtype=kind)


def main(arguments: list[str] | None = None) -> int:
    """Unpack or pack the recorded runs; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__)
    parser.add_argument("--pack", action="store_true", help="pack the folder in place of unpacking")
    folder = ARCHIVE.with_name("golden")
    if not parser.parse_args(arguments).pack:
        print(os.path.relpath(committed()))
        return 0
    if not folder.is_dir():
        print(f"{os.path.relpath(folder)} is not here; unpack it first", file=sys.stderr)
        return 2
    pack(folder)
    digest = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
    (folder / UNPACKED_FROM).write_text(digest, encoding="utf-8")
    print(f"{os.path.relpath(ARCHIVE)}: {ARCHIVE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
