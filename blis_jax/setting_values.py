"""All settings of a configuration as plain values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blis_jax.config import ClusterConfig

# settings that came after the first records, with the values that these were made under
_LATER = {"latency_model": "auto"}


def values_for_hash(config: ClusterConfig) -> dict[str, Any]:
    """What identifies a configuration; a later setting only where it is given, so that old hashes hold."""
    values = dataclasses.asdict(config)
    return {
        name: value for name, value in values.items() if name not in _LATER or value != _LATER[name]
    }
