"""Files and folders that appear complete or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` when the block ends without error.

    A folder in the way is moved aside first, so for a moment neither is there; a file is replaced
    at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        written = scratch / path.name
        yield written
        if path.is_dir():
            aside = scratch / "old"
            path.rename(aside)
            try:
                written.rename(path)
            except OSError:
                aside.rename(path)
                raise
        else:
            os.replace(written, path)
    finally:
        shutil.rmtree(scratch)


def write_json(path: Path, document: Any) -> None:
    """Writes JSON laid out as the reference does: two spaces, whole numbers without a fraction."""
    with replacing(path) as written:
        written.write_text(json_text(document), encoding="utf-8")


def json_text(document: Any) -> str:
    """The JSON text of a document; refuses NaN and infinities."""
    return json.dumps(_whole_numbers(document), indent=2, ensure_ascii=False, allow_nan=False)


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole_numbers(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_numbers(entry) for entry in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value
