"""The content of a result file: JSON, JSON lines or YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.strict_yaml import read_yaml


def parse(path: Path) -> Any:
    """A document; a tuple of documents for JSON lines; None for a text that is none of these.

    Raises:
        ConfigError: it begins as JSON but is damaged.
    """
    text = input_files.read_text(path, "a measured run")
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(text, str(path))
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _lines(text, path)


def _lines(text: str, path: Path) -> tuple[Any, ...]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{path}, line {number}: {error}; give JSON, or JSON with one object a line"
                ) from None
    return tuple(found)
