"""The one text of a content and its hash; large values stand in files beside a chain, which their hash names."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError, refusing_unwritable
from blis_jax.files import packed
from blis_jax.files.atomic_write import replacing

MARK = "$sha256"  # {MARK: HASH} stands for the value whose canonical text has this hash
ENDING, COLUMNS = ".json.xz", ".columns.xz"  # a text; columns of figures, see `packed`
LEAST = 1_000  # bytes of the text of a value that is worth a file


def canonical(content: object) -> str:
    """Return the one JSON text of a content; refuses NaN."""
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(content: object) -> str:
    """Return the SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


@dataclass(frozen=True)
class Beside:
    """The folder of a chain's large values, and the names, sizes and times of its files when it was looked at."""

    folder: Path
    files: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, path: Path) -> Beside:
        """Look at the folder beside the chain in `path`: `ledger` for `ledger.jsonl`."""
        folder = path.with_suffix("")
        states = {file.name: file.stat() for file in folder.glob("*.xz")}
        return cls(folder, tuple((name, s.st_size, s.st_mtime_ns) for name, s in states.items()))

    def expanded(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the values that its marks stand for.

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
        """Return a record with marks in place of the large values of these names, which are written to their files."""
        stored = {}
        for name, value in record.items():
            if name in names and len(text := canonical(value).encode()) >= LEAST:
                value = {MARK: self._put(text)}
            elif isinstance(value, Mapping):
                value = self.shortened(value, names)
            stored[name] = value
        return stored

    def _paths(self, name: str) -> tuple[Path, Path]:
        """Return where a value may stand: as a text, and as columns."""
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
                value = packed.unpack(data)
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
        """Write a value to its file, as columns where it is some, and remove its earlier form."""
        name = hashlib.sha256(text).hexdigest()
        whole, columns = self._paths(name)
        if not columns.exists():
            data = packed.pack(text)
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
