"""Which token came after a preemption that kept its request's output."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.records.latencies import _next_tokens


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_the_next_token_is_of_the_same_life(xp: Any) -> None:
    """Request 0 is preempted, handed over (or stopped) after its token in record 7, and preempted again."""
    of, first = xp.array([0, 1, 0, 0]), xp.array([3, 5, 7, 9])
    ends, current = xp.array([True, True, True, True]), xp.array([12, -1])
    assert _next_tokens(of, first, ends, current, xp).tolist() == [7, -1, 9, 12]


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_a_life_without_a_token_answers_no_earlier_preemption(xp: Any) -> None:
    """An instance stops before request 0 has made another token; what its next attempt makes is not that token."""
    of, first = xp.array([0, 0]), xp.array([3, -1])
    ends, current = xp.array([True, True]), xp.array([12])
    assert _next_tokens(of, first, ends, current, xp).tolist() == [-1, 12]
