"""A test process lets go of its programs."""

import jax
import jax.numpy as jnp

from tests.support.memory import forget_programs, resident_bytes


def test_a_forgotten_program_is_compiled_again() -> None:
    traces = []

    @jax.jit
    def double(x: jax.Array) -> jax.Array:
        traces.append(x)
        return x + x

    for _ in range(2):
        double(jnp.float32(1))
    assert len(traces) == 1
    forget_programs()
    double(jnp.float32(1))
    assert len(traces) == 2


def test_a_process_holds_some_memory() -> None:
    assert resident_bytes() > 10 * 2**20
