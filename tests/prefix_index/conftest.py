"""The index is called function by function, in 64 bits as in the engine."""

from tests.engine.phases.conftest import in_64_bits

__all__ = ["in_64_bits"]
