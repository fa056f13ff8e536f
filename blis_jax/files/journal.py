"""What a long command has done, as lines of JSON to go on from; a line that was cut off does not count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.files.resuming import ADVICE, fingerprint, refuse_other_work, versions

VERSION = 2  # the first had no content, but one fingerprint of it all


class Journal:
    """A header that says what is being done, and a line for each finished part of it."""

    def __init__(self, path: Path, kind: str, content: Mapping[str, Any]) -> None:
        """`kind` is that of the work, `content` what its numbers depend on, by its name in words."""
        self.path, self.kind = path, kind
        prints = {name: fingerprint(value) for name, value in content.items()}
        self.content = {**prints, **versions()}

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
            raise ConfigError(f"{self.path} is not the record of a {self.kind}; {ADVICE}")
        if header.get("version") != VERSION or not isinstance(header[self.kind], dict):
            raise ConfigError(f"{self.path} is a record of an earlier version; {ADVICE}")
        refuse_other_work(self.path, header[self.kind], self.content)
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
        return json.dumps({self.kind: self.content, "version": VERSION}) + "\n"

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.path} cannot be read ({error}); {ADVICE}")

    def append(self, entry: object) -> None:
        """Adds a finished part."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
