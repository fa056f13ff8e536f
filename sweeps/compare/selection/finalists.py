"""The best points of a search, as arms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError


def finalist_texts(path: str, count: int) -> list[str]:
    """Arms of the points with the best scores that did not fail, the best first; equal points once."""
    from blis_jax.files.input_files import read_json
    from sweeps.strategies.file import list_library

    document = read_json(Path(path), "a result of sweeps.optimize")
    points = document.get("points") if isinstance(document, dict) else None
    if not isinstance(points, list):
        raise ConfigError(f"--search: {path} has no points; give a result of sweeps.optimize")
    strategy = document.get("strategy")
    if strategy not in list_library():
        raise ConfigError(
            f"--search: {path} is of the strategy {strategy!r}, which is not in the library; give its points as arms, "
            "FILE.yaml:NAME=VALUE;…"
        )
    whole = [one for one in points if not one.get("is_estimate")]
    good = [one for one in whole if not one["failures"] and one["score"] is not None]
    texts = dict.fromkeys(
        _text(strategy, one) for one in sorted(good, key=lambda one: float(one["score"]))
    )
    if not texts:
        raise ConfigError(f"--search: every point of {path} failed; there is nothing to choose")
    return [f"point{place}={text}" for place, text in enumerate(list(texts)[:count], start=1)]


def _text(strategy: str, point: Mapping[str, Any]) -> str:
    values = ";".join(f"{name}={value}" for name, value in point["parameters"].items())
    return f"{strategy}:{values}"
