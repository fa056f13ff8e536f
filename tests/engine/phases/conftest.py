"""Phases are called one by one, in 64 bits as in the engine."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from blis_jax.core.exact import runtime_infinity


@pytest.fixture(autouse=True)
def in_64_bits() -> Iterator[None]:
    with jax.enable_x64(True), runtime_infinity(jnp.float64(jnp.inf)):
        yield
