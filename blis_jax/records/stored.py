"""Whole runs as files: written by the process that makes the run, named by a hash of their content, checked when read.

A file is numpy's `.npz`: an array for each column of a table, and an array with the other values as JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError, refusing_damage
from blis_jax.files.atomic_write import replacing
from blis_jax.files.formats import number_of, refuse_newer
from blis_jax.records import record as tables
from blis_jax.records.record import RunRecord
from blis_jax.records.splits import SplitRecords

KIND, ENDING, REST = "whole run", ".npz", "rest"
_TABLES: Mapping[str, type[Any]] = {
    name: thing for name, thing in vars(tables).items() if dataclasses.is_dataclass(thing) and isinstance(thing, type)
} | {SplitRecords.__name__: SplitRecords}  # fmt: skip


def store(record: RunRecord, folder: str | Path) -> Path:
    """Write a run into a folder, whole or not at all; equal runs are one file.

    Returns:
        The file, whose name is the hash of its content.

    Raises:
        OSError: the disk is full, or nothing may be written there.
    """
    arrays: dict[str, np.ndarray] = {}
    rest = {"format": number_of(KIND), "run": _plain(record, "", arrays)}
    into = io.BytesIO()
    np.savez_compressed(into, **{REST: np.array(json.dumps(rest))}, **arrays)  # type: ignore[arg-type]
    content = into.getvalue()
    path = Path(folder) / f"{hashlib.sha256(content).hexdigest()}{ENDING}"
    if not path.exists():
        with replacing(path) as scratch:
            scratch.write_bytes(content)
    return path


def load(path: str | Path) -> RunRecord:
    """Read a run that `store` has written.

    Raises:
        ConfigError: the file is not there, damaged, or of a later format.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give the file in RunSummary.stored")
    with refusing_damage(path, "make the run again"):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != path.name.removesuffix(ENDING):
            raise ConfigError(f"{path} is damaged or renamed; make the run again")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            rest = json.loads(str(arrays[REST]))
            refuse_newer(rest["format"], KIND, str(path))
            record: RunRecord = _read(rest["run"], "", arrays)
    return record


def _plain(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Convert a value to JSON types; move its arrays to `arrays`, by name."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": 0}
    if isinstance(value, Outcome):
        return {"outcome": value.name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _plain(getattr(value, field.name), f"{name}.{field.name}", arrays)
            for field in dataclasses.fields(value)
        }
        return {"table": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_plain(each, f"{name}.{at}", arrays) for at, each in enumerate(value)]}
    if isinstance(value, Mapping):
        return {"mapping": dict(value)}
    return value.item() if isinstance(value, np.generic) else value


def _read(value: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value from which `_plain` made `value`."""
    match value:
        case {"array": _}:
            return arrays[name]
        case {"outcome": word}:
            return Outcome[word]
        case {"table": kind, "fields": fields}:
            read = {part: _read(each, f"{name}.{part}", arrays) for part, each in fields.items()}
            return _TABLES[kind](**read)
        case {"tuple": members}:
            return tuple(_read(each, f"{name}.{at}", arrays) for at, each in enumerate(members))
        case {"mapping": members}:
            return members
    return value
