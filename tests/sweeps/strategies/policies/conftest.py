"""Policies are asked in 64 bits, as in a run."""

from tests.policies.conftest import in_64_bits

__all__ = ["in_64_bits"]
