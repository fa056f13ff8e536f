"""Files and folders that appear complete or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blis_jax.files import process_lock

# In a scratch folder beside what is written. It is locked while its process lives.
NEW, ASIDE, DISCARDED, LOCK = "new", "aside", "discarded", "lock"
ENDING = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` when the block ends without error.

    A folder in the way is moved aside first, so for a moment neither is there; a file is replaced
    at once. What a killed process left behind when it wrote `path` is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path)
    with _scratch(path) as scratch:
        (scratch / NEW).mkdir()
        written = scratch / NEW / path.name
        try:
            yield written
        except OSError as error:
            error.filename = error.filename or os.fspath(path)  # a full disk names no file
            raise
        if path.is_dir():
            aside = scratch / ASIDE
            path.rename(aside)
            try:
                written.rename(path)
            except OSError:
                aside.rename(path)
                raise
        else:
            os.replace(written, path)


def discard(path: Path) -> None:
    """Removes a file or a folder; it is there whole, or not at all, whenever the process is killed."""
    clear_leftovers(path)
    if path.exists():
        with _scratch(path) as scratch:
            path.rename(scratch / DISCARDED)


def clear_leftovers(path: Path) -> None:
    """Removes what killed processes left behind when they wrote `path`.

    If one was killed while it replaced a folder, the new folder is put in its place. What a living
    process is writing stays, and what a process of another machine left.
    """
    name = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(ENDING)}")
    entries = list(path.parent.iterdir()) if path.parent.is_dir() else []
    for scratch in entries:
        if name.fullmatch(scratch.name):
            with suppress(OSError):  # what cannot be removed does not stand in the way
                _clear(scratch, path)


def _clear(scratch: Path, path: Path) -> None:
    """Removes the scratch folder of a dead process, once what belongs at `path` is there."""
    lock = process_lock.take_over(scratch / LOCK)
    if lock is None:
        return
    try:
        new = scratch / NEW / path.name
        if (scratch / ASIDE).exists() and new.exists() and not path.exists():
            new.rename(path)
        shutil.rmtree(scratch)
    finally:
        process_lock.let_go(lock)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A locked folder beside `path`, removed in the end."""
    lock = None
    while lock is None:  # again, if it was taken for a leftover before it was locked
        folder = Path(tempfile.mkdtemp(ENDING, f".{path.name}.", path.parent))
        lock = process_lock.take(folder / LOCK)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        process_lock.let_go(lock)


def write_json(path: Path, document: Any) -> None:
    """Writes JSON laid out as the reference does: two spaces, whole numbers without a fraction."""
    with replacing(path) as written:
        written.write_text(json_text(document), encoding="utf-8")


def json_text(document: Any) -> str:
    """The JSON text of a document; refuses NaN and infinities."""
    return json.dumps(whole_numbers(document), indent=2, ensure_ascii=False, allow_nan=False)


def whole_numbers(value: Any) -> Any:
    """Return the document with whole floats as integers, as the reference writes them."""
    if isinstance(value, dict):
        return {name: whole_numbers(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [whole_numbers(entry) for entry in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value
