"""The rule for `--resume`: a command goes on with what is kept if everything its numbers depend on is the same.

Datasets, journals of runs and states of a training keep what they depend on, by names that a user knows, and
compare it here. So does what has a form of its own on disk and can be gone on with.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError

ADVICE = "give --overwrite or another --output"


def fingerprint(content: object) -> str:
    """Sixteen digits, equal for equal content."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def version_of(package: str) -> str:
    """The version that is installed, or `unknown`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """The versions that all numbers depend on, by their names in words."""
    names = {"version of blis_jax": "blis-jax", "version of JAX": "jax"}
    return {words: version_of(package) for words, package in names.items()}


def refuse_other_work(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], advice: str = ADVICE
) -> None:
    """Refuses to go on with what differs in something that its numbers depend on; says in what.

    Args:
        path: what is kept, for the sentence.
        before: what the kept numbers depend on, by its name in words.
        now: the same of the work that is wanted.
        advice: what the user can do.

    Raises:
        ConfigError: something differs, or is known of one of them only.
    """
    names = (*now, *(name for name in before if name not in now))
    other = [name for name in names if name not in before or before[name] != now.get(name)]
    if other:
        raise ConfigError(f"{path} was made with different {', '.join(other)}; {advice}")
