"""Scorers with their weights, as one text."""

from __future__ import annotations

import math

from blis_jax.errors import ConfigError

DEFAULT_SCORERS = "prefix-affinity:3,queue-depth:2,kv-utilization:2"


def parse_scorers(text: str, setting: str = "routing_scorers") -> list[tuple[str, float]]:
    """`name:weight,name:weight` as a list; refusals name the setting."""
    pairs: list[tuple[str, float]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        try:
            value = float(weight) if colon else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"{setting}: {part.strip()!r} is not name:weight with a weight above 0; "
                f"write for instance {DEFAULT_SCORERS}"
            )
        if name.strip() in dict(pairs):
            raise ConfigError(
                f"{setting}: {name.strip()!r} is given twice; give each scorer one weight"
            )
        pairs.append((name.strip(), value))
    return pairs
