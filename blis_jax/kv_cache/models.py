"""The memory models by name, and which one a compilation uses."""

from __future__ import annotations

from typing import Any

from blis_jax.kv_cache.block_level import BlockLevel
from blis_jax.kv_cache.memory import Memory
from blis_jax.kv_cache.no_eviction import NoEviction
from blis_jax.types import EngineShape


def memory_of(shape: EngineShape) -> Memory[Any, Any]:
    """Blocks one by one where the shape has room for them, else the cheap model."""
    return BlockLevel() if shape.num_blocks else NoEviction()
