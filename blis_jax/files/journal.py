"""What a long command has done, as lines of JSON to go on from; a line that was cut off does not count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing

VERSION = 1


class Journal:
    """A header that says what is being done, and a line for each finished part of it."""

    def __init__(self, path: Path, identity: str, kind: str, content: str) -> None:
        """`identity` says which piece of work it is, `content` in words what decides it."""
        self.path, self.identity, self.kind, self.content = path, identity, kind, content

    def lines(self) -> list[Any]:
        """The finished parts; none if there is no file. Another work's journal is refused."""
        text = self._text()
        if self._header().startswith(text):  # none yet, or cut off within the first line
            return []
        try:
            header, *lines = [json.loads(line) for line in text.split("\n")[:-1]] or [None]
        except ValueError as error:
            raise self._unreadable(error) from None
        if not isinstance(header, dict) or self.kind not in header:
            raise ConfigError(
                f"{self.path} is not the record of a {self.kind}; give --overwrite or another "
                "--output"
            )
        if header[self.kind] != self.identity or header.get("version") != VERSION:
            raise ConfigError(
                f"{self.path} is the record of another {self.kind} ({self.content} differ); give "
                "--overwrite or another --output"
            )
        return lines

    def begin(self) -> None:
        """A new file, or the old one without a line that was cut off."""
        self.lines()
        text = self._text()
        whole = text[: text.rfind("\n") + 1] or self._header()
        if whole != text:
            with replacing(self.path) as written:
                written.write_text(whole, encoding="utf-8")

    def _header(self) -> str:
        return json.dumps({self.kind: self.identity, "version": VERSION}) + "\n"

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"{self.path} cannot be read ({error}); give --overwrite or another --output"
        )

    def append(self, entry: Any) -> None:
        """Adds a finished part."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
