"""Tokens in blocks. Counts are never negative, so that for blocks of 2, 4, 8 … tokens a division is one shift.

A division of signed numbers takes XLA six operations. Where a slot holds junk, so does the result.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def full_blocks(tokens: jax.Array, size: int) -> jax.Array:
    """Blocks that the tokens fill."""
    whole = tokens.dtype.type(size)
    if size & (size - 1):
        return lax.div(tokens, jnp.full_like(tokens, whole))
    shift = jnp.full_like(tokens, tokens.dtype.type(size.bit_length() - 1))
    return lax.shift_right_arithmetic(tokens, shift)


def ceil_div(tokens: jax.Array, size: int) -> jax.Array:
    """Blocks that the tokens need."""
    return full_blocks(tokens + tokens.dtype.type(size - 1), size)


def in_last_block(tokens: jax.Array, size: int) -> jax.Array:
    """Tokens beyond the full blocks."""
    if size & (size - 1):
        return lax.rem(tokens, jnp.full_like(tokens, tokens.dtype.type(size)))
    return tokens & tokens.dtype.type(size - 1)
