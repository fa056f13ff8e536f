"""The beginning of a trace, by which its format is recognised."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import check_regular
from blis_jax.traces.columns import plain_name
from blis_jax.traces.formats.csv_reader import header_names, open_text

LINES_LOOKED_AT = 50
CHARACTERS_LOOKED_AT = 1_000_000
PARQUET_MARK = b"PAR1"


@dataclass(frozen=True)
class Sniff:
    """A path and its first lines that are not blank; no lines for folders and Parquet."""

    path: Path
    lines: tuple[str, ...]
    is_parquet: bool = False

    @cached_property
    def header(self) -> frozenset[str]:
        """Names in the first line as CSV, without case and separators."""
        names = header_names(self.lines[0]) if self.lines else ()
        return frozenset(plain_name(name) for name in names)

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """The lines that are JSON objects."""
        found = []
        for line in self.lines:
            try:
                value = json.loads(line) if line.lstrip().startswith("{") else None
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def has_columns(self, *names: str) -> bool:
        """Whether the header has all of these columns."""
        return self.header.issuperset(plain_name(name) for name in names)


def sniff(path: Path) -> Sniff:
    """Look at the beginning of a file or at a folder."""
    if path.is_dir():
        return Sniff(path, ())
    check_regular(path)
    try:
        with path.open("rb") as file:
            if file.read(len(PARQUET_MARK)) == PARQUET_MARK:
                return Sniff(path, (), is_parquet=True)
        with open_text(path) as text:
            start = text.read(CHARACTERS_LOOKED_AT)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the path of a trace") from None
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give the path of a trace") from None
    lines = (line for line in start.splitlines() if line.strip())
    return Sniff(path, tuple(islice(lines, LINES_LOOKED_AT)))
