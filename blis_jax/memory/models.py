"""The memory models by name, and which one a compilation uses."""

from __future__ import annotations

from typing import Any

from blis_jax.core.types import EngineShape
from blis_jax.memory.block_level import BlockLevel
from blis_jax.memory.memory import Memory
from blis_jax.memory.no_eviction import NoEviction


def memory_of(shape: EngineShape) -> Memory[Any, Any]:
    """Blocks one by one where the shape has room for them, else the cheap model."""
    return BlockLevel() if shape.num_blocks else NoEviction()
