"""Policies are asked in 64 bits, as in a run."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def in_64_bits() -> Iterator[None]:
    """JAX with 64-bit numbers, for policies that are called outside the engine."""
    with jax.enable_x64(True):
        yield
